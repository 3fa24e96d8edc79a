/* Checks attention on a GPU against float64 on the host: small shapes whole, others on sampled rows; outputs poisoned
 * first, what lies around and between their rows guarded; repeats must give the same bits. Exit code 77 without a
 * Hopper GPU.
 *
 *   check_attention [--repeats N] [--only WORDS]
 *     --repeats: launches of the repeat test, 1000; --only: of the first problems those whose names have these words
 */
#include <draintile/cuda_attention.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/random.h"
#include "cuda/attention.h"
#include "cuda/driver.h"

enum { GUARD = 3, GAP = 16, SAMPLES = 48 }; /* guard rows around each run; elements between its rows */

typedef struct problem {
  const char *name;
  int64_t tokens, kv_tokens;
  int32_t heads, kv_heads, head_dim;
  dt_dtype dtype;
  int32_t causal;
  float amplitude; /* of q, whose scores then have about this scale */
  int32_t runs;    /* the rows go to so many owners, of uneven lengths, in turn local and remote */
  int32_t map;     /* head_to_kv: reversed */
  float rise;      /* the first keys are so many times as long as the last, which the kernel takes first */
} problem;

static cudaStream_t stream;

static void must(dt_status status, const char *what) {
  if (status == DT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, dt_status_name(status), dt_error_detail());
  exit(1);
}
static void cuda_must(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}

