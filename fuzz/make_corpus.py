"""Writes seeds for the fuzz target: small JPEGs of every kind, with their seek tables."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from jpegs import SAMPLINGS, encode, picture

from fastdata.decode import seek_points


def main(folder: str) -> None:
    """Write them to the folder."""
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    number = 0

    def write(control: bytes, table: bytes, jpeg: bytes) -> None:
        nonlocal number
        data = control + len(table).to_bytes(2, "little") + table + jpeg
        (out / f"seed-{number:03d}").write_bytes(data)
        number += 1

    for sampling in SAMPLINGS:
        for size in [(1, 1), (9, 17), (33, 24), (70, 40)]:
            for options in [{}, {"optimize": True}, {"restart_marker_blocks": 2}]:
                quality = rng.choice([5, 40, 75, 95, 100])
                jpeg = encode(picture(*size, number), sampling, quality, **options)
                table = seek_points(jpeg, rng.choice([1, 16, 64]))
                control = bytes(rng.randrange(256) for _ in range(16))
                if number % 2:  # the whole image, everything on
                    control = bytes([0b10011100 | number % 4]) + control[1:]
                write(control, table, jpeg)
        # Seek points enough for the lanes of a vector, all paths compared.
        for quality in (10, 30, 60):
            jpeg = encode(picture(64, 64, number), sampling, quality, optimize=quality == 30)
            write(bytes([0b10011100]) + bytes(15), seek_points(jpeg, 1), jpeg)


if __name__ == "__main__":
    main(sys.argv[1])
