"""Speed of a training step on a GPU that loaders feed, and a trace of it.

    python -m fastdata.benchmarks.training imagenet-train-lmdb --tree imagenet/train --out gpu.json

The step alone takes one batch again and again; then `fastdata.DataLoader(device=)` feeds it random
crops and flips, augmented in a recipe, with several numbers of threads. Beside it: DALI on the same
dataset; nvImageCodec, torchvision's CUDA decoder and torch's loader on the tree that the dataset
was packed from. Contenders take turns within one run, each for a window of some seconds. Loaders
alone are measured in the same turns, without a step and on the host. Figures are kept after each
model; libraries that are not installed are named.
"""

from __future__ import annotations

import gc
import gzip
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from fastdata.benchmarks.adapters._recipes import MEAN, RECIPES, STD, crop, pipeline
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.command import Numbers
from fastdata.benchmarks.gpu_decoders import DECODERS, Decoded, installed
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    cpu_seconds,
    each_round,
    machine,
    out_option,
    save,
)

import fastdata
from fastdata import DataLoader, ImageDataset

#: Steps in a trace.
TRACED = 8

Batch = tuple[torch.Tensor, torch.Tensor]


class Window(NamedTuple):
    """What a contender did in a window of time.

    Attributes:
        images: Images that were trained with, or loaded.
        seconds: Its length.
        waited: Seconds for which the training thread waited for batches.
        cpu: CPU seconds of all processes; None if not measured.
    """

    images: int
    seconds: float
    waited: float
    cpu: float | None

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds


class Workload(NamedTuple):
    """A network and its recipe.

    Attributes:
        title: For tables.
        network: Name of a network of torchvision, or "vit_tiny".
        recipe: One of `RECIPES`.
    """

    title: str
    network: str
    recipe: str = "none"

    @property
    def size(self) -> int:
        """Side of its crops."""
        return RECIPES[self.recipe].size

    def make(self, classes: int) -> torch.nn.Module:
        """Return the network."""
        models: Any = import_torchvision().models
        if self.network != "vit_tiny":
            found: torch.nn.Module = models.get_model(self.network, num_classes=classes)
            return found
        return models.VisionTransformer(  # type: ignore[no-any-return]
            self.size, 16, 12, 3, hidden_dim=192, mlp_dim=768, num_classes=classes
        )


WORKLOADS = {
    "resnet18": Workload("ResNet-18", "resnet18"),
    "resnet50": Workload("ResNet-50", "resnet50"),
    "vit_tiny": Workload("ViT-tiny", "vit_tiny"),
    "resnet50-trivialaugment": Workload(
        "ResNet-50, TrivialAugmentWide and RandomErasing", "resnet50", "trivialaugment"
    ),
}


#: Those that feed the step beside fastdata.
LIBRARIES = ("DALI", *DECODERS, "torch")


