"""Train an image classifier on a dataset that ``fastdata convert`` made; one file, to copy.

    python -m fastdata.examples.train_imagenet --config cpu --train DATASET --val DATASET
    torchrun --nproc-per-node 8 train_imagenet.py --config resnet50 --train DATASET --val DATASET
    srun --ntasks-per-node 8 python train_imagenet.py --config resnet50 --train DATASET …

From top to bottom: options, ranks, data, model, checkpoints, the run. docs/training.md describes
the recipes, and how to stop and resume.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import json
import math
import os
import random
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy, one_hot
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fastdata import DataLoader, ImageDataset, transforms
from fastdata.errors import DataError, FastdataError, UsageError
from fastdata.machine import slurm_variables
from fastdata.profile import StepTimer

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
AUGMENTATIONS = {
    "auto": transforms.AutoAugment,
    "rand": transforms.RandAugment,
    "trivial": transforms.TrivialAugmentWide,
}
#: Options that a resumed run must share with its checkpoint.
SHARED = ("model", "model_args", "optimizer", "seed", "on_error")

# --- options: defaults, then a YAML file, then the command line -----------------------------------


def _option(default: Any, about: str, *choices: str) -> Any:
    return field(default=default, metadata={"about": about, "choices": choices or None})


@dataclass(frozen=True)
class Config:
    """Options; the command line has one for each, with hyphens for underscores."""

    train: str = _option("", "dataset to train on: made by fastdata convert, in any container")
    val: str = _option("", "dataset to validate on after each epoch; none if not given")
    out: str = _option("run/train", "folder for checkpoints and logs, on a disk that ranks share")
    resume: str = _option("", '"auto" to go on from the checkpoint in --out; or a file')

    model: str = _option("resnet50", "torchvision's; timm/NAME; or a function, MODULE:FUNCTION")
    model_args: str = _option("{}", "more arguments of the model, as JSON")
    epochs: int = _option(90, "how often the dataset is gone through")
    max_steps: int = _option(0, "end after so many optimizer steps, saving; 0 for no limit")
    batch_size: int = _option(256, "images of one rank that are on the device at once")
    accumulate: int = _option(1, "batches whose gradients make one optimizer step")
    seed: int = _option(0, "of weights, order, crops and dropout")

    image_size: str = _option("224", 'side of the crops; "0:128,20:176": from those epochs on')
    val_size: int = _option(224, "side of the crops of validation")
    val_resize: int = _option(256, "shorter side of the images that those are cut from")
    interpolation: str = _option("bilinear", "of crops and augmentations", "bilinear", "bicubic")
    augment: str = _option("none", "policy of augmentations", "none", *AUGMENTATIONS)
    erasing: float = _option(0.0, "probability that a rectangle is erased")
    repeats: int = _option(1, "crops of each image in a batch, each augmented for itself")
    mixup: float = _option(0.0, "alpha of MixUp; with CutMix, one of the two a batch")
    cutmix: float = _option(0.0, "alpha of CutMix")
    label_smoothing: float = _option(0.0, "of the loss")

    optimizer: str = _option("sgd", "which one", "sgd", "adamw")
    lr: float = _option(0.1, "highest learning rate, for 256 images a step: scaled linearly")
    warmup_epochs: float = _option(5.0, "epochs over which the rate rises; then it is a cosine")
    momentum: float = _option(0.9, "of SGD")
    weight_decay: float = _option(5e-5, "of weights; norms and biases do not decay")
    clip_grad: float = _option(0.0, "highest norm of all gradients together; 0 for no limit")
    ema_decay: float = _option(0.0, "average of the weights, which is validated: decay per step")
    ema_every: int = _option(32, "steps between two updates of that average")

    device: str = _option("auto", 'where to train: "cpu", "cuda", …; auto: what torch finds')
    amp: str = _option("none", "mixed precision", "none", "bfloat16", "float16")
    tf32: bool = _option(True, "float32 products with TF32's precision, on GPUs that have it")
    channels_last: bool = _option(True, "images and weights as N, H, W, C in memory")
    compile: str = _option("", 'backend of torch.compile: "inductor"; none if not given')
    sync_batch_norm: bool = _option(False, "batch norm over all ranks; GPUs only")
    bf16_gradients: bool = _option(False, "send gradients between GPUs as bfloat16")
    static_graph: bool = _option(True, "tell DDP that every step has the same graph")
    timeout: float = _option(300.0, "seconds that a rank waits for the others before it fails")

    workers: int = _option(0, "decode threads of one rank; 0 for its share of the CPUs")
    on_error: str = _option("raise", "what to do about bad images", "raise", "skip")
    log_every: int = _option(50, "optimizer steps between two lines of progress")
    checkpoint_every: int = _option(0, "optimizer steps between checkpoints; 0: epochs only")

    def __post_init__(self) -> None:
        from_one = {"epochs", "batch_size", "accumulate", "repeats", "log_every", "ema_every"}
        to_one = {"erasing", "label_smoothing", "momentum", "ema_decay"}
        for one in fields(self):
            value, least = getattr(self, one.name), int(one.name in from_one)
            most = 1 if one.name in to_one else math.inf
            # NaN is not between any two.
            if isinstance(one.default, (int, float)) and not least <= value <= most:
                hint = f"Give {least} to 1." if most == 1 else f"Give {least} or more."
                raise UsageError(f"{one.name} is {value}", hint)
        if self.batch_size % self.repeats:
            hint = "Give a batch size that the repeats divide."
            raise UsageError(f"batch_size={self.batch_size}, repeats={self.repeats}", hint)
        self.size(0), self.arguments

    def size(self, epoch: int) -> int:
        """Return the side of an epoch's training crops."""
        try:
            pairs = [part.rpartition(":") for part in self.image_size.split(",")]
            sizes = {int(begin or 0): int(side) for begin, _, side in pairs}
            return sizes[max(begin for begin in sizes if begin <= epoch)]
        except ValueError:
            hint = 'Give a side, or sides from epochs on, from 0: "0:128,20:176".'
            raise UsageError(f"image_size is {self.image_size!r}", hint) from None

    @property
    def arguments(self) -> dict[str, Any]:
        """Further arguments of the model."""
        try:
            return dict(json.loads(self.model_args))
        except (ValueError, TypeError):
            hint = 'Give a JSON object: {"zero_init_residual": true}'
            raise UsageError(f"model_args is {self.model_args!r}", hint) from None

    @property
    def dtype(self) -> str:
        """Dtype of images: that of mixed precision."""
        return "float32" if self.amp == "none" else self.amp

    @property
    def layout(self) -> torch.memory_format:
        """Memory layout of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def autocast(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of mixed precision."""
        return torch.autocast(device.type, getattr(torch, self.dtype), self.amp != "none")


