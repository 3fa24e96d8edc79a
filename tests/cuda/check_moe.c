/* Checks the MoE layer on GPUs: shapes with tails, empty experts, ranks without tokens, biases; every schedule bit by
 * bit against serial, serial against float64 on sampled tokens; layers back to back with changing inputs and no host
 * between them; a captured graph; the parts; what memory the layer holds. Ranks are threads, and processes. Exit code
 * 77 without a Hopper GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moe_layer_support.h"

enum { BACK_TO_BACK = 40 };

static const moe_shape shapes[] = {
    {1, 64, 64, 1, 1, 1, 0, 0},       {1, 256, 128, 4, 2, 300, 0, 0},    {1, 264, 136, 7, 3, 1000, 1, 0},
    {2, 64, 64, 1, 1, 40, 0, 0},      {2, 520, 200, 3, 3, 500, 1, 0},    {2, 2048, 768, 16, 8, 1500, 0, 1},
    {2, 4096, 1536, 8, 4, 900, 0, 0}, {2, 2048, 512, 32, 8, 4096, 0, 0}, {3, 512, 256, 5, 2, 700, 0, 1},
    {4, 1024, 384, 6, 4, 1024, 1, 0}, {1, 2048, 768, 16, 8, 2048, 0, 0},
};
static const moe_shape processes = {2, 520, 200, 3, 3, 500, 1, 0};
static const dt_schedule schedules[] = {DT_SCHEDULE_SERIAL, DT_SCHEDULE_SIGNAL,     DT_SCHEDULE_DIRECT,
                                        DT_SCHEDULE_WAVE,   DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_ALTERNATE};
enum { SCHEDULES = sizeof schedules / sizeof *schedules };

/* Each schedule with its own and with small groups, where L2 waits for what is just being stored; orders in turn. */
static dt_status run_schedules(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config) {
  dt_status status = DT_OK;
  for (int n = 0; n < 2 * SCHEDULES && !status; n++) {
    config.schedule = schedules[n / 2];
    config.group_tasks = n % 2 ? 3 : 0;
    config.wave_experts = n % 2 && config.schedule == DT_SCHEDULE_WAVE ? 2 : 0;
    config.consumers = config.segment_bands = n % 2 ? 2 : 0;
    config.order = (dt_order)(n % 3);
    status = dt_cuda_moe_set_schedule(moe, &config);
    for (int index = 0; index < MOE_INPUTS && !status; index++) {
      status = moe_forward(r, moe, index);
      if (!status) status = dt_cuda_moe_check(moe, r->stream);
      if (!status && n == 0) status = moe_fetch(r, index, r->inputs[index].expected);
      const double error = !status && n == 0 ? moe_error(r, index, r->inputs[index].expected) : 0;
      if (!(error <= r->worst)) r->worst = error;
      if (!status && n > 0) status = moe_compare(r, index, dt_schedule_name(config.schedule), config.group_tasks);
    }
  }
  return status;
}

static dt_status run_back_to_back(moe_rank *r, dt_cuda_moe *moe, dt_cuda_moe_config config) {
  dt_status status = DT_OK;
  for (int n = 0; n < SCHEDULES && !status; n++) {
    config.schedule = schedules[n];
    config.order = (dt_order)((n + 1) % 3);
    config.group_tasks = 5;
    status = dt_cuda_moe_set_schedule(moe, &config);
    for (int i = 0; i < BACK_TO_BACK && !status; i++)
      status = dt_cuda_moe_forward(moe, &r->inputs[(i * 7 + i / 5) % MOE_INPUTS].device, r->stream);
    if (!status) status = dt_cuda_moe_check(moe, r->stream);
    for (int index = 0; index < MOE_INPUTS && !status; index++) status = moe_compare(r, index, "back to back", n);
  }
  return status;
}

/* What the layer says it holds: at most 1.1 times the rows and combine rows that it cannot do without (small layers
 * have a megabyte more); what creation took from the GPU, where nobody else did: that, in whole pages, and the graph.
 */
static dt_status check_memory(const moe_rank *r, const dt_cuda_moe *moe, size_t taken) {
  const moe_shape *s = r->shape;
  const int64_t most = s->top_k < s->experts ? s->top_k : s->experts;
  const double rows = (double)s->ranks * (double)s->tokens * (double)most;
  const double plain =
      2 * rows * (double)(s->hidden + s->intermediate) + 2 * (double)s->tokens * (double)s->top_k * (double)s->hidden;
  const double holds = (double)dt_cuda_moe_device_bytes(moe);
  if (holds > 1.1 * plain + (1 << 20))
    return moe_fail(r, "the layer holds %.0f bytes, %.3f times its rows", holds, holds / plain);
  if (s->ranks == 1 && (double)taken > holds + (32 << 20))
    return moe_fail(r, "the layer holds %.0f bytes, but took %zu", holds, taken);
  return DT_OK;
}

static dt_status work(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  dt_cuda_moe *moe = NULL;
  size_t before = 0, after = 0, all;
  dt_status status = moe_cuda(cudaMemGetInfo(&before, &all), "memory");
  if (!status) status = dt_cuda_moe_create(config, weights, &moe);
  if (!status) status = moe_cuda(cudaMemGetInfo(&after, &all), "memory");
  if (!status) status = check_memory(r, moe, before > after ? before - after : 0);
  if (!status) status = run_schedules(r, moe, *config);
  if (!status) status = run_back_to_back(r, moe, *config);
  if (!status) status = moe_run_graph(r, moe);
  if (!status) status = moe_run_parts(r, moe);
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  return status;
}

/* An argument: that shape alone, "processes" ranks as processes alone. */
int main(int argc, char **argv) {
  const int only = argc > 1;
  int sms = 0;
  if (!only || strcmp(argv[1], "processes") == 0) {
    const int good = moe_check_processes("processes", &processes, work, -1);
    if (good < 0) printf("skipped: no Hopper GPU\n");
    if (good < 1 || only) return good < 0 ? MOE_SKIPPED : !good;
  }
  const int devices = moe_devices(&sms);
  if (devices == 0) return MOE_SKIPPED;
  int checked = 0;
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    if (only && (size_t)atoi(argv[1]) != i) continue;
    if (!moe_check_threads("threads", &shapes[i], devices, sms, work)) return 1;
    checked++;
  }
  return checked == 0; /* no such shape */
}
