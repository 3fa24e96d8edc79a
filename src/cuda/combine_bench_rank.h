/* One rank of the combine benchmark: its memory, its checks, its timings. */
#ifndef DT_CUDA_COMBINE_BENCH_RANK_H
#define DT_CUDA_COMBINE_BENCH_RANK_H

#include <pthread.h>

#include <draintile/combine.h>

#include "combine_bench.h"

enum { DT_BENCH_PERIOD = 8388593 /* of the random values: a prime, so that no two rows or experts hold the same */ };

typedef struct dt_bench dt_bench;

/* One rank: its thread, device and memory. */
typedef struct dt_bench_rank {
  dt_bench *shared;
  pthread_t thread;
  int32_t rank;
  dt_comm *control, *comm;
  dt_combine *combine;
  dt_plan *plan;
  dt_peer *peer;
  dt_window *align;
  uint32_t *align_at[DT_BENCH_RANKS], *expired;
  uint32_t round;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  cudaGraphExec_t graphs[DT_METHODS];
  uint16_t *a, *b, *block; /* a holds a row more: shifted by one it is another input */
  uint16_t *packed, *receive, *expected;
  uint8_t *flush;
  unsigned long long *wrong;
  double *samples[DT_METHODS];
  int64_t words_wrong[DT_METHODS];
  double error[DT_METHODS];
  dt_status status;
  char detail[256];
} dt_bench_rank;

struct dt_bench {
  dt_combine_bench *result;
  const dt_combine_bench_config *config;
  int32_t *counts;
  int64_t rows_max, combine_rows_max;
  uint16_t *block; /* host */
  dt_peers *peers;
  dt_bench_rank ranks[DT_BENCH_RANKS];
};

int dt_bench_is_baseline(int method); /* of cuBLAS and NCCL, rows in `receive` */
/* Whether a method is timed. */
int dt_bench_wanted(const dt_bench *bench, int method);
/* A rank's thread: makes everything, checks every method, times them in turns. Collective. */
dt_status dt_bench_rank_work(dt_bench_rank *rank);
void dt_bench_rank_release(dt_bench_rank *rank);

#endif
