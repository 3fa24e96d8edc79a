/* The parent of the rank processes. */
#include "ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "args.h"
#include "clock.h"
#include "interrupt.h"
#include "log.h"
#include "ranks_internal.h"

enum { TICK_MS = 100 };
static const uint64_t frame_bytes_max = (uint64_t)1 << 32;
static const double grace_s = 5; /* beyond the ranks' own timeouts */

typedef struct rank_group {
  const ranks_config *config;
  rank_process *processes;
  rank_account *accounts;
  double waiting_since_s; /* since the first of the waiting ranks arrived; 0: none waits */
  double stopped_s;       /* for which ranks have been stopped, and when that was looked at last */
  double looked_at_s;
  double failed_at_s; /* 0: not yet */
  int code;           /* of a failure in the parent itself */
} rank_group;

/* 'T' in /proc/PID/stat, behind the parenthesised name. */
static int is_stopped(pid_t pid) {
  char path[64], text[512];
  snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
  FILE *file = fopen(path, "r");
  if (!file) return 0;
  size_t got = fread(text, 1, sizeof(text) - 1, file);
  fclose(file);
  text[got] = 0;
  const char *name_end = strrchr(text, ')');
  return name_end && name_end[1] == ' ' && (name_end[2] == 'T' || name_end[2] == 't');
}

static void child_main(rank_group *group, int32_t rank, const int *sockets, pid_t parent) {
  const ranks_config *config = group->config;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(TOOL_FAILED);
  signal(SIGINT, SIG_IGN); /* the terminal sends it to all; the parent ends the ranks */
  signal(SIGTERM, SIG_DFL);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  for (int32_t i = 0; i < rank; i++) close(group->processes[i].socket);
  rank_link link = {.rank = rank, .ranks = config->ranks, .socket = sockets[1], .account = &group->accounts[rank]};
  close(sockets[0]);
  int code = config->run(&link, config->context);
  _exit(code);
}

