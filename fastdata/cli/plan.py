"""``fastdata plan``: show the batches of an epoch before anything is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastdata.cli.locations import Location, json_option, print_json, require_url, storage_options
from fastdata.errors import UsageError, printable

if TYPE_CHECKING:
    from fastdata.plan.table import PlanTable


class _Sizes(click.ParamType):  # type: ignore[type-arg]
    """Type of a side, or of sizes such as 512x512,448x576."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | list[tuple[int, int]]:
        """Return the side, or (height, width) of each size."""
        try:
            if "x" not in str(value):
                return int(value)
            pairs = [one.split("x") for one in str(value).split(",")]
            return [(int(height), int(width)) for height, width in pairs]
        except ValueError:
            self.fail(f"{value!r} is neither a side, 512, nor sizes, 512x512,448x576", param, ctx)


@click.command("plan")
@click.argument("dataset", type=Location())
@click.option("--batch-size", type=click.IntRange(1), help="Rows in a batch of one rank.")
@click.option(
    "--sizes",
    type=_Sizes(),
    metavar="SIDE|HxW,…",
    help="Batches by aspect ratio: the area of a square of this side, or sizes, height first.",
)
@click.option("--pixels", type=click.IntRange(1), help="Most pixels of a batch, with --sizes.")
@click.option("--length", metavar="FIELD", help="Batches by the lengths of a field, with --budget.")
@click.option("--budget", type=click.IntRange(1), help="Most that lengths of a batch add up to.")
@click.option(
    "--window", type=click.IntRange(1), default=16384, show_default=True, help="Rows of a window."
)
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--epoch", type=click.IntRange(0), default=0, show_default=True)
@click.option("--drop-last", is_flag=True, help="Drop rows that do not fill a batch on each rank.")
@json_option
@storage_options
def command(
    dataset: Path | str, storage_options: dict[str, Any] | None, as_json: bool, **options: Any
) -> None:
    """Show the batches that a loader would make of DATASET.

    With --sizes, fastdata.samplers.AspectRatioBatches makes them; with --length,
    fastdata.samplers.TokenBudgetBatches; else they have one size.

    \b
    Examples:
      $ fastdata plan imagenet-train-lmdb --batch-size 256 --ranks 8
      $ fastdata plan imagenet-train-lmdb --sizes 512 --batch-size 32 --ranks 8
      $ fastdata plan pairs --length tokens --budget 64
    """
    require_url(storage_options, dataset)
    table = _table(dataset, storage_options, **options)
    if as_json:
        print_json(table.to_dict())
        return
    click.echo("\n".join(map(printable, str(table).splitlines())))


def _table(
    dataset: Path | str,
    storage_options: dict[str, Any] | None,
    batch_size: int | None,
    sizes: Any,
    pixels: int | None,
    length: str | None,
    budget: int | None,
    window: int,
    ranks: int,
    seed: int,
    epoch: int,
    drop_last: bool,
) -> PlanTable:
    """Return the table; raise UsageError if options contradict each other."""
    from fastdata.dataset import ImageDataset
    from fastdata.plan.sharding import Epoch
    from fastdata.plan.table import table_of
    from fastdata.samplers import AspectRatioBatches, TokenBudgetBatches

    if (length is None) != (budget is None):
        raise UsageError("--length goes with --budget", "Give both of them.")
    others = {"--sizes": sizes, "--pixels": pixels, "--batch-size": batch_size}
    for name in ("--pixels",) if length is None else others:
        if others[name] is not None and (length is not None or sizes is None):
            beside = "without --sizes" if length is None else "beside --length"
            raise UsageError(f"{name} has no effect {beside}", "Leave it out.")
    opened = ImageDataset(dataset, storage_options=storage_options)
    shared: dict[str, Any] = {"seed": seed, "shard": (0, ranks), "drop_last": drop_last}
    if length is not None and budget is not None:
        return TokenBudgetBatches(opened, length, budget, window, **shared).table(epoch)
    if sizes is not None:
        return AspectRatioBatches(opened, batch_size, sizes, pixels=pixels, **shared).table(epoch)
    if batch_size is None:
        raise UsageError("nothing says how large a batch is", "Give --batch-size, or --length.")
    return table_of(Epoch(len(opened), batch_size, 0, ranks, drop_last))
