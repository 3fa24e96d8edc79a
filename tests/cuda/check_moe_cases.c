/* Inputs that broke other systems (docs/testing.md, cases 1 and 3 to 15), on the MoE layer on GPUs: a multiprocessor
 * that another stream holds, shapes and routings at the edges, capacities, buffers full of NaN, more than 2^31
 * elements, layers back to back with ranks delayed at random, ranks that disagree. Every schedule must give serial's
 * bits, serial is compared with float64. An argument: that case alone. Exit code 77 without a Hopper GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "combine_support.h"
#include "core/random.h"
#include "cuda/driver.h"
#include "moe_layer_support.h"

static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_SIGNAL,     DT_SCHEDULE_DIRECT,
                                        DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
enum { SCHEDULES = sizeof schedules / sizeof *schedules, ROUNDS = 100 };

/* Which expert a slot of this rank wants; -1: none. */
typedef int32_t (*routing)(const moe_shape *s, int32_t rank, int64_t slot);

/* Input 0 with `tokens` tokens and another routing. */
static dt_status set_input(moe_rank *r, int64_t tokens, routing route) {
  moe_input *in = &r->inputs[0];
  const int64_t slots = tokens * r->shape->top_k;
  in->tokens = in->device.tokens = tokens;
  for (int64_t i = 0; i < slots && route; i++) in->ids[i] = route(r->shape, r->rank, i);
  return moe_cuda(dt_cuda_write((void *)(uintptr_t)in->device.ids, in->ids, 4 * (size_t)slots), "ids");
}

static dt_status forward(moe_rank *r, dt_cuda_moe *moe) {
  const dt_status status = moe_forward(r, moe, 0);
  return status ? status : dt_cuda_moe_check(moe, r->stream);
}

/* Serial's output becomes what is expected. */
static dt_status refer(moe_rank *r, dt_cuda_moe *moe) {
  dt_status status = forward(r, moe);
  if (!status) status = moe_fetch(r, 0, r->inputs[0].expected);
  const double error = status ? 0 : moe_error(r, 0, r->inputs[0].expected);
  if (!(error <= r->worst)) r->worst = error;
  return status;
}

static dt_status compare_schedules(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config, int first) {
  dt_status status = DT_OK;
  for (int n = first; n < SCHEDULES && !status; n++) {
    config.schedule = schedules[n];
    status = dt_cuda_moe_set_schedule(moe, &config);
    if (!status) status = forward(r, moe);
    if (!status) status = moe_compare(r, 0, dt_schedule_name(config.schedule), config.dedup);
  }
  return status;
}

static dt_status finish(moe_rank *r, dt_cuda_moe *moe, dt_status status) {
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status;
}

/* All schedules on the input as it is. */
static dt_status run(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe *moe = NULL;
  dt_status status = dt_cuda_moe_create(config, weights, &moe);
  if (!status) status = refer(r, moe);
  if (!status) status = compare_schedules(r, moe, *config, 1);
  return finish(r, moe, status);
}

/* Case 1: with and without dedup. The kernel that holds the multiprocessor must be there at the end. */
static dt_status busy(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe_config other = *config;
  dt_cuda_moe *moe = NULL;
  uint32_t *end = NULL;
  cudaStream_t beside = NULL;
  other.dedup = 1;
  dt_status status = moe_cuda(cudaHostAlloc((void **)&end, sizeof *end, cudaHostAllocMapped), "memory");
  if (!status) status = moe_cuda(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking), "stream");
  if (!status) status = dt_cuda_moe_create(&other, weights, &moe);
  if (!status) status = refer(r, moe);
  if (!status) status = dt_comm_barrier(r->comm, "before the hold");
  if (!status) *(volatile uint32_t *)end = 0;
  if (!status) status = moe_cuda(support_hold(end, 4, beside), "hold");
  for (other.dedup = 1; other.dedup >= 0 && !status; other.dedup--) status = compare_schedules(r, moe, other, 0);
  if (!status && cudaStreamQuery(beside) != cudaErrorNotReady) status = moe_fail(r, "nothing held a multiprocessor");
  if (end) *(volatile uint32_t *)end = 1;
  if (beside) cudaStreamSynchronize(beside), cudaStreamDestroy(beside);
  status = finish(r, moe, status);
  cudaFreeHost(end);
  return status;
}

