#include "counts_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "json.h"
#include "log.h"

enum { RANKS_MAX = 4096, EXPERTS_MAX = 1 << 20 };

static int read_row(const char *path, const json_t *row, size_t rank, counts_matrix *counts) {
  if (!json_is_array(row)) return log_fail(TOOL_USAGE, "%s: counts[%zu]: allowed: an array", path, rank);
  if (json_array_size(row) != (size_t)counts->experts)
    return log_fail(TOOL_USAGE, "%s: counts[%zu]: %zu entries; allowed: %d, as in the first row", path, rank,
                    json_array_size(row), counts->experts);
  for (size_t i = 0; i < (size_t)counts->experts; i++) {
    const json_t *entry = json_array_get(row, i);
    json_int_t value = json_integer_value(entry);
    if (!json_is_integer(entry) || value < 0 || value > INT32_MAX) {
      char *text = json_dumps(entry, JSON_ENCODE_ANY | JSON_COMPACT);
      log_fail(TOOL_USAGE, "%s: counts[%zu][%zu]: %.40s; allowed: an integer from 0 to %d", path, rank, i,
               text ? text : "?", INT32_MAX);
      free(text);
      return TOOL_USAGE;
    }
    counts->values[rank * (size_t)counts->experts + i] = (int32_t)value;
  }
  return TOOL_OK;
}

static int read_matrix(const char *path, const json_t *matrix, counts_matrix *counts) {
  size_t ranks = json_array_size(matrix), experts = json_array_size(json_array_get(matrix, 0));
  if (ranks < 1 || ranks > RANKS_MAX)
    return log_fail(TOOL_USAGE, "%s: counts: %zu rows; allowed: an array of 1 to %d rows, one a source rank", path,
                    ranks, RANKS_MAX);
  if (experts < 1 || experts > EXPERTS_MAX)
    return log_fail(TOOL_USAGE, "%s: counts[0]: %zu entries; allowed: 1 to %d", path, experts, EXPERTS_MAX);
  counts->ranks = (int32_t)ranks;
  counts->experts = (int32_t)experts;
  counts->values = calloc(ranks * experts, sizeof(*counts->values));
  if (!counts->values) return log_out_of_memory();
  for (size_t rank = 0; rank < ranks; rank++) {
    int code = read_row(path, json_array_get(matrix, rank), rank, counts);
    if (code) return code;
  }
  return TOOL_OK;
}

int counts_read(const char *path, counts_matrix *counts) {
  json_t *root = NULL;
  *counts = (counts_matrix){0};
  int code = json_read(path, &root);
  if (code) return code;
  code = read_matrix(path, json_object_get(root, "counts"), counts);
  json_decref(root);
  if (code) {
    free(counts->values);
    counts->values = NULL;
  }
  return code;
}
