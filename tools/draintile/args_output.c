#include "args.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A regular file is written beside its name and renamed, so that its folder decides; anything else is written itself.
 */
int args_check_output(const arg_option *option, const char *path) {
  const char *name = option->name;
  if (strcmp(path, "-") == 0)
    return option->kind == ARG_RESULTS ? TOOL_OK : log_fail(TOOL_USAGE, "--%s: \"-\"; allowed: a file", name);
  struct stat found;
  const bool missing = stat(path, &found) != 0;
  if (missing && errno != ENOENT) return log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(errno));
  if (!missing && S_ISDIR(found.st_mode)) return log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(EISDIR));
  char *copy = strdup(path);
  if (!copy) return log_out_of_memory();
  const bool itself = !missing && !S_ISREG(found.st_mode);
  const bool writable = itself ? access(path, W_OK) == 0 : access(dirname(copy), W_OK | X_OK) == 0;
  const int cause = errno;
  free(copy);
  return writable ? TOOL_OK : log_fail(TOOL_FAILED, "--%s: %s: %s", name, path, strerror(cause));
}
