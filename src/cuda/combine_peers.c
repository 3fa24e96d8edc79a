/* What the combine is compared with: cuBLAS and NCCL, loaded at run time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "combine_bench.h"
#include "core/error.h"
#include "driver.h"
#include "libraries.h"

/* Of cublas_api.h, library_types.h and nccl.h, which need not be installed. */
enum { OP_N = 0, OP_T = 1, R_16BF = 14, COMPUTE_32F = 68, GEMM_DEFAULT = -1, NCCL_BF16 = 9 };

typedef struct blas {
  int (*create)(void **handle);
  int (*destroy)(void *handle);
  int (*set_stream)(void *handle, cudaStream_t stream);
  int (*version)(void *handle, int *version);
  int (*gemm)(void *handle, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
              int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
              int compute, int algorithm);
  int (*grouped)(void *handle, const int *transpose_a, const int *transpose_b, const int *m, const int *n, const int *k,
                 const void *alpha, const void *const *a, int a_type, const int *lda, const void *const *b, int b_type,
                 const int *ldb, const void *beta, void *const *c, int c_type, const int *ldc, int groups,
                 const int *sizes, int compute);
} blas;

struct dt_peers {
  blas blas;
  dt_nccl nccl;
  int32_t ranks;
  void *comms[DT_BENCH_RANKS], *handles[DT_BENCH_RANKS]; /* handles: each made by its rank when first needed */
  int blas_version, nccl_version;
};

/* A grouped product: arrays of its groups, and their operands on the device. */
typedef struct product {
  int groups;
  int *m, *n, *k, *sizes, *transposed, *plain;
  float *ones, *zeros;
  const void **operands, **device; /* B, A, C: [3][groups_max] */
  size_t groups_max;
} product;

struct dt_peer {
  dt_peers *peers;
  dt_peer_problem problem;
  int32_t rank, ranks, experts;
  void *handle; /* the peers' */
  product by_expert, by_owner;
  int64_t *first_row, *expert_rows;                       /* [experts] in packed rows */
  int64_t send_row[DT_BENCH_RANKS], rows[DT_BENCH_RANKS]; /* by_owner: where each owner's rows are in `packed` */
  int64_t receive_row[DT_BENCH_RANKS + 1];                /* where each rank's rows go in `receive` */
};

static dt_status blas_check(int status, const char *what) {
  return status == 0 ? DT_OK : dt_fail(DT_ERR_DEVICE, "%s: cuBLAS status %d", what, status);
}
static dt_status nccl_check(int status, const char *what) {
  return status == 0 ? DT_OK : dt_fail(DT_ERR_DEVICE, "%s: NCCL status %d", what, status);
}

dt_status dt_peers_open(int32_t ranks, dt_peers **out) {
  static const char *const blas_names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
  static const char *const blas_symbols[] = {"cublasCreate_v2",     "cublasDestroy_v2", "cublasSetStream_v2",
                                             "cublasGetVersion_v2", "cublasGemmEx",     "cublasGemmGroupedBatchedEx"};
  dt_peers *peers = calloc(1, sizeof *peers);
  if (!peers) return dt_fail(DT_ERR_MEMORY, "libraries: %zu bytes", sizeof *peers);
  dt_status status = DT_OK;
  if (!dt_library_load(blas_names, 3, blas_symbols, 6, &peers->blas))
    status = dt_fail(DT_ERR_UNSUPPORTED, "cuBLAS: libcublas.so was not found");
  else if (!dt_nccl_load(&peers->nccl))
    status = dt_fail(DT_ERR_UNSUPPORTED, "NCCL: libnccl.so.2 was not found");
  int devices[DT_BENCH_RANKS];
  for (int32_t r = 0; r < ranks; r++) devices[r] = r;
  if (!status) status = nccl_check(peers->nccl.init_all(peers->comms, ranks, devices), "ncclCommInitAll");
  if (status) {
    free(peers);
    return status;
  }
  peers->ranks = ranks;
  peers->nccl.version(&peers->nccl_version);
  *out = peers;
  return DT_OK;
}

void dt_peers_close(dt_peers *peers) {
  if (!peers) return;
  for (int32_t r = 0; r < peers->ranks; r++) {
    if (peers->handles[r]) peers->blas.destroy(peers->handles[r]);
    peers->nccl.destroy(peers->comms[r]);
  }
  free(peers);
}

void dt_peers_versions(const dt_peers *peers, char *cublas, char *nccl_text, size_t size) {
  snprintf(cublas, size, "%d", peers->blas_version);
  snprintf(nccl_text, size, "%d", peers->nccl_version);
}

static void product_release(product *p) {
  free(p->m), free(p->n), free(p->k), free(p->sizes), free(p->transposed), free(p->plain), free(p->ones);
  free(p->zeros), free(p->operands), cudaFree(p->device);
}

