/* What a calibration measures on GPUs beside the bursts. Each file adds its constants and tables to a platform. */
#ifndef DT_CUDA_PROBE_EXTRAS_H
#define DT_CUDA_PROBE_EXTRAS_H

#include <draintile/platform.h>

#include "probe.h"

enum { DT_EXTRA_ROUNDS = 20, DT_EXTRA_QUICK_ROUNDS = 8 };

/* Visibility, the shadow of a burst, puts by size and SMs, K_act, flags, fences, launches. */
dt_status dt_extras_stores(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform);
/* Device memory, copy engine, NCCL (if libnccl can be loaded). */
dt_status dt_extras_copies(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform);
/* Matrix products by cuBLAS, if it can be loaded: the library that the tile engine is held against. */
dt_status dt_extras_compute(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform);
/* The tile engine: its rates on the same shapes, a tile's time by K, the price of reading weights again. */
dt_status dt_extras_engine(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform);
/* first_fill_s. */
dt_status dt_extras_ends(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform);
/* The attention kernel: a multiprocessor's time for a tile of keys. */
dt_status dt_extras_attention(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform);

/* Rows, n, k, experts of the products that both time. */
enum { DT_EXTRA_SHAPES = 10, DT_EXTRA_EXPERTS = 64 };
extern const int64_t dt_extra_shapes[DT_EXTRA_SHAPES][4];

/* Random bf16 values in device memory, a block of them again and again: products of zeros run too fast. */
dt_status dt_extras_fill(void *matrix, int64_t elements);

/* A constant from its samples: the median, and the bootstrap interval of the median. */
dt_status dt_extras_constant(dt_platform *platform, const char *name, const double *samples, size_t count,
                             const char *method);

/* A table under construction: points with their samples. */
typedef struct dt_extras_table {
  dt_platform_table table;
  dt_platform_point points[64];
  double samples[64 * DT_EXTRA_ROUNDS];
  size_t used;
} dt_extras_table;
dt_status dt_extras_table_create(const char *name, const char *pattern, const char *operation, const char *alignment,
                                 const char *method, dt_extras_table **table);
void dt_extras_argument(dt_extras_table *table, const char *name);
/* at[argument_count]; at most 64 points of at most DT_EXTRA_ROUNDS samples. */
dt_status dt_extras_point(dt_extras_table *table, const double *at, const double *samples, size_t count);
/* Adds it to the platform unless it is empty or status is set, frees it, passes the status on. */
dt_status dt_extras_table_finish(dt_extras_table *table, dt_status status, dt_platform *platform);

#endif
