/* Samples of the tile engine's stamps, over many runs of one layer. */
#ifndef DT_BENCH_STORES_H
#define DT_BENCH_STORES_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>
#include <draintile/cuda_moe.h>

typedef struct stores_list {
  double *values;
  size_t count, capacity;
} stores_list;

/* Seconds, of L2 tiles but for l1_period. span: a warpgroup's stores of a tile, first store to completion; issue: to
 * the last store issued. period: from the end of the warpgroup's tile before to this one's; stall: what of it the
 * tile's multiplications at the tensor cores' full rate do not take; wait: for its first operands. The last three are
 * of a run: the multiprocessors with a burst under way, and how many start within a window. */
typedef struct stores_samples {
  stores_list span, issue, period, l1_period, stall, wait, active_mean, active_max, k_act;
  double matrix_s, l1_matrix_s; /* of a tile at the full rate, by the clock of the last run */
  uint64_t lost;
} stores_samples;

void stores_begin(stores_samples *samples); /* forgets, keeps the memory */
void stores_end(stores_samples *samples);
/* Reads what the last run of `moe` stamped, number `run`: tiles of a quarter of the clusters, another quarter each
 * time, and every fourth time who stores at once. Whoever reads more keeps the GPU waiting. */
dt_status stores_add(stores_samples *samples, dt_cuda_moe *moe, cudaStream_t stream, int32_t run, double cycles_a_stage,
                     double window_s);

#endif
