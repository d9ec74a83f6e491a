// What can be wrong with a sample. The core throws nothing while it decodes:
// every function that reads untrusted bytes returns one of these.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

enum class Code : uint8_t {
  ok = 0,
  // Not ours: a valid image, perhaps, but for another decoder.
  not_jpeg,
  unsupported,
  // The JPEG is damaged.
  truncated,
  bad_marker,
  bad_dimensions,
  bad_huffman_table,
  missing_table,
  bad_scan_data,
  // The JPEG may be whole, but its seek points are not those of this JPEG.
  bad_seek_points,
  // The request cannot be met.
  bad_region,
  too_large,
  out_of_memory,
  cancelled,
  // The sample's bytes cannot be had.
  file_missing,
  file_unreadable,
  cut_short,      // the file ends before the blob does
  changed,        // the blob is not the one that was packed
  corrupt_index,  // the index row makes no sense
  other_size,     // the image has other dimensions than was said
};

/// An outcome: what went wrong, why in a few words, and at which byte of the
/// JPEG (or of the seek table, for bad_seek_points).
struct [[nodiscard]] Status {
  Code code = Code::ok;
  const char* detail = "";  // never freed
  size_t offset = 0;

  constexpr Status() = default;
  constexpr Status(Code c, const char* d, size_t at = 0) : code(c), detail(d), offset(at) {}

  constexpr bool ok() const { return code == Code::ok; }
};

/// The name that Python sees, "bad_scan_data" for instance.
const char* code_name(Code code);

/// The number of codes; their values are 0 to code_count() - 1.
int code_count();

}  // namespace fastdata
