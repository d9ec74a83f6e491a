#include "jpeg/probe.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

namespace fastdata {
namespace {

constexpr size_t kTiffHeader = 8, kEntry = 12;
constexpr uint16_t kOrientation = 0x0112, kShort = 3;
// Bytes of a value of each type of TIFF 6.0, from type 1 on.
constexpr uint8_t kSizes[] = {1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8};

/// TIFF data, in the byte order that they begin with.
class Tiff {
 public:
  Tiff(ByteSpan bytes, bool big) : bytes_(bytes), big_(big) {}

  uint32_t number(size_t at, int size) const {
    uint32_t value = 0;
    for (int i = 0; i < size; i++) value = value << 8 | bytes_.data[at + (big_ ? i : size - 1 - i)];
    return value;
  }
  bool holds(uint64_t at, uint64_t size) const {
    return at <= bytes_.size && size <= bytes_.size - at;
  }

 private:
  ByteSpan bytes_;
  bool big_;
};

/// As `exif_orientation`; -1: the data have no such tag.
int in_exif(ByteSpan exif) {
  const char little_endian[] = {'I', 'I', 42, 0}, big_endian[] = {'M', 'M', 0, 42};
  if (exif.size < kTiffHeader) return 0;
  const bool big = std::memcmp(exif.data, big_endian, sizeof big_endian) == 0;
  if (!big && std::memcmp(exif.data, little_endian, sizeof little_endian) != 0) return 0;
  const Tiff tiff(exif, big);
  const uint32_t directory = tiff.number(4, 4);
  if (!tiff.holds(directory, 2)) return 0;
  const uint32_t count = tiff.number(directory, 2);
  if (!tiff.holds(uint64_t{directory} + 2, count * kEntry)) return 0;
  int found = -1;
  for (uint32_t i = 0; i < count; i++) {
    const size_t at = directory + 2 + i * kEntry;
    const uint32_t type = tiff.number(at + 2, 2), values = tiff.number(at + 4, 4);
    // Pillow leaves out all entries from the first one whose value is not there.
    if (type < 1 || type > std::size(kSizes)) return 0;
    const uint64_t size = uint64_t{values} * kSizes[type - 1];
    if (size > 4 && !tiff.holds(tiff.number(at + 8, 4), size)) return 0;
    if (tiff.number(at, 2) != kOrientation) continue;
    // Of a tag that comes twice, the first counts for Pillow 13, the last for older ones.
    if (type != kShort || values != 1 || found != -1) return 0;
    found = static_cast<int>(tiff.number(at + 8, 2));
    if (found > 8) found = 1;
    found = std::max(found, 1);
  }
  return found;
}

}  // namespace

int exif_orientation(const JpegHeader& header) {
  if (header.several_exif) return 0;
  const int found = header.exif.size ? in_exif(header.exif) : -1;
  if (found >= 0) return found;
  const std::string_view xmp(reinterpret_cast<const char*>(header.xmp.data), header.xmp.size);
  return xmp.find("tiff:Orientation") == xmp.npos ? 1 : 0;
}

}  // namespace fastdata