class Training:
    """Training step, and the loaders that feed it.

    Args:
        dataset: A packed dataset.
        tree: Where it was packed from; None to leave out torch's loader.
        device: Where the step runs.
        workload: The network and its recipe.
        batch: Images a batch.

    Attributes:
        tree: The tree.
        workload: The network and its recipe.
        samples: Number of the dataset's samples.
    """

    def __init__(
        self, dataset: Path, tree: Path | None, device: torch.device, workload: Workload, batch: int
    ) -> None:
        self.workload = workload
        tv, recipe, size = fastdata.transforms, RECIPES[workload.recipe], workload.size
        steps = [*crop(tv, "train", size), *recipe.steps(tv)]
        floats = [*steps, tv.Normalize(MEAN, STD, dtype="bfloat16"), *recipe.last(tv)]
        self._plain = ImageDataset(dataset, transform=tv.Compose((*steps,)))
        self._floats = ImageDataset(dataset, transform=tv.Compose((*floats,)))
        self.samples = len(self._plain)
        if self.samples < batch:
            raise click.UsageError(f"{dataset} has {self.samples} samples: use a lower --batch")
        self.tree, self._device, self._batch = tree, device, batch
        classes = len(self._plain.classes)
        network: Any = workload.make(classes)
        self._model = network.to(device)
        self._model.to(memory_format=torch.channels_last)
        self._compiled: Any = torch.compile(self._model) if device.type == "cuda" else self._model
        self._optimiser = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9)
        images = torch.rand(batch, 3, size, size, device=device).bfloat16()
        images = images.contiguous(memory_format=torch.channels_last)
        self._same = images, torch.randint(0, classes, (batch,), device=device)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Run forward, backward and SGD."""
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._compiled(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def nothing(self, threads: int) -> Iterable[Batch]:
        """Repeat one batch."""
        return repeat(self._same)

    def fastdata(self, threads: int) -> Iterable[Batch]:
        """Return fastdata's loader, to the device."""
        return self._loader(self._floats, threads, device=str(self._device))

    def fastdata_alone(self, threads: int) -> Iterable[Batch]:
        """Return fastdata's loader, bytes on the host."""
        return self._loader(self._plain, threads)

    def _loader(
        self, data: ImageDataset, threads: int, kind: Any = DataLoader, **options: Any
    ) -> Iterable[Batch]:
        if kind is DataLoader:
            options["require_native"] = True
        loader: Iterable[Batch] = kind(
            data,
            self._batch,
            shuffle=True,
            drop_last=True,
            num_workers=threads,
            persistent_workers=True,
            **options,
        )
        return loader

    def dali(self, threads: int) -> Iterable[Batch]:
        """Return DALI's batches of the same crops, on the device."""
        from fastdata.dali import DALILoader

        return self._loader(self._floats, threads, DALILoader, device=str(self._device))

    def decoded(self, name: str, threads: int) -> Iterable[Batch]:
        """Return batches that a library of `DECODERS` decodes on the device."""
        assert self.tree is not None
        decode = DECODERS[name].make(self._device, threads)
        about = self._device, threads, self._batch
        transform = self._torchvisions(to_tensor=True)
        return Decoded(self.tree, decode, lambda image: transform(image).bfloat16(), *about)

    def missing(self) -> dict[str, str]:
        """Return why libraries cannot take part, by their names."""
        found = {name: one.lacks(self._device) for name, one in DECODERS.items()}
        if self.tree is None:
            found |= dict.fromkeys(["torch", *DECODERS], "needs --tree")
        if not installed("nvidia.dali"):
            found["DALI"] = "not installed"
        elif self.workload.recipe != "none":
            found["DALI"] = "fastdata.dali has no augmentations"
        return {name: why for name, why in found.items() if why}

    def _torchvisions(self, to_tensor: bool) -> Any:
        """Return the transform in torchvision's classes; without ``to_tensor``, of PIL images."""
        import_torchvision()
        tv: Any = importlib.import_module("torchvision.transforms.v2")
        geometry = crop(tv, "train", self.workload.size)
        if to_tensor:
            return pipeline(tv, self.workload.recipe, geometry)
        steps = RECIPES[self.workload.recipe].steps(tv)
        return tv.Compose([*geometry, *steps, tv.PILToTensor()])

    def torch_alone(self, workers: int) -> Iterable[Batch]:
        """Return torch's loader over the tree, bytes on the host."""
        assert self.tree is not None
        images = import_torchvision().datasets.ImageFolder(
            str(self.tree), self._torchvisions(to_tensor=False), is_valid_file=lambda path: True
        )
        return torch.utils.data.DataLoader(
            images,
            self._batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=True,
            pin_memory=self._device.type == "cuda",
        )

    def torch(self, workers: int) -> Iterator[Batch]:
        """Yield batches of torch's loader, sent and normalised as its users write it."""
        mean, std = (torch.tensor(v, device=self._device).view(1, 3, 1, 1) for v in (MEAN, STD))
        tv: Any = importlib.import_module("torchvision.transforms.v2")
        erasing = tv.Compose([tv.Identity(), *RECIPES[self.workload.recipe].last(tv)])
        while True:
            for images, labels in self.torch_alone(workers):
                images = images.to(
                    self._device, non_blocking=True, memory_format=torch.channels_last
                )
                labels = labels.to(self._device, non_blocking=True)
                yield erasing(((images.float() / 255 - mean) / std).bfloat16()), labels

    def verify(self) -> None:
        """Compare a batch on the device with the host's, before anything is timed."""
        options: dict[str, Any] = {"batch_size": self._batch, "num_workers": 2, "seed": 1}
        there, _ = next(iter(DataLoader(self._floats, device=str(self._device), **options)))
        here, _ = next(iter(DataLoader(self._floats, **options)))
        if (there.cpu().float() - here.float()).abs().max() > 2**-6:  # a rounding, below 4
            sys.exit(f"the images on {self._device} are not those of the host: nothing was timed")

    def turn(self, batches: Iterable[Batch], count: int, seconds: float) -> Window:
        """Train for some seconds; what the GPU still has to do then belongs to the window."""
        return self._window(self._warm(batches, count), seconds, self.step)

    def alone(self, batches: Iterable[Batch], count: int, seconds: float) -> Window:
        """Load for some seconds, without a training step."""
        stream = endless(batches)
        for _ in islice(stream, ahead(count)):
            pass
        return self._window(stream, seconds, lambda images, labels: None)

    def _window(
        self, stream: Iterator[Batch], seconds: float, use: Callable[[Any, Any], None]
    ) -> Window:
        images, waited, cpu, begun = 0, 0.0, cpu_seconds(), time.perf_counter()
        asked = begun
        while not images or asked - begun < seconds:
            pixels, labels = next(stream)
            waited += time.perf_counter() - asked
            use(pixels, labels)
            images += len(labels)
            asked = time.perf_counter()
        self._synchronise()
        ended = time.perf_counter()
        return Window(images, ended - begun, waited, cpu_seconds() - cpu)

    def trace(self, batches: Iterable[Batch], count: int, path: Path) -> dict[str, float]:
        """Record some steps with torch's profiler, as a trace for Chrome or Perfetto."""
        stream = self._warm(batches, count)
        with torch.profiler.profile() as recorder:
            for images, labels in islice(stream, TRACED):
                self.step(images, labels)
            self._synchronise()
        recorder.export_chrome_trace(str(path))
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            return of_trace(json.load(file)["traceEvents"])

    def _warm(self, batches: Iterable[Batch], count: int) -> Iterator[Batch]:
        """Return an endless stream of batches, after steps with the prefetched ones."""
        stream = endless(batches)
        for images, labels in islice(stream, ahead(count)):
            self.step(images, labels)
        self._synchronise()
        return stream

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield epoch after epoch."""
    while True:
        yield from batches


def ahead(count: int) -> int:
    """Return the number of batches to skip: each worker has two ready when the first arrives."""
    return 2 * count + 2


def of_trace(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of feeding in torch.profiler's Chrome trace.

    Returns:
        busy: Share of the time in which the step's stream had work on the GPU; copy_gb_s: speed of
        copying images; copy_share: time of the copies by that of the steps; beside: share of the
        copies' time in which the step was at work. Empty without kernels; of a step without
        copies, ``busy`` alone.
    """
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and e["args"]["bytes"] > 1 << 20]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    if not kernels:
        return {}
    theirs = {e["args"]["stream"] for e in copies}
    step = sorted(_span(e) for e in kernels if e["args"]["stream"] not in theirs)
    begun, ended = step[0][0], max(end for _, end in step)
    busy = {"busy": _covered(step, begun, ended) / (ended - begun)}
    if not copies:
        return busy
    time_of_copies = sum(e["dur"] for e in copies)
    beside = sum(_covered(step, *_span(copy)) for copy in copies)
    return {
        **busy,
        "copy_gb_s": sum(e["args"]["bytes"] for e in copies) / time_of_copies / 1e3,
        "copy_share": time_of_copies / (ended - begun),
        "beside": beside / time_of_copies,
    }


