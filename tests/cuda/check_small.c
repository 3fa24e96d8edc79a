/* One small run of each operator, for compute-sanitizer (tests/cuda/sanitize.sh): the tool makes every access cost a
 * thousand times more, and what it looks for is in the first launch. A rank alone; what comes out is compared between
 * modes and schedules, the checks beside this one compare it with references.
 *
 *   check_small [--limit SECONDS] [combine] [moe] [moe-short] [attention] [held]     default: all
 *
 * --limit: of a layer's waits, 2 unless given.
 *
 * No GEMM is deeper than one round of the engine's stages, and in moe-short not even all tasks of a layer together, as
 * one cluster may draw them all: docs/testing.md. Exit code 77 without a Hopper GPU.
 */
#include <draintile/combine.h>
#include <draintile/cuda_attention.h>
#include <draintile/ulysses.h>

#include <string.h>

#include "combine_support.h"
#include "cuda/driver.h"
#include "cuda/ulysses.h"
#include "moe_layer_support.h"

enum { EXPERTS = 3, ROWS = 300, N = 264, K = 72, TOKENS = 5, KV_TOKENS = 100, HEADS = 2, HEAD_DIM = 128 };

/* Every mode, with counts of the host, then signal and direct with counts on the device. */
static dt_status run_combine(dt_combine *combine, const void *a, const void *b, int64_t bytes, const int32_t *counts,
                             const uint16_t *expected, uint16_t *seen) {
  int32_t *on_device = NULL;
  TRY(dt_combine_set_counts(combine, counts));
  for (int i = 0; i < 5; i++) {
    const dt_combine_mode mode = (dt_combine_mode)(i < 3 ? i : i - 2);
    if (i == 3) {
      CUDA(cudaMalloc((void **)&on_device, EXPERTS * sizeof *counts));
      CUDA(cudaMemcpy(on_device, counts, EXPERTS * sizeof *counts, cudaMemcpyHostToDevice));
      TRY(dt_combine_follow_counts(combine, on_device));
    }
    CUDA(cudaMemset(dt_combine_buffer(combine), 0xff, (size_t)bytes));
    CUDA(cudaDeviceSynchronize());
    TRY(dt_combine_run(combine, mode, a, b, NULL));
    TRY(dt_combine_check(combine, NULL));
    CUDA(cudaMemcpy(seen, dt_combine_buffer(combine), (size_t)bytes, cudaMemcpyDeviceToHost));
    if (memcmp(seen, expected, (size_t)bytes) == 0) continue;
    printf("FAIL combine, run %d: not the rows of a GEMM\n", i);
    return DT_ERR_INTERNAL;
  }
  cudaFree(on_device);
  return DT_OK;
}

static dt_status combine(dt_comm *comm) {
  const support_shape shape = {1, 0, EXPERTS, 1, N, K};
  const int32_t counts[EXPERTS] = {ROWS / 3, 0, ROWS - ROWS / 3};
  dt_combine_config config;
  dt_plan *plan = NULL;
  dt_combine *made = NULL;
  uint16_t *a = NULL, *b = NULL, *product = NULL, *expected = NULL, *host = malloc(2 * ROWS * N),
           *seen = malloc(2 * ROWS * N);
  TRY(support_plan(&shape, counts, DT_LAYOUT_PACKED, DT_ORDER_NATURAL, &plan));
  TRY(support_weights(&shape, &b));
  CUDA(cudaMalloc((void **)&a, 2 * ROWS * K));
  TRY(support_operand(&shape, 0, plan, ROWS, a));
  TRY(support_product(&shape, 0, plan, b, NULL, &product));
  TRY(support_expect(&shape, &plan, &product, ROWS, &expected));
  CUDA(cudaMemcpy(host, expected, 2 * ROWS * N, cudaMemcpyDeviceToHost));
  dt_combine_config_init(&config);
  config.comm = comm;
  config.experts_per_rank = EXPERTS;
  config.n = N;
  config.k = K;
  config.rows_max = config.combine_rows_max = ROWS;
  config.consumers = 2;
  TRY(dt_combine_create(&config, &made));
  const dt_status status = run_combine(made, a, b, 2 * ROWS * N, counts, host, seen);
  dt_combine_destroy(made);
  dt_plan_destroy(plan);
  cudaFree(a), cudaFree(b), cudaFree(expected), free(product), free(host), free(seen);
  return status;
}

