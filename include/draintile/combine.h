/* The combine operator on Hopper GPUs: the GEMM of a rank's experts and the return of its rows to their owners, as one
 * call (arXiv 2607.19539, and the direct stores of arXiv 2607.23264).
 *
 * Every rank holds the rows of its local experts, in the order of the packed layout (draintile/plan.h: experts
 * ascending; within one, owners rank+1, ..., rank-1, then the rank's own rows). out[row] = a[row] * b[expert]^T lands
 * in the combine buffer of the row's owner, at the plan's position. bf16 in and out, float32 accumulate.
 *
 *     dt_combine_create(&config, &combine);          collective
 *     dt_combine_set_counts(combine, counts);
 *     dt_combine_run(combine, DT_COMBINE_DIRECT, a, b, stream);     every rank, same order
 *     dt_combine_check(combine, stream);
 *     ... dt_combine_buffer(combine) holds this rank's rows ...
 *     dt_combine_destroy(combine);                   collective
 *
 * All modes give the same bits. Memory order: docs/combine.md.
 */
#ifndef DRAINTILE_COMBINE_H
#define DRAINTILE_COMBINE_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum dt_combine_mode {
  DT_COMBINE_BULK = 0,   /* the whole GEMM, then a put of all rows of other ranks */
  DT_COMBINE_SIGNAL = 1, /* consumers put segments as their bands become ready, beside the GEMM */
  DT_COMBINE_DIRECT = 2  /* the GEMM's epilogue stores every row to its owner */
} dt_combine_mode;

typedef struct dt_combine_config {
  size_t size;              /* sizeof, set by dt_combine_config_init */
  dt_comm *comm;            /* fabric `cuda`, of 1 to 8 ranks; outlives the operator */
  int32_t experts_per_rank; /* 1 to 4000 */
  int64_t n, k;             /* multiples of 8, the same on every rank */
  int64_t rows_max;         /* rows of this rank's experts at most */
  int64_t combine_rows_max; /* rows of this rank's combine buffer */
  int32_t consumers;        /* signal: multiprocessors that put, even, 2 to 64 (default 16) */
  int32_t segment_bands;    /* signal: interior bands of a group that travel together, >= 1 (default 1) */
  int32_t raster_bands;     /* signal: bands that run column by column together; even; 0: 4, so that segments become
                               ready a few at a time. The other modes use the GEMM's default */
  double timeout_s;         /* of any wait on the device, below 4,000; 0: 10 */
} dt_combine_config;
void dt_combine_config_init(dt_combine_config *config);

typedef struct dt_combine dt_combine;

/* Collective. Allocates windows on the fabric and working memory on its device. DT_ERR_ARGUMENT names the field;
 * DT_ERR_UNSUPPORTED: built without CUDA, not a Hopper GPU, or another fabric. */
dt_status dt_combine_create(const dt_combine_config *config, dt_combine **combine);
/* Collective. No run may be in flight on any rank. */
void dt_combine_destroy(dt_combine *combine);

/* counts: [ranks][ranks*experts_per_rank], host, the same on every rank. Makes the plan on the host and copies its
 * tables to the device; no run of this rank may be in flight. DT_ERR_CAPACITY: more rows than a buffer holds, on this
 * rank or a peer. */
dt_status dt_combine_set_counts(dt_combine *combine, const int32_t *counts);

/* Queues one combine on `stream` (a cudaStream_t of the fabric's device): a barrier of all ranks, the GEMM and the
 * stores, then a wait until every peer's rows are in this rank's buffer. a: [rows][k], b: [experts_per_rank][n][k].
 * No host synchronization. Every rank must call with the same mode order; the buffer's old contents are lost. */
dt_status dt_combine_run(dt_combine *combine, dt_combine_mode mode, const void *a, const void *b, void *stream);
/* The GEMM alone, rows to working memory: what the modes are compared with. reserve: as signal runs it, on the
 * multiprocessors that the consumers leave. */
