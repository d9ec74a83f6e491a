// CRC-32C (Castagnoli), as in iSCSI, ext4, Google Cloud Storage: reflected polynomial
// 0x82F63B78, initial value and final xor 0xFFFFFFFF.
#pragma once

#include <cstdint>

#include "common.h"

namespace fastdata {

/// Extends `crc` by `bytes`. Start with 0.
uint32_t crc32c(ByteSpan bytes, uint32_t crc = 0);

/// Whether the processor has an instruction for it; fifty times slower without.
bool crc32c_by_instruction();

/// The CRC of A followed by B, given both their CRCs and B's length.
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

}  // namespace fastdata
