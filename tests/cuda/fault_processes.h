/* Two ranks as processes, each with a GPU or both with one, of which the parent kills or stops rank 1 while both run.
 * The parent never touches CUDA: its children would inherit the context.
 */
#ifndef DT_TESTS_FAULT_PROCESSES_H
#define DT_TESTS_FAULT_PROCESSES_H

#include <cuda_runtime_api.h>

#include "../comm_ranks.h"
#include "support_gpus.h"

enum { RANKS = 2, SKIPPED = 77 };

/* Seen by parent and ranks. */
typedef struct board {
  int32_t running[RANKS]; /* set by a rank that is in its loop of runs */
  double acted_s;         /* when the parent killed or stopped rank 1 */
} board;

typedef struct rank_process {
  int32_t rank, gpus;
  dt_comm *comm;
  board *board;
  cudaStream_t stream;
} rank_process;

typedef int (*process_body)(rank_process *r); /* 0, or the line of what failed */

static inline int run_process(int32_t rank, int32_t gpus, meeting *m, board *shared, process_body body,
                              void (*release)(void)) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  meeting_seat seat = {m, rank};
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 20;
  dt_comm *control = NULL;
  rank_process r = {.rank = rank, .gpus = gpus, .board = shared};
  EXPECT(dt_comm_create_shm(rank, RANKS, meet_all, &seat, &config, &control) == DT_OK);
  EXPECT(dt_comm_create_cuda(control, rank % gpus, &r.comm) == DT_OK);
  EXPECT(cudaSetDevice(rank % gpus) == cudaSuccess);
  EXPECT(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking) == cudaSuccess);
  const int line = body(&r);
  if (line) dt_comm_abort(r.comm, DT_ERR_INTERNAL, "a check failed");
  if (release) release();
  dt_comm_destroy(r.comm);
  fflush(stdout);
  return line != 0;
}

static inline int both_run(const board *shared) {
  return __atomic_load_n(&shared->running[0], __ATOMIC_SEQ_CST) &&
         __atomic_load_n(&shared->running[1], __ATOMIC_SEQ_CST);
}

/* Prints ok or FAIL with the name; 1: as expected. action: SIGKILL or SIGSTOP for rank 1 while it runs, 0: none.
 * release: called in each rank before its endpoint goes; NULL allowed. */
static inline int check_processes(const char *name, int32_t gpus, process_body body, void (*release)(void),
                                  int action) {
  meeting *m = new_meeting(RANKS);
  board *shared = shared_pages(sizeof *shared);
  pid_t pids[RANKS];
  int codes[RANKS] = {-1, -1};
  const double start_s = now_s();
  fflush(stdout);
  for (int32_t rank = 0; rank < RANKS; rank++) {
    pids[rank] = fork_rank();
    if (pids[rank] == 0) _exit(run_process(rank, gpus, m, shared, body, release));
  }
  while (action && now_s() - start_s < 20 && !both_run(shared)) sleep_s(0.001);
  if (action) {
    sleep_s(0.1);
    shared->acted_s = now_s();
    kill(pids[1], action);
  }
  for (int32_t rank = 0; rank < RANKS; rank++) {
    int code = 0;
    if (rank == 1 && action) kill(pids[1], SIGKILL);
    while (waitpid(pids[rank], &code, WNOHANG) == 0) {
      if (now_s() - start_s > 40) kill(pids[rank], SIGKILL);
      sleep_s(0.001);
    }
    codes[rank] = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
  }
  const int good = codes[0] == 0 && (action || codes[1] == 0);
  printf("%-4s %s (%.1f s)\n", good ? "ok" : "FAIL", name, now_s() - start_s);
  fflush(stdout);
  munmap(m, sizeof *m), munmap(shared, sizeof *shared);
  return good;
}

/* support_gpus, asked in a child. */
static inline int count_gpus(void) {
  int gpus = 0;
  const pid_t probe = fork_rank();
  if (probe == 0) _exit(support_gpus(RANKS));
  return waitpid(probe, &gpus, 0) == probe && WIFEXITED(gpus) ? WEXITSTATUS(gpus) : 0;
}

#endif
