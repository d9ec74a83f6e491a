"""The rungs of the training ladder: each is one change to all that stands below it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fastdata.errors import UsageError


@dataclass(frozen=True)
class Setting:
    """How one rung trains; goes to its process as JSON.

    Attributes:
        source: "tree" and "lmdb" by torch's DataLoader and Pillow, "fastdata" by fastdata's.
        tree: Folder of class folders.
        lmdb: Dataset of the same images.
        shm: Whether both are read from memory.
        workers: Worker processes, or fastdata's threads, of all training processes together.
        pin: Whether batches are page-locked, and copied without waiting.
        batch: Images a step, of all GPUs together.
        uint8: Whether images go to the device as bytes, and are normalised there.
        set_to_none: Whether gradients are dropped rather than zeroed.
        amp: Mixed precision: bfloat16 where the device has it, else float16.
        channels_last: Layout of images and weights.
        autotune: Whether cuDNN times its algorithms.
        fused: SGD in one kernel.
        compile: torch.compile.
        ddp: DistributedDataParallel, one process a GPU, instead of DataParallel.
        model: Name of the network.
        width: Channels of its first stage.
        size: Side of the crops.
        steps: Measured.
        warmup: Before them.
        device: "cuda" or "cpu".
        out: File for what was measured.
    """

    source: str = "tree"
    tree: str = ""
    lmdb: str = ""
    shm: bool = False
    workers: int = 0
    pin: bool = False
    batch: int = 256
    uint8: bool = False
    set_to_none: bool = False
    amp: bool = False
    channels_last: bool = False
    autotune: bool = False
    fused: bool = False
    compile: bool = False
    ddp: bool = False
    model: str = "resnet18"
    width: int = 64
    size: int = 224
    steps: int = 300
    warmup: int = 10
    device: str = "cuda"
    out: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Rung:
    """One change.

    Attributes:
        name: What options and tables call it.
        change: What it is, in words.
        changes: Fields of `Setting`; "workers" and "batch" are taken from `Machine`.
        needs_gpu: Whether there is nothing to change without one.
    """

    name: str
    change: str
    changes: dict[str, Any] = field(default_factory=dict)
    needs_gpu: bool = False


RUNGS = (
    Rung("baseline", "JPEG folder, torch's DataLoader without workers, float32"),
    Rung("workers", "worker processes", {"workers": None}),
    Rung("pinned", "page-locked batches, copied without waiting", {"pin": True}, needs_gpu=True),
    Rung("batch", "a larger batch", {"batch": None}),
    Rung("uint8", "bytes to the device, normalised there", {"uint8": True}),
    Rung("shm", "images in /dev/shm", {"shm": True}),
    Rung("lmdb", "images in an LMDB", {"source": "lmdb"}),
    Rung("fastdata", "fastdata's DataLoader and DeviceLoader", {"source": "fastdata"}),
    Rung("set_to_none", "gradients dropped, not zeroed", {"set_to_none": True}),
    Rung("amp", "mixed precision", {"amp": True}),
    Rung("channels-last", "channels-last memory", {"channels_last": True}),
    Rung("autotune", "cuDNN's autotuning", {"autotune": True}, needs_gpu=True),
    Rung("fused", "fused SGD", {"fused": True}),
    Rung("compile", "torch.compile", {"compile": True}),
    Rung("ddp", "DistributedDataParallel, a process a GPU", {"ddp": True}),
    Rung("two", "two processes or nodes", {"ddp": True}),
)

#: torchrun on this machine, for so many processes.
TORCHRUN = "{python} -m torch.distributed.run --standalone --nproc-per-node {processes}"


@dataclass(frozen=True)
class Machine:
    """What the ladder stands on.

    Attributes:
        gpus: Number of them that are used; 0 for the CPU.
        workers: What the "workers" rung sets.
        batch: What the "batch" rung sets.
        no_shm: Why there is no room in memory for the images; "" where there is.
        launcher: Command that starts the "two" rung's processes on other nodes too; "" for none.
    """

    gpus: int
    workers: int
    batch: int
    no_shm: str = ""
    launcher: str = ""


@dataclass(frozen=True)
class Planned:
    """A rung of this machine's ladder.

    Attributes:
        rung: Which.
        setting: With all changes below it that this machine can make.
        launcher: Command before ``-m MODULE``; "" for Python itself.
        needs: What it is not measured for; "" if it can be.
    """

    rung: Rung
    setting: Setting
    launcher: str = ""
    needs: str = ""


def check_names(names: Iterable[str]) -> frozenset[str]:
    """Names of rungs.

    Raises:
        UsageError: There is no such rung.
    """
    known = [rung.name for rung in RUNGS]
    for name in (names := list(names)):
        if name not in known:
            raise UsageError(f"no rung is called {name!r}", f"Known are {', '.join(known)}.")
    return frozenset(names)


def plan(base: Setting, machine: Machine, without: Iterable[str] = ()) -> list[Planned]:
    """The ladder as this machine can climb it.

    What a rung that cannot be measured would have changed is not in the rungs above it.

    Args:
        base: Of the lowest rung.
        machine: What there is.
        without: Names of rungs that are left out, with their changes.

    Raises:
        UsageError: There is no such rung.
    """
    left_out = check_names(without)
    planned, setting = [], base
    for rung in RUNGS:
        if rung.name in left_out:
            continue
        needs = _needs(rung, machine)
        changes = {
            name: getattr(machine, name) if value is None else value
            for name, value in rung.changes.items()
        }
        if rung.name == "two" and machine.launcher:
            changes["shm"] = False  # other nodes have not this one's memory
        changed = replace(setting, **changes)
        planned.append(Planned(rung, changed, "" if needs else _launcher(rung, machine), needs))
        if not needs:
            setting = changed
    return planned


def _needs(rung: Rung, machine: Machine) -> str:
    if rung.needs_gpu and not machine.gpus:
        return "needs a GPU"
    if rung.name == "shm":
        return machine.no_shm
    if rung.name == "two" and machine.gpus and not machine.launcher:
        if machine.gpus == 1:
            return "needs a second GPU, or another node (--launcher)"
        return f"needs another node (--launcher): ddp has {machine.gpus} processes"
    return ""


def _launcher(rung: Rung, machine: Machine) -> str:
    if rung.name == "two":
        return machine.launcher or TORCHRUN.replace("{processes}", "2")
    if rung.name == "ddp":
        return TORCHRUN.replace("{processes}", str(max(machine.gpus, 1)))
    return ""
