"""transformers' image processors, those of the real package (make test-recipes)."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from loader_data import SAMPLES, WITH_INDEX, images
from recipe_packages import need
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.transforms.compile import Recipe, compile_recipe

need("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]

PROCESSORS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ViT": ("vit", "ViTImageProcessor", {"size": {"height": 40, "width": 48}}),
    "CLIP": (
        "clip",
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 45}, "crop_size": {"height": 32, "width": 33}},
    ),
    "SigLIP": ("siglip", "SiglipImageProcessor", {"size": {"height": 48, "width": 48}}),
    "DINOv2": (
        "bit",
        "BitImageProcessor",
        {"size": {"shortest_edge": 41}, "crop_size": {"height": 36, "width": 36}},
    ),
    "not normalised": (
        "vit",
        "ViTImageProcessor",
        {"size": {"height": 40, "width": 40}, "do_normalize": False},
    ),
    "bytes": (
        "vit",
        "ViTImageProcessor",
        {"size": {"height": 40, "width": 40}, "do_normalize": False, "do_rescale": False},
    ),
}


def processor(name: str, backend: str = "", **options: Any) -> Any:
    import_torchvision()
    model, kind, given = PROCESSORS[name]
    prefix, suffix = ("pil_", "Pil") if backend == "pil" else ("", "")
    module = importlib.import_module(
        f"transformers.models.{model}.image_processing_{prefix}{model}"
    )
    return getattr(module, kind + suffix)(**{**given, **options})


@pytest.mark.parametrize("backend", ["torchvision", "pil"])
@pytest.mark.parametrize("name", PROCESSORS)
def test_processors_give_their_pixels(name: str, backend: str) -> None:
    made = processor(name, backend)
    dataset = images(made)
    loader = DataLoader(dataset, batch_size=10, require_native=True, **WITH_INDEX)
    std = min(made.image_std) if made.do_normalize else 1.0
    level = 1.001 / std / (255 if made.do_rescale else 1)
    # torchvision's bicubic ones differ by more where values leave 0 to 255 on the way.
    overshoots = backend == "torchvision" and made.resample == 3
    seen = 0
    for batch, _, indices in loader:
        for got, index in zip(batch, indices.tolist(), strict=True):
            image = dataset.open_image(index).convert("RGB")
            want = made(image, return_tensors="pt")["pixel_values"][0]
            assert got.dtype == want.dtype and got.shape == want.shape
            away = (got.float() - want.float()).abs()
            if overshoots:
                assert away.mean() < level / 2, index
            else:
                assert away.max() <= level, index
            seen += 1
    assert seen == SAMPLES


@pytest.mark.parametrize("name", PROCESSORS)
def test_either_backend_is_the_same_to_the_core(name: str) -> None:
    assert compile_recipe(processor(name)) == compile_recipe(processor(name, "pil"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ViT", {"rescale_factor": 1 / 128}, "1 / 255"),
        ("ViT", {"do_rescale": False}, "it normalises bytes"),
        ("ViT", {"resample": 1}, "its arguments are not known"),
        ("CLIP", {"size": {"shortest_edge": 40, "longest_edge": 90}}, "the longer side"),
    ],
)
def test_what_processors_do_otherwise_is_not_native(name: str, options: Any, words: str) -> None:
    found = compile_recipe(processor(name, **options))
    assert not isinstance(found, Recipe) and words in found.reason


def test_of_dinov3_it_is_said_what_to_write() -> None:
    import_torchvision()
    module = importlib.import_module("transformers.models.dinov3_vit.image_processing_dinov3_vit")
    found = compile_recipe(module.DINOv3ViTImageProcessor())
    assert not isinstance(found, Recipe)
    assert "it resizes floats; use Resize, CenterCrop and Normalize" in found.reason
