"""Speed of a training step on a GPU that loaders feed, and a trace of it.

    python -m fastdata.benchmarks.training imagenet-train-lmdb --tree imagenet/train --out gpu.json

The step alone takes one batch again and again; then `fastdata.DataLoader(device=)` feeds it
RandomResizedCrop(224), flip and Normalize, with several numbers of threads, and torch's loader the
same from the tree that the dataset was packed from, with worker processes. Contenders take turns
within one run. Loaders alone are measured in the same turns, without a step and on the host.
"""

from __future__ import annotations

import gc
import gzip
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import click
import torch
from fastdata.benchmarks.adapters._recipes import MEAN, STD
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.command import Numbers
from fastdata.benchmarks.loading import SIZE, torch_loader
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report

from fastdata import DataLoader, ImageDataset
from fastdata.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop

#: Steps in a trace.
TRACED = 8

Batch = tuple[torch.Tensor, torch.Tensor]


class Training:
    """Training step, and the loaders that feed it.

    Args:
        dataset: A packed dataset.
        tree: Where it was packed from; None to leave out torch's loader.
        device: Where the step runs.
        model: Name of a network of torchvision.
        batch: Images a batch.

    Attributes:
        tree: The tree.
        samples: Number of the dataset's samples.
    """

    def __init__(
        self, dataset: Path, tree: Path | None, device: torch.device, model: str, batch: int
    ) -> None:
        crops = (RandomResizedCrop(SIZE), RandomHorizontalFlip())
        self._plain = ImageDataset(dataset, transform=Compose(crops))
        self._floats = ImageDataset(
            dataset, transform=Compose((*crops, Normalize(MEAN, STD, dtype="bfloat16")))
        )
        self.samples = len(self._plain)
        if self.samples < batch:
            raise click.UsageError(f"{dataset} has {self.samples} samples: use a lower --batch")
        self.tree, self._device, self._batch = tree, device, batch
        classes = len(self._plain.classes)
        network = import_torchvision().models.get_model(model, num_classes=classes)
        self._model = network.to(device)
        self._model.to(memory_format=torch.channels_last)
        self._compiled: Any = torch.compile(self._model) if device.type == "cuda" else self._model
        self._optimiser = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9)
        images = torch.rand(batch, 3, SIZE, SIZE, device=device).bfloat16()
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

    def _loader(self, data: ImageDataset, threads: int, **options: Any) -> Iterable[Batch]:
        return DataLoader(
            data,
            self._batch,
            shuffle=True,
            drop_last=True,
            num_workers=threads,
            persistent_workers=True,
            require_native=True,
            **options,
        )

    def torch_alone(self, workers: int) -> Iterable[Batch]:
        """Return torch's loader over the tree, bytes on the host."""
        pinned = self._device.type == "cuda"
        loader: Iterable[Batch]
        assert self.tree is not None
        loader = torch_loader(self.tree, workers, self._batch, pin_memory=pinned)
        return loader

    def torch(self, workers: int) -> Iterator[Batch]:
        """Yield batches of torch's loader, sent and normalised as its users write it."""
        mean, std = (torch.tensor(v, device=self._device).view(1, 3, 1, 1) for v in (MEAN, STD))
        while True:
            for images, labels in self.torch_alone(workers):
                images = images.to(
                    self._device, non_blocking=True, memory_format=torch.channels_last
                )
                labels = labels.to(self._device, non_blocking=True)
                yield ((images.float() / 255 - mean) / std).bfloat16(), labels

    def verify(self) -> None:
        """Compare a batch on the device with the host's, before anything is timed."""
        options: dict[str, Any] = {"batch_size": self._batch, "num_workers": 2, "seed": 1}
        there, _ = next(iter(DataLoader(self._floats, device=str(self._device), **options)))
        here, _ = next(iter(DataLoader(self._floats, **options)))
        if (there.cpu().float() - here.float()).abs().max() > 2**-6:  # a rounding, below 4
            sys.exit(f"the images on {self._device} are not those of the host: nothing was timed")

    def turn(self, batches: Iterable[Batch], count: int, steps: int) -> tuple[float, float]:
        """Return images a second of some steps, and the share of time spent waiting for batches."""
        stream = self._warm(batches, count)
        waited, begun = 0.0, time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            images, labels = next(stream)
            waited += time.perf_counter() - asked
            self.step(images, labels)
        self._synchronise()
        seconds = time.perf_counter() - begun
        return steps * self._batch / seconds, waited / seconds

    def alone(self, batches: Iterable[Batch], count: int, steps: int) -> tuple[float, float]:
        """Return images a second of a loader without a training step."""
        stream = endless(batches)
        for _ in islice(stream, ahead(count)):
            pass
        begun = time.perf_counter()
        images = sum(len(labels) for _, labels in islice(stream, steps))
        return images / (time.perf_counter() - begun), 1.0

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
        copies' time in which the step was at work. Empty without copies or kernels.
    """
    copies = [e for e in events if e.get("cat") == "gpu_memcpy" and e["args"]["bytes"] > 1 << 20]
    kernels = [e for e in events if e.get("cat") == "kernel"]
    if not copies or not kernels:
        return {}
    theirs = {e["args"]["stream"] for e in copies}
    step = sorted(_span(e) for e in kernels if e["args"]["stream"] not in theirs)
    begun, ended = step[0][0], max(end for _, end in step)
    time_of_copies = sum(e["dur"] for e in copies)
    beside = sum(_covered(step, *_span(copy)) for copy in copies)
    return {
        "busy": _covered(step, begun, ended) / (ended - begun),
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
    training: Training, threads: tuple[int, ...], workers: tuple[int, ...], steps: int, rounds: int
) -> dict[str, Any]:
    """Run all contenders in turn; return images a second and the share of waiting of each."""
    torchs = workers if training.tree is not None else ()
    turns: list[tuple[str, int, Callable[..., Any], Callable[[int], Iterable[Batch]]]]
    turns = [("step", 0, training.turn, training.nothing)]
    turns += [("fastdata", count, training.turn, training.fastdata) for count in threads]
    turns += [("torch", count, training.turn, training.torch) for count in torchs]
    turns += [("fastdata alone", n, training.alone, training.fastdata_alone) for n in threads]
    turns += [("torch alone", n, training.alone, training.torch_alone) for n in torchs]

    def run(count: int, turn: Callable[..., Any], batches: Callable[[int], Iterable[Batch]]) -> Any:
        measured = turn(batches(count), count, steps)
        gc.collect()  # ends its threads, or workers
        return measured

    contenders = {(name, count): partial(run, count, *how) for name, count, *how in turns}
    found: dict[str, dict[str, Any]] = {}
    for (name, count), measured in interleave(contenders, rounds).items():
        found.setdefault(name, {})[str(count)] = measured
    return found


def figures(result: dict[str, Any]) -> list[Figures]:
    """Return the tables of results; shares of the step's speed are computed per round."""
    turns = result["turns"]
    own = [rate for rate, _ in turns["step"]["0"]]
    fed = [["the step alone", "", f"{Spread.of(own):,.0f}", "", ""]]
    alone = []
    for name in ("fastdata", "torch"):
        for count, found in turns.get(name, {}).items():
            rates = [rate for rate, _ in found]
            shares = Spread.of_ratios((100 * rate for rate in rates), own)
            waits = Spread.of([100 * wait for _, wait in found])
            fed.append([name, count, f"{Spread.of(rates):,.0f}", f"{shares:.1f}", f"{waits:.0f}"])
        for count, found in turns.get(f"{name} alone", {}).items():
            rates = [rate for rate, _ in found]
            each = [rate / int(count) for rate in rates]
            alone.append([name, count, f"{Spread.of(rates):,.0f}", f"{Spread.of(each):,.0f}"])
    settings = result["settings"]
    head = ["loader", "threads or workers", "images/s"]
    title = f"{settings['model']}, batches of {settings['batch']}, {settings['device']}"
    return [
        Figures(title, [*head, "% of the step's speed", "waiting, %"], fed),
        Figures("Loaders alone", [*head, "for each of them"], alone),
    ]


