"""fast_collate: what it makes of samples, in torch's own DataLoader."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, default_collate  # noqa: E402

from fastdata import fast_collate  # noqa: E402
from fastdata.errors import SampleError, UsageError  # noqa: E402

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def pixels(number: int, height: int = 6, width: int = 5) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_pil(array: np.ndarray[Any, Any]) -> Any:
    return Image.fromarray(array)


def as_array(array: np.ndarray[Any, Any]) -> Any:
    return array


def as_tensor(array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def as_channels_last_tensor(array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(array).permute(2, 0, 1)


KINDS = [as_pil, as_array, as_tensor, as_channels_last_tensor]


class Images:
    def __init__(self, kind: Callable[[Any], Any] = as_pil, sizes: list[int] | None = None) -> None:
        self.kind = kind
        self.sizes = sizes or [5] * 10

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.kind(pixels(index, width=self.sizes[index])), index * 3


def check_layout(images: Any, count: int, height: int = 6, width: int = 5) -> None:
    assert images.shape == (count, 3, height, width)
    assert images.dtype == torch.uint8
    assert images.stride() == (height * width * 3, 1, width * 3, 3)
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("workers", "kind"),
    # Each spawned worker imports torch; one kind shows that it works.
    [(None, kind) for kind in KINDS]
    + [("fork", as_pil), pytest.param("spawn", as_pil, marks=pytest.mark.slow)],
)
def test_torchs_own_loader(workers: str | None, kind: Callable[[Any], Any]) -> None:
    loader = DataLoader(
        Images(kind),
        batch_size=4,
        num_workers=2 if workers else 0,
        multiprocessing_context=workers,
        collate_fn=fast_collate,
    )
    seen = 0
    for images, labels in loader:
        check_layout(images, len(labels))
        assert images.is_shared() == (workers is not None)
        assert labels.dtype == torch.int64
        for image, label in zip(images, labels.tolist(), strict=True):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), pixels(seen))
            assert label == seen * 3
            seen += 1
    assert seen == 10


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 9),
    st.lists(st.sampled_from(KINDS), min_size=5, max_size=5),
)
def test_any_size_and_kinds_that_are_mixed(
    count: int, height: int, width: int, kinds: list[Callable[[Any], Any]]
) -> None:
    arrays = [pixels(i, height, width) for i in range(count)]
    images, _ = fast_collate([(kinds[i](array), i) for i, array in enumerate(arrays)])
    check_layout(images, count, height, width)
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), np.stack(arrays))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "HSV"])
def test_modes(mode: str) -> None:
    image = Image.fromarray(pixels(1)).convert(mode)
    images, _ = fast_collate([(image, 0), (Image.fromarray(pixels(2)), 1)])
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), np.asarray(image.convert("RGB")))
    assert np.array_equal(images[1].permute(1, 2, 0).numpy(), pixels(2))


def test_a_palettes_transparency_is_dropped_in_silence() -> None:
    image = Image.fromarray(pixels(1)).convert("P")
    image.info["transparency"] = bytes(range(256))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images, _ = fast_collate([(image, 0)])
    assert image.info["transparency"] == bytes(range(256))
    del image.info["transparency"]
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), np.asarray(image.convert("RGB")))


def test_grey_arrays_and_tensors() -> None:
    grey = pixels(1)[:, :, 0]
    grey.flags.writeable = False
    images, _ = fast_collate([(grey, 0), (torch.from_numpy(grey.copy())[None], 1)])
    check_layout(images, 2)
    for image in images:
        for channel in image:
            assert np.array_equal(channel.numpy(), grey)


@pytest.mark.parametrize(
    "labels",
    [
        [3, -1],
        [np.int32(3), np.int64(-1)],
        [torch.tensor(3), torch.tensor(-1, dtype=torch.int16)],
        [np.array(3), -1],
        [2**62, -(2**62)],
    ],
)
def test_whole_labels_are_int64(labels: list[Any]) -> None:
    _, found = fast_collate([(pixels(0), label) for label in labels])
    assert found.dtype == torch.int64
    assert found.tolist() == [int(label) for label in labels]


@pytest.mark.parametrize(
    "labels",
    [
        [0.5, 2.0],
        [True, False],
        [torch.tensor([0, 1]), torch.tensor([1, 0])],
        [np.array([1.0, 2.0]), np.array([3.0, 4.0])],
        ["cat", "dog"],
    ],
)
def test_other_labels_are_what_default_collate_makes(labels: list[Any]) -> None:
    _, found = fast_collate([(pixels(0), label) for label in labels])
    wanted = default_collate(labels)
    assert torch.equal(found, wanted) if isinstance(wanted, torch.Tensor) else found == wanted
    assert getattr(found, "dtype", None) == getattr(wanted, "dtype", None)


def test_labels_that_are_dicts_and_further_elements() -> None:
    samples = [(pixels(i), {"class": i, "weight": i / 2}, f"key {i}", i * 1.5) for i in range(3)]
    batch = fast_collate(samples)
    assert type(batch) is list and len(batch) == 4
    assert batch[1]["class"].tolist() == [0, 1, 2]
    assert batch[1]["weight"].tolist() == [0, 0.5, 1]
    assert batch[2] == ["key 0", "key 1", "key 2"]
    assert batch[3].tolist() == [0, 1.5, 3]


class Sample(NamedTuple):
    image: Any
    label: int
    key: str


def test_named_tuples_and_lists() -> None:
    batch = fast_collate([Sample(pixels(i), i, str(i)) for i in range(2)])
    assert type(batch) is Sample
    check_layout(batch.image, 2)
    assert batch.label.tolist() == [0, 1]
    assert batch.key == ["0", "1"]
    images, labels = fast_collate([[pixels(7), 1]])
    assert np.array_equal(images[0].permute(1, 2, 0).numpy(), pixels(7))
    assert labels.tolist() == [1]


@pytest.mark.parametrize("kind", [list, tuple])
def test_several_views(kind: Any) -> None:
    samples = [(kind([as_pil(pixels(i)), pixels(i + 9, 3, 4)]), i) for i in range(4)]
    views, labels = fast_collate(samples)
    assert type(views) is list and len(views) == 2
    check_layout(views[0], 4)
    check_layout(views[1], 4, 3, 4)
    for i in range(4):
        assert np.array_equal(views[0][i].permute(1, 2, 0).numpy(), pixels(i))
        assert np.array_equal(views[1][i].permute(1, 2, 0).numpy(), pixels(i + 9, 3, 4))
    assert labels.tolist() == [0, 1, 2, 3]


GOOD = (pixels(0), 0)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        (GOOD[0], "takes a list of samples, not a numpy.ndarray"),
        ([pixels(0)], r"sample 0 of the batch is a numpy.ndarray, not \(image, label\)"),
        ([GOOD, (pixels(0),)], "sample 1 of the batch is a tuple of 1, not"),
        ([GOOD, (pixels(0), 0, 0)], "sample 1 of the batch has 3 elements, sample 0 2"),
        ([GOOD, ("image", 0)], "sample 1 of the batch is a str, not an image"),
        ([GOOD, (pixels(0, 7, 8), 0)], r"sample 1 .* 7 x 8(.|\n)*RandomResizedCrop"),
        ([GOOD, (torch.zeros(3, 6, 5), 0)], r"sample 1 .* float32(.|\n)*ToTensor"),
        ([(torch.from_numpy(pixels(0)), 0)], r"sample 0 .* of shape \(6, 5, 3\)"),
        ([([], 0)], "sample 0 of the batch is a list, not an image"),
        ([([pixels(0)] * 2, 0), ([pixels(0)] * 3, 1)], "sample 1 of the batch has 3"),
        ([([pixels(0)] * 2, 0), ([pixels(0), pixels(0, 7)], 1)], "view 1 of sample 1"),
    ],
)
def test_bad_samples(samples: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        fast_collate(samples)
    assert caught.value.hint


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "image.png"
    as_pil(pixels(0, 60, 60)).save(path)
    path.write_bytes(path.read_bytes()[:5_000])
    good = as_pil(pixels(0, 60, 60))
    with (
        Image.open(path) as image,
        pytest.raises(SampleError, match="sample 1 of the batch cannot be decoded"),
    ):
        fast_collate([(good, 0), (image, 1)])


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_fastdata_does_not_import_torch() -> None:
    code = "import sys, fastdata; print('torch' in sys.modules, 'fast_collate' in dir(fastdata))"
    assert python(code) == "False True\n"
    assert python("import sys, fastdata; fastdata.fast_collate; print('torch' in sys.modules)") == (
        "True\n"
    )


def test_without_torch_the_error_says_how_to_install_it() -> None:
    code = """
import sys
sys.modules["torch"] = None
import fastdata
try:
    fastdata.fast_collate
except ImportError as error:
    print(error.name, error)
"""
    assert python(code) == (
        "torch fastdata.fast_collate needs torch\n"
        "Install it: pip install 'fastdata-torch[torch]'.\n"
    )
