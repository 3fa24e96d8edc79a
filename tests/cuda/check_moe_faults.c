/* The MoE layer on GPUs when something is wrong: an id out of range, more rows than there is room for, a rank that does
 * not come, a rank whose process is killed, waits that expire in the middle of tiles, wrong arguments. Each must end in
 * its documented error on every rank, again with every later forward, without a row of output; afterwards a new layer
 * on the same fabric and GPU must be right. Exit code 77 without a Hopper GPU.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "moe_layer_support.h"

static const moe_shape one = {1, 2048, 768, 16, 8, 2048, 0, 0}, two = {2, 520, 200, 3, 3, 500, 1, 0};

/* A layer that must be right: what its first run gives is kept (first) or must come again. */
static dt_status run_well(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights, int first,
                          const char *when) {
  dt_cuda_moe *moe = NULL;
  dt_status status = dt_cuda_moe_create(config, weights, &moe);
  for (int index = 0; index < 2 && !status; index++) {
    status = moe_forward(r, moe, index);
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    if (!status && first) status = moe_fetch(r, index, r->inputs[index].expected);
    if (!status && !first) status = moe_compare(r, index, when, 0);
    const double error = !status && first ? moe_error(r, index, r->inputs[index].expected) : 0;
    if (!(error <= r->worst)) r->worst = error;
  }
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status;
}

/* The layer must have failed so, must say so again after another forward, and that one must not touch the output. */
static dt_status expect(moe_rank *r, dt_cuda_moe *moe, dt_status expected, const char *words) {
  for (int again = 0; again < 2; again++) {
    dt_status status = again ? moe_forward(r, moe, 0) : DT_OK;
    if (status) return status;
    status = dt_cuda_moe_check(moe, r->stream);
    if (status != expected || !strstr(dt_error_detail(), words))
      return moe_fail(r, "%s expected with \"%s\"; %s: %s", dt_status_name(expected), words, dt_status_name(status),
                      status ? dt_error_detail() : "");
  }
  const size_t bytes = 2 * (size_t)(r->inputs[0].tokens * r->shape->hidden);
  unsigned char *output = malloc(bytes);
  dt_status status = moe_fetch(r, 0, (uint16_t *)output);
  size_t written = 0;
  for (size_t i = 0; i < bytes; i++) written += output[i] != 0xff;
  free(output);
  return !status && written ? moe_fail(r, "%zu bytes of output after %s", written, dt_status_name(expected)) : status;
}

/* One forward with whatever was spoilt before, that ends so on every rank. */
static dt_status fail_layer(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights,
                            dt_status expected, const char *words) {
  dt_cuda_moe *moe = NULL;
  dt_status status = dt_cuda_moe_create(config, weights, &moe);
  if (!status) status = moe_forward(r, moe, 0);
  if (!status) status = expect(r, moe, expected, words);
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status;
}

static dt_status spoil_id(moe_rank *r, int32_t id, int32_t *was) {
  const int64_t at = r->inputs[0].tokens * r->shape->top_k / 2;
  int32_t *on_device = (int32_t *)(uintptr_t)r->inputs[0].device.ids + at;
  *was = r->inputs[0].ids[at];
  return moe_cuda(dt_cuda_write(on_device, &id, sizeof id), "id");
}

static dt_status wrong_id(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  int32_t was = 0, ignored;
  const int wrong[] = {r->shape->ranks * r->shape->experts, -2, INT32_MAX};
  dt_status status = DT_OK;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong && !status; i++) {
    if (r->rank == 0) status = spoil_id(r, wrong[i], &was);
    if (!status && r->rank == 0) status = fail_layer(r, config, weights, DT_ERR_INPUT, "an id outside");
    if (!status && r->rank != 0) status = fail_layer(r, config, weights, DT_ERR_PEER, "rank 0 gave up");
    if (!status && r->rank == 0) status = spoil_id(r, was, &ignored);
  }
  return status ? status : run_well(r, config, weights, 0, "after a wrong id");
}

static dt_status too_many_rows(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe_config small = *config;
  small.max_rows = r->shape->tokens / 4;
  const dt_status status = fail_layer(r, &small, weights, DT_ERR_CAPACITY, "max_rows");
  return status ? status : run_well(r, config, weights, 0, "after too many rows");
}