static dt_status moe(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_DIRECT, DT_SCHEDULE_INTERLEAVE};
  dt_cuda_moe_config other = *config;
  dt_cuda_moe *layer = NULL;
  other.dedup = 1;
  dt_status status = dt_cuda_moe_create(&other, weights, &layer);
  for (int i = 0; i < 4 && !status; i++) {
    other.schedule = schedules[i % 3];
    other.dedup = i == 3;
    status = dt_cuda_moe_set_schedule(layer, &other);
    if (!status) status = moe_forward(r, layer, 0);
    if (!status) status = dt_cuda_moe_check(layer, r->stream);
    if (!status && i == 0) status = moe_fetch(r, 0, r->inputs[0].expected);
    if (!status && i == 0) r->worst = moe_error(r, 0, r->inputs[0].expected);
    if (!status && i > 0) status = moe_compare(r, 0, dt_schedule_name(other.schedule), other.dedup);
  }
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(layer);
  return status;
}

/* Not causal, causal: two launches each, which must give the same bits. */
static dt_status attention(void) {
  enum { WIDTH = HEADS * HEAD_DIM };
  uint16_t *host = malloc(2 * KV_TOKENS * WIDTH), *q = NULL, *kv = NULL, *out = NULL, *seen[2];
  void *workspace = NULL;
  size_t bytes = 0;
  dt_cuda_attention a;
  moe_fill(host, KV_TOKENS * WIDTH, 3, 0);
  CUDA(cudaMalloc((void **)&q, 2 * TOKENS * WIDTH));
  CUDA(cudaMalloc((void **)&kv, 2 * KV_TOKENS * WIDTH));
  CUDA(cudaMalloc((void **)&out, 2 * TOKENS * WIDTH));
  CUDA(cudaMemcpy(q, host, 2 * TOKENS * WIDTH, cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(kv, host, 2 * KV_TOKENS * WIDTH, cudaMemcpyHostToDevice));
  dt_cuda_attention_init(&a);
  a.q = q;
  a.k = a.v = kv;
  a.dtype = DT_DTYPE_BF16;
  a.tokens = TOKENS;
  a.kv_tokens = KV_TOKENS;
  a.heads = a.kv_heads = HEADS;
  a.head_dim = HEAD_DIM;
  a.owners_count = 1;
  a.owners[0] = (dt_cuda_attention_owner){.rows = TOKENS, .out = out, .row_stride = WIDTH};
  a.timeout_s = 5;
  for (a.causal = 0; a.causal < 2; a.causal++) {
    TRY(dt_cuda_attention_workspace(&a, &bytes));
    CUDA(cudaMalloc(&workspace, bytes));
    CUDA(cudaMemset(workspace, 0, bytes));
    for (int i = 0; i < 2; i++) {
      CUDA(cudaMemset(out, 0xff, 2 * TOKENS * WIDTH));
      CUDA(cudaDeviceSynchronize());
      TRY(dt_cuda_attention_forward(&a, workspace, NULL));
      TRY(dt_cuda_attention_check(workspace, NULL));
      seen[i] = malloc(2 * TOKENS * WIDTH);
      CUDA(cudaMemcpy(seen[i], out, 2 * TOKENS * WIDTH, cudaMemcpyDeviceToHost));
    }
    const int good = memcmp(seen[0], seen[1], 2 * TOKENS * WIDTH) == 0 && seen[0][0] != 0xffff;
    free(seen[0]), free(seen[1]), cudaFree(workspace);
    if (good) continue;
    printf("FAIL attention, causal %d: two launches differ\n", a.causal);
    return DT_ERR_INTERNAL;
  }
  cudaFree(q), cudaFree(kv), cudaFree(out), free(host);
  return DT_OK;
}

/* Serial, then rows by way of the sending warp: those of a CTA's first tiles held back, for which memory runs short,
 * then sent as they come, then held ones in the last round. A rank alone has only own rows, so these are said to be
 * away. */
static dt_status run_held(dt_ulysses *u, dt_ulysses_config *config, uint16_t *const inputs[3], size_t bytes) {
  static const dt_ulysses_part parts[] = {DT_ULYSSES_WHOLE, DT_ULYSSES_FUSED, DT_ULYSSES_WHOLE};
  uint16_t *expected = malloc(bytes), *seen = malloc(bytes);
  uint32_t first = 0;
  TRY(dt_ulysses_run(u, DT_ULYSSES_WHOLE, inputs[0], inputs[1], inputs[2], NULL));
  TRY(dt_ulysses_check(u, NULL));
  CUDA(cudaMemcpy(expected, dt_ulysses_output(u), bytes, cudaMemcpyDeviceToHost));
  config->attention.schedule = DT_ATTENTION_PIGGYBACK;
  config->attention.overlap_in = 1;
  TRY(dt_ulysses_set_schedule(u, config));
  u->holds = 1;
  for (int32_t i = 0; i < u->attention.owners_count; i++) u->attention.owners[i].away = 1;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    CUDA(dt_cuda_fill(dt_ulysses_output(u), 0xff, bytes));
    CUDA(dt_cuda_fill(u->kept, 0xff, u->kept_bytes));
    TRY(dt_ulysses_run(u, parts[i], inputs[0], inputs[1], inputs[2], NULL));
    TRY(dt_ulysses_check(u, NULL));
    CUDA(cudaMemcpy(seen, dt_ulysses_output(u), bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(&first, u->kept, sizeof first, cudaMemcpyDeviceToHost));
    if (memcmp(seen, expected, bytes) == 0 && first != UINT32_MAX && seen[0] != 0xffff) continue;
    printf("FAIL held, run %d: %s\n", (int)i, first == UINT32_MAX ? "no row was held back" : "not the rows of serial");
    return DT_ERR_INTERNAL;
  }
  free(expected), free(seen);
  return DT_OK;
}

/* Six tiles a CTA, most of each head's second one without rows, so that there is memory for less than three; keys of so
 * many blocks that rows are paced. */
static dt_status held(dt_comm *comm) {
  enum { ROWS_HELD = 200, KEYS_HELD = 1100, HEADS_HELD = 6, WIDTH = HEADS_HELD * HEAD_DIM };
  uint16_t *host = malloc(2 * KEYS_HELD * WIDTH), *inputs[3];
  dt_ulysses_config config;
  dt_ulysses *made = NULL;
  for (int t = 0; t < 3; t++) {
    moe_fill(host, KEYS_HELD * WIDTH, (uint64_t)t + 3, 0);
    CUDA(cudaMalloc((void **)&inputs[t], 2 * KEYS_HELD * WIDTH));
    CUDA(dt_cuda_write(inputs[t], host, 2 * KEYS_HELD * WIDTH));
  }
  dt_ulysses_config_init(&config);
  config.comm = comm;
  config.attention.dtype = DT_DTYPE_BF16;
  config.attention.tokens = ROWS_HELD;
  config.attention.kv_tokens = KEYS_HELD;
  config.attention.heads = config.attention.kv_heads = HEADS_HELD;
  config.attention.head_dim = HEAD_DIM;
  config.attention.schedule = DT_ATTENTION_SERIAL;
  config.sms = 2;
  config.timeout_s = 5;
  TRY(dt_ulysses_create(&config, &made));
  const dt_status status = run_held(made, &config, inputs, (size_t)(2 * ROWS_HELD * WIDTH));
  dt_ulysses_destroy(made);
  for (int t = 0; t < 3; t++) cudaFree(inputs[t]);
  free(host);
  return status;
}

static int say(const char *name, dt_status status) {
  printf("%-4s %s%s%s\n", status ? "FAIL" : "ok", name, status ? ": " : "", status ? dt_error_detail() : "");
  fflush(stdout);
  return status == DT_OK;
}

static int wanted(const char *name, int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], name) == 0) return 1;
  return argc < 2;
}