def _span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def _covered(spans: list[tuple[float, float]], begun: float, ended: float) -> float:
    """Return the time from ``begun`` to ``ended`` that sorted spans cover."""
    covered, until = 0.0, begun
    for start, end in spans:
        start, end = max(start, until), min(end, ended)
        if end > start:
            covered, until = covered + end - start, end
    return covered


def measure(
    training: Training,
    threads: tuple[int, ...],
    workers: tuple[int, ...],
    seconds: float,
    rounds: int,
) -> Iterator[tuple[dict[str, dict[str, list[Window]]], dict[str, str]]]:
    """Run all contenders in turn.

    Yields:
        After each round, the windows of each contender so far, by its number of threads; and why
        others are missing, by their names.
    """
    missing = training.missing()
    turns: list[tuple[str, int, Callable[..., Any], Callable[[int], Iterable[Batch]]]]
    turns = [("step", 0, training.turn, training.nothing)]
    turns += [("fastdata", count, training.turn, training.fastdata) for count in threads]
    if "DALI" not in missing:
        turns += [("DALI", count, training.turn, training.dali) for count in threads]
    for name in (name for name in DECODERS if name not in missing):
        turns += [(name, n, training.turn, partial(training.decoded, name)) for n in threads]
    turns += [("fastdata alone", n, training.alone, training.fastdata_alone) for n in threads]
    if "torch" not in missing:
        turns += [("torch", count, training.turn, training.torch) for count in workers]
        turns += [("torch alone", n, training.alone, training.torch_alone) for n in workers]

    def run(
        name: str,
        count: int,
        turn: Callable[..., Any],
        batches: Callable[[int], Iterable[Batch]],
    ) -> Window | None:
        if name in missing:
            return None
        try:
            measured: Window = turn(batches(count), count, seconds)
        except Exception as error:
            if name not in ("DALI", *DECODERS):
                raise
            # A file that another library does not decode must not end a campaign of hours.
            missing[name] = f"failed: {(str(error).splitlines() or [type(error).__name__])[0]}"
            return None
        finally:
            gc.collect()  # ends its threads, or workers
        return measured

    contenders = {(name, n): partial(run, name, n, *how) for name, n, *how in turns}
    for results in each_round(contenders, rounds):
        found: dict[str, dict[str, Any]] = {}
        for (name, count), measured in results.items():
            if name not in missing:
                found.setdefault(name, {})[str(count)] = measured
        yield found, missing


