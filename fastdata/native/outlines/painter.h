// Masks from the places where they change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "outlines/changes.h"
#include "outlines/sampling.h"

namespace fastdata {

/// Paints masks of one size, one after the other, at the pixels of a sampling. Keeps its memory.
///
/// A row is the one before it, but for the columns that change between them. So a mask costs little
/// more than writing it.
class MaskPainter {
 public:
  /// `sampling` stays where it is, and as it is. Throws std::bad_alloc, as `paint` does.
  void begin(MaskSize size, const Sampling& sampling);
  /// Writes sampling.height() rows of sampling.width() pixels, `stride` apart.
  void paint(const Changes& changes, uint8_t* out, size_t stride);

 private:
  void mark(const Changes& changes);

  MaskSize size_{};
  const Sampling* sampling_ = nullptr;
  std::vector<int32_t> order_;   // rows of the result, by their rows of the mask
  std::vector<int32_t> levels_;  // of each row of the mask: how many that are sampled lie above it
  std::vector<uint8_t> blanks_;  // a row a fill, where that fills the row; one of other rows
  std::vector<uint32_t> firsts_, rows_;  // of each column of the mask: the rows where it changes
  std::vector<uint8_t> marks_;           // a row a level: 1 where a column changes; else zeros
  std::vector<uint8_t> marked_;          // levels with marks
  size_t left_ = 0, right_ = 0;          // columns with marks
  std::vector<uint8_t> row_;
};

}  // namespace fastdata