/* Case 4: the same tokens where there is room for many more. */
static dt_status capacities(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe_config large = *config;
  dt_cuda_moe *moe = NULL;
  dt_status status = run(r, config, weights);
  large.max_tokens = 200000;
  if (!status) status = dt_cuda_moe_create(&large, weights, &moe);
  if (!status) status = compare_schedules(r, moe, large, 0);
  return finish(r, moe, status);
}

/* Case 5, its rows in another order than that of experts. */
static const int64_t uneven[] = {162, 0, 2577, 446, 0, 83};
static int32_t route_uneven(const moe_shape *s, int32_t rank, int64_t slot) {
  int64_t at = (rank * s->tokens + slot) * 1009 % (2 * s->tokens);
  int32_t expert = 0;
  while (at >= uneven[expert]) at -= uneven[expert++];
  return expert;
}
static dt_status rows_uneven(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_status status = set_input(r, r->shape->tokens, route_uneven);
  return status ? status : run(r, config, weights);
}

/* Case 6. */
static int32_t route_to_rank_1(const moe_shape *s, int32_t rank, int64_t slot) {
  return s->experts + (int32_t)((slot + rank) % s->experts);
}
static int32_t route_to_one(const moe_shape *s, int32_t rank, int64_t slot) {
  (void)rank;
  return slot % s->top_k == 0 ? 1 : -1;
}
static int32_t route_nowhere(const moe_shape *s, int32_t rank, int64_t slot) {
  (void)s, (void)rank, (void)slot;
  return -1;
}
static dt_status one_sided(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  const int64_t all = r->shape->tokens;
  const struct {
    int64_t tokens[2];
    routing route;
  } cases[] = {{{all, 0}, NULL},           {{0, all}, route_to_rank_1}, {{all, all}, route_to_rank_1},
               {{all, all}, route_to_one}, {{all, all}, route_nowhere}, {{0, 0}, NULL}};
  dt_status status = DT_OK;
  for (size_t i = 0; i < sizeof cases / sizeof *cases && !status; i++) {
    status = set_input(r, cases[i].tokens[r->rank], cases[i].route);
    if (!status) status = run(r, config, weights);
  }
  return status;
}

/* Case 7. */
static dt_status other_gpus(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  static const int32_t sms[] = {78, 114, 6, 4}; /* signal's consumers take 2 at least */
  dt_status status = run(r, config, weights);
  for (size_t i = 0; i < sizeof sms / sizeof *sms && !status; i++) {
    dt_cuda_moe_config fewer = *config;
    dt_cuda_moe *moe = NULL;
    fewer.sms = sms[i];
    status = dt_cuda_moe_create(&fewer, weights, &moe);
    if (!status) status = compare_schedules(r, moe, fewer, 0);
    status = finish(r, moe, status);
  }
  return status;
}

/* Case 9: a token's output does not depend on what else is in the batch. */
static dt_status other_batches(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  const int64_t all = r->shape->tokens, tokens[] = {1, all - 1, 33, 0, 128, all, 5};
  dt_cuda_moe_config other = *config;
  dt_cuda_moe *moe = NULL;
  dt_status status = run(r, config, weights);
  if (!status) status = dt_cuda_moe_create(config, weights, &moe);
  for (int n = 0; n < SCHEDULES && !status; n++) {
    other.schedule = schedules[n];
    status = dt_cuda_moe_set_schedule(moe, &other);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens && !status; i++) {
      status = set_input(r, tokens[(i + (size_t)r->rank) % (sizeof tokens / sizeof *tokens)], NULL);
      if (!status) status = forward(r, moe);
      if (!status) status = moe_compare(r, 0, "tokens", (int)r->inputs[0].tokens);
    }
  }
  return finish(r, moe, status);
}