static dt_status product_reserve(product *p, size_t groups_max) {
  int **integers[] = {&p->m, &p->n, &p->k, &p->sizes, &p->transposed, &p->plain};
  int missing = 0;
  for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
    missing |= (*integers[i] = calloc(groups_max, sizeof(int))) == NULL;
  missing |= (p->ones = calloc(groups_max, sizeof(float))) == NULL;
  missing |= (p->zeros = calloc(groups_max, sizeof(float))) == NULL;
  missing |= (p->operands = calloc(3 * groups_max, sizeof *p->operands)) == NULL;
  p->groups_max = groups_max;
  if (missing) return dt_fail(DT_ERR_MEMORY, "groups: %zu", groups_max);
  return dt_cuda_check(cudaMalloc((void **)&p->device, 3 * groups_max * sizeof *p->operands), "groups");
}

/* `rows` rows of `expert` from packed row `row`, to `out`. */
static void product_add(product *p, const dt_peer_problem *q, int32_t expert, int64_t row, int64_t rows,
                        uint16_t *out) {
  if (rows == 0) return;
  const int g = p->groups++;
  p->m[g] = (int)q->n;
  p->n[g] = (int)rows;
  p->k[g] = (int)q->k;
  p->sizes[g] = 1;
  p->transposed[g] = OP_T;
  p->plain[g] = OP_N;
  p->ones[g] = 1;
  p->operands[g] = q->b + (int64_t)expert * q->n * q->k;
  p->operands[p->groups_max + (size_t)g] = q->a + row * q->k;
  p->operands[2 * p->groups_max + (size_t)g] = out;
}

static dt_status product_upload(product *p) {
  return dt_cuda_check(dt_cuda_write(p->device, p->operands, 3 * p->groups_max * sizeof *p->operands), "groups");
}

static dt_status product_run(const dt_peer *peer, const product *p) {
  if (p->groups == 0) return DT_OK;
  const blas *api = &peer->peers->blas;
  return blas_check(api->grouped(peer->handle, p->transposed, p->plain, p->m, p->n, p->k, p->ones, p->device, R_16BF,
                                 p->k, p->device + p->groups_max, R_16BF, p->k, p->zeros,
                                 (void *const *)(p->device + 2 * p->groups_max), R_16BF, p->m, p->groups, p->sizes,
                                 COMPUTE_32F),
                    "cublasGemmGroupedBatchedEx");
}

/* Experts' rows, and the places of groups: own ones in `receive`, each other owner's one after the other in `packed`.
 */
static void fill_products(dt_peer *peer) {
  const dt_peer_problem *q = &peer->problem;
  for (int32_t g = 0; g < q->plan->group_count; g++) {
    const dt_group *group = &q->plan->groups[g];
    if (peer->expert_rows[group->expert] == 0 || group->row < peer->first_row[group->expert])
      peer->first_row[group->expert] = group->row;
    peer->expert_rows[group->expert] += group->rows;
    peer->rows[group->owner] += group->rows;
  }
  const int32_t *counts = q->counts + (int64_t)peer->rank * peer->ranks * peer->experts;
  for (int32_t g = 0; g < peer->ranks * peer->experts; g++) peer->receive_row[g / peer->experts + 1] += counts[g];
  for (int32_t r = 0; r < peer->ranks; r++) peer->receive_row[r + 1] += peer->receive_row[r];
  for (int32_t o = 1; o < peer->ranks; o++) peer->send_row[o] = peer->send_row[o - 1] + peer->rows[o - 1];
  int64_t at[DT_BENCH_RANKS];
  memcpy(at, peer->send_row, sizeof at);
  for (int32_t e = 0; e < peer->experts; e++)
    product_add(&peer->by_expert, q, e, peer->first_row[e], peer->expert_rows[e],
                q->packed + peer->first_row[e] * q->n);
  for (int32_t g = 0; g < q->plan->group_count; g++) { /* experts ascending, as the owner's buffer has them */
    const dt_group *group = &q->plan->groups[g];
    uint16_t *out =
        group->owner == peer->rank ? q->receive + group->dst_row * q->n : q->packed + at[group->owner] * q->n;
    product_add(&peer->by_owner, q, group->expert, group->row, group->rows, out);
    at[group->owner] += group->rows;
  }
}

