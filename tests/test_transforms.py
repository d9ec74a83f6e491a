"""The transforms themselves: what they refuse, and what a call with one image gives."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from fastdata.errors import UsageError
from fastdata.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    Normalize,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Views,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def planes(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RandomResizedCrop(0), "size 0"),
        (lambda: RandomResizedCrop("224"), "size '224'"),
        (lambda: RandomResizedCrop((1, 2, 3)), "3 values"),
        (lambda: RandomResizedCrop(224, scale=(0.0, 1.0)), "scale"),
        (lambda: RandomResizedCrop(224, scale=(1.0, 0.5)), "scale"),
        (lambda: RandomResizedCrop(224, ratio=(1.0,)), "ratio"),
        (lambda: RandomResizedCrop(224, ratio=(1.0, float("nan"))), "ratio"),
        (lambda: RandomResizedCrop(224, interpolation="box"), "interpolation 'box'"),
        (lambda: Resize(True), "size True"),
        (lambda: Resize(2.5), "size 2.5"),
        (lambda: Resize((4, 5), max_size=9), "max_size"),
        (lambda: Resize(9, max_size=9), "max_size"),
        (lambda: RandomResizedCrop(9, interpolation=["bilinear", "box"]), "interpolation 'box'"),
        (lambda: RandomResizedCrop(9, interpolation=[]), "interpolation"),
        (lambda: ResizeKeepRatio(9, random_scale_prob=2), "random_scale_prob 2"),
        (lambda: ResizeKeepRatio(9, random_aspect_range=(0.0, 1.0)), "random_aspect_range"),
        (lambda: CenterCrop(9, padding_mode="wrap"), "padding_mode 'wrap'"),
        (lambda: CenterCrop(9, fill=256), "fill 256"),
        (lambda: RandomErasing(count=0), "count 0"),
        (lambda: RandomErasing(count=(3, 2)), "count 2"),
        (lambda: Resize(9, interpolation="cubic"), "interpolation"),
        (lambda: CenterCrop(-1), "size -1"),
        (lambda: RandomCrop((3, 0)), "size 0"),
        (lambda: RandomCrop(3, padding=-1), "padding"),
        (lambda: RandomCrop(3, padding=(1, 2, 3)), "padding"),
        (lambda: RandomHorizontalFlip(1.5), "p 1.5"),
        (lambda: RandomHorizontalFlip("0.5"), "p '0.5'"),
        (lambda: Normalize((0.5, 0.5), STD), "mean"),
        (lambda: Normalize(MEAN, STD, "float16"), "inplace 'float16'"),
        (lambda: Resize(9, antialias="yes"), "antialias 'yes'"),
        (lambda: Normalize(MEAN, (0.2, 0.0, 0.2)), "std"),
        (lambda: Normalize(MEAN, STD, dtype="uint8"), "dtype 'uint8'"),
        (lambda: Views(Resize(3)), "makes 1"),
        (lambda: Views(Resize(3), Resize(4), count=2), "count=2 is for one"),
        (lambda: Views(Resize(3), count=0), "count 0 is not a whole number of at least 1."),
        (lambda: ColorJitter(-1), "brightness -1 is not a number of 0 or more.\nGive brightness a"),
        (lambda: Views(Resize(3), "flip"), "transform 1, 'flip'"),
        (lambda: Compose([]), "no transforms"),
        (
            lambda: Compose([CenterCrop]),
            "is the class CenterCrop, not a transform.\nWrite CenterCrop(",
        ),
        (lambda: Compose(Resize(3)), "not a list"),
        (lambda: Compose([Resize(3), "flip"]), "transform 1, 'flip'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert words in str(caught.value)
    assert caught.value.hint


def test_annotations_of_a_scripts_class_need_not_exist() -> None:
    class Prepared(Compose):
        models: SomethingImportedForTypesAlone  # type: ignore[name-defined]  # noqa: F821

    assert Prepared([CenterCrop(3)]).transforms == (CenterCrop(3),)


def test_sizes_are_height_and_width_as_in_torchvision() -> None:
    image = noise(60, 40)
    assert CenterCrop((10, 20))(image).shape == (3, 10, 20)
    assert RandomResizedCrop((10, 20))(image).shape == (3, 10, 20)
    assert RandomCrop((10, 20))(image).shape == (3, 10, 20)
    assert Resize((10, 20))(image).shape == (3, 10, 20)
    assert Resize(20)(image).shape == (3, 20, 30)
    assert Resize([20])(image).shape == (3, 20, 30)
    assert Resize(np.int64(20))(image).shape == (3, 20, 30)
    assert Resize(20, max_size=24)(image).shape == (3, 16, 24)
    assert Resize(20)(noise(40, 60)).shape == (3, 30, 20)


def test_a_target_is_covered_or_holds_the_image() -> None:
    image = noise(60, 40)
    assert ResizeKeepRatio((10, 20))(image).shape == (3, 13, 20)
    assert ResizeKeepRatio((10, 20), longest=1.0)(image).shape == (3, 10, 15)
    random = ResizeKeepRatio(20, random_scale_prob=1.0, random_scale_range=(2.0, 2.0))
    assert random(image).shape == (3, 40, 60)
    # Nothing of it is random, so that views share it.
    large, small = Compose([ResizeKeepRatio(20), Views(CenterCrop(20), CenterCrop(9))])(image)
    assert large.shape[1:] == (20, 20) and small.shape[1:] == (9, 9)
    with pytest.raises(UsageError, match="it can only come first"):
        Compose([RandomInvert(), ResizeKeepRatio(20)])(image)


def test_one_of_several_filters_is_drawn_for_each_image() -> None:
    image = noise(60, 40)
    crop = {"size": 20, "scale": (1.0, 1.0), "ratio": (1.5, 1.5)}
    filters = ("nearest", "bicubic")
    wanted = [RandomResizedCrop(**crop, interpolation=name)(image) for name in filters]
    torch.manual_seed(1)
    drawn = RandomResizedCrop(**crop, interpolation=filters)
    found = [drawn(image) for _ in range(40)]
    counts = [sum(torch.equal(one, want) for one in found) for want in wanted]
    assert sum(counts) == 40 and min(counts) > 5


def test_what_is_padded_has_a_fill() -> None:
    image = noise(20, 10)
    padded = CenterCrop((12, 22), fill=(1, 2, 3))(image)
    assert padded[:, 0, 0].tolist() == [1, 2, 3]
    assert torch.equal(padded[:, 1:11, 1:21], planes(image))
    reflected = CenterCrop((12, 22), padding_mode="reflect")(image)
    assert torch.equal(reflected[:, 0, 1:21], planes(image)[:, 1])


def test_a_call_gives_pillows_pixels() -> None:
    image = noise(61, 47)
    assert torch.equal(
        Resize(20, interpolation="bicubic")(image),
        planes(image.resize((25, 20), Image.Resampling.BICUBIC)),
    )
    assert torch.equal(CenterCrop(11)(image), planes(image.crop((25, 18, 36, 29))))
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert torch.equal(RandomHorizontalFlip(1.0)(image), planes(mirrored))
    assert torch.equal(RandomHorizontalFlip(0.0)(image), planes(image))
    padded = CenterCrop((50, 70))(image)
    assert torch.equal(padded[:, 1:48, 4:65], planes(image))
    assert padded.sum() == planes(image).sum()


def test_a_call_gives_normalised_floats() -> None:
    image = noise(20, 10)
    result = Compose([CenterCrop(8), Normalize(MEAN, STD)])(image)
    pixels = planes(image.crop((6, 1, 14, 9))) / 255
    expected = (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    assert result.dtype == torch.float32 and result.is_contiguous()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(
        Normalize(MEAN, STD)(image)[:, 1:9, 6:14], expected, msg="alone, of any size"
    )


def test_other_modes_become_rgb() -> None:
    grey = noise(20, 20).convert("L")
    assert torch.equal(CenterCrop(20)(grey), planes(grey.convert("RGB")))


def test_callables_of_others_are_called_after_ours() -> None:
    image = noise(20, 20)
    seen: list[torch.Tensor] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor.float() * 2

    result = Compose([CenterCrop(10), double, lambda tensor: tensor + 1])(image)
    assert seen[0].dtype == torch.uint8
    assert torch.equal(result, CenterCrop(10)(image).float() * 2 + 1)


def test_what_cannot_be_composed_says_which_and_why() -> None:
    image = noise(40, 40)
    with pytest.raises(UsageError, match=r"CenterCrop\(5 x 5\) comes after <lambda>"):
        Compose([CenterCrop(10), lambda tensor: tensor.clone(), CenterCrop(5)])(image)
    with pytest.raises(UsageError, match=r"CenterCrop.* not a PIL image"):
        CenterCrop(3)(torch.zeros(3, 4, 4))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="40 x 40 pixels, less than RandomCrop's 50 x 50"):
        RandomCrop(50)(image)


def test_views_are_a_list_of_tensors() -> None:
    image = noise(40, 30)
    large, small = Views(CenterCrop(20), CenterCrop(9))(image)
    assert torch.equal(large, CenterCrop(20)(image)) and torch.equal(small, CenterCrop(9)(image))
    torch.manual_seed(3)
    one, other = Views(RandomCrop(20), count=2)(image)
    assert not torch.equal(one, other)
    torch.manual_seed(3)
    assert torch.equal(RandomCrop(20)(image), one) and torch.equal(RandomCrop(20)(image), other)
    # What comes before is done to each, what comes after gets the list.
    found = Compose([CenterCrop(20), Views(CenterCrop(9), Normalize(MEAN, STD)), len])(image)
    assert found == 2


def test_normalize_gives_the_type_that_it_is_told() -> None:
    image = noise(9, 9)
    wanted = Normalize(MEAN, STD)(image)
    for dtype in (torch.float16, torch.bfloat16):
        normalize = Normalize(MEAN, STD, dtype=dtype)
        assert normalize == Normalize(MEAN, STD, dtype=str(dtype)[6:])
        assert torch.equal(normalize(image), wanted.to(dtype))


def test_torchs_seed_governs_what_is_random() -> None:
    image = noise(80, 60)
    transform = Compose([RandomResizedCrop(16), RandomHorizontalFlip()])
    torch.manual_seed(3)
    first = [transform(image) for _ in range(8)]
    torch.manual_seed(3)
    again = [transform(image) for _ in range(8)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert len({tensor.numpy().tobytes() for tensor in first}) == 8


def test_a_call_takes_one_number_and_only_for_what_is_random() -> None:
    image = noise(80, 60)
    torch.manual_seed(3)
    torch.randint(-(2**63), 2**63 - 1, ())
    expected = torch.rand(3)
    torch.manual_seed(3)
    Compose([RandomResizedCrop(16), RandomHorizontalFlip(), CenterCrop(8)])(image)
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(3)
    unused = torch.rand(3)
    torch.manual_seed(3)
    Compose([Resize(16), CenterCrop(8)])(image)
    assert torch.equal(torch.rand(3), unused)


class Noise(Dataset[torch.Tensor]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        result: torch.Tensor = self.transform(noise(40 + index, 50, index))
        return result


def test_they_work_in_torchs_loader_with_workers() -> None:
    transform = Compose([RandomResizedCrop(16), RandomHorizontalFlip(), Normalize(MEAN, STD)])
    assert pickle.loads(pickle.dumps(transform)) == transform
    loader = DataLoader(Noise(transform), batch_size=4, num_workers=1)
    (batch,) = loader
    assert batch.shape == (4, 3, 16, 16) and batch.dtype == torch.float32


def test_they_are_made_and_compiled_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from fastdata.transforms import *\n"
        "from fastdata.transforms.compile import compile_recipe\n"
        "import numpy\n"
        "recipe = compile_recipe(Compose([RandomResizedCrop(8), Normalize((0,) * 3, (1,) * 3)]))\n"
        "print(recipe.programs[0].draw([30], [30], numpy.zeros(1, numpy.uint64))['box'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "(1, 4)\n", done.stderr
