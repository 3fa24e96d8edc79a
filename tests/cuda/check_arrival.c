/* The attention kernel's waits for heads, each by itself, on one GPU: started by programmatic launch before the kernel
 * ahead has ended; heads that come one by one from another stream, words compared by difference; a head that never
 * comes, after which the error stays until the workspace is zeroed. Exit code 77 without a Hopper GPU.
 */
#include <draintile/cuda_attention.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "arrival_support.h"
#include "core/random.h"
#include "cuda/driver.h"

enum { TOKENS = 1500, KV_TOKENS = 1337, HEADS = 5, LEFT_FREE = 32, POISON = 0xabababab };

typedef struct fixture {
  int head_dim, sms;
  size_t bytes[4];            /* q, k, v, output */
  uint16_t *operands[3];      /* device: what is to come */
  uint16_t *places[3], *out;  /* device: where it comes; the output */
  uint16_t *expected, *again; /* host */
  uint32_t *words, *seen;
  void *workspace;
  size_t workspace_bytes;
  cudaStream_t stream, other;
} fixture;

#define EXPECT(condition)                                                                                              \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      printf("FAIL %s:%d: %s; %s; CUDA: %s\n", __FILE__, __LINE__, #condition, dt_error_detail(),                      \
             cudaGetErrorString(cudaGetLastError()));                                                                  \
      return 0;                                                                                                        \
    }                                                                                                                  \
  } while (0)
#define CUDA(call) EXPECT((call) == cudaSuccess)

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static dt_cuda_attention describe(const fixture *f, uint16_t *const operands[3]) {
  dt_cuda_attention a;
  dt_cuda_attention_init(&a);
  a.q = operands[0];
  a.k = operands[1];
  a.v = operands[2];
  a.dtype = DT_DTYPE_BF16;
  a.tokens = TOKENS;
  a.kv_tokens = KV_TOKENS;
  a.heads = a.kv_heads = HEADS;
  a.head_dim = f->head_dim;
  a.sms = f->sms;
  a.timeout_s = 2;
  a.owners_count = 1;
  a.owners[0] = (dt_cuda_attention_owner){.rows = TOKENS, .out = f->out, .row_stride = (int64_t)HEADS * f->head_dim};
  return a;
}

static int make(fixture *f) {
  const size_t token = 2 * (size_t)HEADS * (size_t)f->head_dim;
  int sms = 0;
  CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  f->sms = sms - LEFT_FREE; /* where the copies of the other stream run */
  for (int t = 0; t < 4; t++) f->bytes[t] = token * (t == 0 || t == 3 ? TOKENS : KV_TOKENS);
  dt_random random = {11};
  for (int t = 0; t < 3; t++) {
    uint16_t *host = malloc(f->bytes[t]);
    for (size_t i = 0; i < f->bytes[t] / 2; i++) {
      const float value = (float)dt_random_normal(&random);
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      host[i] = (uint16_t)(bits >> 16);
    }
    CUDA(cudaMalloc((void **)&f->operands[t], f->bytes[t]));
    CUDA(cudaMalloc((void **)&f->places[t], f->bytes[t]));
    CUDA(dt_cuda_write(f->operands[t], host, f->bytes[t]));
    free(host);
  }
  CUDA(cudaMalloc((void **)&f->out, f->bytes[3]));
  CUDA(cudaMalloc((void **)&f->words, HEADS * sizeof *f->words));
  CUDA(cudaMalloc((void **)&f->seen, sizeof *f->seen));
  CUDA(cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&f->other, cudaStreamNonBlocking));
  const dt_cuda_attention a = describe(f, f->operands);
  EXPECT(dt_cuda_attention_workspace(&a, &f->workspace_bytes) == DT_OK);
  CUDA(cudaMalloc(&f->workspace, f->workspace_bytes));
  CUDA(cudaMemsetAsync(f->workspace, 0, f->workspace_bytes, f->stream));
  f->expected = malloc(f->bytes[3]);
  f->again = malloc(f->bytes[3]);
  EXPECT(dt_cuda_attention_forward(&a, f->workspace, f->stream) == DT_OK);
  EXPECT(dt_cuda_attention_check(f->workspace, f->stream) == DT_OK);
  CUDA(cudaMemcpy(f->expected, f->out, f->bytes[3], cudaMemcpyDeviceToHost));
  return 1;
}

static void destroy(fixture *f) {
  for (int t = 0; t < 3; t++) cudaFree(f->operands[t]), cudaFree(f->places[t]);
  cudaFree(f->out), cudaFree(f->words), cudaFree(f->seen), cudaFree(f->workspace);
  cudaStreamDestroy(f->stream), cudaStreamDestroy(f->other);
  free(f->expected), free(f->again);
}

static int prepare(fixture *f, uint32_t word) {
  uint32_t words[HEADS];
  for (int h = 0; h < HEADS; h++) words[h] = word;
  CUDA(cudaMemcpy(f->words, words, sizeof words, cudaMemcpyHostToDevice));
  CUDA(cudaMemset(f->out, POISON & 0xff, f->bytes[3]));
  for (int t = 0; t < 3; t++) CUDA(cudaMemset(f->places[t], 0xff, f->bytes[t])); /* NaN: what came too late shows */
  CUDA(cudaDeviceSynchronize());
  return 1;
}

