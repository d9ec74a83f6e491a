#include "jpeg/region.h"

#include <algorithm>
#include <cstring>

#include "simd/kernels.h"

namespace fastdata {
namespace {

constexpr size_t kMaxRegionPixels = size_t{1} << 28;
constexpr int kBlockSide = 8;  // samples across a block

// MCUs of a row that are decoded, then transformed, at a time: their coefficients, of all
// streams, stay in the first-level cache beside the tables. 8 to 32 are within 1%.
constexpr int kPieceCols = 16;

// Note [Bands]: the samples of a large region go through all caches before they are resampled, and
// take as much memory as the photograph. So MCU rows are decoded when their pixels are asked for, a
// band at a time whose samples stay in the second-level cache. The last MCU row of a band is kept
// in front of the next one: its last row of pixels is upsampled with that one's chroma.
constexpr size_t kBandBytes = size_t{512} << 10;

}  // namespace

Status RegionDecoder::open(ByteSpan jpeg, const McuBox& present) {
  jpeg_ = jpeg;
  present_ = present;
  return read_header(jpeg, header_);
}

// Note [Regions] (docs/design/0007-native-bounds.md): upsampled chroma depends on the nearest
// sample and, in each upsampled direction, on one neighbour, if the component has one there (not
// the block: at the image's edge the last sample is the true one, ceil(width / 2), not the
// padding's). So a region's chroma grows by one sample each way, and its MCUs follow from that.
void RegionDecoder::plan_planes(const Box& box) {
  box_ = box;
  const int h_max = header_.mcu_width / kBlockSide, v_max = header_.mcu_height / kBlockSide;
  first_col_ = first_row_ = INT32_MAX;
  end_col_ = end_row_ = 0;
  for (int i = 0; i < header_.component_count; i++) {
    const Component& c = header_.components[i];
    Plane& p = planes_[i];
    p.h_factor = h_max / c.h;
    p.v_factor = v_max / c.v;
    p.width = ceil_div(header_.width * c.h, h_max);
    p.height = ceil_div(header_.height * c.v, v_max);

    const int grow_x = p.h_factor > 1, grow_y = p.v_factor > 1;
    const int left = std::max(0, box.x0 / p.h_factor - grow_x);
    const int right = std::min(p.width - 1, (box.x1 - 1) / p.h_factor + grow_x);
    const int top = std::max(0, box.y0 / p.v_factor - grow_y);
    const int bottom = std::min(p.height - 1, (box.y1 - 1) / p.v_factor + grow_y);
    first_col_ = std::min(first_col_, left / (c.h * kBlockSide));
    end_col_ = std::max(end_col_, right / (c.h * kBlockSide) + 1);
    first_row_ = std::min(first_row_, top / (c.v * kBlockSide));
    end_row_ = std::max(end_row_, bottom / (c.v * kBlockSide) + 1);
  }
  for (int i = 0; i < header_.component_count; i++) {
    const Component& c = header_.components[i];
    Plane& p = planes_[i];
    p.x0 = first_col_ * c.h * kBlockSide;
    p.y0 = first_row_ * c.v * kBlockSide;
    p.stride = round_up((end_col_ - first_col_) * c.h * kBlockSide, 64) + kRowPadding;
  }
}

void RegionDecoder::reserve_planes(bool in_bands) {
  band_rows_ = end_row_ - first_row_;
  size_t row_bytes = 0;  // of an MCU row
  for (int i = 0; i < header_.component_count; i++)
    row_bytes += planes_[i].stride * header_.components[i].v * kBlockSide;
  if (in_bands && row_bytes * band_rows_ > 2 * kBandBytes) {
    // Of about the same size, so that none has too few segments for the vector.
    const int rows = std::max(static_cast<int>(kBandBytes / row_bytes), 4);
    band_rows_ = ceil_div(band_rows_, ceil_div(band_rows_, rows));
  }
  top_row_ = band_first_ = first_row_;
  band_end_ = first_row_ + band_rows_;
  for (int i = 0; i < header_.component_count; i++) {
    Plane& p = planes_[i];
    const int kept = band_end_ < end_row_;
    // One row more, into which padding may be read and written behind the last.
    const size_t rows =
        static_cast<size_t>(band_rows_ + kept) * header_.components[i].v * kBlockSide + 1;
    p.samples.reserve(p.stride * rows);
  }
}

Status RegionDecoder::decode(const Box& box, ByteSpan seek_points, int max_scans) {
  if (Status s = open_region(box, seek_points, max_scans); !s.ok()) return s;
  reserve_planes(/*in_bands=*/false);
  return status_ = decode_band();
}

Status RegionDecoder::begin(const Box& box, ByteSpan seek_points, int max_scans) {
  if (Status s = open_region(box, seek_points, max_scans); !s.ok()) return s;
  reserve_planes(/*in_bands=*/seeking_);
  return status_ = decode_band();
}

Status RegionDecoder::open_region(const Box& box, ByteSpan seek_points, int max_scans) {
  if (!box.inside(header_.width, header_.height))
    return {Code::bad_region, "a region outside the image"};
  if (static_cast<size_t>(box.width()) * box.height() > kMaxRegionPixels)
    return {Code::too_large, "a region of more than 2^28 pixels"};
  max_scans_ = max_scans;
  seeking_ = seek_points.size > 0 && !header_.progressive();
  if (!header_.progressive())
    if (Status s = tables_.build(header_); !s.ok()) return s;
  if (seeking_)
    if (Status s = table_.open(seek_points, jpeg_, header_); !s.ok()) return s;
  plan_planes(box);
  const McuBox needed{first_col_, end_col_, first_row_, end_row_};
  if (present_.end_row > 0 && !(seeking_ && present_.holds(needed)))
    return {Code::bad_region, "a region that was not read"};
  return {};
}

Status RegionDecoder::decode_band() {
  if (header_.progressive()) return decode_scans();
  if (seeking_ && decode_segments()) return {};
  return decode_scan();
}

/// Decodes bands up to row y. After a failure it only counts bands, so that no row lies outside the
/// planes.
void RegionDecoder::advance_to(int y) {
  int needed = 0;
  for (int i = 0; i < header_.component_count; i++) {
    const Plane& p = planes_[i];
    const int bottom = std::min(p.height - 1, y / p.v_factor + (p.v_factor > 1));
    needed = std::max(needed, bottom / (header_.components[i].v * kBlockSide));
  }
  while (needed >= band_end_ && band_end_ < end_row_) {
    const int kept = band_end_ - 1;
    for (int i = 0; i < header_.component_count; i++) {
      Plane& p = planes_[i];
      const int rows = header_.components[i].v * kBlockSide;
      const size_t size = p.stride * rows;
      if (kept > top_row_)
        std::memcpy(p.samples.get(), p.samples.get() + (kept - top_row_) * size, size);
      p.y0 = kept * rows;
    }
    top_row_ = kept;
    band_first_ = band_end_;
    band_end_ = std::min(band_first_ + band_rows_, end_row_);
    if (status_.ok()) status_ = decode_band();
  }
}

/// Decodes by the vector, if that is possible and worth it. False: not all has been decoded;
/// decode_scan decodes it, or reports the error.
bool RegionDecoder::decode_segments() {
  const int points = ceil_div(end_col_, table_.interval()) - first_col_ / table_.interval();
  const size_t count = static_cast<size_t>(points) * (band_end_ - band_first_);
  if (header_.restart_interval || count > UINT16_MAX || !VectorDecoder::worth(count)) return false;
  const SeekTable fresh = table_;
  if (list_segments() && vector_.run(tables_, segments_, *this)) return true;
  table_ = fresh;
  return false;
}

/// Lists the segments that hold the region. False: one is larger than the vector's buffers, or lies
/// outside the scan.
bool RegionDecoder::list_segments() {
  segments_.clear();
  const int interval = table_.interval(), first_point = first_col_ / interval;
  const int end_point = ceil_div(end_col_, interval);
  if (static_cast<uint32_t>(interval * header_.blocks_per_mcu) > SeekSegment::kMaxBlocks)
    return false;
  for (int row = band_first_; row < band_end_; row++) {
    const int row_points = row * table_.points_per_row();
    EntryPoint entry = table_.point(row_points + first_point);
    for (int point = first_point; point < end_point; point++) {
      const int after = row_points + point + 1;
      SeekSegment s;
      s.row = row;
      s.col = point * interval;
      s.end_col = std::min(s.col + interval, end_col_);
      s.blocks = static_cast<uint32_t>(s.end_col - s.col) * header_.blocks_per_mcu;
      s.bit = entry.bit;
      std::memcpy(s.predictor, entry.predictor, sizeof s.predictor);
      const EntryPoint begin = entry;
      size_t end = jpeg_.size;
      if (point + 1 < end_point) {
        entry = table_.point(after);
        s.checked = true;
        s.end_bit = entry.bit;
        std::memcpy(s.end_predictor, entry.predictor, sizeof s.predictor);
        end = entry.byte + (entry.bit ? 1 : 0);
      } else {
        end = std::min(table_.byte_after(after), jpeg_.size);
      }
      if (begin.byte < header_.scan_offset || begin.byte >= end || end > jpeg_.size) return false;
      if (s.checked) {
        if (end - begin.byte > SeekSegment::kMaxBytes) return false;
        // One stream would take a 0xFF at the end with what is behind it, and has no bits where
        // a zero was stuffed.
        if (jpeg_.data[entry.byte - 1] == 0xFF && (entry.bit == 0 || jpeg_.data[entry.byte] == 0))
          return false;
      } else if (end - begin.byte > SeekSegment::kMaxBytes) {
        // There may be more behind the scan; a segment that needs it will be found out.
        end = begin.byte + SeekSegment::kMaxBytes;
        if (jpeg_.data[end - 1] == 0xFF) end--;
      }
      s.source = jpeg_.data + begin.byte;
      s.source_end = jpeg_.data + end;
      segments_.push_back(s);
    }
  }
  return true;
}

void RegionDecoder::decoded(const SeekSegment& segment, int16_t* coefficients) {
  transform(segment.row, segment.col, segment.end_col, CoefficientOrder::zigzag, coefficients,
            nullptr);
}

Status RegionDecoder::decode_scan() {
  tables_.build_lookups();
  next_row_ = band_first_;
  // Without seek points each row begins where the one before ended.
  const int wanted = seeking_ ? kMaxStreams : 1;
  const int streams = std::min(wanted, band_end_ - band_first_);
  // Coefficients of a piece of an MCU row, of the first one from the seek point on. Zero
  // between images; the inverse DCT clears what it has read.
  const int lead = seeking_ ? first_col_ % table_.interval() : 0;
  const size_t blocks = static_cast<size_t>(std::min(end_col_ - first_col_, kPieceCols) + lead) *
                        header_.blocks_per_mcu;
  Stream* started[kMaxStreams];
  Stream* failed = nullptr;
  int count = 0;
  for (int i = 0; i < streams && !failed; i++) {
    RowStream& row = rows_[i];
    row.stream.id = i;
    row.stream.source = jpeg_.data;
    row.stream.error = nullptr;
    row.stream.buffer = row.buffer.reserve(kStreamBuffer);
    if (dirty_) row.coefficients.release();
    row.coefficients.reserve_zeroed<int16_t>(blocks * kBlockSize);
    row.last.reserve(blocks);
    row.index = -1;
  }
  if (dirty_)
    for (int i = streams; i < kMaxStreams; i++) rows_[i].coefficients.release();
  dirty_ = true;
  for (int i = 0; i < streams && !failed; i++) {
    if (open_row(rows_[i]))
      started[count++] = &rows_[i].stream;
    else
      failed = &rows_[i].stream;
  }
  if (!failed) failed = kernels().decode_streams(started, count, *this);
  if (failed)
    return {seeking_ ? Code::bad_seek_points : failed->error_code, failed->error,
            static_cast<size_t>(failed->source - jpeg_.data)};
  dirty_ = false;
  return {};
}

/// Gives the row the next MCU row and starts its first run. False: no row is left, or
/// the stream failed.
bool RegionDecoder::open_row(RowStream& row) {
  if (next_row_ == band_end_) return false;
  const bool first = row.index < 0;
  row.index = next_row_++;
  const int row_start = row.index * header_.mcus_per_row;
  if (seeking_) {
    const int interval = table_.interval(), row_points = row.index * table_.points_per_row();
    const int col = first_col_ / interval;
    const EntryPoint entry = table_.point(row_points + col);
    // Nothing beyond the next seek point right of the region is needed.
    const int after = row_points + ceil_div(end_col_, interval);
    const size_t end = std::min(table_.byte_after(after), jpeg_.size);
    if (entry.byte < header_.scan_offset || entry.byte >= end)
      return fail(row.stream, "a seek point out of range");
    row.col = col * interval;
    row.scan.open(row.stream, jpeg_, header_, entry, row_start + row.col, end);
  } else {
    if (first) {
      EntryPoint start;
      start.byte = header_.scan_offset;
      row.scan.open(row.stream, jpeg_, header_, start, 0, jpeg_.size);
    }
    row.col = first_col_;
    if (!row.scan.skip_to(row.stream, row_start + first_col_, tables_)) return false;
  }
  row.end_col = first_col_;
  return open_piece(row);
}

/// Starts the next piece of the row.
bool RegionDecoder::open_piece(RowStream& row) {
  row.first_col = row.col;
  row.end_col = std::min(row.end_col + kPieceCols, end_col_);
  return continue_piece(row);
}

/// Starts a run up to the piece's end or the next restart marker.
bool RegionDecoder::continue_piece(RowStream& row) {
  if (!row.scan.restart_if_due(row.stream)) return false;
  const int count = row.scan.run_length(row.end_col - row.col);
  const size_t block = static_cast<size_t>(row.col - row.first_col) * header_.blocks_per_mcu;
  row.scan.advance(count);
  row.col += count;
  return start_run(row.stream, tables_.plan, static_cast<uint32_t>(count) * header_.blocks_per_mcu,
                   row.coefficients.get<int16_t>() + block * kBlockSize, row.last.get() + block);
}

bool RegionDecoder::next_run(Stream& stream) {
  RowStream& row = rows_[stream.id];
  if (overran(stream)) return fail(stream, "the scan ends early", Code::truncated);
  if (row.col < row.end_col) return continue_piece(row);
  transform_piece(row);
  return row.col < end_col_ ? open_piece(row) : open_row(row);
}

/// The piece's coefficients to samples.
void RegionDecoder::transform_piece(RowStream& row) {
  transform(row.index, row.first_col, row.end_col, CoefficientOrder::natural,
            row.coefficients.get<int16_t>(), row.last.get());
}

void RegionDecoder::transform(int row, int first_col, int end_col, CoefficientOrder order,
                              int16_t* coefficients, uint8_t* last) {
  const int lead = std::max(first_col_ - first_col, 0);
  first_col += lead;
  const size_t lead_blocks = static_cast<size_t>(lead) * header_.blocks_per_mcu;
  // The blocks between the seek point and the region were decoded only to get there.
  std::memset(coefficients, 0, lead_blocks * kBlockSize * sizeof *coefficients);
  size_t block = lead_blocks;
  const Kernels& k = kernels();
  const IdctRow idct_row = order == CoefficientOrder::natural ? k.idct_row : k.idct_row_zigzag;
  for (int i = 0; i < header_.component_count; i++) {
    const Component& c = header_.components[i];
    const uint16_t* quantisation = header_.quantisation[c.quantisation_table];
    for (int v = 0; v < c.v; v++, block += c.h) {
      const BlockRow blocks = {coefficients + block * kBlockSize, last ? last + block : nullptr,
                               (end_col - first_col) * c.h, c.h, header_.blocks_per_mcu};
      transform_blocks(i, (row - top_row_) * c.v + v, (first_col - first_col_) * c.h, blocks,
                       quantisation, idct_row);
    }
  }
}

void RegionDecoder::transform_blocks(int component, int block_row, int block_col,
                                     const BlockRow& blocks, const uint16_t* quantisation,
                                     IdctRow idct_row) {
  Plane& p = planes_[component];
  uint8_t* out = p.samples.get() + static_cast<size_t>(block_row) * kBlockSide * p.stride +
                 static_cast<size_t>(block_col) * kBlockSide;
  idct_row(blocks, quantisation, out, p.stride);
}

/// All scans to coefficients, these to samples.
Status RegionDecoder::decode_scans() {
  const McuBox box{first_col_, end_col_, first_row_, end_row_};
  if (Status s = coefficients_.decode(jpeg_, header_, box, max_scans_); !s.ok()) return s;
  for (int i = 0; i < header_.component_count; i++) {
    const Component& c = header_.components[i];
    const int columns = (end_col_ - first_col_) * c.h;
    for (int y = 0; y < (end_row_ - first_row_) * c.v; y++) {
      const BlockRow blocks = {coefficients_.coefficients(i, y), coefficients_.last(i, y), columns,
                               1, 1};
      transform_blocks(i, y, 0, blocks, coefficients_.reader().quantisation(i), kernels().idct_row);
    }
  }
  return {};
}

/// Row y of a subsampled component at full width, from the box's left edge.
const uint8_t* RegionDecoder::chroma_row(int component, int y) {
  const Plane& p = planes_[component];
  const int n = box_.width();
  if (p.h_factor == 1 && p.v_factor == 1) return p.at(box_.x0, y);
  const size_t stride = round_up(n + 2, 64) + 2 * kRowPadding;
  uint8_t* out = upsampled_.reserve(kMaxComponents * stride) + component * stride;

  // The nearer row, and the one on this pixel row's other side.
  const int near = y / p.v_factor;
  const bool blend_rows = p.v_factor == 2 && (p.h_factor == 1 || p.width > 2);
  const int bias = y % 2 ? 2 : 1;
  const int far = blend_rows ? std::clamp(y % 2 ? near + 1 : near - 1, 0, p.height - 1) : near;
  if (p.h_factor == 1) {
    if (!blend_rows) return p.at(box_.x0, near);
    kernels().upsample_h1v2(p.at(box_.x0, near), p.at(box_.x0, far), n, bias, out);
    return out;
  }

  const int first = box_.x0 / 2, last = (box_.x1 - 1) / 2, count = last - first + 1;
  const uint8_t* near_row = p.at(first, near);
  if (p.width <= 2) {  // libjpeg replicates where it has no two neighbours
    for (int i = 0; i < count; i++) out[2 * i] = out[2 * i + 1] = near_row[i];
  } else {
    const bool has_left = first > 0, has_right = last + 1 < p.width;
    if (blend_rows)
      kernels().upsample_h2v2(near_row, p.at(first, far), count, has_left, has_right,
                              sums_.reserve<uint16_t>(count + 2), out);
    else
      kernels().upsample_h2v1(near_row, count, has_left, has_right, out);
  }
  return out + box_.x0 % 2;
}

void RegionDecoder::row(int y, const uint8_t** planes) {
  if (band_end_ < end_row_) advance_to(y);
  planes[0] = planes_[0].at(box_.x0, y);
  if (grey()) return;
  const size_t stride = round_up(box_.width(), 64) + kRowPadding;
  uint8_t* rgb = rgb_.reserve(3 * stride);
  const uint8_t* cb = chroma_row(1, y);
  const uint8_t* cr = chroma_row(2, y);
  kernels().ycc_to_rgb(planes[0], cb, cr, box_.width(), rgb, rgb + stride, rgb + 2 * stride);
  for (int c = 0; c < 3; c++) planes[c] = rgb + c * stride;
}

void RegionDecoder::trim(size_t keep) {
  coefficients_.trim(keep);
  for (Plane& p : planes_)
    if (p.samples.size() > keep) p.samples.release();
  for (RowStream& row : rows_)
    if (row.coefficients.size() > keep) row.coefficients.release();
}

}  // namespace fastdata
