#include "profile.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fastdata {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return static_cast<uint64_t>(now() * 1e9);
#endif
}

}  // namespace

const char* stage_name(Stage stage) {
  switch (stage) {
    case Stage::header: return "header";
    case Stage::tables: return "Huffman tables";
    case Stage::entropy: return "entropy decoding";
    case Stage::inverse_dct: return "dequantise, inverse DCT";
    case Stage::colour: return "upsampling, colour";
    case Stage::coefficients: return "resampling coefficients";
    case Stage::horizontal: return "horizontal pass";
    case Stage::vertical: return "vertical pass";
    case Stage::output: return "output";
  }
  return "";
}

void Profile::start() {
  std::fill(std::begin(ticks_), std::end(ticks_), 0);
  stage_ = kStageCount;
  since_ = started_ = ticks();
  started_seconds_ = now();
  running_ = true;
}

void Profile::stop() {
  switch_to(kStageCount);
  running_ = false;
  seconds_per_tick_ = (now() - started_seconds_) / static_cast<double>(since_ - started_);
}

void Profile::switch_to(int stage) {
  const uint64_t at = ticks();
  ticks_[stage_] += at - since_;
  since_ = at;
  stage_ = stage;
}

double Profile::milliseconds(Stage stage) const {
  return static_cast<double>(ticks_[static_cast<int>(stage)]) * seconds_per_tick_ * 1e3;
}

}  // namespace fastdata
