#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <jansson.h>

#include "core/error.h"
#include "file.h"

/* The file reads its own header back through the reader, so that both agree on every offset. */
struct dt_tensor_writer {
  int fd;
  pid_t creator;      /* 0: joined */
  char *path;         /* that the file will have */
  char *temporary;    /* its name until then; NULL: it has none (O_TMPFILE) */
  char *handle;       /* "<where it can be opened>\n<path>" */
  void *map;          /* of the whole file; only the header is ever touched */
  size_t map_bytes;   /* 0: not mapped yet */
  dt_tensor_file *in; /* parsed from the map */
};

static dt_status io_error(const char *path, const char *what, int error) {
  return dt_fail(error == ENOMEM ? DT_ERR_MEMORY : DT_ERR_IO, "%s: %s: %s", path, what, strerror(error));
}

static void release(dt_tensor_writer *writer) {
  dt_tensor_file_close(writer->in);
  if (writer->map_bytes) munmap(writer->map, writer->map_bytes);
  if (writer->fd >= 0) close(writer->fd);
  free(writer->path);
  free(writer->temporary);
  free(writer->handle);
  free(writer);
}

static dt_status spec_bytes(const dt_tensor_spec *spec, uint64_t *bytes) {
  if (!spec->name || !dt_safetensors_dtype_name(spec->dtype)) {
    return dt_fail(DT_ERR_ARGUMENT,
                   "tensor '%s': dtype %d cannot be written; allowed are f32, bf16, f16, f8_e4m3, i64, "
                   "i32, u8 and f64",
                   spec->name ? spec->name : "", (int)spec->dtype);
  }
  if (spec->dims < 0 || spec->dims > DT_TENSOR_MAX_DIMS) {
    return dt_fail(DT_ERR_ARGUMENT, "tensor '%s': %d dimensions; 0 to %d are allowed", spec->name, spec->dims,
                   DT_TENSOR_MAX_DIMS);
  }
  uint64_t total = dt_dtype_bytes(spec->dtype);
  for (int32_t i = 0; i < spec->dims; i++) {
    if (spec->shape[i] < 0 || __builtin_mul_overflow(total, (uint64_t)spec->shape[i], &total) ||
        total > INT64_MAX / 2) {
      char shape[128];
      return dt_fail(DT_ERR_ARGUMENT, "tensor '%s': shape %s: sizes must be >= 0 and their product a file's size",
                     spec->name, dt_shape_text(spec->shape, spec->dims, shape, sizeof shape));
    }
  }
  *bytes = total;
  return DT_OK;
}

static dt_status add_header_entry(json_t *header, const dt_tensor_spec *spec, uint64_t begin, uint64_t end) {
  if (json_object_get(header, spec->name)) {
    return dt_fail(DT_ERR_ARGUMENT, "tensor '%s': given twice; names must differ", spec->name);
  }
  errno = 0;
  json_t *shape = json_array();
  int failed = 0;
  for (int32_t i = 0; i < spec->dims; i++) failed |= json_array_append_new(shape, json_integer(spec->shape[i]));
  json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", dt_safetensors_dtype_name(spec->dtype), "shape", shape,
                            "data_offsets", (json_int_t)begin, (json_int_t)end);
  failed |= !entry || json_object_set_new(header, spec->name, entry);
  if (failed && errno == ENOMEM) return dt_fail(DT_ERR_MEMORY, "no memory for the header of a tensor file");
  if (failed) {
    return dt_fail(DT_ERR_ARGUMENT, "tensor name '%s': must be UTF-8", spec->name);
  }
  return DT_OK;
}

