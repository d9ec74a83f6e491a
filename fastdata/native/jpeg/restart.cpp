#include "jpeg/restart.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "simd/kernels.h"

namespace fastdata {
namespace {

class OneRun final : public RunSource {
  bool next_run(Stream&) override { return false; }
};

}  // namespace

size_t find_marker(ByteSpan jpeg, size_t from) {
  while (from + 1 < jpeg.size) {
    const auto* ff =
        static_cast<const uint8_t*>(std::memchr(jpeg.data + from, 0xFF, jpeg.size - from - 1));
    if (!ff) break;
    from = ff - jpeg.data;
    if (ff[1] != 0 && ff[1] != 0xFF) return from;
    from++;
  }
  return jpeg.size;
}

void ScanPosition::open(Stream& stream, ByteSpan jpeg, const JpegHeader& header,
                        const EntryPoint& entry, int mcu, size_t end) {
  jpeg_ = jpeg;
  header_ = &header;
  mcu_ = opened_at_ = mcu;
  opened_byte_ = entry.byte;
  end_ = end;
  open_stream(stream, jpeg, entry, end);
}

int ScanPosition::run_length(int wanted) const {
  const int interval = header_->restart_interval;
  return interval ? std::min(wanted, interval - mcu_ % interval) : wanted;
}

bool ScanPosition::restart_if_due(Stream& stream) {
  const int interval = header_->restart_interval;
  if (!interval || mcu_ % interval != 0 || mcu_ == opened_at_) return true;
  if (overran(stream)) return fail(stream, "the scan ends early", Code::truncated);
  const size_t at = find_marker(jpeg_, stream.source - jpeg_.data);
  if (at + 2 > jpeg_.size)
    return fail(stream, "the scan ends before a restart marker", Code::truncated);
  const int expected = 0xD0 + (mcu_ / interval - 1) % 8;
  if (jpeg_.data[at + 1] != expected) return fail(stream, "a restart marker out of order");
  EntryPoint entry;  // byte-aligned, predictors zero
  entry.byte = opened_byte_ = at + 2;
  opened_at_ = mcu_;
  open_stream(stream, jpeg_, entry, std::max(end_, entry.byte));
  return true;
}

bool ScanPosition::skip_to(Stream& stream, int mcu, EntropyTables& tables) {
  const int interval = header_->restart_interval;
  while (mcu_ < mcu) {
    if (!restart_if_due(stream)) return false;
    const int boundary = interval ? (mcu_ / interval + 1) * interval : INT_MAX;
    if (boundary <= mcu) {  // the marker is found without decoding up to it
      mcu_ = boundary;
      continue;
    }
    const auto blocks = static_cast<uint32_t>(mcu - mcu_) * header_->blocks_per_mcu;
    tables.build_skip();
    int16_t unread[kBlockSize];
    OneRun one;
    Stream* const streams[] = {&stream};
    if (!start_run(stream, tables.plan, blocks, unread, nullptr)) return false;
    if (kernels().skip_streams(streams, 1, one)) return false;
    if (overran(stream)) return fail(stream, "the scan ends early", Code::truncated);
    mcu_ = mcu;
  }
  return restart_if_due(stream);
}

}  // namespace fastdata
