/* Faults of disks and clocks, for a process that LD_PRELOADs this and calls set_faults: reads and
   writes of files below a folder fail or do a part of their work, and the time of day jumps. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ_EIO = 1, READ_SHORT = 2, WRITE_ENOSPC = 4, WRITE_SHORT = 8, SYNC_EIO = 16, CLOCK = 32 };

static int faults;        /* of the above */
static unsigned one_in;   /* calls, of those that may fail, fails one on average */
static char folder[4096]; /* whose files they are */
static atomic_uint state, happened;

void set_faults(int which, unsigned rare, unsigned seed, const char* path) {
  faults = 0;
  one_in = rare;
  state = seed * 2654435769u + 1;
  happened = 0;
  snprintf(folder, sizeof folder, "%s", path);
  faults = which;
}

unsigned faults_happened(void) { return happened; }

static unsigned draw(void) { /* of a linear congruential generator, the upper bits */
  return (state = state * 1664525u + 1013904223u) >> 8;
}

static int fails(int which, int fd) {
  char link[64], path[4096];
  if (!(faults & which) || draw() % one_in) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  if (strncmp(path, folder, strlen(folder))) return 0;
  happened++;
  return 1;
}

static size_t part(size_t size) { return size > 1 ? 1 + draw() % (size - 1) : size; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define READS(name, parameters, ...)                 \
  ssize_t name parameters {                          \
    if (fails(READ_EIO, fd)) return errno = EIO, -1; \
    if (fails(READ_SHORT, fd)) size = part(size);    \
    return REAL(name)(__VA_ARGS__);                  \
  }

#define WRITES(name, parameters, ...)                       \
  ssize_t name parameters {                                 \
    if (fails(WRITE_ENOSPC, fd)) return errno = ENOSPC, -1; \
    if (fails(WRITE_SHORT, fd)) size = part(size);          \
    return REAL(name)(__VA_ARGS__);                         \
  }

READS(read, (int fd, void* out, size_t size), fd, out, size)
READS(pread, (int fd, void* out, size_t size, off_t at), fd, out, size, at)
READS(pread64, (int fd, void* out, size_t size, off64_t at), fd, out, size, at)
WRITES(write, (int fd, const void* data, size_t size), fd, data, size)
WRITES(pwrite, (int fd, const void* data, size_t size, off_t at), fd, data, size, at)
WRITES(pwrite64, (int fd, const void* data, size_t size, off64_t at), fd, data, size, at)

#define FULL(name, parameters, ...)                         \
  ssize_t name parameters {                                 \
    if (fails(WRITE_ENOSPC, fd)) return errno = ENOSPC, -1; \
    return REAL(name)(__VA_ARGS__);                         \
  }

FULL(writev, (int fd, const struct iovec* data, int count), fd, data, count)
FULL(pwritev, (int fd, const struct iovec* data, int count, off_t at), fd, data, count, at)
FULL(pwritev64, (int fd, const struct iovec* data, int count, off64_t at), fd, data, count, at)

int fsync(int fd) { return fails(SYNC_EIO, fd) ? errno = EIO, -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails(SYNC_EIO, fd) ? errno = EIO, -1 : REAL(fdatasync)(fd); }

/* Python asks for the time of day by this alone. */
int clock_gettime(clockid_t clock, struct timespec* out) {
  int result = REAL(clock_gettime)(clock, out);
  if (clock == CLOCK_REALTIME && faults & CLOCK && draw() % one_in == 0) {
    out->tv_sec += (time_t)(draw() % 20000000) - 10000000; /* up to 115 days */
    happened++;
  }
  return result;
}
