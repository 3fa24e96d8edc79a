/* An expert-parallel MoE layer whose all-to-alls hide behind its GEMMs.
 *
 *     dt_moe_create(comm, &config, &weights, &moe);
 *     dt_moe_forward(moe, &input, output, &stats);    any number of times
 *     dt_moe_destroy(moe);
 *
 * out[t] = sum over k ascending of weight[t][k] * expert[id[t][k]](x[t]) in float32, shared experts added last, then
 * rounded to the exchange type. Every schedule gives the same bits.
 */
#ifndef DRAINTILE_MOE_H
#define DRAINTILE_MOE_H

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

typedef struct dt_moe dt_moe;

/* Ranks must agree on every field but workers, consumers and the injected delay. */
typedef struct dt_moe_config {
  size_t size;    /* sizeof, set by dt_moe_config_init */
  dt_dtype dtype; /* of input, output and everything exchanged: F32, BF16 or F16 */
  int32_t top_k;
  int64_t max_tokens;         /* of any rank */
  int64_t max_rows;           /* rows a rank can receive; 0: ranks*max_tokens*min(top_k, E) */
  int32_t workers, consumers; /* threads of this rank; consumers carry dispatch and segments */
  dt_schedule schedule;
  dt_layout layout;
  dt_order order;         /* (dt_order)-1, as initialized: dt_schedule_default_order */
  int32_t tile_m, tile_n; /* rows of a band; columns of a tile (0: chosen, see docs/cpu.md) */
  int32_t segment_bands, raster_bands, lead, wave_experts, group_tasks; /* 0: the schedule's default */
  uint64_t delay_seed; /* testing: nonzero injects random delays in workers and consumers */
  int32_t delay_max_us;
  int32_t publish_early; /* testing only: negative control (b), counters before stores */
} dt_moe_config;
void dt_moe_config_init(dt_moe_config *config);

/* Collective. comm and weights are borrowed until dt_moe_destroy. DT_ERR_ARGUMENT, DT_ERR_MISMATCH (every rank, naming
 * the field), DT_ERR_MEMORY, DT_ERR_SYSTEM (no thread), and what the fabric returns. Sets *moe only on success. */
dt_status dt_moe_create(dt_comm *comm, const dt_moe_config *config, const dt_moe_weights *weights, dt_moe **moe);
void dt_moe_destroy(dt_moe *moe); /* collective, unless the layer failed; NULL allowed */

/* Collective: another schedule (and its order and parameters) for the following forwards, same buffers. Only the
 * schedule, order, segment_bands, raster_bands, lead, wave_experts, group_tasks and testing fields of config are read.
 * DT_ERR_ARGUMENT, DT_ERR_MISMATCH: the old schedule stays. */
dt_status dt_moe_set_schedule(dt_moe *moe, const dt_moe_config *config);

typedef struct dt_moe_input {
  int64_t tokens;       /* T_s of this rank; may be 0 and may differ between ranks and calls */
  const void *hidden;   /* [tokens][H], dtype */
  const int32_t *ids;   /* [tokens][top_k], global experts or -1 (dropped) */
  const float *weights; /* [tokens][top_k] */
} dt_moe_input;

/* Seconds, on this rank; stage times of `serial` lie between barriers, so they cover the slowest rank. */
typedef struct dt_moe_stats {
  double total_s;                                            /* ids ready to output complete, plan included */
  double plan_s, dispatch_s, compute_s, combine_s, reduce_s; /* serial only, but plan_s; else 0 */
  int64_t rows, padded_rows;                                 /* of this rank */
  int64_t tiles;                                             /* L1 and L2 tasks */
  uint64_t bytes_sent;                                       /* off this rank */
} dt_moe_stats;

/* Collective. output [tokens][H], dtype, written only here; stats may be NULL. DT_ERR_ARGUMENT or DT_ERR_INPUT (this
 * rank's input), DT_ERR_CAPACITY (more rows than max_tokens or max_rows, on every rank), DT_ERR_TIMEOUT, DT_ERR_PEER,
 * DT_ERR_MEMORY. An error is sticky across ranks: later forwards return it too. */
dt_status dt_moe_forward(dt_moe *moe, const dt_moe_input *input, void *output, dt_moe_stats *stats);

/* The spans of the last forward on this rank, always recorded. Valid until the next forward. */
void dt_moe_spans(const dt_moe *moe, const dt_span **spans, size_t *count);
/* The plan of the last forward; NULL before the first. Valid until the next forward. */
const dt_plan *dt_moe_plan(const dt_moe *moe);
/* counts[ranks][ranks*E] of the last forward, zeros before the first. Valid until the next forward. */
const int32_t *dt_moe_counts(const dt_moe *moe);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
