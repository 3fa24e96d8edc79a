/* The combine operator on Hopper GPUs: the GEMM of a rank's experts and the return of its rows to their owners, as one
 * call (arXiv 2607.19539, and the direct stores of arXiv 2607.23264).
 *
 * Every rank holds the rows of its local experts as the plan lays them out (draintile/plan.h: experts ascending; within
 * one, owners rank+1, ..., rank-1, then the rank's own rows). out[row] = a[row] * b[expert]^T lands in the combine
 * buffer of the row's owner, at the plan's position. bf16 in and out, float32 accumulate.
 *
 *     dt_combine_create(&config, &combine);          collective
 *     dt_combine_set_counts(combine, counts);        or dt_combine_follow_counts: counts that are on the device
 *     dt_combine_run(combine, DT_COMBINE_DIRECT, a, b, stream);     every rank, same order
 *     dt_combine_check(combine, stream);
 *     ... dt_combine_buffer(combine) holds this rank's rows; dt_combine_reduce adds up each token's ...
 *     dt_combine_destroy(combine);                   collective
 *
 * All modes give the same bits. Memory order: docs/combine.md.
 */
#ifndef DRAINTILE_COMBINE_H
#define DRAINTILE_COMBINE_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/plan.h>
#include <draintile/status.h>
#include <draintile/trace.h>
#include <draintile/weights.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum dt_combine_mode {
  DT_COMBINE_BULK = 0,   /* the whole GEMM, then a put of all rows of other ranks */
  DT_COMBINE_SIGNAL = 1, /* consumers put segments as their bands become ready, beside the GEMM */
  DT_COMBINE_DIRECT = 2  /* the GEMM's epilogue stores every row to its owner */
} dt_combine_mode;

/* signal: where the consumers are. */
typedef enum dt_combine_launch {
  DT_COMBINE_LAUNCH_ONE = 0, /* the last blocks of the GEMM's own launch */
  DT_COMBINE_LAUNCH_TWO = 1  /* a kernel of their own, on a stream of higher priority */
} dt_combine_launch;

/* When a run's tiles begin. */
typedef enum dt_combine_entry {
  DT_COMBINE_ENTRY_BESIDE = 0, /* while the ranks still meet: only what is stored to a peer waits for its entry. With
                                  counts on the device: as BEFORE, since the plan needs every rank's */
  DT_COMBINE_ENTRY_BEFORE = 1  /* after all ranks have met: until then one block occupies the device */
} dt_combine_entry;

/* direct in natural order: whether an expert's bands are mixed as in the paced order. */
typedef enum dt_combine_pacing {
  DT_COMBINE_PACING_AUTO = 0, /* where the expert has several units of the GEMM, one of which might be all remote */
  DT_COMBINE_PACING_ON = 1,   /* every expert's */
  DT_COMBINE_PACING_OFF = 2
} dt_combine_pacing;

typedef struct dt_combine_config {
  size_t size;              /* sizeof, set by dt_combine_config_init */
  dt_comm *comm;            /* fabric `cuda`, of 1 to 8 ranks; outlives the operator */
  int32_t experts_per_rank; /* 1 to 4000 */
  int64_t n, k;             /* multiples of 8, the same on every rank */
  int64_t rows_max;         /* rows of this rank's experts at most, padding included */
  int64_t combine_rows_max; /* rows of this rank's combine buffer */
  int32_t consumers;        /* signal: multiprocessors that put, even, 2 to 64 (default 16) */
  int32_t segment_bands;    /* signal: interior bands of a group that travel together, >= 1 (default 1) */
  int32_t raster_bands;     /* signal: bands that run column by column together; even; 0: 4, so that segments become
                               ready a few at a time. The other modes use the GEMM's default */
  dt_layout layout; /* of this rank's rows: packed (default), or aligned: padded rows are multiplied as well, and
                       go nowhere */
  dt_order order;   /* in which the GEMM's bands and signal's segments come (default natural) */
  dt_combine_launch launch; /* default one */
  dt_combine_entry entry;   /* default beside. A run that waits for a peer then does so on all its multiprocessors: if
                               the peer depends on other work of this device, leave some to it (`sms`) */
  dt_combine_pacing pacing; /* default auto */
  int32_t sms;              /* multiprocessors for this rank's kernels; 0: all. Ranks that share a GPU need budgets that
                               together do not exceed it, and a stream, hardware queue and thread each */
  int32_t timestamps;       /* 1: direct records spans (dt_combine_spans) */
  dt_dtype dtype;           /* of a, b and the combine buffer: bf16 (default), as in dt_cuda_gemm */
  double timeout_s;         /* of any wait on the device, below 4,000; 0: 10 */
} dt_combine_config;
void dt_combine_config_init(dt_combine_config *config);

