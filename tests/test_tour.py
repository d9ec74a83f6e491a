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


def done(result: Any) -> None:
    assert result.exit_code == 0, result.output


def same(found: Any, wanted: Any, levels: float = 1) -> None:
    """Compare batches or samples: pixels within levels, boxes within 1e-4, all else equal."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        found, wanted = list(found.values()), list(wanted.values())
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other, levels)
    elif isinstance(wanted, torch.Tensor):
        assert found.shape == wanted.shape and found.dtype == wanted.dtype
        most = 1e-4 if wanted.is_floating_point() else levels if wanted.dtype == torch.uint8 else 0
        assert not wanted.numel() or (found.double() - wanted.double()).abs().max() <= most
    else:
        assert found == wanted


def beside(ours: Any, theirs: Any, *, native: bool = True, **options: Any) -> None:
    """Compare our loader's batches of a dataset with torch's of theirs, in order."""
    loader = DataLoader(ours, 4, num_workers=2, require_native=native, **options)
    same(list(loader), list(TorchLoader(theirs, 4, collate_fn=options.get("collate_fn"))))


def opened(path: Path | str) -> Image.Image:
    with Image.open(path) as image:
        image.load()
    return image


def rows(*columns: Any) -> Any:
    """A dataset of torch's, of (image, value, …) as files and values."""

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(columns[0])

        def __getitem__(self, at: int) -> Any:
            image = FIXED(opened(columns[0][at]).convert("RGB"))
            return (image, *(column[at] for column in columns[1:]))

    return Rows()


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
    beside(folder(messy), folder(messy))
    done(convert("imagefolder", "--root", messy, "--out", tmp_path / "out", "--no-shuffle",
                 "--allow-empty"))  # fmt: skip
    packed = ImageDataset(tmp_path / "out", FIXED)
    assert packed.classes == folder(messy).classes == ["cat", "dog", "eel"]
    beside(packed, folder(messy))
    shuffled = DataLoader(packed, 2, shuffle=True, seed=3, num_workers=2)
    epochs = [[label for _, labels in shuffled for label in labels.tolist()] for _ in range(2)]
    assert [sorted(labels) for labels in epochs] == [sorted(folder(messy).targets)] * 2


