// Scratch memory that grows and is reused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "common.h"

namespace fastdata {

/// Bytes aligned to 64. What it held is gone when it grows. Throws std::bad_alloc.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  template <typename T = uint8_t>
  T* get() const {
    return reinterpret_cast<T*>(data_);
  }

  /// At least `count` elements.
  template <typename T = uint8_t>
  T* reserve(size_t count) {
    const size_t size = count * sizeof(T);
    if (size > size_) {
      release();
      data_ = static_cast<uint8_t*>(::operator new(size, kAlignment));
      size_ = size;
    }
    return get<T>();
  }

  /// The same, all of it zero if it had to grow.
  template <typename T = uint8_t>
  T* reserve_zeroed(size_t count) {
    if (count * sizeof(T) > size_) {
      reserve<T>(count);
      for (size_t i = 0; i < size_; i++) data_[i] = 0;
    }
    return get<T>();
  }

  size_t size() const { return size_; }

  void release() {
    if (data_) ::operator delete(data_, kAlignment);
    data_ = nullptr;
    size_ = 0;
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fastdata
