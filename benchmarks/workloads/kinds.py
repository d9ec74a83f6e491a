"""The same photographs stored in each kind of image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _workload import Workload, contenders, crops, fastdata_loader, few, torch_files
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from PIL import Image

#: Pillow's format, suffix and options; and the width where it is another.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "baseline JPEG": ("JPEG", {"quality": 90}),
    "baseline JPEG, 4,000 px wide": ("JPEG", {"quality": 90}),
    "progressive JPEG": ("JPEG", {"quality": 90, "progressive": True}),
    "PNG": ("PNG", {}),
    "WebP": ("WEBP", {"quality": 85}),
    "AVIF": ("AVIF", {"quality": 75}),
    "TIFF, LZW": ("TIFF", {"compression": "tiff_lzw"}),
    "BMP": ("BMP", {}),
    "GIF": ("GIF", {}),
}
MIXTURE = "70% baseline, 20% progressive, 5% PNG, 5% WebP"
_MIXED = ["baseline JPEG"] * 14 + ["progressive JPEG"] * 4 + ["PNG", "WebP"]

WORKLOAD = Workload(
    "Kinds of image",
    contenders(__file__, {"torch": "", "fastdata": ""}, folder="{case}", needs="torchvision"),
    cases=[*KINDS, MIXTURE],
    against="torch",
    options={"batch_size": 30, "rounds": 5},
)


def prepare(tree: str, out: str, case: str) -> None:
    """Write a tree and a packed dataset of one kind."""
    from fastdata.converters import ImageFolder, PackOptions, pack

    names, folder = _MIXED if case == MIXTURE else [case], Path(out)
    for number, (photograph, _) in enumerate(few(tree, 150)):
        image = Image.open(photograph).convert("RGB")
        kind, more = KINDS[names[number % len(names)]]
        if "4,000" in case:
            image = image.resize((4000, round(4000 * image.height / image.width)))
        path = folder / "tree" / f"class{number % 2}" / f"{number:05}.{kind.lower()}"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, kind, **more)
    pack(ImageFolder(folder / "tree"), folder / "packed", options=PackOptions(shuffle=False))


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader of one kind."""
    folder, transform = Path(request.data), crops(request, "PILToTensor")
    if request.variant == "torch":
        return torch_files(folder / "tree", transform, request)
    from fastdata import ImageDataset

    return fastdata_loader(ImageDataset(folder / "packed", transform), request)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "isal", "imagecodecs"])
