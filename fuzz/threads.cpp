// A stress test of the engine for ThreadSanitizer. Several consumers have batches under way, as a
// loader does: the batches decode, probe and read the same files. Consumers wait for them in and
// out of turn, cancel them from another thread, drop them while they run, and close the engine
// first. Samples are sound and damaged JPEGs. Arguments: seconds, and inputs of fuzz_decode.cpp,
// whose JPEGs are used.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "decode_task.h"
#include "engine.h"
#include "io/crc32c.h"
#include "jpeg/probe.h"
#include "read_task.h"
#include "simd/kernels.h"

using namespace fastdata;

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSide = 24, kConsumers = 3, kAhead = 4;

/// Returns the path of a file in memory.
std::string in_memory(const void* data, size_t size) {
  const int descriptor = memfd_create("fuzz", 0);
  if (write(descriptor, data, size) != static_cast<ssize_t>(size)) abort();
  return "/proc/self/fd/" + std::to_string(descriptor);
}

/// Random crops, resized to a square.
StepProgram resized_crop() {
  std::vector<Value> values;
  for (const double value : {1.0 * kSide, 1.0 * kSide, 1.0, 0.1, 1.0, 0.7, 1.4, 0.0})
    values.push_back({ValueKind::constant, 0, value});
  Node root, crop;
  root.end = crop.end = 2;
  crop.kind = StepKind::resized_crop;
  return {{root, crop}, values, {}, 1};
}

/// JPEGs one after the other in one file, every third damaged, as a packed dataset has them, and
/// their index, of which every fifth row is damaged.
struct Dataset {
  std::vector<Record> records;
  std::shared_ptr<Files> files;
  std::unique_ptr<RecordTable> table;
  const StepProgram program = resized_crop();

  explicit Dataset(const std::vector<std::vector<uint8_t>>& jpegs) {
    std::vector<uint8_t> bytes;
    for (const auto& jpeg : jpegs) {
      const ByteSpan image{jpeg.data(), jpeg.size()};
      const ImageInfo info = probe(image);
      const auto row = static_cast<int64_t>(records.size());
      Record record{};
      record.offset = static_cast<int64_t>(bytes.size());
      record.length = static_cast<int64_t>(jpeg.size());
      record.width = info.width;
      record.height = info.height;
      record.blob_crc = crc32c(image);
      record.encoding = static_cast<uint8_t>(kJpegEncoding);
      record.crc = record_crc(record, row) + (row % 5 == 0);
      records.push_back(record);
      bytes.insert(bytes.end(), jpeg.begin(), jpeg.end());
    }
    const auto size = static_cast<int64_t>(bytes.size()), rows = static_cast<int64_t>(jpegs.size());
    // The second path has no file: opening it fails in the threads.
    files = std::make_shared<Files>(
        std::vector<std::string>{in_memory(bytes.data(), bytes.size()), "/nonexistent"},
        std::vector<int64_t>{size, size});
    const auto index = std::make_shared<Files>(
        std::vector{in_memory(records.data(), records.size() * sizeof(Record))},
        std::vector<int64_t>{-1});
    table = std::make_unique<RecordTable>(IndexedDataset{files, "", 1}, index, 0, rows, 0);
  }
};

/// A batch with all that it points to.
struct Held {
  std::unique_ptr<Extents> extents;
  std::vector<uint8_t> out;
  std::unique_ptr<Batch> batch;
};

