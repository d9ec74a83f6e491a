// Runs the entropy decoding kernel and compares its coefficients with the core's, which this is
// built with, and which decodes each scan from its beginning, without seek points.
//
//   check_entropy compare STRIDE REGIONS FILE...   regions of photographs, from seek points that
//   the core
//                                            makes every STRIDE pixels
//   check_entropy time STRIDE IMAGES FILE...       batches of one region of each of so many images,
//   the segments as they come and the longest first: milliseconds on the GPU
//   check_entropy damage EXECUTIONS SEED FILE...   files with damaged scans and Huffman tables: the
//   kernel
//                                            fails where the core does, and gives the same
//                                            coefficients where it does not; and false descriptions
//
// Prints counts; a difference aborts.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "batch.h"
#include "jpeg/entropy.h"
#include "jpeg/huffman.h"
#include "jpeg/jpeg_header.h"
#include "jpeg/restart.h"
#include "jpeg/seek_points.h"
#include "simd/kernels.h"

using namespace fastdata;

namespace {

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

#define CHECK(what)                                                     \
  if (!(what)) {                                                        \
    std::fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #what); \
    std::abort();                                                       \
  }

ByteSpan span(const Bytes& bytes) { return {bytes.data(), bytes.size()}; }

Bytes read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good());
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

// ---- The core -------------------------------------------------------------------------------

/// Decodes MCUs one after another, by one stream.
class OneStream final : private RunSource {
 public:
  OneStream(ByteSpan jpeg, const JpegHeader& header, EntropyTables& tables)
      : jpeg_(jpeg), header_(header), tables_(tables), buffer_(kStreamBuffer) {
    tables.build_lookups();
    stream_.buffer = buffer_.data();
  }

  /// The coefficients of `mcus` MCUs, in natural order. False: the core has an error.
  bool decode(const EntryPoint& entry, int mcu, int mcus, size_t end, std::vector<int16_t>& out) {
    const size_t blocks = static_cast<size_t>(mcus) * header_.blocks_per_mcu;
    out.assign(blocks * kBlockSize, 0);
    last_.resize(blocks);
    out_ = out.data();
    first_ = mcu;
    end_ = mcu + mcus;
    stream_.error = nullptr;
    position_.open(stream_, jpeg_, header_, entry, mcu, end);
    Stream* const streams[] = {&stream_};
    return start() && !kernels().decode_streams(streams, 1, *this) && !overran(stream_);
  }

  const Stream& stream() const { return stream_; }

 private:
  bool start() {
    const int at = position_.mcu();
    const int count = position_.run_length(end_ - at);
    const size_t block = static_cast<size_t>(at - first_) * header_.blocks_per_mcu;
    position_.advance(count);
    return start_run(stream_, tables_.plan, static_cast<uint32_t>(count) * header_.blocks_per_mcu,
                     out_ + block * kBlockSize, last_.data() + block);
  }

  bool next_run(Stream&) override {
    return position_.mcu() < end_ && position_.restart_if_due(stream_) && start();
  }

  ByteSpan jpeg_;
  const JpegHeader& header_;
  EntropyTables& tables_;
  Bytes buffer_, last_;
  Stream stream_;
  ScanPosition position_;
  int16_t* out_ = nullptr;
  int first_ = 0, end_ = 0;
};

// ---- From a region to a batch ---------------------------------------------------------------

/// In MCUs.
struct Region {
  int first_col, end_col, first_row, end_row;
};

/// What a segment stands for.
struct Place {
  int mcu, mcus;
  EntryPoint entry;
  size_t end;  // of its bytes in the JPEG
};

