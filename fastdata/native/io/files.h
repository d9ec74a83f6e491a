// Files that are read by many threads: opened on demand, and closed when the process has too many.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
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
  OpenFile(int descriptor, const FileStamp& stamp, uint64_t inode)
      : descriptor_(descriptor), stamp_(stamp), inode_(inode) {}
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  // When it was opened.
  int64_t size() const { return stamp_.size; }
  const FileStamp& stamp() const { return stamp_; }
  uint64_t inode() const { return inode_; }

  /// Whether the inode tells files apart: drivers in user space, such as of buckets, give a
  /// file another one each time. Asks the server of a network disk.
  bool has_inode() const;

  /// Its stamp now; one that no file has if the system cannot tell.
  FileStamp current_stamp() const;

  /// `pread` until `length` bytes are there; `cut_short` if the file ends before.
  /// `error_number` gets errno where reading failed.
  Status read(int64_t offset, size_t length, uint8_t* out, int& error_number) const;

  /// Asks the system to read ahead.
  void will_need(int64_t offset, int64_t length) const;

 private:
  int descriptor_;
  FileStamp stamp_;
  uint64_t inode_;
};

/// Opens a regular file; `error_number` gets errno where that failed.
Status open_file(const char* path, std::shared_ptr<OpenFile>& file, int& error_number);

/// Closes half of the files that are kept open, those used longest ago; whether there were any.
bool close_files();

/// Files of one dataset. Of all datasets together, the process keeps a quarter of the files open
/// that its limit allows: those used last. For any number of threads; works on after a fork.
class Files {
 public:
  /// A file whose size is not the one given is not read; -1: any size. A file that was closed and
  /// opened again must be the same one. If it `grows`, only its size and time may differ.
  Files(std::vector<std::string> paths, std::vector<int64_t> sizes, bool grows = false)
      : paths_(std::move(paths)), sizes_(std::move(sizes)), grows_(grows) {}
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  size_t count() const { return paths_.size(); }
  const std::string& path(size_t number) const { return paths_[number]; }
  int64_t size(size_t number) const { return sizes_[number]; }

  Status open(size_t number, std::shared_ptr<OpenFile>& file, int& error_number);

 private:
  friend struct KeptFiles;
  struct Known;
  struct Kept {
    std::shared_ptr<OpenFile> file;
    Known* known;
  };
  /// A file that was opened before.
  struct Known {
    FileStamp stamp;
    uint64_t inode = 0;
    bool is_open = false;
    std::list<Kept>::iterator kept;  // if it is
  };

  std::vector<std::string> paths_;
  std::vector<int64_t> sizes_;
  bool grows_;
  std::unordered_map<size_t, Known> known_;
};

}  // namespace fastdata
