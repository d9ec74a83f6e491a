"""Single samples of a batch, which the core declined and a Python thread decodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdata import _native
from fastdata.decode.engine import decode_one
from fastdata.decode.fallback import FallbackStep, Outcome, Verdict
from fastdata.decode.jpeg import DecodeError
from fastdata.decode.rows import open_row
from fastdata.errors import FastdataError, SampleError, without_frames
from fastdata.loading.fields.buffers import BatchMemory, BufferPool
from fastdata.loading.fields.draw import too_small
from fastdata.storage.source import Measured

if TYPE_CHECKING:
    from fastdata.decode.codecs import Encoded
    from fastdata.decode.limits import Limits
    from fastdata.loading.fields.draw import Draw, SlotDraw
    from fastdata.storage.source import Source
    from fastdata.transforms.recipe import Program


@dataclass
class DeclinedSample:
    """Image of a batch that the core declined.

    It writes every view of the image to the image's slot, in any thread.

    Attributes:
        source: The images.
        row: The image's number in it.
        limits: Pixels and scans that decoding may cost.
        slot: Its place in the batch.
        draw: The batch's geometry.
        views: The batch's memory, by view.
        extents: Where the batch's bytes lie.
        data: The image's bytes, if they were fetched.
    """

    source: Source
    row: int
    limits: Limits
    slot: int
    draw: Draw
    views: list[BatchMemory]
    extents: _native.Extents
    data: bytes | None

    def decode(self, verdict: Verdict) -> Outcome:
        """Decode it without its seek points or by `Encoded`, as the core's verdict says."""
        step = verdict.step()
        if step is FallbackStep.WITHOUT_TABLE:
            again = self._by_core()
            if again is None:
                return Outcome(verdict, without_table=True)
            verdict, step = again, again.step()
        if step is not FallbackStep.CODEC:
            return Outcome(verdict, self._error(verdict))
        try:
            image = open_row(self.source, self.row, self.limits, self.data)
            try:
                self._crop(image)
            except SampleError as error:
                raise self.source.problem(self.row, error.what) from None
        except FastdataError as error:
            better = verdict.is_damage and isinstance(error, SampleError)
            return Outcome(verdict, self._error(verdict) if better else without_frames(error))
        return Outcome(verdict, None, image.kind, image.decoder, image.declined)

    def _by_core(self) -> Verdict | None:
        """Decode it natively without its seek points; return why that failed, if it did."""
        data, slot = self.data, self.slot
        try:
            if data is None:
                data = self.extents.read(slot, check=True)
        except (OSError, ValueError):  # its file was removed meanwhile: `Encoded` says so
            return Verdict()
        options: dict[str, Any] = {
            "orientations": self.extents.orientations[slot : slot + 1].copy(),
            "max_scans": self.limits.most_scans,
        }
        verdict = decode_one(data, self._renderings(self.draw.of(slot)), **options)
        if verdict is None:
            self.data = data
        return verdict

    def _error(self, verdict: Verdict) -> FastdataError:
        return self.source.problem(self.row, verdict.detail, verdict.code)

    def _crop(self, image: Encoded) -> None:
        """Write the image's crops; decode no more of it than they need."""
        drawn = self._drawn_for(image)
        sides = image.width, image.height
        boxes = np.concatenate([cut["box"] for cut in drawn.cuts]).clip(0, [*sides, *sides])
        # A crop beside the image needs the pixel that is nearest.
        left, upper = np.minimum(boxes.min(0)[:2], np.subtract(sides, 1)).tolist()
        right, lower = np.maximum(boxes.max(0)[2:], 1).tolist()
        pixels = image.pixels((left, upper, right, lower))
        if (verdict := decode_one(pixels, self._renderings(drawn))) is not None:
            raise DecodeError(*verdict)

    def _drawn_for(self, image: Encoded) -> SlotDraw:
        """Return its geometry, drawn again if its size was not known.

        Raise UsageError if a crop does not fit into the image.
        """
        drawn = self.draw.of(self.slot)
        if (image.width, image.height) == drawn.size:
            return drawn
        sides = np.array([image.width], np.int32), np.array([image.height], np.int32)
        self.source.resized(np.array([self.row]), Measured(*sides))
        drawn = self.draw.again(self.slot, image.width, image.height)
        for program, cut in zip(drawn.programs, drawn.cuts, strict=True):
            if small := program.too_small(cut):
                raise too_small(self.source, self.row, small[0])
        return drawn

    def _renderings(self, drawn: SlotDraw) -> list[_native.Rendering]:
        """Return how each view of the image is made, and where."""
        return [
            _native.Rendering(
                self._room(view, program, drawn),
                cuts=cut,
                targets=drawn.targets,
                **program.batch_options(),
            )
            for view, (program, cut) in enumerate(zip(drawn.programs, drawn.cuts, strict=True))
        ]

    def _room(self, view: int, program: Program, drawn: SlotDraw) -> Any:
        """Return the image's place in a view; new memory if its size was not known before."""
        memory, slot = self.views[view], self.slot
        if not program.one_size:
            size = drawn.output_size(view)
            if memory.array[slot].shape[1::-1] != size:
                form = program.output.dtype, program.output.channels_last, program.output.channels
                memory.patch(
                    BufferPool(0, False).images(("", 0), np.array([size]), *form), [slot], [0]
                )
        return memory.array[slot : slot + 1]