/* The header text, padded so that data starts 8-byte aligned; wide elements first, so that all data is aligned. */
static dt_status make_header(const dt_tensor_spec *tensors, size_t count, char **text, uint64_t *data_bytes) {
  uint64_t at = 0;
  json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
  dt_status status = header ? DT_OK : dt_fail(DT_ERR_MEMORY, "no memory for the header of a tensor file");
  for (size_t width = 8; width > 0 && status == DT_OK; width /= 2) {
    for (size_t i = 0; i < count && status == DT_OK; i++) {
      uint64_t bytes = 0;
      status = spec_bytes(&tensors[i], &bytes);
      if (status != DT_OK || dt_dtype_bytes(tensors[i].dtype) != width) continue;
      if (bytes > INT64_MAX / 2 - at) {
        status = dt_fail(DT_ERR_ARGUMENT, "tensor '%s': the file would exceed 2^62 bytes", tensors[i].name);
      } else {
        status = add_header_entry(header, &tensors[i], at, at + bytes);
      }
      at += bytes;
    }
  }
  char *dumped = status == DT_OK ? json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
  json_decref(header);
  if (status != DT_OK) return status;
  size_t length = dumped ? strlen(dumped) : 0, padded = (length + 7) / 8 * 8;
  char *out = dumped ? malloc(8 + padded + 1) : NULL;
  if (out) {
    for (int i = 0; i < 8; i++) out[i] = (char)((uint64_t)padded >> (8 * i) & 0xff);
    memset(out + 8, ' ', padded);
    memcpy(out + 8, dumped, length);
    out[8 + padded] = 0;
  }
  free(dumped);
  if (!out) return dt_fail(DT_ERR_MEMORY, "no memory for the header of a tensor file");
  *text = out;
  *data_bytes = at;
  return DT_OK;
}

/* Sets fd, temporary and handle. */
static dt_status open_unnamed_or_temporary(dt_tensor_writer *writer) {
  char unnamed[64];
  writer->fd = dt_new_file_open(writer->path, &writer->temporary);
  if (writer->fd < 0) return io_error(writer->path, "cannot create a file there", errno);
  snprintf(unnamed, sizeof unnamed, "/proc/%ld/fd/%d", (long)getpid(), writer->fd);
  const char *location = writer->temporary ? writer->temporary : unnamed;
  const size_t room = strlen(location) + strlen(writer->path) + 2;
  writer->handle = malloc(room);
  if (!writer->handle) return dt_fail(DT_ERR_MEMORY, "%s: no memory for its name", writer->path);
  snprintf(writer->handle, room, "%s\n%s", location, writer->path);
  return DT_OK;
}

static dt_status reserve(const dt_tensor_writer *writer, uint64_t bytes) {
  struct statvfs space;
  if (!fstatvfs(writer->fd, &space) && space.f_blocks) {
    uint64_t available = (uint64_t)space.f_bavail * space.f_frsize;
    if (bytes > available) {
      return dt_fail(DT_ERR_IO, "%s: no space left: %" PRIu64 " bytes needed, %" PRIu64 " available", writer->path,
                     bytes, available);
    }
  }
  if (!fallocate(writer->fd, 0, 0, (off_t)bytes)) return DT_OK;
  if (errno == EOPNOTSUPP && !ftruncate(writer->fd, (off_t)bytes)) return DT_OK;
  return io_error(writer->path, "cannot reserve its size", errno);
}

static dt_status write_all(const dt_tensor_writer *writer, const char *bytes, size_t count, off_t at) {
  while (count > 0) {
    ssize_t written = pwrite(writer->fd, bytes, count, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return io_error(writer->path, "cannot write", written < 0 ? errno : ENOSPC);
    bytes += written;
    at += written;
    count -= (size_t)written;
  }
  return DT_OK;
}

static dt_status map_header(dt_tensor_writer *writer) {
  struct stat about;
  if (fstat(writer->fd, &about) || about.st_size <= 0) {
    return dt_fail(DT_ERR_IO, "%s: its unfinished file has no header", writer->path);
  }
  void *map = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, writer->fd, 0);
  if (map == MAP_FAILED) return io_error(writer->path, "cannot be mapped", errno);
  writer->map = map;
  writer->map_bytes = (size_t)about.st_size;
  return dt_tensor_file_parse(map, writer->map_bytes, writer->path, &writer->in);
}

static dt_tensor_writer *new_writer(const char *path) {
  dt_tensor_writer *writer = calloc(1, sizeof *writer);
  if (!writer) return NULL;
  writer->fd = -1;
  writer->path = strdup(path);
  if (writer->path) return writer;
  free(writer);
  return NULL;
}

/* A rename would replace a device or a pipe by a file. What can have no name is known now, not at commit. */
static dt_status check_target(const char *path) {
  struct stat about;
  const int missing = stat(path, &about);
  if (missing && (errno != ENOENT || !*path)) return io_error(path, "cannot create a file there", errno);
  if (!missing && dt_is_mount(path)) return dt_fail(DT_ERR_IO, "%s: a mount point; it cannot be replaced", path);
  if (!missing && dt_is_kept(path)) return io_error(path, "another user's, cannot be replaced", EPERM);
  if (missing || S_ISREG(about.st_mode)) return DT_OK;
  return dt_fail(DT_ERR_IO, "%s: exists and is not a regular file; it cannot be replaced", path);
}

