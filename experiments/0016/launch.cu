// The kernel on a GPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "entropy.cuh"

namespace gpu {

Events events;  // none are counted
Spent spent;

namespace {

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(3);
}

/// Memory of the device, for `size` values; the copy of `from` if there is one, else zeros.
template <typename T>
class Memory {
 public:
  Memory(size_t size, const T* from) {
    check(cudaMalloc(&data_, size ? size * sizeof(T) : 1));
    check(from ? cudaMemcpy(data_, from, size * sizeof(T), cudaMemcpyHostToDevice)
               : cudaMemset(data_, 0, size * sizeof(T)));
  }
  explicit Memory(const std::vector<T>& from) : Memory(from.size(), from.data()) {}
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  T* get() const { return data_; }
  void copy_to(std::vector<T>& to) const {
    check(cudaMemcpy(to.data(), data_, to.size() * sizeof(T), cudaMemcpyDeviceToHost));
  }

 private:
  T* data_ = nullptr;
};

/// Milliseconds between moments of the device.
class Clock {
 public:
  Clock() {
    check(cudaEventCreate(&from_));
    check(cudaEventCreate(&to_));
    check(cudaEventRecord(from_));
  }
  ~Clock() {
    cudaEventDestroy(from_);
    cudaEventDestroy(to_);
  }
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;

  /// Since the last call, or since this was made; waits for the device.
  float lap() {
    float passed = 0;
    check(cudaEventRecord(to_));
    check(cudaEventSynchronize(to_));
    check(cudaEventElapsedTime(&passed, from_, to_));
    std::swap(from_, to_);
    return passed;
  }

 private:
  cudaEvent_t from_, to_;
};

}  // namespace

void decode(const HostBatch& host, Decoded& out) {
  if (host.images.empty()) return;
  std::vector<uint8_t> bytes = host.bytes;
  bytes.resize((bytes.size() + 3) / 4 * 4);
  out.coefficients.resize(size_t{host.block_count} * kBlockSize);
  out.results.resize(host.segments.size());
  Clock clock;
  const Memory<uint8_t> words(bytes);
  const Memory<Image> images(host.images);
  const Memory<Segment> segments(host.segments);
  spent.copied = clock.lap();
  const Memory<int16_t> coefficients(out.coefficients.size(), nullptr);
  const Memory<Result> results(out.results.size(), nullptr);
  spent.cleared = clock.lap();
  const Batch batch = {reinterpret_cast<const uint32_t*>(words.get()),
                       static_cast<uint32_t>(host.bytes.size()),
                       images.get(),
                       static_cast<uint32_t>(host.images.size()),
                       segments.get(),
                       static_cast<uint32_t>(host.segments.size()),
                       coefficients.get(),
                       host.block_count,
                       results.get()};
  decode_entropy<<<batch.image_count, kThreads>>>(batch);
  check(cudaGetLastError());
  spent.decoded = clock.lap();
  coefficients.copy_to(out.coefficients);
  results.copy_to(out.results);
}

}  // namespace gpu
