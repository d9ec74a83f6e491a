// The same image as another JPEG: baseline, in one scan, with Huffman codes made for it.
#pragma once

#include <cstdint>
#include <vector>

#include "common.h"
#include "status.h"

namespace fastdata {

/// Writes a JPEG that is progressive, of several scans or with restart markers as a baseline one of
/// the same quantised coefficients, so of the same pixels to the bit. What is no such JPEG, or one
/// with a scan missing or APPn segments behind the first, is left alone: a status says why. `out`
/// stays empty if the JPEG is baseline already.
///
/// Kept: quantisation tables, all APPn and COM segments, in their order, comments between scans
/// behind those before the first; bytes behind the end. Not kept: restart markers, fill bytes.
/// Throws std::bad_alloc.
Status rewrite_baseline(ByteSpan jpeg, std::vector<uint8_t>& out);

}  // namespace fastdata
