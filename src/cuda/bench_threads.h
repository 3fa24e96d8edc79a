/* The ranks of a benchmark as threads of this process. */
#ifndef DT_CUDA_BENCH_THREADS_H
#define DT_CUDA_BENCH_THREADS_H

#include <cuda_runtime_api.h>
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

/* What a rank's work begins with: its endpoint over CUDA, which takes *control and leaves NULL, its device as the
 * thread's, and a stream. Collective. On failure too what is there is given to dt_bench_rank_close, which takes NULLs.
 */
dt_status dt_bench_rank_open(int32_t device, dt_comm **control, dt_comm **comm, cudaStream_t *stream);
void dt_bench_rank_close(dt_comm *control, dt_comm *comm, cudaStream_t stream);
/* Device memory, some for 0 bytes too; `what` is named in the error. */
dt_status dt_bench_allocate(void **pointer, size_t bytes, const char *what);

#endif
