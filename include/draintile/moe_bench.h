/* The benchmark of the MoE layer on GPUs (draintile/cuda_moe.h): shapes of published models, seeded routers, and every
 * schedule of one layer timed in turns on the GPUs of this machine.
 *
 *     dt_moe_bench_open(&config, &bench);                    weights of one model on every GPU
 *     dt_moe_bench_run(bench, &row, &result);                any number of rows: router, tokens, methods
 *     dt_moe_bench_result_free(&result);
 *     dt_moe_bench_close(bench);
 *
 * Weights and tokens are random values that any GPU can make again from their indices, so that each rank checks its
 * peers' tokens against its own experts in float64.
 */
#ifndef DRAINTILE_MOE_BENCH_H
#define DRAINTILE_MOE_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/cuda_moe.h>
#include <draintile/simulate.h>
#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* The layers that are measured: name, hidden, intermediate, experts, top_k of the models' published configurations. */
#define DT_MOE_SHAPE_TABLE(X)                                                                                          \
  X("qwen3-30b", 2048, 768, 128, 8)                                                                                    \
  X("qwen3-235b", 4096, 1536, 128, 8)                                                                                  \
  X("qwen3-next", 2048, 512, 512, 10)                                                                                  \
  X("olmoe", 2048, 1024, 64, 8)                                                                                        \
  X("deepseek-v3", 7168, 2048, 256, 8)                                                                                 \
  X("v4-flash", 4096, 2048, 256, 6)                                                                                    \
  X("mixtral", 4096, 14336, 8, 2)

typedef struct dt_moe_shape {
  const char *name;
  int64_t hidden, intermediate;
  int32_t experts, top_k;
} dt_moe_shape;
#define DT_MOE_SHAPE_COUNT(...) +1
enum { DT_MOE_SHAPES = 0 DT_MOE_SHAPE_TABLE(DT_MOE_SHAPE_COUNT) };
#undef DT_MOE_SHAPE_COUNT
/* index: 0 to DT_MOE_SHAPES - 1; NULL beyond. */
const dt_moe_shape *dt_moe_shape_at(int32_t index);
/* By name; NULL if there is none. */
const dt_moe_shape *dt_moe_shape_find(const char *name);
/* Its layer on `ranks` ranks, for dt_layer_price: dt_layer_model_init, then ranks, experts_per_rank, top_k, hidden and
 * intermediate. counts and tokens are still to be set. */
void dt_moe_shape_model(const dt_moe_shape *shape, int32_t ranks, dt_layer_model *model);

/* balanced: all ranks' choices deal the experts in shuffled rounds, so that every expert gets the same number within
 * one, and no token one expert twice. skewed: drawn without replacement with weights rank^-0.5 under a random
 * permutation. crossed: as balanced, but over the experts of the next rank alone: on two ranks the remote share of a
 * large group. */
#define DT_MOE_ROUTER_TABLE(X) X(BALANCED, "balanced") X(SKEWED, "skewed") X(CROSSED, "crossed")
#define DT_MOE_ROUTER_VALUE(id, name) DT_MOE_ROUTER_##id,
typedef enum dt_moe_router { DT_MOE_ROUTER_TABLE(DT_MOE_ROUTER_VALUE) } dt_moe_router;
#undef DT_MOE_ROUTER_VALUE
/* By name. DT_ERR_ARGUMENT names what is allowed. */
dt_status dt_moe_router_parse(const char *text, dt_moe_router *router);
/* ids, weights: [ranks][tokens][top_k]; a token's weights sum to 1. Pure: a seed gives the same everywhere.
 * DT_ERR_ARGUMENT names the field: experts must divide among the ranks, and a token needs top_k different ones. */
dt_status dt_moe_route(dt_moe_router router, uint64_t seed, int32_t ranks, int32_t experts, int32_t top_k,
                       int64_t tokens, int32_t *ids, float *weights);

