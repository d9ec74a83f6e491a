"""Train a ResNet on datasets that ``fastdata convert`` packed; copy this file and change it.

    torchrun --nproc-per-node 8 train_imagenet.py --train DATASET --val DATASET --out run/mine

It saves a checkpoint after each epoch, every --save-every steps, and at SIGTERM. The same
command resumes from it, also in the middle of an epoch, and ends with the same weights.
"""

import argparse
import json
import os
import signal
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchvision.models import get_model
from torchvision.transforms import v2

from fastdata import DataLoader, ImageDataset
from fastdata import transforms as t


@dataclass
class Config:
    """Flags of the command line. The defaults follow torchvision's ResNet-50, 8 x 128 images."""

    train: str = ""  # dataset
    val: str = ""  # dataset to validate on after each epoch
    out: str = "run/train"  # folder of the checkpoint, on a disk that all ranks share
    model: str = "resnet50"  # of torchvision.models
    epochs: int = 150
    batch_size: int = 128  # of one rank
    lr: float = 0.5  # the highest; not scaled by the batch size
    warmup: float = 5.0  # epochs; the rate then falls as a cosine
    weight_decay: float = 2e-5  # not of norms and biases
    label_smoothing: float = 0.1
    mixup: float = 0.2  # alpha; each batch takes MixUp or CutMix
    cutmix: float = 1.0
    erasing: float = 0.1
    size: int = 176  # of crops in training
    val_resize: int = 232
    val_size: int = 224
    ema_decay: float = 0.9989  # of the average of weights, which is validated; 0 for the last
    ema_every: int = 32  # steps
    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    dtype: str = "bfloat16"  # of images and mixed precision; float32 for none
    seed: int = 0
    save_every: int = 1000  # steps; each save prints a line, too


def make_loaders(c: Config) -> tuple[Any, Any]:
    """Return the loaders of training and validation: this rank's share, on its device."""
    norm = t.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), dtype=c.dtype)
    augment = (t.RandomResizedCrop(c.size), t.RandomHorizontalFlip(), t.TrivialAugmentWide())
    data = ImageDataset(c.train, t.Compose((*augment, norm, t.RandomErasing(c.erasing))))
    val = ImageDataset(c.val, t.Compose((t.Resize(c.val_resize), t.CenterCrop(c.val_size), norm)))
    if val.classes != data.classes:
        raise SystemExit(f"{c.train} and {c.val} have different classes: pack both from one source")
    mixup = v2.MixUp(alpha=c.mixup, num_classes=len(data.classes))
    cutmix = v2.CutMix(alpha=c.cutmix, num_classes=len(data.classes))
    mix: Any = {"batch_transform": v2.RandomChoice([mixup, cutmix]), "drop_last": True}
    both: Any = {"num_workers": "auto", "persistent_workers": True, "require_native": True}
    both |= {"batch_size": c.batch_size, "shard": "auto", "device": c.device, "seed": c.seed}
    return DataLoader(data, shuffle=True, **mix, **both), DataLoader(val, **both)


