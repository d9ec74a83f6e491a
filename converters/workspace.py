"""Work folder of packing: ownership, locking, and files that may be removed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fastdata.errors import BusyError, UsageError, is_no_space
from fastdata.storage.files import file_lock
from fastdata.storage.manifest import WORK_NAME, has_manifest

#: Files that packing writes; it never removes others from a dataset's folder.
_OURS = re.compile(
    r"(shard-\d{6,}\.tar|part-\d{6,}\.parquet|data\.mdb|_dataset\.json"
    r"|_index(-[^/]+)?\.rows|_learnt\.points|_field-[^/]+\.arrow"
    r"|_bad-samples\.jsonl|_common_metadata|\.huggingface\.yaml)((\.\d+)?\.partial)?"
)


@contextmanager
def work_folder(out: Path) -> Iterator[None]:
    """Create and lock the folder of the packing state; remove it if nothing can be resumed."""
    work = out / WORK_NAME
    _make(out, work)
    busy = BusyError(
        f"{out}: another process is packing to it", "Wait for it, or choose another --out."
    )
    with ExitStack() as held:
        try:
            held.enter_context(file_lock(work / "lock", busy=busy))
        except FileNotFoundError:  # the other process has just removed its work folder
            raise busy from None
        try:
            yield
        finally:
            finished = has_manifest(out)
            if finished or not any(work.glob("*.part*")):
                if not finished:
                    # Without the work folder, unfinished files could not be resumed, and the
                    # next run would reject them as foreign.
                    remove_outputs(out, keep=set())
                shutil.rmtree(work, ignore_errors=True)
                if not any(out.iterdir()):
                    out.rmdir()


def _make(out: Path, work: Path) -> None:
    try:
        ours = work.exists() or has_manifest(out)
        if not ours and out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise UsageError(
                f"{out}: exists, and is not a dataset that fastdata has packed",
                "Choose another --out, or remove it.",
            )
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_no_space(error):
            raise
        raise UsageError(
            f"{out}: cannot be written to: {error.strerror}",
            "Choose another --out, or check its permissions (ls -ld).",
        ) from None


def is_ours(name: str) -> bool:
    """Return whether packing writes files of this name."""
    return _OURS.fullmatch(name) is not None


def remove_outputs(out: Path, keep: set[str]) -> None:
    """Remove packing's files from a folder, except those in ``keep``."""
    for path in out.iterdir():
        if is_ours(path.name) and path.name not in keep:
            path.unlink()
