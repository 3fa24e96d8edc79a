/* An expert-parallel MoE layer on Hopper GPUs: push dispatch, both GEMMs, direct combine and reduction, without the
 * host.
 *
 *     dt_cuda_moe_create(&config, &weights, &moe);                        collective
 *     dt_cuda_moe_forward(moe, &input, stream);                           every rank, any number of times
 *     dt_cuda_moe_check(moe, stream);
 *     dt_cuda_moe_destroy(moe);                                           collective
 *
 * out[t] = sum over choices c ascending of weight[t][c] * expert[id[t][c]](x[t]) in float32, rounded to bf16. bf16 in,
 * between the phases and out; float32 accumulate. Every schedule gives the same bits. docs/moe_cuda.md.
 */
#ifndef DRAINTILE_CUDA_MOE_H
#define DRAINTILE_CUDA_MOE_H

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

/* The experts of one rank, device memory, 16-byte aligned, borrowed until dt_cuda_moe_destroy. */
typedef struct dt_cuda_moe_weights {
  const void *gate, *up;                        /* bf16 [experts_per_rank][intermediate][hidden] each */
  const void *down;                             /* bf16 [experts_per_rank][hidden][intermediate] */
  const float *gate_bias, *up_bias, *down_bias; /* [experts_per_rank][intermediate or hidden]; NULL: none */
} dt_cuda_moe_weights;

/* Ranks must agree on every field but consumers, segment_bands, head, send_sms, ahead, sms, timestamps and timeout_s;
 * of activation_alpha and activation_limit that is not checked. */
typedef struct dt_cuda_moe_config {
  size_t size;                  /* sizeof, set by dt_cuda_moe_config_init */
  dt_comm *comm;                /* fabric `cuda`, of 1 to 8 ranks; outlives the layer */
  int64_t hidden, intermediate; /* multiples of 8 */
  int32_t experts_per_rank, top_k;
  int64_t max_tokens; /* of any rank */
  int64_t max_rows;   /* rows a rank can receive; 0: ranks*max_tokens*min(top_k, experts_per_rank) */
  dt_activation activation;
  float activation_alpha, activation_limit; /* of swiglu_clamped */
  dt_schedule schedule;                     /* serial, signal, direct, wave, interleave or alternate */
  dt_order order; /* of bands, of L1 and L2 and of what is dispatched; with dedup not paced, and remote-first only with
                     serial, signal and direct, for L2 alone */
  /* raster_bands: even; group_tasks: of clusters; wave_experts: of wave alone; 0: the schedule's default */
  int32_t raster_bands, group_tasks, lead, wave_experts;
  int32_t consumers;     /* signal: multiprocessors that put rows beside the tiles, even, up to 64; 0: 16, or a quarter
                            of what this rank has */
  int32_t segment_bands; /* signal: bands of an owner's rows that travel together; 0: 1 */
  int32_t dedup;         /* 1: a token crosses once to each rank that wants it */
  int32_t head;       /* 1024ths of the dispatch's copies that its kernel makes, the rest being made beside the tiles by
                         warps that would idle; 0: none, with dedup 32, -1: none; serial: all */
  int32_t send_sms;   /* dedup: multiprocessors of the dispatch kernel, even, beside which tiles start; 0: 32; serial:
                         all */
  int32_t ahead;      /* dedup: waves of L1 tasks that need no rows of other ranks, before the first that does, if there
                         are so many; 0: as many as take as long as the link, -1: none */
  int32_t sms;        /* multiprocessors that this rank uses, even; 0: all */
  int32_t timestamps; /* 1: records spans (dt_cuda_moe_spans); not with dedup */
  double timeout_s;   /* of any wait on the device, below 4,000; 0: 10 */
} dt_cuda_moe_config;
void dt_cuda_moe_config_init(dt_cuda_moe_config *config);

typedef struct dt_cuda_moe dt_cuda_moe;

/* Collective. Allocates windows on the fabric and working memory on its device, and makes a graph of a forward's
 * launches, as dt_cuda_moe_set_schedule does; a forward allocates nothing.
 * DT_ERR_ARGUMENT names the field; DT_ERR_MISMATCH: the field that ranks disagree on; DT_ERR_UNSUPPORTED: built without
 * CUDA, not a Hopper GPU, or another fabric; DT_ERR_MEMORY. */
