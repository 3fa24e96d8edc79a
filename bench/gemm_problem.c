#include "gemm_problem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "cuda/driver.h"

enum {
  PERIOD = 8388593,     /* a prime, so that no two rows or experts hold the same values */
  GUARD_BYTES = 1 << 26 /* of addresses before operands, a multiple of any granularity */
};

const char *gemm_sizes_name(gemm_sizes kind) {
  static const char *const names[] = {"even", "uniform", "zipf", "sparse"};
  return names[kind];
}

static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
static double from_bf16(uint16_t value) {
  uint32_t bits = (uint32_t)value << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return out;
}

static void driver_must(CUresult result, const char *what) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "%s: CUDA driver error %d\n", what, (int)result);
  exit(3);
}

/* Device memory in front of which nothing is mapped, so that an access there is an error on every machine: the ragged
 * views of tile_gemm.h start there. Never freed. */
static void *guarded(size_t bytes) {
  const dt_cuda_driver_api *api;
  int device;
  cuda_must(cudaGetDevice(&device), "cudaGetDevice");
  if (dt_cuda_driver(&api) != DT_OK) exit(3);
  const CUmemAllocationProp memory = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  const CUmemAccessDesc access = {.location = memory.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr reserved;
  size_t step;
  driver_must(api->cuMemGetAllocationGranularity(&step, &memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "granularity");
  bytes = (bytes + step - 1) / step * step;
  driver_must(api->cuMemAddressReserve(&reserved, bytes + GUARD_BYTES, step, 0, 0), "cuMemAddressReserve");
  driver_must(api->cuMemCreate(&handle, bytes, &memory, 0), "cuMemCreate");
  driver_must(api->cuMemMap(reserved + GUARD_BYTES, bytes, 0, handle, 0), "cuMemMap");
  driver_must(api->cuMemSetAccess(reserved + GUARD_BYTES, bytes, &access, 1), "cuMemSetAccess");
  return (void *)(uintptr_t)(reserved + GUARD_BYTES);
}

static uint16_t *device_random(const gemm_arena *arena, int64_t elements) {
  uint16_t *data = guarded(2 * (size_t)elements);
  for (int64_t at = 0; at < elements; at += PERIOD) {
    int64_t count = elements - at < PERIOD ? elements - at : PERIOD;
    cuda_must(dt_cuda_write(data + at, at ? data : arena->block, 2 * (size_t)count), "values");
  }
  return data;
}

void arena_create(gemm_arena *arena, const gemm_shape *shapes, int count) {
  int64_t a = 0, b = 0, out = 0;
  int experts = 0;
  for (int i = 0; i < count; i++) {
    const gemm_shape *s = &shapes[i];
    if (s->rows * s->k > a) a = s->rows * s->k;
    if (s->experts * s->n * s->k > b) b = s->experts * s->n * s->k;
    if ((s->rows + GUARD_ROWS) * s->n > out) out = (s->rows + GUARD_ROWS) * s->n;
    if (s->experts > experts) experts = s->experts;
  }
  dt_random random = {12345};
  arena->block = malloc(2 * (size_t)PERIOD);
  for (int i = 0; i < PERIOD; i++) arena->block[i] = to_bf16((float)dt_random_normal(&random));
  arena->a = device_random(arena, a);
  arena->b = device_random(arena, b);
  arena->out = guarded(2 * (size_t)out);
  cuda_must(cudaMalloc((void **)&arena->other, 2 * (size_t)out), "cudaMalloc");
  cuda_must(cudaMalloc((void **)&arena->counts, 4 * (size_t)experts), "cudaMalloc");
  arena->flush_bytes = (size_t)512 << 20;
  cuda_must(cudaMalloc(&arena->flush, arena->flush_bytes), "cudaMalloc");
  cuda_must(dt_cuda_fill(arena->flush, 1, arena->flush_bytes), "flush");
}

static void draw_sizes(const gemm_shape *shape, uint64_t seed, int32_t *counts) {
  const int experts = shape->experts;
  dt_random random = {seed};
  double *weights = malloc((size_t)experts * sizeof *weights), sum = 0;
  for (int e = 0; e < experts; e++) {
    weights[e] = shape->kind == SIZES_EVEN ? 1 : shape->kind == SIZES_ZIPF ? pow(e + 1, -0.5) : dt_random_unit(&random);
    if (shape->kind == SIZES_SPARSE && e % 2 == 0) weights[e] = 0;
  }
  if (shape->kind == SIZES_SPARSE && experts == 1) weights[0] = 1;
  if (shape->kind == SIZES_ZIPF)
    for (int e = experts - 1; e > 0; e--) {
      int other = (int)dt_random_below(&random, (uint64_t)e + 1);
      double swap = weights[e];
      weights[e] = weights[other];
      weights[other] = swap;
    }
  for (int e = 0; e < experts; e++) sum += weights[e];
  /* Rows up to each expert's share, rounded: exact in total. */
  double upto = 0;
  int64_t given = 0;
  for (int e = 0; e < experts; e++) {
    upto += weights[e];
    int64_t end = e + 1 == experts ? shape->rows : (int64_t)(upto / sum * (double)shape->rows + 0.5);
    counts[e] = (int32_t)(end - given);
    given = end;
  }
  free(weights);
}

void problem_create(gemm_problem *problem, const gemm_arena *arena, const gemm_shape *shape, uint64_t seed) {
  const size_t experts = (size_t)shape->experts;
  problem->shape = *shape;
  problem->counts = malloc(experts * sizeof *problem->counts);
  problem->first = malloc((experts + 1) * sizeof *problem->first);
  draw_sizes(shape, seed, problem->counts);
  problem->first[0] = 0;
  for (size_t e = 0; e < experts; e++) problem->first[e + 1] = problem->first[e] + problem->counts[e];
  problem->a = arena->a;
  problem->b = arena->b;
  problem->out = arena->out;
  problem->other = arena->other;
  problem->device_counts = arena->counts;
  cuda_must(dt_cuda_write(arena->counts, problem->counts, 4 * experts), "counts");
}

void problem_destroy(gemm_problem *problem) {
  free(problem->counts);
  free(problem->first);
}

dt_cuda_gemm problem_gemm(const gemm_problem *problem) {
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.a = problem->a;
  gemm.b = problem->b;
  gemm.out = problem->out;
  gemm.counts = problem->device_counts;
  gemm.experts = problem->shape.experts;
  gemm.rows_max = problem->shape.rows;
  gemm.n = problem->shape.n;
  gemm.k = problem->shape.k;
  return gemm;
}

double problem_error(const gemm_problem *problem, const gemm_arena *arena, const uint16_t *out, int samples,
                     uint64_t seed) {
  const int64_t n = problem->shape.n, k = problem->shape.k;
  dt_random random = {seed};
  double worst = 0;
  for (int s = 0; s < samples; s++) {
    const int64_t row = (int64_t)dt_random_below(&random, (uint64_t)problem->shape.rows);
    int expert = 0;
    while (problem->first[expert + 1] <= row) expert++;
    double error = 0, norm = 0;
    for (int c = 0; c < 32; c++) {
      const int64_t column = (int64_t)dt_random_below(&random, (uint64_t)n);
      double sum = 0;
      for (int64_t i = 0; i < k; i++)
        sum += from_bf16(arena->block[(row * k + i) % PERIOD]) *
               from_bf16(arena->block[((expert * n + column) * k + i) % PERIOD]);
      double difference = from_bf16(out[row * n + column]) - sum;
      error += difference * difference;
      norm += sum * sum;
    }
    double relative = sqrt(error / norm);
    if (!(relative <= worst)) worst = relative;
    if (isnan(worst)) return worst;
  }
  return worst;
}
