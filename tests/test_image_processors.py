"""transformers' image processors, those of the real package (make test-recipes)."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from loader_data import SAMPLES, WITH_INDEX, images
from PIL import Image
from recipe_packages import need
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.recipe import Recipe

need("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]


def _cropped(shortest: int, height: int, width: int) -> dict[str, Any]:
    crop = {"height": height, "width": width}
    return {"size": {"shortest_edge": shortest}, "crop_size": crop}


def _sized(height: int, width: int, **more: Any) -> dict[str, Any]:
    return {"size": {"height": height, "width": width}, **more}


#: Beside those of docs/recipes.md.
PROCESSORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("vit", "ViTImageProcessor", _sized(40, 48)),
    "CLIP": ("clip", "CLIPImageProcessor", _cropped(45, 32, 33)),
    "DeiT": ("deit", "DeiTImageProcessor", _sized(50, 44, crop_size={"height": 31, "width": 32})),
    "BEiT, cropped": (
        *("beit", "BeitImageProcessor"),
        {"do_center_crop": True, "crop_size": {"height": 32, "width": 30}},
    ),
    "EfficientNet, normalised last": (
        *("efficientnet", "EfficientNetImageProcessor"),
        _sized(40, 40, do_normalize=False, image_std=[0.5, 0.4, 0.3]),
    ),
    "EfficientNet from -1 to 1": (
        *("efficientnet", "EfficientNetImageProcessor"),
        {
            **_sized(40, 40, do_normalize=False, include_top=False),
            "rescale_factor": 1 / 127.5,
            "rescale_offset": True,
        },
    ),
    "DETR": ("detr", "DetrImageProcessor", _sized(40, 44)),
    "RT-DETR": ("rt_detr", "RTDetrImageProcessor", _sized(40, 44)),
    "RT-DETR, normalised": (
        *("rt_detr", "RTDetrImageProcessor"),
        _sized(40, 44, do_normalize=True, do_pad=True),
    ),
    "BLIP": ("blip", "BlipImageProcessor", _sized(40, 40)),
    "Lanczos": ("chameleon", "ChameleonImageProcessor", _cropped(40, 36, 36)),
    "another factor": ("vit", "ViTImageProcessor", _sized(40, 40, rescale_factor=1 / 128)),
    "normalised bytes": (
        *("vit", "ViTImageProcessor"),
        _sized(40, 40, do_rescale=False, image_mean=[120, 90, 60]),
    ),
    "not normalised": ("vit", "ViTImageProcessor", _sized(40, 40, do_normalize=False)),
    "bytes": ("vit", "ViTImageProcessor", _sized(40, 40, do_normalize=False, do_rescale=False)),
}

# No processor of Pillow's: floats are resized.
DINOV3 = ("dinov3_vit", "DINOv3ViTImageProcessor", {"size": {"height": 40, "width": 44}})


def processor(name: str, backend: str = "", **options: Any) -> Any:
    import_torchvision()
    model, kind, given = DINOV3 if name == "DINOv3" else PROCESSORS[name]
    prefix, suffix = ("pil_", "Pil") if backend == "pil" else ("", "")
    module = importlib.import_module(
        f"transformers.models.{model}.image_processing_{prefix}{model}"
    )
    return getattr(module, kind + suffix)(**{**given, **options})


def made_of(processor: Any, image: Image.Image) -> Any:
    values = processor(image, return_tensors="pt")["pixel_values"][0]
    return values[0] if values.ndim == 4 else values


def levels_off(processor: Any) -> list[Any]:
    dark, lit = (
        made_of(processor, Image.new("RGB", (64, 64), (value,) * 3)).float() for value in (0, 255)
    )
    level = (lit - dark).amax((1, 2), keepdim=True) / 255
    dataset = images(processor)
    loader = DataLoader(dataset, batch_size=10, require_native=True, **WITH_INDEX)
    found = []
    for batch, _, indices in loader:
        for got, index in zip(batch, indices.tolist(), strict=True):
            want = made_of(processor, dataset.open_image(index).convert("RGB"))
            assert got.dtype == want.dtype and got.shape == want.shape
            found.append((got.float() - want.float()).abs() / level)
    assert len(found) == SAMPLES
    return found


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_give_their_pixels(name: str, backend: str) -> None:
    made = processor(name, backend)
    # torchvision's bicubic ones differ by more where values leave 0 to 255 on the way.
    overshoots = backend == "torchvision" and made.resample in (1, 3)
    for away in levels_off(made):
        assert away.mean() < 0.5 if overshoots else away.max() <= 1.001


def test_dinov3_gives_its_pixels_though_it_resizes_floats() -> None:
    assert all(away.max() <= 1.001 for away in levels_off(processor("DINOv3")))


def test_nearest_pixels_are_those_of_pillow() -> None:
    assert all(away.max() <= 0.001 for away in levels_off(processor("ViT", "pil", resample=0)))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ViT", {"resample": 0}, "than Pillow; make it with backend='pil'"),
        ("ViT", {"resample": 4}, "its filter, resample=4, is not known"),
        ("DINOv3", {"resample": 3}, "it resizes floats, by 'bicubic' beyond 0 and 1; use Resize"),
        ("CLIP", {"size": {"shortest_edge": 40, "longest_edge": 90}}, "the longer side"),
        ("DETR", {"size": {"shortest_edge": 40, "longest_edge": 90}}, "the longer side"),
        ("DETR", {"size": {"shortest_edge": 40}}, "its size has no height and width"),
        ("RT-DETR", {"do_pad": True, "pad_size": {"height": 99, "width": 99}}, "it pads images"),
    ],
)
def test_what_processors_do_otherwise_is_not_native(name: str, options: Any, words: str) -> None:
    found = compile_recipe(processor(name, **options))
    assert not isinstance(found, Recipe) and words in found.reason


def test_processors_with_methods_of_their_own_are_not_native() -> None:
    import_torchvision()
    patched = processor("CLIP")
    patched.resize = lambda image, *args, **kwargs: image
    derived = type("Mine", (type(processor("ViT")),), {"rescale": lambda self, image, scale: image})
    module = importlib.import_module("transformers.models.siglip2.image_processing_siglip2")
    for made, words in (
        (patched, "its resize was replaced"),
        (
            derived(),
            "its rescale is its own; use Resize, CenterCrop and Normalize with its numbers",
        ),
        (module.Siglip2ImageProcessor(), "for pictures of one size, use SiglipImageProcessor"),
    ):
        found = compile_recipe(made)
        assert not isinstance(found, Recipe) and words in found.reason


def test_a_class_that_only_has_other_attributes_is_native() -> None:
    kind = type(processor("ViT"))
    mine = type("Mine", (kind,), {"size": {"height": 30, "width": 30}, "do_center_crop": True})
    assert all(away.max() <= 1.001 for away in levels_off(mine(crop_size=24)))