def parse(arguments: Sequence[str] | None) -> Config:
    """Parse a command line (None for this program's) and the recipe that it names."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--config RECIPE] [options]",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", help="YAML file of options, or the name of a recipe; it may name one itself"
    )
    for one in fields(Config):
        flag, kind = "--" + one.name.replace("_", "-"), type(one.default)
        about, choices = f"{one.metadata['about']} [{one.default!r}]", one.metadata["choices"]
        if kind is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, help=about)
        else:
            parser.add_argument(flag, type=kind, choices=choices, help=about)

    def read(words: Sequence[str] | None) -> dict[str, Any]:
        given = vars(parser.parse_args(words))
        if "config" in given:
            path = find_recipe(given.pop("config"))
            parser.prog = str(path)
            given = read(recipe_words(path)) | given
        return given

    return Config(**read(arguments))


def recipe_words(path: Path) -> list[str]:
    """Return a recipe as words of a command line."""
    yaml = importlib.import_module("yaml")
    try:
        options = yaml.safe_load(path.read_text()) or {}
        if not isinstance(options, dict):
            raise TypeError(f"a {type(options).__name__}, not a mapping")
    except (OSError, TypeError, ValueError, yaml.YAMLError) as error:
        hint = "Give an option a line, as in: batch_size: 256"
        raise UsageError(f"{path}: cannot be read as options: {error}", hint) from error
    words = []
    for key, value in options.items():
        flag = str(key).replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


def find_recipe(name: str) -> Path:
    """Return the file of a path, or of a recipe's name, beside this file or installed."""
    places = [str(Path(__file__).parent)]
    with suppress(ModuleNotFoundError):
        places += importlib.import_module("fastdata.examples").__path__
    recipes = {path.stem: path for one in places for path in Path(one).glob("configs/*.yaml")}
    if name not in recipes and not Path(name).is_file():
        known = ", ".join(sorted(recipes)) or "those of examples/configs, copied beside this script"
        hint = f"Give a file; or one of {known}."
        raise UsageError(f"{name}: no such file or recipe", hint)
    return recipes.get(name, Path(name))


