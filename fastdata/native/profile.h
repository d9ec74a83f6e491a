// Where the time goes, by stage: for doctor and benchmarks. While it is off, it costs a
// predictable branch a row.
#pragma once

#include <atomic>

#include "common.h"

namespace fastdata {

enum class Stage {
  header,
  tables,
  entropy,
  inverse_dct,
  colour,
  turn,
  coefficients,
  horizontal,
  vertical,
  augment,
  output,
  none,  // outside of decoding
};
constexpr int kStageCount = static_cast<int>(Stage::none);
const char* stage_name(Stage stage);

/// Measures the calling thread, and only one thread at a time, from start to stop.
void profile_start();
/// Milliseconds in each stage, kStageCount of them.
void profile_stop(double* milliseconds);

extern std::atomic<bool> profiling;
void profile_switch(Stage stage);

/// From here on, this thread's time is the stage's.
FASTDATA_INLINE void profile(Stage stage) {
  if (FASTDATA_UNLIKELY(profiling.load(std::memory_order_relaxed))) profile_switch(stage);
}

}  // namespace fastdata
