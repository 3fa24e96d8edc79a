#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <draintile/platform.h>

#include "core/error.h"

/* A pipe or a device (/dev/null) is written as it is: renaming would replace it by a file. */
static bool is_special(const char *path) {
  struct stat found;
  return stat(path, &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode);
}

static dt_status open_special(const char *path, dt_output_file *file) {
  char *copy = strdup(path);
  FILE *stream = copy ? fopen(path, "w") : NULL;
  if (!stream) {
    dt_status status = dt_fail(copy ? DT_ERR_IO : DT_ERR_MEMORY, "%s: cannot open: %s", path, strerror(errno));
    free(copy);
    return status;
  }
  *file = (dt_output_file){.stream = stream, .path = copy, .temporary = NULL};
  return DT_OK;
}

/* A new file under a name of its own beside `path`, with the mode that the process gives new files. -1 with errno. */
static int create_beside(const char *path, char *name, size_t room) {
  int descriptor, attempt = 0;
  do {
    snprintf(name, room, "%s.%ld.%d.partial", path, (long)getpid(), attempt++);
    descriptor = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EEXIST && attempt < 1000);
  return descriptor;
}

dt_status dt_output_open(const char *path, dt_output_file *file) {
  if (is_special(path)) return open_special(path, file);
  size_t room = strlen(path) + 64;
  char *copy = strdup(path), *temporary = malloc(room);
  dt_status status = DT_ERR_MEMORY;
  if (!copy || !temporary) {
    dt_fail(status, "%s: no memory for its name", path);
    goto free_names;
  }
  int descriptor = create_beside(path, temporary, room);
  if (descriptor < 0) {
    status = dt_fail(DT_ERR_IO, "%s: cannot create a file there: %s", path, strerror(errno));
    goto free_names;
  }
  FILE *stream = fdopen(descriptor, "w");
  if (!stream) {
    status = dt_fail(DT_ERR_IO, "%s: %s", path, strerror(errno));
    close(descriptor);
    unlink(temporary);
    goto free_names;
  }
  *file = (dt_output_file){.stream = stream, .path = copy, .temporary = temporary};
  return DT_OK;

free_names:
  free(copy);
  free(temporary);
  return status;
}

static void release(dt_output_file *file) {
  free(file->path);
  free(file->temporary);
  memset(file, 0, sizeof *file);
}

dt_status dt_output_commit(dt_output_file *file) {
  int failed = ferror(file->stream) || fflush(file->stream) != 0;
  if (!failed && file->temporary) failed = fsync(fileno(file->stream)) != 0;
  int cause = errno;
  if (fclose(file->stream) != 0 && !failed) {
    failed = 1;
    cause = errno;
  }
  if (!failed && file->temporary && rename(file->temporary, file->path) != 0) {
    failed = 1;
    cause = errno;
  }
  dt_status status = DT_OK;
  if (failed) {
    if (file->temporary) unlink(file->temporary);
    status = dt_fail(DT_ERR_IO, "%s: cannot write: %s", file->path, strerror(cause));
  }
  release(file);
  return status;
}

void dt_output_discard(dt_output_file *file) {
  if (!file->stream) return;
  fclose(file->stream);
  if (file->temporary) unlink(file->temporary);
  release(file);
}

/* Reads to the end, into a buffer that doubles. */
static dt_status read_all(const char *path, FILE *stream, char **text, size_t *bytes) {
  size_t capacity = 1 << 16, used = 0;
  char *buffer = NULL;
  for (;;) {
    char *grown = realloc(buffer, capacity);
    if (!grown) {
      free(buffer);
      return dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path);
    }
    buffer = grown;
    used += fread(buffer + used, 1, capacity - used, stream);
    if (used < capacity || used > DT_TEXT_MAX_BYTES) break;
    capacity *= 2;
  }
  dt_status status = DT_OK;
  if (ferror(stream))
    status = dt_fail(DT_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
  else if (used > DT_TEXT_MAX_BYTES)
    status = dt_fail(DT_ERR_INPUT, "%s: more than %d bytes; allowed: a text file", path, DT_TEXT_MAX_BYTES);
  if (status) {
    free(buffer);
    return status;
  }
  *text = buffer;
  *bytes = used;
  return DT_OK;
}

dt_status dt_read_text(const char *path, bool regular, char **text, size_t *bytes) {
  int descriptor = open(path, O_RDONLY | O_CLOEXEC | (regular ? O_NONBLOCK : 0));
  if (descriptor < 0) return dt_fail(DT_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
  struct stat about;
  dt_status status = DT_OK;
  FILE *stream = NULL;
  if (regular && (fstat(descriptor, &about) || !S_ISREG(about.st_mode)))
    status = dt_fail(DT_ERR_INPUT, "%s: must be a regular file of at most %d bytes", path, DT_TEXT_MAX_BYTES);
  else if (!(stream = fdopen(descriptor, "r")))
    status = dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path);
  if (status == DT_OK) status = read_all(path, stream, text, bytes);
  if (stream)
    fclose(stream);
  else
    close(descriptor);
  return status;
}
