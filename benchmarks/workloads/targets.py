"""Training pipelines of detection and segmentation, from published scripts."""

from __future__ import annotations

import importlib
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders, fastdata_loader, few, torch_loader
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import MEAN, STD
from PIL import Image, ImageDraw

#: Samples of a batch.
CASES = {
    "references/detection, ssdlite": 24,
    "references/detection, multiscale": 4,
    "D-FINE, default": 16,
    "references/segmentation, crop 512": 8,
}
_SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)

WORKLOAD = Workload(
    "Detection and segmentation",
    contenders(__file__, {"torch": "", "fastdata": ""}, needs="torchvision"),
    cases=tuple(CASES),
    against="torch",
    options={"rounds": 7},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Link photographs; write boxes, labels and a mask for each; pack them."""
    from fastdata.converters import MaskedImages, PackOptions, TableImages, pack

    folder, drawn, rows = Path(out), random.Random(0), []
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number, (path, _) in enumerate(few(tree, 400)):
        name = f"{number:06}"
        (folder / "images" / f"{name}.jpg").symlink_to(Path(path).resolve())
        with Image.open(path) as image:
            width, height = image.size
        mask, boxes, labels = Image.new("L", (width, height)), [], []
        # COCO has seven objects an image, most of them small.
        for _ in range(1 + min(int(drawn.expovariate(1 / 6.3)), 40)):
            wide, high = (max(4.0, side * drawn.betavariate(1, 4)) for side in (width, height))
            left, top = drawn.uniform(0, width - wide), drawn.uniform(0, height - high)
            boxes.append([round(value, 2) for value in (left, top, wide, high)])
            labels.append(drawn.randint(1, 90))
            place = left, top, left + wide, top + high
            ImageDraw.Draw(mask).ellipse(place, fill=labels[-1] % 21)
        mask.save(folder / "masks" / f"{name}.png")
        rows.append({"path": f"images/{name}.jpg", "boxes": boxes, "labels": labels})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = TableImages(folder / "rows.jsonl", folder)
    for source, name in ((table, "boxed"), (MaskedImages(folder), "masked")):
        pack(
            source, folder / name, container="shards", workers=1, options=PackOptions(shuffle=False)
        )


def steps(case: str, draws: bool) -> list[Any]:
    """Return the steps of a pipeline; without draws, of one that has the same output."""
    import torch

    import_torchvision()
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    tensors: Any = importlib.import_module("torchvision.tv_tensors")
    flip, image = v2.RandomHorizontalFlip(0.5 if draws else 1.0), v2.ToImage()
    if "segmentation" in case:
        fill, crop = {tensors.Mask: 255, "others": 0}, v2.RandomCrop if draws else v2.CenterCrop
        about = {"pad_if_needed": True, "fill": fill} if draws else {}
        dtypes = {tensors.Image: torch.float32, tensors.Mask: torch.int64, "others": None}
        resize = v2.RandomResize(260, 1040) if draws else v2.Resize(520)
        normal = v2.Normalize(MEAN, STD)
        end = [image, v2.ToDtype(dtypes, scale=True), normal, v2.ToPureTensor()]
        return [resize, flip, crop((512, 512), **about), *end]
    floats, clean = v2.ToDtype(torch.float32, scale=True), v2.SanitizeBoundingBoxes
    end = [v2.ConvertBoundingBoxFormat("XYXY"), clean(), v2.ToPureTensor()]
    if "multiscale" in case:
        sizes = _SIDES if draws else (640,)
        return [v2.RandomShortestSize(sizes, max_size=1333), flip, image, floats, *end]
    crop = [v2.RandomIoUCrop()] if draws else []
    if "ssdlite" in case:
        return [*crop, flip, image, floats, *end]
    first = [v2.RandomPhotometricDistort(p=0.5), v2.RandomZoomOut(fill=0)]
    first = [*first, v2.RandomApply(crop, p=0.8)] if draws else []
    middle = [clean(min_size=1), flip, v2.Resize((640, 640)), clean(min_size=1), image]
    return [*first, *middle, floats, v2.ConvertBoundingBoxFormat("CXCYWH"), v2.ToPureTensor()]


def _load(folder: Path, transform: Any, masks: bool, index: int, row: Any) -> Any:
    """Load an image with Pillow, and its target as torchvision wraps COCO's."""
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    image = Image.open(folder / row["path"]).convert("RGB")
    if masks:
        mask = Image.open(folder / "masks" / f"{index:06}.png")
        return transform(image, tv_tensors.Mask(np.array(mask)[None]))
    size = {"format": "XYWH", "canvas_size": (image.height, image.width)}
    boxes = tv_tensors.BoundingBoxes(row["boxes"], **size)
    boxes = functional.convert_bounding_box_format(boxes, new_format="XYXY")
    return transform(image, {"boxes": boxes, "labels": torch.tensor(row["labels"])})


def _zipped(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


def _padded(batch: list[Any]) -> Any:
    """Stack images, padded with 0, and masks, padded with 255, as references/segmentation does."""
    stacked = []
    for several, fill in zip(zip(*batch, strict=True), (0, 255), strict=True):
        largest = [max(sides) for sides in zip(*(one.shape for one in several), strict=True)]
        stacked.append(several[0].new_full((len(several), *largest), fill))
        for one, place in zip(several, stacked[-1], strict=True):
            place[..., : one.shape[-2], : one.shape[-1]].copy_(one)
    return tuple(stacked)


def _relative(batch: list[Any]) -> Any:
    """Stack images, and divide boxes by their size, as D-FINE has them."""
    import torch

    images, targets = zip(*batch, strict=True)
    return torch.stack(images), [{**one, "boxes": one["boxes"] / 640} for one in targets]


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader of one pipeline."""
    import_torchvision()
    v2: Any = importlib.import_module("torchvision.transforms.v2")
    transform = v2.Compose(steps(request.case, not request.check))
    masks, folder = "segmentation" in request.case, Path(request.data)
    collate = _padded if masks else _relative if "D-FINE" in request.case else _zipped
    about = {"batch_size": CASES[request.case], "collate_fn": collate}
    if request.variant == "torch":
        rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
        load = partial(_load, folder, transform, masks)
        about["collate_fn"] = lambda batch: collate([load(*row) for row in batch])
        return torch_loader(list(enumerate(rows)), request, **about)
    from fastdata import ImageDataset

    boxed: Any = {"fields": ("image", "boxes", "labels"), "formats": {"boxes": "xywh"}}
    read: Any = {"fields": ("image", "mask")} if masks else boxed
    dataset = ImageDataset(folder / ("masked" if masks else "boxed"), transforms=transform, **read)
    return fastdata_loader(dataset, request, **about)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "torchvision"])
