/* Output files that are whole or absent: written without a name or under a temporary one beside the target, then
 * renamed. A target that is a pipe, a device or mounted by itself is written as it is. Input texts of bounded size. */
#ifndef DT_IO_FILE_H
#define DT_IO_FILE_H

#include <stdbool.h>
#include <stdio.h>

#include <draintile/status.h>

/* A new file that is to be `path`: without a name where the file system can, so that whatever ends the process leaves
 * nothing (*temporary NULL); else under a temporary one beside it, which is to be freed. -1 with errno. */
int dt_new_file_open(const char *path, char **temporary);
/* Names it and renames it to `path`, or to what that leads to as a link, which stays. -1 with errno; where *temporary
 * is not NULL then, that name is to be removed. */
int dt_new_file_rename(const char *path, int descriptor, char **temporary);

/* A file that is mounted by itself, as containers do: it can be written, not replaced. */
bool dt_is_mount(const char *path);
/* A file of another user in a folder like /tmp, where everybody writes and nobody replaces what is not his. */
bool dt_is_kept(const char *path);

typedef struct dt_output_file {
  FILE *stream;
  char *path, *temporary; /* as of dt_new_file_open */
  bool in_place;          /* the target is written as it is */
} dt_output_file;

/* DT_ERR_IO names the path. On success the file ends with exactly one of dt_output_commit and dt_output_discard. */
dt_status dt_output_open(const char *path, dt_output_file *file);
/* Flushes, syncs and renames; on failure nothing is left. */
dt_status dt_output_commit(dt_output_file *file);
void dt_output_discard(dt_output_file *file);

/* Text of a file, at most DT_TEXT_MAX_BYTES (draintile/platform.h). With `regular` nothing else than a regular file is
 * read, and a pipe is refused without waiting for its writer. DT_ERR_IO or DT_ERR_INPUT names the path. Released by
 * free. */
dt_status dt_read_text(const char *path, bool regular, char **text, size_t *bytes);

#endif