def windows(found: list[Any]) -> list[Window]:
    """Return the windows of a contender as they were, also from JSON."""
    return [Window(*one) for one in found]


_FED = [
    "loader",
    "threads or workers",
    "images/s",
    "% of the step's speed",
    "waiting, %",
    "CPU ms an image",
]


def figures(workload: dict[str, Any]) -> list[Figures]:
    """Return a workload's tables: of the fed step, and of loaders alone.

    Shares of the step's speed are computed per round.
    """
    turns = {
        name: {count: windows(found) for count, found in counts.items()}
        for name, counts in workload["turns"].items()
    }
    own = [window.rate for window in turns.pop("step")["0"]]
    idle = workload["traces"].get("step", {}).get("busy")
    said = "" if idle is None else f", the GPU idle {1 - idle:.1%} of the time"
    fed = [[f"the step alone{said}", "", f"{Spread.of(own):,.0f}", "", "", ""]]
    alone = []
    for name, counts in turns.items():
        for count, found in counts.items():
            rates = [window.rate for window in found]
            row = [name.removesuffix(" alone"), count, f"{Spread.of(rates):,.0f}"]
            if name.endswith(" alone"):
                each = Spread.of([rate / int(count) for rate in rates])
                alone.append([*row, f"{each:,.0f}", _cpu(found)])
                continue
            shares = Spread.of_ratios((100 * rate for rate in rates), own)
            waits = Spread.of([100 * window.waited / window.seconds for window in found])
            fed.append([*row, f"{shares:.1f}", f"{waits:.0f}", _cpu(found)])
    head = [*_FED[:3], "for each of them", _FED[-1]]
    return [
        Figures(workload["title"], _FED, fed),
        Figures(f"{workload['title']}: loaders alone", head, alone),
    ]


