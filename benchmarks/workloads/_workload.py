"""Studies of fastdata beside others, as data for the harness; this folder is in a checkout alone.

A workload is a module with a `WORKLOAD`. As a script it is its contenders' adapter.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fastdata.benchmarks.adapters._serve import ContenderRequest
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import image_folder
from fastdata.benchmarks.contenders import Contender


class Workload(NamedTuple):
    """A study; page.md says how it is measured.

    Attributes:
        check: "peer" to compare all with the first contender, "random" to compare means and
            spreads of images; "" where contenders load different things.
        transposed: Whether the table has a row for each figure.
    """

    title: str
    contenders: Sequence[Contender]
    cases: Sequence[str] = ("",)
    columns: Sequence[str] = ("beside", "images/s", "times", "by CPU time")
    against: str = ""
    check: str = "peer"
    options: Mapping[str, Any] = MappingProxyType({})
    transposed: bool = False


def contenders(file: str, notes: Mapping[str, str], **more: Any) -> list[Contender]:
    """Return contenders that a workload's own file loads, from data that they share."""
    about = {"folder": Path(file).stem, "prepared_as": "", **more}
    return [Contender(name, file, name, note=note, **about) for name, note in notes.items()]


def few(root: str, images: int) -> list[tuple[str, int]]:
    """Return paths and labels of so many images of a tree, evenly."""
    files = image_folder(root)
    return files[:: max(1, len(files) // images)][:images]


def pack_tree(
    tree: str, out: str, variant: str, container: str = "lmdb", shuffle: bool = False
) -> None:
    """Pack a tree, and link it."""
    from fastdata.converters import ImageFolder, PackOptions, pack

    pack(
        ImageFolder(tree),
        Path(out, "packed"),
        container=container,
        options=PackOptions(shuffle=shuffle),
    )
    Path(out, "tree").symlink_to(Path(tree).resolve())


def options(request: ContenderRequest, **more: Any) -> dict[str, Any]:
    """Return the arguments of a loader, torch's or fastdata's."""
    training = not request.check
    return {
        "batch_size": request.batch_size,
        "shuffle": training,
        "drop_last": training,
        "num_workers": request.threads,
        "persistent_workers": request.threads > 0,
        **more,
    }


def crops(request: ContenderRequest, *last: str) -> Any:
    """Return torchvision's transform for training at 224 pixels; to check, one without draws."""
    tv = import_torchvision().transforms
    steps = [tv.RandomResizedCrop(224), tv.RandomHorizontalFlip()]
    steps = [tv.Resize(256), tv.CenterCrop(224)] if request.check else steps
    return tv.Compose([*steps, *(getattr(tv, name)() for name in last or ("ToTensor",))])


def fastdata_loader(dataset: Any, request: ContenderRequest, **more: Any) -> Any:
    """Return fastdata's loader; torch collates in one thread, as in its own loader's workers."""
    import torch

    from fastdata import DataLoader

    warnings.simplefilter("ignore")  # of images that Pillow decodes
    torch.set_num_threads(1)
    if getattr(dataset, "named", False):  # others make no dicts
        more = {"batch_transform": lambda batch: list(batch.values()), **more}
    return DataLoader(dataset, **options(request, require_native=True, **more))


def torch_loader(dataset: Any, request: ContenderRequest, **more: Any) -> Any:
    """Return torch's loader; its workers are processes, and the parent has nothing to compute."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    return torch.utils.data.DataLoader(dataset, **options(request, **more))


def torch_files(tree: Path, transform: Any, request: ContenderRequest, **more: Any) -> Any:
    """Return torch's loader of torchvision's ImageFolder, of files of any kind."""
    folder = import_torchvision().datasets.ImageFolder
    images = folder(str(tree), transform, is_valid_file=lambda path: True)
    return torch_loader(images, request, **more)


def twice(loader: Any) -> Any:
    """Return a loader of (images, images), of one of images alone."""

    def epoch() -> Iterator[Any]:
        for batch in loader:
            images = batch[0] if isinstance(batch, (list, tuple)) else batch
            yield images, images

    return epoch


_WORDS = "a the photo of dog cat red small house tree river on in with beside old man woman"


def caption(number: int) -> str:
    """Return a caption of 7 to 19 words."""
    drawn = random.Random(number)
    words = " ".join(drawn.choices(_WORDS.split(), k=drawn.randint(5, 17)))
    return f"{words.capitalize()}, number {number}."


def write_tars(root: str, out: Path, tars: int = 4) -> None:
    """Write the images of a tree to tars by WebDataset's writer, with classes and captions."""
    import webdataset

    out.mkdir(parents=True)
    files = image_folder(root)
    each = -(-len(files) // tars)
    with webdataset.ShardWriter(f"{out}/%05d.tar", maxcount=each, verbose=0) as sink:
        for number, (path, label) in enumerate(files):
            sample = {"jpg": Path(path).read_bytes(), "cls": str(label), "txt": caption(number)}
            sink.write({"__key__": f"{number:09}", "json": {"number": number}, **sample})
