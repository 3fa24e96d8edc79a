#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/error.h"
#include "json_path.h"

typedef struct entry {
  char *name;
  int32_t type; /* index into types[] */
  int32_t dims;
  int64_t shape[DT_TENSOR_MAX_DIMS];
  uint64_t begin, end; /* within the data */
} entry;

struct dt_tensor_file {
  char *path;
  entry *entries; /* by name */
  size_t count;
  const unsigned char *data;
  void *map; /* NULL: the bytes are the caller's */
  size_t map_bytes;
};

/* Every type of the format, so that a file may hold tensors that nobody here reads. */
static const struct {
  const char *name;
  int bits;
  int dtype; /* dt_dtype, or -1 */
} types[] = {
    {"F32", 32, DT_DTYPE_F32},
    {"BF16", 16, DT_DTYPE_BF16},
    {"F16", 16, DT_DTYPE_F16},
    {"F8_E4M3", 8, DT_DTYPE_F8_E4M3},
    {"I64", 64, DT_DTYPE_I64},
    {"I32", 32, DT_DTYPE_I32},
    {"U8", 8, DT_DTYPE_U8},
    {"F64", 64, DT_DTYPE_F64},
    {"BOOL", 8, -1},
    {"I8", 8, -1},
    {"I16", 16, -1},
    {"U16", 16, -1},
    {"U32", 32, -1},
    {"U64", 64, -1},
    {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},
    {"F6_E2M3", 6, -1},
    {"F6_E3M2", 6, -1},
    {"F4", 4, -1},
    {"C64", 64, -1},
};

const char *dt_safetensors_dtype_name(dt_dtype dtype) {
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (types[i].dtype == (int)dtype) return types[i].name;
  }
  return NULL;
}

const char *dt_printable(const char *text, char *buffer, size_t bytes) {
  size_t i = 0;
  for (; text[i] && i + 1 < bytes; i++) {
    unsigned char c = (unsigned char)text[i];
    buffer[i] = text[i];
    if (c < 0x20 || c == 0x7f) buffer[i] = '?';
  }
  buffer[i] = 0;
  return buffer;
}

const char *dt_shape_text(const int64_t *shape, int32_t dims, char *buffer, size_t bytes) {
  size_t at = (size_t)snprintf(buffer, bytes, "[");
  for (int32_t i = 0; i < dims && at < bytes; i++) {
    at += (size_t)snprintf(buffer + at, bytes - at, "%s%" PRId64, i ? ", " : "", shape[i]);
  }
  if (at < bytes) snprintf(buffer + at, bytes - at, "]");
  return buffer;
}

/* The one place where a bad tensor is reported. */
static dt_status bad(const char *path, const char *name, const char *what) {
  char text[256];
  return dt_fail(DT_ERR_INPUT, "%s: tensor '%s': %s", path, dt_printable(name, text, sizeof text), what);
}

static dt_status parse_shape(const char *path, entry *e, const json_t *shape, uint64_t *bytes) {
  char what[160];
  size_t dims = json_array_size(shape); /* 0 when it is no array */
  if (!json_is_array(shape)) return bad(path, e->name, "shape must be an array of integers >= 0");
  if (dims > DT_TENSOR_MAX_DIMS) {
    snprintf(what, sizeof what, "%zu dimensions; at most %d are allowed", dims, DT_TENSOR_MAX_DIMS);
    return bad(path, e->name, what);
  }
  e->dims = (int32_t)dims;
  uint64_t bits = (uint64_t)types[e->type].bits;
  for (size_t i = 0; i < dims; i++) {
    const json_t *size = json_array_get(shape, i);
    if (!json_is_integer(size) || json_integer_value(size) < 0) {
      return bad(path, e->name, "shape must be an array of integers >= 0");
    }
    e->shape[i] = json_integer_value(size);
    if (__builtin_mul_overflow(bits, (uint64_t)e->shape[i], &bits)) {
      return bad(path, e->name, "shape: the product of its sizes overflows");
    }
  }
  if (bits % 8) return bad(path, e->name, "shape: its elements do not fill whole bytes");
  *bytes = bits / 8;
  return DT_OK;
}

