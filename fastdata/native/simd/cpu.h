// Instruction sets of this processor, and the level that the core uses.
#pragma once

#include <string_view>
#include <vector>

namespace fastdata {

/// avx512 means F, BW, DQ, VL, VBMI, VBMI2 and VNNI together: Ice Lake, Zen 4 and
/// later. Processors with less of it take the AVX2 path. Every aarch64 has neon.
enum class Level { scalar, avx2, avx512, neon };
constexpr Level kLevels[] = {Level::scalar, Level::avx2, Level::avx512, Level::neon};

/// Whether the processor has all instructions that the level is compiled with (target.h), and
/// the operating system saves their registers.
bool has_level(Level level);

/// The names of those instructions' CPUID features; none for scalar and neon.
std::vector<const char*> level_features(Level level);

Level best_level();

const char* level_name(Level level);

/// Whether Intel made this processor; other makers' take other paths through Intel's libraries.
bool made_by_intel();

/// False if no level has that name.
bool parse_level(std::string_view name, Level& level);

}  // namespace fastdata
