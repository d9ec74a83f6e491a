#include "jpeg/rewrite.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "jpeg/coefficients.h"
#include "jpeg/huffman.h"
#include "jpeg/segments.h"

namespace fastdata {
namespace {

constexpr int kMaxDcSize = 11, kMaxAcSize = 10;  // of 8-bit samples (T.81, tables F.1 and F.2)

/// One symbol and its extra bits, before it has a code.
struct Token {
  uint8_t table;  // 0 and 1: DC and AC of the first component, 2 and 3: of the others
  uint8_t symbol;
  uint16_t extra;
};

using Counts = std::array<uint32_t, 256>;

/// The code with the shortest data, of at most 16 bits a symbol, none of all ones: T.81, K.2.
HuffmanSpec best_code(const Counts& counts) {
  constexpr int kSymbols = 257;  // one more, which takes the code of all ones
  std::array<uint64_t, kSymbols> weight{};
  std::array<int, kSymbols> length{}, next;
  std::copy(counts.begin(), counts.end(), weight.begin());
  weight[256] = 1;
  next.fill(-1);
  for (;;) {
    // The two least frequent; of equal ones those of the largest symbols.
    int least = -1, second = -1;
    for (int i = 0; i < kSymbols; i++) {
      if (weight[i] == 0) continue;
      if (least < 0 || weight[i] <= weight[least]) {
        second = least;
        least = i;
      } else if (second < 0 || weight[i] <= weight[second]) {
        second = i;
      }
    }
    if (second < 0) break;
    weight[least] += weight[second];
    weight[second] = 0;
    int i = least;
    for (;; i = next[i]) {
      length[i]++;
      if (next[i] < 0) break;
    }
    next[i] = second;
    for (i = second; i >= 0; i = next[i]) length[i]++;
  }
  std::array<int, kSymbols + 1> of_length{};  // codes of each length
  for (int i = 0; i < kSymbols; i++)
    if (length[i]) of_length[length[i]]++;
  // Figure K.3: a pair of codes that is too long is taken apart; one of it takes its prefix.
  for (int i = kSymbols; i > 16; i--)
    while (of_length[i] > 0) {
      int j = i - 2;
      while (of_length[j] == 0) j--;
      of_length[i] -= 2;
      of_length[i - 1]++;
      of_length[j + 1] += 2;
      of_length[j]--;
    }
  int longest = 16;
  while (longest > 0 && of_length[longest] == 0) longest--;
  if (longest > 0) of_length[longest]--;  // the one of all ones
  HuffmanSpec spec;
  spec.present = true;
  for (int i = 1; i <= 16; i++) spec.counts[i] = static_cast<uint8_t>(of_length[i]);
  size_t count = 0;
  for (int i = 1; i <= kSymbols; i++)
    for (int symbol = 0; symbol < 256; symbol++)
      if (length[symbol] == i) spec.symbols[count++] = static_cast<uint8_t>(symbol);
  return spec;
}

class Writer {
 public:
  explicit Writer(std::vector<uint8_t>& out) : out_(out) {}

  void marker(uint8_t code) {
    out_.push_back(0xFF);
    out_.push_back(code);
  }
  void u16(size_t value) {
    out_.push_back(static_cast<uint8_t>(value >> 8));
    out_.push_back(static_cast<uint8_t>(value));
  }
  void copy(const uint8_t* begin, const uint8_t* end) { out_.insert(out_.end(), begin, end); }

  void table(int id, const HuffmanSpec& spec) {
    size_t symbols = 0;
    for (int i = 1; i <= 16; i++) symbols += spec.counts[i];
    marker(kDht);
    u16(2 + 1 + 16 + symbols);
    out_.push_back(static_cast<uint8_t>(id % 2 << 4 | id / 2));  // class and place
    copy(&spec.counts[1], &spec.counts[1] + 16);
    copy(spec.symbols.data(), spec.symbols.data() + symbols);
  }

  void bits(uint32_t value, int count) {
    held_ = held_ << count | value;
    for (count_ += count; count_ >= 8; count_ -= 8) {
      const auto byte = static_cast<uint8_t>(held_ >> (count_ - 8));
      out_.push_back(byte);
      if (byte == 0xFF) out_.push_back(0);
    }
  }
  void flush() {
    if (count_ % 8) bits((1u << (8 - count_ % 8)) - 1, 8 - count_ % 8);
  }

