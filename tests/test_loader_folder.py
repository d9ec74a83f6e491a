"""DataLoader over torchvision's folder datasets, compared with torchvision and torch themselves."""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from arithmetic_jpegs import PROGRESSIVE, SEQUENTIAL
from loader_data import WITH_INDEX
from PIL import Image, ImageFile
from test_codecs import as_heic
from torch.utils.data import Subset
from torchvision_stub import import_torchvision

from fastdata import Cache, DataLoader, ImageDataset
from fastdata.errors import DatasetError, SampleError, SlowPathWarning, UsageError
from fastdata.transforms import Resize, Views

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
]

# What the tree has: (path, width, height, mode, Pillow's options).
FILES: list[tuple[str, int, int, str, dict[str, Any]]] = [
    ("a/0.jpg", 120, 90, "RGB", {"quality": 90}),
    ("a/1.JPEG", 61, 133, "RGB", {"quality": 80, "subsampling": 0}),
    ("a/2.jpg", 200, 77, "RGB", {"quality": 70, "subsampling": 1}),
    ("b/0.jpg", 99, 99, "RGB", {"progressive": True}),
    ("b/1.jpg", 75, 130, "L", {"quality": 85}),
    ("b/2.jpg", 140, 64, "CMYK", {}),
    ("b/3.jpg", 70, 72, "L", {"progressive": True}),
    ("c/0.png", 80, 120, "RGB", {}),
    ("c/1.png", 88, 66, "P", {"transparency": b"\x00\x80\xff"}),
    ("c/2.png", 66, 88, "RGBA", {}),
    ("c/deep/3.jpg", 333, 250, "RGB", {"quality": 60}),
]
#: Of these: what the native core decodes, from the file to the crop; and what Pillow decodes.
NATIVE = [0, 1, 2, 3, 4, 6, 10]
BY_PILLOW = [5]


def picture(width: int, height: int, seed: int) -> Image.Image:
    """Smooth, so that another crop or filter shows, with some noise."""
    y, x = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(seed).integers(0, 30, (height, width, 3))
    waves = np.stack((x * 5 + seed * 40, y * 4 + x, (x + y) * 3), axis=-1) % 220
    return Image.fromarray((waves + noise).astype(np.uint8))


def write(path: Path, width: int, height: int, mode: str = "RGB", seed: int = 0, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = picture(width, height, seed)
    image = image.convert("RGB").quantize(16) if mode == "P" else image.convert(mode)
    image.save(path, **options)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    for seed, (name, width, height, mode, options) in enumerate(FILES):
        write(root / name, width, height, mode, seed, **options)
    return root


@pytest.fixture
def own_tree(tree: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tree, tmp_path / "tree"))


@pytest.fixture(scope="module")
def torchvision() -> Any:
    return import_torchvision()


@pytest.fixture(params=["v1", pytest.param("v2", marks=pytest.mark.slow)])
def tv(request: pytest.FixtureRequest, torchvision: Any) -> Any:
    transforms = torchvision.transforms
    return transforms if request.param == "v1" else transforms.v2


def to_tensor(tv: Any) -> list[Any]:
    if hasattr(tv, "ToImage"):
        return [tv.ToImage(), tv.ToDtype(torch.float32, scale=True)]
    return [tv.ToTensor()]


def evaluation(tv: Any, size: int = 48) -> Any:
    return tv.Compose(
        [tv.Resize(size + 8), tv.CenterCrop(size), *to_tensor(tv), tv.Normalize(MEAN, STD)]
    )


def images(torchvision: Any, root: Path, transform: Any, **options: Any) -> Any:
    return torchvision.datasets.ImageFolder(root, transform, **options)


def reference(dataset: Any, batch_size: int = 4, workers: int = 0) -> list[Any]:
    return list(torch.utils.data.DataLoader(dataset, batch_size, num_workers=workers))


