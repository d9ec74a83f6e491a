"""Images that the core turns upright: as PNGs that Pillow has turned, to the bit."""

from __future__ import annotations

import io
import json
import shutil
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from annotated import object_of
from containers import edit_index, index_rows, pack_tree, set_column
from fastdata.converters import TableImages, pack
from fastdata.converters.encode import Encoding
from fastdata.converters.options import PackOptions
from fastdata.converters.packed import PackedDataset
from jpegs import encode, picture
from loader_data import as_file, folder, same
from PIL import Image, ImageOps
from sources import convert, run
from torchvision_stub import import_torchvision
from web_server import WebServer

from fastdata import DataLoader, ImageDataset, verify
from fastdata.decode.pillow import probe
from fastdata.errors import FallbackWarning
from fastdata.remote import RemoteOptions
from fastdata.transforms import (
    CenterCrop,
    Compose,
    RandAugment,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    Views,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin"),  # broken EXIF
]

ORIENTATIONS = range(1, 9)
CROPS = Compose([RandomResizedCrop((40, 56)), RandomHorizontalFlip()])
PIPELINES = {
    "crops": CROPS,
    "validation": Compose([Resize(60, interpolation="bicubic"), CenterCrop(48)]),
    "enlarged": Compose([RandomResizedCrop((150, 130), scale=(0.05, 0.3)), RandomVerticalFlip()]),
    "padded": Compose([RandomCrop(110, padding=4, pad_if_needed=True), RandomHorizontalFlip()]),
    "nearest": RandomResizedCrop(31, interpolation="nearest"),
    "views": Views(RandomResizedCrop(48), (RandomResizedCrop(24, scale=(0.05, 0.4)), 2)),
    "augmented": Compose([RandomResizedCrop(32), RandAugment()]),
}


def tag(orientation: int, order: str = ">", *, kind: int = 3, count: int = 1) -> bytes:
    """EXIF data, without the name before them, of an orientation alone."""
    value = struct.pack(order + {1: "B", 3: "H", 4: "I"}[kind], orientation).ljust(4, b"\0")
    begin = b"MM\0*" if order == ">" else b"II*\0"
    entry = struct.pack(order + "HHI", 0x0112, kind, count) + value
    return begin + struct.pack(order + "IH", 8, 1) + entry + bytes(4)


def xmp(orientation: object, form: str = 'tiff:Orientation="{}"') -> bytes:
    return b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta " + form.format(orientation).encode()


def with_segments(jpeg: bytes, *segments: bytes) -> bytes:
    sizes = [struct.pack(">H", len(one) + 2) for one in segments]
    return jpeg[:2] + b"".join(
        b"\xff\xe1" + size + one for size, one in zip(sizes, segments, strict=True)
    ) + jpeg[2:]  # fmt: skip


def turned(jpeg: bytes, orientation: int) -> bytes:
    return with_segments(jpeg, b"Exif\0\0" + tag(orientation, "<>"[orientation % 2]))


def upright(data: bytes) -> Image.Image:
    with Image.open(io.BytesIO(data)) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


#: Makers of image files of pixels and an orientation, with an extension; those of the core, then
#: those that Pillow turns.
NATIVE: dict[str, Callable[[np.ndarray, int], bytes]] = {
    **{
        sampling: lambda pixels, o, sampling=sampling: turned(encode(pixels, sampling), o)
        for sampling in ("4:2:0", "4:4:4", "4:2:2", "4:4:0", "grey")
    },
    "restarts": lambda pixels, o: turned(encode(pixels, restart_marker_blocks=3), o),
    "progressive": lambda pixels, o: turned(encode(pixels, progressive=True), o),
    "xmp": lambda pixels, o: with_segments(encode(pixels), xmp(o)),
    "plain png": lambda pixels, o: as_file(pixels, "PNG"),
}
BY_PILLOW: dict[str, Callable[[np.ndarray, int], bytes]] = {
    "plain webp": lambda pixels, o: as_file(pixels, "WEBP"),
    "cmyk": lambda pixels, o: turned(as_file(pixels, "JPEG", "CMYK"), o),
    "two tags": lambda pixels, o: with_segments(
        encode(pixels), *(b"Exif\0\0" + tag(one)[:28] for one in (o, o))
    ),
    "png": lambda pixels, o: as_file(pixels, "PNG", exif=tag(o)),
    "webp": lambda pixels, o: as_file(pixels, "WEBP", exif=b"Exif\0\0" + tag(o)),
}