 private:
  std::vector<uint8_t>& out_;
  uint64_t held_ = 0;
  int count_ = 0;
};

/// An image's coefficients as the symbols of a baseline scan.
class Tokens {
 public:
  Status collect(const JpegHeader& header, CoefficientDecoder& decoder);

  const std::vector<Token>& all() const { return tokens_; }
  const Counts& counts(int table) const { return counts_[table]; }

 private:
  bool add(int table, int run, int value, int most);
  bool add_block(int table, int16_t* block, int last, int& predictor);

  std::vector<Token> tokens_;
  std::array<Counts, 4> counts_{};
};

bool Tokens::add(int table, int run, int value, int most) {
  const auto magnitude = static_cast<uint32_t>(std::abs(value));
  const int size = magnitude ? 32 - __builtin_clz(magnitude) : 0;
  if (size > most) return false;
  const auto symbol = static_cast<uint8_t>(run << 4 | size);
  const int extra = value < 0 ? value + (1 << size) - 1 : value;
  tokens_.push_back({static_cast<uint8_t>(table), symbol, static_cast<uint16_t>(extra)});
  counts_[table][symbol]++;
  return true;
}

bool Tokens::add_block(int table, int16_t* block, int last, int& predictor) {
  if (!add(table, 0, block[0] - predictor, kMaxDcSize)) return false;
  predictor = block[0];
  int run = 0;
  for (int k = 1; k <= last; k++) {
    const int value = block[kNaturalOrder[k]];
    if (value == 0) {
      run++;
      continue;
    }
    for (; run > 15; run -= 16) add(table + 1, 15, 0, 0);
    if (!add(table + 1, run, value, kMaxAcSize)) return false;
    run = 0;
  }
  if (run || last < 63) add(table + 1, 0, 0, 0);
  std::memset(block, 0, kBlockSize * sizeof *block);
  return true;
}

Status Tokens::collect(const JpegHeader& h, CoefficientDecoder& decoder) {
  int predictor[kMaxComponents] = {};
  int columns[kMaxComponents], rows[kMaxComponents];  // of blocks that show
  std::vector<uint8_t> last[kMaxComponents][4];
  for (int i = 0; i < h.component_count; i++) {
    const Component& c = h.components[i];
    columns[i] = ceil_div(h.width * c.h, h.mcu_width);
    rows[i] = ceil_div(h.height * c.v, h.mcu_height);
  }
  for (int row = 0; row < h.mcu_rows; row++) {
    int16_t* blocks[kMaxComponents][4];
    for (int i = 0; i < h.component_count; i++) {
      const Component& c = h.components[i];
      for (int v = 0; v < c.v; v++) {
        const uint8_t* found = decoder.last(i, row * c.v + v);
        last[i][v].assign(found, found + static_cast<size_t>(h.mcus_per_row) * c.h);
        blocks[i][v] = decoder.coefficients(i, row * c.v + v);
      }
    }
    for (int col = 0; col < h.mcus_per_row; col++)
      for (int i = 0; i < h.component_count; i++) {
        const Component& c = h.components[i];
        for (int v = 0; v < c.v; v++)
          for (int x = col * c.h; x < (col + 1) * c.h; x++) {
            int16_t* block = blocks[i][v] + static_cast<size_t>(x) * kBlockSize;
            int end = last[i][v][static_cast<size_t>(x)];
            if (x >= columns[i] || row * c.v + v >= rows[i]) {
              // Beyond the image: what takes the fewest bits.
              std::memset(block, 0, kBlockSize * sizeof *block);
              block[0] = static_cast<int16_t>(predictor[i]);
              end = 0;
            }
            if (!add_block(i == 0 ? 0 : 2, block, end, predictor[i]))
              return {Code::unsupported, "a coefficient beyond those of baseline JPEGs"};
          }
      }
  }
  return {};
}

/// The segments that stay, of those before the first scan and of those between scans.
Status write_segments(ByteSpan jpeg, const JpegHeader& header, const ScanReader& reader,
                      Writer& out) {
  bool wide = false;  // baseline JPEGs have quantisation steps of 8 bits
  for (int i = 0; i < header.component_count; i++) {
    const uint16_t* steps = reader.quantisation(i);
    wide |= std::any_of(steps, steps + kBlockSize, [](uint16_t step) { return step > 255; });
  }
  out.marker(kSoi);
  for (size_t pos = 2;;) {
    uint8_t code;
    Segment segment;
    if (Status s = next_segment(jpeg, pos, code, segment); !s.ok()) return s;
    if (code == kSos) break;
    if (code == kApp2 && segment.left() >= 4 && std::memcmp(segment.bytes(), "MPF", 4) == 0)
      return {Code::unsupported, "one of several pictures in a file", pos};
    if (is_frame_marker(code)) {
      out.marker(wide ? kSof1 : kSof0);
      out.copy(jpeg.data + pos + 2, jpeg.data + segment.end());
    } else if (code != kDht && code != kDri) {
      out.copy(jpeg.data + pos, jpeg.data + segment.end());
    }
    pos = segment.end();
  }
  for (const ByteSpan& segment : reader.between()) {
    // Decoders have no use for it there; before the scan, it may say that colours are others
    // (Adobe), or that the image is turned (Exif).
    if (segment.data[1] != kCom)
      return {Code::unsupported, "an APPn segment behind the first scan",
              static_cast<size_t>(segment.data - jpeg.data)};
    out.copy(segment.begin(), segment.end());
  }
  return {};
}

void write_scan(const JpegHeader& h, const Tokens& tokens, Writer& out) {
  uint16_t code[4][256];
  uint8_t length[4][256];
  const int tables = h.component_count == 1 ? 2 : 4;
  for (int i = 0; i < tables; i++) {
    const HuffmanSpec spec = best_code(tokens.counts(i));
    out.table(i, spec);
    uint32_t next = 0;
    size_t at = 0;
    for (int bits = 1; bits <= 16; bits++, next <<= 1)
      for (int n = 0; n < spec.counts[bits]; n++, next++, at++) {
        code[i][spec.symbols[at]] = static_cast<uint16_t>(next);
        length[i][spec.symbols[at]] = static_cast<uint8_t>(bits);
      }
  }
  out.marker(kSos);
  out.u16(static_cast<size_t>(6 + 2 * h.component_count));
  const auto count = static_cast<uint8_t>(h.component_count);
  out.copy(&count, &count + 1);
  for (int i = 0; i < h.component_count; i++) {
    const uint8_t component[] = {h.components[i].id, static_cast<uint8_t>(i == 0 ? 0 : 0x11)};
    out.copy(component, component + 2);
  }
  const uint8_t whole[] = {0, 63, 0};
  out.copy(whole, whole + 3);
  for (const Token& token : tokens.all()) {
    out.bits(code[token.table][token.symbol], length[token.table][token.symbol]);
    if (const int size = token.symbol & 15) out.bits(token.extra, size);
  }
  out.flush();
}

}  // namespace

Status rewrite_baseline(ByteSpan jpeg, std::vector<uint8_t>& out) {
  out.clear();
  JpegHeader header;
  if (Status s = read_header(jpeg, header); !s.ok()) return s;
  if (!header.several_scans && header.restart_interval == 0) return {};
  const auto decoder = std::make_unique<CoefficientDecoder>();
  const McuBox all{0, header.mcus_per_row, 0, header.mcu_rows};
  if (Status s = decoder->decode(jpeg, header, all, kUsualMaxScans); !s.ok()) return s;
  const ScanReader& reader = decoder->reader();
  if (reader.late_quantisation())
    return {Code::unsupported, "quantisation tables behind the first scan"};
  Tokens tokens;
  if (Status s = tokens.collect(header, *decoder); !s.ok()) return s;
  std::vector<uint8_t> written;
  written.reserve(jpeg.size + jpeg.size / 8);
  Writer writer(written);
  if (Status s = write_segments(jpeg, header, reader, writer); !s.ok()) return s;
  write_scan(header, tokens, writer);
  writer.copy(jpeg.data + reader.end(), jpeg.end());  // the end marker and what follows it
  out = std::move(written);
  return {};
}

}  // namespace fastdata
