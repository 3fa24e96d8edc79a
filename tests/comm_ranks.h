/* Runs one function on every rank of a fabric: threads on `local`, forked processes on `shm`. */
#ifndef DT_TESTS_COMM_RANKS_H
#define DT_TESTS_COMM_RANKS_H

#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/comm.h>

enum { RANKS_MAX = 16 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Zeroed; shared with forked ranks. */
static inline void *shared_pages(size_t bytes) {
  void *pages = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) abort();
  return pages;
}

/* In a rank: prints and returns the line, since cmocka's asserts do not work off its thread. */
#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, dt_error_detail());               \
      return __LINE__;                                                                                                 \
    }                                                                                                                  \
  } while (0)

typedef int (*rank_body)(dt_comm *comm, void *argument); /* 0: as expected */

static inline double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_s(double seconds) {
  struct timespec time = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&time, NULL);
}

/* Never -1: killing that "process" would kill everybody. */
static inline pid_t fork_rank(void) {
  const pid_t pid = fork();
  if (pid < 0) abort();
  return pid;
}

/* An out-of-band all-gather in memory inherited through fork. */
typedef struct meeting {
  int32_t ranks, arrived;
  int32_t broken; /* the launcher saw a rank die */
  unsigned char data[RANKS_MAX][8192];
} meeting;

typedef struct meeting_seat {
  meeting *meeting;
  int32_t rank;
} meeting_seat;

static inline int meet_all(void *context, const void *send, void *receive, size_t bytes) {
  meeting_seat *seat = context;
  meeting *m = seat->meeting;
  if (bytes > sizeof m->data[0]) return 2;
  memcpy(m->data[seat->rank], send, bytes);
  __atomic_fetch_add(&m->arrived, 1, __ATOMIC_SEQ_CST);
  double end = now_s() + 20.0;
  while (__atomic_load_n(&m->arrived, __ATOMIC_SEQ_CST) < m->ranks) {
    if (now_s() > end || __atomic_load_n(&m->broken, __ATOMIC_SEQ_CST)) return 3;
    sleep_s(1e-4);
  }
  for (int32_t p = 0; p < m->ranks; p++) memcpy((unsigned char *)receive + (size_t)p * bytes, m->data[p], bytes);
  return 0;
}

static inline meeting *new_meeting(int32_t ranks) {
  meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) abort();
  m->ranks = ranks;
  return m;
}

typedef struct rank_thread {
  dt_comm *comm;
  rank_body body;
  void *argument;
  int result;
} rank_thread;

static inline void *rank_main(void *argument) {
  rank_thread *rank = argument;
  rank->result = rank->body(rank->comm, rank->argument);
  dt_comm_destroy(rank->comm);
  return NULL;
}

static inline int run_local(int32_t ranks, const dt_comm_config *config, rank_body body, void *argument, int *results) {
  dt_comm *endpoints[RANKS_MAX];
  if (dt_comm_create_local(ranks, config, endpoints)) return __LINE__;
  pthread_t threads[RANKS_MAX];
  rank_thread state[RANKS_MAX];
  for (int32_t p = 0; p < ranks; p++) {
    state[p] = (rank_thread){.comm = endpoints[p], .body = body, .argument = argument};
    if (pthread_create(&threads[p], NULL, rank_main, &state[p])) abort();
  }
  int worst = 0;
  for (int32_t p = 0; p < ranks; p++) {
    pthread_join(threads[p], NULL);
    if (results) results[p] = state[p].result;
    if (state[p].result) worst = state[p].result;
  }
  return worst;
}

/* One rank's process: creates, runs, destroys. Exit code 0, 1 (body), 2 (create). */
static inline void run_shm_rank(meeting *m, int32_t rank, int32_t ranks, const dt_comm_config *config, rank_body body,
                                void *argument) {
  meeting_seat seat = {m, rank};
  dt_comm *comm = NULL;
  if (dt_comm_create_shm(rank, ranks, meet_all, &seat, config, &comm)) {
    fprintf(stderr, "create on rank %d: %s\n", rank, dt_error_detail());
    _exit(2);
  }
  int result = body(comm, argument);
  dt_comm_destroy(comm);
  _exit(result ? 1 : 0);
}

/* results[ranks] (may be NULL): exit codes, or 128 + the signal. */
static inline int run_shm(int32_t ranks, const dt_comm_config *config, rank_body body, void *argument, int *results) {
  meeting *m = new_meeting(ranks);
  pid_t pids[RANKS_MAX];
  fflush(NULL);
  for (int32_t p = 0; p < ranks; p++) {
    pids[p] = fork_rank();
    if (pids[p] == 0) run_shm_rank(m, p, ranks, config, body, argument);
  }
  int worst = 0;
  for (int32_t p = 0; p < ranks; p++) {
    int status = 0;
    waitpid(pids[p], &status, 0);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (results) results[p] = code;
    if (code) worst = code;
  }
  munmap(m, sizeof *m);
  return worst;
}

static inline int run_ranks(int shm, int32_t ranks, const dt_comm_config *config, rank_body body, void *argument) {
  return shm ? run_shm(ranks, config, body, argument, NULL) : run_local(ranks, config, body, argument, NULL);
}

#endif