dt_status dt_tensor_writer_create(const char *path, const dt_tensor_spec *tensors, size_t count,
                                  dt_tensor_writer **out) {
  char *header = NULL;
  uint64_t data_bytes = 0;
  dt_status status = check_target(path);
  if (status == DT_OK) status = make_header(tensors, count, &header, &data_bytes);
  if (status != DT_OK) return status;
  dt_tensor_writer *writer = new_writer(path);
  if (!writer) {
    free(header);
    return dt_fail(DT_ERR_MEMORY, "%s: no memory to write it", path);
  }
  writer->creator = getpid();
  size_t header_bytes = 8 + strlen(header + 8);
  status = open_unnamed_or_temporary(writer);
  if (status == DT_OK) status = reserve(writer, header_bytes + data_bytes);
  if (status == DT_OK) status = write_all(writer, header, header_bytes, 0);
  if (status == DT_OK) status = map_header(writer);
  free(header);
  if (status != DT_OK) {
    dt_tensor_writer_discard(writer);
    return status;
  }
  *out = writer;
  return DT_OK;
}

const char *dt_tensor_writer_handle(const dt_tensor_writer *writer) {
  return writer->handle;
}

dt_status dt_tensor_writer_join(const char *handle, dt_tensor_writer **out) {
  const char *newline = strchr(handle, '\n');
  if (!newline) return dt_fail(DT_ERR_ARGUMENT, "handle: must come from dt_tensor_writer_handle");
  dt_tensor_writer *writer = new_writer(newline + 1);
  char *location = strndup(handle, (size_t)(newline - handle));
  dt_status status = DT_ERR_MEMORY;
  if (writer) writer->handle = strdup(handle);
  if (!writer || !location || !writer->handle) {
    dt_fail(status, "%s: no memory to write it", newline + 1);
    goto failed;
  }
  writer->fd = open(location, O_RDWR | O_CLOEXEC);
  status = writer->fd < 0 ? io_error(writer->path, "its unfinished file cannot be opened", errno) : map_header(writer);
  if (status != DT_OK) goto failed;
  free(location);
  *out = writer;
  return DT_OK;
failed:
  free(location);
  if (writer) release(writer);
  return status;
}

dt_status dt_tensor_writer_rows(const dt_tensor_writer *writer, const char *name, int64_t first, int64_t rows,
                                const void *data) {
  dt_tensor tensor;
  dt_status status = dt_tensor_file_get(writer->in, name, &tensor);
  if (status != DT_OK) return status;
  int64_t all = tensor.dims ? tensor.shape[0] : 1;
  if (first < 0 || rows < 0 || first > all || rows > all - first) {
    return dt_fail(DT_ERR_ARGUMENT, "%s: tensor '%s': %" PRId64 " rows from %" PRId64 " of %" PRId64, writer->path,
                   name, rows, first, all);
  }
  if (rows == 0 || tensor.bytes == 0) return DT_OK;
  size_t row_bytes = tensor.bytes / (size_t)all;
  off_t at = (off_t)((const char *)tensor.data - (const char *)writer->map) + (off_t)((size_t)first * row_bytes);
  return write_all(writer, data, (size_t)rows * row_bytes, at);
}

/* The rename itself must survive a power cut. Best effort: not every file system lets a directory be synced. */
static void sync_directory(const char *path) {
  const char *slash = strrchr(path, '/');
  char *name = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
  int fd = name ? open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  free(name);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

dt_status dt_tensor_writer_commit(dt_tensor_writer *writer) {
  dt_status status = DT_OK;
  if (writer->creator != getpid()) {
    status = dt_fail(DT_ERR_ARGUMENT, "%s: only the process that created the writer commits", writer->path);
  } else if (fsync(writer->fd)) {
    status = io_error(writer->path, "cannot flush", errno);
  } else if (dt_new_file_rename(writer->path, writer->fd, &writer->temporary)) {
    status = io_error(writer->path, "cannot be named", errno);
  }
  if (status != DT_OK) {
    dt_tensor_writer_discard(writer);
    return status;
  }
  sync_directory(writer->path);
  release(writer);
  return DT_OK;
}

void dt_tensor_writer_discard(dt_tensor_writer *writer) {
  if (!writer) return;
  if (writer->creator == getpid() && writer->temporary) unlink(writer->temporary);
  release(writer);
}