def assert_batches(got: list[Any], expected: list[Any], slack: float) -> None:
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert type(mine) is type(theirs) is list
        assert type(mine[0]) is type(theirs[0]) and mine[0].dtype == theirs[0].dtype
        assert mine[0].shape == theirs[0].shape and mine[0].stride() == theirs[0].stride()
        off = (mine[0].double() - theirs[0].double()).abs().amax(dim=(1, 2, 3))
        assert (off <= slack).all(), off
        assert type(mine[1]) is type(theirs[1]) and mine[1].dtype == theirs[1].dtype
        assert torch.equal(mine[1], theirs[1])


NORMALISED = 1.001 / 255 / min(STD)
LEVEL = 1.001 / 255


# --- the native way --------------------------------------------------------------------------


DETERMINISTIC: dict[str, tuple[Callable[[Any], Any], float]] = {
    "evaluation": (evaluation, NORMALISED),
    "floats": (lambda tv: tv.Compose([tv.Resize((40, 56)), *to_tensor(tv)]), LEVEL),
    "bytes": (lambda tv: tv.Compose([tv.CenterCrop(50), tv.PILToTensor()]), 1),
    "padded": (lambda tv: tv.Compose([tv.CenterCrop((150, 140)), tv.PILToTensor()]), 1),
    "half": (
        lambda tv: tv.Compose(
            [tv.Resize((40, 40)), tv.PILToTensor(), tv.ConvertImageDtype(torch.float16)]
        ),
        LEVEL + 1e-3,
    ),
    "flipped": (
        lambda tv: tv.Compose([tv.Resize((40, 30)), tv.RandomHorizontalFlip(1.0), *to_tensor(tv)]),
        LEVEL,
    ),
}


@pytest.mark.parametrize(
    ("name", "threads"), [(name, n % 2 * 3) for n, name in enumerate(DETERMINISTIC)]
)
def test_batches_are_torchs(torchvision: Any, tv: Any, tree: Path, name: str, threads: int) -> None:
    make, slack = DETERMINISTIC[name]
    dataset = images(torchvision, tree, make(tv))
    loader = DataLoader(dataset, 4, num_workers=threads)
    assert loader.explain().startswith("native") and "ImageFolder of 11 files" in loader.explain()
    expected = reference(dataset, workers=1)
    # Sizes and kinds are learnt in the first epoch and known in the second.
    for _ in range(2):
        assert_batches(list(loader), expected, slack)
        # Those are Pillow's that the core does not know.
        assert loader.stats().by_pillow == len(BY_PILLOW)


def test_advice_can_be_pasted(torchvision: Any, tree: Path) -> None:
    folder = torchvision.datasets.ImageFolder
    with pytest.raises(DatasetError) as caught:
        ImageDataset(tree)
    (line,) = re.findall(r"ImageDataset\(.*?\)\)", caught.value.hint or "")
    given = {"torchvision": torchvision, "ImageDataset": ImageDataset}
    assert eval(line, given).classes == folder(tree).classes

    class Numbered(folder):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            return (*super().__getitem__(index), index)

    transform = evaluation(torchvision.transforms)
    with pytest.raises(UsageError) as refused:
        DataLoader(Numbered(tree, transform), require_native=True)
    (line,) = re.findall(r"fields=(\(.*?\))", refused.value.hint or "")
    batch = next(iter(DataLoader(folder(tree, transform), 3, fields=eval(line))))
    assert batch["index"].tolist() == [0, 1, 2]


def test_image_folder_by_other_names(torchvision: Any, tree: Path) -> None:
    """ImageNet has more attributes, and DatasetFolder less; both read as ImageFolder does."""
    datasets, transform = torchvision.datasets, evaluation(torchvision.transforms)

    class ImageNet(datasets.ImageFolder):  # type: ignore[misc]
        def __init__(self, root: str, split: str) -> None:
            super().__init__(root, transform)
            self.split, self.root = split, str(Path(root).parent)

    class Quiet(datasets.ImageFolder):  # type: ignore[misc]
        @staticmethod
        def find_classes(directory: str) -> Any:
            return ["b", "c"], {"b": 5, "c": 2}

    found = [
        ImageNet(str(tree), "train"),
        Quiet(tree, transform, target_transform=lambda label: -label),
        datasets.DatasetFolder(
            str(tree), datasets.folder.default_loader, (".jpg", ".png"), transform
        ),
        datasets.DatasetFolder(
            str(tree), datasets.folder.pil_loader, (".JPEG",), transform, allow_empty=True
        ),
    ]
    for dataset in found:
        loader = DataLoader(dataset, 4, num_workers=2)
        assert f"{type(dataset).__name__} of {len(dataset)} files" in loader.explain()
        assert loader.explain().startswith("native")
        assert_batches(list(loader), reference(dataset), NORMALISED)


