#include "outlines/painter.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace fastdata {

void MaskPainter::begin(MaskSize size, const Sampling& sampling) {
  size_ = size;
  sampling_ = &sampling;
  const std::vector<int32_t>&rows = sampling.rows(), &columns = sampling.columns();
  order_.resize(rows.size());
  std::iota(order_.begin(), order_.end(), 0);
  if (!std::is_sorted(rows.begin(), rows.end()))
    std::sort(order_.begin(), order_.end(),
              [&](int32_t a, int32_t b) { return rows[a] < rows[b]; });

  levels_.assign(static_cast<size_t>(size.height), 0);
  for (const int32_t row : rows)
    if (row >= 0) levels_[row] = 1;
  int32_t count = 0;
  for (int32_t& level : levels_) count += std::exchange(level, count);
  marks_.assign(static_cast<size_t>(count) * columns.size(), 0);
  marked_.assign(static_cast<size_t>(count), 0);

  blanks_.assign((sampling.fills().size() + 1) * columns.size(), 0);
  uint8_t* blank = blanks_.data();
  for (size_t fill = 0; fill <= sampling.fills().size(); fill++)
    for (const int32_t column : columns) {
      const bool row_counts = fill < sampling.fills().size();
      const int32_t place = std::min(column, row_counts ? -1 - static_cast<int32_t>(fill) : 0);
      *blank++ = place < 0 ? sampling.fills()[static_cast<size_t>(-1 - place)] : 0;
    }
}

void MaskPainter::mark(const Changes& changes) {
  const auto width = static_cast<size_t>(size_.width);
  const auto height = static_cast<uint32_t>(size_.height);
  // Sorted by column, by counting; what comes behind the last one changes nothing.
  firsts_.assign(width + 3, 0);
  for (const uint32_t change : changes) firsts_[change / height + 2]++;
  std::partial_sum(firsts_.begin(), firsts_.end(), firsts_.begin());
  rows_.resize(changes.size());
  for (const uint32_t change : changes) rows_[firsts_[change / height + 1]++] = change % height;

  const std::vector<int32_t>& columns = sampling_->columns();
  left_ = columns.size();
  right_ = 0;
  for (size_t c = 0; c < columns.size(); c++) {
    if (columns[c] < 0) continue;
    const auto toggle = [&](size_t level) {
      if (level >= marked_.size()) return;
      marks_[level * columns.size() + c] ^= 1;
      marked_[level] = 1;
      left_ = std::min(left_, c);
      right_ = c + 1;
    };
    const uint32_t first = firsts_[columns[c]], end = firsts_[columns[c] + 1];
    if (first % 2) toggle(0);  // an odd number of changes in the columns before
    for (uint32_t i = first; i < end; i++) toggle(static_cast<size_t>(levels_[rows_[i]]));
  }
}

void MaskPainter::paint(const Changes& changes, uint8_t* out, size_t stride) {
  mark(changes);
  const std::vector<int32_t>& rows = sampling_->rows();
  const size_t width = sampling_->columns().size();
  const uint8_t* blank = blanks_.data() + sampling_->fills().size() * width;
  row_.assign(blank, blank + width);
  int32_t last = -1;
  for (const int32_t i : order_) {
    uint8_t* to = out + static_cast<size_t>(i) * stride;
    if (rows[i] < 0) {
      std::memcpy(to, blanks_.data() + static_cast<size_t>(-1 - rows[i]) * width, width);
      continue;
    }
    const int32_t level = levels_[rows[i]];
    if (level != last && marked_[level]) {
      uint8_t* marks = marks_.data() + static_cast<size_t>(level) * width;
      for (size_t c = left_; c < right_; c++) row_[c] ^= marks[c];
      std::memset(marks + left_, 0, right_ - left_);
      marked_[level] = 0;
    }
    last = level;
    std::memcpy(to, row_.data(), width);
  }
}

}  // namespace fastdata
