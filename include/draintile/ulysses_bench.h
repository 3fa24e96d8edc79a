/* The benchmark of Ulysses attention on GPUs (draintile/ulysses.h): a thread a GPU, every method of one shape checked,
 * then timed in turns, to and fro. Where a run takes 10 ms or more (docs/ulysses.md): method by method, in four blocks,
 * forwards, backwards and so on, each block behind runs of its own, each run behind some traffic. */
#ifndef DRAINTILE_ULYSSES_BENCH_H
#define DRAINTILE_ULYSSES_BENCH_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Diffusion transformers: name, heads, head dim, tokens of the image or video, tokens of the text that join them in
 * attention (0: none do); from the models' published configurations. */
#define DT_ULYSSES_SHAPE_TABLE(X)                                                                                      \
  X("flux", 24, 128, 4096, 512)                                                                                        \
  X("qwen-image", 24, 128, 4096, 126)                                                                                  \
  X("sd35", 38, 64, 4096, 333)                                                                                         \
  X("ltx", 32, 64, 6144, 0)                                                                                            \
  X("z-image", 30, 128, 4096, 256)                                                                                     \
  X("qwen-image-large", 24, 128, 6889, 126)                                                                            \
  X("flux2", 48, 128, 16384, 512)                                                                                      \
  X("cogvideox", 48, 64, 17550, 226)                                                                                   \
  X("wan-1.3b", 12, 128, 32760, 0)                                                                                     \
  X("wan-480p", 40, 128, 32760, 0)                                                                                     \
  X("ltx-long", 32, 64, 37632, 0)                                                                                      \
  X("wan-720p", 40, 128, 75600, 0)                                                                                     \
  X("hunyuan", 24, 128, 118800, 256)

typedef struct dt_ulysses_shape {
  const char *name;
  int32_t heads, head_dim;
  int64_t image_tokens, text_tokens;
} dt_ulysses_shape;
#define DT_ULYSSES_SHAPE_COUNT(...) +1
enum { DT_ULYSSES_SHAPES = 0 DT_ULYSSES_SHAPE_TABLE(DT_ULYSSES_SHAPE_COUNT) };
#undef DT_ULYSSES_SHAPE_COUNT
/* index: 0 to DT_ULYSSES_SHAPES - 1; NULL beyond. */
const dt_ulysses_shape *dt_ulysses_shape_at(int32_t index);

typedef enum dt_ulysses_method {
  DT_ULYSSES_METHOD_KERNEL = 0,      /* the attention of a rank's heads alone */
  DT_ULYSSES_METHOD_SERIAL = 1,      /* in, attention, out, one after the other */
  DT_ULYSSES_METHOD_FUSED = 2,       /* attention and the way out, to remote completion */
  DT_ULYSSES_METHOD_IN = 3,          /* the way in, on all multiprocessors */
  DT_ULYSSES_METHOD_PIGGYBACK = 4,   /* the whole, the way in before the attention */
  DT_ULYSSES_METHOD_WHOLE = 5,       /* the whole, the way in beside the attention */
  DT_ULYSSES_METHOD_FUSED_GRAPH = 6, /* fused and whole, replayed from a CUDA graph */
  DT_ULYSSES_METHOD_WHOLE_GRAPH = 7,
  DT_ULYSSES_METHODS = 8
} dt_ulysses_method;
const char *dt_ulysses_method_name(dt_ulysses_method method); /* "kernel", "serial", ... */

typedef struct dt_ulysses_bench_config {
  size_t size;   /* sizeof, set by dt_ulysses_bench_config_init */
  int32_t ranks; /* 1 to 8, a GPU each; on fewer GPUs they share them, and times are not those of a machine */
  dt_ulysses_shape shape;
  int32_t causal;
  int32_t senders;         /* as dt_ulysses_config */
  int32_t direct_stores;   /* likewise */
  uint32_t methods;        /* to time, bit m: method m; 0: all. Checked are those that are timed, and serial */
  int32_t repeat, warm_up; /* samples of each method (20); rounds before them (3). Where runs take 10 ms or more: as
                              many samples as make up 0.1 s for each of these */
  double seconds;          /* fewer samples, at least 5, where all would take longer; 0: no bound */
  uint64_t seed;
} dt_ulysses_bench_config;
void dt_ulysses_bench_config_init(dt_ulysses_bench_config *config);

typedef struct dt_ulysses_timing {
  double median_s;     /* of the slowest rank's time; NaN: not timed */
  double *samples_s;   /* [repeat] of the benchmark's config, the slowest rank's */
  int64_t words_wrong; /* 4-byte words of all outputs that differ from serial's; -1: not compared */
} dt_ulysses_timing;

typedef struct dt_ulysses_bench {
  dt_ulysses_bench_config config; /* repeat as it was */
  dt_ulysses_timing timings[DT_ULYSSES_METHODS];
  dt_ulysses_timing kernel_asleep; /* of such runs, where `kernel` is timed: alone while links sleep; else NaN */
  double max_relative_error;       /* sampled rows of heads of serial's output against float64; NaN: not finite */
  double flops;                    /* of the rank with most heads */
  int64_t in_bytes, out_bytes;     /* the most that a rank sends to others */
  uint64_t device_bytes;           /* of the operator, largest rank */
  int32_t gpus, sms;               /* that the ranks run on; multiprocessors of a rank */
  int32_t tile_rows;               /* of the attention's tiles */
  char device[256];
  double sm_hz_before, sm_hz_after; /* of rank 0, measured; 0: unknown */
} dt_ulysses_bench;

/* *bench is written on success only, and released by dt_ulysses_bench_destroy. DT_ERR_ARGUMENT names the field;
 * DT_ERR_NO_DEVICE: no GPU; DT_ERR_UNSUPPORTED: built without CUDA, not Hopper GPUs, no peer access; DT_ERR_MEMORY;
 * what dt_ulysses_check says of a run that failed. */
dt_status dt_ulysses_bench_run(const dt_ulysses_bench_config *config, dt_ulysses_bench **bench);
void dt_ulysses_bench_destroy(dt_ulysses_bench *bench); /* NULL allowed */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
