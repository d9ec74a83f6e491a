"""A run from start, or from a checkpoint, to its end."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from fastdata.examples.training import checkpoint, data, schedule, setup
from fastdata.examples.training.config import Config
from fastdata.examples.training.evaluate import Score, evaluate
from fastdata.examples.training.ranks import Ranks
from fastdata.examples.training.reports import Meter, SampleLog, open_board
from fastdata.examples.training.step import Stepper, weights

from fastdata.errors import UsageError
from fastdata.profile import StepTimer

#: What a checkpoint's run and one that goes on from it must have in common.
_SHARED = ("model", "width", "bias_before_norm", "decay_norm_and_bias", "on_error")

#: What a finished run says of itself.
_SUMMARY = "summary.json"


class Trainer:
    """Everything of one rank.

    Args:
        config: The options.
        ranks: This rank among the others.

    Raises:
        FastdataError: An option or a dataset is wrong.
    """

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config = config
        self.ranks = ranks
        self.out = Path(config.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.data = data.training(config, ranks)
        self.validation = data.validation(config, ranks) if config.val else None
        classes = self.data.dataset.classes
        if self.validation is not None and self.validation.dataset.classes != classes:
            raise UsageError(
                f"{config.train} and {config.val} have not the same classes",
                "Pack both from the same source.",
            )
        self.model = setup.make_model(config, ranks, len(classes))
        self.timer = StepTimer(every=0)  # our lines say the same, and more
        self.stepper = Stepper(config, ranks, self.model, self.timer)
        self.epoch_steps = math.ceil(len(self.data.epoch) / config.accumulate)
        self.step = 0
        self.best: float | None = None
        self.board: Any = None
        self.samples: SampleLog | None = None
        self.about = {name: getattr(config, name) for name in _SHARED} | {"classes": len(classes)}
        state = checkpoint.find(config.resume, self.out, self.about)
        self.resumed = state is not None
        if state is not None:
            self._go_on_from(state)
        self._set_rate(self.data.loader.state_dict()["epoch"])
        steps = ranks.gather(self.step)
        if len(set(steps)) > 1:
            raise UsageError(
                f"the ranks have found checkpoints of different steps: {steps}",
                "Put --out on a disk that all nodes share.",
            )

    def _go_on_from(self, state: dict[str, Any]) -> None:
        """Takes over what a checkpoint holds; options stay those of this run."""
        self.model.load_state_dict(state["model"])
        optimiser = self.stepper.optimiser
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict(state["optimiser"] | {"param_groups": groups})
        self.stepper.scaler.load_state_dict(state["scaler"])
        self.step, self.best = state["step"], state["best"]
        # One state fits all ranks, also when there are more or fewer of them now, unless bad
        # samples are skipped: then each rank has skipped its own.
        loaders = state["loaders"]
        same = len(loaders) == self.ranks.world_size
        self.data.loader.load_state_dict(loaders[self.ranks.rank if same else 0])

    def _set_rate(self, epoch: int, left: int | None = None) -> None:
        """Sets the learning rate of the next step: by epochs, whatever their steps were before.

        Args:
            epoch: The epoch.
            left: Steps that are left of it; None to ask the loader.
        """
        config = self.config
        if left is None:
            left = math.ceil(len(self.data.remaining()) / config.accumulate)
        images = config.batch_size * config.accumulate * self.ranks.world_size
        rate = schedule.scaled(config.lr, config.lr_scaling, images) * schedule.factor(
            (epoch + 1) * self.epoch_steps - left,
            steps=config.epochs * self.epoch_steps,
            warmup=round(config.warmup_epochs * self.epoch_steps),
            decay=config.decay,
        )
        for group in self.stepper.optimiser.param_groups:
            group["lr"] = rate

    def save(self, name: str = checkpoint.NAME) -> None:
        """Writes a checkpoint; every rank must take part, the first one writes."""
        loaders = self.ranks.gather(self.data.loader.state_dict())
        if self.ranks.first:
            state = {
                "model": self.model.state_dict(),
                "optimiser": self.stepper.optimiser.state_dict(),
                "scaler": self.stepper.scaler.state_dict(),
                "loaders": loaders,
                "step": self.step,
                "best": self.best,
                "about": self.about,
            }
            checkpoint.save(state, self.out / name)

    def run(self) -> dict[str, Any]:
        """Trains to the end.

        Returns:
            What summary.json holds.
        """
        written = self.out / _SUMMARY
        epoch = self.data.loader.state_dict()["epoch"]
        done = epoch >= self.config.epochs or self._enough()
        if self.resumed and done and written.exists():
            self._say(f"nothing is left to train: {written} is of the run that did")
            found: dict[str, Any] = json.loads(written.read_text())
            return found
        with ExitStack() as stack:
            if self.config.tensorboard and self.ranks.first:
                board = open_board(self.out / "tensorboard", self.step)
                self.board = stack.enter_context(closing(board))
            if self.config.log_samples:
                log = SampleLog(self.out, self.ranks.rank, self.step, self.resumed)
                self.samples = stack.enter_context(closing(log))
            return self._run()

    def _run(self) -> dict[str, Any]:
        score: Score | None = None
        last: dict[str, float] = {}
        epoch = self.data.loader.state_dict()["epoch"]
        while epoch < self.config.epochs and not self._enough():
            scalars, ended = self._train(epoch)
            last = scalars or last
            if not ended:
                self.save()
                break
            if self.validation is not None:
                score = self._validate(epoch)
                if self.best is None or score.top1 > self.best:
                    self.best = score.top1
                    self.save(checkpoint.BEST_NAME)
            epoch += 1
            self.save()
        return self._summary(epoch, last, score)

    def _enough(self) -> bool:
        return 0 < self.config.max_steps <= self.step

    def _train(self, epoch: int) -> tuple[dict[str, float], bool]:
        """One epoch, or what is left of it.

        Returns:
            The scalars that were reported last, and whether the epoch has ended: --max-steps may
            end the run before.
        """
        self.data.loader.set_epoch(epoch)
        remaining = self.data.remaining()
        end = self.step + math.ceil(len(remaining) / self.config.accumulate)  # on every rank
        places = weights(remaining, self.config.accumulate)
        meter = Meter(self.ranks, self.timer)
        last: dict[str, float] = {}
        unreported = False
        for numbers in self.stepper.epoch(self.timer.batches(self.data.loader), places):
            if self.samples is not None:
                seen = [number for batch in numbers for number in batch.tolist()]
                self.samples.add(epoch, self.step, seen)
            self.step += 1
            self._set_rate(epoch, end - self.step)
            unreported = True
            if self.step % self.config.log_every == 0:
                last, unreported = self._report(epoch, meter), False
            every = self.config.checkpoint_every
            if every and self.step % every == 0:
                self.save()
            if self._enough() and self.step < end:  # else the loader ends its epoch, too
                break
        return self._report(epoch, meter) if unreported else last, self.step >= end

    def _report(self, epoch: int, meter: Meter) -> dict[str, float]:
        rate = float(self.stepper.optimiser.param_groups[0]["lr"])
        scalars = meter.look(self.stepper.take_sums()) | {"lr": rate}
        self._show("train", scalars)
        self._say(
            "epoch {} step {}: loss {loss:.3f}, top-1 {top1:.1%}, {images_per_second:,.0f} "
            "images/s, waiting {wait_share:.1%}".format(epoch, self.step, **scalars)
        )
        return scalars

    def _validate(self, epoch: int) -> Score:
        assert self.validation is not None
        autocast = setup.autocast(self.config, self.ranks.device)
        # Running means differ a little from rank to rank; the first one's are those that are saved.
        self.ranks.share(self.model.buffers())
        score = evaluate(self.model, data.counted(self.validation), self.ranks, autocast)
        self._show("val", {"loss": score.loss, "top1": score.top1, "top5": score.top5})
        self._say(
            f"epoch {epoch} validated: loss {score.loss:.3f}, top-1 {score.top1:.2%}, "
            f"top-5 {score.top5:.2%} of {score.samples:,}"
        )
        return score

    def _summary(self, epoch: int, last: dict[str, float], score: Score | None) -> dict[str, Any]:
        summary = {
            "epochs": epoch,
            "steps": self.step,
            "world_size": self.ranks.world_size,
            "device": str(self.ranks.device),
            "train": last,
            "val": None if score is None else score._asdict(),
            "best_top1": self.best,
            "phases_s": dict(self.timer.totals()),
            "torch": torch.__version__,
            "config": asdict(self.config),
        }
        if self.ranks.first:
            (self.out / _SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
        return summary

    def _show(self, group: str, values: dict[str, float]) -> None:
        """Adds scalars to TensorBoard, where there is one."""
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(f"{group}/{name}", value, self.step)

    def _say(self, line: str) -> None:
        if self.ranks.first:
            print(line, flush=True)
