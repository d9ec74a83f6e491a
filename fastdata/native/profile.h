// Where the time goes, by stage: for benchmarks/decode.py. Off, it costs a predictable
// branch a row.
#pragma once

#include <cstdint>

#include "common.h"

namespace fastdata {

enum class Stage {
  header,
  tables,
  entropy,
  inverse_dct,
  colour,
  coefficients,
  horizontal,
  vertical,
  output,
};
constexpr int kStageCount = 9;
const char* stage_name(Stage stage);

/// One thread's clock. Time passes into whichever stage was entered last.
class Profile {
 public:
  static Profile& of_thread() {
    thread_local Profile profile;
    return profile;
  }

  void start();
  void stop();
  double milliseconds(Stage stage) const;

  FASTDATA_INLINE void enter(Stage stage) {
    if (FASTDATA_UNLIKELY(running_)) switch_to(static_cast<int>(stage));
  }
  /// Time passes into no stage.
  FASTDATA_INLINE void leave() {
    if (FASTDATA_UNLIKELY(running_)) switch_to(kStageCount);
  }

 private:
  void switch_to(int stage);

  bool running_ = false;
  int stage_ = kStageCount;
  uint64_t since_ = 0, started_ = 0;
  double started_seconds_ = 0, seconds_per_tick_ = 0;
  uint64_t ticks_[kStageCount + 1] = {};
};

/// From here on, this thread's time is the stage's.
inline void profile(Stage stage) { Profile::of_thread().enter(stage); }

}  // namespace fastdata