Held begin(const Dataset& dataset, Engine& engine, std::mt19937_64& random) {
  Held held;
  const size_t count = random() % 20;
  held.extents = std::make_unique<Extents>(count);
  held.extents->tables = {{dataset.files, nullptr}};
  for (size_t i = 0; i < count; i++) {
    const Record& chosen = dataset.records[random() % dataset.records.size()];
    Extent& extent = held.extents->extents[i];
    extent.file = random() % 32 == 0;
    extent.offset = chosen.offset;
    extent.length = chosen.length;
    extent.has_crc = true;
    extent.crc = chosen.blob_crc + (random() % 16 == 0);
    held.extents->encodings[i] = kJpegEncoding;
  }
  const auto kind = random() % 8;
  std::shared_ptr<Task> task;
  if (kind == 0) {
    task = std::make_shared<ReadTask>(*held.extents, std::vector<uint8_t>(count), true, true);
  } else if (kind == 1) {
    task = std::make_shared<ProbeTask>(*held.extents);
  } else {
    auto decode = std::make_shared<DecodeTask>();
    decode->extents = held.extents.get();
    decode->stride = random() % 3 ? 0 : 16;
    decode->built.resize(decode->stride ? count : 0);
    held.out.resize(count * kSide * kSide * 3);
    if (random() % 2) {
      auto lookup = std::make_shared<RowLookup>();
      lookup->table = dataset.table.get();
      for (size_t i = 0; i < count; i++)
        lookup->rows.push_back(static_cast<int64_t>(random() % dataset.records.size()));
      lookup->numbers = lookup->rows;
      lookup->extents = held.extents.get();
      decode->lookup = lookup;
      decode->program = &dataset.program;
      decode->key = random();
    }
    for (size_t i = 0; i < count; i++) {
      Sample sample;
      sample.cut = whole_cut(kSide, kSide);
      sample.output.data = held.out.data() + i * kSide * kSide * 3;
      sample.output.width = sample.output.height = kSide;
      sample.output.row_stride = kSide * 3;
      decode->outputs.push_back(sample.output);
      if (!decode->lookup) decode->samples.push_back(sample);
    }
    task = decode;
  }
  held.batch = engine.submit(task);
  return held;
}

/// As an iterator does it: some batches ahead, the oldest awaited; now and then all given up.
long consume(const Dataset& dataset, Engine& engine, uint64_t seed, Clock::time_point end) {
  std::mt19937_64 random(seed);
  std::deque<Held> ahead;
  long batches = 0;
  while (Clock::now() < end) {
    while (ahead.size() < kAhead) ahead.push_back(begin(dataset, engine, random));
    switch (random() % 8) {
      case 0: {  // closed from another thread, as a loader may be
        std::thread other([&] {
          for (Held& held : ahead) held.batch->cancel();
        });
        ahead.front().batch->wait();
        other.join();
        break;
      }
      case 1: ahead.clear(); continue;  // an iterator that is dropped
      case 2: (void)ahead.back().batch->done(); break;
      case 3: (void)ahead.front().batch->wait_for(0.001); continue;
      default: break;
    }
    ahead.front().batch->wait();
    for (const Status& status : ahead.front().batch->statuses())
      if (status.code == Code::bad_parameters) abort();
    ahead.pop_front();
    batches++;
  }
  return batches;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::vector<uint8_t>> jpegs;
  for (int i = 2; i < argc; i++) {
    std::ifstream file(argv[i], std::ios::binary);
    std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file),
                               std::istreambuf_iterator<char>()};
    if (bytes.size() < 18) continue;
    const size_t begin = 18 + (bytes[16] | bytes[17] << 8);
    if (begin >= bytes.size()) continue;
    jpegs.emplace_back(bytes.begin() + static_cast<ptrdiff_t>(begin), bytes.end());
    if (i % 3 == 0) jpegs.back()[jpegs.back().size() * 3 / 4] ^= 0x55;
  }
  use_vector(VectorUse::always);
  const Dataset dataset(jpegs);
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  std::atomic<long> batches{0};
  int engines = 0;
  while (Clock::now() < end) {
    Engine engine(1 + engines++ % 4);
    const auto pause = std::min(end, Clock::now() + std::chrono::milliseconds(700));
    std::vector<std::thread> consumers;
    for (int i = 0; i < kConsumers; i++)
      consumers.emplace_back([&, i] {
        batches += consume(dataset, engine, static_cast<uint64_t>(engines * kConsumers + i), pause);
      });
    for (std::thread& consumer : consumers) consumer.join();
  }
  std::printf("fuzz threads: %ld batches, %d engines, no race\n", batches.load(), engines);
}
