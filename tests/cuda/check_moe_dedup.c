/* Checks the MoE layer's dedup on GPUs: every schedule with dedup, in several ways of dispatching, bit by bit against
 * serial without; layers back to back with changing inputs, with and without dedup in turn; a captured graph; the
 * parts; the bytes that were sent. Ranks are threads. An argument: that shape alone. Exit code 77 without a Hopper GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe_layer_support.h"

enum { BACK_TO_BACK = 20 };

static const moe_shape shapes[] = {
    {1, 64, 64, 1, 1, 1, 0, 0},       {1, 264, 136, 7, 3, 1000, 1, 0},   {2, 64, 64, 1, 1, 40, 0, 0},
    {2, 520, 200, 3, 3, 500, 1, 0},   {2, 2048, 768, 16, 8, 1500, 0, 1}, {3, 512, 256, 5, 2, 700, 0, 1},
    {4, 1024, 384, 6, 4, 1024, 1, 0},
};
static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_SIGNAL,     DT_SCHEDULE_DIRECT,
                                        DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

static dt_status refer(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config) {
  config.dedup = 0;
  dt_status status = dt_cuda_moe_set_schedule(moe, &config);
  for (int index = 0; index < MOE_INPUTS && !status; index++) {
    status = moe_forward(r, moe, index);
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    if (!status) status = moe_fetch(r, index, r->inputs[index].expected);
    const double error = !status ? moe_error(r, index, r->inputs[index].expected) : 0;
    if (!(error <= r->worst)) r->worst = error;
  }
  return status;
}

static dt_status run_schedules(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config) {
  dt_status status = DT_OK;
  for (int n = 0; n < 2 * SCHEDULES && !status; n++) {
    config.schedule = schedules[n / 2];
    config.group_tasks = n % 2 ? 3 : 0;
    config.wave_experts = n % 2 && config.schedule == DT_SCHEDULE_WAVE ? 2 : 0;
    config.consumers = config.segment_bands = n % 2 ? 2 : 0;
    config.order = n % 2 && n / 2 < 3 ? DT_ORDER_REMOTE_FIRST : DT_ORDER_NATURAL;
    config.ahead = n % 4 == 3 ? 1 : n % 4 == 1 ? -1 : 0;
    config.send_sms = n % 2 ? 2 : 0;
    config.head = n % 3 == 1 ? -1 : n % 3 == 2 ? 512 : 0;
    status = dt_cuda_moe_set_schedule(moe, &config);
    for (int index = 0; index < MOE_INPUTS && !status; index++) {
      status = moe_forward(r, moe, index);
      if (!status) status = dt_cuda_moe_check(moe, r->stream);
      if (!status) status = moe_compare(r, index, dt_schedule_name(config.schedule), n);
    }
  }
  return status;
}

/* With and without in turn: what one layer leaves must not mislead another. */
static dt_status run_back_to_back(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config) {
  dt_status status = DT_OK;
  for (int n = 0; n < 2 * SCHEDULES && !status; n++) {
    config.schedule = schedules[n % SCHEDULES];
    config.dedup = n % 3 != 1;
    config.group_tasks = 5;
    status = dt_cuda_moe_set_schedule(moe, &config);
    for (int i = 0; i < BACK_TO_BACK + n % 2 && !status; i++)
      status = dt_cuda_moe_forward(moe, &r->inputs[(i * 7 + i / 5) % MOE_INPUTS].device, r->stream);
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    for (int index = 0; index < MOE_INPUTS && !status; index++) status = moe_compare(r, index, "back to back", n);
  }
  return status;
}

/* A token that has experts on several ranks crosses once to each; without dedup once for each expert. */
static dt_status check_bytes(const moe_rank *r, dt_cuda_moe *moe, int dedup) {
  const moe_input *in = &r->inputs[MOE_INPUTS - 1];
  const int32_t experts = r->shape->experts, top_k = r->shape->top_k;
  uint64_t slots = 0, tokens = 0;
  for (int64_t t = 0; t < in->tokens; t++)
    for (int32_t to = 0; to < r->shape->ranks; to++) {
      uint64_t wanted = 0;
      for (int32_t c = 0; c < top_k; c++) {
        const int32_t id = in->ids[t * top_k + c];
        wanted += id >= 0 && id / experts == to && to != r->rank;
      }
      slots += wanted;
      tokens += wanted > 0;
    }
  dt_cuda_moe_stats stats;
  const dt_status status = dt_cuda_moe_stats_read(moe, r->stream, &stats);
  const uint64_t expected = 2 * (uint64_t)r->shape->hidden * (dedup ? tokens : slots);
  if (status || stats.dispatch_bytes == expected) return status;
  return moe_fail(r, "%llu bytes dispatched, %llu expected", (unsigned long long)stats.dispatch_bytes,
                  (unsigned long long)expected);
}

static dt_status run_bytes(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config) {
  dt_status status = DT_OK;
  config.schedule = DT_SCHEDULE_INTERLEAVE;
  for (config.dedup = 0; config.dedup < 2 && !status; config.dedup++) {
    status = dt_cuda_moe_set_schedule(moe, &config);
    if (!status) status = moe_forward(r, moe, MOE_INPUTS - 1);
    if (!status) status = check_bytes(r, moe, config.dedup);
  }
  return status;
}

static dt_status work(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe *moe = NULL;
  dt_cuda_moe_config own = *config;
  own.dedup = 1;
  dt_status status = dt_cuda_moe_create(&own, weights, &moe);
  if (!status) status = refer(r, moe, own);
  if (!status) status = run_schedules(r, moe, own);
  if (!status) status = run_back_to_back(r, moe, own);
  if (!status) status = run_bytes(r, moe, own);
  if (!status) status = moe_run_graph(r, moe); /* the schedule set last has dedup */
  if (!status) status = moe_run_parts(r, moe);
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status;
}

int main(int argc, char **argv) {
  int sms = 0;
  const int devices = moe_devices(&sms);
  if (devices == 0) {
    printf("skipped: no Hopper GPU\n");
    return MOE_SKIPPED;
  }
  int checked = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    if (argc > 1 && (size_t)atoi(argv[1]) != i) continue;
    if (!moe_check_threads("dedup", &shapes[i], devices, sms, work)) return 1;
    checked++;
  }
  return checked == 0; /* no such shape */
}