/* Case 10: 66,560 tokens with two rows each of 16,384 elements, the first 1,024 tokens again and again. */
enum { REPEATED = 1024, TIMES = 65 };
static void *repeat(const void *first, size_t bytes, int times, dt_status *status) {
  void *to = NULL;
  if (!*status) *status = moe_cuda(cudaMalloc(&to, bytes * (size_t)times), "memory");
  for (int i = 0; i < times && !*status; i++)
    *status =
        moe_cuda(cudaMemcpyAsync((char *)to + bytes * (size_t)i, first, bytes, cudaMemcpyDeviceToDevice, NULL), "copy");
  if (!*status) *status = moe_cuda(cudaStreamSynchronize(NULL), "copy");
  return to;
}
static dt_status many_elements(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  const moe_shape *s = r->shape;
  const size_t row = 2 * (size_t)s->hidden, k = 4 * (size_t)s->top_k;
  const dt_cuda_moe_input *in = &r->inputs[0].device;
  dt_cuda_moe_config large = *config;
  dt_cuda_moe *moe = NULL;
  unsigned long long *wrong = NULL, words = 1;
  large.max_tokens = REPEATED * TIMES;
  dt_status status = run(r, config, weights); /* leaves the output as it must be */
  void *x = repeat(in->hidden, REPEATED * row, TIMES, &status), *ids = repeat(in->ids, REPEATED * k, TIMES, &status);
  void *w = repeat(in->weights, REPEATED * k, TIMES, &status),
       *out = repeat(in->hidden, REPEATED * row, TIMES, &status);
  const dt_cuda_moe_input all = {REPEATED * TIMES, x, ids, w, out};
  if (!status) status = moe_cuda(cudaMalloc((void **)&wrong, sizeof *wrong), "memory");
  if (!status) status = moe_cuda(dt_cuda_fill(wrong, 0, sizeof *wrong), "memory");
  if (!status) status = dt_cuda_moe_create(&large, weights, &moe);
  for (int n = 0; n < SCHEDULES && !status; n++) {
    large.schedule = schedules[n];
    status = dt_cuda_moe_set_schedule(moe, &large);
    if (!status) status = moe_cuda(support_poison(out, (int64_t)(REPEATED * TIMES * row), r->stream), "poison");
    if (!status) status = dt_cuda_moe_forward(moe, &all, r->stream);
    for (int i = 0; i < TIMES && !status; i++)
      status = moe_cuda(support_compare((char *)out + REPEATED * row * (size_t)i, in->output, (int64_t)(REPEATED * row),
                                        wrong, r->stream),
                        "compare");
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    if (!status) status = moe_cuda(cudaMemcpy(&words, wrong, sizeof words, cudaMemcpyDeviceToHost), "compare");
    if (!status && words) status = moe_fail(r, "%s: %llu words differ", dt_schedule_name(large.schedule), words);
  }
  status = finish(r, moe, status);
  cudaFree(x), cudaFree(ids), cudaFree(w), cudaFree(out), cudaFree(wrong);
  return status;
}

/* Case 11: all buffers held NaN, then a few tokens come. */
static dt_status after_nan(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  const size_t bytes = 2 * (size_t)(r->shape->tokens * r->shape->hidden);
  dt_cuda_moe_config other = *config;
  dt_cuda_moe *moe = NULL;
  void *nan = NULL;
  dt_cuda_moe_input full = r->inputs[0].device;
  dt_status status = moe_cuda(cudaMalloc(&nan, bytes), "memory");
  if (!status) status = moe_cuda(dt_cuda_fill(nan, 0xff, bytes), "memory");
  if (!status) status = set_input(r, 77, NULL);
  if (!status) status = run(r, config, weights);
  if (!status) status = dt_cuda_moe_create(config, weights, &moe);
  full.hidden = nan;
  for (int n = 0; n < SCHEDULES && !status; n++) {
    other.schedule = schedules[n];
    status = dt_cuda_moe_set_schedule(moe, &other);
    for (int i = 0; i < 2 && !status; i++) status = dt_cuda_moe_forward(moe, &full, r->stream); /* both banks */
    for (int i = 0; i < 2 && !status; i++) {
      status = forward(r, moe);
      if (!status) status = moe_compare(r, 0, dt_schedule_name(other.schedule), i);
    }
  }
  status = finish(r, moe, status);
  cudaFree(nan);
  return status;
}

