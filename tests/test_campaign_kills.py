"""Commands and training, killed at random moments (``kills.py``): nothing lost or doubled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import archives
import pytest
import target_data
from containers import pack_tree
from jpegs import encode, picture
from web_server import WebServer

pytest.importorskip("aiohttp")

KILLS = int(os.environ.get("FASTDATA_CAMPAIGN_KILLS", "20"))
SEED = os.environ.get("FASTDATA_CAMPAIGN_SEED", "0")


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path) -> None:
    for number in range(24):
        image = tmp_path / "tree" / f"class {number % 3}" / f"{number:02d}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(encode(picture(70 + 5 * number, 90, number), "4:2:0"))
    pack_tree(tmp_path / "tree", tmp_path / "set", "shards", unit_size=30_000)
    pack_tree(tmp_path / "tree", tmp_path / "plain", "lmdb", seek_points=None)
    pack_tree(target_data.source(), tmp_path / "targets", "shards", unit_size=30_000)
    images = [path.read_bytes() for path in sorted((tmp_path / "tree").rglob("*.jpg"))]
    samples = [
        archives.Made(image, n % 3, f"{n} ü", images[-n] if n % 4 else None)
        for n, image in enumerate(images)
    ]
    for kind in archives.KINDS:
        archives.write(kind, tmp_path / "archives" / kind, samples)
    with WebServer(tmp_path / "set") as server:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("kills.py"), tmp_path, server.url,
             str(KILLS), SEED],
            capture_output=True,
            text=True,
            timeout=300 + 10 * KILLS,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    print(counts)
    assert counts["in the middle"] > KILLS // 4
    assert os.geteuid() or "left nothing in /dev/shm" in counts
