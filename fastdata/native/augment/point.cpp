// Operations on single pixels, and on an image's histogram, as torchvision.transforms.functional
// does them to a Pillow image, to the bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "augment/operations.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

using Table = uint8_t[256];

template <typename Function>
void fill(Table& table, Function value_of) {
  for (int i = 0; i < 256; i++) table[i] = static_cast<uint8_t>(value_of(i));
}

void look_up(const Planes& image, const Table& table) {
  kernels().look_up(image.data, image.size(), table);
}

void look_up(const Planes& image, int channel, const Table& table) {
  kernels().look_up(image.plane(channel), image.plane_size(), table);
}

void invert_and_mask(const Planes& image, int threshold, int mask) {
  kernels().invert_and_mask(image.data, image.size(), threshold, static_cast<uint8_t>(mask));
}

/// The table of Pillow's blend (Blend.c) with an image of one value.
void blend_from(int from, float factor, Table& table) {
  fill(table, [=](int i) {
    const float value = static_cast<float>(from) + factor * static_cast<float>(i - from);
    return value <= 0.f ? 0 : value >= 255.f ? 255 : static_cast<int>(value);
  });
}

/// Pixels of each value.
void count(const Planes& image, int channel, uint32_t* counts) {
  // Eight histograms: one count would wait for the one before if neighbours are equal.
  uint32_t parts[8][256] = {};
  for (int y = 0; y < image.height; y++) {
    const uint8_t* row = image.row(channel, y);
    int x = 0;
    for (; x + 8 <= image.width; x += 8) {
      uint64_t bytes;
      std::memcpy(&bytes, row + x, 8);
      for (int i = 0; i < 8; i++) parts[i][bytes >> 8 * i & 255]++;
    }
    for (; x < image.width; x++) parts[0][row[x]]++;
  }
  std::fill_n(counts, 256, 0);
  for (const auto& part : parts)
    for (int i = 0; i < 256; i++) counts[i] += part[i];
}

}  // namespace

Status brightness(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Brightness>();
  if (!is_factor(by.factor)) return kBadFactor;
  Table table;
  blend_from(0, static_cast<float>(by.factor), table);
  look_up(canvas.image(), table);
  return {};
}

Status contrast(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Contrast>();
  if (!is_factor(by.factor)) return kBadFactor;
  const Planes& image = canvas.image();
  const uint8_t* grey = image.data;
  if (image.channels == 3) {
    uint8_t* out = canvas.scratch.reserve(image.plane_size());
    kernels().grey(image.plane(0), image.plane(1), image.plane(2), image.plane_size(), out);
    grey = out;
  }
  uint64_t sum = 0;
  for (int y = 0; y < image.height; y++) sum += kernels().sum(grey + y * image.stride, image.width);
  const double pixels = static_cast<double>(image.width) * image.height;
  const int mean = static_cast<int>(static_cast<double>(sum) / pixels + 0.5);
  Table table;
  blend_from(mean, static_cast<float>(by.factor), table);
  look_up(image, table);
  return {};
}

Status saturation(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Saturation>();
  if (!is_factor(by.factor)) return kBadFactor;
  const Planes& image = canvas.image();
  if (image.channels == 3)
    kernels().saturate(image.plane(0), image.plane(1), image.plane(2), image.plane_size(),
                       static_cast<float>(by.factor));
  return {};
}

Status sharpness(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Sharpness>();
  if (!is_factor(by.factor)) return kBadFactor;
  const Planes& image = canvas.image();
  if (image.width < 3 || image.height < 3) return {};  // Pillow's filter leaves it as it is
  const float factor = static_cast<float>(by.factor);
  return canvas.make(image.width, image.height, [&](int c, int y, uint8_t* out) {
    const uint8_t* row = image.row(c, y);
    if (y == 0 || y == image.height - 1)
      std::memcpy(out, row, image.width);
    else
      kernels().sharpen(row - image.stride, row, row + image.stride, image.width, factor, out);
  });
}