/* Cases 12, 13 and 15: the same counts in every layer, so that a word of the layer before would be taken for this
 * one's; ranks delayed at random, on the host and on the device; every band in several pieces of several ranks. */
static dt_status delayed(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  const moe_shape *s = r->shape;
  const size_t bytes = 2 * (size_t)(s->tokens * s->hidden);
  dt_random random = {(uint64_t)(31 + r->rank)};
  dt_cuda_moe_config other = *config;
  dt_cuda_moe *moe = NULL;
  dt_cuda_moe_input inputs[2] = {r->inputs[0].device, r->inputs[0].device};
  void *expected[2] = {NULL, NULL};
  unsigned long long *wrong = NULL, words = 1;
  dt_status status = DT_OK;
  moe_fill(r->inputs[0].hidden, bytes / 2, (uint64_t)(5 + r->rank), 0);
  inputs[1].hidden = moe_to_device(r->inputs[0].hidden, bytes, &status);
  if (!status) status = moe_cuda(cudaMalloc((void **)&wrong, sizeof *wrong), "memory");
  if (!status) status = moe_cuda(dt_cuda_fill(wrong, 0, sizeof *wrong), "memory");
  for (int i = 0; i < 2; i++) expected[i] = repeat(inputs[0].hidden, bytes, 1, &status);
  if (!status) status = dt_comm_barrier(r->comm, "memory"); /* what a rank allocates must not meet another's forwards */
  if (!status) status = dt_cuda_moe_create(config, weights, &moe);
  for (int i = 0; i < 2 && !status; i++) {
    status = dt_cuda_moe_forward(moe, &inputs[i], r->stream);
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    if (!status) status = moe_cuda(dt_cuda_write(expected[i], inputs[i].output, bytes), "expected");
  }
  for (int n = 0; n < SCHEDULES && !status; n++) {
    other.schedule = schedules[n];
    status = dt_cuda_moe_set_schedule(moe, &other);
    for (int i = 0; i < ROUNDS && !status; i++) {
      const uint64_t draw = dt_random_u64(&random);
      if (draw % 8 == 0) status = dt_cuda_moe_check(moe, r->stream); /* the host of this rank waits, others do not */
      if (!status) status = moe_cuda(support_delay((uint32_t)(draw >> 8) % 40000, r->stream), "delay");
      if (!status) status = moe_cuda(support_poison(inputs[0].output, (int64_t)bytes, r->stream), "poison");
      if (!status) status = dt_cuda_moe_forward(moe, &inputs[i % 3 % 2], r->stream);
      if (!status)
        status = moe_cuda(support_compare(inputs[0].output, expected[i % 3 % 2], (int64_t)bytes, wrong, r->stream),
                          "compare");
    }
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    if (!status) status = moe_cuda(cudaMemcpy(&words, wrong, sizeof words, cudaMemcpyDeviceToHost), "compare");
    if (!status && words) status = moe_fail(r, "%s: %llu words differ", dt_schedule_name(other.schedule), words);
  }
  status = finish(r, moe, status);
  cudaFree((void *)(uintptr_t)inputs[1].hidden), cudaFree(expected[0]), cudaFree(expected[1]), cudaFree(wrong);
  return status;
}

