#include "io/crc32c.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace fastdata {
namespace {

// Polynomials over GF(2), reflected: the most significant bit is the coefficient of x^0.
constexpr uint32_t kPolynomial = 0x82F63B78;
constexpr uint32_t kOne = 1u << 31;

constexpr uint32_t times_x(uint32_t p) { return p & 1 ? (p >> 1) ^ kPolynomial : p >> 1; }

constexpr uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit; bit >>= 1, b = times_x(b))
    if (a & bit) product ^= b;
  return product;
}

/// x^(8 * bytes): what appending so many zero bytes multiplies a CRC by.
constexpr uint32_t zeros_factor(uint64_t bytes) {
  uint32_t factor = kOne, square = kOne >> 8;  // x^8
  for (; bytes; bytes >>= 1, square = multiply(square, square))
    if (bytes & 1) factor = multiply(factor, square);
  return factor;
}

struct ByteTable {
  uint32_t entry[256];
};

constexpr ByteTable byte_table() {
  ByteTable t{};
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; bit++) crc = times_x(crc);
    t.entry[i] = crc;
  }
  return t;
}
constexpr ByteTable kByteTable = byte_table();

uint32_t update_plain(uint32_t crc, const uint8_t* p, size_t n) {
  for (; n; n--) crc = kByteTable.entry[(crc ^ *p++) & 0xFF] ^ crc >> 8;
  return crc;
}

// The instruction, by whichever name the processor has it. SSE4.2 and ARM's CRC extension
// have the same one; neither is on every processor.
#if defined(__x86_64__)
// Clang has the instruction apart from SSE4.2.
#define FASTDATA_CRC __attribute__((target("sse4.2,crc32")))
FASTDATA_CRC inline uint64_t crc_word(uint64_t crc, uint64_t word) {
  return _mm_crc32_u64(crc, word);
}
FASTDATA_CRC inline uint32_t crc_byte(uint32_t crc, uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
// Not __builtin_cpu_supports: with the run-time library of zig, which links the wheels, nothing
// fills in what it reads, and it says no on every processor.
bool has_crc() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && c & bit_SSE4_2;
}
#elif defined(__aarch64__)
// Not <arm_acle.h>, whose functions older compilers lack unless all the build is for the extension.
#if defined(__clang__)
#define FASTDATA_CRC __attribute__((target("crc")))
#define FASTDATA_CRC_WORD __builtin_arm_crc32cd
#define FASTDATA_CRC_BYTE __builtin_arm_crc32cb
#else
#define FASTDATA_CRC __attribute__((target("+crc")))
#define FASTDATA_CRC_WORD __builtin_aarch64_crc32cx
#define FASTDATA_CRC_BYTE __builtin_aarch64_crc32cb
#endif
FASTDATA_CRC inline uint64_t crc_word(uint64_t crc, uint64_t word) {
  return FASTDATA_CRC_WORD(static_cast<uint32_t>(crc), word);
}
FASTDATA_CRC inline uint32_t crc_byte(uint32_t crc, uint8_t byte) {
  return FASTDATA_CRC_BYTE(crc, byte);
}
bool has_crc() {
#if defined(__ARM_FEATURE_CRC32)
  return true;  // the build is for processors that have it
#elif defined(__linux__)
  return getauxval(AT_HWCAP) & HWCAP_CRC32;
#else
  return false;
#endif
}
#endif

#if defined(FASTDATA_CRC)
/// Appends a fixed number of zero bytes, a table look-up for each byte of the CRC.
struct ZerosTable {
  uint32_t entry[4][256];

  explicit ZerosTable(uint64_t bytes) {
    const uint32_t factor = zeros_factor(bytes);
    for (int i = 0; i < 4; i++)
      for (uint32_t b = 0; b < 256; b++) entry[i][b] = multiply(factor, b << (8 * i));
  }
  uint32_t operator()(uint32_t crc) const {
    return entry[0][crc & 0xFF] ^ entry[1][crc >> 8 & 0xFF] ^ entry[2][crc >> 16 & 0xFF] ^
           entry[3][crc >> 24];
  }
};

// The instruction takes 3 cycles and can start every cycle: three blocks at a time, their
// CRCs joined at the end (Mark Adler's crc32c.c).
constexpr size_t kBlock = 4096;
constexpr size_t kShortBlock = 256;

template <size_t kBlockBytes>
FASTDATA_CRC uint32_t update_blocks(uint64_t crc, const uint8_t*& p, size_t& n,
                                    const ZerosTable& zeros) {
  for (; n >= 3 * kBlockBytes; n -= 3 * kBlockBytes, p += 3 * kBlockBytes) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kBlockBytes; i += 8) {
      uint64_t a, b, c;
      std::memcpy(&a, p + i, 8);
      std::memcpy(&b, p + kBlockBytes + i, 8);
      std::memcpy(&c, p + 2 * kBlockBytes + i, 8);
      crc = crc_word(crc, a);
      second = crc_word(second, b);
      third = crc_word(third, c);
    }
    crc = zeros(static_cast<uint32_t>(crc)) ^ static_cast<uint32_t>(second);
    crc = zeros(static_cast<uint32_t>(crc)) ^ static_cast<uint32_t>(third);
  }
  return static_cast<uint32_t>(crc);
}

FASTDATA_CRC uint32_t update_fast(uint32_t initial, const uint8_t* p, size_t n) {
  static const ZerosTable long_zeros(kBlock), short_zeros(kShortBlock);
  uint64_t crc = update_blocks<kBlock>(initial, p, n, long_zeros);
  crc = update_blocks<kShortBlock>(crc, p, n, short_zeros);
  for (; n >= 8; n -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = crc_word(crc, word);
  }
  for (; n; n--) crc = crc_byte(static_cast<uint32_t>(crc), *p++);
  return static_cast<uint32_t>(crc);
}
#endif

}  // namespace

bool crc32c_by_instruction() {
#if defined(FASTDATA_CRC)
  static const bool has_instruction = has_crc();
  return has_instruction;
#else
  return false;
#endif
}

uint32_t crc32c(ByteSpan bytes, uint32_t crc) {
  crc = ~crc;
#if defined(FASTDATA_CRC)
  if (crc32c_by_instruction()) return ~update_fast(crc, bytes.data, bytes.size);
#endif
  return ~update_plain(crc, bytes.data, bytes.size);
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return multiply(zeros_factor(length_b), crc_a) ^ crc_b;
}

}  // namespace fastdata