static int right(fixture *f) {
  EXPECT(dt_cuda_attention_check(f->workspace, f->stream) == DT_OK);
  CUDA(cudaMemcpy(f->again, f->out, f->bytes[3], cudaMemcpyDeviceToHost));
  EXPECT(memcmp(f->again, f->expected, f->bytes[3]) == 0);
  return 1;
}

/* The kernel ahead ends when it has seen output of the kernel behind, which is launched programmatically only if it
 * waits for words. */
static int early_start(fixture *f, int by_words) {
  uint32_t seen = 7;
  dt_cuda_attention a = describe(f, f->operands);
  if (by_words) {
    a.arrived = f->words;
    a.arrived_target = 3;
  }
  EXPECT(prepare(f, 0));
  CUDA(arrival_watch(f->words, HEADS, 3, f->out, POISON, by_words ? 1000000 : 20000, f->seen, f->stream));
  EXPECT(dt_cuda_attention_forward(&a, f->workspace, f->stream) == DT_OK);
  EXPECT(right(f));
  CUDA(cudaMemcpy(&seen, f->seen, sizeof seen, cudaMemcpyDeviceToHost));
  EXPECT(seen == (uint32_t)by_words);
  return 1;
}

/* From the last head to the first, so that all wait; words that pass 2^32; the target in the launch or in memory. */
static int heads_one_by_one(fixture *f, int target_in_memory) {
  const uint32_t before = 0xfffffff0u, after = 4;
  arrival_operands operands = {.tokens = TOKENS, .kv_tokens = KV_TOKENS, .heads = HEADS, .head_dim = f->head_dim};
  for (int t = 0; t < 3; t++) operands.from[t] = f->operands[t], operands.to[t] = f->places[t];
  dt_cuda_attention a = describe(f, f->places);
  a.arrived = f->words;
  a.arrived_target = after;
  EXPECT(prepare(f, before));
  if (target_in_memory) {
    CUDA(dt_cuda_write(f->seen, &after, sizeof after));
    a.arrived_target_from = f->seen;
    a.arrived_target = 0x7fffffff;
  }
  EXPECT(dt_cuda_attention_forward(&a, f->workspace, f->stream) == DT_OK);
  for (int h = HEADS - 1; h >= 0; h--) CUDA(arrival_bring(&operands, h, 300, f->words + h, after, f->other));
  EXPECT(right(f));
  return 1;
}

static int never_comes(fixture *f) {
  enum { MISSING = 3 };
  const uint32_t one = 1;
  dt_cuda_attention a = describe(f, f->operands);
  a.arrived = f->words;
  a.arrived_target = 1;
  a.timeout_s = 0.1;
  EXPECT(prepare(f, 0));
  for (int h = 0; h < HEADS; h++)
    if (h != MISSING) CUDA(dt_cuda_write(f->words + h, &one, sizeof one));
  const double start_s = now_s();
  EXPECT(dt_cuda_attention_forward(&a, f->workspace, f->stream) == DT_OK);
  EXPECT(dt_cuda_attention_check(f->workspace, f->stream) == DT_ERR_TIMEOUT);
  EXPECT(strstr(dt_error_detail(), "arrived[3]") != NULL);
  const double took_s = now_s() - start_s;
  EXPECT(took_s > 0.09 && took_s < 1);
  /* It stays: a launch that would succeed does nothing. */
  EXPECT(prepare(f, 1));
  EXPECT(dt_cuda_attention_forward(&a, f->workspace, f->stream) == DT_OK);
  EXPECT(dt_cuda_attention_check(f->workspace, f->stream) == DT_ERR_TIMEOUT);
  CUDA(cudaMemcpy(f->again, f->out, f->bytes[3], cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < f->bytes[3] / 2; i++) EXPECT(f->again[i] == (POISON & 0xffff));
  CUDA(cudaMemsetAsync(f->workspace, 0, f->workspace_bytes, f->stream));
  EXPECT(dt_cuda_attention_forward(&a, f->workspace, f->stream) == DT_OK);
  EXPECT(right(f));
  return 1;
}

static int report(const char *name, int head_dim, int good) {
  printf("%-4s D %d: %s\n", good ? "ok" : "FAIL", head_dim, name);
  fflush(stdout);
  return good;
}

int main(void) {
  int devices = 0, major = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  static const int dims[] = {64, 128, 256};
  int good = 1;
  for (size_t i = 0; i < sizeof dims / sizeof *dims && good; i++) {
    fixture f = {.head_dim = dims[i]};
    good = make(&f);
    good = good && report("begins before the kernel ahead has ended", dims[i], early_start(&f, 1));
    good = good && report("without words it waits for that kernel", dims[i], early_start(&f, 0));
    good = good && report("heads come one by one", dims[i], heads_one_by_one(&f, 0));
    good = good && report("the same, target in memory", dims[i], heads_one_by_one(&f, 1));
    good = good && report("a head that never comes; the error stays", dims[i], never_comes(&f));
    destroy(&f);
  }
  return !good;
}
