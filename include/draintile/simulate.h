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
/* Everything free and infinite, band_panels as the CPU executor has them. */
void dt_sim_costs_init(dt_sim_costs *costs);

/* The costs as constants of a platform file, named sim_ and the field, its unit last (sim_l1_s_per_row,
 * sim_cores_count). _from_platform keeps the fields whose constant is missing and counts the others in *found (may be
 * NULL); n, method: as dt_platform_constant. DT_ERR_ARGUMENT names a constant that is negative or not finite. */
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
 * and plans[count] go together, the ranks of a run one after the other; plans give experts and columns. Both are
 * borrowed. *costs is written on success only: DT_ERR_INPUT names spans that are none of their plan's tasks or lack
 * tiles, DT_ERR_ARGUMENT the field, DT_ERR_MEMORY. */
dt_status dt_sim_fit(const dt_sim_config *config, const dt_trace_rank *traces, const dt_plan *const *plans,
                     size_t count, dt_sim_costs *costs);

/* Prices every schedule, each in its default order, and picks the fastest: `auto`. predicted_s[6] by dt_schedule (may
 * be NULL); 0 for signal when consumers is 0: it cannot run. Errors as dt_simulate. */
dt_status dt_schedule_auto(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts,
                           dt_schedule *schedule, double *predicted_s);

/* A MoE layer on GPUs as draintile/cuda_moe.h runs it, launch by launch: counts and table, the first pieces of dispatch
 * by all multiprocessors, L1 and L2 in the table's order by clusters of two with the other pieces copied beside them,
 * serial's puts, the reduction. docs/model.md says what is mirrored and how far it is right. */
typedef struct dt_layer_costs {
  double tile_1_s, tile_2_s; /* a multiprocessor's time for 128 rows by 256 columns at K = hidden, intermediate */
  double activation_s;       /* what a tile of L1 takes longer */
  double short_ratio;        /* of all that, for at most 64 rows */
  double alone_ratio;        /* the same for a band alone while all clusters run: nobody shares its weights */
  double sustained_ratio;    /* times take so much longer where layers follow each other, */
  double sustained_s;        /* half of that where they take this long */
  double least_ratio;        /* at the highest clock, where power is left */
  double power_s_per_byte;   /* memory's power, as time of all multiprocessors at full power */
  double memory_bytes_per_s; /* reading weights */
  double memory_latency_s;   /* of weights that come from there: a CTA has four stages of operands under way */
  double together_ratio;     /* of tile times: what tiles cost each other when all run */
  double cache_bytes;        /* what passes until a line is gone */
  double link_bytes_per_s, link_capacity_bytes, link_latency_s; /* a rank's; latency: until rows may be used */
  double tile_link_ratio;        /* a CTA's share of a full link, over a copying warp's */
  double copy_bytes_per_s;       /* all multiprocessors, own rows */
  double warp_bytes_per_s;       /* a warp that dispatches beside tiles, */
  double quiet_warp_bytes_per_s; /* and while none runs */
  double piece_s;                /* before the first row of a piece */
  /* A warp's row takes so much longer where memory is at its rate, and behind a full link; tiles do while all such
   * warps copy, and again while all of them wait for the link. */
  double crowd_ratio, shadow_ratio, beside_ratio, beside_full_ratio;
  double copy_warps;                      /* of them, a multiprocessor */
  double expand_bytes_per_s;              /* dedup: a warp beside tiles, inside the GPU */
  double sm_bytes_per_s;                  /* dedup: a multiprocessor of the dispatch kernel */
  double launch_s, plan_s, plan_expert_s; /* a kernel; from the start until the table is there, and for each expert */
  double table_s;                         /* a table alone, before L1 and L2 alone */
  double fill_s;                          /* from a wait's end to the first multiplication */
  double release_s, store_s;              /* a stored tile of L1 until it is seen; a tile's stores at once */
  double put_s, reduce_s;                 /* serial's puts; the reduction: before the first byte */
  double consumer_bytes_per_s;            /* signal: a multiprocessor that puts, until the link is full */
  double reduce_bytes_per_s;
} dt_layer_costs;
/* Tile times from table tile_s, the link from the burst tables, launches and fences; what no calibration measures has
 * values of H200. The platform's sim_layer_* constants (the field, its unit last) replace any. sms: of a rank, 2 or
 * more. *costs is written on success only. DT_ERR_INPUT names what the platform lacks, DT_ERR_ARGUMENT the field. */
dt_status dt_layer_costs_from_platform(const dt_platform *platform, int64_t hidden, int64_t intermediate, int32_t sms,
                                       dt_layer_costs *costs);
dt_status dt_layer_costs_check(const dt_layer_costs *costs); /* DT_ERR_ARGUMENT names the field */

