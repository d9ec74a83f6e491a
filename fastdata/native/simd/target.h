// Compiling one file for more than plain x86-64. (Plain aarch64 has NEON: its file needs
// nothing of this.)
//
// The extension is built once, for plain x86-64; each vector file opens a region
// with the instructions that it may use, and is called only where cpu.h has found
// them. Note [No shared inline functions]: a function that two files compile with
// different instructions must not be merged by the linker, or the plain path would
// run the other's code. So whatever a vector file includes inside its region lies
// in an unnamed namespace, all other headers come before the region, and what both
// sides share is FASTDATA_INLINE, which leaves no copy behind.
#pragma once

#define FASTDATA_PRAGMA(x) _Pragma(#x)

#if defined(__clang__)
#define FASTDATA_TARGET_BEGIN(features) \
  FASTDATA_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FASTDATA_TARGET_END FASTDATA_PRAGMA(clang attribute pop)
#else
#define FASTDATA_TARGET_BEGIN(features) \
  FASTDATA_PRAGMA(GCC push_options) FASTDATA_PRAGMA(GCC target(features))
#define FASTDATA_TARGET_END FASTDATA_PRAGMA(GCC pop_options)
#endif

// Features that each level is compiled with, and that cpu.cpp asks the processor for. F(name for
// the compiler, CPUID's leaf, register, bit).
#define FASTDATA_AVX2_FEATURES(F) \
  F("sse3", 1, ecx, 0)            \
  F("ssse3", 1, ecx, 9)           \
  F("sse4.1", 1, ecx, 19)         \
  F("fma", 1, ecx, 12)            \
  F("sse4.2", 1, ecx, 20)         \
  F("popcnt", 1, ecx, 23)         \
  F("avx", 1, ecx, 28)            \
  F("f16c", 1, ecx, 29)           \
  F("bmi", 7, ebx, 3)             \
  F("avx2", 7, ebx, 5)            \
  F("bmi2", 7, ebx, 8)            \
  F("lzcnt", 0x80000001, ecx, 5)
#define FASTDATA_AVX512_FEATURES(F) \
  FASTDATA_AVX2_FEATURES(F)         \
  F("avx512f", 7, ebx, 16)          \
  F("avx512dq", 7, ebx, 17)         \
  F("avx512bw", 7, ebx, 30)         \
  F("avx512vl", 7, ebx, 31)         \
  F("avx512vbmi", 7, ecx, 1)        \
  F("avx512vbmi2", 7, ecx, 6)       \
  F("avx512vnni", 7, ecx, 11)

// "sse2" is every x86-64's; the others follow it, each behind a comma.
#define FASTDATA_FEATURE_NAME(name, leaf, reg, bit) "," name
#define FASTDATA_AVX2 "sse2" FASTDATA_AVX2_FEATURES(FASTDATA_FEATURE_NAME)
#define FASTDATA_AVX512 "sse2" FASTDATA_AVX512_FEATURES(FASTDATA_FEATURE_NAME)
