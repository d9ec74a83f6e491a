// Which instructions this processor has, and which the core therefore uses.
#pragma once

namespace fastdata {

enum class Level { scalar, avx2, avx512, neon };

/// avx512 stands for F, BW, DQ, VL, VBMI, VBMI2 and VNNI together: Ice Lake, Zen 4 and
/// later. Processors with less of it take the AVX2 path. neon is that of aarch64, where all
/// have it.
bool has_level(Level level);

Level best_level();

const char* level_name(Level level);

/// False if no level has that name.
bool parse_level(const char* name, Level& level);

}  // namespace fastdata