static dt_status parse_entry(const char *path, entry *e, const json_t *value, uint64_t data_bytes) {
  char what[256], text[64];
  const json_t *dtype = json_object_get(value, "dtype"), *offsets = json_object_get(value, "data_offsets");
  if (!json_is_object(value)) return bad(path, e->name, "must be an object with dtype, shape and data_offsets");
  if (!json_is_string(dtype)) return bad(path, e->name, "dtype must be a string");
  size_t type = 0, type_count = sizeof types / sizeof *types;
  while (type < type_count && strcmp(json_string_value(dtype), types[type].name) != 0) type++;
  if (type == type_count) {
    snprintf(what, sizeof what, "dtype '%s' is not one of the format (F32, BF16, F16, F8_E4M3, I64, ...)",
             dt_printable(json_string_value(dtype), text, sizeof text));
    return bad(path, e->name, what);
  }
  e->type = (int32_t)type;
  uint64_t bytes = 0;
  dt_status status = parse_shape(path, e, json_object_get(value, "shape"), &bytes);
  if (status != DT_OK) return status;
  const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
  if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
      json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
    return bad(path, e->name, "data_offsets must be [begin, end] with 0 <= begin <= end");
  }
  e->begin = (uint64_t)json_integer_value(begin);
  e->end = (uint64_t)json_integer_value(end);
  if (e->end > data_bytes) {
    snprintf(what, sizeof what,
             "data_offsets end at %" PRIu64 ", but the file holds %" PRIu64 " bytes of data: is it truncated?", e->end,
             data_bytes);
    return bad(path, e->name, what);
  }
  if (e->end - e->begin != bytes) {
    char shape[128];
    snprintf(what, sizeof what, "data_offsets hold %" PRIu64 " bytes; shape %s of %s takes %" PRIu64, e->end - e->begin,
             dt_shape_text(e->shape, e->dims, shape, sizeof shape), types[type].name, bytes);
    return bad(path, e->name, what);
  }
  return DT_OK;
}

