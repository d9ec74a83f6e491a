"""Training pipelines of detection and segmentation: `fastdata.DataLoader` beside torch's loader.

    python -m fastdata.benchmarks.targets imagenet/train --out targets.json

Photographs get made annotations as COCO's: boxes and labels, and masks of their sizes. fastdata
reads a dataset packed from them. torch's loader has a Dataset over the files, as torchvision's
``CocoDetection`` with ``wrap_dataset_for_transforms_v2``; it has the same transforms of
``torchvision.transforms.v2`` and the same collate function. Before anything is timed, each
pipeline is compared without its draws: pixels, boxes, labels and masks of every sample. The loaders
take turns within one run.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    interleave,
    machine,
    out_option,
    report,
)
from fastdata.benchmarks.prepare import listing
from fastdata.benchmarks.recipes import Contender, Turn, speed, thrift
from fastdata.converters.masks import MaskedImages
from fastdata.converters.packing import pack
from fastdata.converters.table import TableImages
from PIL import Image, ImageDraw

from fastdata import DataLoader, ImageDataset, _native

#: Largest difference of pixels that are resized as floats are, in parts of 1; and of boxes.
_WITHIN, _PIXELS = 1.001 / 255, 1e-4
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SIDES = (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)


class Pipeline(NamedTuple):
    """A pipeline of a published training script.

    Attributes:
        title: For tables.
        batch: Samples of a batch.
        masks: Whether targets are masks, rather than boxes and labels.
        train: Makes the transform.
        plain: Makes one with the same steps that draws nothing.
        collate: The script's collate function.
    """

    title: str
    batch: int
    masks: bool
    train: Callable[[Any], list[Any]]
    plain: Callable[[Any], list[Any]]
    collate: Callable[[list[Any]], Any]


def _zipped(batch: list[Any]) -> Any:
    return tuple(zip(*batch, strict=True))


def _padded(batch: list[Any]) -> Any:
    """Pad images with 0 and masks with 255 to the largest, as references/segmentation does."""
    return tuple(
        _to_largest(several, fill)
        for several, fill in zip(zip(*batch, strict=True), (0, 255), strict=True)
    )


def _to_largest(several: tuple[torch.Tensor, ...], fill: int) -> torch.Tensor:
    largest = [max(sides) for sides in zip(*(one.shape for one in several), strict=True)]
    found = several[0].new_full((len(several), *largest), fill)
    for one, place in zip(several, found, strict=True):
        place[..., : one.shape[-2], : one.shape[-1]].copy_(one)
    return found


def _relative(batch: list[Any]) -> Any:
    """Stack images, and divide boxes by their size, as D-FINE has them."""
    images, targets = zip(*batch, strict=True)
    height, width = images[0].shape[-2:]
    sides = torch.tensor([width, height, width, height])
    return torch.stack(images), [{**one, "boxes": one["boxes"] / sides} for one in targets]


def _detection(v2: Any, steps: list[Any]) -> list[Any]:
    """Add the end of the presets of torchvision's references/detection."""
    end = [v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]
    return [*steps, v2.ToImage(), v2.ToDtype(torch.float, scale=True), *end]


def _dfine(v2: Any, steps: list[Any]) -> list[Any]:
    """Add the end of D-FINE's default pipeline."""
    sanitize = v2.SanitizeBoundingBoxes(min_size=1)
    resized = [sanitize, *steps, v2.Resize((640, 640)), sanitize, v2.ToImage()]
    formats = [v2.ConvertBoundingBoxFormat("CXCYWH"), v2.ToPureTensor()]
    return [*resized, v2.ToDtype(torch.float32, scale=True), *formats]


def _segmentation(v2: Any, steps: list[Any]) -> list[Any]:
    """Add the end of the preset of torchvision's references/segmentation."""
    from torchvision import tv_tensors

    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    end = [v2.ToDtype(dtypes, scale=True), v2.Normalize(_MEAN, _STD), v2.ToPureTensor()]
    return [*steps, v2.ToImage(), *end]


def _padded_crop(v2: Any, crop: Any) -> list[Any]:
    from torchvision import tv_tensors

    fill = {tv_tensors.Mask: 255, "others": 0}
    return [crop((512, 512), pad_if_needed=True, fill=fill)]


