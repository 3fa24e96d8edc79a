/* The third executor: prices a table of tasks on a model of the machine. Deterministic.
 *
 * Workers draw tickets in table order, tasks take calibrated times, direct stores and segments go through a Burst-Gap
 * queue per sending rank (and a queue at a receiver where many send to one), consumers and reduction included.
 * docs/model.md says exactly what it mirrors.
 */
#ifndef DRAINTILE_SIMULATE_H
#define DRAINTILE_SIMULATE_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/plan.h>
#include <draintile/platform.h>
#include <draintile/status.h>
#include <draintile/trace.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The share of a link's capacity that dispatch keeps to where stores are direct: a small piece at a time, when the
 * backlog is as small, so that the stores find room (docs/cpu.md has the measurement). */
#define DT_DISPATCH_LINK_SHARE 0.25
/* Widened bands that a worker of the CPU executor keeps, at most. */
#define DT_BAND_PANELS 4

/* What things cost. Times of a task are base + rows*row; a panel is paid when a worker's task needs another
 * (expert, column) of weights than its previous one of the same phase, or (with cache_panels > 0) than the last
 * cache_panels distinct (phase, expert, column) used by the whole rank: this prices the cache reuse that mixing loses.
 */
typedef struct dt_sim_costs {
  double l1_base_s, l1_row_s, l1_panel_s;
  double l2_base_s, l2_row_s, l2_panel_s;
  double band_s_per_row; /* L1: widening a band's rows when the worker does not hold them */
  double shared_base_s, shared_row_s;
  double reduce_base_s, reduce_row_s; /* a row is a token */
  double copy_s_per_byte;             /* issuing a put: T0 per byte, by whoever issues it */
  double put_base_s;                  /* per put */
  double local_copy_s_per_byte;       /* own rows of dispatch; 0: read where they are */
  double plan_s, entry_s;             /* building the plan; the counts exchange */
  double barrier_s;                   /* serial's stage barriers */
  double wake_s;                      /* from the end of a parked wait or stall until the thread runs */
  double link_bytes_per_s;            /* R of each sender; 0: infinite */
  double link_capacity_bytes;         /* Q */
  double link_latency_s;
  double receiver_bytes_per_s;   /* of a receiver's port, many senders to one; 0: infinite */
  double cores;                  /* processor cores shared by all ranks' threads; 0: one each */
  double dispatch_backlog_bytes; /* dispatch beside direct stores: its backlog and its pieces, DT_DISPATCH_LINK_SHARE*Q;
                                    0: no limit */
  int32_t cache_panels;
  int32_t band_panels; /* widened bands a worker holds, the oldest leaves first; 0: each is widened once */
} dt_sim_costs;
/* Everything free and infinite, band_panels as the CPU executor has them . */
void dt_sim_costs_init(dt_sim_costs *costs);

/* The costs as constants of a platform file, named sim_ and the field, its unit last (sim_l1_s_per_row,
 * sim_cores_count). _from_platform keeps the fields whose constant is missing and counts the others in *found (may be
 * NULL). */
dt_status dt_sim_costs_from_platform(const dt_platform *platform, dt_sim_costs *costs, int32_t *found);
dt_status dt_sim_costs_to_platform(const dt_sim_costs *costs, int64_t n, const char *method, dt_platform *platform);

typedef struct dt_sim_config {
  size_t size;                /* sizeof, set by dt_sim_config_init */
  dt_plan_config plan;        /* all ranks are simulated: rank is ignored, and so are reduce_blocks and (but for being
                                 0 or not) shared_blocks, which follow from the tokens. segment_bands, raster_bands,
                                 lead and group_tasks 0: as the CPU executor's defaults */
  int32_t workers, consumers; /* threads of each rank; consumers carry dispatch and segments, 0: workers do */
  int64_t row_in_bytes;       /* a dispatched row: H * sizeof(dtype) */
  int64_t row_out_bytes;      /* a combined row */
  int64_t reduce_tokens;      /* tokens of a reduce block */
  const int64_t *tokens;      /* [ranks] */
} dt_sim_config;
void dt_sim_config_init(dt_sim_config *config);

typedef struct dt_sim_result {
  double total_s;                                    /* slowest rank */
  double dispatch_s, compute_s, combine_s, reduce_s; /* serial's stages; 0 for the others */
  double worker_wait_s, store_stall_s;               /* summed over workers; over all puts */
  double *rank_total_s;                              /* [ranks], or NULL: the caller's array */
} dt_sim_result;

/* counts as in plan.h. Set result->rank_total_s before the call. traces (may be NULL) receives [ranks] traces, released
 * by dt_sim_traces_free. DT_ERR_ARGUMENT names the field (signal needs consumers >= 1), DT_ERR_MEMORY. */
dt_status dt_simulate(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts,
                      dt_sim_result *result, dt_trace_rank **traces);
void dt_sim_traces_free(dt_trace_rank *traces, int32_t ranks);

/* Fits the task costs from the spans of measured `serial` runs (robust least squares); the fields that serial does not
 * show keep their values in *costs (link_*, cores, ...: set them first, they tell a copy from a stall). traces[count]
 * and plans[count] go together, the ranks of a run one after the other; plans give experts and columns. */
dt_status dt_sim_fit(const dt_sim_config *config, const dt_trace_rank *traces, const dt_plan *const *plans,
                     size_t count, dt_sim_costs *costs);

/* Prices every schedule, each in its default order, and picks the fastest: `auto`. predicted_s[6] by dt_schedule (may
 * be NULL); 0 for signal when consumers is 0: it cannot run. */
dt_status dt_schedule_auto(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts,
                           dt_schedule *schedule, double *predicted_s);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
