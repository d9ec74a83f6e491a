"""fastdata.decode: batches, engines, number formats, arguments."""

from __future__ import annotations

import os
import platform
import threading

import numpy as np
import pytest
from hangs import HANG
from jpegs import encode, picture, pillow

from fastdata import _native
from fastdata.decode import (
    DecodeError,
    Engine,
    decode_batch,
    decode_jpeg,
    jpeg_info,
    seek_points,
)

IMAGES = [
    encode(picture(80 + 7 * i, 60 + 5 * i, i), s, 85)
    for i, s in enumerate(["4:2:0", "4:4:4", "grey", "4:2:2", "4:2:0", "4:4:0"])
]
SIZE = (48, 40)
EXPECTED = np.stack([decode_jpeg(data, size=SIZE) for data in IMAGES])


def test_info():
    info = jpeg_info(IMAGES[0])
    assert (info.encoding, info.width, info.height) == ("jpeg", 80, 60)
    assert (info.components, info.sampling, info.native) == (3, "4:2:0", True)
    assert [jpeg_info(data).sampling for data in IMAGES] == [
        "4:2:0", "4:4:4", "grey", "4:2:2", "4:2:0", "4:4:0",
    ]  # fmt: skip
    assert jpeg_info(b"").encoding == "unknown"
    # The size is told by much less than the whole file.
    at = IMAGES[0].index(b"\xff\xc0")
    assert jpeg_info(IMAGES[0][: at + 25]).width == 80


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_engine_equals_one_by_one(simd, threads):
    tables = [seek_points(data) for data in IMAGES]
    with Engine(threads) as engine:
        jobs = []
        for round_ in range(8):
            out = np.zeros_like(EXPECTED)
            tables_or_none = tables if round_ % 2 else None
            jobs.append((engine.submit(IMAGES, out, seek_points=tables_or_none), out))
        for pending, out in reversed(jobs):
            assert pending.result() is out
            assert pending.done()
            assert np.array_equal(out, EXPECTED)


def test_regions_and_flips(simd):
    boxes = [(3, 5, 60, 50)] * len(IMAGES)
    flips = [i % 2 == 0 for i in range(len(IMAGES))]
    out = decode_batch(IMAGES, SIZE, regions=boxes, flips=flips)
    for data, box, flip, image in zip(IMAGES, boxes, flips, out, strict=False):
        assert np.array_equal(image, decode_jpeg(data, box, SIZE, flip=flip))
    same = decode_jpeg(IMAGES[0], (3, 5, 60, 50))
    assert np.array_equal(decode_jpeg(IMAGES[0], (3, 5, 60, 50), flip=True), same[:, ::-1])


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("planar", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [48, 1, 17, 100])
def test_normalised(simd, dtype, planar, width):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    scale = np.array([1 / (255 * s) for s in std], np.float32)
    offset = np.array([-m / s for m, s in zip(mean, std, strict=False)], np.float32)
    size = (width, 40)
    pixels = np.stack([decode_jpeg(data, size=size) for data in IMAGES])
    expected = pixels.astype(np.float32) * scale + offset
    kind = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[dtype]
    shape = (len(IMAGES), 3, 40, width) if planar else (len(IMAGES), 40, width, 3)
    guarded = np.full(np.prod(shape) + 64, 7, kind)
    out = guarded[:-64].reshape(shape)
    if planar:
        out = out.transpose(0, 2, 3, 1)
    result = decode_batch(IMAGES, size, dtype=dtype, mean=mean, std=std, out=out)
    assert result is out
    if dtype == "bfloat16":
        assert np.array_equal(out, bfloat16_bits(expected))
    else:
        assert np.array_equal(out, expected.astype(kind))
    assert (guarded[-64:] == 7).all()


def test_float16_of_extreme_values(simd):
    """Subnormal and infinite float16 round as numpy's."""
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 256).repeat(2, 0)
    for std in (300.0, 5e4, 1e5, 1.0, 1e-4, 5e-5):
        out = decode_batch([pixels], (256, 2), dtype="float16", std=[std] * 3)
        scale = np.float32(1 / (255 * std))
        with np.errstate(over="ignore"):
            expected = (np.arange(256).astype(np.float32) * scale).astype(np.float16)
        assert np.array_equal(out[0, 0, :, 1], expected), std


@pytest.mark.parametrize("width", [1, 15, 16, 17, 63, 64, 65, 224])
def test_nothing_is_written_outside(simd, width):
    """Every output is exactly its own pixels, in rows of any stride."""
    for flip in (False, True):
        big = np.full((2, 9, width + 5, 3), 99, np.uint8)
        out = big[:, 1:8, :width]
        decode_batch(IMAGES[:2], (width, 7), flips=[flip] * 2, out=out)
        assert np.array_equal(out[1], decode_jpeg(IMAGES[1], size=(width, 7), flip=flip))
        big[:, 1:8, :width] = 99
        assert (big == 99).all()


