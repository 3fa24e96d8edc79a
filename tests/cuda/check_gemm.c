/* Checks the grouped GEMM on a GPU: bit by bit against cuBLAS expert by expert, against float64 on samples, outputs
 * poisoned first, rows after the last one guarded; then a stress of many launches with uneven groups and few workers.
 * Exit code 77 without a Hopper GPU.
 *
 *   check_gemm [--tiny]   tiny: a few small shapes, for the sanitizers
 */
#include <draintile/gemm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "cuda/driver.h"
#include "gemm_cublas.h"
#include "gemm_problem.h"

cudaError_t ready_copy(const uint32_t *ready, const int32_t *row, const int32_t *rows, int bands, uint32_t tiles,
                       const uint16_t *from, uint16_t *to, int64_t n, uint32_t *expired, cudaStream_t stream);

static cudaStream_t stream;
static int have_cublas;

typedef struct variant {
  const char *name;
  int32_t tensor_stores, raster_bands, sms;
} variant;
static const variant variants[] = {
    {"rows", 0, 0, 0}, {"copy engine", 1, 4, 0}, {"rows, one cluster", 0, 2, 2}, {"copy engine, six SMs", 1, 64, 6}};

static dt_cuda_gemm describe(const gemm_problem *p, const variant *v) {
  dt_cuda_gemm gemm = problem_gemm(p);
  gemm.tensor_stores = v->tensor_stores;
  gemm.raster_bands = v->raster_bands;
  gemm.sms = v->sms;
  gemm.timeout_s = 5;
  return gemm;
}

static void *workspace_for(const dt_cuda_gemm *gemm) {
  size_t bytes;
  void *memory;
  must(dt_cuda_gemm_workspace(gemm, &bytes), "workspace");
  cuda_must(cudaMalloc(&memory, bytes), "cudaMalloc");
  return memory;
}

