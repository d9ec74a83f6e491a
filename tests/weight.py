"""Lines of code by wing beside their ceilings, and words of docs: make weight."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

#: Most lines of each wing, by its folders; CONTRIBUTING.md says what a wing does that needs more.
CEILINGS = {
    "native": 18_000,
    "converters": 8_500,
    "transforms": 6_500,
    "loading": 7_500,
    "benchmarks": 4_500,
    "storage": 7_800,
    "remote": 3_500,
    "decode": 2_300,
    "cli": 2_000,
    "plan": 2_300,
    "fuzz": 1_400,
    "doctor": 1_000,
    "staging": 1_000,
    "sample": 250,
    "device, dali, maintenance, examples": 3_600,
    "top level": 1_700,
    "tests": 52_000,
}
CODE = {".py", ".pyi", ".cpp", ".h", ".c", ".sh"}
MOST_WORDS = 45_000


def wing_of(path: Path) -> str:
    parts = path.parts[1:] if path.parts[0] == "fastdata" else path.parts
    name = parts[0] if len(parts) > 1 else "top level"
    return next((wing for wing in CEILINGS if name in wing.split(", ")), "top level")


def main() -> None:
    listed = subprocess.run(["git", "ls-files"], stdout=subprocess.PIPE, text=True, check=True)
    files = [path for path in map(Path, listed.stdout.splitlines()) if path.is_file()]
    lines: Counter[str] = Counter()
    for path in files:
        if path.suffix in CODE:
            lines[wing_of(path)] += len(path.read_text().splitlines())
    for wing, most in CEILINGS.items():
        over = f"{lines[wing] - most:+7,}" if lines[wing] > most else ""
        print(f"{wing:36} {lines[wing]:7,} of {most:7,} {over}".rstrip())
    print(f"{'all but tests':36} {lines.total() - lines['tests']:7,} of {72_000:7,}")
    words = sum(len(path.read_text().split()) for path in files if path.suffix == ".md")
    print(f"{'words of docs':36} {words:7,} of {MOST_WORDS:7,}")


if __name__ == "__main__":
    main()