def test_failures_name_the_sample():
    bad = list(IMAGES)
    bad[2] = IMAGES[2][:400]
    bad[4] = b"junk"
    out = np.zeros_like(EXPECTED)
    with Engine(2) as engine:
        pending = engine.submit(bad, out)
        errors = pending.failures()
        assert [e.index for e in errors] == [2, 4]
        assert errors[0].code == "truncated" and errors[1].code == "undecodable"
        with pytest.raises(DecodeError, match="sample 2"):
            pending.result()
    good = [0, 1, 3, 5]
    assert np.array_equal(out[good], EXPECTED[good])


def test_mixed_kinds():
    import io

    from PIL import Image

    png = io.BytesIO()
    Image.fromarray(pillow(IMAGES[1])).save(png, "PNG")
    raw = pillow(IMAGES[1])
    out = decode_batch([png.getvalue(), raw, IMAGES[1]], SIZE)
    assert np.array_equal(out[0], EXPECTED[1])
    assert np.array_equal(out[1], EXPECTED[1])
    assert np.array_equal(out[2], EXPECTED[1])


def test_memory_mapped_slices(tmp_path):
    import mmap

    offsets, blob = [], b"head"
    for data in IMAGES:
        offsets.append((len(blob), len(blob) + len(data)))
        blob += data + b"gap"
    (tmp_path / "blobs").write_bytes(blob)
    with open(tmp_path / "blobs", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        out = decode_batch([view[a:b] for a, b in offsets], SIZE)
    assert np.array_equal(out, EXPECTED)


def test_cancel():
    big = encode(picture(2000, 2000, 1), "4:4:4", 95)
    out = np.zeros((40, 32, 32, 3), np.uint8)
    with Engine(1) as engine:
        pending = engine.submit([big] * 40, out)
        pending.cancel()
        codes = {error.code for error in pending.failures()}
    assert codes == {"cancelled"}


def test_closing_and_dropping_do_not_hang():
    big = encode(picture(1000, 1000, 1), "4:4:4", 95)
    engine = Engine(2)
    pending = [engine.submit([big] * 20, np.zeros((20, 8, 8, 3), np.uint8)) for _ in range(3)]
    pending.pop(0)  # dropped while under way
    engine.close()
    assert all(one.done() for one in pending)
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit([big], np.zeros((1, 8, 8, 3), np.uint8))


def test_timeout():
    big = encode(picture(3000, 3000, 1), "4:4:4", 98)
    with Engine(1) as engine:
        pending = engine.submit([big] * 10, np.zeros((10, 8, 8, 3), np.uint8))
        with pytest.raises(TimeoutError):
            pending.result(timeout=0.0)
        pending.cancel()
        pending.failures()


def test_submitting_from_many_threads():
    results = []

    def work(engine):
        for _ in range(10):
            out = np.zeros_like(EXPECTED)
            results.append(np.array_equal(engine.submit(IMAGES, out).result(), EXPECTED))

    with Engine(2) as engine:
        threads = [threading.Thread(target=work, args=(engine,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 40 and all(results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_batches_run():
    engine = Engine(2)
    out = np.zeros_like(EXPECTED)
    engine.submit(IMAGES, out).result()
    running = engine.submit(IMAGES * 50, np.zeros((300, 40, 48, 3), np.uint8))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            again = np.zeros_like(EXPECTED)
            engine.submit(IMAGES, again).result(timeout=HANG)
            code = 0 if np.array_equal(again, EXPECTED) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    running.result()
    engine.close()


def test_empty_batch():
    assert decode_batch([], (5, 5)).shape == (0, 5, 5, 3)
    with Engine(1) as engine:
        assert engine.submit([], np.zeros((0, 5, 5, 3), np.uint8)).result().shape[0] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: decode_jpeg(IMAGES[0], (0, 0, 81, 60)), "80 x 60"),
        (lambda: decode_jpeg(IMAGES[0], (-1, 0, 5, 5)), "region"),
        (lambda: decode_jpeg(IMAGES[0], (5, 5, 5, 9), (4, 4)), "region"),
        (lambda: decode_jpeg(IMAGES[0], filter="box"), "filter must be one of"),
        (lambda: decode_jpeg(IMAGES[0], fallback="maybe"), "fallback must be one of"),
        (lambda: decode_batch(IMAGES, SIZE, dtype="int8"), "dtype must be one of"),
        (lambda: decode_batch(IMAGES, SIZE, mean=[0, 0, 0]), "float dtypes"),
        (lambda: decode_batch(IMAGES, SIZE, dtype="float32", std=[0, 1, 1]), "positive"),
        (lambda: decode_batch(IMAGES, SIZE, regions=[(0, 0, 1, 1)]), "1 regions for 6"),
        (lambda: decode_batch(IMAGES, SIZE, flips=[True]), "flips"),
        (lambda: decode_batch(IMAGES, SIZE, seek_points=[None]), "seek_points"),
        (lambda: decode_batch(IMAGES, SIZE, out=np.zeros((6, 9, 9, 3), np.uint8)), "size"),
        (lambda: decode_batch(IMAGES, SIZE, out=np.zeros((5, 40, 48, 3), np.uint8)), "samples"),
        (lambda: decode_batch(IMAGES, SIZE, out=np.zeros((6, 40, 48, 4), np.uint8)), "shape"),
        (lambda: decode_batch(IMAGES, SIZE, out=np.zeros((6, 40, 48, 3), np.int16)), "items"),
        (
            lambda: decode_batch(IMAGES, SIZE, out=np.zeros((6, 40, 96, 3), np.uint8)[:, :, ::2]),
            "contiguous",
        ),
        (
            lambda: decode_batch(IMAGES, SIZE, out=np.zeros((6, 40, 48, 3), np.uint8)[:, ::-1]),
            "stride",
        ),
        (lambda: Engine(0), "threads must be at least 1"),
        (lambda: _native.set_simd("mmx"), "scalar, avx2, avx512 or neon"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_read_only_output():
    out = np.zeros_like(EXPECTED)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        decode_batch(IMAGES, SIZE, out=out)


def test_levels_of_this_processor():
    levels = _native.simd_levels()
    machine = platform.machine()
    if machine in ("aarch64", "arm64"):
        assert levels == ["scalar", "neon"]
    elif machine == "x86_64":
        assert levels == ["scalar", "avx2", "avx512"][: len(levels)]
    assert levels[0] == "scalar"
    for level in {"scalar", "avx2", "avx512", "neon"} - set(levels):
        with pytest.raises(ValueError, match=f"{level}, which this processor lacks"):
            _native.set_simd(level)


def test_forced_level_in_a_fresh_process():
    import subprocess
    import sys

    code = "from fastdata import _native; print(_native.simd())"
    for level in _native.simd_levels():
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "FASTDATA_SIMD": level},
            capture_output=True,
            text=True,
        )
        assert run.stdout.strip() == level, run.stderr
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FASTDATA_SIMD": "sse9"},
        capture_output=True,
        text=True,
    )
    assert run.returncode != 0 and "scalar, avx2, avx512 or neon" in run.stderr


@pytest.mark.parametrize("size", [64, (0, 64), (-1, 3), (4,), (4, 4, 3), (1.5, 2), "ab"])
def test_a_size_is_two_numbers_of_pixels(size):
    data = encode(picture(40, 30))
    for decode in (decode_jpeg, lambda data, size: decode_batch([data], size)):
        with pytest.raises(ValueError, match=r"size must be \(width, height\)"):
            decode(data, size=size)


def test_what_cannot_be_decoded_says_what_to_do():
    image, other = encode(picture(40, 30)), encode(picture(40, 30, 1))
    with pytest.raises(DecodeError, match=r"cannot identify an image in 5 bytes(.|\n)*Give the"):
        decode_jpeg(b"hello")
    with pytest.raises(DecodeError, match=r"another length(.|\n)*Give the points"):
        decode_jpeg(image, seek_points=seek_points(other))
    with pytest.raises(ValueError, match="region must be"):
        decode_jpeg(image, region=(0, 0, 4))


def test_more_threads_than_the_system_gives_are_an_error():
    import subprocess
    import sys

    code = """
import resource
import numpy as np
from fastdata.decode import Engine
samples, out = [b"no image"], np.empty((1, 8, 8, 3), np.uint8)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20), unlimited[1]))
try:
    Engine(100_000).submit(samples, out)
except RuntimeError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, unlimited)
print(len(Engine(2).submit(samples, out).failures()))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    told, errors = run.stdout.splitlines()
    assert "of 100000 decode threads" in told and "num_workers" in told
    assert errors == "1"


def test_an_error_of_one_of_several_sizes_says_which_it_is():
    out = [np.empty((side, side + 1, 3), np.uint8) for side in (4, 6)]
    cuts = np.zeros(2, _native.CUT)
    cuts["box"], cuts["size"] = [(0, 0, 9, 9), (0, 0, 99, 9)], [(5, 4), (9, 9)]
    cuts["canvas"] = [(5, 4), (7, 6)]
    with Engine(1) as engine:
        pending = engine.submit([IMAGES[0]] * 2, out, cuts=cuts, fallback="never")
        with pytest.raises(DecodeError, match=r"80 x 60 pixels.*0, 0, 99, 9.*resized to"):
            pending.result()
