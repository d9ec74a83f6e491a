"""Arguments of DALI's decoders, and their abilities on this machine.

nvImageCodec decodes for DALI. It has several back ends, takes the first that accepts an image, and
does not say which.
"""

from __future__ import annotations

import functools
import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

#: Side, in pixels, of the images that fill a new pipeline: an ordinary photograph's. A GPU's JPEG
#: engine does not take small ones, and nvImageCodec may not come back to the engine then.
SIDE = 512

#: Encodings beside baseline JPEG, as in an index, of which DALI decodes those that it is installed
#: for.
BESIDES = ("jpeg-progressive", "png")


def arguments(device_id: int | None) -> dict[str, Any]:
    """Return the arguments of DALI's decoders."""
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
    one = {"batch_size": 1, "num_threads": 1, "prefetch_queue_depth": 1}
    pipeline = dali().Pipeline(device_id=device_id, **one)
    with pipeline:
        pipeline.set_outputs(dali().fn.decoders.image(files_input(), **arguments(device_id)))
    pipeline.build()
    pipeline.feed_input("data", [example(encoding)])
    try:
        pipeline.run()
    except RuntimeError:
        return False
    return True


def dali() -> Any:
    """Return DALI, whose type stubs are incomplete."""
    import nvidia.dali

    return nvidia.dali
