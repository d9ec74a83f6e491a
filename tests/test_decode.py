"""Single images, and batches by the core: threads, number formats, arguments."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from core_batches import decode_batch, job_of
from hangs import HANG
from jpegs import encode, picture, pillow
from PIL import Image

from fastdata import _native
from fastdata.decode import DecodeError, decode_jpeg, jpeg_info, seek_points

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


def test_engine_equals_one_by_one(simd):
    tables = [seek_points(data) for data in IMAGES]
    engine, jobs = _native.ThreadPool(3), []
    for round_ in range(8):
        out = np.zeros_like(EXPECTED)
        job = job_of(IMAGES, out, seek_points=tables if round_ % 2 else None)
        engine.submit(job)
        jobs.append((job, out))
    for job, out in reversed(jobs):
        assert job.collect(HANG)[0] == [] and job.done()
        assert np.array_equal(out, EXPECTED)


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_normalised(simd, dtype):
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    scale = np.array([1 / (255 * s) for s in std], np.float32)
    offset = np.array([-m / s for m, s in zip(mean, std, strict=False)], np.float32)
    kind = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[dtype]
    for width, planar in product((48, 1, 17, 100), (False, True)):
        size = (width, 40)
        pixels = np.stack([decode_jpeg(data, size=size) for data in IMAGES])
        expected = pixels.astype(np.float32) * scale + offset
        expected = bfloat16_bits(expected) if dtype == "bfloat16" else expected.astype(kind)
        shape = (len(IMAGES), 3, 40, width) if planar else (len(IMAGES), 40, width, 3)
        guarded = np.full(np.prod(shape) + 64, 7, kind)
        out = guarded[:-64].reshape(shape)
        out = out.transpose(0, 2, 3, 1) if planar else out
        assert decode_batch(IMAGES, size, dtype=dtype, mean=mean, std=std, out=out) is out
        assert np.array_equal(out, expected)
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


def test_nothing_is_written_outside(simd):
    """Every output is exactly its own pixels, in rows of any stride, of a region or flipped."""
    for width, flip in product((1, 15, 16, 17, 63, 64, 65, 224), (False, True)):
        big = np.full((2, 9, width + 5, 3), 99, np.uint8)
        out, box = big[:, 1:8, :width], (3, 5, 60, 50)
        decode_batch(IMAGES[:2], (width, 7), regions=[box] * 2, flips=[flip] * 2, out=out)
        assert np.array_equal(out[1], decode_jpeg(IMAGES[1], box, (width, 7), flip=flip))
        big[:, 1:8, :width] = 99
        assert (big == 99).all()
    whole = decode_jpeg(IMAGES[0], (3, 5, 60, 50))
    assert np.array_equal(decode_jpeg(IMAGES[0], (3, 5, 60, 50), flip=True), whole[:, ::-1])


def test_failures_name_the_sample():
    bad = list(IMAGES)
    bad[2] = IMAGES[2][:400]
    bad[4] = b"junk"
    out = np.zeros_like(EXPECTED)
    job = job_of(bad, out)
    job.run()
    failures = job.failures()
    assert [(index, code) for index, code, *_ in failures] == [(2, "truncated"), (4, "not_jpeg")]
    good = [0, 1, 3, 5]
    assert np.array_equal(out[good], EXPECTED[good])


def test_mixed_kinds():
    raw, png = pillow(IMAGES[1]), io.BytesIO()
    Image.fromarray(raw).save(png, "PNG")
    for one in (png.getvalue(), raw, memoryview(IMAGES[1])):
        assert np.array_equal(decode_jpeg(one, size=SIZE), EXPECTED[1])
    out = decode_batch(IMAGES[:3], SIZE)
    assert decode_batch([], (5, 5)).shape == (0, 5, 5, 3)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        decode_batch(IMAGES[:3], SIZE, out=out)


def test_waiting_and_cancelling():
    big = encode(picture(1000, 1000, 1), "4:4:4", 95)
    engine, job = _native.ThreadPool(1), job_of([big] * 40, np.zeros((40, 32, 32, 3), np.uint8))
    engine.submit(job)
    with pytest.raises(TimeoutError):
        job.collect(0.0)
    job.cancel()
    assert {code for _, code, *_ in job.collect(HANG)[0]} == {"cancelled"}


def test_closing_and_dropping_do_not_hang():
    big = encode(picture(1000, 1000, 1), "4:4:4", 95)
    engine = _native.ThreadPool(2)
    jobs = [job_of([big] * 20, np.zeros((20, 8, 8, 3), np.uint8)) for _ in range(3)]
    for job in jobs:
        engine.submit(job)
    del job
    jobs.pop(0)  # dropped while under way
    del engine
    assert all(one.done() for one in jobs)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_batches_run():
    engine = _native.ThreadPool(2)
    out = np.zeros_like(EXPECTED)
    first, running = job_of(IMAGES, out), job_of(IMAGES * 50, np.zeros((300, 40, 48, 3), np.uint8))
    engine.submit(first)
    first.collect(HANG)
    engine.submit(running)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            again = np.zeros_like(EXPECTED)
            job = job_of(IMAGES, again)
            engine.submit(job)
            job.collect(HANG)
            code = 0 if np.array_equal(again, EXPECTED) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    running.collect(HANG)


def test_bad_arguments():
    def batch(**options):
        return lambda: decode_batch(IMAGES, SIZE, **options)

    def out(*shape, dtype=np.uint8):
        return np.zeros(shape, dtype)

    for call, message in [
        (lambda: decode_jpeg(IMAGES[0], (0, 0, 81, 60)), "60 x 80"),
        (lambda: decode_jpeg(IMAGES[0], (-1, 0, 5, 5)), "region"),
        (lambda: decode_jpeg(IMAGES[0], (5, 5, 5, 9), (4, 4)), "region"),
        (lambda: decode_jpeg(IMAGES[0], region=(0, 0, 4)), "region must be"),
        (lambda: decode_jpeg(IMAGES[0], filter="box"), "filter must be one of"),
        (lambda: decode_jpeg(IMAGES[0], fallback="maybe"), "fallback must be one of"),
        (batch(mean=[0, 0, 0]), "float dtypes"),
        (batch(dtype="float32", std=[0, 1, 1]), "positive"),
        (batch(seek_points=[None]), "seek_points"),
        (batch(out=out(5, 40, 48, 3)), "samples"),
        (batch(out=out(6, 40, 48, 4)), "shape"),
        (batch(out=out(6, 40, 48, 3, dtype=np.int16)), "items"),
        (batch(out=out(6, 40, 96, 3)[:, :, ::2]), "contiguous"),
        (batch(out=out(6, 40, 48, 3)[:, ::-1]), "stride"),
        (lambda: _native.set_simd("mmx"), "scalar, avx2, avx512 or neon"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    for size in (64, (0, 64), (-1, 3), (4,), (4, 4, 3), (1.5, 2), "ab"):
        with pytest.raises(ValueError, match=r"size must be \(width, height\)"):
            decode_jpeg(IMAGES[0], size=size)


@pytest.mark.slow
def test_forced_level_in_a_fresh_process():
    code = "from fastdata import _native; print(_native.simd())"
    for level in [*_native.simd_levels(), "sse9"]:
        environment = {**os.environ, "FASTDATA_SIMD": level}
        command = [sys.executable, "-c", code]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if level == "sse9":
            assert run.returncode != 0 and "scalar, avx2, avx512 or neon" in run.stderr
        else:
            assert run.stdout.strip() == level, run.stderr


def test_what_cannot_be_decoded_says_what_to_do():
    image, other = encode(picture(40, 30)), encode(picture(40, 30, 1))
    with pytest.raises(DecodeError, match=r"cannot identify an image in 5 bytes(.|\n)*Give the"):
        decode_jpeg(b"hello")
    with pytest.raises(DecodeError, match=r"another length(.|\n)*Give the points"):
        decode_jpeg(image, seek_points=seek_points(other))


def test_more_threads_than_the_system_gives_are_an_error():
    code = """
import resource
import numpy as np
from core_batches import job_of
from fastdata import _native
samples, out = [b"no image"], np.empty((1, 8, 8, 3), np.uint8)
mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20), unlimited[1]))
try:
    _native.ThreadPool(100_000).submit(job_of(samples, out))
except RuntimeError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, unlimited)
engine, job = _native.ThreadPool(2), job_of(samples, out)
engine.submit(job)
print(len(job.collect()[0]))
"""
    here = {**os.environ, "PYTHONPATH": os.path.dirname(__file__)}
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=here, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    told, errors = run.stdout.splitlines()
    assert "of 100000 decode threads" in told and "num_workers" in told
    assert errors == "1"
