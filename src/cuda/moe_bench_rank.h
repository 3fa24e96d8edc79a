/* One rank of the layer benchmark: its memory, its checks, its timings. */
#ifndef DT_CUDA_MOE_BENCH_RANK_H
#define DT_CUDA_MOE_BENCH_RANK_H

#include <draintile/moe_bench.h>

#include "bench_threads.h"
#include "bench_watch.h"
#include "moe_bench_kernels.h"

enum { DT_MOE_BENCH_SAMPLED = 64 }; /* tokens a rank at most */

/* The streams of random values: gate, up and down of a rank's experts, its tokens. */
#define DT_MOE_BENCH_STREAM(what, rank) ((uint64_t)((what)*DT_BENCH_RANKS + (rank)))

/* What one rank saw of one method. */
typedef struct dt_moe_bench_seen {
  double *samples, *issues; /* [repeat] */
  int64_t words_wrong;      /* -1: a part */
  double error;             /* NaN: a part */
  dt_cuda_moe_stats stats;
  cudaGraphExec_t graph;
} dt_moe_bench_seen;

typedef struct dt_moe_bench_rank {
  dt_moe_bench *shared;
  int32_t rank;
  dt_comm *control, *comm;
  dt_cuda_moe *moe;
  cudaStream_t stream;
  dt_bench_watch watch;
  uint16_t *gate, *up, *down, *x, *output, *expected;
  int32_t *ids;
  float *weights;
  unsigned long long *wrong;
  uint16_t *sampled_x;            /* [ranks*sampled][hidden] */
  double *act, *y;                /* of the reference: [ranks*sampled*top_k][intermediate], [ranks*sampled][hidden] */
  void *choices, *first;          /* device */
  double *partial;                /* host, [ranks*sampled][hidden]: this rank's share of every sampled token */
  dt_moe_bench_seen *seen;        /* [method_count] of the row being run */
  const dt_moe_bench_method *set; /* the schedule that the layer has; NULL: what it was created with */
} dt_moe_bench_rank;

struct dt_moe_bench {
  dt_moe_bench_config config;
  const dt_moe_bench_row *row; /* being run */
  dt_moe_bench_result *result;
  int32_t *ids;                                         /* host, [ranks][tokens][top_k] of the row */
  float *weights;                                       /* the same */
  int32_t samples;                                      /* of each rank in this row */
  int32_t sample[DT_BENCH_RANKS][DT_MOE_BENCH_SAMPLED]; /* tokens */
  dt_moe_bench_rank ranks[DT_BENCH_RANKS];
};

/* A rank's thread. Collective. open makes device, weights and layer; run does the row. */
dt_status dt_moe_bench_rank_open(dt_moe_bench_rank *rank);
dt_status dt_moe_bench_rank_run(dt_moe_bench_rank *rank);
dt_status dt_moe_bench_rank_close(dt_moe_bench_rank *rank);

/* moe_bench_check.c: this rank's share of the reference of all sampled tokens; then the largest error of its own, when
 * every rank has its share. Both wait for the stream. */
dt_status dt_moe_bench_refer_samples(dt_moe_bench_rank *rank);
dt_status dt_moe_bench_error(const dt_moe_bench_rank *rank, double *worst);

#endif