/// The kernel has two tables of each kind; of photographs one in a thousand has more.
bool plan_image(const JpegHeader& h, gpu::Image& image) {
  int dc[2] = {-1, -1}, ac[2] = {-1, -1};
  uint32_t at = 0;
  const auto slot = [](int (&slots)[2], int table) {
    const int found = slots[0] < 0 || slots[0] == table ? 0 : 1;
    if (slots[found] >= 0 && slots[found] != table) return -1;
    slots[found] = table;
    return found;
  };
  image.plan = static_cast<uint32_t>(h.blocks_per_mcu) << 24;
  for (int i = 0; i < h.component_count; i++) {
    const Component& c = h.components[i];
    const int dc_slot = slot(dc, c.dc_table), ac_slot = slot(ac, c.ac_table);
    if (dc_slot < 0 || ac_slot < 0) return false;
    for (int b = 0; b < c.h * c.v; b++)
      image.plan |= static_cast<uint32_t>(i | dc_slot << 2 | ac_slot << 3) << 4 * at++;
  }
  std::memset(image.tables, 0, sizeof image.tables);
  for (int i = 0; i < 4; i++) {
    const int table = i < 2 ? dc[i] : ac[i - 2];
    if (table < 0) continue;
    const HuffmanSpec& spec = (i < 2 ? h.dc : h.ac)[table];
    std::memcpy(image.tables[i].counts, spec.counts.data() + 1, 16);
    std::memcpy(image.tables[i].symbols, spec.symbols.data(), 256);
  }
  return true;
}

/// Adds the image's segments that hold the region: of each MCU row the bytes from the first seek
/// point to the one behind the last, and what the segments are. `places`: the same, for the core.
/// False: a seek point is not where it can be.
bool add_image(ByteSpan jpeg, const JpegHeader& h, SeekTable table, const Region& region,
               gpu::HostBatch& batch, std::vector<Place>& places) {
  gpu::Image image;
  if (!plan_image(h, image)) return false;
  image.first_segment = static_cast<uint32_t>(batch.segments.size());
  const int interval = table.interval();
  const int first_point = region.first_col / interval;
  const int end_point = ceil_div(region.end_col, interval);
  for (int row = region.first_row; row < region.end_row; row++) {
    const int row_point = row * table.points_per_row();
    EntryPoint entry = table.point(row_point + first_point);
    const size_t row_begin = entry.byte;
    size_t row_end = row_begin;
    const size_t row_at = batch.bytes.size();
    for (int point = first_point; point < end_point; point++) {
      const int col = point * interval;
      const int end_col = std::min(col + interval, region.end_col);
      const int after = row_point + point + 1;
      const bool complete = end_col - col == interval || end_col == h.mcus_per_row;
      gpu::Segment s{};
      s.begin_bit = static_cast<uint8_t>(entry.bit);
      std::memcpy(s.predictor, entry.predictor, sizeof s.predictor);
      s.end_bit = gpu::kUnchecked;
      EntryPoint next;
      next.byte = jpeg.size;
      if (after < table.size()) {
        next = table.point(after);
        if (complete) s.end_bit = static_cast<uint8_t>(next.bit);
        std::memcpy(s.end_predictor, next.predictor, sizeof s.end_predictor);
      }
      const size_t end = next.byte + (next.bit ? 1 : 0);
      if (entry.byte < h.scan_offset || entry.byte >= end || end > jpeg.size) return false;
      s.begin = static_cast<uint32_t>(row_at + (entry.byte - row_begin));
      s.end = static_cast<uint32_t>(row_at + (end - row_begin));
      s.first_block = batch.block_count;
      s.blocks = static_cast<uint32_t>((end_col - col) * h.blocks_per_mcu);
      batch.block_count += s.blocks;
      places.push_back({row * h.mcus_per_row + col, end_col - col, entry, end});
      batch.segments.push_back(s);
      row_end = end;
      entry = next;
    }
    batch.bytes.insert(batch.bytes.end(), jpeg.data + row_begin, jpeg.data + row_end);
  }
  image.segments = static_cast<uint32_t>(batch.segments.size()) - image.first_segment;
  batch.images.push_back(image);
  return true;
}

