/* predicted_s: task costs fitted to the serial runs alone, then every schedule's table simulated on them. */
#include <stdlib.h>
#include <string.h>

#include <draintile/build.h>

#include "log.h"
#include "moe.h"
#include "rank_report.h"

static void start_costs(moe_job *job) {
  dt_sim_costs_init(&job->costs);
  job->costs.link_bytes_per_s = job->comm.link_bytes_per_s;
  job->costs.link_capacity_bytes = job->comm.link_capacity_bytes;
  job->costs.link_latency_s = job->comm.link_latency_s;
  job->costs.cores = dt_build_processors();
  /* Dispatch leaves most of the link's buffer to the direct stores that would stall a worker. */
  job->costs.dispatch_backlog_bytes = job->comm.link_capacity_bytes * DT_DISPATCH_LINK_SHARE;
}

static dt_status make_plans(const moe_job *job, dt_plan **plans) {
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    dt_status status = dt_plan_create(&moe_run_of(job, 0, rank)->plan, job->shared.counts, &plans[rank]);
    if (status) return status;
  }
  return DT_OK;
}

/* tokens [ranks] is filled here and must outlive the configuration. */
static void sim_config(const moe_job *job, int32_t run, int64_t *tokens, dt_sim_config *config) {
  int64_t first;
  size_t row = (size_t)job->input.hidden * dt_dtype_bytes(job->input.dtype);
  dt_sim_config_init(config);
  config->plan = moe_run_of(job, run, 0)->plan;
  config->workers = job->config.workers;
  config->consumers = job->config.consumers;
  config->row_in_bytes = (int64_t)row;
  config->row_out_bytes = (int64_t)row;
  for (int32_t rank = 0; rank < job->ranks; rank++)
    dt_token_block(job->input.tokens, job->ranks, rank, &first, &tokens[rank]);
  int64_t blocks = config->plan.reduce_blocks;
  config->reduce_tokens = blocks > 0 ? (tokens[0] + blocks - 1) / blocks : 1;
  config->tokens = tokens;
}

int moe_fit(moe_job *job, int32_t first_repeat, int32_t end_repeat) {
  size_t ranks = (size_t)job->ranks, count = ranks * (size_t)(end_repeat - first_repeat);
  dt_plan **made = calloc(ranks, sizeof(dt_plan *));
  const dt_plan **plans = calloc(count, sizeof(dt_plan *));
  dt_trace_rank *traces = calloc(count, sizeof(*traces));
  int64_t *tokens = calloc(ranks, sizeof(*tokens));
  int ready = made && plans && traces && tokens;
  dt_status status = ready ? make_plans(job, made) : DT_OK;
  for (size_t i = 0; ready && i < count; i++) {
    const rank_spans *spans = &job->serial_spans[(size_t)first_repeat * ranks + i];
    traces[i] = (dt_trace_rank){.name = "serial",
                                .rank = (int32_t)(i % ranks),
                                .workers = job->config.workers,
                                .consumers = job->config.consumers,
                                .spans = spans->spans,
                                .span_count = spans->count};
    plans[i] = made[i % ranks];
  }
  start_costs(job);
  if (ready && !status) {
    dt_sim_config config;
    sim_config(job, 0, tokens, &config);
    status = dt_sim_fit(&config, traces, plans, count, &job->costs);
  }
  free(tokens);
  for (size_t i = 0; made && i < ranks; i++) dt_plan_destroy(made[i]);
  free(made);
  free(plans);
  free(traces);
  if (!ready) return log_out_of_memory();
  if (status) return log_status(status, "fit of the serial run");
  job->costs_ready = 1;
  return TOOL_OK;
}

int moe_predict(moe_job *job) {
  int64_t *tokens = calloc((size_t)job->ranks, sizeof(*tokens));
  if (!tokens) return log_out_of_memory();
  dt_status status = DT_OK;
  for (int32_t run = 0; !status && run < *job->shared.run_count; run++) {
    dt_sim_config config;
    dt_sim_result result = {0};
    sim_config(job, run, tokens, &config);
    status = dt_simulate(&config, &job->costs, job->shared.counts, &result, NULL);
    job->predicted_s[run] = result.total_s;
  }
  free(tokens);
  return status ? log_status(status, "simulation") : TOOL_OK;
}

int moe_choose(moe_job *job, int32_t *schedule) {
  int64_t *tokens = calloc((size_t)job->ranks, sizeof(*tokens));
  if (!tokens) return log_out_of_memory();
  dt_sim_config config;
  dt_schedule chosen = DT_SCHEDULE_SERIAL;
  double predicted_s[SCHEDULES] = {0};
  sim_config(job, 0, tokens, &config);
  config.plan.lead = job->config.lead; /* 0: each schedule's own */
  config.plan.group_tasks = job->config.group_tasks;
  dt_status status = dt_schedule_auto(&config, &job->costs, job->shared.counts, &chosen, predicted_s);
  free(tokens);
  if (status) return log_status(status, "--schedule auto");
  if (args_set(job->args, "explain")) rank_report_prices(predicted_s, chosen);
  *schedule = (int32_t)chosen;
  return TOOL_OK;
}
