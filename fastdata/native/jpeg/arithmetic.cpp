#include "jpeg/arithmetic.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

namespace fastdata {
namespace {

/// How likely a bin's less probable symbol is, Qe; the bin's next estimate once that one, or the
/// more probable one, has renormalised the interval; whether the less probable one becomes the
/// more probable.
struct Estimate {
  uint16_t less;
  uint8_t after_less, after_more;
  bool exchange;
};

constexpr Estimate kStandard[] = {
    // T.81, table D.3.
    // clang-format off
    {0x5A1D, 1, 1, true}, {0x2586, 14, 2, false}, {0x1114, 16, 3, false}, {0x080B, 18, 4, false},
    {0x03D8, 20, 5, false}, {0x01DA, 23, 6, false}, {0x00E5, 25, 7, false}, {0x006F, 28, 8, false},
    {0x0036, 30, 9, false}, {0x001A, 33, 10, false}, {0x000D, 35, 11, false}, {0x0006, 9, 12, false},
    {0x0003, 10, 13, false}, {0x0001, 12, 13, false}, {0x5A7F, 15, 15, true}, {0x3F25, 36, 16, false},
    {0x2CF2, 38, 17, false}, {0x207C, 39, 18, false}, {0x17B9, 40, 19, false}, {0x1182, 42, 20, false},
    {0x0CEF, 43, 21, false}, {0x09A1, 45, 22, false}, {0x072F, 46, 23, false}, {0x055C, 48, 24, false},
    {0x0406, 49, 25, false}, {0x0303, 51, 26, false}, {0x0240, 52, 27, false}, {0x01B1, 54, 28, false},
    {0x0144, 56, 29, false}, {0x00F5, 57, 30, false}, {0x00B7, 59, 31, false}, {0x008A, 60, 32, false},
    {0x0068, 62, 33, false}, {0x004E, 63, 34, false}, {0x003B, 32, 35, false}, {0x002C, 33, 9, false},
    {0x5AE1, 37, 37, true}, {0x484C, 64, 38, false}, {0x3A0D, 65, 39, false}, {0x2EF1, 67, 40, false},
    {0x261F, 68, 41, false}, {0x1F33, 69, 42, false}, {0x19A8, 70, 43, false}, {0x1518, 72, 44, false},
    {0x1177, 73, 45, false}, {0x0E74, 74, 46, false}, {0x0BFB, 75, 47, false}, {0x09F8, 77, 48, false},
    {0x0861, 78, 49, false}, {0x0706, 79, 50, false}, {0x05CD, 48, 51, false}, {0x04DE, 50, 52, false},
    {0x040F, 50, 53, false}, {0x0363, 51, 54, false}, {0x02D4, 52, 55, false}, {0x025C, 53, 56, false},
    {0x01F8, 54, 57, false}, {0x01A4, 55, 58, false}, {0x0160, 56, 59, false}, {0x0125, 57, 60, false},
    {0x00F6, 58, 61, false}, {0x00CB, 59, 62, false}, {0x00AB, 61, 63, false}, {0x008F, 61, 32, false},
    {0x5B12, 65, 65, true}, {0x4D04, 80, 66, false}, {0x412C, 81, 67, false}, {0x37D8, 82, 68, false},
    {0x2FE8, 83, 69, false}, {0x293C, 84, 70, false}, {0x2379, 86, 71, false}, {0x1EDF, 87, 72, false},
    {0x1AA9, 87, 73, false}, {0x174E, 72, 74, false}, {0x1424, 72, 75, false}, {0x119C, 74, 76, false},
    {0x0F6B, 74, 77, false}, {0x0D51, 75, 78, false}, {0x0BB6, 77, 79, false}, {0x0A40, 77, 48, false},
    {0x5832, 80, 81, true}, {0x4D1C, 88, 82, false}, {0x438E, 89, 83, false}, {0x3BDD, 90, 84, false},
    {0x34EE, 91, 85, false}, {0x2EAE, 92, 86, false}, {0x299A, 93, 87, false}, {0x2516, 86, 71, false},
    {0x5570, 88, 89, true}, {0x4CA9, 95, 90, false}, {0x44D9, 96, 91, false}, {0x3E22, 97, 92, false},
    {0x3824, 99, 93, false}, {0x32B4, 99, 94, false}, {0x2E17, 93, 86, false}, {0x56A8, 95, 96, true},
    {0x4F46, 101, 97, false}, {0x47E5, 102, 98, false}, {0x41CF, 103, 99, false}, {0x3C3D, 104, 100, false},
    {0x375E, 99, 93, false}, {0x5231, 105, 102, false}, {0x4C0F, 106, 103, false}, {0x4639, 107, 104, false},
    {0x415E, 103, 99, false}, {0x5627, 105, 106, true}, {0x50E7, 108, 107, false}, {0x4B85, 109, 103, false},
    {0x5597, 110, 109, false}, {0x504F, 111, 107, false}, {0x5A10, 110, 111, true}, {0x5522, 112, 109, false},
    {0x59EB, 112, 111, true},
    // clang-format on
};

/// A bin's state: the estimate and, lowest bit, the more probable symbol.
struct State {
  uint16_t less;
  uint8_t after_less, after_more;
};

constexpr auto kStates = [] {
  std::array<State, 2 * std::size(kStandard)> states{};
  for (size_t i = 0; i < states.size(); i++) {
    const Estimate& e = kStandard[i / 2];
    const int symbol = i & 1;
    states[i] = {e.less, static_cast<uint8_t>(2 * e.after_less + (symbol ^ e.exchange)),
                 static_cast<uint8_t>(2 * e.after_more + symbol)};
  }
  return states;
}();

// Places of statistics bins in a table (T.81, F.1.4.4).
constexpr int kDcMagnitude = 20;                              // X1
constexpr int kAcMagnitudeLow = 189, kAcMagnitudeHigh = 217;  // X2 up to Kx, and above
constexpr int kPattern = 14;                                  // from Xn to Mn
constexpr uint32_t kMaxCategory = 0x8000;
constexpr uint32_t kLoaded = 32;  // bits

}  // namespace

void ArithmeticDecoder::open(ByteSpan jpeg, const JpegHeader& header, const Scan& scan,
                             size_t from) {
  jpeg_ = jpeg;
  pos_ = jpeg.data + from;
  header_ = &header;
  scan_ = scan;
  error_ = nullptr;
  for (int i = 0; i < header.component_count; i++) {
    const Component& c = header.components[i];
    std::fill_n(dc_[c.dc_table], std::size(dc_[0]), Bin{0});
    std::fill_n(ac_[c.ac_table], std::size(ac_[0]), Bin{0});
    predictor_[i] = 0;
    category_[i] = 0;
  }
  code_ = 0;
  range_ = 0x10000;
  count_ = -16;
  load();
}

bool ArithmeticDecoder::decode(int i, uint64_t& nonzero, int16_t* block) {
  if (scan_.first == 0) {
    if (scan_.high) {
      const int bit = decide_evenly() << scan_.low;
      if (block) *block = static_cast<int16_t>(*block | bit);
      return true;
    }
    if (!decode_dc(i, block)) return false;
  }
  if (scan_.last == 0) return true;
  return scan_.high ? refine(i, nonzero, block) : decode_first(i, nonzero, block);
}

/// T.81, F.2.4.1.
bool ArithmeticDecoder::decode_dc(int i, int16_t* block) {
  const int table = header_->components[i].dc_table;
  Bin* const bins = dc_[table];
  Bin* const bin = bins + category_[i];
  category_[i] = 0;
  if (decide(bin[0])) {
    const int negative = decide(bin[1]);
    uint32_t value = 0;  // the difference's magnitude less one
    if (decide(bin[2 + negative]) && !magnitude(bins + kDcMagnitude, 1, value)) return false;
    predictor_[i] += negative ? ~value : value + 1;
    const Conditioning& c = header_->conditioning;
    if (value >= 1u << c.dc_upper[table])
      category_[i] = 12 + 4 * negative;
    else if (value >= 1u << c.dc_lower[table] >> 1)
      category_[i] = 4 + 4 * negative;
  }
  if (block) *block = static_cast<int16_t>(predictor_[i] << scan_.low);
  return true;
}

/// T.81, F.2.4.2; of a progressive JPEG a band, its upper bits.
bool ArithmeticDecoder::decode_first(int i, uint64_t& nonzero, int16_t* block) {
  const int table = header_->components[i].ac_table;
  Bin* const bins = ac_[table];
  uint64_t mask = 0;
  for (int k = std::max(scan_.first, 1); k <= scan_.last; k++) {
    Bin* bin = bins + 3 * (k - 1);
    if (decide(bin[0])) break;  // no more coefficients
    for (; !decide(bin[1]); bin += 3)
      if (++k > scan_.last) return fail("a run beyond the end of a band");
    const int negative = decide_evenly();
    uint32_t value = 0;
    if (decide(bin[2])) {
      value = 1;
      const int x2 = k <= header_->conditioning.ac[table] ? kAcMagnitudeLow : kAcMagnitudeHigh;
      if (decide(bin[2]) && !magnitude(bins + x2, 2, value)) return false;
    }
    value = (value + 1) << scan_.low;
    if (value > INT16_MAX) return fail("a coefficient of more than 16 bits");
    mask |= uint64_t{1} << k;
    if (block)
      block[kNaturalOrder[k]] =
          static_cast<int16_t>(negative ? -static_cast<int>(value) : static_cast<int>(value));
  }
  nonzero |= mask;
  return true;
}

/// T.81, G.1.3.3: one bit more of a band.
bool ArithmeticDecoder::refine(int i, uint64_t& nonzero, int16_t* block) {
  Bin* const bins = ac_[header_->components[i].ac_table];
  const uint64_t before = nonzero & ((uint64_t{2} << scan_.last) - 1);
  const int end = before ? 63 - __builtin_clzll(before) : 0;  // no end of block is coded before
  const int step = 1 << scan_.low;
  for (int k = scan_.first; k <= scan_.last; k++) {
    Bin* bin = bins + 3 * (k - 1);
    if (k > end && decide(bin[0])) break;
    for (;; bin += 3) {
      int16_t* const value = block ? block + kNaturalOrder[k] : nullptr;
      if (nonzero >> k & 1) {
        if (decide(bin[2]) && value)
          *value = static_cast<int16_t>(*value + (*value < 0 ? -step : step));
        break;
      }
      if (decide(bin[1])) {
        const int negative = decide_evenly();
        nonzero |= uint64_t{1} << k;
        if (value) *value = static_cast<int16_t>(negative ? -step : step);
        break;
      }
      if (++k > scan_.last) return fail("a run beyond the end of a band");
    }
  }
  return true;
}

/// A magnitude less one that is not below `category`, a power of two: how many bits it has, by the
/// bins from `bin` on, and those behind the first (T.81, figures F.23 and F.24).
FASTDATA_INLINE bool ArithmeticDecoder::magnitude(Bin* bin, uint32_t category, uint32_t& value) {
  for (; decide(*bin); bin++)
    if ((category <<= 1) == kMaxCategory) return fail("a coefficient of more than 16 bits");
  value = category;
  bin += kPattern;
  while (category >>= 1)
    if (decide(*bin)) value |= category;
  return true;
}

/// One decision by a bin's statistics (T.81, D.2).
FASTDATA_INLINE int ArithmeticDecoder::decide(Bin& bin) {
  const State state = kStates[bin];
  int symbol = bin & 1;
  range_ -= state.less;
  const uint64_t more = uint64_t{range_} << count_;
  bool less = code_ >= more;
  if (!less && range_ >= 0x8000) return symbol;
  // The larger part is the more probable symbol's, wherever it lies.
  const bool exchanged = range_ < state.less;
  if (less) {
    code_ -= more;
    range_ = state.less;
  }
  less ^= exchanged;
  bin = less ? state.after_less : state.after_more;
  symbol ^= less;
  const int shift = __builtin_clz(range_) - 16;
  range_ <<= shift;
  count_ -= shift;
  if (count_ < 0) load();
  return symbol;
}

/// One decision of even odds, which no statistics are kept of.
FASTDATA_INLINE int ArithmeticDecoder::decide_evenly() {
  Bin fixed = 0;
  return decide(fixed);
}

/// Loads the next bytes: as many as fit, so that is seldom.
FASTDATA_NOINLINE void ArithmeticDecoder::load() {
  for (uint32_t bits = 0; bits < kLoaded; bits += 8) code_ = code_ << 8 | next_byte();
  count_ += kLoaded;
}

uint8_t ArithmeticDecoder::next_byte() {
  const uint8_t* const end = jpeg_.end();
  if (pos_ == end) return 0;
  if (*pos_ != 0xFF) return *pos_++;
  const uint8_t* after = pos_ + 1;
  while (after != end && *after == 0xFF) after++;  // libjpeg passes fill bytes
  if (after == end || *after != 0) return 0;       // a marker, or the end
  pos_ = after + 1;
  return 0xFF;
}

bool ArithmeticDecoder::fail(const char* why) {
  error_ = why;
  return false;
}

}  // namespace fastdata
