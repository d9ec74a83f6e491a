"""Images and captions, as open_clip's training takes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _workload import Workload, contenders, fastdata_loader, write_tars
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision

WORKLOAD = Workload(
    "Images and captions",
    contenders(__file__, {"webdataset": "", "fastdata": ""}, needs="open_clip_train"),
    against="webdataset",
    options={"batch_size": 50, "rounds": 9},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Write tars, and pack them."""
    from fastdata.converters import PackOptions, WebDataset, pack

    write_tars(tree, Path(out) / "tars")
    pack(WebDataset(Path(out) / "tars"), Path(out) / "packed", options=PackOptions(shuffle=False))


def open_loader(request: ContenderRequest) -> Any:
    """Open open_clip's loader, or fastdata's."""
    import_torchvision()
    import open_clip.tokenizer
    import open_clip.transform

    from fastdata import ImageDataset

    training, folder = not request.check, Path(request.data)
    transform = open_clip.transform.image_transform(224, training)
    tokenizer = open_clip.tokenizer.SimpleTokenizer()
    pairs = ImageDataset(folder / "packed", fields=("image", "txt"), transform=transform)
    if request.variant == "fastdata":
        tokens = {"batch_transform": lambda batch: (batch["image"], tokenizer(batch["txt"]))}
        return fastdata_loader(pairs, request, **tokens)
    import open_clip_train.data
    from webdataset.tariterators import tar_file_expander

    # Newer versions of webdataset yield an empty sample behind each tar, which open_clip's
    # training does not expect.
    open_clip_train.data.tar_file_expander = partial(tar_file_expander, eof_value=None)
    tars = "::".join(sorted(map(str, (folder / "tars").glob("*.tar"))))
    args = SimpleNamespace(
        train_data=tars,
        val_data=tars,
        train_num_samples=len(pairs),
        val_num_samples=None,
        train_data_upsampling_factors=None,
        batch_size=request.batch_size,
        workers=request.threads if training else 1,
        world_size=1,
        seed=0,
    )
    made = open_clip_train.data.get_wds_dataset(args, transform, training, tokenizer=tokenizer)
    return made.dataloader


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "open_clip_torch", "webdataset"])
