"""Lines that ``__fastdata__`` of published scripts' classes returns, put into these classes."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import fastdata
from fastdata import transforms
from fastdata.transforms.compile import compile_recipe

#: The class that a warning's hint is for.
_CLASS = re.compile(r"Add a method __fastdata__ to (\S+),")

_PRESET = "Compose([self.transforms])"
_BLUR = "PillowBlur((self.radius_min, self.radius_max), p=self.prob)"
_OF_TORCH = "PillowBlur((0.1, 2.0), p=self.p)"
_SOLARISED = "RandomSolarize(128, p=self.p)"
_PRIME = "Views(self.transform, self.transform_prime)"

#: Lines in terms of `fastdata.transforms`, by class.
LINES = {
    "BYOL.MultiViewDataInjector": "Views(*self.transforms)",
    "BYOL.RandomApply": "fastdata.transforms.RandomApply([self.fn], self.p)",
    "BarlowTwins.GaussianBlur": _OF_TORCH,
    "BarlowTwins.Solarization": _SOLARISED,
    "BarlowTwins.Transform": _PRIME,
    "Copied.RandomResizedCropAndInterpolation": (
        "RandomResizedCrop(self.size, self.scale, self.ratio, self.interpolation)"
    ),
    "DINO.DataAugmentationDINO": (
        "Views(self.global_transfo1, self.global_transfo2, "
        "*[self.local_transfo] * self.local_crops_number)"
    ),
    "DINO.GaussianBlur": _BLUR,
    # DINOv2's, in its own package.
    "DataAugmentationDINO": (
        "Views(global_crops=[Compose([self.geometric_augmentation_global, self.global_transfo1]), "
        "Compose([self.geometric_augmentation_global, self.global_transfo2])], "
        'global_crops_teacher="global_crops", '
        "local_crops=[Compose([self.geometric_augmentation_local, self.local_transfo])] "
        "* self.local_crops_number, offsets=())"
    ),
    "DeiT.gray_scale": "RandomApply([self.transf], self.p)",
    # DINOv2's, which derives from torchvision's RandomApply.
    "GaussianBlur": "RandomApply(self.transforms, self.p)",
    "IBOT.DataAugmentationiBOT": (
        "Views(self.global_transfo1, *[self.global_transfo2] * (self.global_crops_number - 1), "
        "*[self.local_transfo] * self.local_crops_number)"
    ),
    "MSN.GaussianBlur": _BLUR,
    "MSN.MultiViewTransform": (
        "Views(*[self.rand_transform] * self.rand_views, "
        "*[self.focal_transform] * self.focal_views)"
    ),
    "MoCo.GaussianBlur": "PillowBlur(self.sigma)",
    "MoCo.TwoCropsTransform": "Views(self.base_transform, count=2)",
    "MoCoV3.Solarize": "RandomSolarize(128, p=1.0)",
    "MoCoV3.TwoCropsTransform": "Views(self.base_transform1, self.base_transform2)",
    "References.ClassificationPresetEval": _PRESET,
    "References.ClassificationPresetTrain": _PRESET,
    "SimCLR.ContrastiveLearningViewGenerator": "Views(self.base_transform, count=self.n_views)",
    "SimCLR.GaussianBlur": "fastdata.transforms.GaussianBlur(self.k, (0.1, 2.0))",
    "SupContrast.TwoCropTransform": "Views(self.transform, count=2)",
    "SwAV.MultiCropDataset": "Views(*self.trans)",
    "SwAV.PILRandomGaussianBlur": _BLUR,
    "TransformFixMatch": (
        "Views(Compose([self.weak, self.normalize]), Compose([self.strong, self.normalize]))"
    ),
    "VICReg.GaussianBlur": _OF_TORCH,
    "VICReg.Solarization": _SOLARISED,
    "VICReg.TrainTransform": _PRIME,
}


@contextmanager
def lines_added(transform: Any) -> Iterator[list[str]]:
    """Add methods to the script's classes that warnings name; yield what these return."""
    lines: list[str] = []
    with ExitStack() as added:
        pending = True
        while pending:
            pending = False
            for unknown in compile_recipe(transform).unknown:
                found = _CLASS.match(unknown.hint)
                if found is None:
                    continue
                kind: Any = pkgutil.resolve_name(found[1])
                line = LINES.get(kind.__qualname__, "")
                if line and "__fastdata__" not in vars(kind):
                    names = {**vars(transforms), "fastdata": fastdata}
                    exec(f"def __fastdata__(self): return {line}", names)
                    kind.__fastdata__ = names["__fastdata__"]
                    added.callback(delattr, kind, "__fastdata__")
                    lines.append(line)
                    pending = True
        yield lines