/// The MCUs of a rectangle of pixels as RandomResizedCrop draws it: 8 to 100% of the area, sides
/// 3:4 to 4:3; chroma's neighbours included.
Region draw_region(const JpegHeader& h, Random& random) {
  std::uniform_real_distribution<double> area(0.08, 1),
      log_ratio(std::log(3 / 4.), std::log(4 / 3.));
  for (int tried = 0; tried < 10; tried++) {
    const double size = area(random) * h.width * h.height, ratio = std::exp(log_ratio(random));
    const int width = static_cast<int>(std::lround(std::sqrt(size * ratio)));
    const int height = static_cast<int>(std::lround(std::sqrt(size / ratio)));
    if (width < 1 || height < 1 || width > h.width || height > h.height) continue;
    const int x = static_cast<int>(random() % (h.width - width + 1));
    const int y = static_cast<int>(random() % (h.height - height + 1));
    return {std::max(x - 2, 0) / h.mcu_width,
            ceil_div(std::min(x + width + 2, h.width), h.mcu_width),
            std::max(y - 2, 0) / h.mcu_height,
            ceil_div(std::min(y + height + 2, h.height), h.mcu_height)};
  }
  return {0, h.mcus_per_row, 0, h.mcu_rows};
}

/// Zig-zag against natural order.
bool equal_blocks(const int16_t* zigzag, const int16_t* natural, size_t blocks) {
  for (size_t i = 0; i < blocks * kBlockSize; i++)
    if (zigzag[i] != natural[i / kBlockSize * kBlockSize + kNaturalOrder[i % kBlockSize]])
      return false;
  return true;
}

// ---- Counts ---------------------------------------------------------------------------------

/// What warps of 32 threads would do, a symbol a step for all that have one left.
struct Warps {
  uint64_t symbols = 0, steps = 0;

  void add(const std::vector<uint32_t>& lanes) {  // symbols of each thread
    for (size_t warp = 0; warp < lanes.size(); warp += 32) {
      const auto begin = lanes.begin() + warp;
      const auto end = lanes.begin() + std::min(warp + 32, lanes.size());
      steps += *std::max_element(begin, end);
      for (auto lane = begin; lane != end; lane++) symbols += *lane;
    }
  }
  double efficiency() const { return steps ? symbols / (32. * steps) : 0; }
};

/// Symbols of a block: DC difference, coefficients, runs of sixteen zeros, end of block.
uint32_t symbols_of(const int16_t* zigzag) {
  uint32_t symbols = 1, last = 0;
  for (uint32_t k = 1; k < kBlockSize; k++)
    if (zigzag[k]) {
      symbols += 1 + (k - last - 1) / 16;
      last = k;
    }
  return symbols + (last < kBlockSize - 1);
}

struct Counts {
  uint64_t files = 0, other = 0, regions = 0, bytes = 0, segments = 0, blocks = 0, symbols = 0;
  uint32_t longest = 0;  // segment, in symbols
  std::vector<uint32_t> longest_of_regions, segments_of_regions;
  Warps listed, sorted, by_block, mixed;               // see print
  std::vector<std::pair<uint32_t, uint32_t>> waiting;  // bytes and symbols, for `mixed`

  void add(const gpu::HostBatch& batch, const gpu::Decoded& out) {
    for (const gpu::Image& image : batch.images) {
      std::vector<std::pair<uint32_t, uint32_t>> lengths;
      std::vector<std::vector<uint32_t>> of_block;
      std::vector<uint32_t> lanes;
      for (uint32_t i = 0; i < image.segments; i++) {
        const gpu::Segment& s = batch.segments[image.first_segment + i];
        lanes.push_back(out.results[image.first_segment + i].symbols);
        lengths.emplace_back(s.end - s.begin, lanes.back());
        symbols += lanes.back();
        blocks += s.blocks;
        bytes += s.end - s.begin;
        for (uint32_t b = 0; b < s.blocks; b++) {
          if (of_block.size() <= b) of_block.emplace_back();
          of_block[b].resize(i);
          of_block[b].push_back(
              symbols_of(out.coefficients.data() + (size_t{s.first_block} + b) * kBlockSize));
        }
      }
      regions++;
      segments += image.segments;
      segments_of_regions.push_back(image.segments);
      longest_of_regions.push_back(*std::max_element(lanes.begin(), lanes.end()));
      listed.add(lanes);
      for (const auto& block : of_block) by_block.add(block);
      std::sort(lengths.rbegin(), lengths.rend());
      for (size_t i = 0; i < lengths.size(); i++) lanes[i] = lengths[i].second;
      sorted.add(lanes);
      waiting.insert(waiting.end(), lengths.begin(), lengths.end());
      if (regions % 256 == 0) mix();
    }
  }