/* Rank 1 comes when rank 0 has given up. */
static dt_status late_rank(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe_config hasty = *config;
  dt_cuda_moe *moe = NULL;
  hasty.timeout_s = 0.02;
  dt_status status = dt_cuda_moe_create(&hasty, weights, &moe);
  if (!status && r->rank == 0) status = moe_forward(r, moe, 0);
  if (!status && r->rank == 0) status = expect(r, moe, DT_ERR_TIMEOUT, "counts of rank 1");
  if (status) moe_give_up(r, status);
  const dt_status met = dt_comm_barrier(r->comm, "late");
  if (!status) status = met;
  if (!status && r->rank != 0) status = moe_forward(r, moe, 0);
  if (!status && r->rank != 0) status = expect(r, moe, DT_ERR_PEER, "rank 0 gave up");
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status ? status : run_well(r, config, weights, 0, "after a late rank");
}

static dt_status refuse(moe_rank *r, dt_status status, dt_status expected, const char *word) {
  if (status == expected && strstr(dt_error_detail(), word)) return DT_OK;
  return moe_fail(r, "%s of %s expected; %s: %s", dt_status_name(expected), word, dt_status_name(status),
                  status ? dt_error_detail() : "");
}

/* The layer must go on as if nothing had been asked. */
static dt_status wrong_arguments(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe *moe = NULL;
  dt_status status = dt_cuda_moe_create(config, weights, &moe);
  dt_cuda_moe_input in = r->inputs[0].device;
  if (!status)
    status = refuse(r, dt_cuda_moe_run_part(moe, DT_CUDA_MOE_COMPUTE, &in, r->stream), DT_ERR_ARGUMENT, "part");
  in.tokens = config->max_tokens + 1;
  if (!status) status = refuse(r, dt_cuda_moe_forward(moe, &in, r->stream), DT_ERR_ARGUMENT, "tokens");
  in.tokens = -1;
  if (!status) status = refuse(r, dt_cuda_moe_forward(moe, &in, r->stream), DT_ERR_ARGUMENT, "tokens");
  in = r->inputs[0].device;
  in.output = (uint8_t *)in.output + 8;
  if (!status) status = refuse(r, dt_cuda_moe_forward(moe, &in, r->stream), DT_ERR_ARGUMENT, "output");
  in = r->inputs[0].device;
  in.ids = NULL;
  if (!status) status = refuse(r, dt_cuda_moe_forward(moe, &in, r->stream), DT_ERR_ARGUMENT, "ids");
  dt_cuda_moe_config other = *config;
  other.schedule = (dt_schedule)77;
  if (!status) status = refuse(r, dt_cuda_moe_set_schedule(moe, &other), DT_ERR_UNSUPPORTED, "schedule");
  other.schedule = DT_SCHEDULE_SIGNAL;
  other.consumers = 3;
  if (!status) status = refuse(r, dt_cuda_moe_set_schedule(moe, &other), DT_ERR_ARGUMENT, "consumers");
  other.consumers = 0;
  other.order = (dt_order)3;
  if (!status) status = refuse(r, dt_cuda_moe_set_schedule(moe, &other), DT_ERR_ARGUMENT, "order");
  other.order = DT_ORDER_NATURAL;
  other.schedule = DT_SCHEDULE_DIRECT;
  other.raster_bands = 3;
  if (!status) status = refuse(r, dt_cuda_moe_set_schedule(moe, &other), DT_ERR_ARGUMENT, "raster_bands");
  other.raster_bands = 2 + 2 * r->rank;
  if (!status && r->shape->ranks > 1)
    status = refuse(r, dt_cuda_moe_set_schedule(moe, &other), DT_ERR_MISMATCH, "raster_bands");
  if (!status) status = moe_forward(r, moe, 0);
  if (!status) status = dt_cuda_moe_check(moe, r->stream);
  if (!status) status = moe_compare(r, 0, "after wrong arguments", 0);
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status;
}

/* What create refuses, the same on every rank. The last is seen when the ranks have met, so it ends their fabric. */
static dt_status refusals(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe_config wrong[10];
  const char *const words[] = {"size", "hidden",     "intermediate",     "experts_per_rank", "top_k",
                               "comm", "max_tokens", "activation_limit", "timeout_s",        "sms"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) wrong[i] = *config;
  wrong[0].size--;
  wrong[1].hidden += 4;
  wrong[2].intermediate = 0;
  wrong[3].experts_per_rank = 3000;
  wrong[4].top_k = 33;
  wrong[5].comm = NULL;
  wrong[6].max_tokens = 0;
  wrong[7].activation = DT_ACTIVATION_SWIGLU_CLAMPED;
  wrong[7].activation_limit = 0;
  wrong[8].timeout_s = 1e6;
  wrong[9].sms = 1000;
  dt_status status = DT_OK;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong && !status; i++) {
    dt_cuda_moe *moe = NULL;
    status = refuse(r, dt_cuda_moe_create(&wrong[i], weights, &moe), i == 5 ? DT_ERR_UNSUPPORTED : DT_ERR_ARGUMENT,
                    words[i]);
    if (!status && moe) status = moe_fail(r, "%s: a layer all the same", words[i]);
  }
  return status;
}