dt_status dt_cuda_moe_create(const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights, dt_cuda_moe **moe);
/* Collective. No forward may be in flight on any rank. NULL allowed. */
void dt_cuda_moe_destroy(dt_cuda_moe *moe);

/* Collective, between forwards: another schedule for the following ones. Only schedule, order, raster_bands,
 * group_tasks, lead, wave_experts, consumers, segment_bands, dedup, head, send_sms and ahead of config are read. dedup
 * only in a layer that was created with it. Errors as dt_cuda_moe_create; where config itself is refused the layer goes
 * on as it was. */
dt_status dt_cuda_moe_set_schedule(dt_cuda_moe *moe, const dt_cuda_moe_config *config);

/* Device memory, 16-byte aligned. */
typedef struct dt_cuda_moe_input {
  int64_t tokens;       /* of this rank: 0 to max_tokens; may differ between ranks and calls */
  const void *hidden;   /* bf16 [tokens][hidden] */
  const int32_t *ids;   /* [tokens][top_k], global experts or -1 (dropped) */
  const float *weights; /* [tokens][top_k] */
  void *output;         /* bf16 [tokens][hidden] */
} dt_cuda_moe_input;

/* Queues one forward on `stream` (a cudaStream_t of the fabric's device). No host synchronization, no allocation; may
 * be captured in a CUDA graph. Every rank must make the same sequence of calls. input is read during the call, what it
 * points to until the forward has ended. DT_ERR_ARGUMENT names the field; what the device met dt_cuda_moe_check says.
 */
dt_status dt_cuda_moe_forward(dt_cuda_moe *moe, const dt_cuda_moe_input *input, void *stream);

/* Parts alone, for measurements: what `limit_s` and `hidden_ratio` are made of. The last forward's plan and rows, and
 * the input must be that forward's; DT_ERR_ARGUMENT before any. */
typedef enum dt_cuda_moe_part {
  DT_CUDA_MOE_COMPUTE = 0,  /* L1 and L2 in one launch, no waits for peers, rows to local memory */
  DT_CUDA_MOE_DISPATCH = 1, /* counts, plan and dispatch */
  DT_CUDA_MOE_COMBINE = 2,  /* a put of all rows of other ranks, as one burst */
  DT_CUDA_MOE_REDUCE = 3,
  DT_CUDA_MOE_IN_PLACE = 4 /* as COMPUTE, but rows go where the schedule stores them: to their owners in one that stores
                              direct. A reduction may follow when every rank's is over */
} dt_cuda_moe_part;
dt_status dt_cuda_moe_run_part(dt_cuda_moe *moe, dt_cuda_moe_part part, const dt_cuda_moe_input *input, void *stream);

/* Waits for `stream`, then says how the forwards since creation went: DT_OK; DT_ERR_CAPACITY (more rows than max_rows),
 * DT_ERR_INPUT (an id out of range), DT_ERR_TIMEOUT (the detail names rank, phase, counter, expected, seen),
 * DT_ERR_PEER. Sticky: later forwards do nothing. */
dt_status dt_cuda_moe_check(dt_cuda_moe *moe, void *stream);

/* Waits for `stream` and copies figures of the last forward. */
typedef struct dt_cuda_moe_stats {
  int64_t rows;                           /* of this rank's experts */
  int64_t sent_rows, received_rows;       /* combine rows from and to other ranks' experts */
  int64_t tasks;                          /* L1 and L2 tickets */
  uint64_t dispatch_bytes, combine_bytes; /* this rank sent to other ranks */
  int32_t sms, send_sms, consumers;       /* multiprocessors: of all; of those, with dedup, for the dispatch kernel at
                                             first, and, with signal, of consumers */
} dt_cuda_moe_stats;
dt_status dt_cuda_moe_stats_read(dt_cuda_moe *moe, void *stream, dt_cuda_moe_stats *stats);
/* Device memory that the layer holds, weights apart. */
size_t dt_cuda_moe_device_bytes(const dt_cuda_moe *moe);
/* Waits for `stream`; spans of the last forward, or of the tiles of DT_CUDA_MOE_COMPUTE, per multiprocessor and role
 * (dt_device_track), if config.timestamps (else DT_ERR_ARGUMENT). The layer's, valid until the next call. Room for them
 * is bounded: *lost did not fit. */
dt_status dt_cuda_moe_spans(dt_cuda_moe *moe, void *stream, const dt_span **spans, size_t *count, uint64_t *lost);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
