#include "jpeg/coefficients.h"

#include <algorithm>
#include <cstring>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"

namespace fastdata {

Status CoefficientDecoder::decode(ByteSpan jpeg, const JpegHeader& header, const McuBox& box,
                                  int max_scans) {
  jpeg_ = jpeg;
  frame_ = &header;
  if (Status s = plan(box); !s.ok()) return s;
  dirty_ = true;
  reader_.open(jpeg, header);
  for (int count = 0;; count++) {
    Scan scan;
    bool found;
    if (Status s = reader_.next(scan, found); !s.ok()) return s;
    if (!found) break;
    if (count == max_scans)
      return {Code::unsupported, "more scans than the limit", reader_.header().scan_offset};
    if (Status s = decode_scan(scan); !s.ok()) return s;
  }
  if (!reader_.complete())
    return {Code::unsupported, "scans are missing: libjpeg estimates what they would say"};
  dirty_ = false;
  return {};
}

Status CoefficientDecoder::plan(const McuBox& box) {
  size_t total = 0;
  for (int i = 0; i < frame_->component_count; i++) {
    const Component& c = frame_->components[i];
    Blocks& b = blocks_[i];
    b.h = c.h;
    b.v = c.v;
    b.first_col = box.first_col * c.h;
    b.end_col = box.end_col * c.h;
    b.first_row = box.first_row * c.v;
    b.end_row = box.end_row * c.v;
    b.columns = frame_->mcus_per_row * c.h;
    total += static_cast<size_t>(b.end_col - b.first_col) * (b.end_row - b.first_row) * kBlockSize;
  }
  if (total > kMaxCoefficients)
    return {Code::unsupported, "a region of more than 2^28 coefficients in several scans"};
  // Of all components: the failed image may have had more than this one has.
  if (dirty_)
    for (Blocks& b : blocks_) b.coefficients.release();
  for (int i = 0; i < frame_->component_count; i++) {
    Blocks& b = blocks_[i];
    b.coefficients.reserve_zeroed<int16_t>(static_cast<size_t>(b.end_col - b.first_col) *
                                           (b.end_row - b.first_row) * kBlockSize);
    const size_t masks = static_cast<size_t>(b.columns) * b.end_row;
    std::memset(b.nonzero.reserve<uint64_t>(masks), 0, masks * sizeof(uint64_t));
  }
  return {};
}

Status CoefficientDecoder::decode_scan(const Scan& scan) {
  const JpegHeader& h = reader_.header();
  if (Status s = build_tables(scan); !s.ok()) return s;
  stream_.id = 0;
  stream_.error = nullptr;
  stream_.buffer = buffer_.reserve(kStreamBuffer);
  EntryPoint start;
  start.byte = h.scan_offset;
  position_.open(stream_, jpeg_, h, start, 0, jpeg_.size);
  band_.stream = &stream_;
  band_.first = scan.first;
  band_.last = scan.last;
  band_.low = scan.low;
  // Nothing below the region is needed: the next scan's marker is found without decoding.
  const Blocks& b = blocks_[scan.component[0]];
  const int rows = std::min(h.mcu_rows, h.component_count == 1 ? b.end_row : b.end_row / b.v);
  bool ok = true;
  for (int row = 0; ok && row < rows; row++)
    for (int col = 0; ok && col < h.mcus_per_row;) {
      ok = position_.restart_if_due(stream_);
      if (!ok) break;
      if (h.restart_interval == 0 ? position_.mcu() == 0
                                  : position_.mcu() % h.restart_interval == 0)
        band_.end_run = 0;
      const int count = position_.run_length(h.mcus_per_row - col);
      ok = decode_mcus(scan, row, col, count);
      position_.advance(count);
      col += count;
    }
  if (ok && overran(stream_)) ok = fail(stream_, "the scan ends early", Code::truncated);
  if (ok) return {};
  return {stream_.error_code, stream_.error, static_cast<size_t>(stream_.source - jpeg_.data)};
}

Status CoefficientDecoder::build_tables(const Scan& scan) {
  const JpegHeader& h = reader_.header();
  if (scan.last > 0) {
    const HuffmanSpec& spec = h.ac[h.components[0].ac_table];
    if (Status s = derive_table(spec, false, table_[0]); !s.ok()) return s;
    if (scan.high)
      build_refining_lookup(spec, band_lookup_);
    else
      build_first_lookup(spec, scan.low, band_lookup_);
    band_.table = &table_[0];
    band_.lookup = band_lookup_;
  } else if (!scan.high) {
    for (int i = 0; i < h.component_count; i++) {
      const HuffmanSpec& spec = h.dc[h.components[i].dc_table];
      if (Status s = derive_table(spec, true, table_[i]); !s.ok()) return s;
      build_dc_lookup(spec, dc_lookup_[i]);
    }
  }
  return {};
}

/// MCUs side by side in one row of the scan's.
bool CoefficientDecoder::decode_mcus(const Scan& scan, int row, int col, int count) {
  if (scan.last > 0) return decode_band(scan, row, col, count);
  return scan.high ? refine_dc(scan, row, col, count) : decode_dc(scan, row, col, count);
}

template <typename Decode>
FASTDATA_INLINE bool CoefficientDecoder::each_block(int row, int col, int count, Decode decode) {
  const JpegHeader& h = reader_.header();
  for (int mcu = col; mcu < col + count; mcu++)
    for (int i = 0; i < h.component_count; i++) {
      const Component& c = h.components[i];
      for (int v = 0; v < c.v; v++)
        for (int x = 0; x < c.h; x++)
          if (!decode(i, mcu * c.h + x, row * c.v + v)) return false;
    }
  return true;
}

bool CoefficientDecoder::decode_dc(const Scan& scan, int row, int col, int count) {
  Cursor& cursor = stream_.cursor;
  return each_block(row, col, count, [&](int i, int x, int y) {
    if (cursor.pos > stream_.limit && !fetch_chunk(stream_)) return false;
    refill(cursor);
    const uint32_t entry = dc_lookup_[i][cursor.bits >> (64 - kDcLookupBits)];
    unsigned length = entry >> 8 & 63, size = (entry & 63) - length;
    if (FASTDATA_UNLIKELY(entry == 0)) {
      const HuffmanTable::Symbol symbol = table_[i].find(static_cast<uint32_t>(cursor.bits >> 48));
      if (symbol.length == 0) return fail(stream_, "a bit pattern that is no Huffman code");
      length = static_cast<unsigned>(symbol.length);
      size = symbol.value;
    }
    consume(cursor, length);
    uint32_t& predictor = stream_.predictor[i];
    predictor += static_cast<uint32_t>(extend(cursor.bits, size));
    consume(cursor, size);
    if (int16_t* block = blocks_[scan.component[i]].block(x, y))
      *block = static_cast<int16_t>(predictor << scan.low);
    return true;
  });
}

bool CoefficientDecoder::refine_dc(const Scan& scan, int row, int col, int count) {
  Cursor& cursor = stream_.cursor;
  return each_block(row, col, count, [&](int i, int x, int y) {
    if (cursor.pos > stream_.limit && !fetch_chunk(stream_)) return false;
    refill(cursor);
    const int bit = static_cast<int>(cursor.bits >> 63) << scan.low;
    consume(cursor, 1);
    if (int16_t* block = blocks_[scan.component[i]].block(x, y))
      *block = static_cast<int16_t>(*block | bit);
    return true;
  });
}

bool CoefficientDecoder::decode_band(const Scan& scan, int row, int col, int count) {
  const Kernels& k = kernels();
  const DecodeBand decode = scan.high ? k.refine_band : k.decode_band;
  const Blocks& b = blocks_[scan.component[0]];
  const int end = col + count;
  // Left of the region, in it, right of it.
  const bool inside = row >= b.first_row && row < b.end_row;
  const int left = inside ? std::clamp(b.first_col, col, end) : end;
  const int right = inside ? std::clamp(b.end_col, col, end) : end;
  const auto run = [&](int from, int to, int16_t* coefficients) {
    return from == to ||
           decode(band_, static_cast<uint32_t>(to - from), b.masks(from, row), coefficients);
  };
  return run(col, left, nullptr) && run(left, right, b.block(left, row)) &&
         run(right, end, nullptr);
}

int16_t* CoefficientDecoder::coefficients(int component, int y) const {
  const Blocks& b = blocks_[component];
  return b.row(b.first_row + y);
}

uint8_t* CoefficientDecoder::last(int component, int y) {
  const Blocks& b = blocks_[component];
  const int count = b.end_col - b.first_col;
  const uint64_t* masks = b.masks(b.first_col, b.first_row + y);
  uint8_t* last = last_.reserve(static_cast<size_t>(count));
  for (int x = 0; x < count; x++)
    last[x] = static_cast<uint8_t>(63 - __builtin_clzll(masks[x] | 1));
  return last;
}

void CoefficientDecoder::trim(size_t keep) {
  for (Blocks& b : blocks_) {
    if (b.coefficients.size() > keep) b.coefficients.release();
    if (b.nonzero.size() > keep) b.nonzero.release();
  }
}

}  // namespace fastdata