# --- ranks ----------------------------------------------------------------------------------------


@contextmanager
def join(config: Config) -> Iterator[torch.device]:
    """Join the run of torchrun or Slurm, or start one of this process alone.

    Tensors on the CPU go by gloo, those on a device by NCCL or the device's own backend.
    """
    by_slurm = slurm_variables()
    os.environ.update(by_slurm)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device, found = torch.device("cpu"), torch.accelerator.current_accelerator(True)
    backend, bound = "gloo", None
    if config.device != "cpu" and (found is not None or config.device != "auto"):
        count = torch.accelerator.device_count()
        if by_slurm and count == 1:
            local = 0  # --gpus-per-task: each task sees one GPU
        if found is None or config.device not in ("auto", found.type) or local >= count:
            raise UsageError(
                f"there is no device {config.device!r} for process {local} of this machine: torch "
                f"finds {count} {found.type if found is not None else 'accelerators'}",
                "Give --device without a number (CUDA_VISIBLE_DEVICES says which), start no more "
                "processes than there are devices, or give --device cpu.",
            )
        device = bound = torch.device(found.type, local)
        torch.accelerator.set_device_index(local)
        backend = f"cpu:gloo,{found.type}:{dist.get_default_backend_for_device(device)}"
    options: dict[str, Any] = {"timeout": timedelta(seconds=config.timeout), "device_id": bound}
    if "WORLD_SIZE" not in os.environ:
        store = dist.HashStore()  # type: ignore[attr-defined]
        options |= {"store": store, "rank": 0, "world_size": 1}
    dist.init_process_group(backend, **options)
    try:
        yield device
    except BaseException:
        if backend == "gloo":
            dist.destroy_process_group()
        # NCCL would wait for the other ranks. They end, too: gloo notices the lost process, or
        # torchrun, srun or --timeout ends them.
        raise
    dist.destroy_process_group()