typedef struct dt_combine dt_combine;

/* Collective. Allocates windows on the fabric and working memory on its device. DT_ERR_ARGUMENT names the field;
 * DT_ERR_UNSUPPORTED: built without CUDA, not a Hopper GPU, or another fabric. */
dt_status dt_combine_create(const dt_combine_config *config, dt_combine **combine);
/* Collective; NULL allowed. No run may be in flight on any rank. */
void dt_combine_destroy(dt_combine *combine);

/* counts: [ranks][ranks*experts_per_rank], host, the same on every rank. Makes the plan on the host, copies its tables
 * to the device and waits for the device; no run of this rank may be in flight. DT_ERR_CAPACITY: more rows than a
 * buffer holds, on this rank or a peer. */
dt_status dt_combine_set_counts(dt_combine *combine, const int32_t *counts);

/* Collective. From now on every run takes its counts from device memory: counts[ranks*experts_per_rank], this rank's
 * slots for every expert of every rank, as they are when the stream comes to the run. The run exchanges them (which is
 * its entry barrier) and makes the plan on the device, equal to the host's: no size is known to the host, so a captured
 * run follows counts that change. DT_ERR_CAPACITY and DT_ERR_INPUT then come from dt_combine_check. `counts` stays the
 * caller's and must live as long as runs use it. dt_combine_set_counts, by every rank, ends this. */
dt_status dt_combine_follow_counts(dt_combine *combine, const int32_t *counts);

/* Queues one combine on `stream` (a cudaStream_t of the fabric's device): a barrier of all ranks, the GEMM and the
 * stores, then a wait until every peer's rows are in this rank's buffer. a: [rows][k], b: [experts_per_rank][n][k].
 * No host synchronization. Every rank must call with the same mode order; the buffer's old contents are lost. */
dt_status dt_combine_run(dt_combine *combine, dt_combine_mode mode, const void *a, const void *b, void *stream);
/* The GEMM alone, rows to working memory: what the modes are compared with. reserve: as signal runs it, on the
 * multiprocessors that the consumers leave. */
dt_status dt_combine_run_gemm(dt_combine *combine, int reserve, const void *a, const void *b, void *stream);

/* Queues the reduction at the owner: out[t] = sum over j ascending of weights[t][j] * buffer[row_of_slot[t][j]],
 * float32 fused multiply-adds from 0, rounded once to bf16; slots with row -1 add nothing. Device memory: weights and
 * row_of_slot [tokens][top_k], out [tokens][n], 16-byte aligned. DT_ERR_ARGUMENT names what is wrong. */
dt_status dt_combine_reduce(dt_combine *combine, const float *weights, const int32_t *row_of_slot, int64_t tokens,
                            int32_t top_k, void *out, void *stream);

/* Waits for `stream`. DT_OK; DT_ERR_TIMEOUT: a wait expired, the detail names the phase and the rank waited for;
 * DT_ERR_PEER: another rank failed; or what the GEMM says. Sticky: later runs do nothing. */
dt_status dt_combine_check(dt_combine *combine, void *stream);

/* Waits for `stream`; spans of the last direct run, if config.timestamps (else DT_ERR_ARGUMENT): tiles (kind L2) and
 * their stores, per multiprocessor and warpgroup (dt_device_track). The operator's, valid until the next call. Room for
 * them is bounded: *lost did not fit. */
dt_status dt_combine_spans(dt_combine *combine, void *stream, const dt_span **spans, size_t *count, uint64_t *lost);

/* This rank's combine buffer, device memory [combine_rows_max][n] bf16; the operator's. */
void *dt_combine_buffer(dt_combine *combine);

/* Seeded routers. balanced: every (source, expert) count within one. moderate: two experts a token, drawn without
 * replacement with weights rank^-0.5 under a random permutation. stress: one of a token's two experts from the first
 * eighth of all experts (on rank 0), the other uniform. crossed: all rows of an expert belong to the next rank, evenly:
 * on two ranks the remote share of a large group. */
typedef enum dt_combine_router {
  DT_ROUTER_BALANCED = 0,
  DT_ROUTER_MODERATE = 1,
  DT_ROUTER_STRESS = 2,
  DT_ROUTER_CROSSED = 3
} dt_combine_router;
/* counts: [ranks][ranks*experts_per_rank] receives rows slots for every source rank. rows: even, except crossed.
 * DT_ERR_ARGUMENT names what is out of range; DT_ERR_MEMORY. */
dt_status dt_combine_route(dt_combine_router router, uint64_t seed, int32_t ranks, int32_t experts_per_rank,
                           int64_t rows, int32_t *counts);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
