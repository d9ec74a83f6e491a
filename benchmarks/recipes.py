"""People's own recipes: `fastdata.DataLoader` beside torch's with the original transforms.

    python -m fastdata.benchmarks.recipes imagenet-train-lmdb imagenet/train --json recipes.json

DATASET was packed from TREE, whose images torch's workers decode and augment with the library's
own transform on PIL images; fastdata is given the same objects, several views in
`transforms.Views`. Contenders take turns within one run; images a second are of wall time, and the
CPU time is that of all processes, which other work on the machine disturbs less. Before anything is
timed, the means and spreads of each view's images are compared. A recipe that fails says why in its
row, and the others go on.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from fastdata.benchmarks.adapters import _views
from fastdata.benchmarks.adapters._recipes import MEAN, STD
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.measure import Figures, Spread, cpu_seconds, machine

from fastdata import DataLoader, ImageDataset
from fastdata.errors import UsageError
from fastdata.transforms import Views

#: Standard errors by which images' means and spreads may be from torch's.
_ERRORS = 4.5
#: Parameters that are no settings.
_PATHS = ("dataset", "tree")
#: Of the processes' clocks, in seconds: all may have been done before a short turn.
_TICK = 0.01
#: CPU seconds that idle processes take in a fifth of a second, at most.
_IDLE = 0.02


_MODELS = (
    "resnet50",
    "efficientnet_b0",
    "vit_b_16",
    "swin_v2_t",
    "convnext_tiny",
    "mobilenet_v3_large",
)


def libraries() -> dict[str, Callable[[], Any]]:
    """What makes the transform of each recipe of torchvision, timm, open_clip and transformers.

    A maker raises ImportError where its library is not installed.
    """
    tv = import_torchvision().transforms

    def weights(model: str) -> Callable[[], Any]:
        models = import_torchvision().models
        return lambda: models.get_model_weights(model).DEFAULT.transforms()

    def composed(crop: Any, *steps: Any, more: Sequence[Any] = ()) -> Callable[[], Any]:
        last = [tv.PILToTensor(), tv.ConvertImageDtype(torch.float), tv.Normalize(MEAN, STD)]
        return lambda: tv.Compose([crop, tv.RandomHorizontalFlip(), *steps, *last, *more])

    def made(**options: Any) -> Callable[[], Any]:
        def make() -> Any:
            import_torchvision()
            timm = importlib.import_module("timm.data")
            return timm.create_transform(**{"input_size": 224, **options})

        return make

    def train(**options: Any) -> Callable[[], Any]:
        return made(is_training=True, **options)

    def clip(train: bool, **options: Any) -> Callable[[], Any]:
        def make() -> Any:
            import_torchvision()
            module = importlib.import_module("open_clip.transform")
            return module.image_transform(224, train, **options)

        return make

    def processor(model: str, kind: str, **options: Any) -> Callable[[], Any]:
        module = f"transformers.models.{model}.image_processing_{model}"
        return lambda: getattr(importlib.import_module(module), kind)(**options)

    found = {f"torchvision, weights of {model}": weights(model) for model in _MODELS}
    bicubic = tv.InterpolationMode.BICUBIC
    found |= {
        "torchvision, reference training of ResNet-50": composed(
            tv.RandomResizedCrop(176), tv.TrivialAugmentWide(), more=[tv.RandomErasing(0.1)]
        ),
        "pytorch/examples, training on ImageNet": composed(tv.RandomResizedCrop(224)),
        "MAE, pretraining": composed(
            tv.RandomResizedCrop(224, (0.2, 1.0), interpolation=bicubic),
        ),
        "timm, training": train(),
        "timm, training, random interpolation": train(interpolation="random"),
        "timm, rand-m9-mstd0.5-inc1, erasing pixels (DeiT, ConvNeXt, Swin)": train(
            auto_augment="rand-m9-mstd0.5-inc1",
            interpolation="bicubic",
            re_prob=0.25,
            re_mode="pixel",
        ),
        "timm, rand-m7-mstd0.5, erasing by a colour": train(
            auto_augment="rand-m7-mstd0.5", re_prob=0.2, re_mode="rand", re_count=3
        ),
        "timm, rand-mstd1-tweights": train(auto_augment="rand-mstd1-tweights"),
        "timm, AutoAugment, original-mstd0.5": train(auto_augment="original-mstd0.5"),
        "timm, AutoAugment, v0r": train(auto_augment="v0r"),
        "timm, 3-Augment (DeiT III)": train(auto_augment="3a", color_jitter=0.3),
        "timm, as SimCLR": train(color_jitter_prob=0.8, grayscale_prob=0.2, gaussian_blur_prob=0.5),
        "timm, AugMix": train(auto_augment="augmix-m5-w4-d2"),
        "timm, training, resized keeping the ratio": train(train_crop_mode="rkrr"),
        "timm, training without augmentations": train(no_aug=True),
        "timm, evaluation": made(),
        "timm, evaluation, bicubic, all of the image": made(interpolation="bicubic", crop_pct=1.0),
        "timm, evaluation, squashed": made(crop_mode="squash"),
        "timm, evaluation, with borders": made(crop_mode="border"),
        "timm, evaluation, oblong": made(input_size=(3, 160, 224)),
        "timm, evaluation, for its prefetcher": made(use_prefetcher=True),
        "timm, NaFlex": made(naflex=True),
        "open_clip, training": clip(True),
        "open_clip, training, jitter and grey": clip(
            True,
            aug_cfg={
                "color_jitter": (0.32, 0.32, 0.32, 0.08),
                "color_jitter_prob": 0.8,
                "gray_scale_prob": 0.2,
            },
        ),
        "open_clip, training, by timm": clip(True, aug_cfg={"use_timm": True, "re_prob": 0.1}),
        "open_clip, evaluation": clip(False),
        "open_clip, evaluation, longest": clip(False, resize_mode="longest"),
        "open_clip, evaluation, squash": clip(False, resize_mode="squash"),
        "transformers, ViT": processor("vit", "ViTImageProcessor"),
        "transformers, CLIP": processor("clip", "CLIPImageProcessor"),
        "transformers, SigLIP": processor("siglip", "SiglipImageProcessor"),
        "transformers, DINOv2": processor(
            "bit",
            "BitImageProcessor",
            size={"shortest_edge": 256},
            image_mean=[0.485, 0.456, 0.406],
            image_std=[0.229, 0.224, 0.225],
        ),
        "transformers, DINOv3": processor("dinov3_vit", "DINOv3ViTImageProcessor"),
    }
    return found


def views() -> dict[str, Callable[[], Any]]:
    """What makes each recipe of several views, as its authors wrote it."""
    transforms = import_torchvision().transforms
    return {name: partial(_views.recipe, name, transforms) for name in _views.NAMES}


def known() -> dict[str, Callable[[], Any]]:
    """What makes each recipe."""
    return libraries() | views()


class _Turn(NamedTuple):
    """What a contender did in one turn."""

    images: int
    seconds: float
    cpu: float


class _FailedError(Exception):
    """A contender that raised, and what."""


class _Contender:
    """A loader that goes on where its last turn has ended.

    Args:
        name: Of the contender.
        loader: Gives (views, labels), and can be iterated again and again.
        batches: Of a turn.
        ahead: How many it had prepared when the turn before ended.
    """

    def __init__(self, name: str, loader: Any, batches: int, ahead: int) -> None:
        self._name, self._loader, self._batches, self._ahead = name, loader, batches, ahead
        self._stream = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def take(self, batches: int) -> list[Any]:
        """So many batches.

        Raises:
            _FailedError: The loader, or a transform in it, raised.
        """
        try:
            return list(islice(self._stream, batches))
        except Exception as error:
            # Of a worker's error, the message is a whole traceback.
            last = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise _FailedError(f"{self._name} fails: {last}") from error

    def turn(self) -> _Turn:
        """One turn, after what was prepared before it."""
        _settle()
        self.take(self._ahead)
        cpu, begun, images = cpu_seconds(), time.perf_counter(), 0
        for _ in range(self._batches):
            ((_, labels),) = self.take(1)
            images += len(labels)
        return _Turn(images, time.perf_counter() - begun, cpu_seconds() - cpu)


def _settle() -> None:
    """Waits until the loader whose turn it was has prepared all that it does ahead."""
    before = -1.0
    while (now := cpu_seconds()) - before > _IDLE:
        before = now
        time.sleep(0.2)


def _verify(ours: _Contender, theirs: _Contender, batches: int) -> str:
    """Compares the images of each view, of so many batches: their means, and their spreads.

    Returns:
        How they differ by more than chance; "" if they do not.
    """
    both = []
    for contender in (ours, theirs):
        found = (_as_views(images) for images, _ in contender.take(batches))
        both.append([torch.cat(view) for view in zip(*found, strict=True)])
    for number, pair in enumerate(zip(*both, strict=True)):
        if len({(view.shape, view.dtype) for view in pair}) > 1:
            got, wanted = (f"{tuple(view.shape)} {view.dtype}" for view in pair)
            return f"view {number} is {got}, not {wanted}"
        for name in ("mean", "std"):
            values = [getattr(view.flatten(1).float(), name)(1) for view in pair]
            error = torch.stack([one.var() / len(one) for one in values]).sum().sqrt()
            apart = float((values[0].mean() - values[1].mean()).abs() / error)
            if apart > _ERRORS:
                return f"view {number}: the images' {name} is {apart:.1f} standard errors off"
    return ""


def _as_views(images: Any) -> list[torch.Tensor]:
    return images if isinstance(images, list) else [images]


def given(transform: Any) -> Any:
    """What fastdata is given for a recipe's transform."""
    return Views(*transform.ours) if isinstance(transform, _views.Recipe) else transform


