/* The benchmark of the combine operator: many settings in one process, each method checked, then timed in turns beside
 * cuBLAS and NCCL. docs/combine.md says what each figure means.
 */
#ifndef DRAINTILE_COMBINE_BENCH_H
#define DRAINTILE_COMBINE_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/combine.h>
#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* What the benchmark times. */
typedef enum dt_combine_method {
  DT_METHOD_LOOP = 0,       /* cuBLAS expert by expert, then NCCL: a message an expert and peer, one group */
  DT_METHOD_GROUPED = 1,    /* cuBLAS grouped by expert and owner, own rows in place; then one NCCL message a peer */
  DT_METHOD_BULK = 2,       /* DT_COMBINE_BULK */
  DT_METHOD_SIGNAL = 3,     /* DT_COMBINE_SIGNAL */
  DT_METHOD_DIRECT = 4,     /* DT_COMBINE_DIRECT */
  DT_METHOD_LOOP_GRAPH = 5, /* loop and grouped, replayed from a CUDA graph */
  DT_METHOD_GROUPED_GRAPH = 6,
  DT_METHOD_GEMM = 7,     /* our GEMM alone: always timed */
  DT_METHOD_CUBLAS = 8,   /* cuBLAS grouped GEMM alone, a group an expert */
  DT_METHOD_RESERVED = 9, /* our GEMM alone on the multiprocessors that the consumers leave */
  DT_METHOD_REDUCE = 10,  /* at the owner: each token's two rows weighted and summed; after any method */
  DT_METHOD_EXCHANGE =
      11,                /* counts on the device: a run's entry, which exchanges them, and its exit; after the others */
  DT_METHOD_COUNTS = 12, /* the same with the plan and the tables in between */
  DT_METHODS = 13
} dt_combine_method;

/* One setting. Made with dt_combine_bench_case_init. */
typedef struct dt_combine_bench_case {
  int64_t rows; /* mean rows a rank, even */
  int64_t n, k;
  int32_t experts; /* per rank */
  dt_combine_router router;
  uint64_t seed;
  int32_t consumers, segment_bands, raster_bands; /* as in dt_combine_config */
  dt_layout layout;
  dt_order order;
  dt_combine_launch launch; /* these three as in dt_combine_config */
  dt_combine_entry entry;
  dt_combine_pacing pacing;
  int32_t methods[DT_METHODS]; /* 1: checked and timed */
} dt_combine_bench_case;
void dt_combine_bench_case_init(dt_combine_bench_case *setting);

typedef struct dt_combine_timing {
  int32_t done;              /* 0: not asked for */
  double median_s;           /* of the slowest rank's time; NaN without samples */
  const double *samples_s;   /* [repeat], the slowest rank's */
  int64_t words_wrong;       /* 4-byte words of all combine buffers that differ from bulk's; -1: not compared */
  double max_relative_error; /* sampled rows against float64, all ranks; NaN: a value was not finite or not checked */
} dt_combine_timing;

typedef struct dt_combine_bench {
  int64_t index; /* of the setting */
  dt_combine_bench_case setting;
  int32_t ranks, gpus, repeat; /* gpus: fewer than ranks: these share them, and no row crosses a link */
  dt_combine_timing timings[DT_METHODS];
  int64_t rank_rows[8], sent_rows[8], received_rows[8]; /* of experts; to and from other ranks */
  int64_t padded_rows[8];                               /* of the layout, beside those */
  int64_t tiles[8];                                     /* that its GEMM multiplies, 128 rows by 256 columns */
  int64_t expert_rows_max;
  char device[256];
  char nccl[32], cublas[32];        /* versions; "" where not loaded */
  double sm_hz_before, sm_hz_after; /* measured around the samples; 0: unknown */
  double window_s;                  /* the configuration's, if direct was run with timestamps; else 0 */
  dt_store_activity stores[8];      /* then: of direct's rows to other ranks, by rank */
  int32_t producers;                /* then: multiprocessors of rank 0 that might store at once */
  double wall_s;                    /* that the setting took, all included */
} dt_combine_bench;

typedef struct dt_combine_bench_config {
  size_t size;             /* sizeof, set by dt_combine_bench_config_init */
  int32_t ranks;           /* 2 to 8 (default 2), a GPU of this machine each; where there are fewer they share them */
  int32_t repeat, warm_up; /* samples of each method (20; 0: checks alone), interleaved; rounds before them (3) */
  double window_s; /* above 0: direct runs once more with timestamps, and its stores are counted over such windows */
  const dt_combine_bench_case *cases;
  int64_t case_count;
  /* Called as each setting ends, from a thread of the benchmark while the others wait. The result is borrowed. */
  void (*done)(void *context, const dt_combine_bench *result);
  void *context;
} dt_combine_bench_config;
void dt_combine_bench_config_init(dt_combine_bench_config *config);

/* Runs on the first GPUs, a thread a rank. Buffers and communicators are made once, for the largest setting.
 * DT_ERR_NO_DEVICE: no GPU; DT_ERR_UNSUPPORTED also where ranks share a GPU and a method needs NCCL or cuBLAS, or where
 * these are missing. A method that gives wrong bits is a result, not an error; one that fails ends the run. */
dt_status dt_combine_bench_run(const dt_combine_bench_config *config);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
