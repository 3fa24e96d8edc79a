/* Direct stores between two GPUs: a grouped GEMM on each, half of every expert's rows belonging to the other, each row
 * stored to its owner by the epilogue. Both run at once; the slower counts. Compared with storing all rows locally.
 *
 *   direct FILE.json     exit code 77 without a Hopper GPU
 *
 * With one GPU both ranks share it: that checks the results, and its times say nothing about a link.
 */
#include <draintile/gemm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/statistics.h"
#include "cuda/driver.h"
#include "gemm_problem.h"

cudaError_t gemm_settle(const void *memory, size_t bytes, cudaStream_t stream);

enum { RANKS = 2, REPEATS = 20, WARM_UP = 3, EXPERTS_MAX = 64 };

typedef struct rank {
  int device;
  cudaStream_t stream;
  cudaEvent_t start, stop;
  gemm_arena arena;
  gemm_problem problem;
  uint16_t *combine;        /* [rows][n]: own rows of both ranks' experts */
  uint64_t *local, *remote; /* row targets: all rows own; half of them the other's. Owner 0 is the rank itself */
  uint64_t *host_remote;
  void *workspace;
} rank;
static rank ranks[RANKS];

/* Of an owner: its own half of a rank's rows and the other half of the other's; odd groups move it by one each. */
static int64_t combine_rows(int64_t rows) {
  return rows + EXPERTS_MAX;
}

/* How many of rank r's rows belong to the other. */
static int64_t remote_rows(int r) {
  const gemm_problem *p = &ranks[r].problem;
  int64_t rows = 0;
  for (int e = 0; e < p->shape.experts; e++) rows += p->counts[e] / 2;
  return rows;
}

/* Within an expert the other's rows come first, then the own ones; each rank's rows lie in one piece of an owner's
 * combine buffer, rank 0's before rank 1's. */
static void make_targets(int r) {
  rank *self = &ranks[r];
  const gemm_problem *p = &self->problem;
  const int64_t rows = p->shape.rows;
  uint64_t *local = malloc(8 * (size_t)rows);
  self->host_remote = malloc(8 * (size_t)rows);
  uint64_t own = r == 0 ? 0 : (uint64_t)remote_rows(0), theirs = r == 0 ? 0 : (uint64_t)(rows - remote_rows(0));
  for (int e = 0; e < p->shape.experts; e++)
    for (int64_t i = 0; i < p->counts[e]; i++) {
      const int64_t row = p->first[e] + i;
      local[row] = (uint64_t)row;
      self->host_remote[row] = i < p->counts[e] / 2 ? (uint64_t)1 << 32 | theirs++ : own++;
    }
  cuda_must(cudaMalloc((void **)&self->local, 8 * (size_t)rows), "cudaMalloc");
  cuda_must(cudaMalloc((void **)&self->remote, 8 * (size_t)rows), "cudaMalloc");
  cuda_must(dt_cuda_write(self->local, local, 8 * (size_t)rows), "row targets");
  cuda_must(dt_cuda_write(self->remote, self->host_remote, 8 * (size_t)rows), "row targets");
  free(local);
}

static void launch(int r, const uint64_t *target, int tensor_stores) {
  rank *self = &ranks[r];
  const gemm_problem *p = &self->problem;
  dt_cuda_gemm gemm = problem_gemm(p);
  gemm.tensor_stores = tensor_stores;
  gemm.timeout_s = 5;
  gemm.row_target = target;
  gemm.owners = target ? RANKS : 0;
  for (int o = 0; o < RANKS; o++) {
    gemm.owner_out[o] = ranks[(r + o) % RANKS].combine;
    gemm.owner_rows[o] = combine_rows(p->shape.rows);
  }
  if (self->workspace == NULL) {
    size_t bytes;
    must(dt_cuda_gemm_workspace(&gemm, &bytes), "workspace");
    cuda_must(cudaMalloc(&self->workspace, bytes), "cudaMalloc");
  }
  must(dt_cuda_grouped_gemm(&gemm, self->workspace, self->stream), "grouped GEMM");
}

