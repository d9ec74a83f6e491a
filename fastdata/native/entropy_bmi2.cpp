// With BMI2's shifts, for all vector paths. Nothing here gains from AVX; given it, the
// compiler copies lanes by vectors, 1 to 3% slower.
#if defined(__x86_64__)
#include "bit_reader.h"
#include "entropy_paths.h"
#include "target.h"

FASTDATA_TARGET_BEGIN(FASTDATA_BMI2)

#include "entropy_core.h"

namespace fastdata {

Stream* decode_streams_bmi2(Stream* const* streams, int count, RunSource& runs) {
  return decode_streams(streams, count, runs);
}
bool skip_blocks_bmi2(Stream& stream, const BlockPlan* plan, uint32_t blocks) {
  return skip_blocks(stream, plan, blocks);
}

}  // namespace fastdata

FASTDATA_TARGET_END
#endif
