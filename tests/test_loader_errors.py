"""Damaged datasets in the loader: what is raised, replaced or zeroed, and that nothing hangs."""

from __future__ import annotations

import gc
import io
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import broken_jpeg, edit_index, index_rows, load_manifest, pack_tree, set_column
from hangs import HANG
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import encode, picture
from loader_data import (
    CONTAINERS,
    CROPS,
    SAMPLES,
    WITH_INDEX,
    WITH_KEYS,
    as_file,
    besides_fallback,
    dataset,
    folder,
    images,
    same,
    tree,
)
from PIL import Image

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DistributedSampler,
    Subset,
)

from fastdata import DataLoader, ImageDataset, Mixture  # noqa: E402
from fastdata.errors import (  # noqa: E402
    CorruptionError,
    DatasetError,
    FastdataError,
    SampleError,
    UsageError,
)
from fastdata.plan.order import make_order  # noqa: E402
from fastdata.samplers import (  # noqa: E402
    AspectRatioBatches,
    RepeatSampler,
    TokenBudgetBatches,
)
from fastdata.text import human_count  # noqa: E402
from fastdata.transforms import Compose, Normalize, Resize, Views  # noqa: E402

THREADS = [0, 1, 2, 8]
threads = pytest.mark.parametrize("threads", [0, pytest.param(8, marks=pytest.mark.slow)])


def blob_at(root: Path, number: int) -> tuple[Path, int, int]:
    row = index_rows(root)[number]
    manifest = load_manifest(root)
    if row["path"] is None:
        path = root / manifest["files"][row["file"]]["name"]
    else:
        path = root / manifest["root"] / row["path"]
    return path, row["offset"], row["length"]


