/* Checks the combine operator on two GPUs: every mode on shapes from one row up, with tails, empty experts and ranks
 * without rows, bit by bit against a grouped GEMM of each rank whose rows the host puts where the plan says. Buffers
 * are poisoned and the working memory holds another product's rows. Then rounds without a pause between them, and a
 * rank that does not come. Exit code 77 without two Hopper GPUs.
 */
#include <draintile/combine.h>
#include <draintile/gemm.h>
#include <draintile/plan.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/random.h"

enum { RANKS = 2, BACK_TO_BACK = 200 };

typedef struct shape {
  int64_t rows, n, k;
  int32_t experts;
  dt_combine_router router;
  int32_t consumers, segment_bands;
  int32_t bare; /* a rank whose experts get no rows; -1: none */
} shape;
static const shape shapes[] = {
    {2, 256, 64, 1, DT_ROUTER_BALANCED, 2, 1, -1},       {2, 8, 8, 2, DT_ROUTER_CROSSED, 2, 1, -1},
    {300, 264, 72, 3, DT_ROUTER_MODERATE, 4, 1, -1},     {1000, 1000, 200, 7, DT_ROUTER_STRESS, 2, 2, 1},
    {2000, 2056, 136, 16, DT_ROUTER_MODERATE, 8, 1, 0},  {4096, 4096, 512, 4, DT_ROUTER_BALANCED, 16, 2, -1},
    {4096, 2048, 768, 64, DT_ROUTER_STRESS, 24, 1, -1},  {6000, 7168, 256, 8, DT_ROUTER_CROSSED, 12, 1, -1},
    {8192, 8192, 1024, 8, DT_ROUTER_MODERATE, 16, 1, -1}};
static const char *const mode_names[] = {"bulk", "signal", "direct"};

typedef struct rank {
  pthread_t thread;
  int32_t rank;
  dt_comm *control, *comm;
  const shape *shape;
  const int32_t *counts;
  int absent;          /* makes the operator, then stays away */
  uint16_t *packed;    /* host: this rank's product */
  uint16_t *buffer[3]; /* host: its buffer after each mode */
  dt_plan *plan;
  dt_status status;
  char detail[256];
} rank;
static rank ranks[RANKS];

