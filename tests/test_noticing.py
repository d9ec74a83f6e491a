"""Warnings about images that torch's path decodes, and what they leave alone."""

from __future__ import annotations

import gc
import importlib.util
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from loader_data import tree
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset
from torchvision_stub import import_torchvision

import fastdata
from fastdata import DataLoader
from fastdata.cli.commands import cli
from fastdata.errors import SlowPathWarning, UsageError

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def pixels(image: Image.Image) -> Any:
    return np.asarray(image.convert("RGB").resize((32, 32)))


def to_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(pixels(image) / np.float32(255)).permute(2, 0, 1)


class Globbed(Dataset[Any]):
    def __init__(self, transform: Any = to_tensor) -> None:
        self.root = str(tree())
        self.paths = sorted(tree().glob("*/*"))
        self.transform = transform
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        image = Image.open(self.paths[index])
        return self.transform(image), int(self.paths[index].parent.name[-1])


class Stream(IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.source = [dataset[number] for number in range(len(dataset))]
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        for sample in self.source:
            self.given += 1
            yield sample


def named(image: Any) -> dict[str, Any]:
    return {"pixel_values": to_tensor(image), "name": "an image"}


def told(dataset: Any, passes: int = 2, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(dataset, **{"batch_size": 4, **options})
        assert loader.explain().startswith("torch")
        for _ in range(passes):
            list(loader)
    mine = [one for one in caught if one.category is SlowPathWarning]
    assert all(one.filename == __file__ for one in mine)
    return [str(one.message) for one in mine]


IMAGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "floats": (Globbed, {}),
    "workers": (Globbed, {"num_workers": 1, "persistent_workers": True}),
    "bytes": (lambda: Globbed(lambda image: np.asarray(to_tensor(image) * 255, np.uint8)), {}),
    "channels last": (lambda: Globbed(pixels), {}),
    "lists": (Globbed, {"collate_fn": lambda samples: [*zip(*samples, strict=True)]}),
    "half": (lambda: Globbed(lambda image: to_tensor(image).half()), {}),
    "single": (Globbed, {"batch_size": None}),
    "a collate_fn's tensors": (
        Globbed,
        {"collate_fn": lambda s: (torch.stack([image for image, _ in s]), "labels")},
    ),
    "Pillow's": (lambda: Globbed(lambda one: one.convert("RGB")), {"collate_fn": list}),
    "a dict": (lambda: Globbed(named), {}),
    "two views": (lambda: Globbed(lambda image: [to_tensor(image), to_tensor(image)]), {}),
    "on a device": (Globbed, {"device": "cpu"}),
    "a subset of several": (lambda: Subset(ConcatDataset([Globbed(), Globbed()]), [3, 1]), {}),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_a_dataset_of_ones_own_are_one_warning(name: str) -> None:
    make, options = IMAGES[name]
    (words,) = told(make(), **options)
    assert "test_noticing.Globbed is not a dataset" in words and "the torch path" in words
    root = str(tree())
    assert f"ImageDataset(torchvision.datasets.ImageFolder({root!r}), transform=...)" in words
    assert f"fastdata convert imagefolder --root {root!r}" in words


def test_what_is_advised_runs_natively() -> None:
    import_torchvision()
    import torchvision

    (words,) = told(Globbed())
    code = words[words.index("fastdata.ImageDataset(") : words.index(", or pack them")]
    code = code.replace("...", "fastdata.transforms.Resize((24, 24))")
    dataset = eval(code, {"fastdata": fastdata, "torchvision": torchvision})
    assert DataLoader(dataset, require_native=True)


def test_a_stream_of_images_is_told_of_and_read_once() -> None:
    stream = Stream(Globbed())
    (words,) = told(stream, passes=1)
    assert "test_noticing.Stream is an IterableDataset, which decides what it reads" in words
    assert stream.given == 12


PAIR = (Image.new("RGB", (20, 20)), Image.new("L", (20, 20)))
CLOUDS = [torch.rand(points, 3) for points in range(60, 68)]


def padded(samples: list[Any]) -> Any:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), [len(one) for one in samples]


#: Datasets of other data or of images in memory, and options.
OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "a table": ([(torch.rand(20), 1.0)] * 8, {}),
    "texts": (["one", "two"] * 4, {}),
    "tokens": ([{"input_ids": torch.arange(64), "attention_mask": torch.ones(64)}] * 8, {}),
    "features": ([torch.rand(12, 32, 32)] * 8, {}),
    "small matrices": ([torch.rand(3, 4, 4)] * 8, {}),
    "numbers": ([torch.ones(3, 32, 32, dtype=torch.int64)] * 8, {}),
    "point clouds": ([(torch.rand(1024, 3), 1)] * 8, {}),
    "point clouds that are padded": (CLOUDS, {"collate_fn": padded}),
    "point clouds, transposed": ([(torch.rand(3, 1024), 1)] * 8, {"batch_size": 3}),
    "coloured points": ([(torch.rand(64, 3), torch.ones(64, 3, dtype=torch.uint8))] * 8, {}),
    "poses": ([{"joints": torch.rand(17, 3), "by frame": torch.rand(64, 24, 3)}] * 8, {}),
    "skeletons": ([(torch.rand(3, 64, 25), 1)] * 8, {}),
    "trajectories": ([(torch.rand(64, 68, 3), torch.rand(64, 68, 3))] * 8, {}),
    "meshes": ([(torch.rand(128, 3), torch.ones(256, 3, dtype=torch.int64))] * 8, {}),
    "rotations": ([(torch.rand(64, 3, 3), torch.rand(64, 3, 4))] * 8, {}),
    "waveforms": ([(torch.rand(2, 16000), 1)] * 8, {"batch_size": 3}),
    "spectrograms": ([(torch.rand(1, 64, 64), 1)] * 8, {}),
    "spectrograms of three samples": ([(torch.rand(64, 99), 1)] * 9, {"batch_size": 3}),
    "videos": ([(torch.rand(4, 3, 32, 32), 1)] * 8, {}),
    "videos in bytes": ([(torch.ones(9, 32, 32, 3, dtype=torch.uint8), 1)] * 8, {}),
    "lists of videos": ([(torch.rand(4, 3, 32, 32), 1)] * 8, {"collate_fn": list}),
}
#: Images with masks.
MASKED: dict[str, tuple[Any, dict[str, Any]]] = {
    "masks": ([(torch.rand(3, 32, 32), torch.ones(32, 32, dtype=torch.int64))] * 8, {}),
    "depth": ([(torch.rand(3, 32, 32), torch.rand(1, 32, 32))] * 8, {}),
    "of Pillow": ([PAIR] * 4, {"collate_fn": list}),
}
IN_MEMORY = TensorDataset(torch.rand(8, 3, 16, 16))


