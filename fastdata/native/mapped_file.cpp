#include "mapped_file.h"

#ifdef __linux__

#include <linux/magic.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace fastdata {
namespace {

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

/// Whether pages of the file are the page cache's own: no network, no user process, no second
/// cache between. There a map sees what `pread` would.
bool is_local(int descriptor) {
  struct statfs about{};
  if (fstatfs(descriptor, &about) != 0) return false;
  switch (static_cast<unsigned long>(about.f_type)) {
    case EXT4_SUPER_MAGIC:  // EXT2's and EXT3's, too
    case XFS_SUPER_MAGIC:
    case BTRFS_SUPER_MAGIC:
    case F2FS_SUPER_MAGIC:
    case OVERLAYFS_SUPER_MAGIC:
    case TMPFS_MAGIC:
      return true;
    default:
      return false;
  }
}

/// A copy in progress: the pages that may be missing, and where to go on if one is.
struct Guard {
  const uint8_t* begin;
  const uint8_t* end;
  sigjmp_buf place;
};

thread_local Guard* volatile guard = nullptr;
struct sigaction previous;

void on_bus_error(int number, siginfo_t* about, void* context) {
  Guard* const mine = guard;
  const auto* address = static_cast<const uint8_t*>(about->si_addr);
  if (mine && mine->begin <= address && address < mine->end) siglongjmp(mine->place, 1);
  // Not ours: what would have happened without us.
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(number, about, context);
  } else if (previous.sa_handler == SIG_DFL || previous.sa_handler == SIG_IGN) {
    sigaction(number, &previous, nullptr);  // and the instruction is tried again
  } else {
    previous.sa_handler(number);
  }
}

void catch_bus_errors() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    // Not blocked while it runs, since it may never return; on the stack that there is.
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
  });
}

/// memcpy, a sixth faster: the processor's own prefetching ends at each page.
void copy_pages(const uint8_t* from, size_t length, uint8_t* out) {
  constexpr size_t kPage = 4096, kLine = 64, kAhead = 2 * kPage;
  for (size_t at = 0; at < length; at += kPage) {
    const size_t soon = std::min(length, at + kAhead), later = std::min(length, soon + kPage);
    for (size_t line = soon; line < later; line += kLine) __builtin_prefetch(from + line, 0, 2);
    std::memcpy(out + at, from + at, std::min(kPage, length - at));
  }
}

}  // namespace

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::open(int descriptor, int64_t size) {
  if (size <= 0 || !is_local(descriptor)) return;
  void* data = mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) return;
  catch_bus_errors();
  data_ = static_cast<const uint8_t*>(data);
  size_ = static_cast<size_t>(size);
}

bool MappedFile::copy(int64_t offset, size_t length, uint8_t* out) const {
  if (!data_ || offset < 0 || static_cast<size_t>(offset) > size_ ||
      length > size_ - static_cast<size_t>(offset))
    return false;
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const uint8_t* const begin = data_ + static_cast<size_t>(offset) / page * page;
  const uint8_t* const end = data_ + offset + length;
  unsigned char resident[256];
  for (const uint8_t* at = begin; at < end; at += sizeof resident * page) {
    const size_t bytes = std::min(static_cast<size_t>(end - at), sizeof resident * page);
    if (mincore(const_cast<uint8_t*>(at), bytes, resident) != 0) return false;
    for (size_t i = 0; i < (bytes + page - 1) / page; i++)
      if (!(resident[i] & 1)) return false;
  }
  Guard mine{begin, end, {}};
  if (sigsetjmp(mine.place, /*savemask=*/0) != 0) {
    guard = nullptr;
    return false;
  }
  guard = &mine;
  copy_pages(data_ + offset, length, out);
  guard = nullptr;
  return true;
}

}  // namespace fastdata

#else

namespace fastdata {

MappedFile::~MappedFile() = default;
void MappedFile::open(int, int64_t) {}
bool MappedFile::copy(int64_t, size_t, uint8_t*) const { return false; }

}  // namespace fastdata

#endif