def gather(value: Any) -> list[Any]:
    """Return every rank's value, on every rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


class Signals:
    """Handler of SIGUSR1 and SIGTERM, which all ranks answer after the same step.

    A reduction on the CPU runs beside the next step, so that no rank waits for it.
    """

    def __init__(self) -> None:
        self._received, self._highest = 0, torch.zeros(1, dtype=torch.int32)
        self._work: Any = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Record signals within a ``with`` block, without other effects."""
        kept = {one: signal.signal(one, self._note) for one in (signal.SIGUSR1, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in kept.items():
                signal.signal(one, handler)

    def _note(self, number: int, _: Any) -> None:
        self._received = max(self._received, number)

    def poll(self) -> int:
        """Return the signal that any rank had at the last call, or 0; every rank must call."""
        if self._work is not None:
            self._work.wait()
        found = int(self._highest)
        self._highest[0], self._received = self._received, 0
        self._work = dist.all_reduce(self._highest, dist.ReduceOp.MAX, async_op=True)
        return found


# --- data -----------------------------------------------------------------------------------------


def training_data(config: Config, device: torch.device) -> DataLoader[Any]:
    """Return this rank's share, augmented, on the device: dicts of "image" and "label".

    All batches are full, so a compiled model has one graph. Labels are int64, those of mixed
    images float32 (N, classes).
    """

    def transform(epoch: int) -> transforms.Transform:
        augment, size = AUGMENTATIONS.get(config.augment), config.size(epoch)
        one = transforms.Compose(
            (
                transforms.RandomResizedCrop(size, interpolation=config.interpolation),
                transforms.RandomHorizontalFlip(),
                *([augment(interpolation=config.interpolation)] if augment else []),
                _normalize(config),
                *([transforms.RandomErasing(config.erasing)] if config.erasing else []),
            )
        )
        return transforms.Views(one, count=config.repeats) if config.repeats > 1 else one

    dataset = ImageDataset(config.train, transforms.Schedule(transform))
    mix, images = Mix(config, len(dataset.classes)), config.batch_size // config.repeats
    options = {"shuffle": True, "drop_last": True, "on_error": config.on_error}
    loader = _loader(config, device, dataset, images, batch_transform=mix, **options)
    if not len(loader):
        what = f"{config.train}: {len(dataset)} images make no batch of {images} on each rank"
        raise UsageError(what, "Give a smaller --batch-size.")
    return loader


def validation_data(config: Config, device: torch.device) -> DataLoader[Any]:
    """Return the centres of this rank's share of images, on the device."""
    resize = transforms.Resize(config.val_resize, config.interpolation)
    cut, normalize = transforms.CenterCrop(config.val_size), _normalize(config)
    dataset = ImageDataset(config.val, transforms.Compose((resize, cut, normalize)))
    # A bad image is black and not counted: another image in its place would count twice.
    on_error = "zero" if config.on_error == "skip" else "raise"
    return _loader(config, device, dataset, config.batch_size, on_error=on_error)


def _normalize(config: Config) -> transforms.Normalize:
    return transforms.Normalize(MEAN, STD, dtype=config.dtype)


def _loader(
    config: Config, device: torch.device, dataset: Any, batch_size: int, **options: Any
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size,
        num_workers=config.workers or "auto",
        persistent_workers=True,
        seed=config.seed,
        shard="auto",
        device=device,
        fields=("image", "label"),
        require_native=True,
        **options,
    )


def _classes(loader: Any) -> list[str]:
    return list(loader.dataset.classes)


class Mix:
    """Concatenation of an image's crops, then MixUp (Zhang et al., 2018) or CutMix.

    Each image is mixed with the one before it in the batch, as in torchvision's v2; CutMix (Yun
    et al., 2019) copies a rectangle of that. The loader calls this on the device, with generators
    seeded by (seed, epoch, batch), so that a resumed run draws the same.
    """

    def __init__(self, config: Config, classes: int) -> None:
        self._alphas = {self._mixup: config.mixup, self._cutmix: config.cutmix}
        self._ways = [way for way, alpha in self._alphas.items() if alpha]
        self._classes = classes

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the mixed batch; may write to its argument."""
        images, labels = batch["image"], batch["label"]
        if isinstance(images, list):
            images, labels = torch.cat(images), labels.repeat(len(images))
        if self._ways:
            way = random.choice(self._ways)
            images, share = way(images, random.betavariate(self._alphas[way], self._alphas[way]))
            labels = one_hot(labels, self._classes).float()
            labels = labels.roll(1, 0).lerp(labels, share)
        return {"image": images, "label": labels}

    @staticmethod
    def _mixup(images: torch.Tensor, share: float) -> tuple[torch.Tensor, float]:
        return images.lerp(images.roll(1, 0), 1 - share), share

    @staticmethod
    def _cutmix(images: torch.Tensor, share: float) -> tuple[torch.Tensor, float]:
        height, width = images.shape[-2:]
        y, x, half = random.randrange(height), random.randrange(width), math.sqrt(1 - share) / 2
        top, bottom = max(int(y - half * height), 0), min(int(y + half * height), height)
        left, right = max(int(x - half * width), 0), min(int(x + half * width), width)
        part = images[..., top:bottom, left:right]
        part.copy_(part.roll(1, 0))
        return images, 1 - (bottom - top) * (right - left) / (height * width)


# --- model ----------------------------------------------------------------------------------------


def make_model(config: Config, classes: int) -> nn.Module:
    """Return the network on the CPU, with the same weights on every rank."""
    torch.manual_seed(config.seed)
    library, _, name = config.model.rpartition("/")
    module, _, function = config.model.partition(":")
    arguments = {"num_classes": classes} | config.arguments
    try:
        if function:
            made = getattr(importlib.import_module(module), function)(**arguments)
        elif library:
            made = importlib.import_module(library).create_model(name, **arguments)
        else:
            made = importlib.import_module("torchvision.models").get_model(name, **arguments)
    except (ImportError, AttributeError, ValueError, TypeError, RuntimeError) as error:
        hint = "Give a name of torchvision.models; timm/NAME; or MODULE:FUNCTION."
        raise UsageError(f"model={config.model!r} with {arguments}: {error}", hint) from error
    return made  # type: ignore[no-any-return]


def make_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD or AdamW, in one kernel; norms and biases (one dimension) do not decay."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [one for one in parameters if one.ndim > 1]},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]
    options: dict[str, Any] = {"weight_decay": config.weight_decay, "fused": True}
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, config.lr, **options)
    sgd = torch.optim.SGD(groups, config.lr, config.momentum, **options)
    # The kernel leaves a new momentum unwritten if the gradient scaler skips the first step.
    for one in parameters if config.momentum else ():
        sgd.state[one]["momentum_buffer"] = torch.zeros_like(one)
    return sgd


@torch.no_grad()
def evaluate(
    models: Sequence[nn.Module], loader: Any, config: Config, device: torch.device
) -> list[dict[str, float]]:
    """Score models: "loss" (mean cross-entropy), "top1" and "top5" (0 to 1), "samples".

    Each sample counts once, on any number of ranks. Synchronises with the device once, at the end.
    """
    sums, begin = [], 0
    for batch in loader:
        images, labels = batch["image"].contiguous(memory_format=config.layout), batch["label"]
        # All ranks have batches of the same sizes; padding of the last batch is not counted.
        first = begin + dist.get_rank() * len(labels)
        counts = torch.arange(first, first + len(labels), device=device) < len(loader.dataset)
        counts &= batch.get("valid", counts)
        begin += dist.get_world_size() * len(labels)
        for model in models:
            with config.autocast(device):
                logits = model(images)
            loss = cross_entropy(logits.float(), labels, reduction="none")
            best = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
            values = torch.stack([loss, best[:, 0], best.any(1), torch.ones_like(loss)])
            sums.append(values.where(counts, 0).sum(1))  # no product: a loss may be infinite
    total = torch.stack(sums).cpu().double().view(-1, len(models), 4).sum(0)
    dist.all_reduce(total)
    means = [[*(row[:3] / row[3].clamp(min=1)).tolist(), int(row[3])] for row in total]
    return [dict(zip(("loss", "top1", "top5", "samples"), one, strict=True)) for one in means]


def average(config: Config, model: nn.Module) -> AveragedModel:
    """Return an exponential moving average of a model's weights and running means."""
    update = get_ema_multi_avg_fn(config.ema_decay**config.ema_every)  # type: ignore[no-untyped-call]
    return AveragedModel(model, multi_avg_fn=update, use_buffers=True).eval()


# --- checkpoints ----------------------------------------------------------------------------------


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let OSErrors in a ``with`` block name a path and the fix."""
    try:
        yield
    except OSError as error:
        hint = "Make room, or give another --out; --resume auto goes on from the last checkpoint."
        raise DataError(f"{path}: cannot be written: {error.strerror}", hint) from error


class Writer:
    """Writer of files in a thread; each file appears when it is complete."""

    def __init__(self) -> None:
        self._thread, self._last = ThreadPoolExecutor(1), Future[None]()
        self._last.set_result(None)

    def write(self, state: dict[str, Any], path: Path) -> None:
        """Copy a state, and begin to write it; its tensors may change afterwards."""
        copied = io.BytesIO()
        torch.save(state, copied)
        self.wait()
        self._last = self._thread.submit(self._write, copied, path)

    def check(self) -> None:
        """Raise the error of the last file, if it has failed already."""
        if self._last.done():
            self._last.result()

    def wait(self) -> None:
        """Wait for the file that is being written; raise its error."""
        self._last.result()

    @staticmethod
    def _write(copied: io.BytesIO, path: Path) -> None:
        partial = path.with_name(f"{path.name}.partial")
        with writing(path):
            try:
                with partial.open("wb") as file:
                    file.write(copied.getbuffer())
                    file.flush()
                    os.fsync(file.fileno())
                partial.replace(path)
            except OSError:
                with suppress(OSError):
                    partial.unlink()  # free its space
                raise


def find_checkpoint(config: Config, classes: int) -> dict[str, Any] | None:
    """Return the checkpoint to resume from, on the CPU; None to start from the beginning."""
    own = Path(config.out, "checkpoint.pt")
    if not config.resume and own.exists():
        hint = "Resume it with --resume auto, or give another --out."
        raise UsageError(f"{own}: is the checkpoint of a run, which would be overwritten", hint)
    if not config.resume or (config.resume == "auto" and not own.exists()):
        return None
    path = own if config.resume == "auto" else Path(config.resume)
    hint = "Name another checkpoint; to start over, remove it or give another --out."
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        saved = state["config"] | {"classes": state["classes"], "ema": bool(state["ema"])}
    except FileNotFoundError:
        raise UsageError(f"{path}: no such checkpoint", hint) from None
    except (UnpicklingError, OSError, RuntimeError, EOFError, LookupError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: cannot be read as a checkpoint: {what}", hint) from error
    now = asdict(config) | {"classes": classes, "ema": config.ema_decay > 0}
    for name in (*SHARED, "classes", "ema"):
        if saved[name] != now[name]:
            raise UsageError(
                f"{path}: was saved with {name}={saved[name]!r}, this run has {now[name]!r}",
                f"Give the same {name}, or another --out.",
            )
    return state


# --- the run --------------------------------------------------------------------------------------


class Trainer:
    """Training on one rank; resumes from the checkpoint that the options name."""

    def __init__(self, config: Config, device: torch.device) -> None:
        self.config, self.device, self.out = config, device, Path(config.out)
        with writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
        torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = config.tf32
        torch.backends.cudnn.benchmark = True  # images have few sizes
        self.loader = training_data(config, device)
        self.val_loader = validation_data(config, device) if config.val else None
        classes = _classes(self.loader)
        if self.val_loader is not None and _classes(self.val_loader) != classes:
            what = f"{config.train} and {config.val} have not the same classes"
            raise UsageError(what, "Pack both from the same source.")
        self.classes = len(classes)
        model = make_model(config, self.classes)
        if config.sync_batch_norm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        self.model: nn.Module = model.to(device, memory_format=config.layout)  # type: ignore[call-overload]
        self.ema = average(config, self.model) if config.ema_decay else None
        self.optimizer = make_optimizer(config, self.model)
        self.scaler = torch.amp.GradScaler(device.type, enabled=config.amp == "float16")
        self.wrapped, self.no_sync = self.model, cast(Any, nullcontext)
        if dist.get_world_size() > 1:
            # Accumulation and compilation break the assumption of a static graph.
            static = config.static_graph and config.accumulate == 1 and not config.compile
            ddp = DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, static_graph=static
            )
            if config.bf16_gradients and device.type != "cpu":
                ddp.register_comm_hook(None, bf16_compress_hook)
            self.wrapped, self.no_sync = ddp, ddp.no_sync
        if config.compile:
            # Compile the wrapped model, so that gradients are sent between its graphs. A graph for
            # each size is faster than one for all sizes.
            self.wrapped = torch.compile(self.wrapped, backend=config.compile, dynamic=False)
        self.step, self.best, self.scores = 0, 0.0, list[dict[str, float]]()
        self.losses: list[torch.Tensor] = []  # of the steps since the last report, on the device
        self.writer, self.signals = Writer(), Signals()
        self.timer = StepTimer(every=0, batch_size=config.batch_size, write=lambda line: None)
        self._resume(find_checkpoint(config, self.classes))

    def _resume(self, state: dict[str, Any] | None) -> None:
        """Load a checkpoint; options stay those of this run."""
        if state is not None:
            self.model.load_state_dict(state["model"])
            if self.ema is not None:
                self.ema.load_state_dict(state["ema"])
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict(state["optimizer"] | {"param_groups": groups})
            for parameter, values in self.optimizer.state.items():
                for name, value in values.items():
                    if value.shape == parameter.shape:
                        # Fused kernels need this run's memory layout.
                        values[name] = torch.empty_like(parameter).copy_(value)
            if self.scaler.is_enabled() and state["scaler"]:
                self.scaler.load_state_dict(state["scaler"])
            self.step, self.best = state["step"], state["best"]
            # One state fits all ranks, also if their number has changed.
            self.loader.load_state_dict(state["loaders"][0])
        steps = gather(self.step)
        if len(set(steps)) > 1:
            what = f"the ranks have found checkpoints of different steps: {steps}"
            raise UsageError(what, "Put --out on a disk that all nodes share.")
        if dist.get_rank() == 0:
            self._introduce(state is not None)

    def _introduce(self, resumed: bool) -> None:
        """Print the data and the first step: the first report takes a while."""
        config, batches = self.config, len(self.loader)
        images = len(self.loader.dataset)  # type: ignore[arg-type]
        print(
            f"{config.train}: {images:,} images of {self.classes:,} classes; "
            f"{config.epochs} epochs of {batches:,} batches of {config.batch_size} "
            f"on {dist.get_world_size()} x {self.device.type}"
        )
        own = self.out / "checkpoint.pt"
        if resumed:
            path = own if config.resume == "auto" else config.resume
            epoch = self.loader.state_dict()["epoch"]
            print(f"resumed from {path}: step {self.step:,}, in epoch {epoch}")
        elif config.resume:
            print(f"nothing to resume from: there is no {own}; starting at step 0")
        print(f"writing to {self.out}", flush=True)

    def save(self) -> None:
        """Begin to write a checkpoint; every rank must call, the first one writes."""
        if not all(bool(one.isfinite().all()) for one in self.model.parameters()):
            raise FloatingPointError(f"step {self.step}: parameters are not finite, and not saved")
        loaders = gather(self.loader.state_dict())
        state = {
            "model": self.model.state_dict(),
            "ema": {} if self.ema is None else self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loaders": loaders,
            "step": self.step,
            "best": self.best,
            "classes": self.classes,
            "config": asdict(self.config),
        }
        if dist.get_rank() == 0:
            self.writer.write(state, self.out / "checkpoint.pt")

    def run(self) -> dict[str, Any]:
        """Train to the end, or until SIGTERM; return the contents of summary.json."""
        config, written = self.config, self.out / "summary.json"
        epoch = int(self.loader.state_dict()["epoch"])
        stopped = self._enough()
        if (stopped or epoch >= config.epochs) and written.exists():
            # The run was queued again although it had ended.
            return dict(json.loads(written.read_text())) | {"terminated": False}
        # Automatic collections would stop each rank at another step, and the others would wait.
        gc.disable()
        try:
            with self.signals.caught():
                batches = iter(self.loader)
                while epoch < config.epochs and not stopped:
                    stopped = self._train(epoch, batches)
                    if not stopped:
                        epoch += 1
                        batches = iter(self.loader)
                        if epoch < config.epochs:
                            batches.ready()  # threads decode these while others are validated
                        if self.val_loader is not None:
                            self._validate()
                        self.save()
                        stopped = self._enough()
                self.writer.wait()
        finally:
            gc.enable()
        summary = {
            "epochs": epoch,
            "steps": self.step,
            "terminated": stopped == signal.SIGTERM,
            "val": self.scores[0] if self.scores else None,
            "best_top1": self.best,
            "world_size": dist.get_world_size(),
            "phases_s": self.timer.totals(),
            "config": asdict(config),
        }
        if dist.get_rank() == 0:
            with writing(written):
                written.write_text(json.dumps(summary, indent=1) + "\n")
        return summary

    def _enough(self) -> int:
        """Return -1 after --max-steps, else 0."""
        return -(0 < self.config.max_steps <= self.step)

    def _train(self, epoch: int, batches: Any) -> int:
        """Train the rest of an epoch; return SIGTERM or, after --max-steps, -1 if that ended it."""
        config, total, every = self.config, len(batches), self.config.accumulate
        for number, batch in enumerate(self.timer.batches(batches)):
            first = number - number % every
            last = number + 1 in (first + every, total)
            if number == first:
                # A resumed run has the same rates and dropout: they depend on the step alone.
                numbers = self.step * dist.get_world_size() + dist.get_rank()
                torch.manual_seed((config.seed << 32) + numbers)
                self._set_rate(epoch + 1 - (total - first) / len(self.loader))
            # Send gradients once a step, not once a batch.
            with nullcontext() if last else self.no_sync():
                self._backward(batch, 1 / min(every, total - first))
            if not last:
                continue
            self._update(epoch)
            received = self.signals.poll()
            enough = self._enough() if number + 1 < total else 0
            stopped = signal.SIGTERM if received == signal.SIGTERM else enough
            if self.step % config.log_every == 0 or stopped or number + 1 == total:
                self._report(epoch)
            due = config.checkpoint_every and self.step % config.checkpoint_every == 0
            if received or stopped or due:
                self.save()
            if stopped:
                return stopped
        return 0

    def _backward(self, batch: dict[str, Any], share: float) -> None:
        with self.config.autocast(self.device), self.timer.phase("forward"):
            logits = self.wrapped(batch["image"].contiguous(memory_format=self.config.layout))
            smoothing = self.config.label_smoothing
            loss = cross_entropy(logits, batch["label"], label_smoothing=smoothing)
        with self.timer.phase("backward"):
            self.scaler.scale(loss * share).backward()  # type: ignore[no-untyped-call]
        self.losses.append(loss.detach())

    def _update(self, epoch: int) -> None:
        config = self.config
        with self.timer.phase("optimizer"), torch.no_grad():
            if config.clip_grad:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), config.clip_grad)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.step += 1
            if self.ema is not None and self.step % config.ema_every == 0:
                self.ema.update_parameters(self.model)
                if epoch < config.warmup_epochs:
                    self.ema.n_averaged.zero_()  # the next update restarts the average

    def _set_rate(self, done: float) -> None:
        """Set the learning rate of a step, which begins after ``done`` epochs."""
        config, warmup = self.config, self.config.warmup_epochs
        images = config.batch_size * config.accumulate * dist.get_world_size()
        if done < warmup:
            factor = min((done + config.accumulate / len(self.loader)) / warmup, 1.0)
        else:
            factor = 0.5 + 0.5 * math.cos(math.pi * (done - warmup) / (config.epochs - warmup))
        for group in self.optimizer.param_groups:
            group["lr"] = config.lr * images / 256 * factor

    def _report(self, epoch: int) -> None:
        """Report the steps since the last report; end all ranks if a loss is not finite."""
        gc.collect(1)
        self.writer.check()
        losses = torch.stack(self.losses).cpu().double() / dist.get_world_size()
        dist.all_reduce(losses)
        self.losses.clear()
        if not losses.isfinite().all():
            raise FloatingPointError(
                f"the loss became {losses[~losses.isfinite()][0]} by step {self.step}: resume from "
                "the last checkpoint with a lower --lr, or with --clip-grad"
            )
        self.timer.report()
        recent = self.timer.reported
        assert recent is not None
        self._tell(
            "train",
            epoch=epoch,
            loss=losses.mean().item(),
            lr=self.optimizer.param_groups[0]["lr"],
            images_per_second=recent.images_per_second * dist.get_world_size(),
            waiting=recent.wait_share,
        )

    def _validate(self) -> None:
        assert self.val_loader is not None
        models = {"val": self.model}
        if self.ema is not None:
            models = {"val": self.ema.module, "raw": self.model}
        for buffer in (one for model in models.values() for one in model.buffers()):
            dist.broadcast(buffer, 0)  # ranks' running means differ; keep the first's
        self.model.eval()
        self.scores = evaluate([*models.values()], self.val_loader, self.config, self.device)
        self.model.train()
        for name, score in zip(models, self.scores, strict=True):
            self._tell(name, **score)
        if self.scores[0]["top1"] > self.best:
            self.best = self.scores[0]["top1"]
            if dist.get_rank() == 0:
                best = {"model": models["val"].state_dict(), "top1": self.best}
                self.writer.write(best | {"config": asdict(self.config)}, self.out / "best.pt")

    def _tell(self, kind: str, **values: float) -> None:
        """Print values, and append them to log.jsonl; on the first rank alone."""
        if dist.get_rank() == 0:
            path = self.out / "log.jsonl"
            with writing(path), path.open("a") as file:
                file.write(json.dumps({"kind": kind, "step": self.step} | values) + "\n")
            words = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items()]
            print(f"{kind} step {self.step}:", ", ".join(words), flush=True)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train by the command line; return the contents of summary.json."""
    config = parse(arguments)
    if not config.train:
        raise UsageError("nothing to train on", "Give --train DATASET.")
    with join(config) as device:
        return Trainer(config, device).run()


if __name__ == "__main__":
    try:
        # Exit as after SIGTERM in a shell, so that no script takes the run for complete.
        sys.exit(128 + signal.SIGTERM if main()["terminated"] else 0)
    except FastdataError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)
