"""The pipelines of DALI's operators: decode a region, resize it, cut, mirror and normalise.

All geometry comes in as data, drawn by fastdata; DALI draws nothing.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata import _native
from fastdata.transforms.geometry import Cuts

if TYPE_CHECKING:
    from fastdata.transforms.recipe import Program


#: Side, in pixels, of the images that fill a new pipeline: an ordinary photograph's. A GPU's JPEG
#: engine does not take small ones, and nvImageCodec may not come back to the engine then.
_SIDE = 512


@dataclass(frozen=True)
class Graph:
    """Builder of DALI pipelines.

    Attributes:
        programs: Crops and output format of each view.
        device_id: The GPU; None for none.
        threads: Number of DALI's threads.
        depth: Number of batches in a pipeline at once.
    """

    programs: tuple[Program, ...]
    device_id: int | None
    threads: int
    depth: int

    def build(self, batch_size: int) -> Any:
        """Return a pipeline for so many samples at most; it has run, and nothing is under way."""
        built = dali().Pipeline(
            batch_size=batch_size,
            num_threads=self.threads,
            device_id=self.device_id,
            prefetch_queue_depth=self.depth,
        )
        with built:
            built.set_outputs(*self._define())
        built.build()
        # A GPU gets a whole batch, for which its decoders reserve memory.
        count = 1 if self.device_id is None else batch_size
        samples = [_photograph()] * count
        whole = np.zeros((len(self.programs), count), _native.CUT)
        whole["box"] = 0, 0, _SIDE, _SIDE
        for cut, program in zip(whole, self.programs, strict=True):
            cut["size"] = program.size
        # A full pipeline takes and gives one batch at a time. The first schedule_run() runs it
        # this many times.
        for _ in range(self.depth):
            self.feed(built, samples, list(whole), np.arange(count))
        built.schedule_run()
        for _ in range(self.depth):
            built.outputs()
        return built

    def feed(
        self,
        pipeline: Any,
        samples: list[npt.NDArray[np.uint8]],
        cuts: list[Cuts],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Feed a pipeline one batch: samples that must stay until it is done, and their cuts."""
        pipeline.feed_input("data", samples)
        for view, (program, drawn) in enumerate(zip(self.programs, cuts, strict=True)):
            cut = drawn[rows]
            boxes = cut["box"]
            start = np.ascontiguousarray(boxes[:, [1, 0]])
            pipeline.feed_input(f"start{view}", start)
            pipeline.feed_input(f"shape{view}", np.ascontiguousarray(boxes[:, [3, 2]] - start))
            pipeline.feed_input(f"mirror{view}", (cut["flip"] & 1).astype(np.int32))
            if not _resizes(program):
                continue
            sizes = cut["size"]
            pipeline.feed_input(f"size{view}", sizes[:, ::-1].astype(np.float32))
            # DALI takes a window's place as a share of the free room.
            room = np.maximum(sizes - np.array(program.size), 1)
            shares = (cut["window"] / room).astype(np.float32)
            pipeline.feed_input(f"x{view}", np.ascontiguousarray(shares[:, 0]))
            pipeline.feed_input(f"y{view}", np.ascontiguousarray(shares[:, 1]))

    def _define(self) -> list[Any]:
        """Return the outputs of a pipeline: a batch of images for each view."""
        fn, types = dali().fn, dali().types
        data = fn.external_source(name="data", ndim=1, dtype=types.UINT8, no_copy=True)
        decoding = _arguments(self.device_id)
        # On a GPU, decoding a region may fail (github.com/NVIDIA/nvImageCodec/issues/55).
        whole = None if self.device_id is None else fn.decoders.image(data, **decoding)
        results = []
        for view, program in enumerate(self.programs):
            start = fn.external_source(name=f"start{view}", ndim=1, dtype=types.INT32)
            shape = fn.external_source(name=f"shape{view}", ndim=1, dtype=types.INT32)
            if whole is None:
                images = fn.decoders.image_slice(data, start, shape, axes=[0, 1], **decoding)
            else:
                images = fn.slice(whole, start, shape, axes=[0, 1])
            results.append(self._finish(images, view, program))
        return results

    def _finish(self, images: Any, view: int, program: Program) -> Any:
        """Resize, cut, mirror and normalise."""
        fn, types = dali().fn, dali().types
        output = program.output
        width, height = program.size
        cut: dict[str, Any] = {}
        if _resizes(program):
            filters = {
                "bilinear": types.INTERP_LINEAR,
                "nearest": types.INTERP_NN,
                "bicubic": types.INTERP_CUBIC,
                "lanczos": types.INTERP_LANCZOS3,
            }
            images = fn.resize(
                images,
                size=fn.external_source(name=f"size{view}", ndim=1, dtype=types.FLOAT),
                interp_type=filters[program.filter],
                antialias=True,
            )
            cut = {
                "crop": (height, width),
                "crop_pos_x": fn.external_source(name=f"x{view}", ndim=0, dtype=types.FLOAT),
                "crop_pos_y": fn.external_source(name=f"y{view}", ndim=0, dtype=types.FLOAT),
            }
        dtypes = {"uint8": types.UINT8, "float16": types.FLOAT16}
        scale = 1.0 if output.dtype == "uint8" else 255.0
        return fn.crop_mirror_normalize(
            images,
            mirror=fn.external_source(name=f"mirror{view}", ndim=0, dtype=types.INT32),
            # DALI has no bfloat16 here: torch rounds.
            dtype=dtypes.get(output.dtype, types.FLOAT),
            mean=[scale * value for value in output.mean or (0, 0, 0)],
            std=[scale * value for value in output.std or (1, 1, 1)],
            output_layout="HWC" if output.channels_last else "CHW",
            **cut,
        )


def _resizes(program: Program) -> bool:
    return any(step.resizes for step in program.steps)


def _arguments(device_id: int | None) -> dict[str, Any]:
    """Return the arguments of DALI's decoders."""
    # EXIF is for viewers: Pillow and the native core do not turn images either.
    chosen = {"output_type": dali().types.RGB, "adjust_orientation": False}
    if device_id is None:
        return {**chosen, "device": "cpu"}
    # All JPEGs for the engine, if there is one.
    return {**chosen, "device": "mixed", "hw_decoder_load": 1.0}


@functools.cache
def _photograph() -> npt.NDArray[np.uint8]:
    """Return the bytes of a square JPEG of noise."""
    file = io.BytesIO()
    noise = Image.effect_noise((_SIDE, _SIDE), 40).convert("RGB")
    noise.save(file, "JPEG", subsampling="4:2:0")
    return np.frombuffer(file.getvalue(), np.uint8)


def dali() -> Any:
    """Return DALI, whose type stubs are incomplete."""
    import nvidia.dali

    return nvidia.dali