def test_a_sample_by_itself_is_decoded_as_the_loader_does(
    torchvision: Any, tv: Any, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.heic").write_bytes(as_heic(np.asarray(picture(61, 45, 1))))
    files = images(torchvision, tmp_path, None, is_valid_file=lambda path: True)
    image, _ = ImageDataset(files)[0]
    ((batch, _),) = DataLoader(ImageDataset(files, Resize((45, 61))), 1)
    assert np.array_equal(batch[0].permute(1, 2, 0), np.asarray(image))
    pipeline = tv.Compose([tv.Compose([Resize(9)])])
    with pytest.raises(UsageError, match="color='gray' and Resize of"):
        ImageDataset(files, pipeline, color="gray")


# --- torch's workers -------------------------------------------------------------------------


def quarter_turn(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.ROTATE_90)


@pytest.fixture
def no_pillow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("Pillow was asked to open an image")

    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile, "load", refuse)
        yield


@pytest.mark.parametrize(
    ("step", "workers"), [("function", 0), ("lambda", 2), ("ElasticTransform", 2)]
)
def test_an_unknown_end_runs_in_torchs_workers(
    torchvision: Any, tv: Any, tree: Path, workers: int, step: str
) -> None:
    middle = {
        "function": quarter_turn,
        "lambda": lambda image: quarter_turn(image),
        "ElasticTransform": tv.ElasticTransform(alpha=0.0),
    }[step]
    pipeline = tv.Compose([tv.Resize(56), tv.CenterCrop(48), middle, *to_tensor(tv)])
    dataset = images(torchvision, tree, pipeline)
    loader = DataLoader(dataset, 4, num_workers=workers)
    explained = loader.explain()
    name = {"function": "quarter_turn", "lambda": "<lambda>"}.get(step, step)
    assert explained.startswith("workers") and name in explained
    assert_batches(list(loader), reference(dataset), LEVEL)
    subset = Subset(dataset, [3, 1])
    assert_batches(list(DataLoader(subset, 4, num_workers=workers)), reference(subset), LEVEL)
    with pytest.raises(UsageError, match="on_error='skip' needs the native path"):
        DataLoader(dataset, 4, on_error="skip")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_beginning_is_decoded_natively_in_torchs_workers(
    torchvision: Any, tv: Any, tree: Path, no_pillow: None, workers: int
) -> None:
    pipeline = tv.Compose([tv.Resize((40, 30)), quarter_turn, *to_tensor(tv)])
    dataset = images(torchvision, tree, pipeline)
    loader = DataLoader(Subset(dataset, NATIVE), 2, num_workers=workers)
    assert [batch[0].shape[-2:] for batch in loader] == [(30, 40)] * 4
    with pytest.raises(AssertionError, match="Pillow was asked"):
        list(torch.utils.data.DataLoader(dataset, 2))


def test_a_random_tail_draws_as_torchs_workers_do(torchvision: Any, tv: Any, tree: Path) -> None:
    head = [tv.RandomResizedCrop(40), tv.RandomHorizontalFlip()]
    pipeline = tv.Compose([*head, tv.ElasticTransform(), *to_tensor(tv)])
    loader = DataLoader(images(torchvision, tree, pipeline), 4, num_workers=2)
    assert loader.explain().startswith("workers")
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        runs.append(torch.cat([batch for batch, _ in loader]))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


# --- torch's own way -------------------------------------------------------------------------


