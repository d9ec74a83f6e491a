"""Photographs in a `datasets.Dataset`, some with an EXIF orientation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _workload import Workload, contenders, crops, fastdata_loader, torch_loader
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from fastdata.benchmarks.adapters._transforms import image_folder
from PIL import Image

WORKLOAD = Workload(
    "Hugging Face datasets",
    contenders(
        __file__,
        {
            "torch": "torch's loader, with_transform",
            "fastdata": "ImageDataset(dataset)",
        },
        needs="datasets",
    ),
    cases=("saved", "shuffled"),
    against="torch",
    options={"batch_size": 50, "rounds": 5},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Save a dataset."""
    import datasets

    files = image_folder(tree)
    cells = [{"bytes": _oriented(path, n), "path": None} for n, (path, _) in enumerate(files)]
    columns = {"image": cells, "label": [label for _, label in files]}
    features = {"image": datasets.Image(), "label": datasets.Value("int64")}
    made = datasets.Dataset.from_dict(columns, datasets.Features(features))
    made.save_to_disk(out, num_shards=4)


def _oriented(path: str, number: int) -> bytes:
    """Return a JPEG, one in seven with an EXIF orientation put behind its first marker."""
    jpeg, exif = Path(path).read_bytes(), Image.Exif()
    if (number + 1) % 7:
        return jpeg
    exif[0x0112] = 2 + number // 7 % 7
    data = exif.tobytes()
    return jpeg[:2] + b"\xff\xe1" + (len(data) + 2).to_bytes(2, "big") + data + jpeg[2:]


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader of the dataset."""
    import datasets

    dataset, transform = datasets.load_from_disk(request.data), crops(request)
    dataset = dataset.shuffle(seed=1) if request.case == "shuffled" else dataset
    if request.variant == "fastdata":
        from fastdata import ImageDataset

        return fastdata_loader(ImageDataset(dataset, transform), request)

    def apply(batch: dict[str, Any]) -> dict[str, Any]:
        images = [transform(image.convert("RGB")) for image in batch["image"]]
        return {"image": images, "label": batch["label"]}

    made = torch_loader(dataset.with_transform(apply), request)
    return lambda: ((batch["image"], batch["label"]) for batch in made)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "datasets"])
