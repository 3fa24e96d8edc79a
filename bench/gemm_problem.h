/* One grouped GEMM to check or time: random operands on the device, group sizes, and the outputs of others. */
#ifndef DT_BENCH_GEMM_PROBLEM_H
#define DT_BENCH_GEMM_PROBLEM_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include <draintile/gemm.h>

#include "cuda_must.h"

/* even: sizes differ by at most one. uniform: in proportion to uniform random numbers. zipf: to rank^-0.5, shuffled.
 * sparse: as uniform, but every other expert has no row. */
typedef enum gemm_sizes { SIZES_EVEN, SIZES_UNIFORM, SIZES_ZIPF, SIZES_SPARSE } gemm_sizes;
const char *gemm_sizes_name(gemm_sizes kind);

typedef struct gemm_shape {
  int64_t rows, n, k;
  int experts;
  gemm_sizes kind;
} gemm_shape;

enum { GUARD_ROWS = 7 }; /* poisoned rows after the output that nobody may touch */

typedef struct gemm_problem {
  gemm_shape shape;
  int32_t *counts;       /* [experts], host */
  int64_t *first;        /* [experts + 1] */
  uint16_t *a, *b;       /* device, bf16 bits */
  uint16_t *out, *other; /* device, [rows + GUARD_ROWS][n] */
  int32_t *device_counts;
} gemm_problem;

/* The device memory of all problems, allocated once for the largest. */
typedef struct gemm_arena {
  uint16_t *block; /* host copy of the random values, which repeat every `period` */
  uint16_t *a, *b, *out, *other;
  int32_t *counts;
  void *flush; /* read before each timed launch */
  size_t flush_bytes;
} gemm_arena;

void arena_create(gemm_arena *arena, const gemm_shape *shapes, int count);
/* Fills `problem` with the group sizes of seed. */
void problem_create(gemm_problem *problem, const gemm_arena *arena, const gemm_shape *shape, uint64_t seed);
void problem_destroy(gemm_problem *problem);
/* The grouped GEMM of the problem, into `out`; all else as dt_cuda_gemm_init. */
dt_cuda_gemm problem_gemm(const gemm_problem *problem);

/* Largest relative error |out - ref| / |ref| over `samples` sampled output rows pieces, against float64 sums; NaN if
 * any value is not finite. out: host copy. */
double problem_error(const gemm_problem *problem, const gemm_arena *arena, const uint16_t *out, int samples,
                     uint64_t seed);

#endif