@pytest.mark.parametrize("label", [1.7, True, "one", {"of": 1}])
def test_labels_of_other_types_are_torchs(
    label: Any, torchvision: Any, tv: Any, tree: Path
) -> None:
    folder = images(torchvision, tree, evaluation(tv))
    folder.samples = [(path, label) for path, _ in folder.samples]
    with pytest.warns(SlowPathWarning, match=f"labels of type {type(label).__name__}, not int"):
        loader = DataLoader(folder, 4)
    for mine, theirs in zip(loader, reference(folder), strict=True):
        assert str(mine[1]) == str(theirs[1])


# --- bad files -------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 2])
def test_broken_files(torchvision: Any, tv: Any, own_tree: Path, threads: int) -> None:
    (own_tree / "a" / "1.JPEG").write_bytes(b"no image at all")
    whole = (own_tree / "a" / "2.jpg").read_bytes()
    (own_tree / "a" / "2.jpg").write_bytes(whole[: len(whole) // 2])
    dataset = images(torchvision, own_tree, evaluation(tv))
    (own_tree / "b" / "1.jpg").unlink()
    with pytest.raises(Exception, match="cannot identify"):
        reference(dataset)

    loader = DataLoader(dataset, 1, num_workers=threads)
    for _ in range(2):
        iterator, errors = iter(loader), {}
        for number in range(len(dataset)):
            try:
                next(iterator)
            except Exception as error:
                errors[number] = str(error)
        assert sorted(errors) == [1, 2, 4]
        for number, name in ((1, "1.JPEG"), (2, "2.jpg"), (4, "1.jpg")):
            assert name in errors[number] and f"sample {number}" in errors[number]
        assert 'on_error="skip"' in errors[1] and "Put the file back" in errors[4]

    loader = DataLoader(dataset, 4, num_workers=threads, on_error="zero")
    with pytest.warns(UserWarning, match="3 samples could not be decoded and were zeroed"):
        batches = list(loader)
    masks = torch.cat([batch[2] for batch in batches])
    assert (~masks).nonzero().flatten().tolist() == [1, 2, 4]
    pixels = torch.cat([batch[0] for batch in batches])
    good = Subset(dataset, [i for i in range(11) if i not in (1, 2, 4)])
    expected = torch.cat([batch for batch, _ in reference(good)])
    assert (pixels[masks] - expected).abs().max() <= NORMALISED

    loader = DataLoader(
        dataset, 4, num_workers=threads, on_error="skip", order="sequential", **WITH_INDEX
    )
    with pytest.warns(UserWarning, match="were replaced by others"):
        indices = torch.cat([batch[2] for batch in loader]).tolist()
    assert len(indices) == 11 and {1, 2, 4}.isdisjoint(indices)
    assert set(indices) == {0, 3, 5, 6, 7, 8, 9, 10}


# --- files that change between epochs --------------------------------------------------------

REPLACED: dict[str, tuple[str, int, int, str, dict[str, Any]]] = {
    "larger": ("a/0.jpg", 300, 222, "RGB", {}),
    "smaller": ("a/2.jpg", 50, 60, "RGB", {}),
    "on its side": ("a/0.jpg", 90, 120, "RGB", {}),
    "as large": ("a/0.jpg", 120, 90, "RGB", {"quality": 50}),
    "grey": ("a/0.jpg", 64, 65, "L", {}),
    "progressive": ("a/0.jpg", 101, 80, "RGB", {"progressive": True}),
    "a PNG in a JPEG's place": ("a/0.jpg", 77, 133, "RGB", {"format": "PNG"}),
    "a larger PNG": ("c/0.png", 180, 175, "RGB", {}),
    "a JPEG in a PNG's place": ("c/0.png", 70, 40, "RGB", {"format": "JPEG"}),
    "no longer progressive": ("b/0.jpg", 180, 190, "RGB", {}),
}


@pytest.mark.parametrize(
    ("name", "threads", "kept"),
    [(name, *((0, 1 << 20), (2, 0), (2, 1 << 20))[n % 3]) for n, name in enumerate(REPLACED)],
)
def test_a_file_replaced_between_epochs_is_decoded_as_it_is_now(
    torchvision: Any, own_tree: Path, name: str, threads: int, kept: int
) -> None:
    path, width, height, mode, options = REPLACED[name]
    dataset = images(torchvision, own_tree, evaluation(torchvision.transforms))
    loader = DataLoader(
        ImageDataset(dataset, cache=Cache(bytes=kept)),
        4,
        num_workers=threads,
        persistent_workers=threads > 0,
    )
    assert_batches(list(loader), reference(dataset), NORMALISED)
    write(own_tree / path, width, height, mode, 99, **options)
    expected = reference(dataset)
    for _ in range(2):
        assert_batches(list(loader), expected, NORMALISED)
    (own_tree / path).write_bytes(b"\xff\xd8 and no more")
    with pytest.raises(SampleError, match=f"{path}: sample "):
        list(loader)


def test_crops_of_a_replaced_file_are_drawn_for_its_new_size(
    torchvision: Any, own_tree: Path
) -> None:
    transforms = torchvision.transforms
    pipeline = transforms.Compose([transforms.RandomResizedCrop(40), transforms.ToTensor()])
    dataset = images(torchvision, own_tree, Views(pipeline, count=2))
    options: dict[str, Any] = {"seed": 4, "num_workers": 2}
    loader = DataLoader(dataset, 4, **options)
    list(loader)
    write(own_tree / "a/0.jpg", 400, 50, seed=5)
    write(own_tree / "c/1.png", 50, 300, seed=6)
    fresh = DataLoader(dataset, 4, **options)
    fresh.set_epoch(1)
    for got, expected in zip(loader, fresh, strict=True):
        for mine, theirs in zip(got[0], expected[0], strict=True):
            assert (mine - theirs).abs().max() <= LEVEL
    # From now on the size is known again, and the native core decodes it.
    list(loader)
    assert loader.stats().by_pillow == len(BY_PILLOW)


# --- images smaller than a crop --------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 2])
def test_an_image_smaller_than_a_random_crop_is_an_error_of_that_sample(
    torchvision: Any, tv: Any, tree: Path, threads: int
) -> None:
    pipeline = tv.Compose([tv.RandomCrop(66), *to_tensor(tv)])
    dataset = images(torchvision, tree, pipeline)
    small = [1, 5]  # 61 x 133 and 140 x 64
    loader = DataLoader(dataset, 4, num_workers=threads)
    for _ in range(2):  # found by probing, and known
        with pytest.raises(
            UsageError,
            match=r"1\.JPEG: sample 1: .*133 x 61 .H x W. pixels, less than RandomCrop.*66, 66",
        ) as caught:
            list(loader)
        assert "pad_if_needed" in caught.value.hint and 'on_error="skip"' in caught.value.hint

    loader = DataLoader(
        dataset, 4, num_workers=threads, on_error="skip", order="sequential", **WITH_INDEX
    )
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            indices = torch.cat([batch[2] for batch in loader])
        assert len(indices) == 11 and set(indices.tolist()) == set(range(11)) - set(small)

    twice = images(torchvision, tree, Views(pipeline, count=2))
    loader = DataLoader(twice, 4, num_workers=threads, on_error="zero")
    with pytest.warns(UserWarning, match=r"2 samples .*\n.*1\.JPEG.*133 x 61.*\n.*64 x 140"):
        batches = list(loader)
    whole = torch.cat([batch[2] for batch in batches])
    assert (~whole).nonzero().flatten().tolist() == small
    turned = tv.Compose([tv.RandomCrop(66), quarter_turn, *to_tensor(tv)])  # in torch's workers
    with pytest.raises(UsageError, match=r"1\.JPEG: sample 1: .*133 x 61 "):
        list(DataLoader(images(torchvision, tree, turned), 4, num_workers=threads))
    for view in range(2):
        pixels = torch.cat([batch[0][view] for batch in batches])
        assert ((pixels.amax(dim=(1, 2, 3)) > 0) == whole).all()


@pytest.mark.parametrize("crop", ["centre", "then resized"])
def test_a_crop_larger_than_pillow_takes_for_a_bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crop: str
) -> None:
    """The limit is for inputs; torchvision makes the same result by padding."""
    write(tmp_path / "class" / "0.jpg", 100, 80)
    write(tmp_path / "class" / "1.png", 70, 150)
    transforms = import_torchvision().transforms
    steps = [transforms.CenterCrop((200, 210))]
    steps += [transforms.Resize(64)] if crop == "then resized" else []
    folder = import_torchvision().datasets.ImageFolder(
        tmp_path, transforms.Compose([*steps, transforms.PILToTensor()])
    )
    expected = [folder[0][0], folder[1][0]]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 12_000)
    (images, _), *_ = DataLoader(folder, 2)
    off = (images.int() - torch.stack(expected).int()).abs().max()
    assert off <= (crop == "then resized")  # by a level, as of all bilinear resizes


