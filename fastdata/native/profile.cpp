#include "profile.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fastdata {

std::atomic<bool> profiling{false};

namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();  // a stage may last less than reading the system's clock does
#else
  return static_cast<uint64_t>(now() * 1e9);
#endif
}

struct Profile {
  std::thread::id thread;
  Stage stage = Stage::none;
  double began_seconds = 0;
  uint64_t began = 0, since = 0;
  uint64_t spent[kStageCount + 1] = {};
} current;

}  // namespace

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::header: return "header";
    case Stage::tables: return "Huffman tables";
    case Stage::entropy: return "entropy decoding";
    case Stage::inverse_dct: return "dequantise, inverse DCT";
    case Stage::colour: return "upsampling, colour";
    case Stage::turn: return "turning upright";
    case Stage::coefficients: return "resampling coefficients";
    case Stage::horizontal: return "horizontal pass";
    case Stage::vertical: return "vertical pass";
    case Stage::augment: return "augmentations";
    case Stage::output: return "output";
    case Stage::none: break;
  }
  return "";
}

void profile_start() {
  profiling = false;
  current = Profile{};
  current.thread = std::this_thread::get_id();
  current.began_seconds = now();
  current.began = current.since = ticks();
  profiling = true;
}

void profile_switch(Stage stage) {
  if (std::this_thread::get_id() != current.thread) return;
  const uint64_t at = ticks();
  current.spent[static_cast<int>(current.stage)] += at - current.since;
  current.since = at;
  current.stage = stage;
}

void profile_stop(double* milliseconds) {
  profile_switch(Stage::none);
  profiling = false;
  const double seconds = now() - current.began_seconds;
  const auto elapsed = static_cast<double>(std::max<uint64_t>(1, current.since - current.began));
  const double per_tick = seconds / elapsed;
  for (int i = 0; i < kStageCount; i++)
    milliseconds[i] = static_cast<double>(current.spent[i]) * per_tick * 1e3;
}

}  // namespace fastdata