def spoil(root: Path, number: int) -> None:
    path, offset, length = blob_at(root, number)
    with path.open("r+b") as file:
        file.seek(offset + length // 2)
        byte = file.read(1)[0]
        file.seek(offset + length // 2)
        file.write(bytes([byte ^ 255]))


def damaged(container: str, bad: set[int]) -> Path:
    out = folder() / "damaged"
    if container == "folder":
        source = out.parent / "tree"
        shutil.copytree(tree(), source)
        pack_tree(source, out, container)
    else:
        shutil.copytree(dataset(container), out)
    for number in bad:
        spoil(out, number)
    return out


BAD = {4, 5, 17, 23, 40, SAMPLES - 1}


@pytest.fixture(scope="module")
def broken() -> ImageDataset:
    return ImageDataset(damaged("shards", BAD), CROPS)


def make(data: Any, **options: Any) -> DataLoader[Any]:
    defaults = {"batch_size": 8, "seed": 3, **WITH_KEYS}
    return DataLoader(data, **{**defaults, **options})


def until_the_end(iterator: Iterator[Any]) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except FastdataError as error:
            found.append(error)
        assert len(found) < 100


@pytest.mark.parametrize(("container", "threads"), list(zip(CONTAINERS, THREADS, strict=True)))
def test_an_error_comes_in_its_batchs_place(container: str, threads: int) -> None:
    root = damaged(container, BAD)
    whole = list(make(images()))
    data = ImageDataset(root, CROPS)
    found = until_the_end(iter(make(data, num_workers=threads)))
    assert len(found) == len(whole)
    for number, (batch, expected) in enumerate(zip(found, whole, strict=True)):
        bad = sorted(index for index in BAD if index // 8 == number)
        if not bad:
            assert same(batch, expected)
            continue
        assert isinstance(batch, CorruptionError)
        path, *_ = blob_at(root, bad[0])
        for part in (f"sample {bad[0]} (", data.row(bad[0]).key, str(path), "changed"):
            assert part in batch.what
        assert "fastdata verify" in batch.hint


@pytest.mark.filterwarnings("ignore:.*seek points of another image:UserWarning")
@threads
def test_zero_leaves_black_images_and_a_mask(broken: ImageDataset, threads: int) -> None:
    half = Compose([CROPS, Normalize((0.5, 0.5, 0.5), (1, 1, 1), dtype="bfloat16")])
    for transform in (CROPS, Views(CROPS, count=2), half):
        data = ImageDataset(broken.path, transform)
        loader = make(data, on_error="zero", num_workers=threads)
        with pytest.warns(UserWarning, match=f"{len(BAD)} samples could not .* zeroed") as record:
            found = list(loader)
        (said,) = (str(one.message) for one in record if "zeroed" in str(one.message))
        assert all(broken.row(number).key in said for number in BAD)
        assert loader.stats().bad_samples == len(BAD)
        for batch, expected in zip(found, make(images(transform)), strict=True):
            *elements, whole = batch
            numbers = elements[2].numpy()
            assert whole.dtype == torch.bool
            assert whole.tolist() == [number not in BAD for number in numbers]
            assert same(elements[1:], expected[1:])
            views, wanted = (
                part[0] if isinstance(part[0], list) else [part[0]] for part in (batch, expected)
            )
            for view, want in zip(views, wanted, strict=True):
                assert torch.equal(view[whole], want[whole])
                assert not view[~whole].any()


@pytest.mark.filterwarnings("ignore:.*could not be decoded:UserWarning")
@pytest.mark.parametrize("fields", [None, ("index", "image"), ("label",)])
def test_zeros_are_zeros_on_a_device(broken: ImageDataset, fields: Any) -> None:
    """Where batches are normalised on the device, which makes something else of zeros."""
    transform = Compose([CROPS, Normalize((0.5, 0.5, 0.5), (1, 1, 1))])
    data = ImageDataset(broken.path, transform)
    options = {"on_error": "zero", "fields": fields, "batch_size": 8, "seed": 1}
    for host, there in zip(
        DataLoader(data, **options), DataLoader(data, device="cpu", **options), strict=True
    ):
        pairs = zip(*(b.values() if fields else b for b in (host, there)), strict=True)
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def check_substitutes(found: list[int], order: list[int], bad: set[int]) -> None:
    assert len(found) == len(order)
    assert all(got == asked for got, asked in zip(found, order, strict=True) if asked not in bad)
    assert not set(found) & bad


@settings(max_examples=15)
@given(
    st.sets(st.integers(0, SAMPLES - 1), max_size=SAMPLES - 1),
    st.sampled_from(["random", "sequential", "quasi-random"]),
    st.integers(1, 20),
    st.booleans(),
    st.sampled_from(THREADS),
    st.integers(1, 5),
)
def test_replace_fills_the_slots_of_bad_samples(
    bad: set[int], order: str, batch_size: int, drop_last: bool, threads: int, prefetch: int
) -> None:
    data = ImageDataset(damaged("shards", bad), CROPS)
    loader = make(
        data,
        batch_size=batch_size,
        order=order,
        drop_last=drop_last,
        on_error="skip",
        num_workers=threads,
        prefetch_factor=prefetch if threads else None,
    )
    samples = SAMPLES // batch_size * batch_size if drop_last else SAMPLES
    for epoch in range(2):
        whole = make_order(order, SAMPLES, 3, epoch)(np.arange(SAMPLES)).tolist()[:samples]
        lost = bad & set(whole)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if samples and len(bad) == SAMPLES:
                with pytest.raises(SampleError, match="no sample is left"):
                    list(loader)
                return
            found = list(loader)
        sizes = [len(batch[1]) for batch in found]
        assert sizes == [min(batch_size, samples - at) for at in range(0, samples, batch_size)]
        stream = [index for batch in found for index in batch[2].tolist()]
        check_substitutes(stream, whole, bad)
        assert loader.stats().bad_samples == len(lost)
        said = besides_fallback(said)
        assert len(said) == bool(lost)
        if lost:
            told = f"{human_count(len(lost), 'sample')} could not be decoded and w"
            assert str(said[0].message).startswith(told)
        for batch in found:
            numbers = batch[2].tolist()
            assert batch[1].tolist() == data.labels[numbers].tolist()
            assert batch[3] == [data.row(number).key for number in numbers]


@settings(max_examples=15)
@given(
    st.sets(st.integers(0, SAMPLES - 1)),
    st.sampled_from(["random", "sequential", "quasi-random"]),
    st.integers(1, 20),
    st.sampled_from(THREADS),
    st.integers(0, 10),
)
def test_drop_leaves_bad_samples_out_of_their_batches(
    bad: set[int], order: str, batch_size: int, threads: int, stop: int
) -> None:
    """In a second epoch, which knows them, too; and where a pass resumes in the middle."""
    data = ImageDataset(damaged("shards", bad), CROPS)
    about: dict[str, Any] = {"batch_size": batch_size, "order": order, "num_workers": threads}
    loader = make(data, on_error="drop", **about)
    whole = make(images(), **about)
    for _ in range(2):
        wanted = []
        for batch in whole:
            good = [at for at, number in enumerate(batch[2].tolist()) if number not in bad]
            if good:
                wanted.append([*(part[good] for part in batch[:3]), [batch[3][at] for at in good]])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found, states = [], [loader.state_dict()]
            for batch in loader:
                found.append(batch)
                states.append(loader.state_dict())
        assert same(found, wanted)
        assert loader.stats().bad_samples == len(bad)
        kinds = loader.stats().kinds.values()
        decoded = sum(count for decoders in kinds for count in decoders.values())
        assert loader.stats().samples == decoded == SAMPLES - len(bad)
        assert len(besides_fallback(said)) == bool(bad)
        resumed = make(data, on_error="drop", **about)
        resumed.load_state_dict(states[min(stop, len(found))])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rest = list(resumed)
        if stop < len(found):
            assert same(rest, wanted[stop:])


def mixture(data: Any) -> Mixture:
    halves = [Subset(data, range(at, SAMPLES, 2)) for at in range(2)]
    return Mixture({"a": (halves[0], 0.7), "b": (halves[1], 0.3)}, group=4, samples=60)


PLANS: list[Any] = [
    lambda data: (data, {"batch_sampler": TokenBudgetBatches(data, np.arange(SAMPLES) % 3 + 1, 6)}),
    lambda data: (data, {"batch_sampler": AspectRatioBatches(data, 4, ratios=[0.8, 1.2])}),
    lambda data: (data, {"batch_size": 4, "sampler": RepeatSampler(np.full(SAMPLES, 1.5))}),
    lambda data: (data, {"batch_size": 4, "sampler": range(SAMPLES)[::-1]}),
    lambda data: (mixture(data), {"batch_size": 4}),
]


@pytest.mark.parametrize("planned", PLANS)
def test_planned_batches_lose_their_bad_samples(planned: Any) -> None:
    bad = set(range(3, 25))  # with this many, whole batches are bad
    broken = ImageDataset(damaged("shards", bad), CROPS)
    keys = {broken.row(number).key for number in bad}

    def loader(data: Any, on_error: str) -> DataLoader[Any]:
        dataset, options = planned(data)
        fields = ("key", "image")
        return DataLoader(dataset, fields=fields, seed=1, on_error=on_error, **options)

    wanted = []
    for batch in loader(images(), "raise"):
        good = [at for at, key in enumerate(batch["key"]) if key not in keys]
        if good:
            part = {"key": [batch["key"][at] for at in good], "image": batch["image"][good]}
            wanted.append(part)
    dropping, found, states = loader(broken, "drop"), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for batch in dropping:
            found.append(batch)
            states += [dropping.state_dict()] if dropping.can_resume else []
    assert same(found, wanted)
    if states:
        resumed = loader(broken, "drop")
        resumed.load_state_dict(states[2])
        with pytest.warns(UserWarning, match="left out"):
            assert same(list(resumed), wanted[3:])


REFUSED = [
    ({"on_error": "drop", "shard": (0, 2)}, "2 ranks"),
    ({"on_error": "drop", "sampler": DistributedSampler(range(SAMPLES), 2, 0)}, "2 ranks"),
    ({"on_error": "drop", "drop_last": True}, "drop_last=True"),
    ({"on_error": "drop", "batch_sampler": BatchSampler(range(SAMPLES), 4, True)}, "drop_last"),
    ({"on_error": "skip"}, "sequential"),
    ({"on_error": "skip", "seed": 1, "shard": (0, 2)}, "sequential"),
    ({"on_error": "skip", "sampler": range(SAMPLES)}, "which the sampler may leave out"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
def test_no_sample_counts_twice_and_no_rank_gets_less(options: Any, why: str) -> None:
    batches = options.get("batch_sampler")
    with pytest.raises(UsageError, match=why) as caught:
        DataLoader(images(), 1 if batches else 4, **options)
    assert 'on_error="' in caught.value.hint  # another one


@pytest.mark.parametrize("options", [{"order": "sequential"}, {"shuffle": True}])
def test_skip_is_for_orders_that_shuffle_or_are_named(options: Any) -> None:
    assert len(list(DataLoader(images(), 30, on_error="skip", **options))) == 2


@threads
def test_all_samples_are_bad(threads: int) -> None:
    data = ImageDataset(damaged("shards", set(range(SAMPLES))), CROPS)
    loader = make(data, on_error="skip", shuffle=True, num_workers=threads)
    for _ in range(2):
        with pytest.raises(SampleError, match="no sample is left") as info:
            list(loader)
        assert "verify" in info.value.hint
    zero = make(data, on_error="zero", num_workers=threads)
    with pytest.warns(UserWarning, match=f"{SAMPLES} samples.*\n(.*\n)+.*and {SAMPLES - 10} more"):
        assert not any(batch[-1].any() for batch in zero)


@pytest.mark.parametrize(
    ("how", "threads"), [("missing", 0), ("shorter", 1), ("longer", 8), ("a folder", 2)]
)
@pytest.mark.parametrize("container", ["shards", "folder"])
def test_a_file_that_is_not_as_it_was(how: str, container: str, threads: int) -> None:
    root = damaged(container, set())
    path, *_ = blob_at(root, 0)
    match how:
        case "missing":
            path.unlink()
        case "shorter":
            path.write_bytes(path.read_bytes()[:-100])
        case "longer":
            with path.open("ab") as file:
                file.write(b"more")
        case _:
            path.unlink()
            path.mkdir()
    rows = index_rows(root)
    lost = {n for n in range(SAMPLES) if blob_at(root, n)[0] == path}
    if container == "folder" and how == "longer":
        lost = set()  # the image itself is as it was
    data = ImageDataset(root, CROPS)
    found = until_the_end(iter(make(data, num_workers=threads)))
    for number, batch in enumerate(found):
        bad = [n for n in range(8 * number, min(8 * number + 8, SAMPLES)) if n in lost]
        if bad:
            assert isinstance(batch, DatasetError), batch
            assert str(path) in batch.what and rows[bad[0]]["key"] in batch.what
            assert batch.hint
        else:
            assert batch[2].tolist() == list(range(8 * number, min(8 * number + 8, SAMPLES)))
    if lost and len(lost) < SAMPLES:
        with pytest.warns(UserWarning, match="left out"):
            rest = list(make(data, num_workers=threads, on_error="drop"))
        good = [number for number in range(SAMPLES) if number not in lost]
        assert [index for batch in rest for index in batch[2].tolist()] == good


def packed_images(files: list[bytes], **options: Any) -> ImageDataset:
    root = folder()
    for number, file in enumerate(files):
        path = root / "tree" / "class" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
    pack_tree(root / "tree", root / "out", "shards", **options)
    return ImageDataset(root / "out", Resize((24, 24)))


def scan_damaged(data: bytes) -> bytes:
    """Bits of the entropy-coded data changed, and no marker made: Pillow decodes it."""
    changed = bytearray(data)
    for at in range(len(data) // 2, len(data) // 2 + 40):
        if changed[at] != 0xFF and changed[at - 1] != 0xFF:
            changed[at] ^= 0x55 if changed[at] != 0xFF ^ 0x55 else 0x54
    return bytes(changed)


@threads
@pytest.mark.parametrize("seek_points", [True, False])
def test_a_damaged_scan_that_pillow_decodes_is_decoded_by_pillow(
    threads: int, seek_points: bool
) -> None:
    files = [encode(picture(120, 90, number)) for number in range(6)]
    files[1] = scan_damaged(files[1])
    middle = len(files[4]) * 2 // 3
    files[4] = files[4][:middle] + b"\xff\xd9" + files[4][middle + 2 :]
    data = packed_images(files, seek_points=seek_points)
    loader = DataLoader(data, 3, num_workers=threads, on_error="raise")
    pixels = torch.cat([batch for batch, _ in loader]).permute(0, 2, 3, 1).numpy()
    for number in range(6):
        want = np.asarray(data.open_image(number).resize((24, 24), 2))
        assert np.abs(pixels[number].astype(int) - want).max() <= 1
    assert 1 <= loader.stats().by_pillow <= 2


def declined_images() -> list[bytes]:
    """Files of kinds that the core leaves to Pillow."""
    pixels = [picture(120, 90, number) for number in range(4)]
    return [
        as_file(pixels[0], "JPEG", "CMYK", progressive=True),
        as_file(pixels[1], "JPEG", "CMYK"),
        as_file(pixels[2], "TIFF", "CMYK"),
        as_file(pixels[3], "JPEG", "CMYK", progressive=True),
    ]


@pytest.mark.parametrize(("on_error", "threads"), [("raise", 0), ("drop", 2), ("zero", 1)])
@pytest.mark.parametrize("kind", ["of the core's", "of Pillow's"])
def test_nothing_whose_checksum_fails_is_used(kind: str, on_error: str, threads: int) -> None:
    """Neither by the core nor by Pillow, which would both decode these bytes without a word."""
    if kind == "of the core's":
        files = [encode(picture(120, 90, number)) for number in range(4)]
    else:
        files = declined_images()
    data = packed_images(files)
    path, offset, length = blob_at(Path(data.location), 3)
    changed = scan_damaged(files[3])
    with path.open("r+b") as file:
        file.seek(offset)
        assert file.read(length) == files[3] != changed
        file.seek(offset)
        file.write(changed)
    with Image.open(io.BytesIO(changed)) as image:
        image.load()
    loader = make(data, batch_size=2, num_workers=threads, on_error=on_error)
    if on_error == "raise":
        good, error = until_the_end(iter(loader))
        assert good[2].tolist() == [0, 1]
        assert isinstance(error, CorruptionError) and "class/03" in error.what
        return
    with pytest.warns(UserWarning, match=r"1 sample .*\n.*class/03"):
        batches = list(loader)
    assert loader.stats().bad_samples == 1
    if on_error == "drop":
        assert [batch[2].tolist() for batch in batches] == [[0, 1], [2]]
        return
    pixels, *_, valid = batches[1]
    assert valid.tolist() == [True, False]
    assert pixels[0].any() and not pixels[1].any()
    assert loader.stats().by_pillow == (0 if kind == "of the core's" else 3)


@threads
def test_a_damaged_scan_that_pillow_cannot_decode(threads: int) -> None:
    files = [encode(picture(120, 90, number)) for number in range(6)]
    files[4] = broken_jpeg()
    data = packed_images(files, seek_points=False)
    loader = DataLoader(data, 3, num_workers=threads)
    found = until_the_end(iter(loader))
    assert len(found) == 2 and isinstance(found[1], SampleError)
    for part in ("sample 4 (class/04)", str(data.location), "cannot be decoded"):
        assert part in found[1].what
    assert "fastdata verify" in found[1].hint
    with pytest.warns(UserWarning, match=r"1 sample .*\n.*class/04"):
        batches = list(DataLoader(data, 3, num_workers=threads, on_error="drop", **WITH_INDEX))
    assert [batch[2].tolist() for batch in batches] == [[0, 1, 2], [3, 5]]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("on_error", ["raise", "skip", "drop", "zero"])
@pytest.mark.parametrize("threads", [0, 2])
def test_memory_of_a_batch_with_a_bad_sample_comes_back_at_once(
    threads: int, on_error: str
) -> None:
    """An error refers to no memory: else that would come back with garbage collection only."""
    files = [encode(picture(120, 90, number)) for number in range(6)]
    files[4] = broken_jpeg()
    data = packed_images(files)
    shuffle = True if on_error == "skip" else None
    loader = DataLoader(data, 3, shuffle, num_workers=threads, on_error=on_error)
    gc.collect()
    before = _image_tensors()  # of other tests
    gc.disable()
    try:
        iterator = iter(loader)
        with suppress(SampleError):
            for _ in iterator:
                del _
        assert _image_tensors().keys() <= before.keys()
    finally:
        gc.enable()


def _image_tensors() -> dict[int, torch.Tensor]:
    """Return the tensors of images that are alive, by identity."""
    tensors = [one for one in gc.get_objects() if type(one) is torch.Tensor]
    return {id(one): one for one in tensors if one.shape[-3:] == (3, 24, 24)}


@threads
def test_seek_points_of_another_image_do_no_harm(threads: int) -> None:
    root = damaged("shards", set())
    tables = [row["seek_points"] for row in index_rows(root)]
    have = [n for n, entry in enumerate(tables) if entry is not None]
    assert len(have) > 20
    lying = list(tables)
    for place, other in zip(have, have[1:] + have[:1], strict=True):
        lying[place] = tables[other]
    lying[have[3]] = b""
    lying[have[4]] = bytes(len(tables[have[4]]))
    edit_index(root, lambda table: set_column(table, "seek_points", lying))
    loader, right = make(ImageDataset(root, CROPS), num_workers=threads), make(images())
    # Once, however many there are; and in a second epoch no more.
    with pytest.warns(
        UserWarning, match=rf"seek points of another image.*seek-points {root}"
    ) as said:
        found = list(loader)
    assert len(besides_fallback(said)) == 1
    for batch, expected in zip(found, right, strict=True):
        assert same(batch[1:], expected[1:])
        # The core decodes them, also the one whose table is empty, as if it had none.
        assert (batch[0].int() - expected[0].int()).abs().max() <= 1
    assert loader.stats().by_pillow == right.stats().by_pillow
    assert loader.stats().bad_seek_points == len(have) - 1
    assert right.stats().bad_seek_points == 0
    assert len(list(loader)) == len(found)


@pytest.mark.parametrize(("part", "threads"), [("record", 2), ("seek points", 0)])
def test_a_damaged_row_of_the_index_is_like_a_damaged_sample(threads: int, part: str) -> None:
    root = damaged("shards", set())
    rows = index_rows(root)
    number = next(i for i, row in enumerate(rows) if row["seek_points"])
    index = root / "_index.rows"
    content = bytearray(index.read_bytes())
    at = 64 + 64 * number + 30  # in its label
    if part == "seek points":
        at = content.index(rows[number]["seek_points"]) + 20
    content[at] ^= 4
    index.write_bytes(content)
    data = ImageDataset(root, CROPS)
    with pytest.raises(CorruptionError, match=f"_index.rows: the index is damaged at row {number}"):
        list(make(data, num_workers=threads))
    with pytest.warns(UserWarning, match=rf"1 sample .*\n.*damaged at row {number}"):
        batches = list(make(data, num_workers=threads, on_error="drop"))
    found = [index for batch in batches for index in batch[2].tolist()]
    assert found == [row for row in range(len(rows)) if row != number]
    zero = DataLoader(data, 8, num_workers=threads, on_error="zero", fields=("image", "index"))
    with pytest.warns(UserWarning, match=rf"damaged at row {number}"):
        valid = torch.cat([batch["valid"] for batch in zero])
    assert torch.nonzero(~valid).tolist() == [[number]]


@threads
def test_a_samplers_error_comes_after_what_it_has_given(threads: int) -> None:
    def broken_sampler() -> Iterator[list[int]]:
        yield [0, 1]
        yield [2, 3]
        raise OSError("the sampler broke")

    for sampler, error in (
        (broken_sampler(), "the sampler broke"),
        ([[0, 1], [2, 3], [4, SAMPLES]], f"sample {SAMPLES} of {SAMPLES}"),
    ):
        loader = DataLoader(images(), batch_sampler=sampler, num_workers=threads, **WITH_INDEX)
        iterator = iter(loader)
        assert [next(iterator)[2].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises((OSError, IndexError), match=error):
            next(iterator)
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("threads", [1, 2])
def test_timeout(threads: int) -> None:
    large = encode(picture(2000, 1500, 1, 0))
    data = packed_images([large])
    data.transform = Resize((900, 900))
    loader = DataLoader(data, 64, sampler=[0] * 64, num_workers=threads, timeout=0.01)
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.01 seconds"):
        next(iter(loader))
    patient = DataLoader(data, 1, num_workers=threads, timeout=HANG)
    assert len(list(patient)) == 1


@pytest.mark.parametrize("where", ["target_transform", "batch_transform"])
@pytest.mark.parametrize("raised", [ZeroDivisionError, StopIteration])
@threads
def test_errors_of_the_users_functions(raised: Any, where: str, threads: int) -> None:
    def function(*_: Any) -> Any:
        raise raised("by the user")

    data, options = images(), {}
    if where == "target_transform":
        data.target_transform = function
    else:
        options = {"batch_transform": function}
    loader = make(data, num_workers=threads, **options)
    iterator = iter(loader)
    # Each costs its batch, as in torch's own loader; StopIteration does not end the epoch.
    for _ in range(len(loader)):
        with pytest.raises(RuntimeError if raised is StopIteration else raised):
            next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_a_batch_too_large_for_memory_says_so() -> None:
    data = images(Resize((10**6, 10**6)))
    with pytest.raises(MemoryError, match=r"8, 1000000, 1000000, 3\), 2\.4e\+04 GB: give the"):
        next(iter(make(data)))


def test_an_error_in_a_worker_of_torchs_keeps_its_lines(tmp_path: Path) -> None:
    (tmp_path / "tree" / "0").mkdir(parents=True)
    (tmp_path / "tree" / "0" / "a.jpg").write_bytes(broken_jpeg())
    pack_tree(tmp_path / "tree", tmp_path / "set", "shards")
    opened = ImageDataset(tmp_path / "set", Resize((8, 8)))
    with pytest.raises(SampleError) as caught:
        list(torch.utils.data.DataLoader(opened, num_workers=1))
    with pytest.raises(SampleError) as here:
        opened[0]
    lines = str(caught.value).splitlines()
    assert "Original Traceback (most recent call last):" in lines
    assert here.value.hint in lines
