#include "augment/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "augment/operations.h"
#include "simd/cpu.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

constexpr size_t kMaxPixels = size_t{1} << 28;  // of the packed source: 1 GiB

struct Fill {
  uint8_t channels[3];
};

/// Reads the interpolation and fill of a warp; false if they are out of their range.
template <typename Parameters>
bool read_pixels(const Parameters& by, Interpolation& interpolation, Fill& fill) {
  int number, channels[3];
  if (!whole_number(by.interpolation, 0, 2, number) || !whole_number(by.red, 0, 255, channels[0]) ||
      !whole_number(by.green, 0, 255, channels[1]) || !whole_number(by.blue, 0, 255, channels[2]))
    return false;
  interpolation = static_cast<Interpolation>(number);
  std::copy_n(channels, 3, fill.channels);
  return true;
}

/// Note [Packed pixels].
Status pack_source(Canvas& canvas, const Fill& fill, Warp& warp) {
  const Planes& image = canvas.image();
  constexpr int kBorder = kWarpBorder;
  const size_t pitch = round_up(image.width + 2 * kBorder, 16);
  const size_t rows = static_cast<size_t>(image.height) + 2 * kBorder + kWarpTaps;
  if (pitch > kMaxPixels / rows) return {Code::too_large, "more than 2^28 pixels to transform"};
  auto* pixels = canvas.scratch.reserve<uint32_t>(pitch * rows + kRowPadding / sizeof(uint32_t));
  const int second = image.channels == 3 ? 1 : 0, third = image.channels == 3 ? 2 : 0;
  for (int y = 0; y < image.height; y++) {
    uint32_t* row = pixels + (y + kBorder) * pitch;
    kernels().pack(image.row(0, y), image.row(second, y), image.row(third, y), image.width,
                   row + kBorder);
    for (int i = 0; i < kBorder; i++) {
      row[i] = row[kBorder];
      row[kBorder + image.width + i] = row[kBorder + image.width - 1];
    }
  }
  const auto repeat = [=](int from, int to) {
    std::copy_n(pixels + from * pitch, pitch, pixels + to * pitch);
  };
  for (int i = 0; i < kBorder; i++) {
    repeat(kBorder, i);
    repeat(kBorder + image.height - 1, kBorder + image.height + i);
  }
  const uint32_t filled = fill.channels[0] | fill.channels[second] << 8 |
                          static_cast<uint32_t>(fill.channels[third]) << 16;
  for (size_t t = 0; t < kWarpTaps; t++)
    std::fill_n(pixels + (rows - kWarpTaps + t) * pitch, kWarpTaps, filled);
  warp.width = image.width;
  warp.height = image.height;
  warp.pitch = static_cast<int32_t>(pitch);
  // Bicubic taps begin a row above and a pixel before.
  warp.fill = static_cast<int32_t>((rows - kWarpTaps + 1) * pitch + 1);
  warp.pixels = pixels;
  return {};
}

Status warp_image(Canvas& canvas, const Fill& fill, Warp& warp, int width, int height) {
  const int channels = canvas.image().channels;
  if (warp.interpolation != Interpolation::nearest &&
      std::max(canvas.image().width, canvas.image().height) > kMaxWarpSide)
    return {Code::too_large, "more than 2^17 pixels a side to interpolate"};
  if (Status s = pack_source(canvas, fill, warp); !s.ok()) return s;
  warp.outputs = width;
  return canvas.make_rows(width, height, [&](int y, uint8_t* const* rows) {
    kernels().warp_row(warp, y, rows, channels);
  });
}

/// A coordinate as Pillow truncates it (Geometry.c, COORD); -1 if it is not within [0, size).
int pixel_at(double at, int size) { return at >= 0 && at < size ? static_cast<int>(at) : -1; }

