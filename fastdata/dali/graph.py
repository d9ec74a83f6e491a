"""The pipelines of DALI's operators: decode a region, resize it, cut, mirror and normalise.

All geometry comes in as data, drawn by fastdata; DALI draws nothing.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.dali.options import DALIOptions
from fastdata.transforms.compile import Program
from fastdata.transforms.descriptions import RandomResizedCrop, Resize
from fastdata.transforms.geometry import Geometry

#: Kinds of samples, each of which has a pipeline of its own.
ENCODED, RAW = "encoded", "raw"

# A pipeline is first run on this: then it is full, and takes and gives one batch at a time.
_SIDE = 8


@dataclass(frozen=True)
class Graph:
    """What makes a pipeline.

    Attributes:
        programs: Crops and output format of each view.
        options: How DALI runs.
        threads: DALI's threads.
        device_id: The GPU; None for none.
    """

    programs: tuple[Program, ...]
    options: DALIOptions
    threads: int
    device_id: int | None

    def build(self, kind: str, batch_size: int) -> Any:
        """A pipeline that has run, and has nothing under way.

        Args:
            kind: `ENCODED` or `RAW`.
            batch_size: The most samples of a batch.
        """
        depth = self.options.prefetch_queue_depth
        built = _dali().Pipeline(
            batch_size=batch_size,
            num_threads=self.threads,
            device_id=self.device_id,
            prefetch_queue_depth=depth,
        )
        with built:
            built.set_outputs(*self._define(kind))
        built.build()
        side = _SIDE
        samples = [_square(kind, side)]
        box = np.array([[0, 0, side, side]], np.int32)
        whole = Geometry(box, None, np.zeros((1, 2), np.int32), np.zeros(1, np.uint8), None)
        # The first schedule_run() runs it so many times.
        for _ in range(depth):
            self.feed(built, samples, [whole] * len(self.programs), np.zeros(1, np.int64))
        built.schedule_run()
        for _ in range(depth):
            built.outputs()
        return built

    def feed(
        self,
        pipeline: Any,
        samples: list[npt.NDArray[np.uint8]],
        geometries: list[Geometry],
        rows: npt.NDArray[np.int64],
    ) -> None:
        """Gives a pipeline a batch; to be run then.

        Args:
            pipeline: What `build` returned.
            samples: Their bytes, or pixels; must stay until the batch is done.
            geometries: Of each view.
            rows: The samples' rows in these.
        """
        pipeline.feed_input("data", samples)
        for view, (program, geometry) in enumerate(zip(self.programs, geometries, strict=True)):
            boxes = geometry.boxes[rows]
            start = np.ascontiguousarray(boxes[:, [1, 0]])
            pipeline.feed_input(f"start{view}", start)
            pipeline.feed_input(f"shape{view}", np.ascontiguousarray(boxes[:, [3, 2]] - start))
            pipeline.feed_input(f"mirror{view}", geometry.flips[rows].astype(np.int32))
            if not _resizes(program):
                continue
            sizes = np.empty((len(rows), 2), np.int32)
            sizes[:] = program.size if geometry.sizes is None else geometry.sizes[rows]
            windows = np.zeros((len(rows), 2), np.int32)
            if geometry.windows is not None:
                windows[:] = geometry.windows[rows]
            pipeline.feed_input(f"size{view}", sizes[:, ::-1].astype(np.float32))
            # DALI wants a window as its share of the room that it has.
            room = np.maximum(sizes - np.array(program.size), 1)
            shares = (windows / room).astype(np.float32)
            pipeline.feed_input(f"x{view}", np.ascontiguousarray(shares[:, 0]))
            pipeline.feed_input(f"y{view}", np.ascontiguousarray(shares[:, 1]))

    def _define(self, kind: str) -> list[Any]:
        """The outputs of a pipeline: a batch of images for each view."""
        fn, types = _dali().fn, _dali().types
        gpu = self.device_id is not None
        pixels = types.UINT8
        if kind == RAW:
            data = fn.external_source(name="data", ndim=3, dtype=pixels, layout="HWC", no_copy=True)
        else:
            data = fn.external_source(name="data", ndim=1, dtype=pixels, no_copy=True)
        decoding: dict[str, Any] = {
            "device": "mixed" if gpu else "cpu",
            "output_type": types.RGB,
            # EXIF is for viewers: Pillow and the native core do not turn images either.
            "adjust_orientation": False,
            **self.options.decoder_arguments(),
        }
        whole = None
        if kind == RAW:
            whole = data
        elif not self.options.regions():
            whole = fn.decoders.image(data, **decoding)
        results = []
        for view, program in enumerate(self.programs):
            start = fn.external_source(name=f"start{view}", ndim=1, dtype=types.INT32)
            shape = fn.external_source(name=f"shape{view}", ndim=1, dtype=types.INT32)
            if whole is None:
                images = fn.decoders.image_slice(data, start, shape, axes=[0, 1], **decoding)
            else:
                images = fn.slice(whole, start, shape, axes=[0, 1])
            if kind == RAW and gpu:
                images = images.gpu()
            results.append(self._finish(images, view, program))
        return results

    def _finish(self, images: Any, view: int, program: Program) -> Any:
        """Resizes, cuts, mirrors and normalises."""
        fn, types = _dali().fn, _dali().types
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
    return any(isinstance(step, (Resize, RandomResizedCrop)) for step in program.steps)


def _dali() -> Any:
    """DALI, which its type stubs know in part only."""
    import nvidia.dali

    return nvidia.dali


def _square(kind: str, side: int) -> npt.NDArray[np.uint8]:
    pixels = np.zeros((side, side, 3), np.uint8)
    if kind == RAW:
        return pixels
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return np.frombuffer(file.getvalue(), np.uint8)
