// Samples by where they lie and what they are; and the bytes that lie there, read and checked.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "buffer.h"
#include "common.h"
#include "io/files.h"
#include "resample/turned.h"
#include "status.h"

namespace fastdata {

// The encodings that an index may name, in the order of their codes (docs/formats/index.md):
// once for C++ and for Python (`_native.ENCODINGS`).
inline constexpr const char* kEncodingNames[] = {
    "raw",   // pixels, uint8, height x width x 3, RGB
    "jpeg",  // Huffman-coded, sequential, 8 bits a sample
    "jpeg-progressive",
    "jpeg-other",  // any other that Pillow decodes: lossless
    "png",
    "webp",
    "bmp",
    "gif",
    "tiff",
    "ppm",
    "other",  // anything else that is decoded, and codes that are not known
    "avif",
    "heic",
    "jxl",
    "jpeg-arithmetic",  // sequential or progressive, 8 bits a sample
};

constexpr int8_t encoding_code(std::string_view name) {
  int8_t code = 0;
  while (kEncodingNames[code] != name) code++;  // an unknown name does not compile
  return code;
}

// Those that the core knows.
constexpr int8_t kUnknownEncoding = -1;
constexpr int8_t kRawEncoding = encoding_code("raw");
constexpr int8_t kJpegEncoding = encoding_code("jpeg");
constexpr int8_t kProgressiveEncoding = encoding_code("jpeg-progressive");
constexpr int8_t kOtherEncoding = encoding_code("other");

/// Whether the core decodes images of that encoding, or has to look.
constexpr bool is_native(int8_t encoding) { return encoding <= kProgressiveEncoding; }

/// The encoding of a row; unknown codes are for a decoder that looks at the bytes.
constexpr int8_t known_encoding(uint8_t code) {
  return code < std::size(kEncodingNames) ? static_cast<int8_t>(code) : kOtherEncoding;
}

struct Extent {
  int32_t table = 0;       // of `tables`: what the numbers here are of
  int32_t file = -1;       // of its files, or -1: a file of its own
  size_t path = SIZE_MAX;  // of that, in `paths`; else none
  int64_t offset = 0;
  int64_t length = -1;  // -1: the whole file
  bool has_crc = false;
  uint32_t crc = 0;
  ByteSpan seek_points;  // empty: none, or in the index
  int64_t table_at = 0;  // where in the index they are
  uint32_t table_size = 0;
  bool learnt = false;     // they are in the file of learnt ones instead
  int64_t row = -1;        // its number there
  bool has_stamp = false;  // the seek points are of the file as it was then
  FileStamp stamp;
  bool check_size = false;        // a JPEG of another size or orientation fails
  int8_t orientation = 0;         // as SampleImage's: then the sizes are the upright image's
  const char* corrupt = nullptr;  // why its index row cannot be used
  bool in_memory = false;         // its bytes are here already, not to be read from the file
  ByteSpan memory;                // all of them; if there are `rows`, the first ones
  ByteSpan rows;                  // those from `rows_at` on
  size_t rows_at = 0;

  bool is_partial() const { return in_memory && rows.size > 0; }
};

/// The part that extents of one dataset share.
struct SharedFiles {
  std::shared_ptr<Files> files;
  std::shared_ptr<Files> index;   // null: none
  std::shared_ptr<Files> learnt;  // null: none
  uint32_t seed = 0;              // of the checksums in both (io/record.h)
};

/// N samples. The caller owns the memory of the seek points and bytes.
struct Extents {
  explicit Extents(size_t count);

  size_t size() const { return extents.size(); }
  const char* path(size_t i) const;  // "" where the index gives none
  /// Gives sample i a file of its own.
  void set_path(size_t i, const std::string& path);
  /// Copies another's samples to these slots, in its order. Spans still point to its memory.
  void place(const Extents& part, const std::vector<int64_t>& slots);

  /// Makes the stored size of sample i, whose orientation is known, the upright image's.
  void turn_size(size_t i) {
    if (Turn(extents[i].orientation).exchanged) std::swap(widths[i], heights[i]);
  }

  const SharedFiles& shared(size_t i) const { return tables[extents[i].table]; }

  std::vector<Extent> extents;
  std::vector<SharedFiles> tables;  // none where all samples have files of their own
  std::string paths;                // each followed by a zero
  std::vector<int64_t> labels;
  std::vector<int32_t> widths, heights;  // 0: unknown
  std::vector<int8_t> encodings;
  std::vector<uint8_t> seekable;
};

/// Fills in where the learnt seek points of a row are, if there are any.
void find_learnt(const OpenFile& learnt, int64_t row, Extent& extent);

/// Reads samples into memory that it keeps for the next. For one thread.
class BlobReader {
 public:
  /// The whole sample, valid until the next call; its checksum is checked if `check`.
  /// Throws std::bad_alloc.
  Status read(const Extents& extents, size_t i, bool check, ByteSpan& blob);

  /// Reads some parts of a sample, ascending, without checks; other bytes of `blob` have any value.
  /// False in `read`: it has another size, its file is not the one of its seek points, or not all
  /// parts are in memory.
  Status read_parts(const Extents& extents, size_t i, size_t size,
                    const std::vector<ByteRange>& parts, ByteSpan& blob, bool& read);

  /// At most the first `count` bytes of it; `whole` tells whether that is all.
  Status read_head(const Extents& extents, size_t i, size_t count, ByteSpan& head, bool& whole);

  /// The seek points of a sample whose extent says where in the index they are; valid until the
  /// next call. They are checked; damaged ones that were learnt are none. Throws std::bad_alloc.
  Status read_table(const Extents& extents, size_t i, ByteSpan& table);

  /// Stamp of the file that the last call read; for bytes in memory, their number.
  const FileStamp& stamp() const { return stamp_; }

  /// Bytes of samples and seek points that all calls read.
  uint64_t bytes_read() const { return bytes_read_; }

  /// errno of the last call that failed; 0 if the system reported no error.
  int error_number() const { return error_number_; }

  /// Frees what a very large sample needed.
  void trim();

 private:
  Status open(const Extents& extents, size_t i, std::shared_ptr<OpenFile>& file, int64_t& length);

  Status read_file(const OpenFile& file, int64_t offset, size_t length, uint8_t* out);

  Buffer buffer_, table_;
  uint64_t bytes_read_ = 0;
  FileStamp stamp_;
  int error_number_ = 0;
};

/// Joins parts that lie so close together that one call for both costs less than two.
void join_parts(std::vector<ByteRange>& parts);

/// The calling thread's own reader.
BlobReader& thread_reader();

/// Asks the system to read ahead the samples that lie in shared files and are not skipped.
void will_need(const Extents& extents, const std::vector<uint8_t>& skip);

/// The same of parts of one sample.
void will_need(const Extents& extents, size_t i, const std::vector<ByteRange>& parts);

}  // namespace fastdata