/* Case 14: each field, then a layer as if nothing had been. */
static dt_status disagreements(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  static const char *const fields[] = {"hidden",     "intermediate", "experts_per_rank", "top_k",       "max_tokens",
                                       "activation", "schedule",     "raster_bands",     "group_tasks", "lead",
                                       "dedup"};
  enum { FIELDS = sizeof fields / sizeof *fields };
  dt_cuda_moe_config other[FIELDS];
  for (int i = 0; i < FIELDS; i++) other[i] = *config;
  if (r->rank == 1) {
    other[0].hidden += 8;
    other[1].intermediate += 8;
    other[2].experts_per_rank++;
    other[3].top_k--;
    other[4].max_tokens++;
    other[5].activation = DT_ACTIVATION_SWIGLU_CLAMPED;
    other[6].schedule = DT_SCHEDULE_DIRECT;
    other[7].raster_bands = 8;
    other[8].group_tasks = 7;
    other[9].lead = 3;
    other[10].dedup = 1;
  }
  for (int i = 0; i < FIELDS; i++) {
    dt_cuda_moe *moe = NULL;
    const dt_status status = dt_cuda_moe_create(&other[i], weights, &moe);
    if (status == DT_ERR_MISMATCH && moe == NULL && strstr(dt_error_detail(), fields[i])) continue;
    return moe_fail(r, "%s of %s expected; %s: %s", dt_status_name(DT_ERR_MISMATCH), fields[i], dt_status_name(status),
                    status ? dt_error_detail() : "");
  }
  return run(r, config, weights);
}

static const struct {
  const char *name;
  moe_shape shape;
  moe_work work;
} cases[] = {
    {"1, a multiprocessor is held", {1, 2048, 768, 16, 8, 2048, 0, 0}, busy},
    {"1, a multiprocessor is held", {2, 2048, 768, 8, 4, 1500, 0, 1}, busy},
    {"3", {2, 8192, 128, 4, 2, 1024, 0, 0}, run},
    {"4, capacity", {2, 2048, 64, 8, 8, 32, 0, 0}, capacities},
    {"5, uneven rows", {2, 2048, 768, 3, 1, 1634, 0, 0}, rows_uneven},
    {"6, one side", {2, 520, 200, 4, 3, 700, 0, 0}, one_sided},
    {"7, fewer multiprocessors", {1, 512, 256, 8, 4, 1500, 0, 0}, other_gpus},
    {"8", {2, 512, 256, 8, 4, 128, 0, 0}, run},
    {"8", {2, 512, 256, 8, 4, 40, 0, 0}, run},
    {"8", {2, 256, 128, 128, 2, 5, 0, 0}, run},
    {"9, 512 experts", {2, 256, 64, 256, 8, 300, 0, 0}, other_batches},
    {"9, 33 experts", {2, 512, 128, 33, 4, 700, 0, 0}, other_batches},
    {"10, more than 2^31 elements", {1, 16384, 64, 3, 2, REPEATED, 0, 0}, many_elements},
    {"11, NaN in all buffers", {2, 520, 200, 5, 3, 900, 0, 0}, after_nan},
    {"12, 13, 15: delays", {2, 512, 128, 6, 4, 400, 0, 0}, delayed},
    {"12, 13, 15: delays", {4, 264, 136, 3, 4, 300, 0, 0}, delayed},
    {"14, ranks disagree", {2, 512, 256, 4, 2, 200, 0, 0}, disagreements},
};

int main(int argc, char **argv) {
  /* Ranks that share a GPU wait for one another: a hardware queue for each of their streams. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int sms = 0, good = 1, checked = 0;
  const int devices = moe_devices(&sms);
  if (devices == 0) {
    printf("skipped: no Hopper GPU\n");
    return MOE_SKIPPED;
  }
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    if (argc > 1 && strcmp(argv[1], cases[i].name) != 0 && (size_t)atoi(argv[1]) != i + 1) continue;
    good = moe_check_threads(cases[i].name, &cases[i].shape, devices, sms, cases[i].work) && good;
    checked++;
  }
  return !good || checked == 0; /* no such case */
}
