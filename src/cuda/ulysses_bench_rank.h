/* One rank of the Ulysses benchmark: its memory, its checks, its timings. */
#ifndef DT_CUDA_ULYSSES_BENCH_RANK_H
#define DT_CUDA_ULYSSES_BENCH_RANK_H

#include <draintile/ulysses_bench.h>

#include "combine_bench.h"
#include "ulysses.h"

typedef struct dt_ulysses_bench_shared dt_ulysses_bench_shared;

typedef struct dt_ulysses_bench_rank {
  dt_ulysses_bench_shared *shared;
  int32_t rank, device;
  dt_comm *control, *comm;
  dt_ulysses *ulysses, *beside; /* beside: sets multiprocessors aside for the way in */
  dt_window *align;
  uint32_t *align_at[DT_BENCH_RANKS], *expired;
  uint32_t round;
  int sms; /* 0: all */
  cudaStream_t stream;
  cudaEvent_t start, stop;
  cudaGraphExec_t graphs[DT_ULYSSES_METHODS];
  uint16_t *inputs[3], *block, *expected, *expected_beside;
  size_t output_bytes;
  uint8_t *flush;
  unsigned long long *wrong;
  double *samples[DT_ULYSSES_METHODS], *asleep; /* asleep: the kernel's, where long runs are heated */
  int64_t words_wrong[DT_ULYSSES_METHODS];
  double error;
} dt_ulysses_bench_rank;

struct dt_ulysses_bench_shared {
  dt_ulysses_bench *result;
  const dt_ulysses_bench_config *config;
  dt_attention_config attention;
  uint16_t *block;                   /* host: the random values */
  int32_t repeat;                    /* as it comes out */
  int32_t heats[DT_ULYSSES_METHODS]; /* untimed runs before a method's samples; 0: of short runs, which take turns */
  dt_ulysses_bench_rank ranks[DT_BENCH_RANKS];
};

static inline int dt_ulysses_bench_times(const dt_ulysses_bench_config *config, int method) {
  return config->methods == 0 || (config->methods >> method & 1);
}

/* A rank's thread: makes everything, checks every method, times them in turns. Collective. */
dt_status dt_ulysses_bench_work(dt_ulysses_bench_rank *rank);
void dt_ulysses_bench_release(dt_ulysses_bench_rank *rank);

#endif