static dt_status cuda(cudaError_t error) {
  if (error == cudaSuccess) return DT_OK;
  fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

static uint16_t *random_matrix(size_t elements, uint64_t seed, dt_status *status) {
  uint16_t *host = malloc(2 * elements + 16), *device = NULL;
  dt_random random = {seed};
  for (size_t i = 0; i < elements; i++) /* +-1 to +-4 in bf16, every mantissa */
    host[i] = (uint16_t)((dt_random_u64(&random) & 0x80ff) | 0x3f80);
  if (!*status) *status = cuda(cudaMalloc((void **)&device, 2 * elements + 16));
  if (!*status) *status = cuda(cudaMemcpy(device, host, 2 * elements, cudaMemcpyHostToDevice));
  free(host);
  return device;
}

/* This rank's product by the grouped GEMM alone. */
static dt_status product(rank *r, const uint16_t *a, const uint16_t *b, cudaStream_t stream) {
  const shape *s = r->shape;
  const size_t bytes = 2 * (size_t)(r->plan->rows * s->n);
  int32_t *rows = calloc((size_t)s->experts, sizeof *rows), *counts = NULL;
  void *workspace = NULL, *out = NULL;
  for (int32_t g = 0; g < r->plan->group_count; g++)
    rows[r->plan->groups[g].expert] += (int32_t)r->plan->groups[g].rows;
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.a = a;
  gemm.b = b;
  gemm.experts = s->experts;
  gemm.rows_max = r->plan->rows;
  gemm.n = s->n;
  gemm.k = s->k;
  size_t size = 0;
  dt_status status = dt_cuda_gemm_workspace(&gemm, &size);
  if (!status) status = cuda(cudaMalloc(&workspace, size));
  if (!status) status = cuda(cudaMalloc(&out, bytes + 16));
  if (!status) status = cuda(cudaMalloc((void **)&counts, (size_t)s->experts * sizeof *counts));
  if (!status) status = cuda(cudaMemcpy(counts, rows, (size_t)s->experts * sizeof *rows, cudaMemcpyHostToDevice));
  gemm.counts = counts;
  gemm.out = out;
  if (!status) status = dt_cuda_grouped_gemm(&gemm, workspace, stream);
  if (!status && r->plan->rows) status = dt_cuda_gemm_check(workspace, stream);
  r->packed = malloc(bytes + 16);
  if (!status) status = cuda(cudaMemcpy(r->packed, out, bytes, cudaMemcpyDeviceToHost));
  cudaFree(workspace), cudaFree(out), cudaFree(counts), free(rows);
  return status;
}

static dt_status run_modes(rank *r, dt_combine *combine, const uint16_t *a, const uint16_t *b, cudaStream_t stream) {
  const size_t bytes = 2 * (size_t)(r->plan->combine_rows * r->shape->n);
  dt_status status = DT_OK;
  for (int mode = 0; mode < 3 && !status; mode++) {
    status = dt_combine_run_gemm(combine, 0, a + r->shape->k, b, stream);
    if (!status) status = cuda(cudaMemsetAsync(dt_combine_buffer(combine), 0xff, bytes, stream));
    if (!status) status = dt_combine_run(combine, (dt_combine_mode)mode, a, b, stream);
    if (!status) status = dt_combine_check(combine, stream);
    r->buffer[mode] = malloc(bytes + 16);
    if (!status) status = cuda(cudaMemcpy(r->buffer[mode], dt_combine_buffer(combine), bytes, cudaMemcpyDeviceToHost));
    if (!status) status = dt_comm_barrier(r->comm, "mode");
  }
  /* No host between the rounds: each must not overtake the peer's reading of the round before. */
  for (int i = 0; i < BACK_TO_BACK && !status; i++)
    status = dt_combine_run(combine, (dt_combine_mode)(i % 3), i % 2 ? a : a + r->shape->k, b, stream);
  if (!status) status = dt_combine_run(combine, DT_COMBINE_SIGNAL, a, b, stream);
  if (!status) status = dt_combine_check(combine, stream);
  uint16_t *again = malloc(bytes + 16);
  if (!status) status = cuda(cudaMemcpy(again, dt_combine_buffer(combine), bytes, cudaMemcpyDeviceToHost));
  if (!status && memcmp(again, r->buffer[0], bytes) != 0) {
    printf("FAIL rank %d: rows differ after %d rounds\n", r->rank, BACK_TO_BACK);
    status = DT_ERR_INTERNAL;
  }
  free(again);
  return status;
}

static dt_status work(rank *r) {
  const shape *s = r->shape;
  cudaStream_t stream = NULL;
  dt_combine *combine = NULL;
  dt_status status = cuda(cudaSetDevice(r->rank));
  if (!status) status = cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  dt_plan_config plan;
  dt_plan_config_init(&plan);
  plan.ranks = RANKS;
  plan.rank = r->rank;
  plan.experts_per_rank = s->experts;
  if (!status) status = dt_plan_create(&plan, r->counts, &r->plan);
  if (status) return status;
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = s->experts;
  config.n = s->n;
  config.k = s->k;
  config.rows_max = r->plan->rows + 1;
  config.combine_rows_max = r->plan->combine_rows + 1;
  config.consumers = s->consumers;
  config.segment_bands = s->segment_bands;
  config.timeout_s = r->absent ? 0.2 : 5;
  uint16_t *a = random_matrix((size_t)((r->plan->rows + 1) * s->k), 5 + (uint64_t)r->rank, &status);
  uint16_t *b = random_matrix((size_t)(s->experts * s->n * s->k), 50 + (uint64_t)r->rank, &status);
  if (!status) status = dt_combine_create(&config, &combine);
  if (!status) status = dt_combine_set_counts(combine, r->counts);
  if (!status) status = dt_comm_barrier(r->comm, "made");
  if (!r->absent) {
    if (!status) status = product(r, a, b, stream);
    if (!status) status = run_modes(r, combine, a, b, stream);
  } else if (r->rank == 0) {
    if (!status) status = dt_combine_run(combine, DT_COMBINE_DIRECT, a, b, stream);
    if (!status) status = dt_combine_check(combine, stream);
  }
  if (status) snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
  if (r->absent) dt_comm_barrier(r->comm, "end");
  cudaDeviceSynchronize();
  dt_combine_destroy(combine);
  cudaFree(a), cudaFree(b);
  if (stream) cudaStreamDestroy(stream);
  return status;
}

static void *run_rank(void *context) {
  rank *r = context;
  r->status = dt_comm_create_cuda(r->control, r->rank, &r->comm);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->control, r->status, r->detail);
    return NULL;
  }
  r->status = work(r);
  if (r->status && !r->absent) dt_comm_abort(r->comm, r->status, r->detail);
  return NULL;
}