def noisy(width: int, height: int, seed: int) -> np.ndarray:
    return picture(width, height, seed, noise=30)


def slopes(width: int, height: int, seed: int) -> np.ndarray:
    """A picture without details, which no other orientation resembles."""
    y, x = np.mgrid[0:height, 0:width]
    across, down = 255 * x / width, 255 * y / height
    return np.stack([across, down, (across + down + seed) / 2], -1).clip(0, 255).astype(np.uint8)


def files(
    kinds: Mapping[str, Callable[[np.ndarray, int], bytes]],
    drawn: Callable[[int, int, int], np.ndarray] = noisy,
) -> dict[str, bytes]:
    """Files of every kind in every orientation, by name; sizes that no MCU divides."""
    found = {}
    for at, (kind, make) in enumerate(kinds.items()):
        for o in ORIENTATIONS:
            width, height = 83 + at * 29 % 60 + o, 71 + at * 37 % 50 - o
            extension = kind.split()[-1] if kind.endswith(("png", "webp")) else "jpg"
            name = f"{at:02}-{o}.{extension}"
            found[name] = make(drawn(width, height, 8 * at + o), o)
    return found


def write(images: Mapping[str, bytes], root: Path) -> Path:
    (root / "a").mkdir(parents=True)
    for name, data in images.items():
        (root / "a" / name).write_bytes(data)
    return root


def twin_of(images: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        Path(name).stem + ".png": as_file(np.asarray(upright(data)), "PNG")
        for name, data in images.items()
    }


def packed(images: Mapping[str, bytes], container: str = "lmdb", **options: Any) -> Path:
    root = write(images, folder() / "tree")
    pack_tree(root, root.parent / container, container, **options)
    return root.parent / container


@cache
def tree(kind: str) -> Path:
    """Folders of images: "all", which "native" are a part of, and their "twin"."""
    images = files(NATIVE) if kind == "native" else files(NATIVE | BY_PILLOW)
    return write(twin_of(images) if kind == "twin" else images, folder() / "tree")


@cache
def dataset(kind: str, container: str = "lmdb") -> Path:
    out = folder() / container
    pack_tree(tree(kind), out, container)
    return out


def batches(of: Any, **options: Any) -> list[Any]:
    return list(loader(of, **options))


def loader(of: Any, **options: Any) -> Any:
    return DataLoader(of, **{"batch_size": 9, "seed": 5, "require_native": True, **options})


@pytest.mark.parametrize(
    ("name", "container", "threads"),
    [*((name, "lmdb", 0) for name in PIPELINES), ("crops", "shards", 2), ("crops", "folder", 1)],
)
def test_crops_are_those_of_the_turned_image(name: str, container: str, threads: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "num_workers": threads}
    of = ImageDataset(dataset("all", container), PIPELINES[name], exif_transpose=True)
    mine = loader(of, **options)
    twin = loader(ImageDataset(dataset("twin"), PIPELINES[name]), **options)
    for _ in range(2):
        assert same(list(mine), list(twin))
    stats = mine.stats()
    # Where EXIF data are unusual, Pillow has told the index what they mean.
    assert stats.kinds["jpeg"]["native"] == 8 * len(ORIENTATIONS)
    assert stats.by_pillow == 4 * len(ORIENTATIONS)


def test_single_samples() -> None:
    """Torch's loader takes them by `__getitems__`, and users by `[]`: the core, and Pillow."""
    transform = RandomResizedCrop(40, scale=(1, 1), ratio=(1, 1))
    of = ImageDataset(dataset("all"), transform, exif_transpose=True)
    twin = ImageDataset(dataset("twin"), transform)
    assert same(of.__getitems__(range(len(of))), twin.__getitems__(range(len(of))))
    of, twin = ImageDataset(dataset("all"), exif_transpose=True), ImageDataset(dataset("twin"))
    for index in range(len(of)):
        assert np.array_equal(np.asarray(of[index][0]), np.asarray(twin[index][0]))


def test_sizes_of_all_images() -> None:
    """Where they are one size only once they are turned, or only as they are stored."""
    wide, high = picture(80, 60, 1), picture(60, 80, 2)
    mixed = packed({"0.jpg": turned(encode(wide), 6), "1.jpg": turned(encode(wide), 1)})
    turning = packed({"0.jpg": turned(encode(high), 6), "1.jpg": turned(encode(high), 6)})
    assert ImageDataset(mixed).image_size == ImageDataset(turning, exif_transpose=True).image_size
    assert ImageDataset(mixed, exif_transpose=True).image_size is None
    ((batch, _),) = batches(ImageDataset(turning, CenterCrop((60, 80)), exif_transpose=True))
    assert batch.shape == (2, 3, 60, 80)