class _Tensor:
    """The tensor in what a processor of transformers makes of an image."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, image: Any) -> Any:
        return self._processor(image, return_tensors="pt")["pixel_values"][0]


def _compare(
    dataset: Path, tree: Path, transform: Any, threads: int, batch: int, batches: int, rounds: int
) -> dict[str, Any]:
    """The turns of both loaders; or an "error", where nothing is timed."""
    original = _Tensor(transform) if hasattr(transform, "image_mean") else transform
    options: dict[str, Any] = {
        "batch_size": batch,
        "shuffle": True,
        "drop_last": True,
        "num_workers": threads,
        "persistent_workers": True,
    }
    packed = ImageDataset(dataset, transform=given(transform))
    try:
        loader: DataLoader[Any] = DataLoader(packed, require_native=True, **options)
    except UsageError as error:
        return {"error": error.what}
    folder = import_torchvision().datasets.ImageFolder(str(tree), original)
    contenders = {
        "fastdata": _Contender("fastdata", loader, 8 * batches, 2),
        "torch": _Contender(
            "the original", torch.utils.data.DataLoader(folder, **options), batches, 2 * threads
        ),
    }
    turns: dict[str, list[_Turn]] = {name: [] for name in contenders}
    try:
        if wrong := _verify(contenders["fastdata"], contenders["torch"], batches):
            return {"error": f"not the original's images: {wrong}"}
        for _ in range(rounds):
            for name, contender in contenders.items():
                turns[name].append(contender.turn())
    except _FailedError as failed:
        return {"error": str(failed)}
    return {"turns": turns, "error": ""}


def _machine() -> dict[str, Any]:
    return {**machine(), "torch": torch.__version__}


def measure(
    names: Sequence[str],
    dataset: Path,
    tree: Path,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
    done: dict[str, Any] | None = None,
    **settings: int,
) -> dict[str, Any]:
    """Runs the benchmark; returns all figures as JSON values.

    Args:
        names: Of recipes; all if empty, but those in ``done``.
        dataset: Packed from ``tree``.
        tree: A folder of images by class.
        keep: Called with what there is, after each recipe.
        done: What an earlier run has measured, by recipe.
        settings: As of the command line.
    """
    makers = known()
    done = {} if done is None else done
    result = {
        "benchmark": "recipes",
        "machine": _machine(),
        "samples": len(ImageDataset(dataset)),
        "settings": settings,
        "recipes": done,
    }
    for name in names or [name for name in makers if name not in done]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the libraries, on their own transforms
            try:
                transform = makers[name]()
            except Exception as error:  # not installed, or not with these versions of libraries
                done[name] = {"error": f"it cannot be made: {type(error).__name__}: {error}"}
            else:
                done[name] = _compare(dataset, tree, transform, **settings)
        gc.collect()  # ends its workers
        print(name, done[name]["error"] or "", file=sys.stderr, flush=True)
        keep(result)
    return result


def ratio(result: dict[str, Any], name: str, value: Callable[[_Turn], float]) -> Spread | None:
    """How many times the original's value fastdata has, round by round; None: not timed."""
    turns = result["recipes"].get(name, {}).get("turns")
    if turns is None:
        return None
    pairs = zip(turns["fastdata"], turns["torch"], strict=True)
    return Spread.of([value(_Turn(*mine)) / value(_Turn(*its)) for mine, its in pairs])


