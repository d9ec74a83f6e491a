#include "outlines/changes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace fastdata {
namespace {

constexpr int kParts = 5;              // of a pixel's side
constexpr int kMiddle = kParts / 2;    // the part before the middle
constexpr double kFarthest = 1 << 22;  // farther away, sums below would not be exact enough
constexpr Status kBadRuns{Code::bad_parameters, "run lengths that do not sum to its pixels"};
constexpr Status kBadText{Code::bad_parameters, "run lengths that are not in COCO's form"};

struct Corner {
  int x, y;
};

/// One edge of a polygon, in parts of pixels, from its end that comes first on its longer axis.
class Edge {
 public:
  Edge(Corner from, Corner to) {
    const int across = std::abs(to.x - from.x), down = std::abs(to.y - from.y);
    flat_ = across >= down;
    steps_ = flat_ ? across : down;
    if (flat_ ? from.x > to.x : from.y > to.y) std::swap(from, to);
    from_ = from;
    slope_ =
        steps_ == 0 ? 0.0 : static_cast<double>(flat_ ? to.y - from.y : to.x - from.x) / steps_;
  }

  int left() const { return std::min(x(0), x(steps_)); }
  int right() const { return std::max(x(0), x(steps_)); }

  /// The upper y where it goes between x = before and the next one.
  int crossing(int before) const {
    if (flat_) {
      const int step = before - from_.x;
      return std::min(y(step), y(step + 1));
    }
    const bool right = slope_ > 0;
    const auto crossed = [&](int step) { return right ? x(step) > before : x(step) <= before; };
    // The first step behind it, but for rounding.
    const double guess = std::ceil((before + 0.5 - from_.x) / slope_);
    int step = static_cast<int>(std::clamp(guess, 1.0, static_cast<double>(steps_)));
    while (step > 1 && crossed(step - 1)) step--;
    while (step < steps_ && !crossed(step)) step++;
    return from_.y + step - 1;
  }

 private:
  int x(int step) const {
    return flat_ ? from_.x + step : static_cast<int>(from_.x + slope_ * step + 0.5);
  }
  int y(int step) const { return static_cast<int>(from_.y + slope_ * step + 0.5); }

  bool flat_;  // longer across than down
  int steps_;
  Corner from_;
  double slope_;
};

/// The row, of a column's, that begins at this part of a pixel or below it.
int row_from(int part, int height) {
  return part <= kMiddle ? 0 : std::min((part - kMiddle + kParts - 1) / kParts, height);
}

bool part_of(double pixels, int& part) {
  if (!(std::fabs(pixels) <= kFarthest)) return false;
  part = static_cast<int>(kParts * pixels + 0.5);
  return true;
}

/// Sums up run lengths, the last of which is no change.
class Sum {
 public:
  Sum(MaskSize size, Changes& changes) : most_(size.pixels()), changes_(changes) {}

  bool add(uint64_t length) {
    if (any_) changes_.push_back(static_cast<uint32_t>(sum_));
    any_ = true;
    if (length > most_ - sum_) return false;
    sum_ += length;
    return true;
  }
  bool is_whole() const { return sum_ == most_; }

 private:
  const uint64_t most_;
  Changes& changes_;
  uint64_t sum_ = 0;
  bool any_ = false;
};

}  // namespace

Status add_polygon(const double* numbers, size_t count, double across, double down, MaskSize size,
                   Changes& changes) {
  const auto corner = [&](size_t i, Corner& found) {
    return part_of(numbers[2 * i] * across, found.x) && part_of(numbers[2 * i + 1] * down, found.y);
  };
  const size_t corners = count / 2;
  Corner from, to;
  for (size_t i = 0; i <= corners && corners > 0; i++, from = to) {
    if (!corner(i % corners, to))
      return {Code::bad_parameters, "a coordinate that is not finite or beyond 2^22 pixels"};
    if (i == 0) continue;
    const Edge edge(from, to);
    // Columns whose middle is between two of its points.
    const int left = std::max(edge.left(), kMiddle), right = edge.right();
    int column = (left - kMiddle + kParts - 1) / kParts;
    for (; column < size.width && kParts * column + kMiddle < right; column++) {
      const int row = row_from(edge.crossing(kParts * column + kMiddle), size.height);
      changes.push_back(static_cast<uint32_t>(column) * static_cast<uint32_t>(size.height) +
                        static_cast<uint32_t>(row));
    }
  }
  return {};
}

Status add_runs(const uint32_t* lengths, size_t count, MaskSize size, Changes& changes) {
  Sum sum(size, changes);
  for (size_t i = 0; i < count; i++)
    if (!sum.add(lengths[i])) return kBadRuns;
  return sum.is_whole() ? Status{} : kBadRuns;
}

Status add_runs(ByteSpan text, MaskSize size, Changes& changes) {
  constexpr int kMostBits = 60;
  Sum sum(size, changes);
  int64_t before[2] = {0, 0};  // the last length but one, the last one
  int64_t value = 0;
  int bits = 0;
  size_t count = 0;
  for (const uint8_t character : text) {
    const int digit = character - '0';
    if (digit < 0 || digit > 63 || bits == kMostBits) return kBadText;
    value |= static_cast<int64_t>(digit & 31) << bits;
    bits += 5;
    if (digit & 32) continue;
    if (digit & 16) value -= int64_t{1} << bits;
    if (count++ > 2) value += before[0];
    if (value < 0 || !sum.add(static_cast<uint64_t>(value))) return kBadRuns;
    before[0] = before[1];
    before[1] = value;
    value = bits = 0;
  }
  if (bits > 0) return kBadText;
  return sum.is_whole() ? Status{} : kBadRuns;
}

void unite(const std::vector<size_t>& begins, Changes& changes) {
  // Twice the pixel, and 1 more where a run of 1 ends: a run that begins where another ends
  // continues it.
  std::vector<uint64_t> events;
  events.reserve(changes.size());
  for (size_t mask = 0; mask < begins.size(); mask++) {
    const size_t begin = begins[mask];
    const size_t end = mask + 1 < begins.size() ? begins[mask + 1] : changes.size();
    std::sort(changes.begin() + begin, changes.begin() + end);
    for (size_t i = begin; i < end; i++)
      events.push_back(2 * uint64_t{changes[i]} + (i - begin) % 2);
  }
  std::sort(events.begin(), events.end());
  changes.clear();
  size_t covering = 0;
  for (const uint64_t event : events) {
    const bool ends = event % 2;
    if (covering == (ends ? 1u : 0u)) changes.push_back(static_cast<uint32_t>(event / 2));
    covering += ends ? -1 : 1;
  }
}

}  // namespace fastdata
