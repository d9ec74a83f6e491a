#include "io/files.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <system_error>

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

bool is_too_many(int number) { return number == EMFILE || number == ENFILE; }

Status io_failure(int number) {
  if (is_too_many(number)) return {Code::too_many_files, error_text(number)};
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

/// Not blocking: a pipe of that name would wait for a writer.
int open_descriptor(const char* path) {
  for (bool again = true;; again = false) {
    int descriptor;
    do descriptor = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (descriptor < 0 && errno == EINTR);
    if (descriptor >= 0 || !again || !is_too_many(errno) || !close_files()) return descriptor;
  }
}

size_t most_open() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  // The rest is the program's: sockets, pipes of workers, tensors in shared memory.
  return std::max<size_t>(static_cast<size_t>(limit.rlim_cur) / 4, 1);
}

}  // namespace

/// The files of all `Files` that are kept open.
struct KeptFiles {
  KeptFiles() {
    // A child must find neither a locked mutex nor a list that a thread of its parent changed.
    pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                   [] { all().mutex.unlock(); });
  }

  static KeptFiles& all() {
    static auto* const one = new KeptFiles;  // threads may outlive it else
    return *one;
  }

  bool close_half() {
    std::list<Files::Kept> closed;
    const std::lock_guard<std::mutex> lock(mutex);
    shrink(order.size() / 2, closed);
    return !closed.empty();
  }

  /// Closes all but some, in whose place `closed` gets them: they close without the lock.
  void shrink(size_t most, std::list<Files::Kept>& closed) {
    while (order.size() > most) {
      order.front().known->is_open = false;
      closed.splice(closed.end(), order, order.begin());
    }
  }

  std::mutex mutex;              // also of what is known in each `Files`
  std::list<Files::Kept> order;  // the one used last at the end
};

OpenFile::~OpenFile() { close(descriptor_); }

FileStamp OpenFile::current_stamp() const {
  struct stat about{};
  return fstat(descriptor_, &about) == 0 ? stamp_of(about) : FileStamp{};
}

bool OpenFile::has_inode() const {
#ifdef __linux__
  constexpr auto kFuse = 0x65735546;
  struct statfs about{};
  return fstatfs(descriptor_, &about) == 0 && about.f_type != kFuse;
#else
  return true;
#endif
}

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
  const int descriptor = open_descriptor(path);
  struct stat about{};
  if (descriptor < 0 || fstat(descriptor, &about) != 0) {
    error_number = errno;
    if (descriptor >= 0) close(descriptor);
    return io_failure(error_number);
  }
  file = std::make_shared<OpenFile>(descriptor, stamp_of(about), about.st_ino);
  if (S_ISREG(about.st_mode)) return {};
  file.reset();
  if (!S_ISDIR(about.st_mode)) return {Code::file_unreadable, "not a regular file"};
  error_number = EISDIR;
  return io_failure(error_number);
}

bool close_files() { return KeptFiles::all().close_half(); }

Files::~Files() {
  KeptFiles& all = KeptFiles::all();
  std::list<Kept> closed;
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [number, known] : known_)
    if (known.is_open) closed.splice(closed.end(), all.order, known.kept);
}

Status Files::open(size_t number, std::shared_ptr<OpenFile>& file, int& error_number) {
  KeptFiles& all = KeptFiles::all();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (const auto found = known_.find(number); found != known_.end() && found->second.is_open) {
      all.order.splice(all.order.end(), all.order, found->second.kept);
      file = found->second.kept->file;
      return {};
    }
  }
  // Without the lock: other files need not wait for this one's disk.
  if (Status s = open_file(paths_[number].c_str(), file, error_number); !s.ok()) return s;
  if (sizes_[number] >= 0 && file->size() != sizes_[number]) {
    const bool shorter = file->size() < sizes_[number];
    file.reset();
    if (shorter) return {Code::cut_short, "the file is shorter than when it was packed"};
    return {Code::changed, "the file is longer than when it was packed"};
  }
  std::list<Kept> closed;
  const size_t most = most_open();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto [at, is_new] = known_.try_emplace(number);
  Known& known = at->second;
  if (is_new) known.stamp = file->stamp(), known.inode = file->inode();
  if (known.is_open) {  // another thread was first
    file = known.kept->file;
    return {};
  }
  const bool is_other = known.inode != file->inode() && file->has_inode();
  if (is_other || !(grows_ || known.stamp == file->stamp())) {
    file.reset();
    return {Code::changed, "the file is not the one that was opened first"};
  }
  known.is_open = true;
  known.kept = all.order.insert(all.order.end(), {file, &known});
  all.shrink(most, closed);
  return {};
}

}  // namespace fastdata
