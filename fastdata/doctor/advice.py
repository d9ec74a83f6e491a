"""Pure functions from measurements to the stage that limits, and advice."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace
from typing import NamedTuple

from fastdata.doctor.findings import Findings
from fastdata.storage.manifest import ELSEWHERE
from fastdata.text import human_share

#: Least gain that is worth advice: measurements scatter.
_WORTH = 1.05
#: The part of the images up to which their encoding matters little.
FEW = 0.02


@dataclass(frozen=True)
class Advice:
    """Piece of advice.

    Attributes:
        code: ``nothing``, ``stage``, ``convert``, ``order``, ``seek_points``, ``reencode``,
            ``rewrite``, ``workers`` or ``cores``.
        text: What to do and why.
        command: The command, or the argument to give; empty if there is none.
        images_per_second: Most that training would then get; None where it is not known.
    """

    code: str
    text: str
    command: str = ""
    images_per_second: float | None = None


@dataclass(frozen=True)
class Bottleneck:
    """Stage that limits loading, and advice.

    Attributes:
        limit: The stage that limits once an epoch has been read: ``storage``, ``decode`` or
            ``step``.
        images_per_second: Images a second that training gets then.
        loader_images_per_second: Images a second that the loader delivers then.
        core_images_per_second: Images a second that one core reads and decodes.
        cores_per_gpu: Cores that one GPU needs at the step's rate; None where that is unknown.
        num_workers: Recommended ``num_workers`` of the loader.
        fits_stage: Whether a copy fits where ``fastdata stage`` puts it.
        advice: What to do, what gains most first.
    """

    limit: str
    images_per_second: float
    loader_images_per_second: float
    core_images_per_second: float
    cores_per_gpu: int | None
    num_workers: int
    fits_stage: bool
    advice: tuple[Advice, ...]


class Diagnosis(NamedTuple):
    """Measurements, and the conclusions from them."""

    findings: Findings
    verdict: Bottleneck


def judge(findings: Findings) -> Bottleneck:
    """Return the stage that limits, and advice."""
    rates, machine, supply = findings.rates, findings.machine, loader_rate(findings)
    # Without waiting for a disk.
    core = 1 / (1 / rates.storage_warm + 1 / rates.decode) / min(machine.threads, machine.cpus)
    cores = None if rates.step is None else max(1, math.ceil(rates.step / core))
    if rates.step is not None and rates.step <= supply:
        limit = "step"
    else:
        limit = "storage" if read_seconds(findings) > 1 / rates.decode else "decode"
    advice = []
    if limit == "storage":
        advice = _for_storage(findings)
    elif limit == "decode":
        advice = _for_decode(findings, core, cores)
    if not findings.data.convert:  # it is not for packing
        advice = [one for one in advice if not one.command.startswith(" --")]
    advice.sort(key=lambda one: -(one.images_per_second or 0))
    return Bottleneck(
        limit=limit,
        images_per_second=training_rate(findings),
        loader_images_per_second=supply,
        core_images_per_second=core,
        cores_per_gpu=cores,
        num_workers=machine.rank_cpus,
        fits_stage=findings.data.stage_bytes <= machine.stage_room,
        advice=tuple(advice or [Advice("nothing", _NOTHING[limit])]),
    )


def held(findings: Findings) -> float:
    """Return the share of the dataset that is in memory after an epoch, 0 to 1."""
    if findings.data.in_memory or not findings.data.bytes:
        return 1.0
    return min(1.0, findings.machine.memory / findings.data.bytes)


def read_seconds(findings: Findings) -> float:
    """Return the seconds of reading an image, with the part of the dataset in memory that fits."""
    cold, warm = findings.rates.storage_cold, findings.rates.storage_warm
    if cold is None:
        return 1 / warm
    # Never faster than warm: what was measured as cold may have been in some other cache.
    return held(findings) / warm + (1 - held(findings)) / min(cold, warm)


def loader_rate(findings: Findings) -> float:
    """Return images/s of the loader, whose threads read and decode in turn."""
    return 1 / (read_seconds(findings) + 1 / findings.rates.decode)


def training_rate(findings: Findings) -> float:
    """Return images/s of training: of the loader or of the step."""
    return min(loader_rate(findings), findings.rates.step or math.inf)


_NOTHING = {
    "step": "The training step takes longer than loading: a faster loader gains nothing. "
    "Make the step faster (AMP, channels-last, compile), or use more GPUs.",
    "storage": "Faster storage, memory for the whole dataset or smaller images (fastdata convert "
    "--encoding jpeg --max-side 500) would make reading faster.",
    "decode": "Nothing that fastdata can change makes decoding faster here: more CPU cores would.",
}


class _Proposals(list[Advice]):
    """List of advice; leaves out changes of rates that gain too little."""

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self._found = findings

    def add(self, code: str, text: str, command: str = "", **changed: float) -> None:
        """Add advice, which changes some rates; without any, its gain is unknown."""
        after = None
        if changed:
            after = training_rate(replace(self._found, rates=replace(self._found.rates, **changed)))
            if after <= training_rate(self._found) * _WORTH:
                return
        self.append(Advice(code, text, command, after))


def _for_storage(findings: Findings) -> list[Advice]:
    data, machine = findings.data, findings.machine
    advice = _Proposals(findings)
    staged = data.in_memory or data.location != data.path
    copies = data.container not in ("files", *ELSEWHERE) and not staged
    if copies and data.stage_bytes <= machine.stage_room:
        text = f"Copy the dataset to memory once: it fits in {machine.stage_place}."
        command = f"fastdata stage {shlex.quote(data.path)}"
        advice.add("stage", text, command, storage_cold=math.inf, storage_warm=math.inf)
    if data.root is not None and not data.in_memory:
        text = (
            "Each image is a file of its own, to be found and opened in random order. In a "
            "container they are read from a few large files."
        )
        advice.add("convert", text, f"{data.convert} --to shards")
    elif data.container == "tables":
        text = "Of tables, whole row groups are read and decoded. Shards are read by image."
        advice.add("convert", text, f"{data.convert} --to shards")
    elif held(findings) < 1:
        text = "Read neighbours together: shuffled by blocks, the storage is read nearly in order."
        advice.add("order", text, 'DataLoader(order="quasi-random")')
    return advice


def _for_decode(findings: Findings, core: float, needed: int | None) -> list[Advice]:
    data, machine, rates = findings.data, findings.machine, findings.rates
    advice = _Proposals(findings)
    if data.seekable_share < 1 - FEW:
        text = "Seek points let crops be decoded without the rest of the image."
        advice.add("seek_points", text, f"fastdata seek-points {shlex.quote(data.path)}")
    if data.other_share > FEW:
        text = (
            f"{human_share(data.other_share)} of the images are {', '.join(data.other_kinds)}, of "
            "which whole images are decoded. Re-encode them as JPEGs (lossy)."
        )
        advice.add("reencode", text, f"{data.convert} --encoding jpeg")
    if data.rewritable_share > FEW:
        text = (
            f"{human_share(data.rewritable_share)} of the images are progressive JPEGs, which have "
            "no seek points. jpegtran -copy all makes baseline ones of the same pixels: pack these."
        )
        advice.add("rewrite", text)
    most, used = machine.rank_cpus, machine.threads
    if used < most:
        text = f"The loader decodes on {used} of the {most} CPUs that it may use."
        more = {"decode": rates.decode * most / used}
        advice.add("workers", text, f"DataLoader(num_workers={most})", **more)
    if needed is not None and needed > most:
        text = f"One GPU at this step needs {needed} cores; here it has {most}."
        advice.add("cores", text, decode=max(needed * core, rates.decode))
    return advice
