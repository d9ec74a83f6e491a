#include "simd/cpu.h"

#include <cstdint>

#include "simd/target.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fastdata {
namespace {

#if defined(__x86_64__)
enum Register { eax, ebx, ecx, edx };

struct Feature {
  const char* name;
  uint32_t leaf;
  Register reg;
  int bit;
};

#define FASTDATA_FEATURE(name, leaf, reg, bit) {name, leaf, reg, bit},
constexpr Feature kAvx2Features[] = {FASTDATA_AVX2_FEATURES(FASTDATA_FEATURE)};
constexpr Feature kAvx512Features[] = {FASTDATA_AVX512_FEATURES(FASTDATA_FEATURE)};

bool has_bit(uint32_t leaf, Register reg, int bit) {
  uint32_t values[4] = {};
  // False where the processor has no such leaf.
  if (!__get_cpuid_count(leaf, 0, &values[eax], &values[ebx], &values[ecx], &values[edx]))
    return false;
  return values[reg] >> bit & 1;
}

// Registers that the operating system saves when it switches threads: bits of XCR0.
constexpr uint32_t kYmm = 1 << 1 | 1 << 2;
constexpr uint32_t kZmm = kYmm | 1 << 5 | 1 << 6 | 1 << 7;

bool saves(uint32_t registers) {
  constexpr int kOsxsave = 27;  // of leaf 1, ecx: XGETBV may be used
  if (!has_bit(1, ecx, kOsxsave)) return false;
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & registers) == registers;
}

template <size_t kCount>
bool has_all(const Feature (&features)[kCount], uint32_t registers) {
  for (const Feature& f : features)
    if (!has_bit(f.leaf, f.reg, f.bit)) return false;
  return saves(registers);
}

template <size_t kCount>
std::vector<const char*> names(const Feature (&features)[kCount]) {
  std::vector<const char*> all;
  for (const Feature& f : features) all.push_back(f.name);
  return all;
}
#endif

}  // namespace

bool has_level(Level level) {
#if defined(__x86_64__)
  static const bool avx2 = has_all(kAvx2Features, kYmm);
  static const bool avx512 = has_all(kAvx512Features, kZmm);
  if (level == Level::avx2) return avx2;
  if (level == Level::avx512) return avx512;
#elif defined(__aarch64__)
  if (level == Level::neon) return true;
#endif
  return level == Level::scalar;
}

std::vector<const char*> level_features([[maybe_unused]] Level level) {
#if defined(__x86_64__)
  if (level == Level::avx2) return names(kAvx2Features);
  if (level == Level::avx512) return names(kAvx512Features);
#endif
  return {};
}

Level best_level() {
  Level best = Level::scalar;
  for (Level level : kLevels)
    if (has_level(level)) best = level;
  return best;
}

bool made_by_intel() {
#if defined(__x86_64__)
  uint32_t values[4] = {};
  return __get_cpuid(0, &values[eax], &values[ebx], &values[ecx], &values[edx]) &&
         values[ebx] == signature_INTEL_ebx && values[ecx] == signature_INTEL_ecx &&
         values[edx] == signature_INTEL_edx;
#else
  return false;
#endif
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

bool parse_level(std::string_view name, Level& level) {
  for (Level candidate : kLevels)
    if (name == level_name(candidate)) {
      level = candidate;
      return true;
    }
  return false;
}

}  // namespace fastdata
