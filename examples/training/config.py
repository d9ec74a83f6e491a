"""Options of a run: defaults, then YAML files, then the command line.

A YAML file may name others it begins from, ``defaults: base.yaml`` or a list of them, relative
to itself; what it says itself comes after.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from fastdata.examples.training.resnet import MODELS
from fastdata.examples.training.schedule import DECAYS, SCALINGS

from fastdata.errors import UsageError

AMP = ("none", "bfloat16", "float16")


def _option(default: Any, about: str, choices: Sequence[str] | None = None) -> Any:
    return field(default=default, metadata={"about": about, "choices": choices})


@dataclass(frozen=True)
class Config:
    """All options; the command line has one for each, with hyphens for underscores."""

    train: str = _option("", "dataset to train on: made by fastdata convert, in any container")
    val: str = _option("", "dataset to validate on after each epoch; none if not given")
    out: str = _option("run/train", "folder for checkpoints, TensorBoard and summary.json")
    resume: str = _option("", '"auto" to go on from the checkpoint in --out; or a file')

    model: str = _option("resnet50", "which network", MODELS)
    width: int = _option(64, "channels of its first stage; fewer to try things on a CPU")
    bias_before_norm: bool = _option(False, "biases in convolutions before batch norms")
    sync_batch_norm: bool = _option(False, "batch norm over all ranks; GPUs only")

    epochs: int = _option(90, "how often the dataset is gone through")
    max_steps: int = _option(0, "end after so many optimiser steps, saving; 0 for no limit")
    batch_size: int = _option(256, "images of one rank that are on the device at once")
    accumulate: int = _option(1, "batches whose gradients make one optimiser step")
    image_size: int = _option(224, "side of the crops")
    seed: int = _option(0, "of weights, order and crops")

    lr: float = _option(0.1, "highest learning rate, for 256 images a step")
    lr_scaling: str = _option("linear", "of the rate with the images a step", SCALINGS)
    warmup_epochs: float = _option(5.0, "epochs over which the rate rises")
    decay: str = _option("cosine", "of the rate after that", DECAYS)
    momentum: float = _option(0.9, "of SGD")
    nesterov: bool = _option(False, "Nesterov's momentum")
    weight_decay: float = _option(5e-5, "of weights")
    decay_norm_and_bias: bool = _option(False, "weight decay for batch norms and biases too")
    label_smoothing: float = _option(0.1, "of the loss, 0 for none")

    device: str = _option("auto", "where to train", ("auto", "cpu", "cuda"))
    amp: str = _option("none", "mixed precision; float16 with a gradient scaler", AMP)
    channels_last: bool = _option(True, "images and weights as N, H, W, C in memory")
    cudnn_autotune: bool = _option(True, "let cuDNN time its algorithms; GPUs only")
    compile: bool = _option(False, "torch.compile")
    compile_backend: str = _option("inductor", "of torch.compile")
    fused: bool = _option(True, "SGD in one kernel")
    set_to_none: bool = _option(True, "drop gradients rather than fill them with zeros")

    workers: int = _option(0, "decode threads of one rank; 0 for its share of the CPUs")
    on_error: str = _option("raise", "what to do about bad images", ("raise", "skip"))
    order: str = _option("random", "of samples", ("random", "quasi-random"))

    log_every: int = _option(50, "optimiser steps between two lines of progress")
    checkpoint_every: int = _option(0, "optimiser steps between checkpoints; 0: epochs only")
    tensorboard: bool = _option(True, "write TensorBoard scalars to --out")
    log_samples: bool = _option(False, "write which samples each step saw to --out/samples")

    def __post_init__(self) -> None:
        for name in ("width", "epochs", "batch_size", "accumulate", "image_size", "log_every"):
            _check(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("max_steps", "workers", "checkpoint_every", "warmup_epochs", "weight_decay"):
            _check(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        _check(self.lr > 0, "lr", self.lr, "more than 0")
        _check(0 <= self.label_smoothing < 1, "label_smoothing", self.label_smoothing, "0 to 1")
        _check(0 <= self.momentum < 1, "momentum", self.momentum, "0 to 1, not 1 itself")
        if self.nesterov and not self.momentum:
            raise UsageError("nesterov needs momentum", "Give --momentum more than 0.")


def _check(right: bool, name: str, value: object, wanted: str) -> None:
    if not right:
        raise UsageError(f"{name} is {value!r}", f"Give {wanted}.")


_KINDS = {"str": str, "int": int, "float": float, "bool": bool}


class _Parser(argparse.ArgumentParser):
    """The command line. What was not given is absent from its result."""

    def __init__(self) -> None:
        super().__init__(
            description="Trains a ResNet on a dataset of fastdata's.",
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )
        self.add_argument("--config", type=Path, metavar="FILE", help="YAML file of options")
        for one in fields(Config):
            flag, kind = "--" + one.name.replace("_", "-"), _KINDS[str(one.type)]
            about = f"{one.metadata['about']} [{one.default!r}]"
            if kind is bool:
                self.add_argument(flag, action=argparse.BooleanOptionalAction, help=about)
            else:
                choices = one.metadata["choices"]
                metavar = None if choices else one.name.upper()
                self.add_argument(flag, type=kind, choices=choices, metavar=metavar, help=about)

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(message, "--help lists all options.")


def read_yaml(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The options that a file and those it begins from set.

    Args:
        path: The file.
        above: Files that have led to this one.

    Raises:
        UsageError: It cannot be read, begins from itself, or says what cannot be honoured.
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path}: reading it needs PyYAML, which is not installed",
            "pip install 'fastdata-torch[train]'",
        ) from error
    path = path.resolve()
    if path in above:
        raise UsageError(f"{path}: begins from itself", "Take it out of defaults:.")
    try:
        said = yaml.safe_load(path.read_text()) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        where = f", which {above[-1]} begins from" if above else ""
        raise UsageError(f"{path}{where}: {error}", "Name a YAML file.") from error
    if not isinstance(said, dict):
        raise UsageError(f"{path}: not options and their values", "Write lines such as lr: 0.1")
    bases = said.pop("defaults", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list):
        raise UsageError(f"{path}: defaults: {bases!r}", "Name a file, or a list of files.")
    options: dict[str, Any] = {}
    for base in bases:
        options |= read_yaml(path.parent / str(base), (*above, path))
    words = []
    for name, value in said.items():
        flag = str(name).replace("_", "-")
        if isinstance(value, bool) and isinstance(getattr(Config, str(name), None), bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={value}")
    try:
        return options | vars(_Parser().parse_args(words))
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", error.hint) from None


def parse(arguments: Sequence[str] | None) -> Config:
    """The options of a command line, and of the file that it names.

    Raises:
        UsageError: The file or a value is wrong.
    """
    given = vars(_Parser().parse_args(arguments))
    path = given.pop("config", None)
    config = replace(Config(), **({} if path is None else read_yaml(path)) | given)
    if not config.train:
        raise UsageError("nothing to train on", "Give --train DATASET.")
    return config