Status hue(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Hue>();
  if (!(by.turns >= -0.5 && by.turns <= 0.5))
    return {Code::bad_parameters, "a hue factor outside -0.5 to 0.5"};
  const Planes& image = canvas.image();
  if (image.channels == 3)
    kernels().turn_hue(image.plane(0), image.plane(1), image.plane(2), image.plane_size(),
                       static_cast<int>(by.turns * 255));
  return {};
}

Status grayscale(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Grayscale>();
  int channels;
  if (!whole_number(by.channels, 1, 3, channels) || channels == 2)
    return {Code::bad_parameters, "grayscale has 1 or 3 channels"};
  const Planes& image = canvas.image();
  if (image.channels == channels && channels == 1) return {};
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, channels, next); !s.ok()) return s;
  if (image.channels == 3)
    kernels().grey(image.plane(0), image.plane(1), image.plane(2), image.plane_size(), next.data);
  else
    std::memcpy(next.data, image.data, image.plane_size());
  for (int c = 1; c < channels; c++) std::memcpy(next.plane(c), next.data, next.plane_size());
  canvas.swap();
  return {};
}

Status posterize(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Posterize>();
  int bits;
  if (!whole_number(by.bits, 0, 8, bits)) return {Code::bad_parameters, "bits to keep: 0 to 8"};
  invert_and_mask(canvas.image(), 256, 0xFF << (8 - bits));
  return {};
}

Status solarize(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Solarize>();
  if (!(by.threshold >= 0 && by.threshold <= 256))
    return {Code::bad_parameters, "a threshold outside 0 to 256"};
  invert_and_mask(canvas.image(), static_cast<int>(std::ceil(by.threshold)), 0xFF);
  return {};
}

Status solarize_add(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::SolarizeAdd>();
  int added, threshold;
  if (!whole_number(by.added, 0, 255, added) || !whole_number(by.threshold, 0, 256, threshold))
    return {Code::bad_parameters, "an addend outside 0 to 255, or a threshold outside 0 to 256"};
  Table table;
  fill(table, [=](int i) { return i < threshold ? std::min(i + added, 255) : i; });
  look_up(canvas.image(), table);
  return {};
}

Status autocontrast(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  for (int c = 0; c < image.channels; c++) {
    uint8_t low = 255, high = 0;
    for (int y = 0; y < image.height; y++)
      kernels().find_range(image.row(c, y), image.width, &low, &high);
    if (high <= low || (low == 0 && high == 255)) continue;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    Table table;
    fill(table, [=](int i) { return std::clamp(static_cast<int>(i * scale + offset), 0, 255); });
    look_up(image, c, table);
  }
  return {};
}

Status equalize(const Call&, Canvas& canvas) {
  const Planes& image = canvas.image();
  for (int c = 0; c < image.channels; c++) {
    uint32_t counts[256];
    count(image, c, counts);
    int last = 255;
    while (counts[last] == 0) last--;
    const uint64_t pixels = static_cast<uint64_t>(image.width) * image.height;
    const uint64_t step = (pixels - counts[last]) / 255;
    if (step == 0) continue;
    Table table;
    uint64_t n = step / 2;
    for (int i = 0; i < 256; i++) {
      table[i] = static_cast<uint8_t>(std::min<uint64_t>(n / step, 255));
      n += counts[i];
    }
    look_up(image, c, table);
  }
  return {};
}

Status invert(const Call&, Canvas& canvas) {
  invert_and_mask(canvas.image(), 0, 0xFF);
  return {};
}

Status permute(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Permute>();
  const Planes& image = canvas.image();
  if (image.channels != 3) return {Code::bad_parameters, "a grey image has no channels to permute"};
  int from[3];
  if (!whole_number(by.red, 0, 2, from[0]) || !whole_number(by.green, 0, 2, from[1]) ||
      !whole_number(by.blue, 0, 2, from[2]))
    return {Code::bad_parameters, "a channel outside 0 to 2"};
  Planes next;
  if (Status s = canvas.begin(image.width, image.height, 3, next); !s.ok()) return s;
  for (int c = 0; c < 3; c++) std::memcpy(next.plane(c), image.plane(from[c]), image.plane_size());
  canvas.swap();
  return {};
}

}  // namespace fastdata
