"""Lines that make classes of published scripts native.

They are for warnings alone. A class gets a line if it has the name that scripts give it, and
exactly the attributes that they give it: classes of one name often differ. A line writes
``fastdata.transforms.`` before the name of its own class.
"""

from __future__ import annotations

import re
from typing import Any

_PRESET = ("Compose([self.transforms])",)
_BLUR = ("PillowBlur((self.radius_min, self.radius_max), p=self.prob)",)
_TWO = ("Views(self.base_transform, count=2)", "Views(self.transform, count=2)")
_PRIME = ("Views(self.transform, self.transform_prime)",)
_DINOV2 = (
    "Views(global_crops=[Compose([self.geometric_augmentation_global, self.global_transfo1]), "
    "Compose([self.geometric_augmentation_global, self.global_transfo2])], "
    'global_crops_teacher="global_crops", '
    "local_crops=[Compose([self.geometric_augmentation_local, self.local_transfo])] "
    "* self.local_crops_number, offsets=())"
)
_BY_CHANCE = ("RandomApply([self.transf], self.p)",)
_ALWAYS_SOLARIZE = "RandomSolarize(128, p=1.0)"
_SIMCLR_BLUR = "fastdata.transforms.GaussianBlur(self.k, (0.1, 2.0))"

#: Lines that ``__fastdata__`` of each class may return, in terms of `fastdata.transforms`.
_LINES: dict[str, tuple[str, ...]] = {
    "ClassificationPresetEval": _PRESET,
    "ClassificationPresetTrain": _PRESET,
    "Compose": ("fastdata.transforms.Compose(self.transforms)",),
    "ContrastiveLearningViewGenerator": ("Views(self.base_transform, count=self.n_views)",),
    "ConvertBoxes": ('ConvertBoundingBoxFormat(self.fmt or "xyxy", relative=self.normalize)',),
    "DataAugmentationDINO": (
        "Views(self.global_transfo1, self.global_transfo2, "
        "*[self.local_transfo] * self.local_crops_number)",
        _DINOV2,
    ),
    "DataAugmentationiBOT": (
        "Views(self.global_transfo1, *[self.global_transfo2] * (self.global_crops_number - 1), "
        "*[self.local_transfo] * self.local_crops_number)",
    ),
    "DetectionPresetEval": _PRESET,
    "DetectionPresetTrain": _PRESET,
    "GaussianBlur": (
        *_BLUR,
        "PillowBlur(self.sigma)",
        "PillowBlur((0.1, 2.0), p=self.p)",
        "RandomApply(self.transforms, self.p)",
        _SIMCLR_BLUR,
    ),
    "MultiViewDataInjector": ("Views(*self.transforms)",),
    "MultiViewTransform": (
        "Views(*[self.rand_transform] * self.rand_views, "
        "*[self.focal_transform] * self.focal_views)",
    ),
    "PILRandomGaussianBlur": _BLUR,
    "RandomApply": ("fastdata.transforms.RandomApply([self.fn], self.p)",),
    "RandomResizedCropAndInterpolation": (
        "RandomResizedCrop(self.size, self.scale, self.ratio, self.interpolation)",
    ),
    "SegmentationPresetEval": _PRESET,
    "SegmentationPresetTrain": _PRESET,
    "Solarization": ("RandomSolarize(128, p=self.p)", _ALWAYS_SOLARIZE),
    "Solarize": (_ALWAYS_SOLARIZE, "RandomSolarize(self.threshold, p=1.0)"),
    "TrainTransform": _PRIME,
    "Transform": _PRIME,
    "TransformFixMatch": (
        "Views(Compose([self.weak, self.normalize]), Compose([self.strong, self.normalize]))",
    ),
    "TransformTwice": _TWO,
    "TwoCropTransform": _TWO,
    "TwoCropsTransform": (*_TWO, "Views(self.base_transform1, self.base_transform2)"),
    "gray_scale": _BY_CHANCE,
    "horizontal_flip": _BY_CHANCE,
}
#: Attributes that a class has beside those in its line, and does not use when it is called.
_UNUSED = {
    _DINOV2: {
        *("global_crops_scale", "global_crops_size", "local_crops_scale", "local_crops_size"),
        "normalize",
    },
    _SIMCLR_BLUR: {"blur", "blur_h", "blur_v", "pil_to_tensor", "r", "tensor_to_pil"},
}


def line_for(transform: Any) -> str:
    """Return the line for an object of a script's class; "" if there is none."""
    held = getattr(transform, "__dict__", {})
    names = {name for name in (*held, *held.get("_modules", ())) if not name.startswith("_")}
    names -= {"training"}  # of torch's modules
    for line in _LINES.get(type(transform).__name__, ()):
        used = {*re.findall(r"self\.(\w+)", line)}
        if names == used | _UNUSED.get(line, set()):
            return line
    return ""


def imports_of(line: str) -> str:
    """Return the import that a line needs."""
    names = dict.fromkeys(re.findall(r"(?<![.\w])[A-Z]\w*(?=\()", line))
    return f"from fastdata.transforms import {', '.join(names)}" if names else "import fastdata"
