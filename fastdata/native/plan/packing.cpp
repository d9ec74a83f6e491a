#include "plan/packing.h"

#include <algorithm>
#include <numeric>

namespace fastdata {
namespace {

/// Batches by the room that they have left: the least room of at least some size in O(1).
class Rooms {
 public:
  explicit Rooms(int32_t most)
      : latest_(static_cast<size_t>(most) + 1, -1),
        words_((static_cast<size_t>(most) >> 6) + 1),
        groups_((static_cast<size_t>(most) >> 12) + 1) {}

  void put(int32_t room, int32_t batch) {
    before_.resize(std::max(before_.size(), static_cast<size_t>(batch) + 1));
    before_[static_cast<size_t>(batch)] = latest_[static_cast<size_t>(room)];
    latest_[static_cast<size_t>(room)] = batch;
    const auto at = static_cast<size_t>(room);
    words_[at >> 6] |= uint64_t{1} << (at & 63);
    groups_[at >> 12] |= uint64_t{1} << ((at >> 6) & 63);
  }

  /// Returns the least room of at least `least`; -1 if there is none.
  int32_t find(int32_t least) const {
    const auto from = static_cast<size_t>(least);
    size_t word = from >> 6;
    uint64_t bits = words_[word] & (~uint64_t{0} << (from & 63));
    if (bits) return lowest(word, bits);
    size_t group = ++word >> 6;
    if (group >= groups_.size()) return -1;
    uint64_t words = groups_[group] & (~uint64_t{0} << (word & 63));
    while (!words) {
      if (++group == groups_.size()) return -1;
      words = groups_[group];
    }
    word = (group << 6) + static_cast<size_t>(__builtin_ctzll(words));
    return lowest(word, words_[word]);
  }

  int32_t take(int32_t room) {
    const auto at = static_cast<size_t>(room);
    const int32_t batch = latest_[at];
    latest_[at] = before_[static_cast<size_t>(batch)];
    if (latest_[at] < 0) {
      words_[at >> 6] &= ~(uint64_t{1} << (at & 63));
      if (!words_[at >> 6]) groups_[at >> 12] &= ~(uint64_t{1} << ((at >> 6) & 63));
    }
    return batch;
  }

 private:
  static int32_t lowest(size_t word, uint64_t bits) {
    return static_cast<int32_t>((word << 6) + static_cast<size_t>(__builtin_ctzll(bits)));
  }

  std::vector<int32_t> latest_;   // the batch that came last to each room
  std::vector<int32_t> before_;   // the one that came before a batch
  std::vector<uint64_t> words_;   // a bit a room: whether a batch has it
  std::vector<uint64_t> groups_;  // a bit a word
};

/// Returns the items in order of their length, the longest first; of one length, in their own.
std::vector<int32_t> by_length(const int32_t* lengths, size_t count, int32_t most) {
  std::vector<int32_t> ends(static_cast<size_t>(most) + 2);
  for (size_t i = 0; i < count; i++) ends[static_cast<size_t>(most - lengths[i]) + 1]++;
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<int32_t> order(count);
  for (size_t i = 0; i < count; i++)
    order[static_cast<size_t>(ends[static_cast<size_t>(most - lengths[i])]++)] =
        static_cast<int32_t>(i);
  return order;
}

/// Puts the batch of each item, in the order given, into `batches`; returns their number, or that
/// of `most` and one more as soon as there are more.
int32_t best_fit(const int32_t* lengths, const std::vector<int32_t>& order, int32_t capacity,
                 int32_t most, std::vector<int32_t>& batches) {
  Rooms rooms(capacity);
  int32_t count = 0;
  for (size_t i = 0; i < order.size(); i++) {
    const int32_t length = lengths[order[i]];
    const int32_t found = rooms.find(length);
    const int32_t batch = found < 0 ? count++ : rooms.take(found);
    if (count > most) break;
    const int32_t room = (found < 0 ? capacity : found) - length;
    batches[i] = batch;
    if (room > 0) rooms.put(room, batch);
  }
  return count;
}

}  // namespace

Packing pack(const int32_t* lengths, size_t count, int32_t budget) {
  Packing packing;
  const int64_t total = std::accumulate(lengths, lengths + count, int64_t{0});
  if (count == 0) {
    packing.starts = {0};
    return packing;
  }
  const int32_t longest = *std::max_element(lengths, lengths + count);
  const std::vector<int32_t> order = by_length(lengths, count, longest);
  std::vector<int32_t> batches(count);
  const int64_t fewest = (total + budget - 1) / budget;
  const int64_t mean = (total + fewest - 1) / fewest;
  const auto even = static_cast<int32_t>(mean + (budget - mean) / 8);
  const auto most = static_cast<int32_t>(fewest);
  int32_t found = best_fit(lengths, order, std::max(even, longest), most, batches);
  if (found > most) found = best_fit(lengths, order, budget, static_cast<int32_t>(count), batches);
  packing.starts.assign(static_cast<size_t>(found) + 1, 0);
  for (const int32_t batch : batches) packing.starts[static_cast<size_t>(batch) + 1]++;
  std::partial_sum(packing.starts.begin(), packing.starts.end(), packing.starts.begin());
  std::vector<int32_t> ends(packing.starts.begin(), packing.starts.end() - 1);
  packing.items.resize(count);
  for (size_t i = 0; i < count; i++)
    packing.items[static_cast<size_t>(ends[static_cast<size_t>(batches[i])]++)] = order[i];
  return packing;
}

}  // namespace fastdata
