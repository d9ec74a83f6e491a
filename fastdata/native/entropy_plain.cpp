#include "bit_reader.h"
#include "entropy_paths.h"

#include "entropy_core.h"

namespace fastdata {

Stream* decode_streams_plain(Stream* const* streams, int count, RunSource& runs) {
  return decode_streams(streams, count, runs);
}
bool skip_blocks_plain(Stream& stream, const BlockPlan* plan, uint32_t blocks) {
  return skip_blocks(stream, plan, blocks);
}

}  // namespace fastdata
