// Masks of the objects of images, at their pixels after cuts and operations.
#pragma once

#include <cstdint>
#include <vector>

#include "augment/drawing.h"
#include "geometry/cut.h"
#include "task.h"

namespace fastdata {

/// The outlines of the objects of a batch of images. The memory belongs to others. An object has
/// run lengths or else polygons. Offsets say where the entries of each list begin, and the end of
/// the last.
struct Outlines {
  size_t size = 0;                                      // images
  const int32_t *widths = nullptr, *heights = nullptr;  // of the images
  const int64_t* objects = nullptr;                     // offsets of each image's objects
  // Polygons: offsets of each object's polygons, of each polygon's numbers.
  const int64_t *polygons = nullptr, *corners = nullptr;
  const double* numbers = nullptr;
  bool relative = false;  // the numbers are parts of the image's sides
  // Run lengths: of each object the mask's height and width, below 0 if it has polygons; and
  // offsets of its lengths, or of its characters.
  const int32_t* run_sizes = nullptr;
  const int64_t* runs = nullptr;
  const uint32_t* lengths = nullptr;
  const uint8_t* text = nullptr;

  int64_t count(size_t image) const { return objects[image + 1] - objects[image]; }
};

/// Paints masks; image after image, those of an image one after the other.
class MaskTask final : public Task {
 public:
  Outlines outlines;
  const Cut* cuts = nullptr;             // one an image
  std::vector<Drawn> drawn;              // for each image's masks, after the cut
  uint8_t fill = 0;                      // of what cuts have outside the image
  std::vector<int32_t> kept;             // of each image: numbers of objects to paint
  std::vector<int64_t> offsets;          // of each image's in `kept`
  std::vector<int32_t> widths, heights;  // of each image's masks
  std::vector<uint8_t*> out;             // of each image's masks

  size_t size() const override { return outlines.size; }

 private:
  Status work(size_t i) override;
};

}  // namespace fastdata
