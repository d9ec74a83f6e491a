// The kernel on the host: a thread at a time, from one barrier to the next. The device's memory is
// the heap's, of exactly the size that the kernel was told, so that a sanitizer sees a read or
// write beyond it. Shared memory holds garbage when a thread block begins. Threads take their turns
// in either order, so that one that leans on another's work before the barrier is found out.
#include <cstring>
#include <memory>

#include "batch.h"

#define __device__
#define __global__
#define __syncthreads() (void)0  // FASTDATA_THREADS ends when all threads have
#define FASTDATA_THREADS for (Turns turns; turns.next();)
#define FASTDATA_EVENT(name) events.name++
#define FASTDATA_SHARED(Type, name)           \
  const auto name##_memory = garbage<Type>(); \
  Type& name = *name##_memory

namespace {

struct Index {
  uint32_t x = 0;
};
Index threadIdx, blockIdx, blockDim;
bool backwards = false;

/// Gives each thread of a block its turn.
struct Turns {
  uint32_t taken = 0;
  bool next() {
    threadIdx.x = backwards ? blockDim.x - 1 - taken : taken;
    return taken++ < blockDim.x;
  }
};

template <typename T>
std::unique_ptr<T> garbage() {
  auto made = std::make_unique<T>();
  std::memset(static_cast<void*>(made.get()), 0xA5, sizeof(T));
  return made;
}

/// The bytes of `word` that the selector's digits name.
uint32_t __byte_perm(uint32_t word, uint32_t, uint32_t selector) {
  uint32_t out = 0;
  for (int i = 0; i < 4; i++) out |= (word >> (selector >> 4 * i & 3) * 8 & 0xFF) << 8 * i;
  return out;
}

}  // namespace

#include "entropy.cuh"

namespace gpu {

Events events;
Spent spent;  // stays zero

void decode(const HostBatch& host, Decoded& out) {
  // Copies, which have no room to spare as vectors that grew have.
  const std::vector<Image> images(host.images);
  const std::vector<Segment> segments(host.segments);
  std::vector<uint32_t> words((host.bytes.size() + 3) / 4);
  if (!words.empty()) std::memcpy(words.data(), host.bytes.data(), host.bytes.size());
  out.coefficients = std::vector<int16_t>(size_t{host.block_count} * kBlockSize);
  out.results = std::vector<Result>(segments.size());
  const Batch batch = {words.data(),
                       static_cast<uint32_t>(host.bytes.size()),
                       images.data(),
                       static_cast<uint32_t>(images.size()),
                       segments.data(),
                       static_cast<uint32_t>(segments.size()),
                       out.coefficients.data(),
                       host.block_count,
                       out.results.data()};
  backwards = !backwards;
  blockDim.x = kThreads;
  for (blockIdx.x = 0; blockIdx.x < batch.image_count; blockIdx.x++) decode_entropy(batch);
}

}  // namespace gpu
