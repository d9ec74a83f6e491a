#pragma once

#include <algorithm>

namespace fastdata {

/// MCUs [first_col, end_col) of the rows [first_row, end_row).
struct McuBox {
  int first_col = 0, end_col = 0, first_row = 0, end_row = 0;

  bool holds(const McuBox& other) const {
    return first_col <= other.first_col && first_row <= other.first_row &&
           end_col >= other.end_col && end_row >= other.end_row;
  }
};

/// The smallest box that holds both, of which the first may be empty.
inline McuBox around(const McuBox& a, const McuBox& b) {
  if (a.end_row == 0) return b;
  return {std::min(a.first_col, b.first_col), std::max(a.end_col, b.end_col),
          std::min(a.first_row, b.first_row), std::max(a.end_row, b.end_row)};
}

}  // namespace fastdata
