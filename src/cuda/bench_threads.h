/* The ranks of a benchmark as threads of this process. */
#ifndef DT_CUDA_BENCH_THREADS_H
#define DT_CUDA_BENCH_THREADS_H

#include <pthread.h>
#include <stdint.h>

#include <draintile/comm.h>

typedef struct dt_bench_thread {
  void *rank;
  dt_status (*work)(void *rank);
  dt_comm *const *control, *const *comm; /* the rank's; comm owns control from when it is there */
  /* The rest is dt_bench_threads_run's. */
  pthread_t thread;
  dt_status status;
  char detail[256];
} dt_bench_thread;

/* Every rank's work in a thread of its own; returns when all have ended. A rank that fails aborts its fabric. Of
 * several failures the one that caused the others'; DT_ERR_SYSTEM where a thread cannot be made. */
dt_status dt_bench_threads_run(dt_bench_thread *threads, int32_t ranks);

#endif
