// Files that are read by many threads: opened on demand, kept open, closed when too many.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common.h"
#include "status.h"

namespace fastdata {

/// A file's identity: if either differs, the file was changed.
struct FileStamp {
  int64_t size = -1;
  int64_t mtime_ns = 0;  // since 1970

  bool operator==(const FileStamp& other) const {
    return size == other.size && mtime_ns == other.mtime_ns;
  }
};

/// A descriptor for reading that closes with the last who holds it.
class OpenFile {
 public:
  OpenFile(int descriptor, const FileStamp& stamp) : descriptor_(descriptor), stamp_(stamp) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // When it was opened.
  int64_t size() const { return stamp_.size; }
  const FileStamp& stamp() const { return stamp_; }

  /// `pread` until `length` bytes are there; `cut_short` if the file ends before.
  /// `error_number` gets errno where reading failed.
  Status read(int64_t offset, size_t length, uint8_t* out, int& error_number) const;

  /// Asks the system to read ahead.
  void will_need(int64_t offset, int64_t length) const;

 private:
  int descriptor_;
  FileStamp stamp_;
};

/// Opens a regular file; `error_number` gets errno where that failed.
Status open_file(const char* path, std::shared_ptr<OpenFile>& file, int& error_number);

/// Another descriptor of a file that is open; `error_number` gets errno where there is none.
Status duplicate_file(int descriptor, std::shared_ptr<OpenFile>& file, int& error_number);

/// The files of a dataset. For any number of threads; works on after a fork.
class Files {
 public:
  /// A file whose size is not the one given is not read. At most `most_open` are kept open.
  Files(std::vector<std::string> paths, std::vector<int64_t> sizes, size_t most_open);
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  size_t count() const { return paths_.size(); }
  const std::string& path(size_t number) const { return paths_[number]; }
  int64_t size(size_t number) const { return sizes_[number]; }

  Status open(size_t number, std::shared_ptr<OpenFile>& file, int& error_number);

 private:
  struct Cache;
  Cache& cache();

  std::vector<std::string> paths_;
  std::vector<int64_t> sizes_;
  size_t most_open_;
  std::atomic<Cache*> cache_;
};

}  // namespace fastdata
