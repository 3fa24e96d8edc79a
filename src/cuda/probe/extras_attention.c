/* The attention kernel's own figure: a multiprocessor's time for a tile of keys, X-Stage's sigma. */
#include <draintile/cuda_attention.h>

#include "core/error.h"
#include "cuda/driver.h"
#include "extras.h"

enum {
  HEADS = 12,
  HEAD_DIM = 128,
  FEW_KEYS = 4000, /* whole blocks of 80 */
  MANY_KEYS = 8000,
  QUERIES_A_SM = 64 /* of a head: four tiles of 192 rows a multiprocessor in all, whole waves */
};

typedef struct bench {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  void *q, *k, *v, *out, *workspace;
} bench;

static dt_cuda_attention attention_of(const bench *b, int64_t queries, int64_t keys) {
  dt_cuda_attention attention;
  dt_cuda_attention_init(&attention);
  attention.q = b->q, attention.k = b->k, attention.v = b->v;
  attention.dtype = DT_DTYPE_BF16;
  attention.tokens = queries, attention.kv_tokens = keys;
  attention.heads = attention.kv_heads = HEADS;
  attention.head_dim = HEAD_DIM;
  attention.owners_count = 1;
  attention.owners[0] = (dt_cuda_attention_owner){.rows = queries, .out = b->out, .row_stride = HEADS * HEAD_DIM};
  return attention;
}

static dt_status allocate(bench *b, int64_t queries) {
  const int64_t row = HEADS * HEAD_DIM;
  const struct {
    void **at;
    int64_t elements;
  } matrices[] = {{&b->q, queries * row}, {&b->k, MANY_KEYS * row}, {&b->v, MANY_KEYS * row}, {&b->out, queries * row}};
  size_t bytes = 0;
  dt_status status = DT_OK;
  for (size_t i = 0; i < sizeof matrices / sizeof *matrices && !status; i++) {
    status = dt_cuda_check(cudaMalloc(matrices[i].at, 2 * (size_t)matrices[i].elements), "attention's matrices");
    if (!status && matrices[i].at != &b->out) status = dt_extras_fill(*matrices[i].at, matrices[i].elements);
  }
  if (status) return status;
  const dt_cuda_attention most = attention_of(b, queries, MANY_KEYS);
  status = dt_cuda_attention_workspace(&most, &bytes);
  if (status) return status;
  cudaError_t error = cudaMalloc(&b->workspace, bytes);
  if (error == cudaSuccess) error = cudaMemsetAsync(b->workspace, 0, bytes, b->stream);
  if (error == cudaSuccess) error = cudaEventCreate(&b->begin);
  if (error == cudaSuccess) error = cudaEventCreate(&b->end);
  return dt_cuda_check(error, "attention's matrices");
}

static dt_status run(const bench *b, int64_t queries, int64_t keys, double *seconds) {
  const dt_cuda_attention attention = attention_of(b, queries, keys);
  float ms = 0.0f;
  dt_status status = dt_cuda_check(cudaEventRecord(b->begin, b->stream), "attention");
  if (!status) status = dt_cuda_attention_forward(&attention, b->workspace, b->stream);
  if (status) return status;
  cudaError_t error = cudaEventRecord(b->end, b->stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(b->end);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, b->begin, b->end);
  *seconds = ms * 1e-3;
  status = dt_cuda_check(error, "attention");
  return status ? status : dt_cuda_attention_check(b->workspace, b->stream);
}

/* The slope over keys, so that launch, loads of queries and stores fall out. */
static dt_status key_tile(const bench *b, int32_t sms, int32_t rounds, dt_platform *platform) {
  const int64_t queries = (int64_t)QUERIES_A_SM * sms;
  const double tiles = (double)queries / 128 * HEADS * (MANY_KEYS - FEW_KEYS) / 128;
  double samples[DT_EXTRA_ROUNDS], few = 0.0, many = 0.0;
  dt_status status = DT_OK;
  for (int32_t r = -2; r < rounds && !status; r++) {
    status = run(b, queries, FEW_KEYS, &few);
    if (!status) status = run(b, queries, MANY_KEYS, &many);
    if (r >= 0) samples[r] = (many - few) * sms / tiles;
  }
  return status
             ? status
             : dt_extras_constant(platform, "attention_kv_tile_s", samples, (size_t)rounds,
                                  "the attention kernel: a multiprocessor's time for 128 queries and 128 keys, all at "
                                  "work, 12 heads, D 128, bf16, not causal: 8000 keys minus 4000");
}

dt_status dt_extras_attention(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  bench b = {.stream = probe->streams[0]};
  dt_status status = dt_cuda_check(cudaSetDevice(0), "device");
  if (!status) status = allocate(&b, (int64_t)QUERIES_A_SM * probe->sms);
  if (!status) status = key_tile(&b, probe->sms, rounds, platform);
  if (b.begin) cudaEventDestroy(b.begin);
  if (b.end) cudaEventDestroy(b.end);
  cudaFree(b.q), cudaFree(b.k), cudaFree(b.v), cudaFree(b.out), cudaFree(b.workspace);
  return status;
}