# --- files without an index -------------------------------------------------------------------


def files_of(root: Path, transform: Any = CROPS, **options: Any) -> ImageDataset:
    images = import_torchvision().datasets.ImageFolder(root)
    return ImageDataset(images, transform, **options)


def test_a_folder_of_torchvisions() -> None:
    """The first epoch finds sizes and seek points, the second uses them."""
    options: dict[str, Any] = {"shuffle": True, "num_workers": 2}
    mine = loader(files_of(tree("all"), exif_transpose=True), **options)
    twin = loader(files_of(tree("twin")), **options)
    for _ in range(3):
        assert same(list(mine), list(twin))


def test_a_file_that_is_replaced_by_one_that_is_turned_otherwise(tmp_path: Path) -> None:
    """Its size stays the same, so that only its header tells."""
    pixels = picture(90, 70, 4)
    images = {f"{o}.jpg": turned(encode(pixels), o) for o in ORIENTATIONS}
    root = write(images, tmp_path / "tree")
    mine = loader(files_of(root, CenterCrop(64), exif_transpose=True), num_workers=1)
    for change in (0, 2, 2, 1):
        images = {
            f"{o}.jpg": turned(encode(pixels), (o - 1 + change) % 8 + 1) for o in ORIENTATIONS
        }
        for name, data in images.items():
            (root / "a" / name).write_bytes(data)
        twin = files_of(write(twin_of(images), folder() / "twin"), CenterCrop(64))
        assert same(list(mine), batches(twin))


# --- parts of large images --------------------------------------------------------------------


def photograph(orientation: int) -> bytes:
    noise = np.random.default_rng(orientation).integers(-25, 25, (853, 1181, 1))
    pixels = np.clip(picture(1181, 853, orientation).astype(int) + noise, 0, 255)
    jpeg = turned(encode(pixels.astype(np.uint8), ("4:2:0", "4:4:4")[orientation % 2]), orientation)
    assert len(jpeg) >= 256 << 10
    return jpeg


@cache
def photographs() -> tuple[Path, Path]:
    images = {f"{o}.jpg": photograph(o) for o in ORIENTATIONS}
    return packed(images, "shards"), packed(twin_of(images), "shards")


SMALL = Compose([RandomResizedCrop(48, scale=(0.02, 0.15)), RandomHorizontalFlip()])


def test_parts_of_large_images_are_fetched() -> None:
    ours, twins = photographs()
    remote = RemoteOptions()
    with WebServer(ours) as server:
        of = ImageDataset(server.url, SMALL, exif_transpose=True, remote=remote)
        mine = loader(of, num_workers=1, order="random")
        other = loader(ImageDataset(twins, SMALL), num_workers=1, order="random")
        for _ in range(2):
            assert same(list(mine), list(other))
        stats = mine.stats()
        assert stats.remote is not None
        assert stats.kinds == {"jpeg": {"native": len(ORIENTATIONS)}}
        assert stats.remote.bytes_needed < 0.8 * sum(row["length"] for row in index_rows(ours))


# --- headers ----------------------------------------------------------------------------------


def pillows(data: bytes) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image = Image.open(io.BytesIO(data))
        try:
            found = image.getexif().get(0x0112, 1)
        except Exception:  # Pillow raises almost anything
            return 1
    return int(found) if found in range(2, 9) else 1


