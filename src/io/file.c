#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <draintile/platform.h>

#include "core/error.h"

#ifndef STATX_ATTR_MOUNT_ROOT /* headers older than Linux 5.8 */
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

bool dt_is_mount(const char *path) {
  struct statx found;
  return statx(AT_FDCWD, path, 0, STATX_TYPE, &found) == 0 && (found.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

bool dt_is_kept(const char *path) {
  char place[PATH_MAX];
  struct stat file, folder;
  const uid_t user = geteuid();
  if (user == 0 || !realpath(path, place) || stat(place, &file)) return false;
  *(strrchr(place, '/') + 1) = '\0';
  return stat(place, &folder) == 0 && (folder.st_mode & S_ISVTX) && file.st_uid != user && folder.st_uid != user;
}

/* A pipe or a device (/dev/null) is written as it is: renaming would replace it by a file. A file that is mounted, as
 * containers do, cannot be replaced either. */
static bool is_special(const char *path) {
  struct stat found;
  return stat(path, &found) == 0 && !S_ISDIR(found.st_mode) && (!S_ISREG(found.st_mode) || dt_is_mount(path));
}

/* What a link leads to, also where nothing is yet: a rename would replace the link itself, /dev/stdout for one. */
static char *target_of(const char *path) {
  char link[PATH_MAX], next[PATH_MAX];
  char *target = realpath(path, NULL);
  if (target || errno == ELOOP || errno == ENOMEM) return target;
  struct stat nameless; /* an open file in /proc/self/fd whose name is gone */
  const ssize_t length = stat(path, &nameless) == 0 ? -1 : readlink(path, link, sizeof link);
  if (length < 0) return strdup(path);
  const char *slash = link[0] == '/' ? NULL : strrchr(path, '/');
  const int folder = slash ? (int)(slash - path) + 1 : 0;
  if (snprintf(next, sizeof next, "%.*s%.*s", folder, path, (int)length, link) < (int)sizeof next)
    return target_of(next); /* ends: a ring of links is ELOOP above */
  errno = ENAMETOOLONG;
  return NULL;
}

/* Beside `path`, of a long name its beginning: with the number it must still be a name. */
static void temporary_name(char *name, size_t room, const char *path, int attempt) {
  enum { NUMBER = 40 };
  const char *slash = strrchr(path, '/');
  const size_t folder = slash ? (size_t)(slash - path) + 1 : 0, most = folder + NAME_MAX - NUMBER;
  const size_t length = strlen(path);
  snprintf(name, room, "%.*s.%ld.%d.partial", (int)(length < most ? length : most), path, (long)getpid(), attempt);
}

static int new_file_open(const char *path, char **temporary) {
  const char *slash = strrchr(path, '/');
  const size_t room = strlen(path) + 64;
  char *name = malloc(room);
  *temporary = NULL;
  if (!name) return -1;
  snprintf(name, room, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  const int nameable = access("/proc/self/fd", X_OK) == 0; /* without /proc it could not be named later */
  int descriptor = nameable ? open(name, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666) : -1;
  if (descriptor >= 0) {
    free(name);
    return descriptor;
  }
  int attempt = 0;
  do {
    temporary_name(name, room, path, attempt++);
    descriptor = open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
  } while (descriptor < 0 && errno == EEXIST && attempt < 1000);
  if (descriptor >= 0) {
    *temporary = name;
    return descriptor;
  }
  const int cause = errno;
  free(name);
  errno = cause;
  return -1;
}

/* A link cannot replace an existing file, a rename can. */
static int name_beside(const char *path, int descriptor, char **temporary) {
  char from[64];
  const size_t room = strlen(path) + 64;
  char *name = malloc(room);
  if (!name) return -1;
  snprintf(from, sizeof from, "/proc/self/fd/%d", descriptor);
  int failed = -1;
  for (int attempt = 0; attempt < 1000 && failed; attempt++) {
    temporary_name(name, room, path, attempt);
    failed = linkat(AT_FDCWD, from, AT_FDCWD, name, AT_SYMLINK_FOLLOW);
    if (failed && errno != EEXIST) break;
  }
  const int cause = errno;
  if (failed)
    free(name);
  else
    *temporary = name;
  errno = cause;
  return failed;
}

int dt_new_file_open(const char *path, char **temporary) {
  char *target = target_of(path);
  const int descriptor = target ? new_file_open(target, temporary) : -1;
  const int cause = errno;
  if (!target) *temporary = NULL;
  free(target);
  errno = cause;
  return descriptor;
}

int dt_new_file_rename(const char *path, int descriptor, char **temporary) {
  char *target = target_of(path);
  int failed = !target || (!*temporary && name_beside(target, descriptor, temporary)) || rename(*temporary, target);
  const int cause = errno;
  free(target);
  errno = cause;
  return failed ? -1 : 0;
}

dt_status dt_output_open(const char *path, dt_output_file *file) {
  dt_output_file made = {.path = strdup(path), .in_place = is_special(path)};
  if (!made.path) return dt_fail(DT_ERR_MEMORY, "%s: no memory for its name", path);
  const int descriptor =
      made.in_place ? open(path, O_WRONLY | O_TRUNC | O_CLOEXEC) : dt_new_file_open(path, &made.temporary);
  if (descriptor >= 0) made.stream = fdopen(descriptor, "w");
  if (made.stream) {
    *file = made;
    return DT_OK;
  }
  const int cause = errno;
  const dt_status status = dt_fail(cause == ENOMEM ? DT_ERR_MEMORY : DT_ERR_IO, "%s: cannot %s: %s", path,
                                   made.in_place ? "open" : "create a file there", strerror(cause));
  if (descriptor >= 0) close(descriptor);
  if (made.temporary) unlink(made.temporary);
  free(made.path);
  free(made.temporary);
  return status;
}

static void release(dt_output_file *file) {
  free(file->path);
  free(file->temporary);
  memset(file, 0, sizeof *file);
}

dt_status dt_output_commit(dt_output_file *file) {
  const int descriptor = fileno(file->stream);
  int failed = ferror(file->stream) || fflush(file->stream) != 0;
  if (!failed && !file->in_place)
    failed = fsync(descriptor) != 0 || dt_new_file_rename(file->path, descriptor, &file->temporary) != 0;
  int cause = errno;
  if (failed && file->temporary) unlink(file->temporary);
  if (fclose(file->stream) != 0 && !failed) {
    failed = 1;
    cause = errno;
  }
  const dt_status code = cause == ENOMEM ? DT_ERR_MEMORY : DT_ERR_IO;
  const dt_status status = failed ? dt_fail(code, "%s: cannot write: %s", file->path, strerror(cause)) : DT_OK;
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
