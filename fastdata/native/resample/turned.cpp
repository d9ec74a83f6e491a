#include "resample/turned.h"

#include <algorithm>
#include <cstring>

#include "simd/kernels.h"

namespace fastdata {
namespace {

// Columns are written so many at a time: as many bytes as a register has.
constexpr int kStrip = 8;

void exchange(uint64_t& a, uint64_t& b, int bits, uint64_t mask) {
  const uint64_t differing = ((a >> bits) ^ b) & mask;
  a ^= differing << bits;
  b ^= differing;
}

/// Transposes 8 rows of 8 bytes: those of a half, of a quarter, then of a pair change places.
void transpose(uint64_t (&rows)[kStrip]) {
  for (int i = 0; i < 4; i++) exchange(rows[i], rows[i + 4], 32, 0x00000000FFFFFFFF);
  for (const int i : {0, 1, 4, 5}) exchange(rows[i], rows[i + 2], 16, 0x0000FFFF0000FFFF);
  for (const int i : {0, 2, 4, 6}) exchange(rows[i], rows[i + 1], 8, 0x00FF00FF00FF00FF);
}

}  // namespace

Box Turn::stored(const Box& box, int width, int height) const {
  Box found = exchanged ? Box{box.y0, box.x0, box.y1, box.x1} : box;
  if (mirrored_x) found = {width - found.x1, found.y0, width - found.x0, found.y1};
  if (mirrored_y) found = {found.x0, height - found.y1, found.x1, height - found.y0};
  return found;
}

void TurnedRows::open(RowSource& inner, const Box& stored, const Box& upright, const Turn& turn) {
  box_ = upright;
  planes_ = inner.grey() ? 1 : 3;
  stride_ = round_up(upright.width(), 64) + kRowPadding;
  const size_t plane = stride_ * upright.height();
  const size_t strip = round_up(stored.width(), 64);
  const int height = stored.height();
  uint8_t* out = rows_.reserve(planes_ * plane);
  uint8_t* columns = turn.exchanged ? strip_.reserve(planes_ * kStrip * strip) : nullptr;
  for (int y = 0; y < height; y++) {
    const uint8_t* rows[3];
    inner.row(stored.y0 + y, rows);
    const int to = turn.mirrored_y ? height - 1 - y : y;
    if (!turn.exchanged) {
      for (int p = 0; p < planes_; p++) {
        uint8_t* row = out + p * plane + to * stride_;
        if (turn.mirrored_x)
          std::reverse_copy(rows[p], rows[p] + stored.width(), row);
        else
          std::memcpy(row, rows[p], stored.width());
      }
      continue;
    }
    for (int p = 0; p < planes_; p++)
      std::memcpy(columns + (p * kStrip + to % kStrip) * strip, rows[p], stored.width());
    // A strip is complete with its last row; so is the image's last strip with fewer.
    const bool complete = turn.mirrored_y ? to % kStrip == 0 : to % kStrip == kStrip - 1;
    if (!complete && y < height - 1) continue;
    for (int p = 0; p < planes_; p++)
      place_strip(columns + p * kStrip * strip, strip, stored.width(), turn.mirrored_x,
                  out + p * plane + to / kStrip * kStrip);
  }
  status_ = inner.status();
}

/// Writes the rows of a strip as columns. What it lacks of 8 rows goes to the padding behind rows.
void TurnedRows::place_strip(const uint8_t* strip, size_t strip_stride, int width, bool mirrored,
                             uint8_t* out) const {
  for (int x = 0; x < width; x += kStrip) {
    uint64_t block[kStrip];
    for (int i = 0; i < kStrip; i++)
      std::memcpy(&block[i], strip + i * strip_stride + x, sizeof block[i]);
    transpose(block);
    for (int i = 0; i < std::min(kStrip, width - x); i++) {
      const int y = mirrored ? width - 1 - (x + i) : x + i;
      std::memcpy(out + y * stride_, &block[i], sizeof block[i]);
    }
  }
}

void TurnedRows::row(int y, const uint8_t** planes) {
  for (int p = 0; p < planes_; p++)
    planes[p] = rows_.get() + (static_cast<size_t>(p) * box_.height() + (y - box_.y0)) * stride_;
}

void TurnedRows::trim(size_t keep) {
  if (rows_.size() > keep) rows_.release();
}

}  // namespace fastdata
