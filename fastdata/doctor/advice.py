"""Pure functions from measurements to the stage that limits, and advice."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass

from fastdata.doctor.findings import Findings, Rates
from fastdata.text import human_share

#: Least gain that is worth advice: measurements scatter.
_WORTH = 1.05
#: The part of the images up to which their encoding matters little.
_FEW = 0.02


@dataclass(frozen=True)
class Advice:
    """Piece of advice.

    Attributes:
        code: ``nothing``, ``stage``, ``convert``, ``container``, ``order``, ``memory``,
            ``seek_points``, ``reencode``, ``rewrite``, ``workers``, ``scaling`` or ``cores``.
        text: What to do and why.
        command: The command, or the argument to give; empty if there is none.
        images_per_second: What training would then get; None where it was not measured.
        basis: ``measured``, ``estimated`` from measured stages, or empty.
    """

    code: str
    text: str
    command: str = ""
    images_per_second: float | None = None
    basis: str = ""


@dataclass(frozen=True)
class Verdict:
    """Stage that limits, and advice.

    Attributes:
        limit: The stage that limits once an epoch has been read; a key of `stage_rates`.
        images_per_second: What training gets then: the slowest of stages and loader.
        first_epoch_limit: The stage that limits in the first epoch from now.
        first_epoch_images_per_second: What training gets in it.
        core_images_per_second: What one core reads and decodes; None where unknown.
        cores_per_gpu: Cores that one GPU needs at the step's rate; None where that is unknown.
        num_workers: Recommended ``num_workers`` of the loader.
        fits_stage: Whether a copy fits where ``fastdata stage`` puts it.
        advice: What to do, what gains most first.
    """

    limit: str
    images_per_second: float
    first_epoch_limit: str
    first_epoch_images_per_second: float
    core_images_per_second: float | None
    cores_per_gpu: int | None
    num_workers: int
    fits_stage: bool
    advice: tuple[Advice, ...]


def judge(found: Findings) -> Verdict:
    """Return the stage that limits, and advice."""
    later = stage_rates(found, held_later(found))
    first = stage_rates(found, held_now(found))
    limit = bottleneck(later, found.rates.loader)
    return Verdict(
        limit=limit,
        images_per_second=overall(later, found.rates.loader),
        first_epoch_limit=bottleneck(first, found.rates.loader),
        first_epoch_images_per_second=overall(first, found.rates.loader),
        core_images_per_second=_core(found.rates),
        cores_per_gpu=_cores(found.rates),
        num_workers=found.machine.rank_cpus,
        fits_stage=found.data.stage_bytes <= found.machine.stage_room,
        advice=tuple(_advise(found, later, limit)),
    )


def stage_rates(found: Findings, held: float) -> dict[str, float]:
    """Return images/s of each measured stage.

    ``held`` is the share of the dataset in memory, 0 to 1.
    """
    rates = found.rates
    stages = {
        "storage": storage_rate(rates.storage_cold, rates.storage_warm, held),
        "decode": rates.decode,
        "host to device": rates.host_to_device,
        "step": rates.step,
    }
    return {name: rate for name, rate in stages.items() if rate is not None}


def storage_rate(cold: float | None, warm: float | None, held: float) -> float | None:
    """Return images/s of storage with a part of the images in memory.

    ``cold`` is None if it could not be measured; ``held`` is the share in memory, 0 to 1.
    """
    if cold is None or warm is None:
        return warm if cold is None else cold
    # Never faster than warm: what was measured as cold may have been in some other cache.
    return 1 / (held / warm + (1 - held) / min(cold, warm))


def held_now(found: Findings) -> float:
    """Return the share of the dataset that is in memory now."""
    return 1.0 if found.data.in_memory else found.data.cached_share or 0.0


def held_later(found: Findings) -> float:
    """Return the share that will be in memory after an epoch: the share that fits."""
    if found.data.in_memory or not found.data.bytes:
        return 1.0
    return min(1.0, found.machine.memory / found.data.bytes)


def bottleneck(stages: dict[str, float], loader: float | None = None) -> str:
    """Return the stage that limits: the slowest.

    The stages of loading share the CPUs, so the loader may be slower than each of them; where it is
    slower than the step as well, the slowest of them is what limits, not the step.
    """
    loading = {name: rate for name, rate in stages.items() if name != "step"}
    if "step" in stages:
        supply = min([*loading.values(), *([] if loader is None else [loader])], default=math.inf)
        if stages["step"] <= supply or not loading:
            return "step"
    return min(loading, key=lambda name: loading[name])


def overall(stages: dict[str, float], loader: float | None = None) -> float:
    """Return images/s of training: of the slowest stage, or of the loader as a whole."""
    return min([*stages.values(), *([] if loader is None else [loader])])


def _core(rates: Rates) -> float | None:
    """Return images/s that one core reads and decodes, without waiting for a disk."""
    if rates.decode_core is None:
        return None
    return 1 / (1 / rates.decode_core + rates.read_cpu_s)


def _cores(rates: Rates) -> int | None:
    """Return the cores that one GPU needs at the step's rate."""
    core = _core(rates)
    if core is None or rates.step is None:
        return None
    return max(1, math.ceil(rates.step / core))


def memory_rate(rates: Rates) -> float | None:
    """Return images/s of reading from memory, for any file system of the dataset."""
    # The CPU's part of reading is all that is left where there is nothing to wait for.
    if rates.read_cpu_s <= 0:
        return rates.storage_warm
    return max(rates.storage_warm or 0.0, 1 / rates.read_cpu_s)