dt_status dt_peer_create(dt_peers *peers, const dt_peer_problem *problem, dt_peer **out) {
  dt_peer *peer = calloc(1, sizeof *peer);
  if (!peer) return dt_fail(DT_ERR_MEMORY, "peer: %zu bytes", sizeof *peer);
  const dt_plan_config *config = &problem->plan->config;
  *peer = (dt_peer){.peers = peers,
                    .problem = *problem,
                    .rank = config->rank,
                    .ranks = config->ranks,
                    .experts = config->experts_per_rank,
                    .first_row = calloc((size_t)config->experts_per_rank, sizeof *peer->first_row),
                    .expert_rows = calloc((size_t)config->experts_per_rank, sizeof *peer->expert_rows)};
  dt_status status =
      peer->first_row && peer->expert_rows ? DT_OK : dt_fail(DT_ERR_MEMORY, "peer: %d experts", peer->experts);
  if (!status) status = product_reserve(&peer->by_expert, (size_t)peer->experts);
  if (!status) status = product_reserve(&peer->by_owner, (size_t)peer->experts * (size_t)peer->ranks);
  if (!status && !peers->handles[peer->rank])
    status = blas_check(peers->blas.create(&peers->handles[peer->rank]), "cublasCreate");
  peer->handle = peers->handles[peer->rank];
  if (!status) status = blas_check(peers->blas.set_stream(peer->handle, problem->stream), "cublasSetStream");
  if (!status && peer->rank == 0)
    status = blas_check(peers->blas.version(peer->handle, &peers->blas_version), "cublasGetVersion");
  if (!status) fill_products(peer);
  if (!status) status = product_upload(&peer->by_expert);
  if (!status) status = product_upload(&peer->by_owner);
  if (status) {
    dt_peer_destroy(peer);
    return status;
  }
  *out = peer;
  return DT_OK;
}

void dt_peer_destroy(dt_peer *peer) {
  if (!peer) return;
  product_release(&peer->by_expert);
  product_release(&peer->by_owner);
  free(peer->first_row), free(peer->expert_rows), free(peer);
}

dt_status dt_peer_gemm(dt_peer *peer) {
  return product_run(peer, &peer->by_expert);
}

/* Every group's rows, own ones too: between any two ranks both sides name experts ascending. */
static int exchange_groups(const dt_peer *peer) {
  const dt_peer_problem *q = &peer->problem;
  const dt_nccl *api = &peer->peers->nccl;
  void *comm = peer->peers->comms[peer->rank];
  const size_t n = (size_t)q->n;
  int error = 0;
  for (int32_t g = 0; g < q->plan->group_count && !error; g++) {
    const dt_group *group = &q->plan->groups[g];
    if (group->rows)
      error =
          api->send(q->packed + group->row * q->n, (size_t)group->rows * n, NCCL_BF16, group->owner, comm, q->stream);
  }
  int64_t row = 0;
  for (int32_t r = 0; r < peer->ranks; r++)
    for (int32_t e = 0; e < peer->experts && !error; e++) {
      const int64_t rows = q->counts[((int64_t)peer->rank * peer->ranks + r) * peer->experts + e];
      if (rows) error = api->receive(q->receive + row * q->n, (size_t)rows * n, NCCL_BF16, r, comm, q->stream);
      row += rows;
    }
  return error;
}

static dt_status expert_products(const dt_peer *peer) {
  const dt_peer_problem *q = &peer->problem;
  const blas *api = &peer->peers->blas;
  const float one = 1.0f, zero = 0.0f;
  for (int32_t e = 0; e < peer->experts; e++) {
    if (peer->expert_rows[e] == 0) continue;
    const int64_t row = peer->first_row[e];
    dt_status status =
        blas_check(api->gemm(peer->handle, OP_T, OP_N, (int)q->n, (int)peer->expert_rows[e], (int)q->k, &one,
                             q->b + (int64_t)e * q->n * q->k, R_16BF, (int)q->k, q->a + row * q->k, R_16BF, (int)q->k,
                             &zero, q->packed + row * q->n, R_16BF, (int)q->n, COMPUTE_32F, GEMM_DEFAULT),
                   "cublasGemmEx");
    if (status) return status;
  }
  return DT_OK;
}

dt_status dt_peer_warm(dt_peer *peer) {
  const dt_status status = expert_products(peer);
  return status ? status : product_run(peer, &peer->by_owner);
}

dt_status dt_peer_loop(dt_peer *peer) {
  const dt_status status = expert_products(peer);
  if (status) return status;
  int error = peer->peers->nccl.group_start();
  if (!error) error = exchange_groups(peer);
  const int ended = peer->peers->nccl.group_end();
  return nccl_check(error ? error : ended, "all-to-all");
}

dt_status dt_peer_grouped(dt_peer *peer) {
  const dt_peer_problem *q = &peer->problem;
  const dt_nccl *api = &peer->peers->nccl;
  void *comm = peer->peers->comms[peer->rank];
  dt_status status = product_run(peer, &peer->by_owner);
  if (status) return status;
  int error = api->group_start();
  for (int32_t r = 0; r < peer->ranks && !error; r++) {
    if (r == peer->rank) continue;
    const int64_t first = peer->receive_row[r], received = peer->receive_row[r + 1] - first;
    if (peer->rows[r])
      error = api->send(q->packed + peer->send_row[r] * q->n, (size_t)(peer->rows[r] * q->n), NCCL_BF16, r, comm,
                        q->stream);
    if (!error && received)
      error = api->receive(q->receive + first * q->n, (size_t)(received * q->n), NCCL_BF16, r, comm, q->stream);
  }
  const int ended = api->group_end();
  return nccl_check(error ? error : ended, "all-to-all");
}