def _cpu(found: list[Window]) -> str:
    times = [1000 * one.cpu / one.images for one in found if one.cpu is not None]
    return f"{Spread.of(times):.2f}" if times else ""


def commit() -> str:
    """Return the commit of the checkout that runs, "+" after it if files differ."""
    git = ["git", "-C", str(Path(__file__).resolve().parent)]
    try:
        found = subprocess.run(
            [*git, "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            capture_output=True,
            check=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


class Names(click.ParamType):  # type: ignore[type-arg]
    """Names of workloads, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """See `click.ParamType`."""
        found = tuple(value.split(","))
        for unknown in set(found) - WORKLOADS.keys():
            self.fail(f"{unknown!r} is none of {', '.join(WORKLOADS)}", param, ctx)
        return found


def traced(training: Training, most: int, folder: Path) -> dict[str, dict[str, float]]:
    """Return the figures of a trace of the step alone, and of one that is fed."""
    found = {}
    for name, batches in (("step", training.nothing), ("fastdata", training.fastdata)):
        found[name] = training.trace(batches(most), most, folder / f"{name}.json.gz")
    return found


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--tree", type=click.Path(path_type=Path, exists=True, file_okay=False), help="For torch's."
)
@click.option("--device", default="cuda", show_default=True)
@click.option("--models", type=Names(), default=",".join(WORKLOADS), show_default=True)
@click.option("--threads", type=Numbers(), default="1,2,4,8,16", show_default=True)
@click.option(
    "--workers", type=Numbers(), default="4,16", show_default=True, help="Of torch's loader."
)
@click.option("--batch", default=256, show_default=True)
@click.option("--seconds", default=60.0, show_default=True, help="Of each window.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--about", default="", help="What DATASET is, for the page.")
@click.option("--traces", type=click.Path(path_type=Path), help="Keep a GPU's traces here.")
@out_option
def main(
    dataset: Path,
    tree: Path | None,
    device: str,
    models: tuple[str, ...],
    threads: tuple[int, ...],
    workers: tuple[int, ...],
    batch: int,
    seconds: float,
    rounds: int,
    about: str,
    traces: Path | None,
    out_path: Path | None,
) -> None:
    """Measure a training step that loaders feed from DATASET."""
    where = torch.device(device)
    result: dict[str, Any] = {
        "benchmark": "training",
        "machine": machine(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "about": about,
        "settings": {"device": device, "batch": batch, "seconds": seconds, "rounds": rounds},
        "workloads": {},
    }
    if where.type == "cuda":
        result["machine"]["gpu"] = torch.cuda.get_device_name(where)
    for name in models:
        training = Training(dataset, tree, where, WORKLOADS[name], batch)
        training.verify()
        shown: dict[str, dict[str, float]] = {}
        if where.type == "cuda":
            with tempfile.TemporaryDirectory() as temporary:
                kept = Path(temporary) if traces is None else traces / name
                kept.mkdir(parents=True, exist_ok=True)
                shown = traced(training, max(threads), kept)
        result["settings"]["samples"] = training.samples
        found: dict[str, Any] = {"title": training.workload.title, "traces": shown}
        for turns, missing in measure(training, threads, workers, seconds, rounds):
            found |= {"missing": missing, "turns": turns}
            result["workloads"][name] = found
            save(result, out_path)  # a campaign takes hours
        for table in figures(found):
            table.show()
        for library, why in found["missing"].items():
            click.echo(f"not measured: {library} ({why})")


if __name__ == "__main__":
    main()