static dt_status disagreement(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe *moe = NULL;
  dt_cuda_moe_config other = *config;
  other.max_rows = 4096 + r->rank;
  dt_status status = refuse(r, dt_cuda_moe_create(&other, weights, &moe), DT_ERR_MISMATCH, "max_rows");
  dt_cuda_moe_weights unaligned = *weights;
  unaligned.up = (const uint8_t *)weights->up + 2;
  if (!status) status = refuse(r, dt_cuda_moe_create(config, &unaligned, &moe), DT_ERR_ARGUMENT, "up");
  static const _Alignas(16) uint16_t host[8];
  dt_cuda_moe_weights of_host = *weights;
  of_host.down = host;
  if (!status) status = refuse(r, dt_cuda_moe_create(config, &of_host, &moe), DT_ERR_ARGUMENT, "host");
  return status ? status : run_well(r, config, weights, 0, "after a disagreement");
}

static dt_status faults(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_status status = run_well(r, config, weights, 1, "first");
  if (!status) status = wrong_arguments(r, config, weights);
  if (!status) status = wrong_id(r, config, weights);
  if (!status) status = too_many_rows(r, config, weights);
  if (!status && r->shape->ranks > 1) status = late_rank(r, config, weights);
  if (!status && r->shape->ranks > 1) status = disagreement(r, config, weights);
  if (!status) status = refusals(r, config, weights);
  return status;
}

/* Layers that give up in the middle of their tiles. Alone on its rank. */
static dt_status hasty(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_SIGNAL,     DT_SCHEDULE_DIRECT,
                                          DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
  dt_status status = run_well(r, config, weights, 1, "first");
  int gave_up = 0;
  for (int i = 0; i < 24 && !status; i++) {
    dt_cuda_moe *moe = NULL;
    dt_cuda_moe_config hurried = *config;
    hurried.schedule = schedules[i % 6];
    hurried.timeout_s = 3e-6 * (1 << i % 4);
    status = dt_cuda_moe_create(&hurried, weights, &moe);
    if (!status) status = moe_forward(r, moe, 0);
    if (!status) {
      const dt_status seen = dt_cuda_moe_check(moe, r->stream);
      gave_up += seen == DT_ERR_TIMEOUT;
      if (seen != DT_OK && seen != DT_ERR_TIMEOUT) status = seen;
    }
    if (!status) status = moe_cuda(cudaDeviceSynchronize(), "after giving up");
    dt_cuda_moe_destroy(moe);
    if (!status) status = run_well(r, config, weights, 0, "after giving up");
  }
  if (!status && gave_up == 0) status = moe_fail(r, "no wait expired");
  return status;
}

/* Rank 1 dies between two layers; the other must say that it did not come, and keep a GPU that works. */
static dt_status killed(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe_config hurried = *config;
  dt_cuda_moe *moe = NULL;
  dt_status status = run_well(r, config, weights, 1, "first");
  hurried.timeout_s = 0.5;
  if (!status) status = dt_cuda_moe_create(&hurried, weights, &moe);
  if (!status) status = moe_forward(r, moe, 0);
  if (!status) status = dt_cuda_moe_check(moe, r->stream);
  if (!status) status = dt_comm_barrier(r->comm, "before the end");
  if (!status && r->rank == 1) kill(getpid(), SIGKILL);
  if (!status) status = moe_forward(r, moe, 0);
  if (!status) status = expect(r, moe, DT_ERR_TIMEOUT, "counts of rank 1");
  dt_cuda_moe_destroy(moe);
  uint32_t seen = 0, *word = NULL;
  if (!status) status = moe_cuda(cudaMalloc((void **)&word, sizeof seen), "memory");
  if (!status) status = moe_cuda(cudaMemset(word, 0x5a, sizeof seen), "memory");
  if (!status) status = moe_cuda(cudaMemcpy(&seen, word, sizeof seen, cudaMemcpyDeviceToHost), "memory");
  cudaFree(word);
  return !status && seen != 0x5a5a5a5au ? moe_fail(r, "the GPU does not work any more") : status;
}

int main(void) {
  int sms = 0, good = moe_check_processes("a rank is killed", &two, killed, 1);
  const int devices = good < 0 ? 0 : moe_devices(&sms);
  if (devices == 0) {
    printf("skipped: no Hopper GPU\n");
    return MOE_SKIPPED;
  }
  good = moe_check_threads("faults", &one, devices, sms, faults) && good;
  good = moe_check_threads("faults", &two, devices, sms, faults) && good;
  good = moe_check_threads("hasty", &one, devices, sms, hasty) && good;
  return !good;
}