static int by_offset(const void *a, const void *b) {
  const entry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

/* Every byte of data belongs to exactly one tensor. */
static dt_status check_cover(const dt_tensor_file *file, uint64_t data_bytes) {
  char what[320], other[128];
  uint64_t at = 0;
  const char *previous = NULL;
  for (size_t i = 0; i < file->count; i++) {
    const entry *e = &file->entries[i];
    if (e->begin < at) {
      snprintf(what, sizeof what, "data_offsets [%" PRIu64 ", %" PRIu64 "] overlap tensor '%s'", e->begin, e->end,
               dt_printable(previous, other, sizeof other));
      return bad(file->path, e->name, what);
    }
    if (e->begin > at) {
      snprintf(what, sizeof what, "bytes %" PRIu64 " to %" PRIu64 " before its data belong to no tensor", at, e->begin);
      return bad(file->path, e->name, what);
    }
    at = e->end;
    previous = e->name;
  }
  if (at != data_bytes) {
    return dt_fail(DT_ERR_INPUT, "%s: the last %" PRIu64 " bytes of data belong to no tensor", file->path,
                   data_bytes - at);
  }
  return DT_OK;
}

static dt_status parse_entries(dt_tensor_file *file, json_t *header, uint64_t data_bytes) {
  file->entries = calloc(json_object_size(header) + 1, sizeof *file->entries);
  if (!file->entries) return dt_fail(DT_ERR_MEMORY, "%s: no memory for its header", file->path);
  const char *name;
  json_t *value;
  json_object_foreach(header, name, value) {
    if (!strcmp(name, "__metadata__")) {
      if (!json_is_object(value)) return dt_fail(DT_ERR_INPUT, "%s: __metadata__ must be an object", file->path);
      continue;
    }
    entry *e = &file->entries[file->count];
    e->name = strdup(name);
    if (!e->name) return dt_fail(DT_ERR_MEMORY, "%s: no memory for its header", file->path);
    file->count++;
    dt_status status = parse_entry(file->path, e, value, data_bytes);
    if (status != DT_OK) return status;
  }
  qsort(file->entries, file->count, sizeof *file->entries, by_offset);
  dt_status status = check_cover(file, data_bytes);
  qsort(file->entries, file->count, sizeof *file->entries, by_name);
  return status;
}

static dt_status parse_header(dt_tensor_file *file, const unsigned char *bytes, size_t size) {
  uint64_t header_bytes = 0;
  if (size < 8) {
    return dt_fail(DT_ERR_INPUT, "%s: %zu bytes are no safetensors file (a header length of 8 bytes comes first)",
                   file->path, size);
  }
  for (int i = 7; i >= 0; i--) header_bytes = header_bytes << 8 | bytes[i];
  if (header_bytes > DT_SAFETENSORS_MAX_HEADER) {
    return dt_fail(DT_ERR_INPUT, "%s: header of %" PRIu64 " bytes; at most %u are allowed: not a safetensors file?",
                   file->path, header_bytes, DT_SAFETENSORS_MAX_HEADER);
  }
  if (header_bytes > size - 8) {
    return dt_fail(DT_ERR_INPUT, "%s: header of %" PRIu64 " bytes, but only %zu follow: is the file truncated?",
                   file->path, header_bytes, size - 8);
  }
  json_error_t error;
  dt_status status;
  json_t *header = dt_json_parse(file->path, (const char *)bytes + 8, header_bytes, &error, &status);
  if (status == DT_ERR_MEMORY) return status;
  if (!header || !json_is_object(header)) {
    char text[JSON_ERROR_TEXT_LENGTH];
    dt_printable(header ? "must be an object" : error.text, text, sizeof text);
    json_decref(header);
    return dt_fail(DT_ERR_INPUT, "%s: header, byte %d: %s", file->path, header ? 0 : error.position, text);
  }
  file->data = bytes + 8 + header_bytes;
  status = parse_entries(file, header, size - 8 - header_bytes);
  json_decref(header);
  return status;
}

dt_status dt_tensor_file_parse(const void *bytes, size_t size, const char *path, dt_tensor_file **out) {
  dt_tensor_file *file = calloc(1, sizeof *file);
  if (file) file->path = strdup(path);
  if (!file || !file->path) {
    free(file);
    return dt_fail(DT_ERR_MEMORY, "%s: no memory to open it", path);
  }
  dt_status status = parse_header(file, bytes, size);
  if (status != DT_OK) {
    dt_tensor_file_close(file);
    return status;
  }
  *out = file;
  return DT_OK;
}

dt_status dt_tensor_file_open(const char *path, dt_tensor_file **out) {
  /* without O_NONBLOCK a FIFO would hang here */
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return dt_fail(DT_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
  struct stat about;
  if (fstat(fd, &about) || !S_ISREG(about.st_mode)) {
    close(fd);
    return dt_fail(DT_ERR_IO, "%s: not a regular file; a safetensors file is needed", path);
  }
  size_t size = (size_t)about.st_size;
  if (size == 0) {
    close(fd);
    return dt_fail(DT_ERR_INPUT, "%s: the file is empty", path);
  }
  void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  int error = errno;
  close(fd);
  if (map == MAP_FAILED) {
    return dt_fail(error == ENOMEM ? DT_ERR_MEMORY : DT_ERR_IO, "%s: %zu bytes cannot be mapped: %s", path, size,
                   strerror(error));
  }
  dt_status status = dt_tensor_file_parse(map, size, path, out);
  if (status != DT_OK) {
    munmap(map, size);
    return status;
  }
  (*out)->map = map;
  (*out)->map_bytes = size;
  return DT_OK;
}

void dt_tensor_file_close(dt_tensor_file *file) {
  if (!file) return;
  for (size_t i = 0; i < file->count; i++) free(file->entries[i].name);
  free(file->entries);
  if (file->map) munmap(file->map, file->map_bytes);
  free(file->path);
  free(file);
}

size_t dt_tensor_file_count(const dt_tensor_file *file) {
  return file->count;
}

const char *dt_tensor_file_path(const dt_tensor_file *file) {
  return file->path;
}

const char *dt_tensor_file_name(const dt_tensor_file *file, size_t index) {
  return index < file->count ? file->entries[index].name : NULL;
}

static const entry *find(const dt_tensor_file *file, const char *name) {
  size_t low = 0, high = file->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    int order = strcmp(name, file->entries[middle].name);
    if (order == 0) return &file->entries[middle];
    if (order < 0) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return NULL;
}

int dt_tensor_file_has(const dt_tensor_file *file, const char *name) {
  return find(file, name) != NULL;
}

dt_status dt_tensor_file_get(const dt_tensor_file *file, const char *name, dt_tensor *tensor) {
  const entry *e = find(file, name);
  if (!e) return bad(file->path, name, "not in this file");
  if (types[e->type].dtype < 0) {
    char what[128];
    snprintf(what, sizeof what, "dtype %s; allowed are F32, BF16, F16, F8_E4M3, I64, I32, U8 and F64",
             types[e->type].name);
    return bad(file->path, name, what);
  }
  const void *data = file->data + e->begin;
  size_t element = (size_t)types[e->type].bits / 8;
  if (e->end > e->begin && (uintptr_t)data % element) {
    char what[160];
    snprintf(what, sizeof what,
             "its data is not aligned to the %zu bytes of a %s element; write the file anew with a current safetensors",
             element, types[e->type].name);
    return bad(file->path, name, what);
  }
  *tensor = (dt_tensor){.name = e->name,
                        .dtype = (dt_dtype)types[e->type].dtype,
                        .dims = e->dims,
                        .data = data,
                        .bytes = (size_t)(e->end - e->begin)};
  memcpy(tensor->shape, e->shape, sizeof tensor->shape);
  return DT_OK;
}
