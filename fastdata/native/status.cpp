#include "status.h"

namespace fastdata {
namespace {

constexpr const char* kNames[] = {
    "ok",
    "not_jpeg",
    "unsupported",
    "truncated",
    "bad_marker",
    "bad_dimensions",
    "bad_huffman_table",
    "missing_table",
    "bad_scan_data",
    "bad_seek_points",
    "bad_region",
    "too_large",
    "out_of_memory",
    "cancelled",
    "file_missing",
    "file_unreadable",
    "cut_short",
    "changed",
    "corrupt_index",
    "other_size",
};
static_assert(sizeof(kNames) / sizeof(*kNames) == static_cast<size_t>(Code::other_size) + 1);

}  // namespace

const char* code_name(Code code) { return kNames[static_cast<size_t>(code)]; }

int code_count() { return sizeof(kNames) / sizeof(*kNames); }

}  // namespace fastdata