PIPELINES = {
    "ssdlite": Pipeline(
        "references/detection, ssdlite",
        24,
        False,
        lambda v2: _detection(v2, [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(0.5)]),
        lambda v2: _detection(v2, [v2.RandomHorizontalFlip(1.0)]),
        _zipped,
    ),
    "multiscale": Pipeline(
        "references/detection, multiscale",
        4,
        False,
        lambda v2: _detection(
            v2, [v2.RandomShortestSize(_SIDES, max_size=1333), v2.RandomHorizontalFlip(0.5)]
        ),
        lambda v2: _detection(
            v2, [v2.RandomShortestSize((640,), max_size=1333), v2.RandomHorizontalFlip(1.0)]
        ),
        _zipped,
    ),
    "dfine": Pipeline(
        "D-FINE, default",
        16,
        False,
        lambda v2: [
            v2.RandomPhotometricDistort(p=0.5),
            v2.RandomZoomOut(fill=0),
            v2.RandomApply([v2.RandomIoUCrop()], p=0.8),
            *_dfine(v2, [v2.RandomHorizontalFlip()]),
        ],
        lambda v2: _dfine(v2, [v2.RandomHorizontalFlip(1.0)]),
        _relative,
    ),
    "segmentation": Pipeline(
        "references/segmentation, crop 512",
        8,
        True,
        lambda v2: _segmentation(
            v2,
            [
                v2.RandomResize(260, 1040),
                v2.RandomHorizontalFlip(0.5),
                *_padded_crop(v2, v2.RandomCrop),
            ],
        ),
        lambda v2: _segmentation(
            v2, [v2.Resize(520), v2.RandomHorizontalFlip(1.0), v2.CenterCrop((512, 512))]
        ),
        _padded,
    ),
}