static int start(rank_group *group, int32_t rank) {
  int sockets[2];
  rank_process *process = &group->processes[rank];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0)
    return log_fail(TOOL_FAILED, "rank %d: socket: %s", rank, strerror(errno));
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) child_main(group, rank, sockets, parent);
  close(sockets[1]);
  process->socket = sockets[0];
  if (pid < 0) return log_fail(TOOL_FAILED, "rank %d: fork: %s", rank, strerror(errno));
  process->pid = pid;
  process->ended = 0;
  struct timeval patience = {.tv_sec = 10}; /* a stopped rank does not read */
  setsockopt(sockets[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  fcntl(sockets[0], F_SETFL, O_NONBLOCK);
  return TOOL_OK;
}

static void fail(rank_group *group) {
  if (group->failed_at_s == 0) group->failed_at_s = now_s();
}

static void reply(rank_process *process, const frame_header *header, const void *data) {
  fcntl(process->socket, F_SETFL, 0);
  frame_write(process->socket, header, data); /* a rank that is gone shows when it is reaped */
  fcntl(process->socket, F_SETFL, O_NONBLOCK);
}

static void clear_frame(rank_process *process) {
  free(process->data);
  process->data = NULL;
  process->received = 0;
  process->waiting = 0;
}

static void refuse_waiting(rank_group *group) {
  for (int32_t rank = 0; rank < group->config->ranks; rank++) {
    rank_process *process = &group->processes[rank];
    if (!process->waiting) continue;
    frame_header header = {.kind = FRAME_FAILED};
    reply(process, &header, NULL);
    clear_frame(process);
  }
  group->waiting_since_s = 0;
}

/* Every rank waits with the same kind of frame: answers them all. */
static void answer_all(rank_group *group) {
  const ranks_config *config = group->config;
  const frame_header *first = &group->processes[0].header;
  size_t share = first->bytes;
  char *all = malloc(share * (size_t)config->ranks + sizeof(int32_t));
  frame_header header = {.kind = first->kind, .bytes = share * (uint64_t)config->ranks};
  int sound = all != NULL;
  for (int32_t rank = 0; sound && rank < config->ranks; rank++) {
    sound = group->processes[rank].header.kind == first->kind && group->processes[rank].header.bytes == share;
    if (sound && share) memcpy(all + (size_t)rank * share, group->processes[rank].data, share);
  }
  if (sound && first->kind == FRAME_ASK) {
    int32_t answer = 0;
    group->code = config->decide(config->context, &answer);
    sound = group->code == TOOL_OK;
    memcpy(all, &answer, sizeof(answer));
    header.bytes = sizeof(answer);
  }
  if (!sound) {
    fail(group);
    refuse_waiting(group);
  } else {
    for (int32_t rank = 0; rank < config->ranks; rank++) {
      reply(&group->processes[rank], &header, all);
      clear_frame(&group->processes[rank]);
    }
    group->waiting_since_s = 0;
  }
  free(all);
}

static void take_frame(rank_group *group, int32_t rank) {
  const ranks_config *config = group->config;
  rank_process *process = &group->processes[rank];
  if (process->header.kind == FRAME_MESSAGE) {
    int code = config->message(config->context, rank, process->header.tag, process->data, process->header.bytes);
    if (code != TOOL_OK && group->code == TOOL_OK) group->code = code;
    if (code != TOOL_OK) fail(group);
    clear_frame(process);
    return;
  }
  process->waiting = 1;
  if (group->waiting_since_s == 0) group->waiting_since_s = now_s();
  if (group->failed_at_s > 0) {
    refuse_waiting(group);
    return;
  }
  for (int32_t i = 0; i < config->ranks; i++)
    if (!group->processes[i].waiting) return;
  answer_all(group);
}

/* Reads what is there. Returns 0 at the end of the stream. */
static int receive(rank_group *group, int32_t rank) {
  rank_process *process = &group->processes[rank];
  while (!process->waiting) {
    size_t head = sizeof(process->header);
    char *target = process->received < head ? (char *)&process->header + process->received
                                            : process->data + (process->received - head);
    size_t want =
        process->received < head ? head - process->received : process->header.bytes - (process->received - head);
    if (want) {
      ssize_t got = read(process->socket, target, want);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return 1;
      if (got <= 0) return 0;
      process->received += (size_t)got;
    }
    if (process->received == head && !process->data) {
      if (process->header.bytes > frame_bytes_max) return 0;
      process->data = malloc(process->header.bytes + 1);
      if (!process->data) return 0;
    }
    if (process->received >= head && process->received - head == process->header.bytes) take_frame(group, rank);
  }
  return 1;
}

static void reap(rank_group *group) {
  for (int32_t rank = 0; rank < group->config->ranks; rank++) {
    rank_process *process = &group->processes[rank];
    if (process->ended || waitpid(process->pid, &process->wait_status, WNOHANG) != process->pid) continue;
    process->ended = 1;
    if (!WIFEXITED(process->wait_status) || WEXITSTATUS(process->wait_status) != 0) fail(group);
  }
}

static void kill_remaining(rank_group *group) {
  for (int32_t rank = 0; rank < group->config->ranks; rank++) {
    rank_process *process = &group->processes[rank];
    if (process->ended) continue;
    process->stopped = is_stopped(process->pid);
    process->killed_here = 1;
    kill(process->pid, SIGKILL); /* also ends a stopped process */
    waitpid(process->pid, &process->wait_status, 0);
    process->ended = 1;
  }
}

/* Of time in which this process was stopped with them only a moment counts. */
static int is_stopped_too_long(rank_group *group, int stopped, double now) {
  double since = now - group->looked_at_s, moment = 2e-3 * TICK_MS;
  group->looked_at_s = now;
  group->stopped_s = stopped ? group->stopped_s + (since < moment ? since : moment) : 0;
  return group->stopped_s > group->config->timeout_s;
}

/* Ranks that are late where the others wait, or stopped: given up in bounded time. One that still computes after the
 * others have ended is left alone. */
static void watch(rank_group *group) {
  const ranks_config *config = group->config;
  int running = 0, stopped = 0, idle = 0, waiting = 0;
  for (int32_t rank = 0; rank < config->ranks; rank++) {
    rank_process *process = &group->processes[rank];
    if (process->ended) {
      idle++;
      continue;
    }
    running++;
    idle += process->waiting;
    waiting += process->waiting;
    stopped += is_stopped(process->pid);
  }
  double now = now_s();
  if (group->failed_at_s > 0) {
    if (running > 0 && (stopped == running || now > group->failed_at_s + config->timeout_s + grace_s))
      kill_remaining(group);
    return;
  }
  if (idle == 0 || (group->waiting_since_s == 0 && idle == config->ranks))
    group->waiting_since_s = 0;
  else if (group->waiting_since_s == 0)
    group->waiting_since_s = now;
  double waited = group->waiting_since_s > 0 ? now - group->waiting_since_s : 0;
  if (is_stopped_too_long(group, stopped, now) ||
      (waiting > 0 && config->entry_timeout_s > 0 && waited > config->entry_timeout_s)) {
    for (int32_t rank = 0; rank < config->ranks; rank++)
      group->processes[rank].stopped = !group->processes[rank].ended && is_stopped(group->processes[rank].pid);
    fail(group);
  }
}

static int all_ended(const rank_group *group) {
  for (int32_t rank = 0; rank < group->config->ranks; rank++)
    if (!group->processes[rank].ended) return 0;
  return 1;
}

static void serve(rank_group *group, struct pollfd *polls) {
  const ranks_config *config = group->config;
  int ended = 0;
  do { /* once more after the last has ended: its frames may still lie in the socket */
    ended = all_ended(group);
    for (int32_t rank = 0; rank < config->ranks; rank++)
      polls[rank] =
          (struct pollfd){.fd = group->processes[rank].waiting ? -1 : group->processes[rank].socket, .events = POLLIN};
    int ready = poll(polls, (nfds_t)config->ranks, ended ? 0 : TICK_MS);
    for (int32_t rank = 0; ready > 0 && rank < config->ranks; rank++) {
      if (!polls[rank].revents || receive(group, rank)) continue;
      close(group->processes[rank].socket);
      group->processes[rank].socket = -1;
    }
    reap(group);
    if (group->failed_at_s > 0) refuse_waiting(group);
    if (interrupt_number()) kill_remaining(group);
    watch(group);
    if (config->tick) config->tick(config->context, group->accounts);
  } while (!ended);
}

static int run_group(rank_group *group, struct pollfd *polls) {
  int32_t ranks = group->config->ranks, started = 0;
  int code = TOOL_OK;
  fflush(NULL); /* or every rank would write what is buffered */
  for (int32_t rank = 0; rank < ranks; rank++) group->processes[rank].ended = 1; /* until it is started */
  while (code == TOOL_OK && started < ranks) code = start(group, started++);
  if (code != TOOL_OK) {
    kill_remaining(group);
    return code;
  }
  serve(group, polls);
  if (group->code != TOOL_OK) return group->code;
  if (group->failed_at_s > 0 || interrupt_number())
    return ranks_report(group->processes, group->accounts, ranks, interrupt_number());
  return TOOL_OK;
}

int ranks_run(const ranks_config *config) {
  size_t count = (size_t)config->ranks;
  rank_group group = {.config = config};
  struct pollfd *polls = calloc(count, sizeof(*polls));
  group.processes = calloc(count, sizeof(*group.processes));
  group.accounts =
      mmap(NULL, count * sizeof(*group.accounts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int code = TOOL_OK;
  if (!polls || !group.processes || group.accounts == MAP_FAILED) code = log_out_of_memory();
  for (size_t i = 0; code == TOOL_OK && i < count; i++) group.processes[i].socket = -1;
  if (code == TOOL_OK) {
    interrupt_catch();
    code = run_group(&group, polls);
    interrupt_release();
    if (code == TOOL_OK && interrupt_number()) code = interrupt_fail(interrupt_number()); /* came when all had ended */
    for (size_t i = 0; i < count; i++) {
      if (group.processes[i].socket >= 0) close(group.processes[i].socket);
      free(group.processes[i].data);
    }
  }
  if (group.accounts != MAP_FAILED) munmap(group.accounts, count * sizeof(*group.accounts));
  free(group.processes);
  free(polls);
  return code;
}