static uint16_t narrow(float x, dt_dtype dtype) {
  if (dtype == DT_DTYPE_F16) {
    const _Float16 half = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
  }
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
static double widen(uint16_t x, dt_dtype dtype) {
  if (dtype == DT_DTYPE_F16) {
    _Float16 half;
    memcpy(&half, &x, 2);
    return (double)half;
  }
  const uint32_t bits = (uint32_t)x << 16;
  float out;
  memcpy(&out, &bits, sizeof out);
  return (double)out;
}

typedef struct tensor {
  uint16_t *host, *device;
  int64_t row_stride;
} tensor;
static tensor tensor_random(int64_t rows, int64_t width, int64_t gap, float amplitude, dt_dtype dtype, uint64_t seed) {
  tensor t = {.row_stride = width + gap};
  const size_t count = (size_t)(rows * t.row_stride);
  dt_random random = {seed};
  t.host = malloc(2 * count + 2);
  for (size_t i = 0; i < count; i++) t.host[i] = narrow(amplitude * (float)dt_random_normal(&random), dtype);
  cuda_must(cudaMalloc((void **)&t.device, 2 * count + 16), "cudaMalloc");
  cuda_must(dt_cuda_write(t.device, t.host, 2 * count), "operand");
  return t;
}
static void tensor_free(tensor *t) {
  free(t->host);
  cudaFree(t->device);
}

typedef struct setting {
  const problem *p;
  tensor q, k, v;
  int32_t map[64];
  dt_cuda_attention attention;
  uint16_t *out, *got; /* all runs, with their guards; host copy */
  size_t out_bytes;
  int64_t run_at[DT_CUDA_ATTENTION_OWNERS_MAX]; /* element of each run's first row */
  void *workspace;
} setting;

static void raise_keys(setting *s) {
  const problem *p = s->p;
  for (int64_t j = 0; j < p->kv_tokens; j++) {
    const double factor = pow(p->rise, 1 - (double)j / (double)p->kv_tokens);
    for (int64_t x = 0; x < s->k.row_stride; x++) {
      uint16_t *key = &s->k.host[j * s->k.row_stride + x];
      *key = narrow((float)(factor * widen(*key, p->dtype)), p->dtype);
    }
  }
  cuda_must(dt_cuda_write(s->k.device, s->k.host, 2 * (size_t)(p->kv_tokens * s->k.row_stride)), "keys");
}

static void setting_make(setting *s, const problem *p, uint64_t seed) {
  memset(s, 0, sizeof *s);
  s->p = p;
  s->q = tensor_random(p->tokens, (int64_t)p->heads * p->head_dim, 8, p->amplitude, p->dtype, seed);
  s->k = tensor_random(p->kv_tokens, (int64_t)p->kv_heads * p->head_dim, 24, 1, p->dtype, seed + 1);
  if (p->rise > 0) raise_keys(s);
  s->v = tensor_random(p->kv_tokens, (int64_t)p->kv_heads * p->head_dim, 24, 1, p->dtype, seed + 2);
  dt_cuda_attention *a = &s->attention;
  dt_cuda_attention_init(a);
  a->q = s->q.device;
  a->k = s->k.device;
  a->v = s->v.device;
  a->q_row_stride = s->q.row_stride;
  a->kv_row_stride = s->k.row_stride;
  a->dtype = p->dtype;
  a->tokens = p->tokens;
  a->kv_tokens = p->kv_tokens;
  a->heads = p->heads;
  a->kv_heads = p->kv_heads;
  a->head_dim = p->head_dim;
  a->causal = p->causal;
  a->timeout_s = 3;
  for (int32_t h = 0; h < p->heads; h++)
    s->map[h] = p->map ? (p->heads - 1 - h) % p->kv_heads : h * p->kv_heads / p->heads;
  if (p->map) a->head_to_kv = s->map;
  const int64_t stride = (int64_t)p->heads * p->head_dim + GAP;
  a->owners_count = p->runs;
  int64_t first = 0;
  for (int32_t i = 0; i < p->runs; i++) {
    const int64_t rows = i + 1 == p->runs ? p->tokens - first : p->tokens * (i + 1) / (p->runs * (p->runs + 1) / 2);
    s->run_at[i] = (first + GUARD * (2 * i + 1)) * stride;
    a->owners[i] = (dt_cuda_attention_owner){.first = first, .rows = rows, .row_stride = stride, .remote = i % 2};
    first += rows;
  }
  s->out_bytes = 2 * (size_t)((p->tokens + GUARD * 2 * p->runs) * stride);
  cuda_must(cudaMalloc((void **)&s->out, s->out_bytes), "cudaMalloc");
  s->got = malloc(s->out_bytes);
  for (int32_t i = 0; i < p->runs; i++) a->owners[i].out = s->out + s->run_at[i];
  size_t bytes;
  must(dt_cuda_attention_workspace(a, &bytes), "workspace");
  cuda_must(cudaMalloc(&s->workspace, bytes), "cudaMalloc");
  cuda_must(dt_cuda_fill(s->workspace, 0, bytes), "workspace");
}
static void setting_free(setting *s) {
  tensor_free(&s->q);
  tensor_free(&s->k);
  tensor_free(&s->v);
  cudaFree(s->out);
  cudaFree(s->workspace);
  free(s->got);
}

static void run(setting *s, const dt_attention_choice *choice) {
  cuda_must(cudaMemsetAsync(s->out, 0xff, s->out_bytes, stream), "cudaMemset");
  must(dt_attention_forward_chosen(&s->attention, choice, s->workspace, stream), s->p->name);
  must(dt_cuda_attention_check(s->workspace, stream), s->p->name);
  cuda_must(cudaMemcpy(s->got, s->out, s->out_bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

/* Row i of head h in float64. */
static void reference(const setting *s, int64_t i, int32_t h, double *out) {
  const problem *p = s->p;
  const int32_t d = p->head_dim, kv_head = s->map[h];
  const double scale = 1 / sqrt((double)d);
  int64_t seen = p->kv_tokens;
  if (p->causal && i + p->kv_tokens - p->tokens + 1 < seen) seen = i + p->kv_tokens - p->tokens + 1;
  double *score = malloc(sizeof(double) * (size_t)(seen > 0 ? seen : 1)), top = -INFINITY, sum = 0;
  for (int32_t x = 0; x < d; x++) out[x] = 0;
  double q[256];
  for (int32_t x = 0; x < d; x++) q[x] = widen(s->q.host[i * s->q.row_stride + h * d + x], p->dtype);
  for (int64_t j = 0; j < seen; j++) {
    const uint16_t *k = s->k.host + j * s->k.row_stride + kv_head * d;
    double dot = 0;
    for (int32_t x = 0; x < d; x++) dot += q[x] * widen(k[x], p->dtype);
    score[j] = dot * scale;
    if (score[j] > top) top = score[j];
  }
  for (int64_t j = 0; j < seen; j++) {
    const double weight = exp(score[j] - top);
    if (weight < 1e-14) continue;
    const uint16_t *v = s->v.host + j * s->v.row_stride + kv_head * d;
    sum += weight;
    for (int32_t x = 0; x < d; x++) out[x] += weight * widen(v[x], p->dtype);
  }
  for (int32_t x = 0; x < d && sum > 0; x++) out[x] /= sum;
  free(score);
}

static const uint16_t *row_of(const setting *s, int64_t i, int32_t h) {
  for (int32_t r = 0; r < s->p->runs; r++) {
    const dt_cuda_attention_owner *o = &s->attention.owners[r];
    if (i >= o->first && i < o->first + o->rows)
      return s->got + s->run_at[r] + (i - o->first) * o->row_stride + (int64_t)h * s->p->head_dim;
  }
  return NULL;
}

static double row_error(const setting *s, int64_t i, int32_t h) {
  double expected[256], difference = 0, norm = 0;
  reference(s, i, h, expected);
  const uint16_t *got = row_of(s, i, h);
  for (int32_t x = 0; x < s->p->head_dim; x++) {
    const double y = widen(got[x], s->p->dtype), e = y - expected[x];
    difference += e * e;
    norm += expected[x] * expected[x];
  }
  if (norm == 0) return difference == 0 ? 0 : INFINITY;
  return sqrt(difference / norm);
}

/* Elements that must not be touched and were, and output elements that were not written. */
static void count_strays(const setting *s, int64_t *touched, int64_t *missing) {
  const int64_t stride = (int64_t)s->p->heads * s->p->head_dim + GAP;
  *touched = *missing = 0;
  for (int32_t r = 0; r < s->p->runs; r++) {
    const int64_t rows = s->attention.owners[r].rows;
    for (int64_t i = -GUARD; i < rows + GUARD; i++) {
      const uint16_t *row = s->got + s->run_at[r] + i * stride;
      for (int64_t x = 0; x < stride; x++) {
        const int inside = i >= 0 && i < rows && x < stride - GAP;
        if (inside)
          *missing += row[x] == 0xffff;
        else
          *touched += row[x] != 0xffff;
      }
    }
  }
}

typedef struct sample {
  int64_t row;
  int32_t head;
  double error;
} sample;

/* Every row where that is cheap, else rows at the edges of runs and tiles and random ones. */
static sample *choose(const setting *s, int64_t *count) {
  const problem *p = s->p;
  const double cost = (double)p->tokens * (double)p->heads * (double)p->kv_tokens * p->head_dim;
  const int whole = cost < 3e8;
  *count = whole ? p->tokens * p->heads : SAMPLES;
  sample *samples = calloc((size_t)*count + 1, sizeof *samples);
  dt_random random = {99};
  for (int64_t n = 0; n < *count; n++) {
    samples[n] = (sample){.row = n / p->heads, .head = (int32_t)(n % p->heads)};
    if (whole) continue;
    samples[n].head = (int32_t)dt_random_below(&random, (uint64_t)p->heads);
    samples[n].row = (int64_t)dt_random_below(&random, (uint64_t)p->tokens);
    if (n < 2) samples[n].row = n * (p->tokens - 1);
    if (n >= 2 && n < 2 + p->runs) samples[n].row = s->attention.owners[n - 2].first;
  }
  return samples;
}

/* Some of the samples: float64 on one processor would take most of the check's time. */
typedef struct share {
  pthread_t thread;
  const setting *s;
  sample *samples;
  int64_t first, count, step;
} share;

static void *compare_share(void *context) {
  const share *part = context;
  for (int64_t n = part->first; n < part->count; n += part->step)
    part->samples[n].error = row_error(part->s, part->samples[n].row, part->samples[n].head);
  return NULL;
}

/* The worst of them; NaN is. */
static double worst_error(const setting *s, int64_t *worst_row, int32_t *worst_head) {
  enum { THREADS_MOST = 16 };
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  const int threads = processors < 1 ? 1 : processors > THREADS_MOST ? THREADS_MOST : (int)processors;
  share shares[THREADS_MOST];
  int64_t count;
  sample *samples = choose(s, &count);
  for (int t = 0; t < threads; t++) {
    shares[t] = (share){.s = s, .samples = samples, .first = t, .count = count, .step = threads};
    if (t > 0) pthread_create(&shares[t].thread, NULL, compare_share, &shares[t]);
  }
  compare_share(&shares[0]);
  for (int t = 1; t < threads; t++) pthread_join(shares[t].thread, NULL);
  double worst = 0;
  for (int64_t n = 0; n < count && !isnan(worst); n++) {
    if (samples[n].error <= worst) continue;
    worst = samples[n].error;
    *worst_row = samples[n].row;
    *worst_head = samples[n].head;
  }
  free(samples);
  return worst;
}

static int check(const problem *p, const dt_attention_choice *choice) {
  setting s;
  setting_make(&s, p, 1234);
  run(&s, choice);
  int64_t touched, missing, row = -1;
  int32_t head = -1;
  count_strays(&s, &touched, &missing);
  const double error = worst_error(&s, &row, &head), bound = p->dtype == DT_DTYPE_F16 ? 1.2e-3 : 8e-3;
  const int good = touched == 0 && missing == 0 && error <= bound;
  printf("%-4s %s: S %lld x %lld, H %d/%d, D %d %s%s, %d runs%s: error %.2e (row %lld head %d), %lld outside "
         "touched, %lld missing\n",
         good ? "ok" : "FAIL", p->name, (long long)p->tokens, (long long)p->kv_tokens, p->heads, p->kv_heads,
         p->head_dim, dt_dtype_name(p->dtype), p->causal ? " causal" : "", p->runs, choice->cut == 0 ? ", uncut" : "",
         error, (long long)row, head, (long long)touched, (long long)missing);
  fflush(stdout);
  setting_free(&s);
  return good;
}

/* The same bits every time, with as many CTAs as it may be. */
static int check_repeats(const problem *p, int launches) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT;
  setting s;
  setting_make(&s, p, 77);
  run(&s, &chosen);
  uint16_t *first = malloc(s.out_bytes);
  memcpy(first, s.got, s.out_bytes);
  int differing = 0;
  for (int i = 0; i < launches; i++) {
    run(&s, &chosen);
    differing += memcmp(first, s.got, s.out_bytes) != 0;
  }
  printf("%-4s %s: %d launches, %d differ from the first\n", differing ? "FAIL" : "ok", p->name, launches, differing);
  free(first);
  setting_free(&s);
  return differing == 0;
}

/* Tiles that go on in another CTA have the bits of tiles that do not. `sms`: 0, or so many CTAs. */
static int check_resumed(const problem *p, int32_t sms) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT, uncut = {.cut = 0};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  setting s;
  setting_make(&s, p, 31);
  s.attention.sms = sms;
  const dt_attention_shape shape = dt_attention_shape_of(&s.attention);
  int device_sms = 0;
  cuda_must(cudaDeviceGetAttribute(&device_sms, cudaDevAttrMultiProcessorCount, 0), "device");
  dt_attention_plan(&s.attention, &shape, -1, sms ? sms : device_sms, kernel);
  run(&s, &uncut);
  uint16_t *expected = malloc(s.out_bytes);
  memcpy(expected, s.got, s.out_bytes);
  run(&s, &chosen);
  const int good = kernel->resumes && memcmp(expected, s.got, s.out_bytes) == 0;
  printf("%-4s %s, D %d: %d of %d tiles go on in another CTA: %s\n", good ? "ok" : "FAIL", p->name, p->head_dim,
         kernel->cut_tiles, kernel->groups[0].tiles + kernel->groups[1].tiles,
         good ? "the same bits as uncut" : "other bits, or none cut");
  fflush(stdout);
  free(expected);
  free(kernel);
  setting_free(&s);
  return good;
}

/* A row's bits do not depend on which rows share its tile, nor on the device that takes it. */
static int check_tilings(const problem *p) {
  static const dt_attention_choice uncut = {.cut = 0};
  problem other = *p;
  other.runs = p->runs + 3;
  setting s, t;
  setting_make(&s, p, 55);
  setting_make(&t, &other, 55);
  run(&s, &uncut);
  run(&t, &uncut);
  int64_t differing = 0;
  for (int64_t i = 0; i < p->tokens; i++)
    for (int32_t h = 0; h < p->heads; h++)
      differing += memcmp(row_of(&s, i, h), row_of(&t, i, h), 2 * (size_t)p->head_dim) != 0;
  printf("%-4s %s, D %d: %d and %d runs: %lld rows of %lld differ\n", differing ? "FAIL" : "ok", p->name, p->head_dim,
         p->runs, other.runs, (long long)differing, (long long)p->tokens * p->heads);
  setting_free(&s);
  setting_free(&t);
  return differing == 0;
}

static const problem problems[] = {
    {"one row", 1, 1, 1, 1, 128, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"few rows", 5, 300, 2, 2, 128, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"small", 200, 200, 3, 3, 128, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"two runs", 700, 500, 3, 3, 128, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"five runs", 1111, 777, 4, 4, 128, DT_DTYPE_BF16, 0, 1, 5, 0, 0},
    {"1024 rows", 1024, 1024, 2, 2, 64, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"odd", 1001, 1003, 5, 5, 64, DT_DTYPE_BF16, 0, 1, 3, 0, 0},
    {"odd", 333, 1003, 2, 2, 256, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"grouped", 515, 601, 6, 2, 128, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"multi-query", 515, 601, 7, 1, 64, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"mapped", 515, 601, 7, 3, 128, DT_DTYPE_BF16, 0, 1, 1, 1, 0},
    {"half", 515, 601, 3, 3, 128, DT_DTYPE_F16, 0, 1, 2, 0, 0},
    {"half", 515, 601, 3, 3, 64, DT_DTYPE_F16, 0, 1, 2, 0, 0},
    {"half", 515, 601, 3, 3, 256, DT_DTYPE_F16, 0, 1, 2, 0, 0},
    {"large scores", 515, 601, 3, 3, 128, DT_DTYPE_BF16, 0, 100, 1, 0, 0},
    {"large scores", 515, 601, 3, 3, 64, DT_DTYPE_F16, 0, 100, 1, 0, 0},
    {"causal", 600, 600, 3, 3, 128, DT_DTYPE_BF16, 1, 1, 1, 0, 0},
    {"causal", 1000, 1000, 3, 3, 64, DT_DTYPE_BF16, 1, 1, 3, 0, 0},
    {"causal", 600, 600, 3, 3, 256, DT_DTYPE_BF16, 1, 1, 2, 0, 0},
    {"causal, mapped", 515, 601, 3, 7, 128, DT_DTYPE_BF16, 1, 1, 1, 1, 0},
    {"causal, longer keys", 333, 1111, 4, 2, 128, DT_DTYPE_BF16, 1, 1, 2, 0, 0},
    {"causal, fully masked rows", 900, 300, 3, 3, 128, DT_DTYPE_BF16, 1, 1, 3, 0, 0},
    {"causal, fully masked rows", 900, 300, 3, 3, 64, DT_DTYPE_F16, 1, 1, 2, 0, 0},
    {"causal, large scores", 900, 900, 3, 1, 128, DT_DTYPE_F16, 1, 100, 2, 0, 0},
    {"cut", 300, 4001, 3, 3, 128, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"cut", 300, 4001, 3, 3, 64, DT_DTYPE_F16, 0, 1, 2, 0, 0},
    {"cut", 300, 4001, 3, 3, 256, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"not cut: a tile a CTA", 1728, 1728, 16, 16, 256, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"not cut: a tile a CTA", 3328, 3328, 6, 6, 64, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"cut in two", 700, 1999, 50, 5, 128, DT_DTYPE_BF16, 0, 1, 1, 0, 0},
    {"cut in two", 700, 1999, 40, 5, 128, DT_DTYPE_F16, 0, 3, 3, 0, 30},
    {"cut in two", 1000, 1999, 33, 3, 64, DT_DTYPE_BF16, 0, 3, 3, 0, 30},
    {"cut in two", 1300, 2100, 40, 4, 64, DT_DTYPE_F16, 0, 1, 2, 0, 0},
    {"no keys", 100, 0, 3, 3, 128, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"FLUX.1", 4608, 4608, 12, 12, 128, DT_DTYPE_BF16, 0, 1, 4, 0, 0},
    {"SD3.5", 4429, 4429, 19, 19, 64, DT_DTYPE_BF16, 0, 1, 4, 0, 0},
    {"long", 20011, 20011, 5, 5, 128, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"long causal", 9001, 9001, 8, 2, 128, DT_DTYPE_BF16, 1, 1, 2, 0, 0},
    {"long causal, sections", 9001, 9001, 18, 18, 128, DT_DTYPE_F16, 1, 1, 1, 0, 0},
    {"long causal", 9001, 9001, 5, 5, 256, DT_DTYPE_BF16, 1, 1, 2, 0, 0},
    {"long", 9001, 9001, 4, 4, 256, DT_DTYPE_BF16, 0, 1, 2, 0, 0},
    {"large scores", 515, 601, 3, 3, 256, DT_DTYPE_BF16, 0, 100, 1, 0, 0},
    {"rising scores", 515, 1999, 3, 3, 64, DT_DTYPE_BF16, 0, 3, 1, 0, 30},
    {"rising scores", 515, 1999, 3, 3, 128, DT_DTYPE_F16, 0, 3, 2, 0, 30},
    {"rising scores", 515, 1999, 3, 3, 256, DT_DTYPE_F16, 0, 3, 1, 0, 30},
    {"causal, rising scores", 1515, 1999, 3, 3, 64, DT_DTYPE_F16, 1, 3, 1, 0, 30},
    {"causal, rising scores", 1515, 1999, 3, 3, 128, DT_DTYPE_BF16, 1, 3, 2, 0, 30},
};

/* As the library chooses; where it may cut tiles over KV, without that too. */
static int check_all(const problem *p) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT, uncut = {.cut = 0};
  int good = check(p, &chosen);
  if (!p->causal && p->tokens < 2000) good &= check(p, &uncut);
  return good;
}

/* The first problem of that name and head_dim. */
static const problem *find(const char *name, int32_t head_dim) {
  for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
    if (strcmp(problems[i].name, name) == 0 && problems[i].head_dim == head_dim) return &problems[i];
  fprintf(stderr, "no problem '%s' of head_dim %d\n", name, head_dim);
  exit(1);
}

/* Of every way to do tiles: whole, causal, in pieces that are merged, going on in another CTA. */
static int check_all_repeats(int repeats) {
  return check_repeats(find("five runs", 128), repeats) & check_repeats(find("causal", 64), repeats) &
         check_repeats(find("cut", 128), repeats) & check_repeats(find("cut in two", 128), repeats);
}

int main(int argc, char **argv) {
  int repeats = 1000;
  const char *only = "";
  for (int i = 1; i < argc; i += 2)
    if (i + 1 < argc && strcmp(argv[i], "--repeats") == 0)
      repeats = atoi(argv[i + 1]);
    else if (i + 1 < argc && strcmp(argv[i], "--only") == 0)
      only = argv[i + 1];
    else
      return fprintf(stderr, "check_attention [--repeats N] [--only WORDS]\n"), 2;
  int devices = 0, major = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("no GPU: skipped\n");
    return 77;
  }
  cuda_must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
  if (major != 9) {
    printf("not a Hopper GPU: skipped\n");
    return 77;
  }
  cuda_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  int good = 1, checked = 0;
  for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
    if (strstr(problems[i].name, only)) good &= check_all(&problems[i]), checked++;
  if (checked == 0) return printf("FAIL no problem's name has '%s'\n", only), 1;
  for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
    if (strcmp(problems[i].name, "rising scores") == 0) good &= check_tilings(&problems[i]);
  for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
    if (strcmp(problems[i].name, "cut in two") == 0)
      good &= check_resumed(&problems[i], 0) & check_resumed(&problems[i], 31);
  return !(good & check_all_repeats(repeats));
}