dt_status dt_combine_run_gemm(dt_combine *combine, int reserve, const void *a, const void *b, void *stream);

/* Waits for `stream`. DT_OK; DT_ERR_TIMEOUT: a wait expired, the detail names the phase and the rank waited for;
 * DT_ERR_PEER: another rank failed; or what the GEMM says. Sticky: later runs do nothing. */
dt_status dt_combine_check(dt_combine *combine, void *stream);

/* This rank's combine buffer, device memory [combine_rows_max][n] bf16. */
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
/* counts: [ranks][ranks*experts_per_rank] receives rows slots for every source rank. rows: even, except crossed. */
dt_status dt_combine_route(dt_combine_router router, uint64_t seed, int32_t ranks, int32_t experts_per_rank,
                           int64_t rows, int32_t *counts);

/* What the benchmark times. */
typedef enum dt_combine_method {
  DT_METHOD_LOOP = 0,       /* cuBLAS expert by expert, then NCCL: a message an expert and peer, one group */
  DT_METHOD_GROUPED = 1,    /* cuBLAS grouped by expert and owner, own rows in place; then one NCCL message a peer */
  DT_METHOD_BULK = 2,       /* DT_COMBINE_BULK */
  DT_METHOD_SIGNAL = 3,     /* DT_COMBINE_SIGNAL */
  DT_METHOD_DIRECT = 4,     /* DT_COMBINE_DIRECT */
  DT_METHOD_LOOP_GRAPH = 5, /* loop and grouped, replayed from a CUDA graph */
  DT_METHOD_GROUPED_GRAPH = 6,
  DT_METHOD_GEMM = 7,     /* our GEMM alone */
  DT_METHOD_CUBLAS = 8,   /* cuBLAS grouped GEMM alone, a group an expert */
  DT_METHOD_RESERVED = 9, /* our GEMM alone on the multiprocessors that the consumers leave */
  DT_METHODS = 10
} dt_combine_method;

typedef struct dt_combine_bench_config {
  size_t size;   /* sizeof, set by dt_combine_bench_config_init */
  int32_t ranks; /* GPUs of this machine, 2 to 8 */
  int64_t rows;  /* mean rows a rank */
  int64_t n, k;
  int32_t experts; /* per rank */
  dt_combine_router router;
  uint64_t seed;
  int32_t methods[DT_METHODS]; /* 1: timed. GEMM always is, CUBLAS beside a baseline, RESERVED beside signal */
  int32_t consumers, segment_bands, raster_bands;
  int32_t repeat, warm_up; /* samples of each method (default 20), interleaved; rounds before them (3) */
} dt_combine_bench_config;
void dt_combine_bench_config_init(dt_combine_bench_config *config);

typedef struct dt_combine_timing {
  int32_t timed;             /* 0: not asked for */
  double median_s;           /* of the slowest rank's time */
  double *samples_s;         /* [repeat], the slowest rank's */
  int64_t words_wrong;       /* 4-byte words of all combine buffers that differ from bulk's; -1: not compared */
  double max_relative_error; /* sampled rows against float64, all ranks; NaN: a value was not finite or not checked */
} dt_combine_timing;

typedef struct dt_combine_bench {
  dt_combine_bench_config config;
  dt_combine_timing timings[DT_METHODS];
  int64_t rank_rows[8], sent_rows[8], received_rows[8]; /* of experts; to and from other ranks */
  int64_t expert_rows_max;
  char device[256];
  char nccl[32], cublas[32];        /* versions; "" where not loaded */
  double sm_hz_before, sm_hz_after; /* as the driver reports them; 0: unknown */
} dt_combine_bench;

/* Runs on the first `ranks` GPUs, a thread each. DT_ERR_NO_DEVICE: fewer GPUs; DT_ERR_UNSUPPORTED also where cuBLAS or
 * NCCL is missing and a method needs it. */
dt_status dt_combine_bench_run(const dt_combine_bench_config *config, dt_combine_bench **bench);
void dt_combine_bench_destroy(dt_combine_bench *bench);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