static int64_t wrong_rows(int mode) {
  int64_t wrong = 0;
  for (int32_t e = 0; e < RANKS; e++) {
    const rank *r = &ranks[e];
    const int64_t n = r->shape->n;
    for (int32_t g = 0; g < r->plan->group_count; g++) {
      const dt_group *group = &r->plan->groups[g];
      for (int64_t i = 0; i < group->rows; i++)
        wrong += memcmp(ranks[group->owner].buffer[mode] + (group->dst_row + i) * n, r->packed + (group->row + i) * n,
                        2 * (size_t)n) != 0;
    }
  }
  return wrong;
}

static int check(const shape *s, int absent) {
  const int32_t experts = RANKS * s->experts;
  int32_t *counts = calloc((size_t)(RANKS * experts), sizeof *counts);
  dt_comm *controls[RANKS];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 10;
  if (dt_combine_route(s->router, 11, RANKS, s->experts, s->rows, counts) != DT_OK ||
      dt_comm_create_local(RANKS, &config, controls) != DT_OK) {
    printf("FAIL %s\n", dt_error_detail());
    return 0;
  }
  for (int32_t g = 0; s->bare >= 0 && g < RANKS * experts; g++)
    if (g % experts / s->experts == s->bare) counts[g] = 0;
  memset(ranks, 0, sizeof ranks);
  for (int32_t r = 0; r < RANKS; r++) {
    ranks[r] = (rank){.rank = r, .control = controls[r], .shape = s, .counts = counts, .absent = absent};
    pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  }
  for (int32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
  int good = 1;
  if (absent) {
    good = ranks[0].status == DT_ERR_TIMEOUT && strstr(ranks[0].detail, "rank 1") != NULL && ranks[1].status == DT_OK;
    printf("%-4s a rank that stays away: %s\n", good ? "ok" : "FAIL", ranks[0].detail);
  } else {
    for (int32_t r = 0; r < RANKS; r++) {
      if (ranks[r].status == DT_OK) continue;
      printf("FAIL rank %d: %s: %s\n", r, dt_status_name(ranks[r].status), ranks[r].detail);
      good = 0;
    }
    int64_t wrong[3] = {-1, -1, -1};
    for (int mode = 0; mode < 3 && good; mode++) wrong[mode] = wrong_rows(mode);
    good = good && wrong[0] == 0 && wrong[1] == 0 && wrong[2] == 0;
    printf("%-4s rows %lld n %lld k %lld experts %d router %d consumers %d:", good ? "ok" : "FAIL", (long long)s->rows,
           (long long)s->n, (long long)s->k, s->experts, (int)s->router, s->consumers);
    for (int mode = 0; mode < 3; mode++) printf(" %s %lld wrong;", mode_names[mode], (long long)wrong[mode]);
    printf("\n");
  }
  fflush(stdout);
  for (int32_t r = 0; r < RANKS; r++) {
    free(ranks[r].packed);
    for (int mode = 0; mode < 3; mode++) free(ranks[r].buffer[mode]);
    dt_plan_destroy(ranks[r].plan);
    dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  }
  free(counts);
  return good;
}

int main(void) {
  int devices = 0, reach = 0, major = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < RANKS ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9 ||
      cudaDeviceCanAccessPeer(&reach, 0, 1) != cudaSuccess || !reach) {
    printf("skipped: no two Hopper GPUs with peer access\n");
    return 77;
  }
  int good = 1;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) good &= check(&shapes[i], 0);
  good &= check(&shapes[3], 1);
  return !good;
}