def headers() -> Iterable[tuple[str, list[bytes]]]:
    exif = b"Exif\0\0"
    for order in "<>":
        for o in (0, *ORIENTATIONS, 9, 65535):
            yield f"{order}{o}", [exif + tag(o, order)]
        yield f"{order} long", [exif + tag(6, order, kind=4)]
        yield f"{order} byte", [exif + tag(6, order, kind=1)]
        yield f"{order} two values", [exif + tag(6, order, count=2)]
        yield f"{order} twice", [exif + exif + tag(6, order)]
        for end in range(len(tag(6))):
            yield f"{order} cut at {end}", [exif + tag(6, order)[:end]]
    yield "segments", [exif + tag(6)[:20], exif + tag(6)[20:]]
    yield "two of them", [exif + tag(6), exif + tag(8)]
    yield "another tag", [exif + tag(6).replace(b"\x01\x12", b"\x01\x13")]
    far = b"MM\0*" + struct.pack(">IHHHII", 8, 2, 0x010F, 2, 90, 9999) + tag(6)[10:22] + bytes(4)
    yield "a value beyond the end", [exif + far]
    both = b"MM\0*" + struct.pack(">IH", 8, 2) + tag(6)[10:22] + tag(3)[10:22] + bytes(4)
    yield "the tag twice", [exif + both]
    for form in ('tiff:Orientation="{}"', "tiff:Orientation>{}<", "tiff:Orientation='{}'"):
        for o in (0, 6, 9, "x"):
            yield f"{form} {o}", [xmp(o, form)]
    yield "exif counts more than xmp", [xmp(8), exif + tag(6)]
    yield "xmp beside exif without it", [exif + tag(6).replace(b"\x01\x12", b"\x01\x13"), xmp(8)]
    yield "the last xmp", [xmp(8), xmp(3)]


def test_orientations_are_those_that_pillow_finds() -> None:
    jpeg = encode(picture(16, 8, 1))
    for name, segments in headers():
        data = with_segments(jpeg, *segments)
        assert probe(data).orientation == pillows(data), name


# --- the index and its writers ----------------------------------------------------------------


@pytest.mark.parametrize(("kind", "max_side"), [("jpeg", None), ("raw", 50)])
def test_an_encoding_keeps_the_orientation(kind: str, max_side: int | None) -> None:
    images = files(NATIVE | BY_PILLOW, slopes)
    root = packed(images, encoding=Encoding(kind, max_side, 95 if kind == "jpeg" else None))
    blobs, rows = ImageDataset(root).read(range(len(images))), index_rows(root)
    assert [row["orientation"] for row in rows] == [pillows(data) for data in images.values()]
    made = {}
    for row, blob, (name, data) in zip(rows, blobs, images.items(), strict=True):
        if kind == "jpeg":
            made[name] = blob
            image = upright(blob)
            smaller = upright(data).resize(image.size, Image.Resampling.LANCZOS)
            found, want = np.asarray(image).astype(int), np.asarray(smaller)
            others = (want, want[::-1], want[:, ::-1], want[::-1, ::-1])
            near, *far = (np.abs(found - other).mean() for other in others)
            assert near < 0.05 * min(far), name
        else:
            pixels = np.frombuffer(blob, np.uint8).reshape(row["height"], row["width"], 3)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG", exif=tag(row["orientation"]))
            made[Path(name).stem + ".png"] = out.getvalue()
    twin = ImageDataset(packed(twin_of(made)), CROPS)
    again = folder() / "again"
    pack(PackedDataset(root), again, options=PackOptions(shuffle=False))
    for path in (root, again):
        of = ImageDataset(path, CROPS, exif_transpose=True)
        assert same(batches(of), batches(twin))
        for index in range(len(of)):
            assert np.array_equal(*(np.asarray(one.open_image(index)) for one in (of, twin)))


def test_convert_and_info_count_images_to_turn(tmp_path: Path) -> None:
    """As Pillow finds them; of annotated images, they say which image the annotations are for."""
    root = tree("all")
    count = sum(pillows(path.read_bytes()) > 1 for path in root.rglob("*.*"))
    told = convert("imagefolder", "--root", root, "--out", tmp_path / "out").stdout
    shown = run("info", tmp_path / "out")
    for text in (told, shown.stdout):
        assert f"{count} images with an EXIF orientation" in text and "exif_transpose=True" in text
    assert json.loads(run("info", "--json", tmp_path / "out").stdout)["with_orientation"] == count
    (tmp_path / "1.jpg").write_bytes(turned(encode(noisy(60, 40, 1), "4:4:4", 90), 6))
    for upright, size in ((True, (40, 60)), (False, (60, 40))):
        image = {"id": 1, "file_name": "1.jpg", "width": size[0], "height": size[1]}
        objects = [object_of(1, 1, 7)]
        about = {"images": [image], "annotations": objects, "categories": [{"id": 7, "name": "x"}]}
        (tmp_path / "coco.json").write_text(json.dumps(about))
        given = ("--root", tmp_path, "--annotations", tmp_path / "coco.json")
        told = convert("coco", *given, "--out", folder() / "coco")
        assert "1 image with an EXIF orientation" in told.stdout, told.stderr
        assert ("exif_transpose=True" in told.stdout) == upright