/* Every combine buffer holds exactly the rows that a local GEMM gives. Returns the rows that differ. */
static int64_t check(int tensor_stores) {
  const int64_t n = ranks[0].problem.shape.n, rows = ranks[0].problem.shape.rows;
  const size_t bytes = 2 * (size_t)(combine_rows(rows) * n);
  uint16_t *combine[RANKS], *out = malloc(bytes);
  int64_t wrong = 0;
  for (int r = 0; r < RANKS; r++) {
    cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    cuda_must(cudaMemset(ranks[r].combine, 0xff, bytes), "cudaMemset");
    cuda_must(cudaDeviceSynchronize(), "synchronize");
  }
  for (int r = 0; r < RANKS; r++) {
    cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    launch(r, ranks[r].remote, tensor_stores);
  }
  for (int r = 0; r < RANKS; r++) must(dt_cuda_gemm_check(ranks[r].workspace, ranks[r].stream), "direct");
  for (int r = 0; r < RANKS; r++) {
    combine[r] = malloc(bytes);
    cuda_must(cudaMemcpy(combine[r], ranks[r].combine, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }
  for (int r = 0; r < RANKS; r++) {
    cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    launch(r, NULL, 1);
    must(dt_cuda_gemm_check(ranks[r].workspace, ranks[r].stream), "local");
    cuda_must(cudaMemcpy(out, ranks[r].problem.out, 2 * (size_t)(rows * n), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (int64_t row = 0; row < rows; row++) {
      const uint64_t target = ranks[r].host_remote[row];
      const uint16_t *at = combine[(r + (int)(target >> 32)) % RANKS] + (int64_t)(target & 0xffffffffu) * n;
      wrong += memcmp(at, out + row * n, 2 * (size_t)n) != 0;
    }
  }
  for (int r = 0; r < RANKS; r++) free(combine[r]);
  free(out);
  return wrong;
}

static double measure(int remote, int tensor_stores, double *samples) {
  for (int i = -WARM_UP; i < REPEATS; i++) {
    for (int r = 0; r < RANKS; r++) {
      cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
      cuda_must(gemm_settle(ranks[r].arena.flush, ranks[r].arena.flush_bytes, ranks[r].stream), "gemm_settle");
    }
    for (int r = 0; r < RANKS; r++) {
      cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
      cuda_must(cudaEventRecord(ranks[r].start, ranks[r].stream), "cudaEventRecord");
      launch(r, remote ? ranks[r].remote : ranks[r].local, tensor_stores);
      cuda_must(cudaEventRecord(ranks[r].stop, ranks[r].stream), "cudaEventRecord");
    }
    double slowest = 0;
    for (int r = 0; r < RANKS; r++) {
      float ms;
      cuda_must(cudaEventSynchronize(ranks[r].stop), "direct");
      cuda_must(cudaEventElapsedTime(&ms, ranks[r].start, ranks[r].stop), "cudaEventElapsedTime");
      if (1e-3 * ms > slowest) slowest = 1e-3 * ms;
    }
    if (i >= 0) samples[i] = slowest;
    usleep(500);
  }
  return dt_median(samples, REPEATS);
}

static int run_shape(const gemm_shape *s, FILE *json, int last) {
  double samples[REPEATS];
  for (int r = 0; r < RANKS; r++) {
    cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    problem_create(&ranks[r].problem, &ranks[r].arena, s, 77 + (uint64_t)r);
    cudaFree(ranks[r].workspace);
    ranks[r].workspace = NULL;
  }
  for (int r = 0; r < RANKS; r++) {
    cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    make_targets(r);
  }
  const int64_t wrong[2] = {check(0), check(1)};
  printf("rows %lld n %lld k %lld experts %d, %lld and %lld rows wrong:", (long long)s->rows, (long long)s->n,
         (long long)s->k, s->experts, (long long)wrong[0], (long long)wrong[1]);
  fprintf(json, "  {\"rows\": %lld, \"n\": %lld, \"k\": %lld, \"experts\": %d, \"rows_wrong\": %lld, \"runs\": [\n",
          (long long)s->rows, (long long)s->n, (long long)s->k, s->experts, (long long)(wrong[0] + wrong[1]));
  for (int c = 0; c < 4; c++) {
    const int remote = c % 2, tensor_stores = c / 2;
    const double median = measure(remote, tensor_stores, samples);
    printf(" %s %s %.1f us;", tensor_stores ? "copy engine" : "rows", remote ? "half remote" : "local", 1e6 * median);
    fprintf(json, "   {\"stores\": \"%s\", \"remote\": %s, \"median_s\": %.4e, \"samples_s\": [",
            tensor_stores ? "copy engine" : "rows", remote ? "true" : "false", median);
    for (int i = 0; i < REPEATS; i++) fprintf(json, "%s%.4e", i ? ", " : "", samples[i]);
    fprintf(json, "]}%s\n", c < 3 ? "," : "");
  }
  printf("\n");
  fflush(stdout);
  fprintf(json, "  ]}%s\n", last ? "" : ",");
  for (int r = 0; r < RANKS; r++) {
    cudaFree(ranks[r].local);
    cudaFree(ranks[r].remote);
    free(ranks[r].host_remote);
    problem_destroy(&ranks[r].problem);
  }
  return wrong[0] + wrong[1] == 0;
}

int main(int argc, char **argv) {
  static const gemm_shape shapes[] = {{16384, 8192, 2048, 8, SIZES_EVEN},     {16384, 8192, 2048, 64, SIZES_EVEN},
                                      {16384, 8192, 2048, 64, SIZES_UNIFORM}, {16384, 8192, 1024, 8, SIZES_EVEN},
                                      {16384, 8192, 768, 8, SIZES_EVEN},      {16384, 8192, 512, 8, SIZES_EVEN},
                                      {16384, 2048, 768, 64, SIZES_EVEN}};
  const int count = sizeof shapes / sizeof shapes[0];
  int devices = 0, reach = 0, major = 0;
  if (argc != 2) {
    fprintf(stderr, "usage: direct FILE.json\n");
    return 2;
  }
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  if (devices >= RANKS && cudaDeviceCanAccessPeer(&reach, 0, 1) == cudaSuccess && reach)
    devices = RANKS;
  else
    devices = 1;
  FILE *json = fopen(argv[1], "w");
  if (json == NULL) {
    perror(argv[1]);
    return 1;
  }
  for (int r = 0; r < RANKS; r++) {
    ranks[r].device = r % devices;
    cuda_must(cudaSetDevice(ranks[r].device), "cudaSetDevice");
    if (devices == RANKS) cuda_must(cudaDeviceEnablePeerAccess(1 - r, 0), "cudaDeviceEnablePeerAccess");
    cuda_must(cudaStreamCreateWithFlags(&ranks[r].stream, cudaStreamNonBlocking), "cudaStreamCreate");
    cuda_must(cudaEventCreate(&ranks[r].start), "cudaEventCreate");
    cuda_must(cudaEventCreate(&ranks[r].stop), "cudaEventCreate");
    arena_create(&ranks[r].arena, shapes, count);
    cuda_must(cudaMalloc((void **)&ranks[r].combine, (size_t)combine_rows(16384) * 8192 * 2), "cudaMalloc");
  }
  int good = 1;
  fprintf(json, "{\"schema\": \"draintile-direct\", \"version\": 1, \"ranks\": %d, \"gpus\": %d, \"repeats\": %d,\n",
          RANKS, devices, REPEATS);
  fprintf(json, " \"shapes\": [\n");
  for (int i = 0; i < count; i++) good &= run_shape(&shapes[i], json, i + 1 == count);
  fprintf(json, "]}\n");
  return fclose(json) == 0 && good ? 0 : 1;
}
