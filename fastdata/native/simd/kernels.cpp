#include "simd/kernels.h"

#include <atomic>

namespace fastdata {
namespace {

const Kernels* kernels_of(Level level) {
  switch (level) {
#if defined(__x86_64__)
    case Level::avx2: return &kAvx2Kernels;
    case Level::avx512: return &kAvx512Kernels;
#elif defined(__aarch64__)
    case Level::neon: return &kNeonKernels;
#endif
    default: return &kScalarKernels;
  }
}

std::atomic<const Kernels*>& current() {
  static std::atomic<const Kernels*> selected{kernels_of(best_level())};
  return selected;
}

}  // namespace

const Kernels& kernels() { return *current().load(std::memory_order_relaxed); }

bool select_kernels(Level level) {
  if (!has_level(level)) return false;
  current().store(kernels_of(level), std::memory_order_relaxed);
  return true;
}

}  // namespace fastdata
