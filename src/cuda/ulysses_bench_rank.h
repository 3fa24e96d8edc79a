/* One rank of the Ulysses benchmark: its memory and checks (ulysses_bench_rank.c), its timings (ulysses_bench_time.c).
 */
#ifndef DT_CUDA_ULYSSES_BENCH_RANK_H
#define DT_CUDA_ULYSSES_BENCH_RANK_H

#include <draintile/ulysses_bench.h>

#include "bench_threads.h"
#include "bench_watch.h"
#include "ulysses.h"

typedef struct dt_ulysses_bench_shared dt_ulysses_bench_shared;

typedef struct dt_ulysses_bench_rank {
  dt_ulysses_bench_shared *shared;
  int32_t rank, device;
  dt_comm *control, *comm;
  dt_ulysses *ulysses, *beside; /* beside: sets multiprocessors aside for the way in */
  int sms;                      /* 0: all */
  cudaStream_t stream;
  dt_bench_watch watch;
  cudaGraphExec_t graphs[DT_ULYSSES_METHODS];
  uint16_t *inputs[3], *block, *expected, *expected_beside;
  size_t output_bytes;
  unsigned long long *wrong;
  double *samples[DT_ULYSSES_METHODS], *asleep; /* [repeat]; asleep: the kernel's, of long rows */
  int64_t words_wrong[DT_ULYSSES_METHODS];
  double error;
} dt_ulysses_bench_rank;

struct dt_ulysses_bench_shared {
  dt_ulysses_bench *result;
  const dt_ulysses_bench_config *config;
  dt_attention_config attention;
  uint16_t *block;                   /* host: the random values */
  int32_t repeat;                    /* as it comes out */
  int in_blocks;                     /* a row of long runs */
  int32_t heats[DT_ULYSSES_METHODS]; /* untimed runs before a block of a method's samples */
  dt_ulysses_bench_rank ranks[DT_BENCH_RANKS];
};

static inline int dt_ulysses_bench_times(const dt_ulysses_bench_config *config, int method) {
  return config->methods == 0 || (config->methods >> method & 1);
}

/* A rank's thread: makes everything, checks every method, times them. Collective. */
dt_status dt_ulysses_bench_work(dt_ulysses_bench_rank *rank);
void dt_ulysses_bench_release(dt_ulysses_bench_rank *rank);
/* Samples of every method that is to be timed. Collective. */
dt_status dt_ulysses_bench_time(dt_ulysses_bench_rank *rank);

/* For the timings: a run of a method on the rank's stream; and whether the operator without, or with, the way in beside
 * the attention is to run serially (collective). */
dt_status dt_ulysses_bench_queue(dt_ulysses_bench_rank *rank, int method);
dt_status dt_ulysses_bench_set_serial(dt_ulysses_bench_rank *rank, int beside, int serial);

#endif