class Given(Dataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


@pytest.mark.parametrize("name", OTHERS)
def test_other_data_are_not_told_of(name: str) -> None:
    samples, options = OTHERS[name]
    assert told(Given(samples), **options) == []


@pytest.mark.parametrize("name", MASKED)
def test_images_with_masks_are_told_of(name: str) -> None:
    samples, options = MASKED[name]
    (words,) = told(Given(samples), **options)
    assert '{"image": IMAGES, "mask": MASKS}' in words


@pytest.mark.parametrize("kind", ["Given", "TensorDataset", "CIFAR10", "MNIST"])
def test_the_line_for_tables_and_arrays_runs_natively(kind: str) -> None:
    import_torchvision()
    import torchvision

    pixels = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    dataset: Any = Given([])
    if kind == "TensorDataset":
        dataset = TensorDataset(torch.from_numpy(pixels))
    elif kind != "Given":
        dataset = object.__new__(getattr(torchvision.datasets, kind))
        dataset.data, dataset.targets, dataset.classes = pixels, [1] * 8, ["a", "b"]
        dataset.transform = fastdata.transforms.RandomHorizontalFlip(0.0)
        if kind == "MNIST":
            dataset.data = torch.from_numpy(pixels[..., 0])
    with pytest.raises(UsageError) as caught:
        DataLoader(dataset, require_native=True)
    hint = caught.value.hint
    code = hint[hint.index("fastdata.ImageDataset.from_table(") :].replace("...", "Flip")
    code = code[: code.index("), wh") + 1]
    about = {"IMAGES": pixels, "LABELS": [1] * 8, "dataset": dataset, "fastdata": fastdata}
    found = eval(code, {**about, "Flip": fastdata.transforms.RandomHorizontalFlip(0.0)})
    (batch,) = DataLoader(found, 8, require_native=True)
    expected = pixels if kind != "MNIST" else pixels[..., :1].repeat(3, 3)
    assert np.array_equal(batch[0].permute(0, 2, 3, 1), expected)
    assert kind in ("Given", "TensorDataset") or found.classes == ["a", "b"]


@pytest.mark.parametrize(
    "dataset", [IN_MEMORY, [(torch.rand(3, 16, 16), 0)] * 8, Subset(IN_MEMORY, [1, 2])]
)
def test_images_in_memory_are_not_told_of(dataset: Any) -> None:
    assert told(dataset) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_looking_changes_nothing(workers: int) -> None:
    """Samples, their order and generators are torch's own."""
    torch.manual_seed(0)
    theirs = torch.utils.data.DataLoader(Globbed(), 4, shuffle=True, num_workers=workers)
    wanted = [list(theirs) for _ in range(2)]
    left = torch.get_rng_state()
    torch.manual_seed(0)
    data = Globbed()
    loader = DataLoader(data, 4, shuffle=True, num_workers=workers)
    for number in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowPathWarning)
            found = list(loader)
        for one, other in zip(found, wanted[number], strict=True):
            assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), left)
    if not workers:
        assert len(data.asked) == 24