  void mix() {
    std::sort(waiting.rbegin(), waiting.rend());
    std::vector<uint32_t> lanes;
    for (const auto& [bytes, symbols] : waiting) lanes.push_back(symbols);
    mixed.add(lanes);
    waiting.clear();
  }

  void print() {
    if (!waiting.empty()) mix();
    const auto quantile = [](std::vector<uint32_t>& of, double q) {
      std::sort(of.begin(), of.end());
      return of.empty() ? 0 : of[static_cast<size_t>(q * static_cast<double>(of.size() - 1))];
    };
    std::printf("{\"files\": %lu, \"other\": %lu, \"regions\": %lu, \"bytes\": %lu, ", files, other,
                regions, bytes);
    std::printf("\"segments\": %lu, \"blocks\": %lu, \"symbols\": %lu,\n", segments, blocks,
                symbols);
    std::printf(" \"segments_of_regions\": [%u, %u, %u, %u], ", quantile(segments_of_regions, 0),
                quantile(segments_of_regions, .5), quantile(segments_of_regions, .9),
                quantile(segments_of_regions, 1));
    std::printf("\"longest_of_regions\": [%u, %u, %u, %u],\n", quantile(longest_of_regions, 0),
                quantile(longest_of_regions, .5), quantile(longest_of_regions, .9),
                quantile(longest_of_regions, 1));
    // The image's segments as they come; the longest first, by bytes; the same of 256 images,
    // were all tables at hand; as they come, if threads waited for one another at ends of blocks.
    std::printf(
        " \"warps\": {\"listed\": %.4f, \"sorted\": %.4f, \"mixed\": %.4f, \"by_block\": %.4f},\n",
        listed.efficiency(), sorted.efficiency(), mixed.efficiency(), by_block.efficiency());
    std::printf(" \"words\": %lu, \"slow_words\": %lu, \"long_codes\": %lu}\n", gpu::events.words,
                gpu::events.slow_words, gpu::events.long_codes);
  }
};

// ---- Commands -------------------------------------------------------------------------------

int compare(int stride, int regions, const std::vector<Bytes>& files) {
  Counts counts;
  Random random(1);
  for (const Bytes& file : files) {
    const ByteSpan jpeg = span(file);
    JpegHeader header;
    const SeekPoints points = std::move(build_seek_points({jpeg}, stride)[0]);
    // Of several scans, or damaged; or with restart intervals, which are left to the core.
    if (!points.status.ok() || !read_header(jpeg, header).ok() || header.restart_interval) {
      counts.other++;
      continue;
    }
    counts.files++;
    EntropyTables tables;
    CHECK(tables.build(header).ok());
    OneStream core(jpeg, header, tables);
    EntryPoint start;
    start.byte = header.scan_offset;
    std::vector<int16_t> expected;
    CHECK(core.decode(start, 0, header.mcu_count(), jpeg.size, expected));

    SeekTable table;
    CHECK(table.open(span(points.packed), jpeg, header).ok());
    gpu::HostBatch batch;
    std::vector<Place> places;
    for (int i = 0; i < regions; i++)
      CHECK(add_image(jpeg, header, table, draw_region(header, random), batch, places));
    gpu::Decoded out;
    gpu::decode(batch, out);
    for (size_t i = 0; i < places.size(); i++) {
      const gpu::Segment& s = batch.segments[i];
      CHECK(out.results[i].outcome == gpu::Outcome::ok);
      CHECK(equal_blocks(
          out.coefficients.data() + size_t{s.first_block} * kBlockSize,
          expected.data() + static_cast<size_t>(places[i].mcu) * header.blocks_per_mcu * kBlockSize,
          s.blocks));
    }
    counts.add(batch, out);
  }
  counts.print();
  return 0;
}

