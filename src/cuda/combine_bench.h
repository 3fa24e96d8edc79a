/* Inside the combine benchmark: its device helpers and the libraries it compares with. */
#ifndef DT_CUDA_COMBINE_BENCH_H
#define DT_CUDA_COMBINE_BENCH_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_BENCH_RANKS = 8, DT_BENCH_SLOT_WORDS = 8 };

/* to[i] = block[(i + offset) % period]. */
cudaError_t dt_bench_fill(uint16_t *to, int64_t elements, const uint16_t *block, int64_t period, int64_t offset,
                          cudaStream_t stream);
/* Reads memory: evicts the cache without dirty lines, and keeps the device busy while the host queues what is timed. */
cudaError_t dt_bench_settle(const void *memory, size_t bytes, cudaStream_t stream);
/* Adds to *wrong the 4-byte words in which a and b differ. */
cudaError_t dt_bench_compare(const void *a, const void *b, size_t bytes, unsigned long long *wrong,
                             cudaStream_t stream);
/* combine_bench_host.c: elements of the random values; a prime, so that no two rows or experts hold the same ones. */
enum { DT_BENCH_PERIOD = 8388593 };
/* *values: [DT_BENCH_PERIOD] normal numbers in bf16, the caller's to free. DT_ERR_MEMORY. */
dt_status dt_bench_values(uint64_t seed, uint16_t **values);
/* *hz: cycles of the current device's clock a second, over 3 ms of the stream; as it was where the device says none. */
dt_status dt_bench_clock(cudaStream_t stream, double *hz);
/* DT_ERR_UNSUPPORTED: one of the first `gpus` devices cannot reach the memory of another. */
dt_status dt_bench_check_peers(int32_t gpus);
/* One row of a combine buffer to compare with float64, and where its operands begin in the random values. */
typedef struct dt_bench_sample {
  int64_t row, a, b;
} dt_bench_sample;
enum { DT_BENCH_CHECKED_COLUMNS = 32 };
/* Raises *worst, the bits of a double, to the largest ||difference|| / ||sums|| of the rows over some of their columns.
 * NaN is larger than any number. */
cudaError_t dt_bench_sample_error(const uint16_t *buffer, const dt_bench_sample *samples, int count,
                                  const uint16_t *block, int64_t period, int64_t n, int64_t k, uint64_t seed,
                                  unsigned long long *worst, cudaStream_t stream);
/* A barrier of all ranks' streams: own[peer*DT_BENCH_SLOT_WORDS] is written by that peer, theirs[peer] is this rank's
 * word there. *expired is set if one is more than five seconds late. */
cudaError_t dt_bench_align(int32_t rank, int32_t ranks, uint32_t round, const uint32_t *own, uint32_t *const *theirs,
                           uint32_t *expired, cudaStream_t stream);

/* cuBLAS and NCCL, loaded at run time, and the communicators of all ranks. */
typedef struct dt_peers dt_peers;
dt_status dt_peers_open(int32_t ranks, dt_peers **peers);
void dt_peers_close(dt_peers *peers);
void dt_peers_versions(const dt_peers *peers, char *cublas, char *nccl, size_t size);

/* One rank's products and messages. The pointers are device memory; `packed` [rows][n] takes this rank's output rows,
 * `receive` [combine_rows][n] the rows it owns. */
typedef struct dt_peer_problem {
  const dt_plan *plan;
  const int32_t *counts; /* [ranks][ranks*experts] */
  int64_t n, k;
  const uint16_t *a, *b;
  uint16_t *packed, *receive;
  cudaStream_t stream;
} dt_peer_problem;
typedef struct dt_peer dt_peer;
dt_status dt_peer_create(dt_peers *peers, const dt_peer_problem *problem, dt_peer **peer);
void dt_peer_destroy(dt_peer *peer);
/* Queue on the problem's stream. */
/* The products alone. Before the other calls, by every rank: cuBLAS loads its kernels when they are first needed, which
 * may wait for a GPU that waits for this rank's messages. */
dt_status dt_peer_warm(dt_peer *peer);
dt_status dt_peer_loop(dt_peer *peer);    /* a product an expert, then a message an expert and owner in one group */
dt_status dt_peer_grouped(dt_peer *peer); /* one grouped product by expert and owner, then a message an owner */
dt_status dt_peer_gemm(dt_peer *peer);    /* one grouped product by expert */

#ifdef __cplusplus
}
#endif
#endif
