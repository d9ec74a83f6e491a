// The fuzz target of indexes: any bytes as rows of an index, as their seek tables and as the
// samples that they give, probed, read and decoded. Nothing may crash or trip a sanitizer.
//
// An input is a byte of switches, the number of rows, the heap's length (2 bytes), the rows'
// records (64 bytes each), the heap, and the file of the samples. The switches fix checksums and
// extents, so that the fuzzer reaches the code behind their checks.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "decode_task.h"
#include "io/crc32c.h"
#include "io/record.h"
#include "io/record_table.h"
#include "jpeg/probe.h"
#include "read_task.h"

using namespace fastdata;

namespace {

constexpr size_t kHead = 4;
constexpr size_t kBlobs = 4096;  // the samples' file is always so long
constexpr int kMaxRows = 8;
constexpr int kSide = 16;            // of the output
constexpr int kMaxPixels = 1 << 20;  // of an image: larger ones only slow the search down

enum Switch : uint8_t {
  kFixRecords = 1,
  kFixNames = 2,
  kFixTables = 4,
  kFixExtents = 8,
  kRoot = 16,      // rows may have paths of their own
  kCheck = 32,     // the samples' checksums
  kFixCode = 128,  // rows are said to be JPEGs of the first file
};

/// A file in memory, with a path.
struct MemoryFile {
  int descriptor = memfd_create("fuzz", 0);
  std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  size_t length = 0;

  void write(const uint8_t* data, size_t size) {
    if ((size < length && ftruncate(descriptor, static_cast<off_t>(size)) != 0) ||
        pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size))
      std::abort();
    length = size;
  }
};

struct Rows {
  uint8_t switches;
  std::vector<Record> records;
  std::vector<uint8_t> heap;
};

void fix(Rows& rows, ByteSpan blobs) {
  for (size_t i = 0; i < rows.records.size(); i++) {
    Record& record = rows.records[i];
    const auto row = static_cast<int64_t>(i);
    if (rows.switches & kFixExtents) {
      record.offset = std::clamp<int64_t>(record.offset & 0xFFFF, 0, kBlobs);
      record.length = std::clamp<int64_t>(record.length & 0xFFFF, 0, kBlobs - record.offset);
      record.blob_crc = crc32c({blobs.data + record.offset, static_cast<size_t>(record.length)});
      record.label &= 7;
      record.width &= 1023;
      record.height &= 1023;
      if (!rows.heap.empty()) {
        record.heap_at =
            static_cast<int64_t>(static_cast<uint64_t>(record.heap_at) % rows.heap.size());
        record.key_size &= 15;
        record.path_size &= 31;
        record.table_size &= 1023;
      }
    }
    if (rows.switches & kFixCode) {
      record.file = 0;
      record.encoding = static_cast<uint8_t>(record.encoding & 1);  // raw, or a JPEG
    }
    const bool inside =
        record.heap_at >= 0 && heap_size(record) <= rows.heap.size() &&
        record.heap_at <= static_cast<int64_t>(rows.heap.size() - heap_size(record));
    if (inside) {
      uint8_t* names = rows.heap.data() + record.heap_at;
      if (rows.switches & kFixNames) record.names_crc = crc32c({names, names_size(record)});
      if ((rows.switches & kFixTables) && record.table_size > 0) {
        const ByteSpan table{names + names_size(record), record.table_size};
        const uint32_t crc = table_crc(table, row);
        std::memcpy(names + names_size(record) + table.size, &crc, sizeof crc);
      }
    }
    if (rows.switches & kFixRecords) record.crc = record_crc(record, row);
  }
}

/// Reads, probes and decodes what the rows give, in every way that there is.
void use(Extents& extents, bool check) {
  const size_t count = extents.size();
  BlobReader reader;
  ByteSpan bytes;
  bool whole;
  for (size_t i = 0; i < count; i++) {
    (void)reader.read_head(extents, i, 100, bytes, whole);
    if (reader.read(extents, i, check, bytes).ok()) {
      const ImageInfo info = probe(bytes);
      if (static_cast<int64_t>(info.width) * info.height > kMaxPixels) return;
    }
    if (extents.extents[i].table_size) (void)reader.read_table(extents, i, bytes);
  }
  ReadTask reads(extents, std::vector<uint8_t>(count), check, check);
  DecodeTask decodes;
  decodes.extents = &extents;
  decodes.check = check;
  std::vector<uint8_t> out(count * kSide * kSide * 3);
  for (size_t i = 0; i < count; i++) {
    Sample sample;
    sample.cut = whole_cut(kSide, kSide);
    sample.output.data = out.data() + i * kSide * kSide * 3;
    sample.output.width = sample.output.height = kSide;
    sample.output.row_stride = kSide * 3;
    decodes.samples.push_back(sample);
  }
  for (size_t i = 0; i < count; i++) {
    (void)reads.run(i);
    (void)decodes.run(i);
  }
  ProbeTask probes(extents);
  for (size_t i = 0; i < count; i++) {
    extents.widths[i] = 0;
    (void)probes.run(i);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile blob_file, index_file;
  if (size < kHead) return 0;
  Rows rows{data[0], std::vector<Record>(1 + data[1] % kMaxRows), {}};
  size_t at = kHead;
  const auto take = [&](void* to, size_t wanted) {
    const size_t got = std::min(wanted, size - at);
    if (got) std::memcpy(to, data + at, got);
    at += got;
  };
  take(rows.records.data(), rows.records.size() * sizeof(Record));
  rows.heap.resize(std::min<size_t>(data[2] | data[3] << 8, size - at));
  take(rows.heap.data(), rows.heap.size());
  std::vector<uint8_t> blobs(kBlobs);
  take(blobs.data(), kBlobs);

  const ByteSpan samples{blobs.data(), blobs.size()};
  (void)probe({data + at - std::min<size_t>(at, 64), std::min<size_t>(at, 64)});
  fix(rows, samples);
  blob_file.write(blobs.data(), blobs.size());
  const size_t records_size = rows.records.size() * sizeof(Record);
  std::vector<uint8_t> index(records_size + rows.heap.size());
  std::memcpy(index.data(), rows.records.data(), records_size);
  if (!rows.heap.empty())
    std::memcpy(index.data() + records_size, rows.heap.data(), rows.heap.size());
  index_file.write(index.data(), index.size());

  // Opened once: its size stays.
  static const auto files =
      std::make_shared<Files>(std::vector{blob_file.path}, std::vector<int64_t>{kBlobs});
  static const auto opened =
      std::make_shared<Files>(std::vector{index_file.path}, std::vector<int64_t>{-1}, true);
  // A folder without files: what has a path of its own is missing.
  const IndexedDataset dataset{files, rows.switches & kRoot ? "/nonexistent" : "", 8};
  const auto count = static_cast<int64_t>(rows.records.size());
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; i++) numbers.push_back(count - 1 - i);
  Extents extents(numbers.size());
  int error_number;
  const RecordTable records(dataset, opened, 0, count, static_cast<int64_t>(rows.heap.size()));
  if (!records.gather(numbers, extents, error_number).ok()) std::abort();
  for (Extent& extent : extents.extents) extent.check_size = true;
  use(extents, rows.switches & kCheck);
  return 0;
}
