"""Scripts of docs/guides/resume.md: killed in the middle of an epoch, and started again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hangs import HANG
from loader_data import SAMPLES, dataset

_PAGE = Path(__file__).resolve().parent.parent / "docs/guides/resume.md"
#: Runs a script, and kills the process as it prints the keys of its nth batch.
_RUN = f"""
import os, runpy, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from torchvision_stub import import_torchvision
import_torchvision()
script, left = sys.argv[1], int(sys.argv[2])
own_print = print
def print(*values, **options):
    global left
    if "[" in str(values[-1]):
        own_print("keys", values[-1], flush=True)
        left -= 1
        if not left:
            os.kill(os.getpid(), 9)
runpy.run_path(script, {{"print": print}}, "__main__")
"""


def check_resumes(folder: Path, name: str, kill: int) -> None:
    """Run the script of a section; compare its keys with those of a run that is killed."""
    section = re.search(rf"^## {name}$(.*?)^```$", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert section is not None
    found = {}
    for how, kills in (("whole", (0,)), ("killed", (kill, 0))):
        at = folder / how
        at.mkdir()
        (at / "script.py").write_text(section[1].partition("```python\n")[2])
        (at / "imagenet-train-lmdb").symlink_to(dataset("lmdb"))
        found[how] = [_keys(at, number) for number in kills]
    (whole,), (first, rest) = found["whole"], found["killed"]
    assert len(whole) == 2 * -(-SAMPLES // 4)
    for epoch in (whole[: len(whole) // 2], whole[len(whole) // 2 :]):
        assert len({key for batch in epoch for key in batch}) == SAMPLES
    # The batch that was under way when it was killed was not saved yet.
    assert first == whole[:kill]
    assert rest == whole[kill - 1 :]


def _keys(folder: Path, kill: int) -> list[list[str]]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    environment |= {"ACCELERATE_USE_CPU": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", _RUN, "script.py", str(kill)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == (-9 if kill else 0), done.stderr[-4000:]
    lines = re.findall(r"^keys (.*)$", done.stdout, re.MULTILINE)
    return [re.findall(r"'([^']+)'", line) for line in lines]
