// Failures of a sample. The core throws nothing while it decodes:
// every function that reads untrusted bytes returns one of these.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

// Every code, once for C++ and for Python, which has their names (`_native.CODES`).
#define FASTDATA_CODES(C)                                           \
  C(ok)                                                             \
  /* Not ours: a valid image, perhaps, but for another decoder. */  \
  C(not_jpeg)                                                       \
  C(unsupported)                                                    \
  /* The JPEG is damaged. */                                        \
  C(truncated)                                                      \
  C(bad_marker)                                                     \
  C(bad_dimensions)                                                 \
  C(bad_huffman_table)                                              \
  C(missing_table)                                                  \
  C(bad_scan_data)                                                  \
  /* The seek points are of another JPEG. */                        \
  C(bad_seek_points)                                                \
  /* The request cannot be met. */                                  \
  C(bad_region)                                                     \
  C(bad_parameters)                                                 \
  C(too_large)                                                      \
  C(out_of_memory)                                                  \
  C(cancelled)                                                      \
  /* The sample's bytes cannot be had. */                           \
  C(file_missing)                                                   \
  C(file_unreadable)                                                \
  C(too_many_files) /* are open, in this process or this machine */ \
  C(cut_short)      /* the file ends before the blob does */        \
  C(changed)        /* the blob is not the one that was packed */   \
  C(corrupt_index)  /* the index row makes no sense */              \
  C(other_size)     /* the image has other dimensions than was said */

#define FASTDATA_ENUMERATOR(name) name,
enum class Code : uint8_t { FASTDATA_CODES(FASTDATA_ENUMERATOR) };

// Their names, "bad_scan_data" for instance, by value.
#define FASTDATA_STRING(name) #name,
inline constexpr const char* kCodeNames[] = {FASTDATA_CODES(FASTDATA_STRING)};

constexpr const char* code_name(Code code) { return kCodeNames[static_cast<size_t>(code)]; }

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

}  // namespace fastdata
