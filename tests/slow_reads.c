/* Makes a folder's storage slow for a process: LD_PRELOAD it. Each read of a file below
   $SLOW_FOLDER really takes $SLOW_US microseconds more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static ssize_t slow(const char* name, int fd, void* out, size_t size, off_t offset) {
  char link[64], path[4096];
  const char* folder = getenv("SLOW_FOLDER");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length > 0 ? length : 0] = 0;
  if (folder && strncmp(path, folder, strlen(folder)) == 0) usleep(atoi(getenv("SLOW_US")));
  ssize_t (*real)(int, void*, size_t, off_t) = dlsym(RTLD_NEXT, name);
  return real(fd, out, size, offset);
}

ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  return slow("pread", fd, out, size, offset);
}

ssize_t pread64(int fd, void* out, size_t size, off_t offset) {
  return slow("pread64", fd, out, size, offset);
}
