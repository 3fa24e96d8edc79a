#include "rank_output.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "log.h"

enum { LINE_BYTES = 64 };

/* Arrays begin on lines of their own, so that ranks do not share one. */
static size_t room(const rank_array *array) {
  return (array->bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

int rank_memory_map(const rank_array *arrays, size_t count, void **base, size_t *bytes) {
  size_t total = LINE_BYTES; /* a mapping is never empty */
  for (size_t i = 0; i < count; i++) total += room(&arrays[i]);
  void *map = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return log_fail(TOOL_FAILED, "%zu bytes of shared memory: %s", total, strerror(errno));
  char *at = map;
  for (size_t i = 0; i < count; i++) {
    *arrays[i].field = at;
    at += room(&arrays[i]);
  }
  *base = map;
  *bytes = total;
  return TOOL_OK;
}

int rank_output_open(const char *path, const dt_tensor_spec *spec, dt_tensor_writer **writer) {
  struct stat status;
  if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
    return log_fail(TOOL_USAGE, "--output: %s: not a regular file; allowed: a new file, or one to replace", path);
  dt_status result = dt_tensor_writer_create(path, spec, 1, writer);
  return result ? log_status(result, NULL) : TOOL_OK;
}

int rank_output_commit(dt_tensor_writer **writer, int code) {
  if (code == TOOL_OK) code = log_flush();
  if (code != TOOL_OK) return code;
  dt_status status = dt_tensor_writer_commit(*writer);
  *writer = NULL;
  return status ? log_status(status, NULL) : TOOL_OK;
}
