// A file's bytes in the address space, copied from there while they are in memory.
//
// The system's read pays for each page of 4 KiB beside the copying: 25 us for 112 kB where the
// page cache has single pages, as it has of what was written or read in random order. A copy
// from a map takes 11. What a map costs in trust is bought back: a page that cannot be had (the
// file was cut short, its disk fails) raises SIGBUS, which ends the process unless it is caught;
// `copy` catches it, and leaves it to `pread` to say what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastdata {

/// For any number of threads, also after a fork.
class MappedFile {
 public:
  MappedFile() = default;
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  /// Maps `size` bytes of the file, if it lies on a file system of this machine. Else, and where
  /// the system has no maps to give, nothing is mapped, and nothing can be copied.
  void open(int descriptor, int64_t size);

  /// Copies bytes that are in memory. False: some are not, or are not to be had; what was
  /// written to `out` is void. For reading these, `pread` reads ahead as it should, and tells
  /// what is wrong.
  bool copy(int64_t offset, size_t length, uint8_t* out) const;

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastdata
