// The fuzz target of masks: any polygons and run lengths, cut by any geometry. Nothing may crash or
// trip a sanitizer, and each pixel must be the one that painting the whole mask gives.
//
// An input is the mask's size, the number of polygons, and the fill (4 bytes); the cut's numbers (2
// bytes each) and flips (1); then run lengths as COCO's text for 0 polygons, else corners (2 bytes
// a number).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "outlines/changes.h"
#include "outlines/painter.h"
#include "outlines/sampling.h"

using namespace fastdata;

namespace {

constexpr int kMaxSide = 64;            // of masks
constexpr size_t kMaxPixels = 1 << 14;  // of results: larger ones only slow the search down

/// Bytes of the input, one after the other; zeros at its end.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return size_ ? (size_--, *data_++) : 0; }
  int number() {
    const int low = byte();
    return static_cast<int16_t>(low | byte() << 8);
  }
  size_t left() const { return size_; }
  ByteSpan rest() const { return {data_, size_}; }

 private:
  const uint8_t* data_;
  size_t size_;
};

/// A number that is small, a part of a pixel, or anything that a double can be.
double value_of(int number) {
  switch (number & 15) {
    case 0: return std::strtod("nan", nullptr);
    case 1: return 1e300 * number;
    case 2: return 1e6 * number;
    default: return number / 320.0;
  }
}

Status outline(Reader& in, int polygons, MaskSize size, Changes& changes) {
  if (polygons == 0) return add_runs(in.rest(), size, changes);
  std::vector<size_t> begins;
  for (int i = 0; i < polygons; i++) {
    std::vector<double> numbers(in.left() / 2 / static_cast<size_t>(polygons - i));
    for (double& one : numbers) one = value_of(in.number());
    begins.push_back(changes.size());
    if (Status s = add_polygon(numbers.data(), numbers.size(), 1, 1, size, changes); !s.ok())
      return s;
  }
  unite(begins, changes);
  return {};
}

/// All pixels of a mask, column after column.
std::vector<uint8_t> whole_mask(const Changes& changes, MaskSize size) {
  std::vector<uint8_t> mask(size.pixels() + 1);
  for (const uint32_t change : changes) mask[change] ^= 1;
  for (size_t i = 1; i < mask.size(); i++) mask[i] ^= mask[i - 1];
  return mask;
}

uint8_t expected(const std::vector<uint8_t>& mask, MaskSize size, const Sampling& sampling, int x,
                 int y) {
  const int32_t column = sampling.columns()[x], row = sampling.rows()[y];
  const int32_t place = std::min(column, row);
  if (place < 0) return sampling.fills()[static_cast<size_t>(-1 - place)];
  return mask[static_cast<size_t>(column) * static_cast<size_t>(size.height) +
              static_cast<size_t>(row)];
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Reader in(data, size);
  const MaskSize of{1 + in.byte() % kMaxSide, 1 + in.byte() % kMaxSide};
  const int polygons = in.byte() % 4;
  const uint8_t fill = in.byte();
  Cut cut;
  for (int32_t& one : cut.box) one = in.number() >> 6;
  for (int32_t* const sides : {cut.size, cut.window, cut.canvas})
    for (int i = 0; i < 2; i++) sides[i] = in.number() >> 8;
  cut.flip = in.byte();
  cut.whole = cut.flip >> 7;
  Sampling sampling;
  sampling.begin(of.width, of.height);
  if (!sampling.move(cut, fill).ok()) return 0;
  const auto width = static_cast<size_t>(sampling.width());
  const auto height = static_cast<size_t>(sampling.height());
  Changes changes;
  if (width * height > kMaxPixels || !outline(in, polygons, of, changes).ok()) return 0;

  const std::vector<uint8_t> mask = whole_mask(changes, of);
  MaskPainter painter;
  painter.begin(of, sampling);
  for (int time = 0; time < 2; time++) {  // its memory is as it was before
    std::vector<uint8_t> out(width * height);
    painter.paint(changes, out.data(), width);
    for (size_t y = 0; y < height; y++)
      for (size_t x = 0; x < width; x++)
        if (out[y * width + x] !=
            expected(mask, of, sampling, static_cast<int>(x), static_cast<int>(y))) {
          std::fprintf(stderr, "another pixel at (%zu, %zu)\n", x, y);
          std::abort();
        }
  }
  return 0;
}