class Trainer:
    """One rank of a run; resumes from the checkpoint in its folder, if there is one."""

    def __init__(self, c: Config) -> None:
        self.c, self.rank, self.ranks = c, dist.get_rank(), dist.get_world_size()
        self.data, self.val_data = make_loaders(c)
        torch.manual_seed(c.seed)
        self.model: Any = get_model(c.model, num_classes=len(self.data.dataset.classes))
        self.model.to(c.device, memory_format=torch.channels_last)
        average = get_ema_multi_avg_fn(c.ema_decay)  # type: ignore[no-untyped-call]
        self.ema = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True).eval()
        norms = [one for one in self.model.parameters() if one.ndim < 2]
        weights = [one for one in self.model.parameters() if one.ndim > 1]
        groups: Any = [{"params": norms}, {"params": weights, "weight_decay": c.weight_decay}]
        self.optimizer = torch.optim.SGD(groups, c.lr, momentum=0.9)
        steps, share = c.epochs * len(self.data), c.warmup / c.epochs
        self.rate = OneCycleLR(self.optimizer, c.lr, steps, None, None, share, "cos", False)
        # Each rank has its own running means; training uses none, validation the first rank's.
        self.wrapped = DistributedDataParallel(self.model, broadcast_buffers=False)
        self.parts: dict[str, Any] = {"model": self.model, "ema": self.ema, "rate": self.rate}
        self.parts |= {"optimizer": self.optimizer, "data": self.data}
        self.step, self.validated, self.told, self.losses = 0, True, False, list[torch.Tensor]()
        self.options = asdict(c) | {"ranks": self.ranks, "train": "", "val": "", "out": ""}
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "told", True))
        if os.path.exists(f"{c.out}/checkpoint.pt"):
            state = torch.load(f"{c.out}/checkpoint.pt", c.device, weights_only=True)
            if state["options"] != self.options:
                raise SystemExit(f"{c.out}: give its options or another --out: {state['options']}")
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            self.step, self.validated = state["step"], state["validated"]
            self.log("resumed")

    def stopped(self) -> bool:
        """Return whether any rank had SIGTERM: all of them stop after the same batch."""
        told = torch.tensor(float(self.told))
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told)

    def log(self, kind: str, **values: float) -> None:
        """Print a line of JSON on the first rank."""
        if self.rank == 0:
            print(json.dumps({"kind": kind, "step": self.step} | values), flush=True)

    def save(self) -> None:
        """Replace the checkpoint as a whole: a run that is killed meanwhile keeps the old one."""
        loss = torch.stack(self.losses).mean() / self.ranks
        dist.all_reduce(loss)
        self.losses.clear()
        self.log("train", loss=loss.item(), lr=float(self.rate.get_last_lr()[0]))
        if not loss.isfinite():
            raise SystemExit(f"step {self.step}: the loss is {loss}; start over with a lower --lr")
        state = {name: part.state_dict() for name, part in self.parts.items()}
        state |= {"step": self.step, "validated": self.validated, "options": self.options}
        if self.rank == 0:
            os.makedirs(self.c.out, exist_ok=True)
            with open(f"{self.c.out}/checkpoint.partial", "wb") as file:
                torch.save(state, file)
                os.fsync(file.fileno())
            os.replace(file.name, f"{self.c.out}/checkpoint.pt")

    def train(self) -> bool:
        """Train the rest of an epoch, and save; return whether SIGTERM stopped it."""
        c, stopped, left = self.c, False, len(batches := iter(self.data))
        for images, labels in batches:
            # Dropout depends on the step alone, so a resumed run has the same.
            torch.manual_seed((c.seed << 32) + self.step * self.ranks + self.rank)
            with torch.autocast(c.device, torch.bfloat16, c.dtype == "bfloat16"):
                logits = self.wrapped(images.contiguous(memory_format=torch.channels_last))
                loss = cross_entropy(logits, labels, label_smoothing=c.label_smoothing)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.rate.step()
            self.losses.append(loss.detach())
            self.step, left, stopped = self.step + 1, left - 1, self.stopped()
            if self.step % c.ema_every == 0:
                self.ema.update_parameters(self.model)
            if left and (stopped or self.step % c.save_every == 0):
                self.save()
            if left and stopped:
                return True
        # Save before validating, which may fail or be stopped: a resumed run begins with it.
        self.validated = False
        self.save()
        return stopped

    @torch.no_grad()
    def validate(self) -> bool:
        """Log the average's scores; return whether SIGTERM stopped it before."""
        c, sums, count = self.c, torch.zeros(2, device=self.c.device), len(self.val_data.dataset)
        for buffer in self.ema.buffers():
            dist.broadcast(buffer, 0)
        for number, (images, labels) in enumerate(self.val_data):
            if self.stopped():
                return True
            with torch.autocast(c.device, torch.bfloat16, c.dtype == "bfloat16"):
                logits = self.ema(images.contiguous(memory_format=torch.channels_last)).float()
            found = [cross_entropy(logits, labels, reduction="none"), logits.argmax(1) == labels]
            # The last images repeat earlier ones, so that ranks have equal batches: count none.
            new = max(0, count - number * self.ranks * c.batch_size - self.rank * len(labels))
            sums += torch.stack([one[:new].sum() for one in found])
        dist.all_reduce(sums)
        self.log("val", loss=sums[0].item() / count, top1=sums[1].item() / count)
        self.validated = True
        return False


def main(words: list[str] | None = None) -> int:
    """Train by the options of a command line; return the exit status."""
    parser, stopped = argparse.ArgumentParser(), False
    for one in fields(Config):
        flag, kind = "--" + one.name.replace("_", "-"), type(one.default)
        parser.add_argument(flag, type=kind, default=one.default, required=one.default == "")
    c = Config(**vars(parser.parse_args(words)))
    if c.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.backends.cudnn.benchmark = True
    dist.init_process_group("cpu:gloo,cuda:nccl" if c.device == "cuda" else "gloo")
    trainer = Trainer(c)
    while not (stopped or (trainer.validated and trainer.data.state_dict()["epoch"] == c.epochs)):
        stopped = trainer.train() if trainer.validated else trainer.validate()
    dist.destroy_process_group()
    return 128 + signal.SIGTERM if stopped else 0


if __name__ == "__main__":
    raise SystemExit(main())
