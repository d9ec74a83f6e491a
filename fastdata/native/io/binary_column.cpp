#include "io/binary_column.h"

#include <algorithm>
#include <cstring>

namespace fastdata {
namespace {

template <typename T>
int64_t offset_at(ByteSpan offsets, int64_t place) {
  T offset;
  std::memcpy(&offset, offsets.data + static_cast<size_t>(place) * sizeof offset, sizeof offset);
  return offset;
}

}  // namespace

bool BinaryColumn::add(const BinaryChunk& chunk) {
  const auto most = static_cast<int64_t>(chunk.offsets.size / (chunk.wide ? 8 : 4)) - 1;
  if (chunk.count < 0 || chunk.first < 0 || chunk.count > most || chunk.first > most - chunk.count)
    return false;
  const auto bits = static_cast<size_t>(chunk.first + chunk.count);
  if (chunk.validity.size > 0 && chunk.validity.size < (bits + 7) / 8) return false;
  if (chunk.count == 0) return true;
  ends_.push_back(size() + chunk.count);
  chunks_.push_back(chunk);
  return true;
}

BinaryColumn::Found BinaryColumn::find(int64_t row, ByteSpan& value) const {
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), row);
  const BinaryChunk& chunk = chunks_[static_cast<size_t>(end - ends_.begin())];
  const int64_t place = row - (*end - chunk.count) + chunk.first;
  if (chunk.validity.size > 0 && !(chunk.validity.data[place / 8] >> (place % 8) & 1))
    return Found::null;
  const auto at = chunk.wide ? offset_at<int64_t> : offset_at<int32_t>;
  const int64_t begin = at(chunk.offsets, place), stop = at(chunk.offsets, place + 1);
  // The file that they are mapped from may be damaged.
  if (begin < 0 || stop < begin || stop > static_cast<int64_t>(chunk.data.size))
    return Found::damaged;
  value = {chunk.data.data + begin, static_cast<size_t>(stop - begin)};
  return Found::value;
}

}  // namespace fastdata