def speed(turn: _Turn) -> float:
    """Images a second."""
    return turn.images / turn.seconds


def thrift(turn: _Turn) -> float:
    """Images for each second of CPU time."""
    return turn.images / max(turn.cpu, _TICK)


def figures(result: dict[str, Any]) -> Figures:
    """The results as people read them; ratios are taken round by round."""
    rows = []
    for name, of in result["recipes"].items():
        if of["error"]:
            rows.append([name, of["error"], "", "", ""])
            continue
        speeds = (
            Spread.of([speed(_Turn(*turn)) for turn in of["turns"][who]])
            for who in ("fastdata", "torch")
        )
        ratios = (ratio(result, name, value) for value in (speed, thrift))
        rows.append([name, *(f"{one.median:,.0f}" for one in speeds), *map(str, ratios)])
    settings = result["settings"]
    title = f"{settings['threads']} threads, batches of {settings['batch']}"
    columns = ["recipe", "fastdata, images/s", "torch, images/s", "times", "times by CPU time"]
    return Figures(title, columns, rows)


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("tree", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--recipe", "names", multiple=True, help="By name, or several; all by default.")
@click.option("--threads", default=2, show_default=True)
@click.option("--batch", default=32, show_default=True)
@click.option("--batches", default=4, show_default=True, help="Of a turn of torch's.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--about", default="", help="What the page should say of how it was run.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(path_type=Path),
    help="Write the figures here; of a file that exists, measure the recipes that it lacks.",
)
def main(names: tuple[str, ...], about: str, json_path: Path | None, **options: Any) -> None:
    """Measure recipes, of the packed DATASET and the TREE that it was made of."""
    if unknown := set(names) - set(known()):
        raise click.UsageError(f"no recipe {unknown.pop()!r}; there are: {'; '.join(known())}")
    torch.set_num_threads(1)  # so that no thread of torch's spins beside the loaders'
    done: dict[str, Any] = {}
    if json_path is not None and json_path.exists():
        before = json.loads(json_path.read_text())
        settings = {name: value for name, value in options.items() if name not in _PATHS}
        if (before["machine"], before["settings"]) != (_machine(), settings):
            raise click.UsageError(
                f"{json_path} has figures of another machine or other settings: name another file"
            )
        done, about = before["recipes"], about or before.get("about", "")

    def keep(result: dict[str, Any]) -> None:
        if json_path is not None:
            json_path.write_text(json.dumps({"about": about, **result}, indent=1) + "\n")

    figures(measure(names, done=done, keep=keep, **options)).show()


if __name__ == "__main__":
    main()
