"""torchvision's pipelines as recipes, compared with torchvision itself."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from core_pixels import by_core, by_pillow, recipe_of
from PIL import Image
from torch import nn
from torchvision_calls import apply, noise
from torchvision_stub import import_torchvision

from fastdata import transforms as ours
from fastdata.plan import draws
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.outcomes import Output, Refusal
from fastdata.transforms.recipe import Recipe
from fastdata.transforms.tree import native_program

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
MODE = import_torchvision().transforms.InterpolationMode
SIZES = [(500, 375), (375, 500), (333, 334), (256, 256), (64, 48), (31, 90), (1, 7), (640, 101)]

Keys = npt.NDArray[np.uint64]


def keys_of(count: int, seed: int = 0) -> Keys:
    return draws.sample_keys(seed, np.arange(count))


def head(recipe: Recipe, image: Image.Image, keys: Keys) -> Any:
    (program,) = recipe.programs
    pixels, output = by_core(program, image, keys), program.output
    if output.as_pil:
        assert output.dtype == "uint8"
        return Image.fromarray(pixels)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tensor.view(torch.bfloat16) if output.dtype == "bfloat16" else tensor


def levels_of(recipe: Recipe) -> int:
    """How far the core may be from Pillow: a level where a bilinear resize sums fractions."""
    (program,) = recipe.programs
    resizes = any(hasattr(step, "interpolation") for step in program.steps)
    return int(resizes and program.filter == "bilinear")


def assert_same(got: Any, expected: Any, levels: int = 0, spread: float = 1.0) -> None:
    """Equal but for so many 255ths, and for the rounding of floats."""
    if isinstance(expected, Image.Image):
        assert isinstance(got, Image.Image)
        got, expected = (torch.from_numpy(np.array(image)) for image in (got, expected))
    assert got.dtype == expected.dtype and got.shape == expected.shape
    off = (got.double() - expected.double()).abs().max().item()
    if got.dtype == torch.uint8:
        assert off <= levels
    else:
        # torchvision rounds half floats with each operation: of bfloat16, up to 2**-9 in each of
        # value, mean and difference, divided by a std of 0.224, and up to 2**-7 at the end.
        slack = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[got.dtype]
        assert off <= levels / 255 / spread + slack


def to_floats(tv: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v2 says that ToTensor is deprecated
        return [tv.ToTensor()]


# --- what is random in nothing: compared whole -----------------------------------------------


FIXED: dict[str, Callable[[Any], list[Any]]] = {
    "evaluation": lambda tv: [
        *(tv.Resize(256), tv.CenterCrop(224), *to_floats(tv), tv.Normalize(MEAN, STD))
    ],
    "bicubic": lambda tv: [
        *(tv.Resize(236, interpolation=MODE.BICUBIC), tv.CenterCrop((200, 224)), *to_floats(tv))
    ],
    "lanczos": lambda tv: [tv.Resize((40, 30), interpolation=Image.Resampling.LANCZOS)],
    "nearest": lambda tv: [tv.Resize([40, 30], interpolation=Image.Resampling.NEAREST)],
    "nearest exact": lambda tv: [tv.Resize([40, 31], MODE.NEAREST_EXACT)],
    "antialias has no effect on PIL images": lambda tv: [tv.Resize((40, 30), antialias=None)],
    "longer side bounded": lambda tv: [tv.Resize([64], max_size=80), tv.CenterCrop(70)],
    "crop first": lambda tv: [tv.CenterCrop(100), tv.Resize(64), tv.PILToTensor()],
    "crop alone": lambda tv: [tv.Compose([tv.CenterCrop(90)])],
    "larger crop": lambda tv: [tv.CenterCrop((401, 700)), *to_floats(tv)],
    "flipped": lambda tv: [
        *(tv.Resize(70), tv.RandomHorizontalFlip(1.0), tv.CenterCrop(51)),
        *(tv.RandomHorizontalFlip(1.0), tv.CenterCrop(20), tv.RandomHorizontalFlip(1.0)),
        tv.PILToTensor(),
    ],
    "geometry on tensors": lambda tv: [
        *(*to_floats(tv), tv.CenterCrop((401, 700)), tv.RandomHorizontalFlip(1.0)),
        *(tv.CenterCrop(33), tv.Normalize(MEAN, STD), tv.RandomHorizontalFlip(1.0)),
        tv.CenterCrop(32),
    ],
    "one mean for all": lambda tv: [
        *(tv.CenterCrop(40), *to_floats(tv), tv.Normalize([0.5], [0.25]))
    ],
    "half": lambda tv: [tv.CenterCrop(40), tv.PILToTensor(), tv.ConvertImageDtype(torch.float16)],
    "bfloat16": lambda tv: [
        *(tv.CenterCrop(40), tv.PILToTensor(), tv.ConvertImageDtype(torch.bfloat16)),
        tv.Normalize(MEAN, STD),
    ],
    "no padding": lambda tv: [tv.Resize((32, 40)), tv.RandomCrop((32, 40), padding=0)],
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_pipelines_give_torchvisions_result(tv: Any, name: str) -> None:
    pipeline = tv.Compose(FIXED[name](tv))
    recipe = recipe_of(pipeline)
    assert recipe.tail == () and not (
        recipe.programs[0].output.channels_last and not recipe.programs[0].output.as_pil
    )
    for size in SIZES:
        image = noise(*size)
        got = head(recipe, image, keys_of(1))
        assert_same(got, pipeline(image), levels_of(recipe), spread=0.224)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda v2: [v2.PILToTensor(), v2.Resize((64, 50), antialias=True)], "uint8"),
        (
            lambda v2: [
                *(v2.ToImage(), v2.Resize(64), v2.CenterCrop(56)),
                *(v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)),
                v2.ToPureTensor(),
            ],
            "float32",
        ),
        (
            lambda v2: [
                v2.Resize((64, 50)),
                v2.ToDtype(torch.float32, scale=True),  # does nothing to a PIL image
                *(v2.ToImage(), v2.ToDtype(torch.uint8), v2.ToDtype(torch.float16, scale=True)),
                v2.Identity(),
            ],
            "float16",
        ),
        (
            lambda v2: [
                nn.Sequential(v2.PILToTensor(), v2.Compose([v2.CenterCrop(40)])),
                v2.ConvertImageDtype(torch.float32),
                v2.ToDtype(torch.bfloat16),  # rounds what is in 0..1 already
            ],
            "bfloat16",
        ),
    ],
)
def test_v2s_tensor_pipelines_give_torchvisions_result(
    v2: Any, make: Callable[[Any], list[Any]], dtype: str
) -> None:
    pipeline = v2.Compose(make(v2))
    recipe = recipe_of(pipeline)
    assert recipe.tail == () and recipe.programs[0].output.dtype == dtype
    for size in SIZES:
        image = noise(*size)
        # Tensors are resized to within one level of what Pillow gives.
        assert_same(head(recipe, image, keys_of(1)), pipeline(image), levels=1, spread=0.224)


# --- what is random: compared for the same box -----------------------------------------------


@pytest.mark.parametrize("mode", ["BILINEAR", "BICUBIC", "LANCZOS", "NEAREST"])
def test_random_resized_crops_of_the_same_box(tv: Any, mode: str) -> None:
    transforms = import_torchvision().transforms
    interpolation = transforms.InterpolationMode[mode]
    pipeline = tv.Compose(
        [
            tv.RandomResizedCrop((48, 64), (0.2, 0.9), (0.5, 2.0), interpolation=interpolation),
            tv.RandomHorizontalFlip(),
            *to_floats(tv),
        ]
    )
    recipe = recipe_of(pipeline)
    assert recipe.programs[0].size == (64, 48) and recipe.programs[0].filter == mode.lower()
    for number, size in enumerate(SIZES):
        image, keys = noise(*size), keys_of(1, number)
        got = recipe.programs[0].draw([size[0]], [size[1]], keys)
        left, upper, right, lower = got["box"][0].tolist()
        expected = transforms.functional.resized_crop(
            image, upper, left, lower - upper, right - left, [48, 64], interpolation
        )
        if got["flip"][0]:
            expected = transforms.functional.hflip(expected)
        expected = transforms.functional.to_tensor(expected)
        assert_same(head(recipe, image, keys), expected, levels_of(recipe))


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((60, 50), {}),
        ((32, 32), {"padding": 4}),
        ((40, 30), {"padding": (1, 5), "fill": 0}),
        ((40, 30), {"padding": (1, 2, 30, 4), "fill": (0, 0, 0)}),
        ((20, 60), {"pad_if_needed": True}),
        ((20, 10), {"pad_if_needed": True, "padding": 3, "padding_mode": "constant"}),
    ],
)
def test_random_crops_are_the_crops_that_torchvision_makes(
    v2: Any, size: tuple[int, int], options: dict[str, Any]
) -> None:
    """Every crop that either draws, the other draws too."""
    image = noise(*size)
    pipeline = v2.RandomCrop((30, 31), **options)
    recipe = recipe_of(pipeline)
    torch.manual_seed(0)
    theirs = {np.asarray(pipeline(image)).tobytes() for _ in range(6000)}
    (program,) = recipe.programs
    drawn = program.draw([size[0]] * 6000, [size[1]] * 6000, keys_of(6000))
    mine = set()
    if program.pixels:
        for key in keys_of(6000).tolist():
            done = image
            for operation, values in native_program(program.pixels).draw(key, *size)[0]:
                done = apply(done, (operation, tuple(values)))
            mine.add(np.asarray(done).tobytes())
    else:
        places = np.concatenate([drawn["box"], drawn["window"]], axis=1)
        _, rows = np.unique(places, axis=0, return_index=True)
        mine = {np.asarray(by_pillow(image, cut)).tobytes() for cut in drawn[rows]}
    # Of at most some 600 positions about none is missed in so many draws.
    assert len(mine ^ theirs) <= len(theirs) // 50


# --- the tail, and what is not known ---------------------------------------------------------


def test_the_tail_gets_what_it_would_have_got(tv: Any) -> None:
    image = noise(80, 70)
    elastic, erase = tv.ElasticTransform(alpha=0.0), tv.RandomErasing(1.0)
    pipeline = tv.Compose([tv.Resize((40, 30)), elastic, *to_floats(tv), tv.Normalize(MEAN, STD)])
    recipe = recipe_of(pipeline)
    assert recipe.programs[0].output == Output("uint8", None, None, True, True)
    assert recipe.tail == tuple(pipeline.transforms[1:])
    result = head(recipe, image, keys_of(1))
    for call in recipe.tail:
        result = call(result)
    assert_same(result, pipeline(image), levels_of(recipe), spread=0.224)

    pipeline = tv.Compose(
        [tv.Resize((40, 30)), *to_floats(tv), tv.Normalize(MEAN, STD), erase, tv.CenterCrop(9)]
    )
    recipe = recipe_of(pipeline)
    assert recipe.tail == tuple(pipeline.transforms[4:])
    assert recipe.programs[0].output == Output("float32", tuple(MEAN), tuple(STD), False, False)


def last(recipe: Recipe | Refusal) -> str:
    if isinstance(recipe, Refusal):
        return recipe.reason
    return ", ".join(type(call).__name__ for call in recipe.tail)


def floats(tv: Any) -> list[Any]:
    return [tv.CenterCrop(9), *to_floats(tv)]


REFUSED: list[tuple[Callable[[Any], list[Any]], str]] = [
    (lambda tv: [type("Mine", (tv.CenterCrop,), {})(30)], "Mine comes before"),
    (lambda tv: [tv.ElasticTransform(), tv.CenterCrop(3)], "ElasticTransform comes before"),
    (lambda tv: [tv.Resize(9), *to_floats(tv)], "Resize(9) and cannot make a batch"),
    (lambda tv: [tv.Resize((9, 9), Image.Resampling.BOX)], "interpolation"),
    (lambda tv: [*to_floats(tv), tv.Resize((9, 9), Image.Resampling.BICUBIC)], "beyond 0"),
    (
        lambda tv: [tv.PILToTensor(), tv.ConvertImageDtype(torch.float16), tv.Resize((9, 9))],
        "it resizes float16",
    ),
    (lambda tv: [tv.PILToTensor(), tv.Resize((9, 9), antialias=None)], "not antialias"),
    (lambda tv: [tv.PILToTensor(), tv.Resize((9, 9), MODE.NEAREST)], "'nearest' gives other"),
    (
        lambda tv: [
            tv.PILToTensor(),
            tv.RandomResizedCrop(9, interpolation=MODE.BICUBIC, antialias=False),
        ],
        "write antialias=True",
    ),
    (lambda tv: [tv.RandomCrop(9, padding=-1)], "padding"),
    (lambda tv: [tv.Resize((9, 9)), tv.Pad(-1)], "Pad"),
    (lambda tv: [*floats(tv), tv.RandomCrop(9, padding=1, fill=7)], "RandomCrop"),
    (lambda tv: [*floats(tv), tv.RandomSolarize(0.5)], "RandomSolarize"),
    (lambda tv: [tv.CenterCrop(9), tv.RandomApply([*to_floats(tv)])], "RandomApply"),
    (lambda tv: [tv.CenterCrop(9), tv.RandomInvert(), tv.FiveCrop(4)], "FiveCrop"),
    (lambda tv: [tv.CenterCrop(9), tv.Normalize(MEAN, STD)], "Normalize"),
    (lambda tv: [*floats(tv), tv.Normalize(MEAN, [0, 1, 1])], "Normalize"),
    (lambda tv: [*floats(tv), tv.Normalize([0, 1], [1, 1])], "Normalize"),
    (lambda tv: [*floats(tv), tv.Normalize(MEAN, STD), tv.CenterCrop(10)], "CenterCrop"),
    (lambda tv: [*floats(tv), tv.ConvertImageDtype(torch.float64)], "ConvertImageDtype"),
    (lambda tv: [*floats(tv), tv.ConvertImageDtype(torch.uint8)], "ConvertImageDtype"),
]
REFUSED_BY_V2: list[tuple[Callable[[Any], list[Any]], str]] = [
    (lambda v2: [v2.ToImage(), v2.CenterCrop(9), v2.ToDtype(torch.float32)], "ToDtype"),  # 0 to 255
    (lambda v2: [v2.ToImage(), v2.CenterCrop(9), v2.ToDtype(torch.int64, scale=True)], "ToDtype"),
    (lambda v2: [v2.CenterCrop(9), v2.Resize(None, max_size=12)], "Resize"),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("version", "make", "words"),
    [
        *((version, *one) for version in ("v1", "v2") for one in REFUSED),
        *(("v2", *one) for one in REFUSED_BY_V2),
    ],
)
def test_what_is_not_known_is_refused_or_starts_the_tail(
    version: str, make: Callable[[Any], list[Any]], words: str
) -> None:
    tv = import_torchvision().transforms
    tv = tv if version == "v1" else tv.v2
    found = last(compile_recipe(tv.Compose(make(tv))))
    assert words in found


def test_ours_and_torchvisions_together(v1: Any, v2: Any) -> None:
    mixed = v2.Compose(
        [
            ours.Compose([ours.Resize(40), ours.CenterCrop(32)]),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    image = noise(90, 71)
    recipe = recipe_of(mixed)
    assert recipe.tail == ()
    assert_same(head(recipe, image, keys_of(1)), mixed(image))
    # Ours has made a tensor, which ToTensor does not take.
    refusal = compile_recipe(v1.Compose([ours.CenterCrop(8), v1.ToTensor()]))
    assert isinstance(refusal, Refusal) and refusal.impossible
    recipe = recipe_of(ours.Compose([v1.CenterCrop(8), ours.Normalize(MEAN, STD)]))  # type: ignore[arg-type]
    assert recipe.programs[0].output.dtype == "float32" and recipe.tail == ()


@pytest.mark.slow
def test_compiling_ours_does_not_import_torchvision() -> None:
    code = (
        "import sys, torch\n"
        "from fastdata.transforms import CenterCrop\n"
        "from fastdata.transforms.compile import compile_recipe\n"
        "compile_recipe([CenterCrop(8), torch.nn.Sequential(torch.nn.ReLU())])\n"
        "print('torchvision' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def classification_presets() -> list[tuple[str, Any]]:
    torchvision = import_torchvision()
    preset = torchvision.transforms._presets.ImageClassification
    found = []
    for name in torchvision.models.list_models(module=torchvision.models):
        for weights in torchvision.models.get_model_weights(name):
            transform = weights.transforms()
            assert type(transform) is preset
            found.append((str(weights), transform))
    return found


def test_weights_transforms_give_torchvisions_pixels() -> None:
    kinds = {}
    for _, transform in classification_presets():
        key = (*transform.resize_size, *transform.crop_size, transform.interpolation)
        kinds[key] = transform
    assert len(kinds) > 10
    images = [noise(*size) for size in ((500, 375), (64, 48))]
    for transform in kinds.values():
        for image in images:
            recipe = recipe_of(transform)
            got = head(recipe, image, keys_of(1))
            assert_same(got, transform(image), levels_of(recipe), spread=min(transform.std))
