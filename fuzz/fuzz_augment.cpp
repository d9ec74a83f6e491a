// The fuzz target of augmentations: any operations with any values, one after the other, on a small
// image. Nothing may crash or trip a sanitizer, and all SIMD paths must agree.
//
// An input is the image's width, height and channels (3 bytes), and up to three calls: the
// operation (1 byte), its key (8) and its values (8 each).
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "augment/operations.h"
#include "simd/kernels.h"

using namespace fastdata;

namespace {

// Of a result: larger ones only slow the search down. So do tall images, where wide ones fill
// vectors.
constexpr double kMaxPixels = 1 << 13;
constexpr int kMaxWidth = 128, kMaxHeight = 32;
constexpr int kMaxCalls = 3;

struct Input {
  int width, height, channels;
  std::vector<Call> calls;
};

Input read_input(const uint8_t* data, size_t size) {
  Input input{1 + data[0] % kMaxWidth, 1 + data[1] % kMaxHeight, data[2] & 1 ? 3 : 1, {}};
  size_t at = 3;
  for (int i = 0; i < kMaxCalls && at + 9 <= size; i++) {
    Call call{};
    call.operation = static_cast<Operation>(data[at] % std::size(kOperations));
    std::memcpy(&call.key, data + at + 1, 8);
    at += 9;
    for (int v = 0; v < info_of(call.operation).values && at + 8 <= size; v++, at += 8)
      std::memcpy(&call.values[v], data + at, 8);
    input.calls.push_back(call);
  }
  return input;
}

/// Whether the result is so large that it would only be slow; sizes that are refused are not.
bool slow(const Call& call, const Planes& image) {
  const double* v = call.values;
  double pixels = 0;
  if (call.operation == Operation::resize) pixels = v[0] * v[1];
  if (call.operation == Operation::affine) pixels = v[10] * v[11];
  if (call.operation == Operation::pad)
    pixels = (v[0] + v[2] + image.width) * (v[1] + v[3] + image.height);
  return pixels > kMaxPixels && pixels < 1e15;
}

/// A result's rows, one after the other, and what became of each call. A new canvas each time, so
/// that its memory is of exactly the needed size and a byte too many shows.
std::vector<uint8_t> run(const Input& input, Level level) {
  select_kernels(level);
  Canvas canvas;
  std::vector<uint8_t> out;
  if (!canvas.reset(input.width, input.height, input.channels).ok()) return out;
  const Planes start = canvas.image();
  uint32_t state = 1;
  for (int c = 0; c < start.channels; c++)
    for (int y = 0; y < start.height; y++)
      for (uint8_t* at = start.row(c, y); at < start.row(c, y) + start.width; at++) {
        state = state * 1664525 + 1013904223;
        *at = static_cast<uint8_t>(state >> 24);
      }
  for (const Call& call : input.calls) {
    if (slow(call, canvas.image())) break;
    out.push_back(static_cast<uint8_t>(augment(call, canvas).code));
  }
  const Planes& image = canvas.image();
  for (int c = 0; c < image.channels; c++)
    for (int y = 0; y < image.height; y++)
      out.insert(out.end(), image.row(c, y), image.row(c, y) + image.width);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const Input input = read_input(data, size);
  const std::vector<uint8_t> expected = run(input, Level::scalar);
  for (const Level level : kLevels)
    if (level != Level::scalar && has_level(level) && run(input, level) != expected) {
      std::fprintf(stderr, "%s differs from scalar\n", level_name(level));
      std::abort();
    }
  return 0;
}
