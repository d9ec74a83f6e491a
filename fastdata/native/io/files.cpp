#include "io/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <mutex>
#include <system_error>
#include <unordered_map>

namespace fastdata {
namespace {

/// The system's words for an error, in memory that is never freed.
const char* error_text(int number) {
  static const auto* texts = [] {
    auto* all = new std::array<std::string, 256>;
    for (size_t i = 0; i < all->size(); i++)
      (*all)[i] = std::generic_category().message(static_cast<int>(i));
    return all;
  }();
  const bool known = number >= 0 && static_cast<size_t>(number) < texts->size();
  return known ? (*texts)[number].c_str() : "an unknown error";
}

Status io_failure(int number) {
  const bool missing = number == ENOENT || number == ENOTDIR;
  return {missing ? Code::file_missing : Code::file_unreadable, error_text(number)};
}

FileStamp stamp_of(const struct stat& about) {
#ifdef __APPLE__
  const timespec& changed = about.st_mtimespec;
#else
  const timespec& changed = about.st_mtim;
#endif
  return {static_cast<int64_t>(about.st_size),
          static_cast<int64_t>(changed.tv_sec) * 1'000'000'000 + changed.tv_nsec};
}

}  // namespace

OpenFile::~OpenFile() { close(descriptor_); }

Status OpenFile::read(int64_t offset, size_t length, uint8_t* out, int& error_number) const {
  while (length > 0) {
    const ssize_t got = pread(descriptor_, out, length, offset);
    if (got < 0) {
      if (errno == EINTR) continue;
      error_number = errno;
      return io_failure(error_number);
    }
    if (got == 0) return {Code::cut_short, "the file ends before the sample does"};
    out += got;
    offset += got;
    length -= static_cast<size_t>(got);
  }
  return {};
}

void OpenFile::will_need(int64_t offset, int64_t length) const {
#ifdef POSIX_FADV_WILLNEED
  (void)posix_fadvise(descriptor_, offset, length, POSIX_FADV_WILLNEED);
#else
  (void)offset, (void)length;
#endif
}

Status open_file(const char* path, std::shared_ptr<OpenFile>& file, int& error_number) {
  int descriptor;
  // Not blocking: a pipe of that name would wait for a writer.
  do descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  while (descriptor < 0 && errno == EINTR);
  struct stat about{};
  if (descriptor < 0 || fstat(descriptor, &about) != 0) {
    error_number = errno;
    if (descriptor >= 0) close(descriptor);
    return io_failure(error_number);
  }
  file = std::make_shared<OpenFile>(descriptor, stamp_of(about));
  if (S_ISREG(about.st_mode)) return {};
  file.reset();
  if (!S_ISDIR(about.st_mode)) return {Code::file_unreadable, "not a regular file"};
  error_number = EISDIR;
  return io_failure(error_number);
}

Status duplicate_file(int descriptor, std::shared_ptr<OpenFile>& file, int& error_number) {
  const int own = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  struct stat about{};
  if (own < 0 || fstat(own, &about) != 0) {
    error_number = errno;
    if (own >= 0) close(own);
    return io_failure(error_number);
  }
  file = std::make_shared<OpenFile>(own, stamp_of(about));
  return {};
}

/// Belongs to the process that made it: in a forked child the lock may be in any state.
struct Files::Cache {
  pid_t owner = getpid();
  std::mutex mutex;
  std::unordered_map<size_t, std::shared_ptr<OpenFile>> open;
  std::deque<size_t> order;  // in which they were opened
};

Files::Files(std::vector<std::string> paths, std::vector<int64_t> sizes, size_t most_open)
    : paths_(std::move(paths)),
      sizes_(std::move(sizes)),
      most_open_(most_open),
      cache_(new Cache) {}

Files::~Files() {
  // After a fork the parent's cache is left alone, for good, as Engine leaves its pool.
  Cache* cache = cache_.load();
  if (cache->owner == getpid()) delete cache;
}

Files::Cache& Files::cache() {
  Cache* current = cache_.load(std::memory_order_acquire);
  if (current->owner == getpid()) return *current;
  auto fresh = std::make_unique<Cache>();
  if (cache_.compare_exchange_strong(current, fresh.get())) return *fresh.release();
  return *current;  // another thread was first
}

Status Files::open(size_t number, std::shared_ptr<OpenFile>& file, int& error_number) {
  Cache& kept = cache();
  {
    const std::lock_guard<std::mutex> lock(kept.mutex);
    if (const auto found = kept.open.find(number); found != kept.open.end()) {
      file = found->second;
      return {};
    }
  }
  // Without the lock: other files need not wait for this one's disk.
  if (Status s = open_file(paths_[number].c_str(), file, error_number); !s.ok()) return s;
  if (file->size() != sizes_[number]) {
    const bool shorter = file->size() < sizes_[number];
    file.reset();
    if (shorter) return {Code::cut_short, "the file is shorter than when it was packed"};
    return {Code::changed, "the file is longer than when it was packed"};
  }
  std::shared_ptr<OpenFile> oldest;  // closed, if nobody else holds it, after the lock
  const std::lock_guard<std::mutex> lock(kept.mutex);
  const auto [at, inserted] = kept.open.emplace(number, file);
  if (!inserted) {
    file = at->second;
    return {};
  }
  kept.order.push_back(number);
  if (kept.order.size() > most_open_) {
    const auto first = kept.open.find(kept.order.front());
    oldest = std::move(first->second);
    kept.open.erase(first);
    kept.order.pop_front();
  }
  return {};
}

}  // namespace fastdata
