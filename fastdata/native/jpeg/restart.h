// A stream that moves through the scan MCU by MCU, across restart markers.
#pragma once

#include "jpeg/entropy.h"
#include "jpeg/jpeg_header.h"

namespace fastdata {

class ScanPosition {
 public:
  ScanPosition() = default;
  /// At MCU `mcu`, where `entry` is. Reads nothing at or after `end`.
  void open(Stream& stream, ByteSpan jpeg, const JpegHeader& header, const EntryPoint& entry,
            int mcu, size_t end);

  int mcu() const { return mcu_; }

  /// Where the stream was last opened: at the entry point, or behind a restart marker.
  size_t opened_byte() const { return opened_byte_; }

  /// The MCUs that may be decoded from here before the next restart marker, at most
  /// `wanted`.
  int run_length(int wanted) const;

  /// The stream has decoded `count` MCUs.
  void advance(int count) { mcu_ += count; }

  /// If a restart marker is due, finds it and continues behind it. False: the stream failed, or
  /// took more bits than there are before the marker.
  bool restart_if_due(Stream& stream);

  /// Goes to a later MCU, decoding only what it must.
  bool skip_to(Stream& stream, int mcu, EntropyTables& tables);

 private:
  ByteSpan jpeg_;
  const JpegHeader* header_ = nullptr;
  int mcu_ = 0;
  int opened_at_ = 0;  // no restart is due at this MCU any more
  size_t opened_byte_ = 0;
  size_t end_ = 0;
};

/// The next marker at or after `from`: the offset of its 0xFF, or jpeg.size.
size_t find_marker(ByteSpan jpeg, size_t from);

}  // namespace fastdata
