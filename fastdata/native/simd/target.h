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

#define FASTDATA_AVX2 "avx2,bmi,bmi2,lzcnt,popcnt,f16c"
#define FASTDATA_AVX512                                                            \
  "avx2,bmi,bmi2,lzcnt,popcnt,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi," \
  "avx512vbmi2,avx512vnni"