/* A word that names none would check nothing. */
static int known(int argc, char **argv) {
  static const char *const names[] = {"combine", "moe", "moe-short", "attention", "held"};
  for (int i = 1; i < argc; i++) {
    size_t n = 0;
    while (n < sizeof names / sizeof *names && strcmp(argv[i], names[n]) != 0) n++;
    if (n == sizeof names / sizeof *names)
      return printf("FAIL %s: combine, moe, moe-short, attention or held\n", argv[i]), 0;
  }
  return 1;
}

int main(int argc, char **argv) {
  /* Four tasks, an L1 and an L2 an expert, of one stage of 64 and of two; all of one. */
  static const moe_shape shape = {1, 64, 72, 2, 2, TOKENS, 0, 0}, short_shape = {1, 56, 40, 2, 2, TOKENS, 0, 0};
  dt_comm_config config;
  dt_comm *control = NULL, *comm = NULL;
  int sms = 0, good = 1;
  if (argc > 1 && strcmp(argv[1], "--limit") == 0) {
    moe_timeout_s = argc > 2 ? atof(argv[2]) : 0;
    if (!(moe_timeout_s > 0)) return printf("FAIL --limit: seconds\n"), 1;
    argc -= 2;
    argv += 2;
  }
  if (!known(argc, argv)) return 1;
  if (moe_devices(&sms) == 0) {
    printf("skipped: no Hopper GPU\n");
    return MOE_SKIPPED;
  }
  dt_comm_config_init(&config);
  dt_status status = dt_comm_create_local(1, &config, &control);
  if (!status) status = dt_comm_create_cuda(control, 0, &comm);
  if (status) return say("a rank alone", status), 1;
  if (wanted("combine", argc, argv)) good &= say("combine", combine(comm));
  if (wanted("held", argc, argv)) good &= say("held", held(comm));
  if (wanted("moe", argc, argv)) good &= moe_check_threads("moe", &shape, 1, sms, moe);
  if (wanted("moe-short", argc, argv)) good &= moe_check_threads("moe-short", &short_shape, 1, sms, moe);
  if (wanted("attention", argc, argv)) good &= say("attention", attention());
  dt_comm_destroy(comm);
  return !good;
}