typedef struct dt_moe_bench_config {
  size_t size;   /* sizeof, set by dt_moe_bench_config_init */
  int32_t ranks; /* GPUs of this machine, 1 to 8 */
  dt_moe_shape shape;
  int64_t max_tokens;      /* of any rank in any row */
  int32_t repeat, warm_up; /* samples of each method (20), in turns; rounds before them (3) */
  int32_t checked_tokens;  /* sampled a rank and compared with float64 (16) */
  uint64_t seed;
  double timeout_s; /* of any wait (10) */
  int32_t dedup;    /* 1: methods may use dedup (0) */
} dt_moe_bench_config;
void dt_moe_bench_config_init(dt_moe_bench_config *config);

typedef struct dt_moe_bench dt_moe_bench;

/* A thread a GPU makes weights, layer and tokens. DT_ERR_NO_DEVICE: fewer GPUs than ranks. DT_ERR_UNSUPPORTED: built
 * without CUDA, not Hopper GPUs, or no peer access. */
dt_status dt_moe_bench_open(const dt_moe_bench_config *config, dt_moe_bench **bench);
void dt_moe_bench_close(dt_moe_bench *bench); /* NULL allowed */

/* What is timed: a schedule of the whole layer, or one of its parts. */
typedef struct dt_moe_bench_method {
  int32_t part; /* -1: the layer; else a dt_cuda_moe_part, on the plan of the last schedule before it in the list */
  dt_schedule schedule; /* this and what follows: also of DT_CUDA_MOE_IN_PLACE, behind a schedule that stores direct */
  dt_order order;
  /* As dt_cuda_moe_config. */
  int32_t raster_bands, group_tasks, lead, wave_experts, consumers, segment_bands, dedup, head, send_sms, ahead;
  int32_t graph; /* 1: replays a CUDA graph; 0: launched live */
} dt_moe_bench_method;

typedef struct dt_moe_bench_row {
  dt_moe_router router;
  int64_t tokens; /* of every rank */
  const dt_moe_bench_method *methods;
  int32_t method_count;
} dt_moe_bench_row;

typedef struct dt_moe_bench_timing {
  double median_s;           /* of the slowest rank's time */
  double *samples_s;         /* [repeat], the slowest rank's */
  double host_issue_s;       /* of dt_cuda_moe_forward, median over the samples, slowest rank; NaN: a graph or a part */
  int64_t words_wrong;       /* 4-byte words of all outputs that differ from the first method's; -1: a part
                                whose rows nothing reduces */
  double max_relative_error; /* sampled tokens against float64, all ranks; NaN: a part, or a value was not finite */
  uint64_t dispatch_bytes, combine_bytes; /* the most that a rank sent to others, as the layer counts */
} dt_moe_bench_timing;

/* Released by dt_moe_bench_result_free, arrays included. Arrays of 8: by rank. */
typedef struct dt_moe_bench_result {
  dt_moe_bench_timing *timings; /* [method_count] */
  int32_t *counts;              /* [ranks][experts] */
  int32_t method_count;
  int64_t rank_rows[8];             /* of its experts */
  int64_t sent_rows[8];             /* combine rows to other ranks */
  int64_t dispatch_rows[8];         /* distinct (token, other rank) pairs: the fewest it must dispatch */
  int32_t touched_experts[8];       /* that have rows */
  uint64_t device_bytes;            /* of the layer, weights apart, largest rank */
  uint64_t weight_bytes;            /* of one rank */
  double sm_hz_before, sm_hz_after; /* of rank 0, measured; 0: unknown */
  char device[256];
} dt_moe_bench_result;

/* Checks every layer method, then times all methods in turns: the cache is evicted and the GPUs meet before each
 * sample. Output values are compared with the first layer method's to the bit. *result is written on success only.
 * DT_ERR_ARGUMENT names the field; DT_ERR_TIMEOUT, DT_ERR_DEVICE: as the layer's. */
dt_status dt_moe_bench_run(dt_moe_bench *bench, const dt_moe_bench_row *row, dt_moe_bench_result *result);
void dt_moe_bench_result_free(dt_moe_bench_result *result);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