def write(root: Path, images: int, folder: Path) -> list[dict[str, Any]]:
    """Link photographs of a tree of classes; write boxes, labels and a mask for each.

    Returns:
        A dict of each: path, boxes (x, y, width, height, in pixels), labels.
    """
    paths = [path for path, _ in listing(root)]
    chosen = paths[:: max(1, len(paths) // images)][:images]
    drawn, rows = random.Random(0), []
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number, path in enumerate(chosen):
        target = folder / "images" / f"{number:06}.jpg"
        target.symlink_to(Path(path).resolve())
        with Image.open(path) as image:
            width, height = image.size
        mask = Image.new("L", (width, height))
        boxes, labels = [], []
        # COCO has seven objects an image, most of them small.
        for _ in range(1 + min(int(drawn.expovariate(1 / 6.3)), 40)):
            wide, high = (max(4.0, side * drawn.betavariate(1, 4)) for side in (width, height))
            left, top = drawn.uniform(0, width - wide), drawn.uniform(0, height - high)
            boxes.append([round(value, 2) for value in (left, top, wide, high)])
            labels.append(drawn.randint(1, 90))
            place = left, top, left + wide, top + high
            ImageDraw.Draw(mask).ellipse(place, fill=labels[-1] % 21)
        mask.save(folder / "masks" / f"{number:06}.png")
        rows.append({"path": f"images/{number:06}.jpg", "boxes": boxes, "labels": labels})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


class Files(torch.utils.data.Dataset[Any]):
    """Dataset of torch's loader: an image with Pillow, its target as torchvision wraps COCO's."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]], masks: bool, steps: list[Any]):
        from torchvision.transforms import v2

        self._folder, self._rows, self._masks = folder, rows, masks
        self.transforms = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self._rows)

    def load(self, index: int) -> tuple[Any, Any]:
        """Return a sample before the transform."""
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional

        row = self._rows[index]
        path = self._folder / row["path"]
        image = Image.open(path).convert("RGB")
        if self._masks:
            mask = Image.open(self._folder / "masks" / f"{path.stem}.png")
            return image, tv_tensors.Mask(np.array(mask)[None])
        boxes = tv_tensors.BoundingBoxes(
            row["boxes"], format="XYWH", canvas_size=(image.height, image.width)
        )
        return image, {
            "boxes": functional.convert_bounding_box_format(boxes, new_format="XYXY"),
            "labels": torch.tensor(row["labels"]),
        }

    def __getitem__(self, index: int) -> Any:
        return self.transforms(*self.load(index))


class Both:
    """The two loaders of one pipeline."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]], pipeline: Pipeline, threads: int):
        from torchvision.transforms import v2

        self._v2, self._folder, self._rows = v2, folder, rows
        self._pipeline, self._threads = pipeline, threads

    def files(self, train: bool) -> Files:
        """Return torch's dataset."""
        make = self._pipeline.train if train else self._pipeline.plain
        return Files(self._folder, self._rows, self._pipeline.masks, make(self._v2))

    def packed(self, train: bool) -> ImageDataset:
        """Return fastdata's."""
        make, masks = self._pipeline.train if train else self._pipeline.plain, self._pipeline.masks
        return ImageDataset(
            self._folder / ("masked" if masks else "boxed"),
            transforms=self._v2.Compose(make(self._v2)),
            fields=("image", "mask") if masks else ("image", "boxes", "labels"),
            formats=None if masks else {"boxes": "xywh"},
        )

    def loaders(self) -> tuple[Any, Any]:
        """Return fastdata's loader for training, and torch's."""
        options: dict[str, Any] = {
            "batch_size": self._pipeline.batch,
            "shuffle": True,
            "num_workers": self._threads,
            "collate_fn": self._pipeline.collate,
            "drop_last": True,
            "persistent_workers": True,
        }
        ours: Any = DataLoader(self.packed(True), **options, require_native=True)
        return ours, torch.utils.data.DataLoader(self.files(True), **options)

    def check(self) -> str:
        """Compare every sample of the pipeline without draws; return the difference, or ""."""
        ours: Any = DataLoader(self.packed(False), 16, collate_fn=list, require_native=True)
        theirs = self.files(False)
        level = _WITHIN / (min(_STD) if self._pipeline.masks else 1)
        for index, (image, target) in enumerate(one for batch in ours for one in batch):
            wanted, also = theirs[index]
            if image.shape != wanted.shape or (image - wanted).abs().max() > level:
                return f"image {index}"
            if self._pipeline.masks:
                if not torch.equal(target, also):
                    return f"mask {index}"
            elif not torch.equal(target["labels"], also["labels"]) or not torch.allclose(
                target["boxes"], also["boxes"], rtol=0, atol=_PIXELS
            ):
                return f"boxes of {index}"
        return ""

    def torch_stages(self, samples: int) -> dict[str, float]:
        """Return the milliseconds a sample of each step of torch's side, in this thread."""
        dataset = self.files(True)
        spent: dict[str, float] = {}

        def add(name: str, began: float) -> None:
            spent[name] = spent.get(name, 0.0) + (time.thread_time() - began) * 1e3 / samples

        for number in range(samples):
            began = time.thread_time()
            sample: Any = dataset.load(number % len(dataset))
            add("open and decode", began)
            for step in dataset.transforms.transforms:
                began = time.thread_time()
                sample = step(*sample)
                add(type(step).__name__, began)
        return spent

    def core_stages(self, samples: int) -> dict[str, float]:
        """Return the milliseconds a sample of each stage of the core, in this thread."""
        batch, collate = self._pipeline.batch, self._pipeline.collate
        loader: Any = DataLoader(self.packed(True), batch, collate_fn=collate, num_workers=0)
        list(zip(range(2), loader, strict=False))
        _native.profile_start()
        began, done = time.thread_time(), 0
        while done < samples:
            for _, targets in loader:
                done += len(targets)
                if done >= samples:
                    break
        spent = (time.thread_time() - began) * 1e3
        stages = {name: ms for name, ms in _native.profile_stop().items() if ms}
        stages["Python: plan, targets, collate"] = spent - sum(stages.values())
        return {name: ms / done for name, ms in stages.items()}


def measure(
    root: Path, images: int, threads: int, batches: int, rounds: int, names: tuple[str, ...]
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    import_torchvision()
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of images that Pillow decodes
        folder = Path(name)
        rows = write(root, images, folder)
        table = TableImages(folder / "rows.jsonl", folder)
        pack(table, folder / "boxed", container="shards", workers=1, order="source")
        pack(MaskedImages(folder), folder / "masked", container="shards", workers=1, order="source")
        found = {}
        for pipeline in names or [key for key, one in PIPELINES.items() if not one.masks]:
            found[pipeline] = _pipeline(folder, rows, pipeline, threads, batches, rounds)
        return {
            "benchmark": "targets",
            "machine": machine(),
            "images": len(rows),
            "objects": sum(len(row["labels"]) for row in rows),
            "threads": threads,
            "load": os.getloadavg()[0],
            "pipelines": found,
        }


def _pipeline(
    folder: Path, rows: list[dict[str, Any]], name: str, threads: int, batches: int, rounds: int
) -> dict[str, Any]:
    both = Both(folder, rows, PIPELINES[name], threads)
    if wrong := both.check():
        raise SystemExit(f"{name}: other than torchvision's: {wrong}; nothing was timed")
    ours, theirs = both.loaders()
    batch = PIPELINES[name].batch
    few = max(threads, batches * 16 // batch)
    contenders = {
        "torch": Contender("torch", theirs, few, 2 * threads),
        "fastdata": Contender("fastdata", ours, 4 * few, 4),
    }
    for one in contenders.values():  # fork torch's workers before fastdata has memory
        one.take(threads)
    turns = interleave({key: one.turn for key, one in contenders.items()}, rounds)
    del contenders, ours, theirs
    samples = min(len(rows), 128)
    stages = {"torch": both.torch_stages(samples), "fastdata": both.core_stages(2 * samples)}
    return {"batch": batch, "turns": turns, "stages": stages}


def figures(result: dict[str, Any]) -> list[Figures]:
    """Return the table of speeds, and one of stages a pipeline; ratios are taken per round."""
    rows, tables = [], []
    for name, found in result["pipelines"].items():
        turns = {key: [Turn(*turn) for turn in of] for key, of in found["turns"].items()}
        cells = [PIPELINES[name].title]
        for value in (speed, thrift):
            ours, theirs = ([value(turn) for turn in turns[key]] for key in ("fastdata", "torch"))
            if value is speed:
                cells += [f"{Spread.of(one):,.0f}" for one in (theirs, ours)]
            cells.append(f"{Spread.of_ratios(ours, theirs):.1f}")
        rows.append(cells)
        tables.append(_stages(PIPELINES[name].title, found["stages"]))
    title = "{images:,} photographs, {threads} threads or workers".format(**result)
    heads = ["", "torch, images/s", "fastdata, images/s", "ratio", "ratio of CPU times"]
    return [Figures(title, heads, rows), *tables]


def _stages(title: str, stages: dict[str, dict[str, float]]) -> Figures:
    rows = []
    for key, spent in stages.items():
        total = sum(spent.values())
        rows.append([f"{key}: all", f"{total:.2f}", "100%"])
        for name, ms in sorted(spent.items(), key=lambda one: -one[1]):
            rows.append([f"{key}: {name}", f"{ms:.2f}", f"{ms / total:.0%}"])
    return Figures(title, ["", "ms an image", "part"], rows)


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--images", default=400, show_default=True, help="Photographs, evenly from ROOT.")
@click.option("--threads", default=2, show_default=True, help="Decode threads, and workers.")
@click.option("--batches", default=8, show_default=True, help="Turns of torch: so often 16 images.")
@click.option("--rounds", default=5, show_default=True, help="Turns of each loader.")
@click.option(
    "--pipeline",
    "names",
    type=click.Choice(list(PIPELINES)),
    multiple=True,
    help="These; by default those of detection.",
)
@out_option
def main(root: Path, out_path: Path | None, **options: Any) -> None:
    """Measure pipelines of detection and segmentation beside torch's loader.

    ROOT is a folder with a folder of photographs for each class; their annotations are made.
    Progress goes to standard error, tables to standard output; it takes some minutes.

    Example: python -m fastdata.benchmarks.targets imagenet/train
    """
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    result = measure(root, **options)
    report(result, out_path, *figures(result))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