@click.command()
@click.argument("dataset", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--tree", type=click.Path(path_type=Path, exists=True, file_okay=False), help="For torch's."
)
@click.option("--device", default="cuda", show_default=True)
@click.option("--model", default="resnet50", show_default=True, help="A name of torchvision.")
@click.option("--threads", type=Numbers(), default="1,2,4,8", show_default=True)
@click.option(
    "--workers", type=Numbers(), default="4,16", show_default=True, help="Of torch's loader."
)
@click.option("--batch", default=256, show_default=True)
@click.option("--steps", default=60, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--about", default="", help="What DATASET is, for the page.")
@click.option("--trace", type=click.Path(path_type=Path), help="Keep a GPU's trace here, .json.gz.")
@out_option
def main(
    dataset: Path,
    tree: Path | None,
    device: str,
    model: str,
    threads: tuple[int, ...],
    workers: tuple[int, ...],
    batch: int,
    steps: int,
    rounds: int,
    about: str,
    trace: Path | None,
    out_path: Path | None,
) -> None:
    """Measure a training step that loaders feed from DATASET."""
    where = torch.device(device)
    training = Training(dataset, tree, where, model, batch)
    training.verify()
    runs_on = machine()
    shown: dict[str, float] = {}
    if where.type == "cuda":
        runs_on["gpu"] = torch.cuda.get_device_name(where)
        with tempfile.TemporaryDirectory() as folder:
            path = trace or Path(folder) / "trace.json.gz"
            most = max(threads)
            shown = training.trace(training.fastdata(most), most, path)
    result = {
        "benchmark": "training",
        "machine": runs_on,
        "about": about,
        "settings": {
            "device": device,
            "model": model,
            "batch": batch,
            "steps": steps,
            "samples": training.samples,
        },
        "trace": shown,
        "turns": measure(training, threads, workers, steps, rounds),
    }
    report(result, out_path, *figures(result))
    for name, value in shown.items():
        print(f"trace, {name}: {value:.3f}")


if __name__ == "__main__":
    main()