/* counts, tokens and dispatch_rows are the caller's, and read during a call only. */
typedef struct dt_layer_model {
  size_t size;                            /* sizeof, set by dt_layer_model_init */
  int32_t ranks, experts_per_rank, top_k; /* 1 to 64 ranks */
  int64_t hidden, intermediate;
  int32_t sms;                  /* of a rank */
  int32_t dedup;                /* 1: tokens cross once, by a kernel beside the tiles; ranks copy rows themselves */
  int32_t head;                 /* 1024ths of the copies that the dispatch kernel makes; 0: the layer's, -1: none */
  int32_t send_sms, ahead;      /* dedup, as dt_cuda_moe_config; 0: the layer's */
  const int32_t *counts;        /* as in plan.h */
  const int64_t *tokens;        /* [ranks] */
  const int64_t *dispatch_rows; /* dedup: [ranks][ranks] tokens that a source sends to a peer; NULL: all of them */
  int32_t rows_in_place;        /* 1: no plan, no dispatch, no reduction: L1 and L2, whose rows go to their owners */
  int32_t short_bands_alone;    /* 1: a former layer, for what was measured of it: an expert's last band of at most 64
                                   rows is not paired, dispatch is in pieces of 128 KB, more of them by its kernel */
} dt_layer_model;
/* One rank and expert, top 1, 132 multiprocessors; counts, tokens, hidden and intermediate are to be set. */
void dt_layer_model_init(dt_layer_model *model);

typedef struct dt_layer_order {
  dt_schedule schedule;
  int32_t raster_bands, group_tasks, lead, wave_experts; /* 0: the layer's; group_tasks: of clusters */
  int32_t consumers, segment_bands;                      /* signal, as dt_cuda_moe_config */
  dt_order order;
} dt_layer_order;

typedef struct dt_layer_answer {
  double total_s;                                          /* the sum of the next five */
  double plan_s, dispatch_s, tiles_s, combine_s, reduce_s; /* the slowest rank's; combine: serial's puts */
  double memory_bytes;                                     /* that the tiles' rank moved */
  double clock_ratio;                                      /* tiles took so many times tile_s */
} dt_layer_answer;

/* answers[count], the caller's; they share one clock, that of L1 and L2 alone. DT_ERR_ARGUMENT names the field,
 * DT_ERR_UNSUPPORTED what no layer on GPUs has (a schedule, an order with dedup), DT_ERR_INPUT counts with which a rank
 * waits for ever, DT_ERR_MEMORY. After an error what answers hold is not defined. */
dt_status dt_layer_price(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *orders,
                         int32_t count, dt_layer_answer *answers);
/* Seconds of L1 and L2 alone, rows in place, nothing leaves. Errors as dt_layer_price. */
dt_status dt_layer_price_alone(const dt_layer_model *model, const dt_layer_costs *costs, double *compute_s);

/* `auto` on GPUs: prices every schedule, in the grouping given (its schedule does not matter), or, NULL, the layer's;
 * if the model has dedup, which a layer may do without, also direct and interleave with dedup, interleave in its own
 * groups and in groups of one wave, two ahead. Direct without, unless another promises 0.5 % more, or with dedup 1.5 %
 * (docs/model.md). *choice is written on success only; errors as dt_layer_price. */
enum { DT_LAYER_CHOICES = 9 };
typedef struct dt_layer_choice {
  dt_layer_order best;
  int32_t dedup; /* of best */
  int32_t count; /* of those priced */
  double predicted_s;
  dt_layer_order orders[DT_LAYER_CHOICES]; /* all that were priced */
  int32_t dedups[DT_LAYER_CHOICES];
  double total_s[DT_LAYER_CHOICES];
} dt_layer_choice;
dt_status dt_layer_choose(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *grouping,
                          dt_layer_choice *choice);

/* What is left visible of Ulysses' output all-to-all when attention stores its tiles to their owners itself: equations
 * (16) to (20) of X-Stage with the platform's constants, and the completion-coupled law (19) beside them. */
typedef struct dt_piggyback_question {
  double tokens;           /* S; of the whole sequence */
  double heads, head_dim;  /* of this rank */
  double ranks, producers; /* producers: multiprocessors */
  double tile_rows;        /* output rows of a tile: 128 */
  double kv_tile;          /* keys of a KV tile: 128 */
  double kv_tile_s;        /* sigma, a multiprocessor's time for it; 0: the platform's attention_kv_tile_s */
  double floor_s;          /* E_floor, what ends the kernel: fence, flag, last drain; 0: the platform's own sum */
} dt_piggyback_question;
typedef struct dt_piggyback_answer {
  double gap_s;           /* (16) the loop over keys of one tile */
  double recovery_gap_s;  /* (5) G* */
  double bursts;          /* n_b, tiles of a multiprocessor */
  double attention_s;     /* n_b * gap, rounded up to whole tiles */
  double residual_s;      /* (18) */
  double residual_high_s; /* if all tiles end together: the aligned law, at the low ends of T0, R, Q */
  double coupled_s;       /* (19) */
  double least_tokens;    /* (20) M*: from here on nothing but the floor is left */
} dt_piggyback_answer;
/* *answer is written on success only. DT_ERR_ARGUMENT names the field, DT_ERR_INPUT what the platform lacks, or has and
 * cannot be. */
dt_status dt_sim_piggyback(const dt_platform *platform, const dt_piggyback_question *question,
                           dt_piggyback_answer *answer);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