_NOTHING = {
    "step": "The training step takes longer than loading: a faster loader gains nothing. "
    "Make the step faster (AMP, channels-last, compile), or use more GPUs.",
    "storage": "Nothing that fastdata can change makes reading faster here: faster storage would.",
    "decode": "Nothing that fastdata can change makes decoding faster here: more CPU cores would.",
    "host to device": "Bytes are the least that can be copied: give DataLoader(device=), which "
    "normalises there; beyond that, smaller crops would be faster.",
}


def _advise(found: Findings, stages: dict[str, float], limit: str) -> list[Advice]:
    advice: list[Advice] = []
    if limit == "storage":
        advice = _for_storage(found, stages)
    elif limit == "decode":
        advice = _for_decode(found, stages)
    if not found.data.convert:  # it is not for packing
        advice = [one for one in advice if not one.command.startswith(" --")]
    if advice:
        return sorted(advice, key=lambda one: -(one.images_per_second or 0))
    return [Advice("nothing", _NOTHING[limit])]


def _then(found: Findings, stages: dict[str, float], stage: str, rate: float) -> float | None:
    """Return images/s of training with another rate of a stage; None if that is no gain."""
    changed = {**stages, stage: rate}
    loader = found.rates.loader
    if loader is not None:
        # It reads and decodes on the same threads, so it gains with their sum. Its images were in
        # memory already.
        warm = found.rates.storage_warm
        measured = stages if warm is None else {**stages, "storage": warm}
        loader *= _per_image(measured) / _per_image(changed)
    after = overall(changed, loader)
    return after if after > overall(stages, found.rates.loader) * _WORTH else None


def _per_image(stages: dict[str, float]) -> float:
    return sum(1 / stages[name] for name in ("storage", "decode") if name in stages)


class _Proposals(list[Advice]):
    """Worthwhile advice for one stage, with the resulting rate of training."""

    def __init__(self, found: Findings, stages: dict[str, float], stage: str) -> None:
        super().__init__()
        self._found, self._stages, self._stage = found, stages, stage

    def add(self, code: str, rate: float | None, basis: str, text: str, command: str = "") -> None:
        """Add advice that gives the stage another rate, if the rate is known and a gain."""
        after = None if rate is None else _then(self._found, self._stages, self._stage, rate)
        if after is not None:
            self.append(Advice(code, text, command, after, basis))


def _for_storage(found: Findings, stages: dict[str, float]) -> list[Advice]:
    data, machine, rates = found.data, found.machine, found.rates
    advice = _Proposals(found, stages, "storage")
    staged = data.in_memory or data.location != data.path
    if data.container != "files" and not staged and data.stage_bytes <= machine.stage_room:
        advice.add(
            "stage",
            memory_rate(rates),
            "estimated",
            f"Copy the dataset to memory once: it fits in {machine.stage_place}.",
            f"fastdata stage {shlex.quote(data.path)}",
        )
    if data.root is not None and not data.in_memory:
        text = (
            "Each image is a file of its own, to be found and opened in random order. In a "
            "container they are read from a few large files."
        )
        advice.append(Advice("convert", text, f"{data.convert} --to shards"))
    advice.add(
        "order",
        found.alternatives.storage_in_order,
        "measured",
        "Read neighbours together: shuffled by blocks, the storage is read nearly in order.",
        'DataLoader(order="quasi-random")',
    )
    held = held_later(found)
    if held < 1:
        advice.add(
            "memory",
            rates.storage_warm,
            "estimated",
            f"Memory holds {held:.0%} of the dataset. With enough for all of it, or smaller "
            "images (fastdata convert --encoding jpeg --max-side 500), storage is read once.",
        )
    return advice


def _for_decode(found: Findings, stages: dict[str, float]) -> list[Advice]:
    data, machine, rates, other = found.data, found.machine, found.rates, found.alternatives
    advice = _Proposals(found, stages, "decode")
    if data.seekable_share < 1:
        text, command = "Seek points let", f"fastdata seek-points {shlex.quote(data.path)}"
        if data.container == "files":
            text, command = "An index with seek points lets", f"{data.convert} --to folder"
        text += " crops be decoded without the rest of the image."
        advice.add("seek_points", other.decode_seekable, "measured", text, command)
    if data.pillow_share > _FEW:
        kinds = ", ".join("other jpeg" if kind == "jpeg" else kind for kind in data.pillow_kinds)
        text = (
            f"{human_share(data.pillow_share)} of the images ({kinds}) are not JPEGs that the core "
            "decodes. Re-encode them (lossy)."
        )
        advice.append(Advice("reencode", text, f"{data.convert} --encoding jpeg"))
    if data.rewritable_share > _FEW:
        text = (
            f"{human_share(data.rewritable_share)} of the images are progressive JPEGs, "
            "which have no seek points. "
            "Rewrite them as baseline ones, of the same pixels."
        )
        advice.append(Advice("rewrite", text, f"{data.convert} --encoding baseline"))
    loader = rates.loader
    if data.container == "files" and loader is not None:
        packed = overall(stages)
        if packed > loader * _WORTH:
            text = "In a container images are read by the core, without opening a file for each."
            command = f"{data.convert} --to lmdb"
            advice.append(Advice("container", text, command, packed, "estimated"))
    most = machine.rank_cpus
    if machine.threads < most and rates.decode_all is not None:
        advice.add(
            "workers",
            rates.decode_all * most / machine.cpus,
            "measured" if most == machine.cpus else "estimated",
            f"The loader decodes on {machine.threads} of the {most} CPUs that it may use.",
            f"DataLoader(num_workers={most})",
        )
    core, needed = _core(rates), _cores(rates)
    if core is not None and needed is not None and needed > most:
        text = f"One GPU at this step needs {needed} cores; here it has {most}."
        advice.add("cores", needed * core, "estimated", text)
    return advice
