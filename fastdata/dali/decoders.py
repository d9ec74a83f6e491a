"""Arguments of DALI's decoders, and their abilities on this machine.

nvImageCodec decodes for DALI. It has several back ends, takes the first that accepts an image, and
does not say which.
"""

from __future__ import annotations

import functools
import importlib
import io
import time
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native

#: Side, in pixels, of the images that fill a new pipeline: an ordinary photograph's. A GPU's JPEG
#: engine does not take small ones, and nvImageCodec may not come back to the engine then.
SIDE = 512

#: Encodings beside baseline JPEG, as in an index, of which DALI decodes those that it is installed
#: for.
BESIDES = ("jpeg-progressive", "png")

#: Arguments of decoders that decide what a batch is.
_GIVEN = {"adjust_orientation", "device", "dtype", "output_type", "preserve"}

#: Images of a batch whose decoding is timed, and the number of such batches.
_TIMED, _ROUNDS = 64, 4


def decoder_options() -> set[str]:
    """Return the arguments that a user may give DALI's decoders, whole images' and regions'."""
    get_schema = importlib.import_module("nvidia.dali.backend").GetSchema
    decoders = ("decoders__Image", "decoders__ImageSlice")
    first, second = (set(get_schema(name).GetArgumentNames()) for name in decoders)
    return (first & second) - _GIVEN


def arguments(device_id: int | None) -> dict[str, Any]:
    """Return the arguments of a decoder whose values are not DALI's defaults."""
    # EXIF is for viewers: Pillow and the native core do not turn images either.
    chosen = {"output_type": dali().types.RGB, "adjust_orientation": False}
    if device_id is None:
        return {**chosen, "device": "cpu"}
    # All JPEGs for the engine, if there is one.
    return {**chosen, "device": "mixed", "hw_decoder_load": 1.0}


def files_input() -> Any:
    """Return the input of a pipeline: the bytes of files, named "data"."""
    uint8 = dali().types.UINT8
    return dali().fn.external_source(name="data", ndim=1, dtype=uint8, no_copy=True)


@functools.cache
def example(encoding: str, side: int = SIDE) -> npt.NDArray[np.uint8]:
    """Return the bytes of a square image of noise, "jpeg" or one of `BESIDES`."""
    file = io.BytesIO()
    image = Image.effect_noise((side, side), 40).convert("RGB")
    if encoding == "png":
        image.save(file, "PNG")
    else:
        image.save(file, "JPEG", subsampling="4:2:0", progressive=encoding == "jpeg-progressive")
    return np.frombuffer(file.getvalue(), np.uint8)


@functools.cache
def decodes(encoding: str, device_id: int | None) -> bool:
    """Return whether this installation of DALI decodes an encoding of `example`.

    nvImageCodec decodes some by extensions, which may be missing; and one image that it cannot
    decode ends a pipeline. RuntimeError: DALI cannot use the device.
    """
    pipeline = _pipeline(1, device_id, False, {})
    pipeline.feed_input("data", [example(encoding)])
    try:
        pipeline.run()
    except RuntimeError:
        return False
    return True


@functools.cache
def jpeg_back_end(device_id: int, regions: bool, options: tuple[tuple[str, Any], ...]) -> str:
    """Return the back end that decodes baseline JPEGs on a GPU, by the time that it takes.

    The hybrid one decodes Huffman codes on the CPU: on photographs, a thread takes 1.9 ms an image.
    The JPEG engine of an H200 takes 0.05 ms, and the core 0.3 ms for these codes alone. Twice the
    core's time lies between. "JPEG engine", "CUDA" or "hybrid"; RuntimeError if DALI cannot use the
    device.

    The engine repeats chroma. If it shall be interpolated, CUDA decodes: an H200's DALI then takes
    0.08 ms more of a CPU thread, and the pixels are nearer to libjpeg-turbo's.
    """
    pipeline = _pipeline(_TIMED, device_id, regions, dict(options))
    files = [example("jpeg")] * _TIMED
    whole, codes = [], []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        pipeline.feed_input("data", files)
        pipeline.run()
        whole.append(time.perf_counter() - begun)
        begun = time.thread_time()  # unlike wall time, the same on a busy machine
        _native.build_seek_points(files, SIDE)
        codes.append(time.thread_time() - begun)
    if min(whole) > 2 * min(codes):  # the least: other processes use the GPU and the cores, too
        return "hybrid"
    interpolated = dict(options).get("jpeg_fancy_upsampling")
    return "JPEG engine" if has_engine(device_id) and not interpolated else "CUDA"


@functools.cache
def has_engine(device_id: int) -> bool:
    """Return whether nvImageCodec finds a JPEG engine in a GPU."""
    try:
        nvimgcodec = importlib.import_module("nvidia.nvimgcodec")
    except ImportError:  # an installation without its Python module
        return False
    only = [nvimgcodec.Backend(nvimgcodec.BackendKind.HW_GPU_ONLY)]
    try:
        nvimgcodec.Decoder(device_id=device_id, backends=only)
    except RuntimeError:
        return False
    return True


def dali() -> Any:
    """Return DALI, whose type stubs are incomplete."""
    import nvidia.dali

    return nvidia.dali


def _pipeline(
    batch_size: int, device_id: int | None, regions: bool, options: dict[str, Any]
) -> Any:
    """Return a pipeline of one thread that decodes and does no more."""
    one = {"num_threads": 1, "prefetch_queue_depth": 1}
    built = dali().Pipeline(batch_size=batch_size, device_id=device_id, **one)
    with built:
        decoding = {**arguments(device_id), **options}
        decoders, files = dali().fn.decoders, files_input()
        if regions:
            images = decoders.image_slice(files, (0, 0), (SIDE, SIDE), axes=(0, 1), **decoding)
        else:
            images = decoders.image(files, **decoding)
        built.set_outputs(images)
    built.build()
    return built
