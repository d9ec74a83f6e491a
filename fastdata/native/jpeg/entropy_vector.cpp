#include "jpeg/entropy_vector.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "jpeg/bit_reader.h"
#include "simd/kernels.h"

namespace fastdata {
namespace {

// Fewer segments than these are decoded as fast by three streams in turns.
constexpr size_t kWorthwhile = 8;

constexpr int kLongestSymbol = 16 + 15;  // on the slow path

// Each lane has its own stretch of bytes and of coefficients. Their distances are no multiples
// of 4096: lanes advance at one speed, and would compete for the same places of the
// first-level cache. A step writes two coefficients, of which the second is not yet known, and
// so zero: there is one more behind a lane's last.
constexpr uint32_t kLaneBytes = SeekSegment::kMaxBytes + 192;
static_assert(kLaneBytes >= SeekSegment::kMaxBytes + 63 + 8);  // what unstuffing may write, zeros
constexpr uint32_t kLaneCoefficients = SeekSegment::kMaxBlocks * kBlockSize + 32;
// A lane whose bits are no JPEG's (docs/design/0007-native-bounds.md, vector lanes) may read on
// until its last block is full.
constexpr uint32_t kOverrun = SeekSegment::kMaxBlocks * kBlockSize * kLongestSymbol / 8 + 64;
constexpr uint32_t kIdleBytes = kVectorStreams * kLaneBytes + kOverrun;  // zeros
constexpr uint32_t kIdleBlock = kVectorStreams * kLaneCoefficients;
constexpr uint32_t kBytes = kIdleBytes + 64, kCoefficients = kIdleBlock + kBlockSize;
constexpr size_t kBefore = 32;  // coefficients: VectorLanes, and alignment
static_assert(uint64_t{kBytes} * 8 <= INT32_MAX && SeekSegment::kMaxBytes <= UINT16_MAX);
static_assert(7 + kVectorMaxLength * kVectorTurns <= 64 && kVectorMaxLength < 32);
constexpr uint32_t kIdlePlan = kVectorLanes - 1;

std::atomic<VectorUse> used{VectorUse::measured};
std::atomic<uint64_t> regions{0};

constexpr uint32_t entry_of(int length, int size, uint32_t advance) {
  return static_cast<uint32_t>(length | size << 5 | length << 16) | advance << 9;
}

void build_lookup(const HuffmanSpec& spec, bool dc, uint32_t* out) {
  constexpr uint32_t kSlow = entry_of(0, 0, kVectorSlow);
  const int used =
      for_each_code(spec, kVectorLookupBits, [&](uint8_t symbol, int length, int entry, int span) {
        const int run = dc ? 0 : symbol >> 4, size = dc ? symbol : symbol & 15;
        const uint32_t advance = dc ? 0 : size == 0 && run < 15 ? kVectorEndOfBlock : run + 1;
        const bool fits = length + size <= kVectorMaxLength;
        std::fill_n(out + entry, span, fits ? entry_of(length + size, size, advance) : kSlow);
      });
  std::fill(out + used, out + VectorTables::kEntries, kSlow);
  if (!dc) kernels().join_symbols(out);
}

}  // namespace

void VectorTables::build(const EntropyTables& tables) {
  const JpegHeader& header = *tables.header;
  for (int i = 0; i < 8; i++) {
    const bool is_dc = i < 4, is_used = (is_dc ? tables.dc_used : tables.ac_used) >> i % 4 & 1;
    const HuffmanSpec& spec = is_dc ? header.dc[i] : header.ac[i - 4];
    if (!is_used || spec == built[i]) continue;
    build_lookup(spec, is_dc, lookup + i * kEntries);
    built[i] = spec;
  }
  const int blocks = header.blocks_per_mcu;
  for (int b = 0; b < kVectorLanes; b++) {
    const bool used = b < blocks;
    const Component& c = header.components[used ? tables.plan[b].component : 0];
    dc[b] = used ? c.dc_table * kEntries : kIdle;
    ac[b] = used ? kAcTables + c.ac_table * kEntries : kIdle;
    next[b] = used ? (b + 1) % blocks : kIdlePlan;
  }
}

namespace {

/// The least of several times that `work` takes, in seconds.
template <typename Work>
double least_time(Work work) {
  using Clock = std::chrono::steady_clock;
  double least = 1;
  for (int i = 0; i < 5; i++) {
    const Clock::time_point begin = Clock::now();
    work();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return least;
}

/// Whether a step is fast enough here to be worth it. Two gathers and a scatter take some 30
/// cycles on one processor and 200 on another, or on the same after an update of its
/// microcode; no flag tells. So a step is measured, in loads from the first-level cache: of
/// sixteen streams it takes 13 where the vector decodes 1.6 times as fast as streams in turns, of
/// thirty-two less than twice that. Takes 0.1 ms.
bool steps_are_fast() {
  constexpr double kLoadsInStep = 50;
  constexpr uint32_t kBlocks = 8, kSteps = kBlocks * kBlockSize;
  constexpr uint32_t kDistance = kBlocks * kBlockSize + 32;
  // Every symbol is a bit long and a coefficient, or a DC difference, of zero.
  const auto tables = std::make_unique<VectorTables>();
  std::fill_n(tables->lookup, VectorTables::kAcTables, entry_of(1, 0, 0));
  std::fill_n(tables->lookup + VectorTables::kAcTables, VectorTables::kAcTables, entry_of(1, 0, 1));
  std::fill_n(tables->ac, kVectorLanes, VectorTables::kAcTables);
  std::fill_n(tables->dc, kVectorLanes, 0);
  std::fill_n(tables->next, kVectorLanes, 0);
  const std::vector<uint8_t> bytes(kSteps / 8 + 64);
  std::vector<int16_t> coefficients(1 + kVectorStreams * kDistance);
  VectorLanes lanes;
  lanes.bytes = bytes.data();
  lanes.coefficients = coefficients.data() + 1;
  lanes.tables = tables.get();
  lanes.bytes_size = static_cast<uint32_t>(bytes.size());
  lanes.coefficients_size = kVectorStreams * kDistance;
  const double steps = least_time([&] {
    for (uint32_t lane = 0; lane < kVectorStreams; lane++) {
      lanes.position[lane] = lanes.lookup[lane] = lanes.plan[lane] = 0;
      lanes.index[lane] = 1;
      lanes.block[lane] = lane * kDistance;
      lanes.last_block[lane] = lanes.block[lane] + (kBlocks - 1) * kBlockSize;
    }
    kernels().decode_vector(lanes);
  });
  volatile uint8_t next[64];
  for (int i = 0; i < 64; i++) next[i] = static_cast<uint8_t>((i + 7) % 64);
  uint8_t at = 0;
  const double loads = least_time([&] {
    for (uint32_t i = 0; i < 10 * kSteps; i++) at = next[at];
  });
  return steps < loads / 10 * kLoadsInStep;
}

}  // namespace

void use_vector(VectorUse use) { used = use; }

uint64_t vector_regions() { return regions; }

void check_lanes(const VectorLanes& lanes, const uint32_t* position, const uint32_t* place,
                 uint32_t written) {
  for (int lane = 0; lane < kVectorLanes; lane++) {
    if (position[lane] / 8 + 8 > lanes.bytes_size) std::abort();
    // Places count from 1; each write takes the one behind, too.
    if (written >> lane & 1 && (place[lane] < 1 || place[lane] + 1 > lanes.coefficients_size))
      std::abort();
  }
}

bool VectorDecoder::worth(size_t segments) {
  const VectorUse use = used.load(std::memory_order_relaxed);
  if (kernels().decode_vector == nullptr || segments < kWorthwhile || use == VectorUse::never)
    return false;
  if (use == VectorUse::always) return true;
  // Without a lock, which a child forked meanwhile would wait for for ever: threads that come
  // early all measure.
  static std::atomic<int8_t> fast{-1};
  int8_t known = fast.load(std::memory_order_relaxed);
  if (known < 0) fast = known = steps_are_fast();
  return known != 0;
}

int16_t* VectorDecoder::lane_coefficients(int lane) const {
  return lanes_.coefficients + lane * kLaneCoefficients;
}

bool VectorDecoder::run(const EntropyTables& tables, const std::vector<SeekSegment>& segments,
                        SegmentSink& sink) {
  tables_ = &tables;
  segments_ = &segments;
  sink_ = &sink;
  vector_tables_.build(tables);
  if (dirty_) coefficients_.release();
  dirty_ = true;
  lanes_.bytes = bytes_.reserve_zeroed(kBytes);
  lanes_.coefficients = coefficients_.reserve_zeroed<int16_t>(kBefore + kCoefficients) + kBefore;
  lanes_.tables = &vector_tables_;
  lanes_.bytes_size = kBytes;
  lanes_.coefficients_size = kCoefficients;

  // The longest first, so that the lanes end together.
  order_.clear();
  for (size_t i = 0; i < segments.size(); i++)
    order_.push_back(static_cast<uint32_t>(segments[i].source_end - segments[i].source) << 16 |
                     static_cast<uint32_t>(i));
  std::sort(order_.begin(), order_.end(), std::greater<uint32_t>());
  next_ = 0;
  busy_ = 0;
  for (int lane = 0; lane < kVectorStreams; lane++)
    if (!start(lane)) return false;
  while (busy_ > 0) {
    const VectorStop stop = kernels().decode_vector(lanes_);
    uint32_t ended = stop.ended;
    for (uint32_t left = stop.slow; left; left &= left - 1) {
      const int lane = __builtin_ctz(left);
      bool at_end = false;
      if (!decode_symbol(lane, at_end)) return false;
      if (at_end) ended |= 1u << lane;
    }
    for (; ended; ended &= ended - 1) {
      const int lane = __builtin_ctz(ended);
      if (!finish(lane) || !start(lane)) return false;
    }
  }
  dirty_ = false;
  regions.fetch_add(1, std::memory_order_relaxed);
  return true;
}

/// Gives the lane the next segment, or none. False: its bytes are too few.
bool VectorDecoder::start(int lane) {
  lanes_.index[lane] = 1;
  if (next_ == order_.size()) {
    segment_[lane] = nullptr;
    lanes_.position[lane] = kIdleBytes * 8;
    lanes_.lookup[lane] = VectorTables::kIdle;
    lanes_.block[lane] = kIdleBlock;
    lanes_.last_block[lane] = UINT32_MAX;
    lanes_.plan[lane] = kIdlePlan;
    return true;
  }
  const SeekSegment& segment = (*segments_)[order_[next_++] & 0xFFFF];
  busy_++;
  segment_[lane] = &segment;
  uint8_t* const bytes = bytes_.get() + lane * kLaneBytes;
  const Unstuffed unstuffed =
      kernels().unstuff(segment.source, segment.source_end, bytes, bytes + SeekSegment::kMaxBytes);
  // A marker: one stream would end there.
  if (segment.checked && unstuffed.source != segment.source_end) return false;
  std::memset(unstuffed.out, 0, 8);
  const auto size = static_cast<uint32_t>(unstuffed.out - bytes);
  const uint32_t begin = lane * kLaneBytes * 8;
  end_[lane] = begin + size * 8 - (segment.end_bit ? 8 - segment.end_bit : 0);
  lanes_.position[lane] = begin + segment.bit;
  lanes_.lookup[lane] = vector_tables_.dc[0];
  lanes_.block[lane] = lane * kLaneCoefficients;
  lanes_.last_block[lane] = lanes_.block[lane] + (segment.blocks - 1) * kBlockSize;
  lanes_.plan[lane] = 0;
  return size > 0;
}

/// One symbol on the slow path, as entropy.cpp's slow path. False: it is none.
bool VectorDecoder::decode_symbol(int lane, bool& ended) {
  const BlockPlan& plan = tables_->plan[lanes_.plan[lane]];
  const bool dc = lanes_.lookup[lane] < VectorTables::kAcTables;
  uint32_t& position = lanes_.position[lane];
  uint64_t bits;
  std::memcpy(&bits, lanes_.bytes + position / 8, 8);
  bits = __builtin_bswap64(bits) << position % 8;
  const HuffmanTable::Symbol symbol =
      (dc ? plan.dc_table : plan.ac_table)->find(static_cast<uint32_t>(bits >> 48));
  if (symbol.length == 0) return false;
  const unsigned run = dc ? 0 : symbol.value >> 4, size = symbol.value & 15;
  const auto value = static_cast<int16_t>(extend(bits << symbol.length, size));
  position += symbol.length + size;
  int16_t* const block = lanes_.coefficients + lanes_.block[lane];
  uint32_t& index = lanes_.index[lane];
  if (dc) {
    block[0] = value;
    lanes_.lookup[lane] = vector_tables_.ac[lanes_.plan[lane]];
    return true;
  }
  if (size > 0 || run == 15) {
    index += run + 1;
    if (index > kBlockSize) return false;  // a run beyond the end of the block
    block[index - 1] = value;
    if (index < kBlockSize) return true;
  }
  ended = lanes_.block[lane] == lanes_.last_block[lane];
  index = 1;
  lanes_.block[lane] += kBlockSize;
  lanes_.plan[lane] = vector_tables_.next[lanes_.plan[lane]];
  lanes_.lookup[lane] = vector_tables_.dc[lanes_.plan[lane]];
  return true;
}

/// The lane's segment has been decoded. False: it does not end where the next one begins.
bool VectorDecoder::finish(int lane) {
  const SeekSegment& segment = *segment_[lane];
  busy_--;
  if (segment.checked ? lanes_.position[lane] != end_[lane] : lanes_.position[lane] > end_[lane])
    return false;
  // Differences to DC coefficients.
  uint16_t predictor[kMaxComponents];
  std::memcpy(predictor, segment.predictor, sizeof predictor);
  int16_t* const coefficients = lane_coefficients(lane);
  int16_t* block = coefficients;
  const BlockPlan* plan = tables_->plan;
  for (uint32_t i = 0; i < segment.blocks; i++, block += kBlockSize, plan = plan->next) {
    uint16_t& dc = predictor[plan->component];
    dc = static_cast<uint16_t>(dc + static_cast<uint16_t>(*block));
    *block = static_cast<int16_t>(dc);
  }
  if (segment.checked && std::memcmp(predictor, segment.end_predictor, sizeof predictor) != 0)
    return false;
  sink_->decoded(segment, coefficients);
  return true;
}

}  // namespace fastdata
