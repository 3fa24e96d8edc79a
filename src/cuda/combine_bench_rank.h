/* One rank of the combine benchmark: its memory, its checks, its timings. */
#ifndef DT_CUDA_COMBINE_BENCH_RANK_H
#define DT_CUDA_COMBINE_BENCH_RANK_H

#include <draintile/combine_bench.h>

#include "bench_threads.h"
#include "bench_watch.h"

enum { DT_BENCH_CHECKED_ROWS = 48 /* sampled a rank */ };

typedef struct dt_bench dt_bench;

/* What the largest setting needs of one rank's memory. */
typedef struct dt_bench_sizes {
  int64_t rows, combine_rows; /* the operator's capacities */
  int64_t a, b, out, combine; /* elements */
  int32_t experts;
} dt_bench_sizes;

/* One rank: its thread, device and memory. */
typedef struct dt_bench_rank {
  dt_bench *shared;
  int32_t rank, device;
  dt_comm *control, *comm;
  dt_combine *combine;
  dt_combine_bench_case combine_of; /* the setting that `combine` was made for */
  dt_peer *peer;
  cudaStream_t stream;
  dt_bench_watch watch;
  cudaGraphExec_t graphs[DT_METHODS];
  cudaGraphExec_t *retired; /* [retired_count] of settings before: destroyed at the end alone */
  int32_t retired_count;
  uint16_t *a, *b, *block; /* a holds a row more: shifted by one it is another input */
  uint16_t *packed, *receive, *expected;
  unsigned long long *wrong; /* [2]: words, and a relative error's bits */
  dt_bench_sample *sampled;  /* [DT_BENCH_CHECKED_ROWS] */
  int32_t *row_of_slot;      /* [combine rows] */
  float *weights;            /* [combine rows] */
  int32_t *own_counts;       /* [ranks*experts], device */
  double *samples[DT_METHODS];
  int64_t words_wrong[DT_METHODS];
  double error[DT_METHODS];
} dt_bench_rank;

struct dt_bench {
  dt_combine_bench_config config;
  dt_combine_bench result;              /* of the setting under way */
  const dt_combine_bench_case *setting; /* &result.setting */
  dt_bench_sizes sizes;
  int32_t *counts;
  dt_plan *plans[DT_BENCH_RANKS];
  double *samples[DT_METHODS]; /* of the slowest rank */
  uint16_t *block;             /* host */
  dt_peers *peers;
  double started_s;
  dt_bench_rank ranks[DT_BENCH_RANKS];
};

int dt_bench_is_baseline(int method); /* of cuBLAS and NCCL, rows in `receive` */

/* The setting `index` becomes the current one, on the host; rank 0 alone. */
dt_status dt_bench_begin(dt_bench *bench, int64_t index);
/* The ranks' figures become its result, which `done` gets; rank 0 alone. */
void dt_bench_end(dt_bench *bench);

/* A rank's thread: makes everything, then for each setting checks every method and times them in turns. Collective. */
dt_status dt_bench_rank_work(dt_bench_rank *rank);
void dt_bench_rank_release(dt_bench_rank *rank);

/* The operator of the setting under way. Collective. */
dt_status dt_bench_make_combine(dt_bench_rank *rank, int timestamps, dt_combine **combine);
/* combine_bench_stores.c: direct with timestamps, into the result's `stores`. Collective. */
dt_status dt_bench_count_stores(dt_bench_rank *rank);

dt_status dt_bench_run_method(dt_bench_rank *rank, int method);
dt_status dt_bench_time_method(dt_bench_rank *rank, int method, double *seconds);
/* The methods with counts on the device, which leave the operator without the host's. Collective. */
dt_status dt_bench_time_counts(dt_bench_rank *rank);
/* Runs a method once from buffers that hold another product's rows and poison, and compares. Collective. */
dt_status dt_bench_check_method(dt_bench_rank *rank, int method);
/* The rows of this rank's buffer that are compared with float64. */
dt_status dt_bench_choose_samples(dt_bench_rank *rank);
/* Which element of the random values a rank's operands begin with. */
int64_t dt_bench_offset_a(int32_t rank);
int64_t dt_bench_offset_b(int32_t rank);

#endif
