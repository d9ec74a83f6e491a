// The geometry of one image: a row of the array that Python has of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fastdata {

/// Bits of Cut::flip. The canvas is mirrored last. Where the image was mirrored before its resize,
/// the filters that take one pixel take others.
constexpr uint8_t kFlipX = 1, kFlipY = 2, kFlippedX = 4, kFlippedY = 8;

/// The box is cut out of the source image and resized; the canvas is a window of that, mirrored at
/// last. numpy has the same layout (`_native.CUT`).
struct Cut {
  int32_t box[4] = {};     // left, upper, right, lower in the source image
  int32_t size[2] = {};    // width, height that the box is resized to
  int32_t window[2] = {};  // left, upper of the canvas in the resized box
  int32_t canvas[2] = {};  // width, height: the output's, or what a pixel program begins with
  // The crop that the image is too small for, counted from 1; 0: none. The rest then means nothing.
  int32_t too_small = 0;
  int32_t found[2] = {};  // width, height of the image where it was too small
  uint8_t filter = 1;     // enum class Filter: bilinear
  uint8_t flip = 0;       // of the bits above
  uint8_t whole = 0;      // the box is all of the image, whatever its size
  // The job's fill takes the place of what lies outside: 1, of the resized box; 2, of the image.
  uint8_t padding = 0;
  uint64_t key = 0;  // what a pixel program draws from
};

static_assert(std::is_trivially_copyable_v<Cut> && std::is_standard_layout_v<Cut>);
static_assert(sizeof(Cut) == 64);
static_assert(offsetof(Cut, size) == 16 && offsetof(Cut, window) == 24);
static_assert(offsetof(Cut, canvas) == 32 && offsetof(Cut, too_small) == 40);
static_assert(offsetof(Cut, filter) == 52 && offsetof(Cut, padding) == 55);
static_assert(offsetof(Cut, key) == 56);

/// All of an image, resized to a size.
inline Cut whole_cut(int width, int height) {
  Cut cut;
  cut.whole = 1;
  cut.size[0] = cut.canvas[0] = width;
  cut.size[1] = cut.canvas[1] = height;
  return cut;
}

}  // namespace fastdata
