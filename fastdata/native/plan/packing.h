// Best-fit packing of lengths into batches of a budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastdata {

/// The most that a budget may be: callers count in larger units beyond it.
constexpr int32_t kMostBudget = 1 << 20;

/// Items batch by batch.
struct Packing {
  std::vector<int32_t> items;   // numbers of items; in a batch, longer ones first
  std::vector<int32_t> starts;  // where each batch begins in `items`, and the end of the last
};

/// Packs by best fit, longest first: an item goes into the batch that it fills most, of several
/// into the latest; else into a new one. The items' sum in a batch is at most the budget.
///
/// It first aims at batches that are equally full: a capacity a little above the mean of the fewest
/// batches that could hold all. Where that takes more batches than these, the capacity is the
/// budget.
///
/// Each length is from 1 to the budget.
Packing pack(const int32_t* lengths, size_t count, int32_t budget);

}  // namespace fastdata
