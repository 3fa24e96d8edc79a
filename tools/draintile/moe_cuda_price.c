/* `moe --device cuda`: options, GPUs of ranks, and what the platform file says of the layer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "moe_cuda.h"

dt_order moe_cuda_order(const moe_job *job) {
  return job->order_given ? job->config.order : DT_ORDER_NATURAL;
}

/* Options of the CPU executor that have no meaning on a GPU. */
static const char *const cpu_only[] = {"workers",       "tile-m",       "tile-n", "layout",    "link-rate",
                                       "link-capacity", "link-latency", "delay",  "delay-seed"};

int moe_cuda_options(moe_job *job) {
  for (size_t i = 0; i < ARGS_COUNT(cpu_only); i++)
    if (args_given(job->args, cpu_only[i]))
      return log_fail(TOOL_USAGE, "--%s: given with --device cuda; allowed: with --device cpu", cpu_only[i]);
  if (job->info->hidden % 8 || job->info->intermediate % 8)
    return log_fail(TOOL_USAGE, "hidden, intermediate: %lld, %lld; allowed on cuda: multiples of 8",
                    (long long)job->info->hidden, (long long)job->info->intermediate);
  if (job->ranks > 8) return log_fail(TOOL_USAGE, "--ranks: %d; allowed on cuda: 1 to 8", job->ranks);
  if (args_given(job->args, "consumers") && (job->config.consumers % 2 || job->config.consumers > 64))
    return log_fail(TOOL_USAGE, "--consumers: %d; allowed on cuda: an even number up to 64", job->config.consumers);
  if (job->config.raster_bands % 2)
    return log_fail(TOOL_USAGE, "--raster-bands: %d; allowed on cuda: even", job->config.raster_bands);
  if (args_choice(job->args, "dedup") && moe_cuda_order(job) != DT_ORDER_NATURAL)
    return log_fail(TOOL_USAGE, "--order: %s; allowed on cuda with --dedup on: natural",
                    dt_order_name(moe_cuda_order(job)));
  if (args_choice(job->args, "dedup") && args_set(job->args, "trace"))
    return log_fail(TOOL_USAGE, "--trace: \"%s\"; allowed on cuda: with --dedup off", args_text(job->args, "trace"));
  if (job->choose && !job->machine.platform)
    return log_fail(TOOL_USAGE, "--platform: required with --schedule auto and --device cuda");
  return TOOL_OK;
}

void moe_cuda_notes(const moe_job *job) {
  if (job->ranks > job->gpus)
    log_note("%d ranks on %d GPUs: they share them, and their multiprocessors evenly; times are of that sharing",
             job->ranks, job->gpus);
  if (job->input.dtype != DT_DTYPE_BF16)
    log_note("hidden_states: %s: rows travel as bf16 on cuda", dt_dtype_name(job->input.dtype));
}

int32_t moe_cuda_device(const moe_job *job, int32_t rank, int32_t *sharers) {
  if (job->ranks <= job->gpus) {
    if (sharers) *sharers = 1;
    return rank;
  }
  if (sharers) *sharers = (job->ranks + job->gpus - 1) / job->gpus;
  return rank % job->gpus;
}

/* Whole multiprocessors, which the ranks that share a GPU divide. */
static dt_layer_model model_of(const moe_job *job, int64_t *tokens) {
  dt_layer_model model;
  int64_t first;
  for (int32_t rank = 0; rank < job->ranks; rank++)
    dt_token_block(job->input.tokens, job->ranks, rank, &first, &tokens[rank]);
  dt_layer_model_init(&model);
  model.ranks = job->ranks;
  model.experts_per_rank = job->info->experts / job->ranks;
  model.top_k = job->top_k;
  model.hidden = job->info->hidden;
  model.intermediate = job->info->intermediate;
  model.sms = job->shared.facts[0].sms;
  model.dedup = args_choice(job->args, "dedup");
  model.counts = job->shared.counts;
  model.tokens = tokens;
  return model;
}

static dt_layer_order order_of(const moe_job *job, dt_schedule schedule) {
  return (dt_layer_order){.schedule = schedule,
                          .order = moe_cuda_order(job),
                          .raster_bands = job->config.raster_bands,
                          .group_tasks = job->config.group_tasks,
                          .lead = job->config.lead,
                          .wave_experts = job->config.wave_experts,
                          .consumers = args_given(job->args, "consumers") ? job->config.consumers : 0,
                          .segment_bands = job->config.segment_bands};
}

int moe_cuda_dedups(const moe_job *job, int32_t index) {
  const moe_form *form = &job->shared.forms[index];
  return form->chosen ? form->dedup : args_choice(job->args, "dedup");
}

int moe_cuda_predict(moe_job *job) {
  int64_t tokens[RANKS_MAX];
  dt_layer_order orders[RUNS_MAX];
  if (!job->machine.platform) return TOOL_OK;
  dt_layer_model model = model_of(job, tokens);
  const int32_t count = *job->shared.run_count, given = job->shared.forms[count - 1].chosen ? count - 1 : count;
  for (int32_t run = 0; run < count; run++) {
    const moe_form *form = &job->shared.forms[run];
    orders[run] = order_of(job, (dt_schedule)job->shared.schedules[run]);
    if (form->chosen) orders[run].group_tasks = form->group_tasks, orders[run].lead = form->lead;
  }
  const int code = device_price(job->machine.platform, &model, orders, given, job->predicted_s);
  if (code != TOOL_OK || given == count) return code;
  model.dedup = moe_cuda_dedups(job, given); /* of auto's choice, the last */
  return device_price(job->machine.platform, &model, &orders[given], 1, &job->predicted_s[given]);
}

int moe_cuda_choose(moe_job *job, int32_t *schedule, moe_form *form) {
  int64_t tokens[RANKS_MAX];
  dt_layer_choice choice;
  const dt_layer_model model = model_of(job, tokens);
  const dt_layer_order grouping = order_of(job, DT_SCHEDULE_WAVE);
  const int code = device_choose(job->machine.platform, &model, &grouping, &choice);
  if (code) return code;
  if (args_set(job->args, "explain")) device_explain(&choice);
  *schedule = (int32_t)choice.best.schedule;
  *form = (moe_form){.group_tasks = choice.best.group_tasks, .lead = choice.best.lead, .dedup = choice.dedup};
  form->chosen = form->group_tasks != grouping.group_tasks || form->lead != grouping.lead || form->dedup != model.dedup;
  return TOOL_OK;
}

moe_limits moe_cuda_limit(const moe_job *job, double compute_alone_s) {
  const double row = 2.0 * (double)job->info->hidden;
  double link_bytes = 0, weight_bytes = 0;
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    const moe_rank_facts *facts = &job->shared.facts[rank];
    double rows = (double)facts->token_rank_pairs;
    for (int32_t source = 0; source < job->ranks; source++)
      if (source != rank) rows += (double)moe_rows_between(job, source, rank);
    link_bytes = fmax(link_bytes, rows * row);
    weight_bytes = fmax(weight_bytes, facts->touched_bytes);
  }
  const device_limit limit = device_limit_of(&job->machine, compute_alone_s, link_bytes, weight_bytes);
  return (moe_limits){.compute_s = limit.compute_s,
                      .link_s = limit.link_s,
                      .memory_s = limit.memory_s,
                      .constants_s = limit.constants_s,
                      .limit_s = limit.limit_s};
}
