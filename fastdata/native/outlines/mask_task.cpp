#include "outlines/mask_task.h"

#include <cstring>

#include "outlines/changes.h"
#include "outlines/painter.h"
#include "outlines/sampling.h"

namespace fastdata {
namespace {

constexpr size_t kKeep = size_t{4} << 20;  // bytes of a canvas from one image to the next

/// Memory of a thread.
struct Scratch {
  Sampling sampling;
  MaskPainter painter;
  Changes changes;
  std::vector<size_t> begins;
  Canvas canvas;
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

/// The mask of one object; its number counts from the first image's on.
Status outline(const Outlines& outlines, int64_t object, MaskSize size, Changes& changes,
               std::vector<size_t>& begins) {
  changes.clear();
  if (outlines.run_sizes && outlines.run_sizes[2 * object] >= 0) {
    if (outlines.run_sizes[2 * object] != size.height ||
        outlines.run_sizes[2 * object + 1] != size.width)
      return {Code::bad_parameters, "run lengths for an image of another size"};
    const int64_t begin = outlines.runs[object];
    const auto count = static_cast<size_t>(outlines.runs[object + 1] - begin);
    if (outlines.text) return add_runs({outlines.text + begin, count}, size, changes);
    return add_runs(outlines.lengths + begin, count, size, changes);
  }
  const int64_t begin = outlines.polygons ? outlines.polygons[object] : 0;
  const int64_t end = outlines.polygons ? outlines.polygons[object + 1] : 0;
  if (begin == end) return {Code::bad_parameters, "neither polygons nor run lengths"};
  const double across = outlines.relative ? size.width : 1;
  const double down = outlines.relative ? size.height : 1;
  begins.clear();
  for (int64_t polygon = begin; polygon < end; polygon++) {
    const int64_t first = outlines.corners[polygon];
    const auto count = static_cast<size_t>(outlines.corners[polygon + 1] - first);
    // COCO's tools take no shorter one first; others they take, and it has no pixels.
    if (polygon == begin && count <= 4)
      return {Code::bad_parameters, "a polygon of fewer than three corners"};
    begins.push_back(changes.size());
    if (Status s = add_polygon(outlines.numbers + first, count, across, down, size, changes);
        !s.ok())
      return s;
  }
  if (begins.size() > 1) unite(begins, changes);
  return {};
}

}  // namespace

Status MaskTask::work(size_t i) {
  const int64_t first = offsets[i], end = offsets[i + 1];
  if (first == end) return {};
  const MaskSize size{outlines.widths[i], outlines.heights[i]};
  if (size.width < 1 || size.height < 1) return {Code::other_size, "the index has no size of it"};
  if (size.width > kLongestSide || size.height > kLongestSide || size.pixels() >= UINT32_MAX)
    return {Code::too_large, "masks of nearly 2^32 pixels, or of 2^24 a side"};
  Scratch& scratch = thread_scratch();
  Sampling& sampling = scratch.sampling;
  const Cut& cut = cuts[i];
  sampling.begin(size.width, size.height);
  if (Status s = sampling.move(cut, fill); !s.ok()) return s;
  if (!drawn[i].status.ok()) return drawn[i].status;
  const std::vector<Call>& calls = drawn[i].calls;
  // From the first operation on that is not one of rows and columns, each mask is an image.
  size_t sampled = 0;
  for (bool done = true; sampled < calls.size(); sampled++) {
    if (Status s = sampling.move(calls[sampled], done); !s.ok()) return s;
    if (!done) break;
  }
  constexpr Status kOtherSize{Code::bad_region, "operations made a mask of another size"};
  const int width = widths[i], height = heights[i];
  if (sampled == calls.size() && (sampling.width() != width || sampling.height() != height))
    return kOtherSize;
  const auto area = static_cast<size_t>(width) * static_cast<size_t>(height);
  scratch.painter.begin(size, sampling);
  uint8_t* to = out[i];
  for (int64_t k = first; k < end; k++, to += area) {
    if (Status s =
            outline(outlines, outlines.objects[i] + kept[k], size, scratch.changes, scratch.begins);
        !s.ok()) {
      s.offset = static_cast<size_t>(kept[k]) + 1;
      return s;
    }
    if (sampled == calls.size()) {
      scratch.painter.paint(scratch.changes, to, static_cast<size_t>(width));
      continue;
    }
    Canvas& canvas = scratch.canvas;
    if (Status s = canvas.reset(sampling.width(), sampling.height(), 1); !s.ok()) return s;
    scratch.painter.paint(scratch.changes, canvas.image().data, canvas.image().stride);
    for (size_t call = sampled; call < calls.size(); call++)
      if (Status s = augment(calls[call], canvas); !s.ok()) return s;
    const Planes& image = canvas.image();
    if (image.width != width || image.height != height) return kOtherSize;
    for (int y = 0; y < height; y++)
      std::memcpy(to + static_cast<size_t>(y) * width, image.row(0, y), width);
  }
  scratch.canvas.trim(kKeep);
  return {};
}

}  // namespace fastdata
