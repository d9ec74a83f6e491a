// The decoding loop (entropy_core.h) as compiled for plain x86-64 and with BMI2.
#pragma once

#include "entropy.h"

namespace fastdata {

Stream* decode_streams_plain(Stream* const* streams, int count, RunSource& runs);
bool skip_blocks_plain(Stream& stream, const BlockPlan* plan, uint32_t blocks);

Stream* decode_streams_bmi2(Stream* const* streams, int count, RunSource& runs);
bool skip_blocks_bmi2(Stream& stream, const BlockPlan* plan, uint32_t blocks);

}  // namespace fastdata