@pytest.mark.slow
def test_a_benchmark_of_a_messy_folder(messy: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to(messy)
    given = [
        "--seconds",
        "0.1",
        "--warmup",
        "0",
        "--rounds",
        "1",
        "--threads",
        "1",
        "--batch-size",
        "2",
        "--json",
    ]
    found = run("bench", tmp_path / "photos", *given)
    failed = {one["name"]: one["error"] for one in json.loads(found.stdout)["contenders"]}
    assert failed.keys() == {"fastdata-imagefolder", "torch-uint8"} and not any(failed.values())


@pytest.mark.parametrize("make", [hub_datasets.classes, hub_datasets.shards_on_disk])
def test_hugging_face(make: Callable[..., Any], tmp_path: Path) -> None:
    photos = make(hub, tmp_path)

    def theirs(batch: Any) -> Any:
        return {**batch, "image": [FIXED(image.convert("RGB")) for image in batch["image"]]}

    wanted = [list(batch.values()) for batch in TorchLoader(photos.with_transform(theirs), 4)]
    same(list(DataLoader(ImageDataset(photos, FIXED), 4, num_workers=2)), wanted)


@pytest.mark.slow
def test_clip_tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fastdata.py").write_text("raise ImportError('not the library')")
    with webdataset.ShardWriter(f"{tmp_path}/%02d.tar", maxcount=5, verbose=0) as sink:
        for number in range(9):
            about = {"width": 48, "caption": f"Katze {number} 漢"}
            sink.write({"__key__": f"{number:05}", "jpg": jpeg(number), "txt": about["caption"],
                        "json": about})  # fmt: skip
    tars, fields = [f"{tmp_path}/0{at}.tar" for at in range(2)], ("image", "txt", "json")
    pairs = webdataset.WebDataset(tars, shardshuffle=False).decode("pil")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves tars open
        wanted = [(FIXED(s["jpg"]), s["txt"], s["json"]) for s in pairs]
    done(convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out", "--no-shuffle"))
    with pytest.warns(UserWarning, match="indexed"):
        in_place = ImageDataset(f"{tmp_path}/{{00..01}}.tar", FIXED, fields=fields)
    for ours in (in_place, ImageDataset(tmp_path / "out", FIXED, fields=fields)):
        loader = DataLoader(ours, 4, num_workers=2, require_native=True)
        found = [row for b in loader for row in zip(b["image"], b["txt"], b["json"], strict=True)]
        same([(image, text, json.loads(about)) for image, text, about in found], wanted)


#: Targets follow these steps, by the same numbers in each library.
JOINT = v2.Compose([v2.Resize((40, 56)), v2.RandomHorizontalFlip(1.0), v2.ToImage()])


def detected(out: Path) -> list[Any]:
    fields = ("image", "boxes", "labels")
    ours = ImageDataset(out, transforms=JOINT, fields=fields)
    loader = DataLoader(ours, 4, num_workers=2, collate_fn=list, require_native=True)
    return [(image, t["boxes"], t["labels"]) for batch in loader for image, t in batch]


def moved(samples: Any) -> list[Any]:
    """Images, boxes and labels, as torchvision moves them."""
    found = []
    for image, boxes, labels in samples:
        boxes = torch.as_tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        shape = image.size[::-1]
        boxes = tv.tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=shape)
        image, boxes = JOINT(image, boxes)
        found.append((image, boxes.as_subclass(torch.Tensor), torch.as_tensor(labels).long()))
    return found


def test_coco(tmp_path: Path) -> None:
    make_coco(tmp_path / "coco")
    files = tmp_path / "coco/images", tmp_path / "coco/instances.json"
    done(convert("coco", "--root", files[0], "--annotations", files[1], "--out", tmp_path / "out"))
    coco = open_coco(files[1])
    ids, samples = sorted(coco.getCatIds()), []
    for image, objects in tv.datasets.CocoDetection(*files):
        boxes = [[x, y, x + w, y + h] for x, y, w, h in (one["bbox"] for one in objects)]
        samples.append((image, boxes, [ids.index(one["category_id"]) for one in objects]))
    same(detected(tmp_path / "out"), moved(samples))
    painted = ImageDataset(tmp_path / "out", transforms=v2.ToImage(), fields=("image", "masks"))
    for at, key in enumerate(sorted(coco.getImgIds())):
        wanted = [coco.annToMask(one) for one in coco.loadAnns(coco.getAnnIds(key))]
        masks = np.asarray(painted[at][1])
        assert len(masks) == len(wanted) and all(map(np.array_equal, masks, wanted))


def test_voc(tmp_path: Path) -> None:
    voc = make_voc(tmp_path) / "VOCdevkit/VOC2007"
    done(convert("voc", "--root", voc, "--split", "train", "--out", tmp_path / "out",
                 "--no-shuffle"))  # fmt: skip
    names, samples = ImageDataset(tmp_path / "out").manifest.source["classes"], []
    for image, about in tv.datasets.VOCDetection(tmp_path, "2007", "train"):
        objects = about["annotation"]["object"]
        corners = ("xmin", "ymin", "xmax", "ymax")
        boxes = [[float(one["bndbox"][corner]) for corner in corners] for one in objects]
        samples.append((image, boxes, [names.index(one["name"]) for one in objects]))
    same(detected(tmp_path / "out"), moved(samples))


def test_yolo(tmp_path: Path) -> None:
    write_yolo(tmp_path)
    done(convert("yolo", "--root", tmp_path, "--split", "train", "--out",
                 tmp_path / "out", "--no-shuffle"))  # fmt: skip
    samples = []
    for path in sorted((tmp_path / "images/train").rglob("*.jpg")):
        label = tmp_path / "labels/train" / path.relative_to(tmp_path / "images/train")
        lines = label.with_suffix(".txt").read_text("utf-8").split("\n")
        objects = [[float(word) for word in line.split()] for line in lines if line.strip()]
        samples.append((opened(path), objects))
    wanted = []
    for image, objects in samples:
        (width, height), boxes = image.size, []
        for _, *numbers in objects:
            if len(numbers) == 4:
                x, y, w, h = numbers
                numbers = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
            left, right = min(numbers[::2]) * width, max(numbers[::2]) * width
            boxes.append([left, min(numbers[1::2]) * height, right, max(numbers[1::2]) * height])
        wanted.append((image, boxes, [one[0] for one in objects]))
    same(detected(tmp_path / "out"), moved(wanted))


def test_masks(tmp_path: Path) -> None:
    root = write_masked(tmp_path / "ade")
    given = ["--images", "images/training", "--masks", "annotations/training", "--no-shuffle"]
    done(convert("masks", "--root", root, *given, "--out", tmp_path / "out"))
    ours = ImageDataset(tmp_path / "out", transforms=JOINT, fields=("image", "mask", "key"))
    for images, targets in DataLoader(ours, 2, num_workers=2, require_native=True):
        for at, key in enumerate(targets["key"]):
            image = opened(root / f"images/training/{key}.jpg")
            mask = np.array(opened(root / f"annotations/training/{key}.png"))[None]
            image, mask = JOINT(image, tv.tv_tensors.Mask(mask))
            same(images[at], image)
            same(targets["mask"][at], mask.as_subclass(torch.Tensor), levels=0)


def listed(messy: Path) -> pd.DataFrame:
    paths = [path for path, _ in folder(messy).samples]
    texts = [f"{at:04}" for at in range(len(paths))]
    return pd.DataFrame({"image": paths, "y": folder(messy).targets, "text": texts})


later = pytest.mark.skipif(not hasattr(ImageDataset, "from_table"), reason="no tables in memory")


@later
def test_a_data_frame(messy: Path) -> None:
    frame = listed(messy)
    frame = frame.sample(frac=1, random_state=2)  # as train_test_split leaves it
    ours = ImageDataset.from_table(frame, FIXED, image="image",
                                   label="y")  # fmt: skip
    beside(ours, rows(frame["image"].tolist(), frame["y"].tolist()))


@later
def test_a_csv_of_absolute_paths_with_five_captions_an_image(messy: Path, tmp_path: Path) -> None:
    frame = listed(messy)
    five = pd.concat([frame.assign(text=frame["text"] + f" {at}") for at in range(5)])
    five = five.sort_values(["image", "text"], kind="stable")
    five.to_csv(tmp_path / "captions.csv")  # with pandas' column of numbers
    done(convert("table", "--root", tmp_path / "captions.csv", "--label-column", "y", "--out",
                 tmp_path / "out", "--no-shuffle"))  # fmt: skip
    ours = ImageDataset(tmp_path / "out", FIXED, fields=("image", "label", "text"))
    by_image = five.groupby("image", sort=False)
    texts = [list(one) for one in by_image["text"].agg(list)]
    images, labels = list(by_image.groups), by_image["y"].first().tolist()
    wanted = [[image, label, text] for (image, label), text in
              zip(rows(images, labels), texts, strict=True)]  # fmt: skip
    loader = DataLoader(ours, 1, num_workers=1)
    found = [[b["image"][0], int(b["label"][0]), b["text"][0]] for b in loader]
    same(found, wanted)


def test_buckets(tmp_path: Path) -> None:
    root = tmp_path / "photos/a"
    root.mkdir(parents=True)
    for seed in range(10):
        picture(seed, (60 + seed, 40) if seed % 2 else (40, 60 + seed)).save(root / f"{seed}.png")
    done(convert("imagefolder", "--root", root.parent, "--out", tmp_path / "out", "--no-shuffle"))
    sizes = [(48, 32), (32, 48)]

    def cover(size: tuple[int, int]) -> Any:
        return fastdata.transforms.Compose(
            [fastdata.transforms.Resize(min(size)), fastdata.transforms.CenterCrop(size)]
        )

    ours = ImageDataset(tmp_path / "out", fastdata.transforms.BySize(cover),
                        fields=("image", "index"))  # fmt: skip
    planned = fastdata.samplers.AspectRatioBatches(ours, 3, sizes=sizes)
    seen, shapes = [], set()
    for batch in DataLoader(ours, batch_sampler=planned, num_workers=2, require_native=True):
        shape = batch["image"].shape[2:]
        shapes.add(tuple(shape))
        steps = [v1.Resize(min(shape)), v1.CenterCrop(tuple(shape)), v1.PILToTensor()]
        for image, at in zip(batch["image"], batch["index"].tolist(), strict=True):
            seen.append(at)
            same(image, v1.Compose(steps)(opened(root / f"{at}.png")))
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