/// Medians of 21 batches: how long the kernel takes, and the device's memory to be cleared.
int time_batches(int stride, size_t images, const std::vector<Bytes>& files) {
  Random random(1);
  gpu::HostBatch batch;
  for (size_t tried = 0; batch.images.size() < images && tried < 2 * images; tried++) {
    const ByteSpan jpeg = span(files[tried % files.size()]);
    JpegHeader header;
    const SeekPoints points = std::move(build_seek_points({jpeg}, stride)[0]);
    if (!points.status.ok() || !read_header(jpeg, header).ok() || header.restart_interval) continue;
    SeekTable table;
    CHECK(table.open(span(points.packed), jpeg, header).ok());
    std::vector<Place> places;
    CHECK(add_image(jpeg, header, table, draw_region(header, random), batch, places));
  }
  CHECK(batch.images.size() == images);
  const auto measure = [&](const char* name, bool last) {
    std::vector<float> decoded, cleared;
    gpu::Decoded out;
    for (int round = 0; round < 21; round++) {
      gpu::decode(batch, out);
      decoded.push_back(gpu::spent.decoded);
      cleared.push_back(gpu::spent.cleared);
    }
    std::sort(decoded.begin(), decoded.end());
    std::sort(cleared.begin(), cleared.end());
    uint64_t symbols = 0;
    uint32_t longest = 0;
    for (const gpu::Result& result : out.results) {
      CHECK(result.outcome == gpu::Outcome::ok);
      symbols += result.symbols;
      longest = std::max(longest, result.symbols);
    }
    std::printf("\"%s\": {\"decoded_ms\": [%.3f, %.3f, %.3f], \"cleared_ms\": %.3f, ", name,
                decoded.front(), decoded[10], decoded.back(), cleared[10]);
    std::printf("\"symbols\": %lu, \"longest\": %u}%s", symbols, longest, last ? "}\n" : ", ");
  };
  std::printf("{\"images\": %zu, \"segments\": %zu, \"bytes\": %zu, \"blocks\": %u, ", images,
              batch.segments.size(), batch.bytes.size(), batch.block_count);
  measure("listed", false);
  for (const gpu::Image& image : batch.images) {
    const auto begin = batch.segments.begin() + image.first_segment;
    std::sort(begin, begin + image.segments, [](const gpu::Segment& a, const gpu::Segment& b) {
      return a.end - a.begin > b.end - b.begin;
    });
  }
  measure("longest_first", true);
  return 0;
}

/// Of what the kernel may do whatever it is given.
void check_results(const gpu::HostBatch& batch, const gpu::Decoded& out) {
  for (size_t i = 0; i < batch.segments.size(); i++) {
    CHECK(out.results[i].outcome <= gpu::Outcome::wrong_end);
    CHECK(out.results[i].symbols <= uint64_t{64} * batch.segments[i].blocks);
  }
}

/// The same tables and seek points, but for what was damaged; the kernel and the core agree on each
/// segment. Returns how many were decoded.
size_t damage_file(const Bytes& whole, const Bytes& packed, Random& random) {
  Bytes file = whole;
  JpegHeader header;
  CHECK(read_header(span(whole), header).ok());
  // Seek points are for this header: the table is opened before the damage.
  SeekTable table;
  CHECK(table.open(span(packed), span(whole), header).ok());
  // Of the Huffman tables, which stand in the header, or of the scan.
  for (int n = 1 << random() % 5; n > 0; n--) {
    const size_t scan = header.scan_offset;
    const bool in_header = random() % 4 == 0;
    const size_t at = in_header ? random() % scan : scan + random() % (file.size() - scan);
    file[at] = static_cast<uint8_t>(random() % 4 ? random() : random() % 2 * 255);
  }
  JpegHeader damaged;
  if (!read_header(span(file), damaged).ok() || damaged.scan_offset != header.scan_offset ||
      damaged.mcus_per_row != header.mcus_per_row || damaged.mcu_rows != header.mcu_rows ||
      damaged.blocks_per_mcu != header.blocks_per_mcu || damaged.restart_interval ||
      damaged.several_scans)
    return 0;
  gpu::HostBatch batch;
  std::vector<Place> places;
  if (!add_image(span(file), damaged, table, draw_region(damaged, random), batch, places)) return 0;
  gpu::Decoded out;
  gpu::decode(batch, out);
  check_results(batch, out);

  EntropyTables tables;
  const bool bad_tables = !tables.build(damaged).ok();
  OneStream core(span(file), damaged, tables);
  std::vector<int16_t> expected;
  size_t decoded = 0;
  for (size_t i = 0; i < places.size(); i++) {
    const Place& p = places[i];
    const gpu::Outcome outcome = out.results[i].outcome;
    CHECK(bad_tables == (outcome == gpu::Outcome::bad_table));
    if (bad_tables) continue;
    const bool core_can = core.decode(p.entry, p.mcu, p.mcus, p.end, expected);
    CHECK(core_can == (outcome == gpu::Outcome::ok || outcome == gpu::Outcome::wrong_end));
    if (!core_can) continue;
    const gpu::Segment& s = batch.segments[i];
    CHECK(equal_blocks(out.coefficients.data() + size_t{s.first_block} * kBlockSize,
                       expected.data(), s.blocks));
    decoded++;
  }
  return decoded;
}

