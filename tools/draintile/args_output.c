#include "args.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef STATX_ATTR_MOUNT_ROOT /* headers older than Linux 5.8 */
#define STATX_ATTR_MOUNT_ROOT 0x2000
#endif

bool args_is_mount(const char *path) {
  struct statx found;
  return statx(AT_FDCWD, path, 0, STATX_TYPE, &found) == 0 && (found.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

static bool is_same(const struct stat *a, const struct stat *b) {
  return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

static bool is_same_file(const char *one, const char *other) {
  struct stat a, b;
  return stat(one, &a) == 0 && stat(other, &b) == 0 && S_ISREG(a.st_mode) && is_same(&a, &b);
}

static const char *base(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* The folder that a file is in or would be in. */
static bool stat_folder(const char *path, struct stat *folder) {
  char text[PATH_MAX];
  const size_t length = (size_t)(base(path) - path);
  if (length == 0) return stat(".", folder) == 0;
  return snprintf(text, sizeof(text), "%.*s", (int)length, path) < (int)sizeof(text) && stat(text, folder) == 0;
}

void args_follow(const char *path, char place[PATH_MAX]) {
  enum { LINKS_MAX = 40 };
  char target[PATH_MAX];
  struct stat nameless; /* an open file in /proc/self/fd whose name is gone */
  if (realpath(path, place)) return;
  snprintf(place, PATH_MAX, "%s", path);
  if (stat(path, &nameless) == 0) return;
  for (int links = 0; links < LINKS_MAX; links++) {
    const ssize_t length = readlink(place, target, sizeof(target) - 1);
    if (length < 0) return;
    const size_t folder = target[0] == '/' ? 0 : (size_t)(base(place) - place);
    if (folder + (size_t)length >= PATH_MAX) return;
    memcpy(place + folder, target, (size_t)length);
    place[folder + (size_t)length] = 0;
  }
}

/* A file of another user in a folder like /tmp, where everybody writes and nobody replaces what is not his. */
static bool is_kept(const struct stat *file, const char *place) {
  struct stat folder;
  const uid_t user = geteuid();
  return user != 0 && file->st_uid != user && stat_folder(place, &folder) && (folder.st_mode & S_ISVTX) &&
         folder.st_uid != user;
}

/* A regular file is written beside its name, or beside what that leads to as a link, and renamed, so that its folder
 * decides; anything else is written itself. */
int args_check_output(const arg_option *option, const char *path) {
  const char *name = option->name;
  if (strcmp(path, "-") == 0)
    return option->kind == ARG_RESULTS ? TOOL_OK : log_fail(TOOL_USAGE, "--%s: \"-\"; allowed: a file", name);
  struct stat found;
  const bool missing = stat(path, &found) != 0;
  if (missing && errno != ENOENT) return log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(errno));
  if (!missing && S_ISDIR(found.st_mode)) return log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(EISDIR));
  char place[PATH_MAX];
  args_follow(path, place);
  const bool itself = !missing && (!S_ISREG(found.st_mode) || args_is_mount(path));
  if (!missing && !itself && is_kept(&found, place))
    return log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(EPERM));
  const bool writable = itself ? access(path, W_OK) == 0 : access(dirname(place), W_OK | X_OK) == 0;
  const int cause = errno;
  return writable ? TOOL_OK : log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(cause));
}

int args_temporary(const char *path, int (*make)(const char *name), char *name, size_t size) {
  enum { ATTEMPTS = 1000, NUMBER = 40 }; /* of a long name the beginning: with the number it must still be one */
  const size_t length = strlen(path), most = (size_t)(base(path) - path) + NAME_MAX - NUMBER;
  const int kept = (int)(length < most ? length : most);
  int made = -1;
  for (int attempt = 0; attempt < ATTEMPTS && made < 0; attempt++) {
    if (snprintf(name, size, "%.*s.%ld.%d.tmp", kept, path, (long)getpid(), attempt) >= (int)size) {
      errno = ENAMETOOLONG;
      return -1;
    }
    made = make(name);
    if (made < 0 && errno != EEXIST) break;
  }
  return made;
}

int args_new_file(const char *name) {
  return open(name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
}

/* Also of files that are not there yet: one name, written in two ways. Devices and pipes may be written twice. */
static bool is_same_place(const char *one, const char *other) {
  struct stat a, b;
  char first[PATH_MAX], second[PATH_MAX];
  if (stat(one, &a) == 0 || stat(other, &b) == 0) return is_same_file(one, other);
  args_follow(one, first);
  args_follow(other, second);
  return strcmp(base(first), base(second)) == 0 && stat_folder(first, &a) && stat_folder(second, &b) && is_same(&a, &b);
}

static bool is_model_name(const char *name) {
  return strcmp(name, "config.json") == 0 || strncmp(name, "model", 5) == 0;
}

/* Configuration, index or shard of the model in `folder`, or what one leads to; what else lies there is the user's. */
static bool is_model_file(const char *path, const char *folder) {
  struct stat a, b;
  char place[PATH_MAX];
  args_follow(path, place);
  if (stat(folder, &a) != 0 || !S_ISDIR(a.st_mode)) return false;
  if (is_model_name(base(place)) && stat_folder(place, &b) && is_same(&a, &b)) return true;
  DIR *opened = opendir(folder);
  bool found = false;
  for (struct dirent *entry = NULL; opened && !found && (entry = readdir(opened)) != NULL;)
    found = is_model_name(entry->d_name) && snprintf(place, PATH_MAX, "%s/%s", folder, entry->d_name) < PATH_MAX &&
            is_same_file(path, place);
  if (opened) closedir(opened);
  return found;
}

static bool is_written(const arg_option *option) {
  return option->kind >= ARG_OUTPUT || strcmp(option->name, "output") == 0;
}

static bool is_read(const arg_option *option) {
  return option->kind == ARG_TEXT && !is_written(option) &&
         (strcmp(option->value_name, "FILE") == 0 || strcmp(option->value_name, "DIR") == 0);
}

int args_check_files(const tool_args *args) {
  const arg_option *options = args->command->options;
  for (size_t i = 0; i < args->command->option_count; i++) {
    const char *path = args->values[i].text;
    if (!args->values[i].set || !is_written(&options[i]) || strcmp(path, "-") == 0) continue;
    for (size_t j = 0; j < args->command->option_count; j++) {
      const char *other = args->values[j].text;
      if (!args->values[j].set || j == i) continue;
      const bool checkpoint = strcmp(options[j].name, "checkpoint") == 0;
      if ((is_read(&options[j]) && is_same_file(path, other)) || (checkpoint && is_model_file(path, other)) ||
          (j < i && is_written(&options[j]) && is_same_place(path, other)))
        return log_fail(TOOL_USAGE, "--%s: %s; allowed: another file than --%s", options[i].name, path,
                        options[j].name);
    }
  }
  return TOOL_OK;
}