/* One variant on one problem, `times` times from poisoned outputs. Returns 1 if all is well. */
static int check(const gemm_problem *p, const gemm_arena *arena, const variant *v, const uint16_t *expected,
                 uint16_t *got, int times) {
  const int64_t n = p->shape.n, rows = p->shape.rows;
  const size_t bytes = 2 * (size_t)((rows + GUARD_ROWS) * n);
  dt_cuda_gemm gemm = describe(p, v);
  void *workspace = workspace_for(&gemm);
  int64_t wrong = 0, touched = 0;
  for (int i = 0; i < times; i++) {
    cuda_must(cudaMemsetAsync(p->out, 0xff, bytes, stream), "cudaMemset");
    must(dt_cuda_grouped_gemm(&gemm, workspace, stream), v->name);
    must(dt_cuda_gemm_check(workspace, stream), v->name);
    cuda_must(cudaMemcpy(got, p->out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int64_t r = 0; r < rows && expected != NULL; r++) {
      const uint16_t *mine = got + r * n;
      if (memcmp(mine, expected + r * n, 2 * (size_t)n) == 0) continue;
      for (int64_t j = 0; j < n; j++) wrong += mine[j] != expected[r * n + j];
    }
    for (int64_t j = 0; j < GUARD_ROWS * n; j++) touched += got[rows * n + j] != 0xffff;
  }
  cudaFree(workspace);
  const double error = problem_error(p, arena, got, 40, 99);
  /* Another order of summation (cuBLAS may split K) shows as a few last bits; those must stay as near to float64. */
  const int good = touched == 0 && error <= 4e-3 && (double)wrong <= 0.02 * (double)times * (double)(rows * n);
  printf("%-4s rows %lld n %lld k %lld experts %d %s, %s: %lld of %lld differ from cuBLAS, %lld outside touched, "
         "error %.2e\n",
         good ? "ok" : "FAIL", (long long)rows, (long long)n, (long long)p->shape.k, p->shape.experts,
         gemm_sizes_name(p->shape.kind), v->name, (long long)wrong, (long long)(times * rows * n), (long long)touched,
         error);
  fflush(stdout);
  return good;
}

/* Direct stores to three owners, who share the output's memory: the first thirds of their rows in order, the rest in
 * runs of 1 to 40 rows that take turns; every 50th run goes nowhere. */
static int check_owners(const gemm_problem *p, const uint16_t *expected, uint16_t *got, int tensor_stores) {
  const int64_t n = p->shape.n, rows = p->shape.rows, third = (rows + 2) / 3;
  uint64_t *target = malloc(8 * (size_t)rows), *on_device;
  int64_t used[3] = {0, 0, 0}, last = 0, most[3];
  most[0] = third < rows ? third : rows;
  most[1] = third < rows - most[0] ? third : rows - most[0];
  most[2] = rows - most[0] - most[1];
  dt_random random = {77};
  for (int64_t r = 0, run = 0; r < rows; run++) {
    const int64_t length = run < 3 ? third / 3 + 1 : 1 + (int64_t)dt_random_below(&random, 40);
    int64_t owner = run % 3;
    for (int64_t i = 0; i < length && r < rows; i++, r++) {
      while (used[owner] == most[owner]) owner = (owner + 1) % 3; /* full: the next */
      target[r] = run % 50 == 49 ? (uint64_t)3 << 32 : (uint64_t)owner << 32 | (uint64_t)used[owner]++;
      last = r;
    }
  }
  const variant v = {"owners", tensor_stores, 0, 0};
  dt_cuda_gemm gemm = describe(p, &v);
  gemm.out = NULL;
  gemm.owners = 3;
  for (int o = 0; o < 3; o++) {
    gemm.owner_out[o] = p->out + o * third * n;
    gemm.owner_rows[o] = most[o];
  }
  cuda_must(cudaMalloc((void **)&on_device, 8 * (size_t)rows), "cudaMalloc");
  cuda_must(dt_cuda_write(on_device, target, 8 * (size_t)rows), "row targets");
  gemm.row_target = on_device;
  void *workspace = workspace_for(&gemm);
  const size_t bytes = 2 * (size_t)((rows + GUARD_ROWS) * n);
  cuda_must(cudaMemsetAsync(p->out, 0xff, bytes, stream), "cudaMemset");
  must(dt_cuda_grouped_gemm(&gemm, workspace, stream), v.name);
  must(dt_cuda_gemm_check(workspace, stream), v.name);
  cuda_must(cudaMemcpy(got, p->out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  int64_t wrong = 0, missing = 0, touched = 0;
  uint8_t *written = calloc((size_t)rows, 1);
  for (int64_t r = 0; r <= last; r++) {
    if (target[r] >> 32 == 3) continue;
    const int64_t at = (int64_t)(target[r] >> 32) * third + (int64_t)(target[r] & 0xffffffffu);
    written[at] = 1;
    for (int64_t j = 0; j < n && expected != NULL; j++) wrong += got[at * n + j] != expected[r * n + j];
    for (int64_t j = 0; j < n; j++) missing += got[at * n + j] == 0xffff;
  }
  for (int64_t r = 0; r < rows + GUARD_ROWS; r++)
    for (int64_t j = 0; (r >= rows || !written[r]) && j < n; j++) touched += got[r * n + j] != 0xffff;
  free(written);
  free(target);
  cudaFree(on_device);
  cudaFree(workspace);
  const int good = touched == 0 && missing == 0 && (double)wrong <= 0.02 * (double)(rows * n);
  printf("%-4s rows %lld n %lld k %lld experts %d %s, three owners, %s: %lld differ from cuBLAS, %lld missing, %lld "
         "outside touched\n",
         good ? "ok" : "FAIL", (long long)rows, (long long)n, (long long)p->shape.k, p->shape.experts,
         gemm_sizes_name(p->shape.kind), tensor_stores ? "copy engine" : "rows", (long long)wrong, (long long)missing,
         (long long)touched);
  return good;
}

static int check_shape(const gemm_arena *arena, const gemm_shape *s, uint64_t seed) {
  const size_t bytes = 2 * (size_t)((s->rows + GUARD_ROWS) * s->n);
  gemm_problem p;
  problem_create(&p, arena, s, seed);
  uint16_t *expected = have_cublas ? malloc(bytes) : NULL, *got = malloc(bytes);
  if (have_cublas) {
    cublas_loop(&p, p.other);
    cuda_must(cudaStreamSynchronize(stream), "cuBLAS");
    cuda_must(cudaMemcpy(expected, p.other, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  const int big = (double)s->rows * (double)s->n * (double)s->k > 3e10;
  int good = 1;
  for (int v = 0; v < (big ? 2 : 4); v++) good &= check(&p, arena, &variants[v], expected, got, big ? 1 : 3);
  good &= check_owners(&p, expected, got, 0);
  good &= check_owners(&p, expected, got, 1);
  free(expected);
  free(got);
  problem_destroy(&p);
  return good;
}

/* Many launches on one problem must give the same bits every time: a slot or stage handed back too early would not. */
static int stress(const gemm_arena *arena, const gemm_shape *s, int launches) {
  const size_t bytes = 2 * (size_t)(s->rows * s->n);
  uint16_t *first = malloc(bytes), *got = malloc(bytes);
  dt_random random = {4242};
  int64_t differing = 0;
  for (int round = 0; round < 8; round++) {
    gemm_problem p;
    problem_create(&p, arena, s, 1000 + (uint64_t)round);
    for (int i = 0; i < launches / 8; i++) {
      const variant v = {"stress", i % 2, 2 * (int32_t)(1 + dt_random_below(&random, 8)),
                         i == 0 ? 0 : 2 * (int32_t)(1 + dt_random_below(&random, 60))};
      const dt_cuda_gemm gemm = describe(&p, &v);
      void *workspace = workspace_for(&gemm);
      cuda_must(cudaMemsetAsync(p.out, 0xff, bytes, stream), "cudaMemset");
      must(dt_cuda_grouped_gemm(&gemm, workspace, stream), v.name);
      must(dt_cuda_gemm_check(workspace, stream), v.name);
      cuda_must(cudaMemcpy(i == 0 ? first : got, p.out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
      cudaFree(workspace);
      differing += i > 0 && memcmp(first, got, bytes) != 0;
    }
    problem_destroy(&p);
  }
  printf("%-4s %d launches, rows %lld n %lld k %lld experts %d: %lld differ from the first of their sizes\n",
         differing ? "FAIL" : "ok", launches, (long long)s->rows, (long long)s->n, (long long)s->k, s->experts,
         (long long)differing);
  free(first);
  free(got);
  return differing == 0;
}

/* Bands of a problem, on the device. */
typedef struct bands {
  int count;
  int32_t *row, *rows;
  uint32_t *ready, *expired;
} bands;

static bands make_bands(const gemm_problem *p) {
  const size_t most = (size_t)(p->shape.rows / 128 + p->shape.experts);
  int32_t *host = malloc(2 * most * sizeof *host);
  bands b = {0, NULL, NULL, NULL, NULL};
  for (int e = 0; e < p->shape.experts; e++)
    for (int32_t at = 0; at < p->counts[e]; at += 128) {
      host[b.count] = (int32_t)p->first[e] + at;
      host[most + (size_t)b.count++] = p->counts[e] - at < 128 ? p->counts[e] - at : 128;
    }
  cuda_must(cudaMalloc((void **)&b.row, 8 * most), "cudaMalloc");
  b.rows = b.row + most;
  cuda_must(dt_cuda_write(b.row, host, 8 * most), "bands");
  cuda_must(cudaMalloc((void **)&b.ready, 4 * most + 4), "cudaMalloc");
  b.expired = b.ready + most;
  free(host);
  return b;
}

/* A consumer on another stream copies every band when its counter says that it is ready. If it waits for all tiles, the
 * copy is the output; if it waits for the first alone, it must meet poison where a band takes several rounds: the check
 * can fail. */
static int check_ready(const gemm_arena *arena, const gemm_shape *s, int tensor_stores, int rounds) {
  const size_t bytes = 2 * (size_t)(s->rows * s->n);
  const uint32_t columns = 2 * (uint32_t)((s->n + 255) / 256); /* in units of 128 */
  uint16_t *out = malloc(bytes), *copy = malloc(bytes);
  cudaStream_t consumer;
  cuda_must(cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking), "cudaStreamCreate");
  int64_t wrong = 0, early_seen = 0;
  uint32_t expired = 0;
  for (int round = 0; round < rounds; round++) {
    gemm_problem p;
    problem_create(&p, arena, s, 500 + (uint64_t)round);
    bands b = make_bands(&p);
    const variant v = {"ready", tensor_stores, 0, 120};
    for (int early = 0; early < 2; early++) {
      dt_cuda_gemm gemm = describe(&p, &v);
      gemm.ready = b.ready;
      void *workspace = workspace_for(&gemm);
      cuda_must(cudaMemset(b.ready, 0, 4 * (size_t)(b.expired - b.ready) + 4), "cudaMemset");
      cuda_must(cudaMemset(p.out, 0xff, bytes), "cudaMemset");
      cuda_must(cudaMemset(p.other, 0, bytes), "cudaMemset");
      cuda_must(cudaDeviceSynchronize(), "synchronize");
      cuda_must(
          ready_copy(b.ready, b.row, b.rows, b.count, early ? 2 : columns, p.out, p.other, s->n, b.expired, consumer),
          "ready_copy");
      must(dt_cuda_grouped_gemm(&gemm, workspace, stream), v.name);
      must(dt_cuda_gemm_check(workspace, stream), v.name);
      cuda_must(cudaStreamSynchronize(consumer), "consumer");
      cuda_must(cudaMemcpy(out, p.out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
      cuda_must(cudaMemcpy(copy, p.other, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
      uint32_t count;
      cuda_must(cudaMemcpy(&count, b.expired, 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
      expired += count;
      cudaFree(workspace);
      if (early)
        early_seen += memcmp(out, copy, bytes) != 0;
      else
        wrong += memcmp(out, copy, bytes) != 0;
    }
    cudaFree(b.row);
    cudaFree(b.ready);
    problem_destroy(&p);
  }
  cudaStreamDestroy(consumer);
  free(out);
  free(copy);
  const int good = wrong == 0 && expired == 0 && (columns < 40 || early_seen > 0);
  printf("%-4s ready counters, %s, rows %lld n %lld k %lld experts %d: of %d copies %lld wrong, %u waits expired; of "
         "those "
         "that did not wait %lld wrong\n",
         good ? "ok" : "FAIL", tensor_stores ? "copy engine" : "rows", (long long)s->rows, (long long)s->n,
         (long long)s->k, s->experts, rounds, (long long)wrong, expired, (long long)early_seen);
  return good;
}

/* A captured call must follow counts that change on the device. */
static int check_graph(const gemm_arena *arena, const gemm_shape *s) {
  const size_t bytes = 2 * (size_t)(s->rows * s->n);
  uint16_t *direct = malloc(bytes), *replayed = malloc(bytes);
  gemm_problem p;
  problem_create(&p, arena, s, 1);
  const dt_cuda_gemm gemm = describe(&p, &variants[1]);
  void *workspace = workspace_for(&gemm);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cuda_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  must(dt_cuda_grouped_gemm(&gemm, workspace, stream), "captured call");
  cuda_must(cudaStreamEndCapture(stream, &graph), "capture");
  cuda_must(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  int64_t wrong = 0;
  for (uint64_t seed = 1; seed < 6; seed++) {
    problem_destroy(&p);
    problem_create(&p, arena, s, seed);
    cuda_must(cudaMemsetAsync(p.out, 0xff, bytes, stream), "cudaMemset");
    cuda_must(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    must(dt_cuda_gemm_check(workspace, stream), "graph");
    cuda_must(cudaMemcpy(replayed, p.out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    cuda_must(cudaMemsetAsync(p.out, 0xff, bytes, stream), "cudaMemset");
    must(dt_cuda_grouped_gemm(&gemm, workspace, stream), "direct call");
    must(dt_cuda_gemm_check(workspace, stream), "direct call");
    cuda_must(cudaMemcpy(direct, p.out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    wrong += memcmp(direct, replayed, bytes) != 0;
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaFree(workspace);
  problem_destroy(&p);
  free(direct);
  free(replayed);
  printf("%-4s a CUDA graph, counts changed between launches: %lld of 5 wrong\n", wrong ? "FAIL" : "ok",
         (long long)wrong);
  return wrong == 0;
}

/* Counts that exceed the capacity, or are negative, must be reported and must not write outside. */
static int check_capacity(const gemm_arena *arena) {
  const gemm_shape s = {300, 512, 128, 3, SIZES_EVEN};
  gemm_problem p;
  problem_create(&p, arena, &s, 5);
  const int32_t wrong[2][3] = {{100, 150, 100}, {100, -1, 100}};
  int good = 1;
  for (int i = 0; i < 2; i++) {
    const dt_cuda_gemm gemm = describe(&p, &variants[0]);
    void *workspace = workspace_for(&gemm);
    const size_t bytes = 2 * (size_t)((s.rows + GUARD_ROWS) * s.n);
    uint16_t *got = malloc(bytes);
    cuda_must(dt_cuda_write(p.device_counts, wrong[i], sizeof wrong[i]), "counts");
    cuda_must(cudaMemsetAsync(p.out, 0xff, bytes, stream), "cudaMemset");
    must(dt_cuda_grouped_gemm(&gemm, workspace, stream), "capacity");
    good &= dt_cuda_gemm_check(workspace, stream) == DT_ERR_CAPACITY;
    cuda_must(cudaMemcpy(got, p.out, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int64_t j = 0; j < GUARD_ROWS * s.n; j++) good &= got[s.rows * s.n + j] == 0xffff;
    free(got);
    cudaFree(workspace);
  }
  problem_destroy(&p);
  printf("%-4s counts above the capacity, negative counts\n", good ? "ok" : "FAIL");
  return good;
}

int main(int argc, char **argv) {
  static const gemm_shape shapes[] = {{1, 256, 64, 1, SIZES_EVEN},           {1, 8, 8, 1, SIZES_EVEN},
                                      {128, 256, 64, 1, SIZES_EVEN},         {129, 264, 72, 1, SIZES_EVEN},
                                      {64, 512, 256, 1, SIZES_EVEN},         {65, 776, 136, 2, SIZES_UNIFORM},
                                      {300, 1000, 200, 7, SIZES_SPARSE},     {1000, 2056, 1032, 9, SIZES_UNIFORM},
                                      {256, 768, 512, 1, SIZES_EVEN},        {777, 2048, 768, 64, SIZES_UNIFORM},
                                      {4096, 2048, 512, 64, SIZES_ZIPF},     {900, 1000, 776, 5, SIZES_UNIFORM},
                                      {5000, 768, 2048, 128, SIZES_SPARSE},  {300, 256, 512, 300, SIZES_UNIFORM},
                                      {2500, 4096, 7168, 8, SIZES_UNIFORM},  {16384, 8192, 2048, 8, SIZES_EVEN},
                                      {16384, 8192, 2048, 64, SIZES_UNIFORM}};
  const int tiny = argc == 2 && strcmp(argv[1], "--tiny") == 0;
  if (argc > 1 && !tiny) {
    fprintf(stderr, "usage: check_gemm [--tiny]\n");
    return 2;
  }
  int device = 0, major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  have_cublas = !tiny && cublas_open(stream);
  printf("cuBLAS: %s\n", have_cublas ? "found" : "not used");
  const int count = tiny ? 7 : (int)(sizeof shapes / sizeof shapes[0]);
  gemm_arena arena;
  arena_create(&arena, shapes, count);
  int good = 1;
  for (int i = 0; i < count; i++) good &= check_shape(&arena, &shapes[i], 7 + (uint64_t)i);
  const gemm_shape uneven = {600, 512, 64, 48, SIZES_UNIFORM}, deep = {900, 768, 320, 40, SIZES_ZIPF};
  if (!tiny) {
    good &= check_capacity(&arena);
    good &= check_graph(&arena, &(const gemm_shape){2000, 1024, 256, 12, SIZES_UNIFORM});
    const gemm_shape mixed = {5000, 2048, 512, 24, SIZES_UNIFORM}, wide = {4000, 8192, 256, 2, SIZES_UNIFORM},
                     cut = {1024, 8192, 256, 1, SIZES_EVEN};
    for (int tensor_stores = 0; tensor_stores < 2; tensor_stores++) {
      good &= check_ready(&arena, &mixed, tensor_stores, 40);
      good &= check_ready(&arena, &wide, tensor_stores, 10);
      good &= check_ready(&arena, &cut, tensor_stores, 10);
      good &= check_ready(&arena, &uneven, tensor_stores, 40);
    }
    good &= stress(&arena, &uneven, 4000);
    good &= stress(&arena, &deep, 2000);
  }
  return !good;
}
