"""A tour of the jobs that bring people here, by the command and ``import fastdata`` alone.

Each result is compared with that of plain torch, torchvision, pycocotools, datasets or webdataset.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets as hub
import hub_datasets
import numpy as np
import pandas as pd
import pytest
import torch
import webdataset
from annotated import open_coco, write_masked, write_yolo
from PIL import Image
from sources import convert, encoded, jpeg, picture, run
from torch.utils.data import DataLoader as TorchLoader
from torchvision_stub import import_torchvision
from vision_datasets import make_coco, make_voc

import fastdata
from fastdata import DataLoader, ImageDataset

tv = import_torchvision()
v1, v2 = tv.transforms, tv.transforms.v2
#: Every pixel follows from the image: both libraries' batches can be compared.
FIXED = v1.Compose([v1.Resize(32), v1.CenterCrop(32), v1.PILToTensor()])
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def packed(out: Path, kind: str, root: Path, *options: object) -> Path:
    result = convert(kind, "--root", root, *options, "--no-shuffle", "--out", out)
    assert result.exit_code == 0, result.output
    return out


def same(found: Any, wanted: Any, levels: float = 1) -> None:
    """Compare batches or samples: pixels within levels, boxes within 1e-4, all else equal."""
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for pair in zip(found, wanted, strict=True):
            same(*pair, levels)
    elif isinstance(wanted, torch.Tensor):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        most = 1e-4 if wanted.is_floating_point() else levels if wanted.dtype == torch.uint8 else 0
        assert not wanted.numel() or (found.double() - wanted.double()).abs().max() <= most
    else:
        assert found == wanted


def native(dataset: Any, size: int = 4, **options: Any) -> Any:
    return DataLoader(dataset, size, num_workers=2, require_native=True, **options)


def opened(path: Path | str) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


@pytest.fixture(scope="module")
def messy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("messy") / "photos"
    names = ("cat/1.JPEG", "cat/deep/er/2.jpg", "cat/a/3.png", "dog/10.Jpg", "dog/9.jpg")
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        kind = "PNG" if name.endswith("png") else "JPEG"
        (root / name).write_bytes(encoded(picture(seed, (70 + seed, 50)), kind))
    for name in ("cat/.DS_Store", "dog/Thumbs.db", "dog/notes.txt", "README.md"):
        (root / name).write_text("no image")
    (root / "eel").mkdir()
    return root


def folder(root: Path) -> Any:
    return tv.datasets.ImageFolder(root, FIXED, allow_empty=True)


def test_a_messy_folder_as_it_is_and_packed(messy: Path, tmp_path: Path) -> None:
    theirs = folder(messy)
    ours = ImageDataset(packed(tmp_path / "out", "imagefolder", messy, "--allow-empty"), FIXED)
    assert ours.classes == theirs.classes == ["cat", "dog", "eel"]
    for one in (theirs, ours):
        same(list(native(one)), list(TorchLoader(theirs, 4)))
    shuffled = native(ours, 2, shuffle=True, seed=3)
    epochs = [[label for _, labels in shuffled for label in labels.tolist()] for _ in range(2)]
    assert [sorted(labels) for labels in epochs] == [sorted(theirs.targets)] * 2


@pytest.mark.slow
def test_a_benchmark_of_a_messy_folder(messy: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to(messy)
    given = "--seconds=0.1 --warmup=0 --rounds=1 --threads=1 --batch-size=2 --json"
    found = run("bench", tmp_path / "photos", *given.split())
    failed = {one["name"]: one["error"] for one in json.loads(found.stdout)["contenders"]}
    assert failed.keys() == {"fastdata-imagefolder", "torch-uint8"} and not any(failed.values())


@pytest.mark.parametrize("make", [hub_datasets.classes, hub_datasets.shards_on_disk])
def test_hugging_face(make: Callable[..., Any], tmp_path: Path) -> None:
    photos = make(hub, tmp_path)

    def theirs(batch: Any) -> Any:
        return {**batch, "image": [FIXED(image.convert("RGB")) for image in batch["image"]]}

    wanted = [list(batch.values()) for batch in TorchLoader(photos.with_transform(theirs), 4)]
    same(list(native(ImageDataset(photos, FIXED))), wanted)


@pytest.mark.slow
def test_clip_tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fastdata.py").write_text("raise ImportError('not the library')")
    with webdataset.ShardWriter(f"{tmp_path}/%02d.tar", maxcount=5, verbose=0) as sink:
        for number in range(9):
            about = {"txt": f"Katze {number} 漢", "json": {"width": 48, "nsfw": number}}
            sink.write({"__key__": f"{number:05}", "jpg": jpeg(number), **about})
    tars, fields = [f"{tmp_path}/0{at}.tar" for at in range(2)], ("image", "txt", "json")
    pairs = webdataset.WebDataset(tars, shardshuffle=False).decode("pil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves tars open
        wanted = [(FIXED(s["jpg"]), s["txt"], s["json"]) for s in pairs]
    out = packed(tmp_path / "out", "webdataset", tmp_path)
    with pytest.warns(UserWarning, match="indexed"):
        in_place = ImageDataset(f"{tmp_path}/{{00..01}}.tar", FIXED, fields=fields)
    for ours in (in_place, ImageDataset(out, FIXED, fields=fields)):
        found = [row for batch in native(ours) for row in zip(*batch.values(), strict=True)]
        same([(image, text, json.loads(about)) for image, text, about in found], wanted)


#: Targets follow these steps, by the same numbers in each library.
JOINT = v2.Compose([v2.Resize((40, 56)), v2.RandomHorizontalFlip(1.0), v2.ToImage()])


def detected(out: Path) -> list[Any]:
    fields = ("image", "boxes", "labels")
    loader = native(ImageDataset(out, transforms=JOINT, fields=fields), collate_fn=list)
    return [(image, t["boxes"], t["labels"]) for batch in loader for image, t in batch]


def moved(samples: Any) -> list[Any]:
    """Images, boxes and labels, as torchvision moves them."""
    found = []
    for image, boxes, labels in samples:
        boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        about = {"format": "XYXY", "canvas_size": image.size[::-1]}
        boxes = tv.tv_tensors.BoundingBoxes(boxes, **about)
        image, boxes = JOINT(image, boxes)
        found.append((image, boxes.as_subclass(torch.Tensor), torch.as_tensor(labels).long()))
    return found


def test_coco(tmp_path: Path) -> None:
    make_coco(tmp_path / "coco")
    files = tmp_path / "coco/images", tmp_path / "coco/instances.json"
    out = packed(tmp_path / "out", "coco", files[0], "--annotations", files[1])
    coco = open_coco(files[1])
    ids, samples = sorted(coco.getCatIds()), []
    for image, objects in tv.datasets.CocoDetection(*files):
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (one["bbox"] for one in objects)]
        samples.append((image, boxes, [ids.index(one["category_id"]) for one in objects]))
    same(detected(out), moved(samples))
    painted = ImageDataset(out, transforms=v2.ToImage(), fields=("image", "masks"))
    for at, key in enumerate(sorted(coco.getImgIds())):
        wanted = [coco.annToMask(one) for one in coco.loadAnns(coco.getAnnIds(key))]
        masks = np.asarray(painted[at][1])
        assert len(masks) == len(wanted) and all(map(np.array_equal, masks, wanted))


def test_voc(tmp_path: Path) -> None:
    voc = make_voc(tmp_path) / "VOCdevkit/VOC2007"
    out = packed(tmp_path / "out", "voc", voc, "--split", "train")
    names, samples = ImageDataset(out).manifest.source["classes"], []
    for image, about in tv.datasets.VOCDetection(tmp_path, "2007", "train"):
        objects = about["annotation"]["object"]
        corners = ("xmin", "ymin", "xmax", "ymax")
        boxes = [[float(one["bndbox"][corner]) for corner in corners] for one in objects]
        samples.append((image, boxes, [names.index(one["name"]) for one in objects]))
    same(detected(out), moved(samples))


def test_yolo(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    out, samples = packed(tmp_path / "out", "yolo", tmp_path, "--split", "train"), []
    for path in sorted((tmp_path / "images/train").rglob("*.jpg")):
        label = tmp_path / "labels/train" / path.relative_to(tmp_path / "images/train")
        lines = [line.split() for line in label.with_suffix(".txt").read_text("utf-8").split("\n")]
        image, boxes = opened(path), []
        for line in filter(None, lines):
            sides = np.array(line[1:], float).reshape(-1, 2)
            if len(sides) == 2:  # centre and size; else a polygon
                sides = sides[0] + [-sides[1] / 2, sides[1] / 2]
            boxes.append([*(sides.min(0) * image.size), *(sides.max(0) * image.size)])
        samples.append((image, boxes, [int(line[0]) for line in lines if line]))
    same(detected(out), moved(samples))


def test_masks(tmp_path: Path) -> None:
    root = write_masked(tmp_path / "ade")
    given = ["--images", "images/training", "--masks", "annotations/training"]
    out = packed(tmp_path / "out", "masks", root, *given)
    ours = ImageDataset(out, transforms=JOINT, fields=("image", "mask", "key"))
    for images, targets in native(ours, 2):
        for at, key in enumerate(targets["key"]):
            image = opened(root / f"images/training/{key}.jpg")
            mask = np.array(opened(root / f"annotations/training/{key}.png"))[None]
            image, mask = JOINT(image, tv.tv_tensors.Mask(mask))
            same(images[at], image)
            same(targets["mask"][at], mask.as_subclass(torch.Tensor), levels=0)


def listed(messy: Path) -> pd.DataFrame:
    frame = pd.DataFrame(folder(messy).samples, columns=["image", "y"])
    return frame.sample(frac=1, random_state=2)  # as train_test_split leaves it


def loaded(frame: pd.DataFrame) -> list[Any]:
    images = torch.stack([FIXED(opened(path).convert("RGB")) for path in frame["image"]])
    return [images, torch.tensor(frame["y"].tolist())]


def test_a_data_frame(messy: Path) -> None:
    ours = ImageDataset.from_table(listed(messy), FIXED, image="image", label="y")
    same(list(native(ours, 9)), [loaded(listed(messy))])


def test_a_csv_of_absolute_paths_with_five_captions_an_image(messy: Path, tmp_path: Path) -> None:
    frame = listed(messy)
    five = pd.concat([frame.assign(text=f"0{at}") for at in range(5)])
    five.to_csv(tmp_path / "captions.csv")  # with pandas' column of numbers
    out = packed(tmp_path / "out", "table", tmp_path / "captions.csv", "--label-column", "y")
    ours = ImageDataset(out, FIXED, fields=("image", "label", "text"))
    texts = [[f"0{at}" for at in range(5)]] * len(frame)
    same([list(batch.values()) for batch in native(ours, 9)], [[*loaded(frame), texts]])


def test_buckets(tmp_path: Path) -> None:
    root = tmp_path / "photos/a"
    root.mkdir(parents=True)
    for seed in range(10):
        picture(seed, (60 + seed, 40) if seed % 2 else (40, 60 + seed)).save(root / f"{seed}.png")
    out, sizes = packed(tmp_path / "out", "imagefolder", root.parent), [(48, 32), (32, 48)]

    def cover(size: tuple[int, int]) -> Any:
        return v1.Compose([v1.Resize(min(size)), v1.CenterCrop(size), v1.PILToTensor()])

    ours = ImageDataset(out, fastdata.transforms.BySize(cover), fields=("image", "index"))
    planned = fastdata.samplers.AspectRatioBatches(ours, 3, sizes=sizes)
    seen, shapes = [], set()
    for batch in native(ours, 1, batch_sampler=planned):
        shapes.add(shape := tuple(batch["image"].shape[2:]))
        for image, at in zip(batch["image"], batch["index"].tolist(), strict=True):
            seen.append(at)
            same(image, cover(shape)(opened(root / f"{at}.png")))
    assert sorted(seen) == list(range(10)) and shapes == set(sizes)


#: A notebook's cell has no file, and its classes are __main__'s.
_CELL = """
import sys, warnings
sys.path.insert(0, sys.argv[1])
from torchvision_stub import import_torchvision
tv = import_torchvision()
import torch
from fastdata import DataLoader
from torch.utils.data import DataLoader as Torchs
class Mine:
    def __call__(self, image):
        return 255 - tv.transforms.functional.pil_to_tensor(image.resize((8, 8)))
warnings.simplefilter("ignore")
folder = tv.datasets.ImageFolder(sys.argv[2], Mine(), allow_empty=True)
ours, theirs = (list(one(folder, 2, num_workers=2)) for one in (DataLoader, Torchs))
assert all(torch.equal(a, b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y))
print(sum(len(labels) for _, labels in ours))
"""


@pytest.mark.slow
def test_a_notebook(messy: Path) -> None:
    command = [sys.executable, "-", str(Path(__file__).parent), str(messy)]
    ended = subprocess.run(command, input=_CELL, capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["5"], ended.stderr