/// Descriptions that no host would make, but that name memory that there is.
void damage_batch(const Bytes& whole, const Bytes& packed, Random& random) {
  JpegHeader header;
  CHECK(read_header(span(whole), header).ok());
  SeekTable table;
  CHECK(table.open(span(packed), span(whole), header).ok());
  gpu::HostBatch batch;
  std::vector<Place> places;
  const int images = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < images; i++)
    CHECK(add_image(span(whole), header, table, draw_region(header, random), batch, places));
  const auto smash = [&](void* data, size_t size) {
    auto* bytes = static_cast<uint8_t*>(data);
    bytes[random() % size] = static_cast<uint8_t>(random() % 4 ? random() : random() % 2 * 255);
  };
  for (int n = 1 << random() % 6; n > 0; n--) {
    gpu::Image& image = batch.images[random() % batch.images.size()];
    switch (random() % 4) {
      case 0: smash(&image, sizeof image); break;
      case 1: smash(batch.bytes.data(), batch.bytes.size()); break;
      case 2:  // any codes: too many, or too few
        for (uint8_t& count : image.tables[random() % gpu::kTables].counts)
          count = static_cast<uint8_t>(random() >> random() % 64);
        break;
      default: smash(batch.segments.data(), batch.segments.size() * sizeof(gpu::Segment));
    }
  }
  // The memory for coefficients is the host's to bound.
  gpu::Decoded out;
  gpu::decode(batch, out);
  check_results(batch, out);
}

int damage(long executions, uint64_t seed, const std::vector<Bytes>& files) {
  Random random(seed);
  std::vector<Bytes> packed;
  for (const Bytes& file : files) {
    SeekPoints points = std::move(build_seek_points({span(file)}, 16 << random() % 3)[0]);
    CHECK(points.status.ok());
    packed.push_back(std::move(points.packed));
  }
  size_t decoded = 0;
  for (long i = 0; i < executions; i++) {
    const size_t file = random() % files.size();
    if (i % 4)
      decoded += damage_file(files[file], packed[file], random);
    else
      damage_batch(files[file], packed[file], random);
  }
  std::printf("{\"executions\": %ld, \"decoded\": %zu}\n", executions, decoded);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s compare STRIDE REGIONS FILE...\n", argv[0]);
    std::fprintf(stderr, "       %s time STRIDE IMAGES FILE...\n", argv[0]);
    std::fprintf(stderr, "       %s damage EXECUTIONS SEED FILE...\n", argv[0]);
    return 2;
  }
  std::vector<Bytes> files;
  for (int i = 4; i < argc; i++) files.push_back(read_file(argv[i]));
  const std::string command = argv[1];
  const long first = std::atol(argv[2]);
  const uint64_t second = std::strtoull(argv[3], nullptr, 10);
  if (command == "compare")
    return compare(static_cast<int>(first), static_cast<int>(second), files);
  if (command == "time") return time_batches(static_cast<int>(first), second, files);
  return damage(first, second, files);
}
