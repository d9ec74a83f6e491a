#include "simd/cpu.h"

#include <cstring>

namespace fastdata {
namespace {

constexpr Level kLevels[] = {Level::scalar, Level::avx2, Level::avx512, Level::neon};

}  // namespace

bool has_level(Level level) {
#if defined(__x86_64__)
  // __builtin_cpu_supports also asks the operating system whether it saves the
  // registers (XGETBV).
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  switch (level) {
    case Level::scalar: return true;
    case Level::avx2: return avx2;
    case Level::avx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
             __builtin_cpu_supports("avx512vnni");
    case Level::neon: return false;
  }
  return false;
#elif defined(__aarch64__)
  return level == Level::scalar || level == Level::neon;
#else
  return level == Level::scalar;
#endif
}

Level best_level() {
  Level best = Level::scalar;
  for (Level level : kLevels)
    if (has_level(level)) best = level;
  return best;
}

const char* level_name(Level level) {
  switch (level) {
    case Level::scalar: return "scalar";
    case Level::avx2: return "avx2";
    case Level::avx512: return "avx512";
    case Level::neon: return "neon";
  }
  return "";
}

bool parse_level(const char* name, Level& level) {
  for (Level candidate : kLevels)
    if (std::strcmp(name, level_name(candidate)) == 0) {
      level = candidate;
      return true;
    }
  return false;
}

}  // namespace fastdata