def test_an_index_with_another_orientation(tmp_path: Path) -> None:
    path = tmp_path / "packed"
    shutil.copytree(dataset("native"), path)
    rows = index_rows(path)
    other = [row["orientation"] % 8 + 1 for row in rows]
    edit_index(path, lambda table: set_column(table, "orientation", other))
    (first, *_) = verify(path).problems
    assert f"has EXIF orientation 1, the index says {other[0]}" in str(first)
    # Numbers that are no orientations mean 1.
    edit_index(path, lambda table: set_column(table, "orientation", [9 + n for n in other]))
    stored = batches(ImageDataset(path, CROPS))
    assert same(batches(ImageDataset(path, CROPS, exif_transpose=True)), stored)


# --- targets ----------------------------------------------------------------------------------


@cache
def with_targets() -> tuple[Path, Path]:
    """Images with boxes and masks of the turned images; and their twin."""
    roots = []
    draw = np.random.default_rng(2)
    rows: list[dict[str, Any]] = []
    images = files({"4:2:0": NATIVE["4:2:0"], "progressive": NATIVE["progressive"]})
    masks, boxes = {}, {}
    for name, data in images.items():
        width, height = upright(data).size
        classes = draw.integers(0, 20, (height // 4 + 1, width // 4 + 1), np.uint8)
        masks[name] = classes.repeat(4, 0).repeat(4, 1)[:height, :width]
        places = draw.uniform(0, 0.6, (3, 2)) * (width, height)
        boxes[name] = np.concatenate([places, draw.uniform(5, 30, (3, 2))], 1).tolist()
    for given in (images, twin_of(images)):
        root = folder()
        rows = []
        for (name, data), mask in zip(given.items(), masks.values(), strict=True):
            stem = Path(name).stem
            (root / name).write_bytes(data)
            Image.fromarray(mask).save(root / f"{stem}.mask.png")
            row = {"path": name, "mask": f"{stem}.mask.png", "boxes": boxes[f"{stem}.jpg"]}
            rows.append(row)
        kinds = {"boxes": pa.list_(pa.list_(pa.float32(), 4))}
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in rows[0]])
        source = TableImages(pa.Table.from_pylist(rows, schema), root, masks=("mask",))
        pack(source, root / "packed")
        roots.append(root / "packed")
    return roots[0], roots[1]


@pytest.mark.parametrize("name", ["crop", "random"])
def test_targets_lie_in_the_turned_image(v2: Any, name: str) -> None:
    transform = {
        "crop": v2.Compose(
            [v2.CenterCrop(48), v2.SanitizeBoundingBoxes(labels_getter=None), v2.ToImage()]
        ),
        "random": v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToImage()]),
    }[name]
    options: dict[str, Any] = {"transforms": transform, "formats": {"boxes": "xywh"}}
    options["fields"] = ("image", "boxes", "mask", "geometry")
    ours, twins = with_targets()
    of = ImageDataset(ours, exif_transpose=True, **options)
    given: dict[str, Any] = {"collate_fn": list, "num_workers": 1, "require_native": True}
    mine, wanted = (
        [sample for batch in DataLoader(one, 5, seed=3, **given) for sample in batch]
        for one in (of, ImageDataset(twins, **options))
    )
    assert len(mine) == 16 and same(mine, wanted)
    if name == "crop":  # torchvision, from what Pillow makes of the file
        options["fields"] = options["fields"][:3]
        plain = ImageDataset(ours, exif_transpose=True, **options)
        for index, (image, target) in enumerate(mine):
            other, expected = plain[index]
            assert (image.int() - other.int()).abs().max() <= 1
            assert torch.equal(target["mask"], expected["mask"])
            torch.testing.assert_close(target["boxes"], expected["boxes"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["xmp", "two tags", "png"])
def test_the_orientation_is_the_reason_why_pillow_decodes(kind: str) -> None:
    make = (NATIVE | BY_PILLOW)[kind]
    name = "0.png" if kind == "png" else "0.jpg"
    root = write({name: make(picture(80, 60, 1), 6)}, folder() / "tree")
    for exif_transpose in (True, False):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert batches(files_of(root, exif_transpose=exif_transpose))
        told = [str(one.message) for one in caught if one.category is FallbackWarning]
        assert len(told) == exif_transpose and all("exif_transpose" in one for one in told)