/// Pillow's ImagingScaleAffine: nearest, rows and columns apart from each other, each coordinate
/// the one before plus a step.
Status scale(const double* a, const Fill& fill, Canvas& canvas, int width, int height) {
  const Planes& image = canvas.image();
  int32_t* columns = canvas.scratch.reserve<int32_t>(width);
  int begin = width, end = 0;
  bool contiguous = true;  // as of a translation
  double at = a[2] + a[0] * 0.5;
  for (int x = 0; x < width; x++, at += a[0]) {
    columns[x] = pixel_at(at, image.width);
    if (columns[x] < 0) continue;
    contiguous &= begin == width || columns[x] == columns[x - 1] + 1;
    begin = std::min(begin, x);
    end = x + 1;
  }
  at = a[5] + a[4] * 0.5;
  return canvas.make_rows(width, height, [&](int, uint8_t* const* rows) {
    const int from = pixel_at(std::exchange(at, at + a[4]), image.height);
    for (int c = 0; c < image.channels; c++) {
      uint8_t* out = rows[c];
      if (from < 0 || begin >= end) {
        std::memset(out, fill.channels[c], width);
        continue;
      }
      const uint8_t* row = image.row(c, from);
      std::memset(out, fill.channels[c], begin);
      if (contiguous)
        std::memcpy(out + begin, row + columns[begin], end - begin);
      else
        for (int x = begin; x < end; x++) out[x] = row[columns[x]];
      std::memset(out + end, fill.channels[c], width - end);
    }
  });
}

/// Whether Pillow takes coordinates of 16.16 bits (Geometry.c, check_fixed).
bool fits_fixed(const double* a, int width, int height) {
  for (const int y : {0, height})
    for (const int x : {0, width})
      if (!(std::abs(x * a[0] + y * a[1] + a[2]) < 32768.0 &&
            std::abs(x * a[3] + y * a[4] + a[5]) < 32768.0))
        return false;
  return true;
}

uint32_t to_fixed(double value) {
  return static_cast<uint32_t>(static_cast<int64_t>(std::floor(value * 65536.0 + 0.5)));
}

/// Nearest where fixed point does not suffice: each coordinate is the one before plus a step.
Status step_through(const double* a, const Fill& fill, Canvas& canvas, int width, int height) {
  const Planes& image = canvas.image();
  double row_u = a[2] + a[1] * 0.5 + a[0] * 0.5, row_v = a[5] + a[4] * 0.5 + a[3] * 0.5;
  return canvas.make_rows(width, height, [&](int, uint8_t* const* rows) {
    double u = std::exchange(row_u, row_u + a[1]), v = std::exchange(row_v, row_v + a[4]);
    for (int x = 0; x < width; x++, u += a[0], v += a[3]) {
      const int column = pixel_at(u, image.width), row = pixel_at(v, image.height);
      for (int c = 0; c < image.channels; c++)
        rows[c][x] = column < 0 || row < 0 ? fill.channels[c] : image.row(c, row)[column];
    }
  });
}

constexpr Status kBadWarp{Code::bad_parameters,
                          "an interpolation outside 0 to 2, or a fill's 0 to 255"};

}  // namespace

Status affine(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Affine>();
  const double a[6] = {by.a, by.b, by.c, by.d, by.e, by.f};
  Warp warp{};
  Fill fill;
  int width, height;
  if (!read_pixels(by, warp.interpolation, fill)) return kBadWarp;
  if (!whole_number(by.width, 1, INT32_MAX, width) ||
      !whole_number(by.height, 1, INT32_MAX, height))
    return {Code::bad_parameters, "a result without pixels"};
  warp.projection = Projection::affine;
  std::copy_n(a, 6, warp.coefficients);
  if (warp.interpolation == Interpolation::nearest) {
    if (a[1] == 0 && a[3] == 0) return scale(a, fill, canvas, width, height);
    if (!fits_fixed(a, width, height)) return step_through(a, fill, canvas, width, height);
    warp.projection = Projection::fixed;
    const double centred[6] = {a[0], a[1], a[2] + a[0] * 0.5 + a[1] * 0.5,
                               a[3], a[4], a[5] + a[3] * 0.5 + a[4] * 0.5};
    std::transform(centred, centred + 6, warp.fixed, to_fixed);
  }
  return warp_image(canvas, fill, warp, width, height);
}