def test_warnings_that_are_errors_end_the_first_batch_alone() -> None:
    loader = DataLoader(Globbed(), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPathWarning)
        batches = iter(loader)
        with pytest.raises(SlowPathWarning):
            next(batches)
        assert len(list(batches)) == 2


# Other libraries' datasets.


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed (make test-recipes)")
    import_torchvision()


def test_timms_own_dataset_is_told_of() -> None:
    needs("timm")
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=str(tree()), transform=to_tensor)
    (words,) = told(dataset)
    assert "timm.data.dataset.ImageDataset is not a dataset that fastdata knows" in words
    assert "train.py --dataset torch/image_folder" in words
    assert "fastdata.ImageDataset(torchvision.datasets.ImageFolder(" in words
    native = create_dataset("torch/image_folder", root=str(tree()))
    create_loader(native, (3, 24, 24), 4, use_prefetcher=False)
    assert DataLoader(native, 4, require_native=True)


def test_a_webdataset_is_indexed_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    webdataset = pytest.importorskip("webdataset")
    paths = sorted(tree().glob("*/*.jpg"))[:6]
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"some-{shard}.tar")) as writer:
            for path in paths[shard * 3 :][:3]:
                label = int(path.parent.name[-1])
                writer.write({"__key__": path.stem, "jpg": path.read_bytes(), "cls": label})
    place = str(tmp_path / "some-{0..1}.tar")
    samples = webdataset.WebDataset(place, shardshuffle=False).decode("pil").to_tuple("jpg", "cls")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves shards open
        (words,) = told(samples.map_tuple(to_tensor), passes=1)
        want = [label for _, label in samples]
        gc.collect()
    words = words.replace("ROOT", repr(place))
    code = re.search(r"fastdata\.ImageDataset\(.*?\)", words)
    command = re.search(r"fastdata (index .*? --out) INDEX", words)
    assert code is not None and command is not None, words
    done = CliRunner().invoke(cli, [*shlex.split(command[1]), str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    written = code[0].replace("transform=..., fields=...", "fastdata.transforms.Resize((24, 24))")
    with pytest.warns(UserWarning, match="indexed now"):
        dataset = eval(written, {"fastdata": fastdata})
    assert [label for _, label in dataset] == want
    assert DataLoader(dataset, require_native=True)


def test_each_remedy_for_other_libraries_names_a_line_that_exists() -> None:
    for kind in ("petastorm.reader.Reader", "timm.data.readers.reader_wds.ReaderWds",
                 "webdataset.compat.WebDataset",
                 "torchvision.datasets.coco.CocoCaptions"):  # fmt: skip
        module, name = kind.rsplit(".", 1)
        dataset = type(name, (Globbed,), {"__module__": module})()
        (words,) = told(dataset, passes=1)
        assert "fastdata.ImageDataset(" in words and "{" not in words
        for command in re.findall(r"fastdata (convert|index|\w+ --\w+)", words):
            assert command in cli.commands


@pytest.mark.slow
def test_a_loader_in_the_place_of_torchs_warns_and_refuses_as_it_does_elsewhere() -> None:
    """Under torch's name, as docs/guides/replace-dataloader.md has it, in a process of its own."""
    script = """
import warnings, torch
import fastdata
torch.utils.data.DataLoader = fastdata.DataLoader
from fastdata.errors import SlowPathWarning, UsageError
from loader_data import images
from fastdata.transforms import Resize
from test_noticing import Globbed
data = images(Resize((4, 4)))
assert len(list(torch.utils.data.DataLoader(data, 5, num_workers=1, shuffle=True))) == 11
for dataset, options in ((data, {"worker_init_fn": print}), (Globbed(), {})):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(torch.utils.data.DataLoader(dataset, 4, **options))
    told = [str(one.message) for one in caught if one.category is SlowPathWarning]
    assert len(told) == 1 and "PrefixDataset" not in told[0], told
try:
    torch.utils.data.DataLoader(data, shuffle="yes")
except UsageError as error:
    assert "shuffle='yes'" in str(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    assert done.returncode == 0, done.stderr