def cut_jpegs() -> dict[str, bytes]:
    image = picture(260, 200, 5)
    found: dict[str, bytes] = {}
    options = [{}, {"progressive": True}, {"restart_marker_blocks": 3}, {"subsampling": 0}]
    for number, some in enumerate(options):
        out = BytesIO()
        image.save(out, "JPEG", quality=85, **some)
        found[f"{number}"] = out.getvalue()
    found["4"], found["5"] = SEQUENTIAL, PROGRESSIVE
    large = BytesIO()
    noise = np.random.default_rng(1).integers(0, 255, (700, 700, 3), np.uint8)
    Image.fromarray(noise).save(large, "JPEG", quality=90)
    found["6"] = large.getvalue()  # its seek points have checksums
    thumbnail = b"\xff\xe2" + (len(found["0"]) + 2).to_bytes(2, "big") + found["0"]
    found["7"] = found["2"][:2] + thumbnail + found["2"][2:]
    for name, data in list(found.items()):
        for part in (0.6, 0.9):
            cut = data[: int(len(data) * part)]
            found[f"{name} cut at {part}"] = cut
            found[f"{name} cut at {part}, zeros"] = cut + bytes(len(data) - len(cut))
            found[f"{name} cut at {part}, ended"] = cut + b"\xff\xd9"
        found |= {f"{name} cut by {count}": data[:-count] for count in (1, 2, 3, 9)}
        found[f"{name} and more"] = data + b"more" * 99
        found[f"{name} and another"] = data + found["0"][:-2]
        found[f"{name} without its end and more"] = data[:-2] + b"more" * 99
    return found


