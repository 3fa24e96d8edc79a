#include "pictures.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "args.h"
#include "interrupt.h"
#include "log.h"

static const char *const types[] = {"png", "svg"};

static void (*pipe_action)(int);

static void release(pictures *p) {
  for (int i = 0; i < PICTURES_MAX; i++)
    if (p->descriptors[i] >= 0) close(p->descriptors[i]);
  signal(SIGPIPE, pipe_action);
}

int pictures_begin(pictures *p) {
  *p = (pictures){.count = 0};
  pipe_action = signal(SIGPIPE, SIG_IGN); /* without gnuplot the script has no reader */
  for (int i = 0; i < PICTURES_MAX; i++) p->descriptors[i] = memfd_create("picture", 0);
  if (p->descriptors[PICTURES_MAX - 1] >= 0) p->script = popen("command -v gnuplot >/dev/null && exec gnuplot", "w");
  if (p->script) return TOOL_OK;
  const int code = log_fail(TOOL_FAILED, "gnuplot: %s", strerror(errno));
  release(p);
  return code;
}

void pictures_draw(pictures *p, const char *name, const char *plots) {
  static const char *const terminals[] = {"pngcairo size 1100,600", "svg size 1100,600 dynamic"};
  for (int i = 0; i < 2; i++) {
    fprintf(p->script, "set terminal %s\nset output \"/proc/self/fd/%d\"\nplot %s\nset output\n", terminals[i],
            p->descriptors[p->count], plots);
    p->names[p->count++] = name;
  }
}

/* The whole picture, which becomes `path`; or -1 with errno. */
static int copy(int from, const char *path, char *temporary, size_t size) {
  struct stat drawn;
  const int to = args_temporary(path, args_new_file, temporary, size);
  if (to < 0) return -1;
  off_t at = 0;
  int failed = fstat(from, &drawn);
  while (!failed && at < drawn.st_size) {
    const ssize_t sent = sendfile(to, from, &at, (size_t)(drawn.st_size - at));
    if (sent == 0) errno = EIO;
    failed = sent <= 0;
  }
  failed = failed || fsync(to) != 0 || rename(temporary, path) != 0;
  const int cause = errno;
  close(to);
  if (failed) unlink(temporary);
  errno = cause;
  return failed ? -1 : 0;
}

static int write_picture(const pictures *p, int i, const char *folder) {
  char path[PATH_MAX], temporary[PATH_MAX + 40];
  if (snprintf(path, sizeof(path), "%s/%s.%s", folder, p->names[i], types[i % 2]) >= (int)sizeof(path))
    return log_fail(TOOL_FAILED, "--plot: %s: %s", folder, strerror(ENAMETOOLONG));
  sigset_t before;
  interrupt_hold(&before);
  const int failed = copy(p->descriptors[i], path, temporary, sizeof(temporary));
  sigprocmask(SIG_SETMASK, &before, NULL);
  return failed ? log_fail(TOOL_FAILED, "--plot: %s: %s", path, strerror(errno)) : TOOL_OK;
}

int pictures_end(pictures *p, const char *folder) {
  int code = pclose(p->script) == 0 ? TOOL_OK : log_fail(TOOL_FAILED, "gnuplot: failed, or is not installed");
  for (int i = 0; code == TOOL_OK && i < p->count; i++) {
    struct stat drawn;
    if (fstat(p->descriptors[i], &drawn) != 0 || drawn.st_size == 0)
      code = log_fail(TOOL_FAILED, "gnuplot: drew nothing for %s.%s", p->names[i], types[i % 2]);
  }
  for (int i = 0; code == TOOL_OK && i < p->count; i++) code = write_picture(p, i, folder);
  release(p);
  return code;
}
