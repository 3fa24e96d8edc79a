#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "sim.h"

void dt_sim_config_init(dt_sim_config *config) {
  memset(config, 0, sizeof *config);
  config->size = sizeof *config;
  dt_plan_config_init(&config->plan);
  config->plan.dispatch = 1;
  config->workers = config->consumers = 1;
  config->reduce_tokens = 64;
}

static dt_status check_range(const char *field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; %lld to %lld is allowed", field, (long long)value, (long long)low,
                 (long long)high);
}

/* All threads together are counted in an int32_t. */
static dt_status check_threads(const dt_sim_config *config) {
  const int32_t most = INT32_MAX / config->plan.ranks;
  if ((int64_t)config->workers + config->consumers <= most) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "workers, consumers: %d, %d; %d ranks may have at most %d threads each",
                 config->workers, config->consumers, config->plan.ranks, most);
}

static dt_status check_config(const dt_sim_config *config) {
  const int64_t most_bytes = INT64_C(1) << 40, most_tokens = INT32_MAX;
  if (config->size != sizeof *config)
    return dt_fail(DT_ERR_ARGUMENT, "size: %zu; dt_sim_config_init sets it to %zu", config->size, sizeof *config);
  dt_status status = check_range("ranks", config->plan.ranks, 1, 65536);
  if (!status) status = check_range("workers", config->workers, 1, 65536);
  if (!status) status = check_range("consumers", config->consumers, 0, 65536);
  if (!status) status = check_threads(config);
  if (!status) status = check_range("columns_1", config->plan.columns_1, 1, INT32_MAX);
  if (!status) status = check_range("columns_2", config->plan.columns_2, 1, INT32_MAX);
  if (!status) status = check_range("row_in_bytes", config->row_in_bytes, 1, most_bytes);
  if (!status) status = check_range("row_out_bytes", config->row_out_bytes, 1, most_bytes);
  if (!status) status = check_range("reduce_tokens", config->reduce_tokens, 1, most_tokens);
  if (!status && !config->tokens) status = dt_fail(DT_ERR_ARGUMENT, "tokens: NULL; [ranks] token counts are allowed");
  for (int32_t r = 0; !status && r < config->plan.ranks; r++)
    status = check_range("tokens", config->tokens[r], 0, most_tokens);
  if (!status && config->plan.schedule == DT_SCHEDULE_SIGNAL && config->consumers == 0)
    status = dt_fail(DT_ERR_ARGUMENT, "consumers: 0; schedule signal needs at least 1");
  return status;
}

static dt_status take_traces(sim_world *world, dt_trace_rank **out) {
  if (world->out_of_memory) return dt_fail(DT_ERR_MEMORY, "simulator: no memory for the trace");
  dt_trace_rank *traces = calloc((size_t)world->ranks, sizeof *traces);
  if (!traces) return dt_fail(DT_ERR_MEMORY, "simulator: no memory for the trace");
  for (int32_t r = 0; r < world->ranks; r++) {
    sim_rank *rank = &world->rank[r];
    traces[r] = (dt_trace_rank){
        .name = dt_schedule_name(world->config.plan.schedule),
        .rank = r,
        .workers = world->config.workers,
        .consumers = world->config.consumers,
        .spans = rank->spans,
        .span_count = rank->span_count,
    };
    rank->spans = NULL;
  }
  *out = traces;
  return DT_OK;
}

void dt_sim_traces_free(dt_trace_rank *traces, int32_t ranks) {
  for (int32_t r = 0; traces && r < ranks; r++) free((void *)traces[r].spans);
  free(traces);
}

static dt_status fill_result(sim_world *world, dt_sim_result *result) {
  double start = world->costs.entry_s + world->costs.plan_s, total = start;
  double *rank_total_s = result->rank_total_s;
  for (int32_t r = 0; r < world->ranks; r++) {
    const sim_rank *rank = &world->rank[r];
    /* Without a reduction a rank is done when its peers' last rows are visible. */
    double end = fmax(start, fmax(rank->end, rank->peers.visible));
    if (!isfinite(end))
      return dt_fail(DT_ERR_ARGUMENT, "costs: rank %d ends at %g s; allowed: costs that add up to a finite time", r,
                     end);
    if (world->trace && end > SIM_TRACE_MOST_S)
      return dt_fail(DT_ERR_ARGUMENT, "costs: rank %d ends at %g s; allowed with a trace: at most %g s", r, end,
                     SIM_TRACE_MOST_S);
    if (rank_total_s) rank_total_s[r] = end;
    total = fmax(total, end);
  }
  *result = (dt_sim_result){
      .total_s = total,
      .worker_wait_s = world->worker_wait_s,
      .store_stall_s = world->store_stall_s,
      .rank_total_s = rank_total_s,
  };
  if (world->barriers == 3) {
    result->dispatch_s = world->barrier_end[0] - start;
    result->compute_s = world->barrier_end[1] - world->barrier_end[0];
    result->combine_s = world->barrier_end[2] - world->barrier_end[1];
    result->reduce_s = fmax(0.0, total - world->barrier_end[2]);
  }
  return DT_OK;
}

dt_status dt_simulate(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts,
                      dt_sim_result *result, dt_trace_rank **traces) {
  dt_status status = check_config(config);
  if (!status) status = sim_costs_check(costs);
  if (status) return status;
  sim_world *world = NULL;
  status = sim_world_create(config, costs, counts, traces != NULL, &world);
  if (status) return status;
  for (sim_thread *thread = sim_next(world); thread; thread = sim_next(world)) sim_run_thread(world, thread);
  if (world->ended != world->threads)
    status = dt_fail(DT_ERR_INTERNAL, "simulator: %d of %d threads wait for ever", world->threads - world->ended,
                     world->threads);
  dt_trace_rank *taken = NULL;
  if (!status && traces) status = take_traces(world, &taken);
  if (!status) status = fill_result(world, result);
  if (status) {
    dt_sim_traces_free(taken, config->plan.ranks);
  } else if (traces) {
    *traces = taken;
  }
  sim_world_destroy(world);
  return status;
}

dt_status dt_schedule_auto(const dt_sim_config *config, const dt_sim_costs *costs, const int32_t *counts,
                           dt_schedule *schedule, double *predicted_s) {
  enum { SCHEDULES = DT_SCHEDULE_ALTERNATE + 1 };
  double predicted[SCHEDULES] = {0.0};
  int best = -1;
  for (int s = 0; s < SCHEDULES; s++) {
    dt_sim_config priced = *config;
    priced.plan.schedule = (dt_schedule)s;
    priced.plan.order = dt_schedule_default_order((dt_schedule)s);
    if (s == DT_SCHEDULE_SIGNAL && config->consumers == 0) continue;
    dt_sim_result result = {0};
    dt_status status = dt_simulate(&priced, costs, counts, &result, NULL);
    if (status) return status;
    predicted[s] = result.total_s;
    if (best < 0 || predicted[s] < predicted[best]) best = s;
  }
  *schedule = (dt_schedule)best;
  if (predicted_s) memcpy(predicted_s, predicted, sizeof predicted);
  return DT_OK;
}
