/* Output files that are whole or absent: written under a temporary name beside the target, then renamed. A target that
 * is a pipe or a device is written as it is. Input texts of bounded size. */
#ifndef DT_IO_FILE_H
#define DT_IO_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include <draintile/status.h>

typedef struct dt_output_file {
  FILE *stream;
  char *path, *temporary; /* temporary NULL: the target is written as it is */
} dt_output_file;

/* Opens a temporary beside `path`. DT_ERR_IO names the path. On success the file ends with exactly one of
 * dt_output_commit and dt_output_discard. */
dt_status dt_output_open(const char *path, dt_output_file *file);
/* Flushes, syncs and renames; on failure the temporary is removed. */
dt_status dt_output_commit(dt_output_file *file);
void dt_output_discard(dt_output_file *file);

/* Text of a file, at most DT_TEXT_MAX_BYTES (draintile/platform.h). With `regular` nothing else than a regular file is
 * read, and a pipe is refused without waiting for its writer. DT_ERR_IO or DT_ERR_INPUT names the path. Released by
 * free. */
dt_status dt_read_text(const char *path, bool regular, char **text, size_t *bytes);

#endif