def accepted_by_pillow(data: bytes) -> bool:
    try:
        Image.open(BytesIO(data)).load()
    except (OSError, SyntaxError):
        return False
    return True


@pytest.mark.filterwarnings("ignore:.*could not be decoded and were left out:UserWarning")
@pytest.mark.parametrize("how", ["native", "without seek points", "alone"])
def test_cut_jpegs_are_found_whatever_the_crop(tmp_path: Path, how: str) -> None:
    whole = {}
    for name, data in cut_jpegs().items():
        path = tmp_path / "class" / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        whole[str(path)] = accepted_by_pillow(data)
    assert 30 < sum(whole.values()) < len(whole) - 50
    transforms = import_torchvision().transforms
    steps = [transforms.RandomResizedCrop(16, scale=(0.01, 0.05)), transforms.PILToTensor()]
    folder = import_torchvision().datasets.ImageFolder(tmp_path, transforms.Compose(steps))
    paths = [path for path, _ in folder.samples]
    if how == "alone":
        dataset = ImageDataset(folder)
        for number, path in enumerate(paths):
            if whole[path]:
                dataset[number]
            else:
                with pytest.raises(SampleError):
                    dataset[number]
        return
    cache = Cache(bytes=0) if how == "without seek points" else None
    loader = DataLoader(
        ImageDataset(folder, cache=cache),
        16,
        on_error="drop",
        seed=1,
        num_workers=2,
        **WITH_INDEX,
    )
    for epoch in range(3):
        loader.set_epoch(epoch)
        got = {paths[number] for _, _, numbers in loader for number in numbers.tolist()}
        assert got == {path for path, good in whole.items() if good}
