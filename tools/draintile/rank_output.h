/* What a command that runs ranks shares with them: one mapping, and the file that all of them write. */
#ifndef DRAINTILE_TOOL_RANK_OUTPUT_H
#define DRAINTILE_TOOL_RANK_OUTPUT_H

#include <stddef.h>

#include <draintile/checkpoint.h>

/* An array of the mapping: where its address goes, and its size. */
typedef struct rank_array {
  void **field;
  size_t bytes;
} rank_array;

/* Memory that forked ranks share, zeroed, cut into the arrays; munmap(*base, *bytes) releases it. Exit code. */
int rank_memory_map(const rank_array *arrays, size_t count, void **base, size_t *bytes);

/* Opens --output `path` for one tensor; refuses what is there and not a regular file. Exit code. */
int rank_output_open(const char *path, const dt_tensor_spec *spec, dt_tensor_writer **writer);
/* Gives the output its name unless the run's `code` says that it failed, or what was printed cannot be written. Returns
 * `code`, or this step's own failure. */
int rank_output_commit(dt_tensor_writer **writer, int code);

#endif
