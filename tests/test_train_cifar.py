"""The CIFAR script: it learns made data in CIFAR's layout, with our loader and with torch's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fastdata.examples import train_cifar
from sources import convert
from test_cifar import CLASSES, python2_pickle, write_archive

pytestmark = pytest.mark.slow

ROWS = 40  # of each of six batches


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The published archive in small, packed by the command that the script names."""
    root, generator = tmp_path_factory.mktemp("cifar"), np.random.default_rng(0)
    files = {"batches.meta": python2_pickle({b"label_names": CLASSES["cifar10"]})}
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        labels = [row % 2 for row in range(ROWS)]
        # Dark at the top or dark at the left: a crop and a flip do not tell them apart by colour.
        images = generator.integers(90, 160, (ROWS, 3, 32, 32))
        for image, label in zip(images, labels, strict=True):
            image[:, : 16 + 16 * label, : 32 - 16 * label] -= 90
        data = images.astype(np.uint8).reshape(ROWS, 3072)
        files[name] = python2_pickle({b"data": data, b"labels": labels})
    write_archive("cifar10", files, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        convert("cifar10")
    return [str(root / f"cifar10-{split}-lmdb") for split in ("train", "test")]


@pytest.mark.parametrize("loader", train_cifar.LOADERS)
def test_it_learns(packed: list[str], loader: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--loader", loader, "--workers", "0", "--width", "4", "--batch-size", "20"]
    accuracy = train_cifar.main([*packed, *options, "--epochs", "4", "--lr", "0.1"])
    assert accuracy > 0.9
    assert f"epoch 4: top-1 {accuracy:.4f}" in capsys.readouterr().out


def test_other_classes_are_refused(packed: list[str], tmp_path: Path) -> None:
    from fastdata.converters import ImageFolder, pack
    from PIL import Image

    (tmp_path / "tree" / "cat").mkdir(parents=True)
    Image.new("RGB", (32, 32)).save(tmp_path / "tree" / "cat" / "0.png")
    pack(ImageFolder(tmp_path / "tree"), tmp_path / "packed", workers=1)
    with pytest.raises(SystemExit, match="2"):
        train_cifar.main([packed[0], str(tmp_path / "packed")])