Status perspective(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::Perspective>();
  Warp warp{};
  Fill fill;
  if (!read_pixels(by, warp.interpolation, fill)) return kBadWarp;
  warp.projection = Projection::perspective;
  const double coefficients[8] = {by.a, by.b, by.c, by.d, by.e, by.f, by.g, by.h};
  std::copy_n(coefficients, 8, warp.coefficients);
  const Planes& image = canvas.image();
  return warp_image(canvas, fill, warp, image.width, image.height);
}

namespace {

// Of tensors' coefficients, so that they stay finite in single precision.
constexpr double kMaxCoefficient = 1e9;
constexpr Status kBadCoefficient{Code::bad_parameters, "a coefficient beyond 1e9"};

/// A row of coefficients, of places from -1 to 1 instead of pixels. False: one is too large.
bool read_row(double x, double y, double constant, int side, float (&row)[3]) {
  const double coefficients[3] = {x, y, constant};
  for (int i = 0; i < 3; i++) {
    if (!(std::abs(coefficients[i]) <= kMaxCoefficient)) return false;
    row[i] = static_cast<float>(coefficients[i]) / (static_cast<float>(side) * 0.5f);
  }
  return true;
}

/// Reads two rows of a grid, its interpolation and its fill.
template <typename Parameters>
Status read_grid(const Parameters& by, const Planes& image, Grid& grid) {
  int kind;
  if (!read_row(by.a, by.b, by.c, image.width, grid.rows[0]) ||
      !read_row(by.d, by.e, by.f, image.height, grid.rows[1]))
    return kBadCoefficient;
  if (!whole_number(by.interpolation, 0, 1, kind))
    return {Code::bad_parameters, "an interpolation outside 0 to 1"};
  grid.interpolation = static_cast<Interpolation>(kind);
  if (!whole_number(by.red, -1, 255, grid.fill[0]) ||
      !whole_number(by.green, -1, 255, grid.fill[1]) ||
      !whole_number(by.blue, -1, 255, grid.fill[2]))
    return {Code::bad_parameters, "a fill outside -1 to 255"};
  grid.filled = *std::min_element(grid.fill, grid.fill + 3) >= 0;
  if (!grid.filled) std::fill_n(grid.fill, 3, 0);
  return {};
}

Status lay_grid(Grid& grid, Canvas& canvas) {
  const Planes& image = canvas.image();
  if (std::max(image.width, image.height) > kMaxWarpSide)
    return {Code::too_large, "more than 2^17 pixels a side to interpolate"};
  Warp packed{};
  if (Status s = pack_source(canvas, Fill{}, packed); !s.ok()) return s;
  // As torch's product of matrices here, on which depends what is nearest where two pixels are as
  // near: MKL fuses on Intel's processors alone, and torch for other architectures has no MKL.
#if defined(__x86_64__)
  static const bool fused = made_by_intel();
#else
  constexpr bool fused = true;
#endif
  grid.fused = fused;
  grid.width = image.width;
  grid.height = image.height;
  grid.pitch = packed.pitch;
  grid.pixels = packed.pixels;
  return canvas.make_rows(image.width, image.height, [&](int y, uint8_t* const* rows) {
    kernels().grid_row(grid, y, rows, image.channels);
  });
}

}  // namespace

Status tensor_affine(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorAffine>();
  Grid grid{};
  if (Status s = read_grid(by, canvas.image(), grid); !s.ok()) return s;
  return lay_grid(grid, canvas);
}

Status tensor_perspective(const Call& call, Canvas& canvas) {
  const auto by = call.as<operations::TensorPerspective>();
  Grid grid{};
  if (Status s = read_grid(by, canvas.image(), grid); !s.ok()) return s;
  if (!(std::max(std::abs(by.g), std::abs(by.h)) <= kMaxCoefficient)) return kBadCoefficient;
  grid.perspective = true;
  grid.rows[2][0] = static_cast<float>(by.g);
  grid.rows[2][1] = static_cast<float>(by.h);
  grid.rows[2][2] = 1;
  return lay_grid(grid, canvas);
}

}  // namespace fastdata
