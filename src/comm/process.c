#include "process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char dt_process_state(pid_t pid, uint64_t *start) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t size = read(fd, text, sizeof text - 1);
  close(fd);
  if (size <= 0) return 0;
  text[size] = '\0';
  const char *field = strrchr(text, ')'); /* the name before it may hold anything */
  if (!field || field[1] != ' ') return 0;
  char state = field[2];
  for (int i = 0; i < 20 && field; i++) field = strchr(field + 1, ' '); /* state is field 3, the start time 22 */
  if (start) *start = field ? strtoull(field + 1, NULL, 10) : 0;
  return state;
}

int dt_process_open(pid_t pid) {
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

int dt_process_died(int pidfd) {
  struct pollfd fd = {.fd = pidfd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}
