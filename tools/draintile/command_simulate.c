/* draintile simulate: every schedule's table priced by the event simulator, for any number of ranks. */
#include <math.h>
#include <stdlib.h>

#include <draintile/simulate.h>
#include <draintile/units.h>

#include "commands.h"
#include "costs_file.h"
#include "device_price.h"
#include "json.h"
#include "log.h"
#include "proc.h"
#include "rank_report.h"
#include "simulate.h"
#include "synthetic.h"
#include "table.h"

typedef struct simulated_run {
  dt_schedule schedule;
  dt_sim_result result;
  double *rank_total_s; /* [ranks] */
  dt_trace_rank *traces;
} simulated_run;

typedef struct simulate_job {
  const tool_args *args;
  counts_matrix counts;
  int64_t *tokens; /* [ranks] */
  dt_sim_config config;
  simulate_costs costs;
  simulated_run runs[SCHEDULES + 1]; /* serial first; auto's may be one more */
  int run_count;
} simulate_job;

static int route(simulate_job *job) {
  const tool_args *args = job->args;
  int64_t tokens = args_int(args, "tokens");
  int32_t ranks = (int32_t)args_int(args, "ranks"), experts = (int32_t)args_int(args, "experts");
  int32_t top_k = (int32_t)args_int(args, "top-k");
  if (top_k > experts) return log_fail(TOOL_USAGE, "--top-k: %d; allowed: 1 to %d, the experts", top_k, experts);
  int code = proc_memory_check("--tokens, --top-k", (double)tokens * top_k * sizeof(int32_t));
  if (code) return code;
  int32_t *ids = malloc((size_t)(tokens * top_k + 1) * sizeof(*ids));
  job->counts = (counts_matrix){.ranks = ranks, .experts = experts};
  job->counts.values = calloc((size_t)ranks * (size_t)experts, sizeof(*job->counts.values));
  code = ids && job->counts.values ? TOOL_OK : log_out_of_memory();
  if (code == TOOL_OK)
    code = synthetic_route((synthetic_routing)args_choice(args, "routing"), tokens, experts, top_k,
                           (uint64_t)args_int(args, "seed"), ids);
  for (int32_t rank = 0; code == TOOL_OK && rank < ranks; rank++) {
    int64_t first, count;
    dt_token_block(tokens, ranks, rank, &first, &count);
    for (int64_t slot = first * top_k; slot < (first + count) * top_k; slot++)
      job->counts.values[(size_t)rank * (size_t)experts + (size_t)ids[slot]]++;
  }
  free(ids);
  return code;
}

/* Tokens of a rank: by --tokens, or as many as its slots need with --top-k. */
static int count_tokens(simulate_job *job) {
  const tool_args *args = job->args;
  int64_t first, top_k = args_int(args, "top-k");
  job->tokens = calloc((size_t)job->counts.ranks, sizeof(*job->tokens));
  if (!job->tokens) return log_out_of_memory();
  for (int32_t rank = 0; rank < job->counts.ranks; rank++) {
    int64_t slots = 0;
    for (int32_t e = 0; e < job->counts.experts; e++)
      slots += job->counts.values[(size_t)rank * (size_t)job->counts.experts + (size_t)e];
    if (args_set(args, "tokens"))
      dt_token_block(args_int(args, "tokens"), job->counts.ranks, rank, &first, &job->tokens[rank]);
    else
      job->tokens[rank] = (slots + top_k - 1) / top_k;
  }
  return TOOL_OK;
}

static int read_counts(simulate_job *job) {
  const tool_args *args = job->args;
  int code;
  if (args_set(args, "counts")) {
    if (args_given(args, "ranks") || args_given(args, "experts") || args_given(args, "routing"))
      return log_fail(TOOL_USAGE, "--counts: %s; allowed: without --ranks, --experts and --routing, which it replaces",
                      args_text(args, "counts"));
    code = counts_read(args_text(args, "counts"), &job->counts);
  } else {
    if (!args_set(args, "ranks") || !args_set(args, "experts") || !args_set(args, "tokens"))
      return log_fail(TOOL_USAGE,
                      "--counts: required; allowed: a file, or --ranks, --experts and --tokens in its place");
    code = route(job);
  }
  if (code || job->counts.ranks < 1) return code;
  if (job->counts.experts % job->counts.ranks)
    return log_fail(TOOL_USAGE, "experts: %d; allowed: a multiple of %d ranks", job->counts.experts, job->counts.ranks);
  return count_tokens(job);
}

static void make_config(simulate_job *job) {
  const tool_args *args = job->args;
  dt_sim_config_init(&job->config);
  dt_plan_config *plan = &job->config.plan;
  int64_t tile_n = args_int(args, "tile-n"), hidden = args_int(args, "hidden");
  int64_t intermediate = args_int(args, "intermediate");
  plan->ranks = job->counts.ranks;
  plan->experts_per_rank = job->counts.experts / job->counts.ranks;
  plan->tile_m = (int32_t)args_int(args, "tile-m");
  plan->layout = (dt_layout)args_choice(args, "layout");
  plan->segment_bands = (int32_t)args_int(args, "segment-bands");
  plan->raster_bands = (int32_t)args_int(args, "raster-bands");
  plan->columns_1 = (int32_t)((intermediate + tile_n - 1) / tile_n);
  plan->columns_2 = (int32_t)((hidden + tile_n - 1) / tile_n);
  plan->lead = (int32_t)args_int(args, "lead");
  plan->wave_experts = (int32_t)args_int(args, "wave-experts");
  plan->group_tasks = (int32_t)args_int(args, "group-tasks");
  plan->dispatch = !args_set(args, "no-dispatch");
  job->config.workers = (int32_t)args_int(args, "workers");
  job->config.consumers = (int32_t)args_int(args, "consumers");
  job->config.row_in_bytes = hidden * (int64_t)dt_dtype_bytes((dt_dtype)args_choice(args, "dtype"));
  job->config.row_out_bytes = job->config.row_in_bytes;
  job->config.reduce_tokens = args_int(args, "reduce-tokens");
  job->config.tokens = job->tokens;
}

static dt_layer_model layer_model(const simulate_job *job) {
  const tool_args *args = job->args;
  dt_layer_model model;
  dt_layer_model_init(&model);
  model.ranks = job->counts.ranks;
  model.experts_per_rank = job->counts.experts / job->counts.ranks;
  model.top_k = (int32_t)args_int(args, "top-k");
  model.hidden = args_int(args, "hidden");
  model.intermediate = args_int(args, "intermediate");
  model.sms = (int32_t)args_int(args, "workers");
  model.counts = job->counts.values;
  model.tokens = job->tokens;
  model.rows_in_place = args_set(args, "no-dispatch");
  return model;
}

/* What was given of an option whose default is that of CPUs; 0: the layer's. */
static int32_t given(const tool_args *args, const char *name) {
  return args_given(args, name) ? (int32_t)args_int(args, name) : 0;
}

/* Groupings that were given; the others are the layer's. */
static dt_layer_order layer_order(const simulate_job *job, dt_schedule schedule) {
  const tool_args *args = job->args;
  return (dt_layer_order){.schedule = schedule,
                          .order = args_set(args, "order") ? (dt_order)args_choice(args, "order") : DT_ORDER_NATURAL,
                          .raster_bands = given(args, "raster-bands"),
                          .consumers = given(args, "consumers"),
                          .segment_bands = given(args, "segment-bands"),
                          .group_tasks = (int32_t)args_int(args, "group-tasks"),
                          .lead = (int32_t)args_int(args, "lead"),
                          .wave_experts = (int32_t)args_int(args, "wave-experts")};
}

static dt_status simulate_gpu(const simulate_job *job, dt_schedule schedule, dt_sim_result *result) {
  const dt_layer_model model = layer_model(job);
  const dt_layer_order order = layer_order(job, schedule);
  dt_layer_answer answer;
  const dt_status status = dt_layer_price(&model, &job->costs.layer, &order, 1, &answer);
  if (status) return status;
  result->total_s = answer.total_s;
  result->worker_wait_s = result->store_stall_s = NAN; /* that price does not have them */
  if (schedule == DT_SCHEDULE_SERIAL) {
    result->dispatch_s = answer.dispatch_s;
    result->compute_s = answer.tiles_s;
    result->combine_s = answer.combine_s;
    result->reduce_s = answer.reduce_s;
  }
  for (int32_t r = 0; r < job->counts.ranks; r++) result->rank_total_s[r] = answer.total_s;
  return DT_OK;
}

static int simulate_one(simulate_job *job, dt_schedule schedule) {
  simulated_run *run = &job->runs[job->run_count];
  dt_sim_config config = job->config;
  config.plan.schedule = schedule;
  config.plan.order =
      args_set(job->args, "order") ? (dt_order)args_choice(job->args, "order") : dt_schedule_default_order(schedule);
  run->schedule = schedule;
  run->rank_total_s = calloc((size_t)job->counts.ranks, sizeof(double));
  if (!run->rank_total_s) return log_out_of_memory();
  job->run_count++;
  run->result.rank_total_s = run->rank_total_s;
  dt_status status = job->costs.gpu ? simulate_gpu(job, schedule, &run->result)
                                    : dt_simulate(&config, &job->costs.tasks, job->counts.values, &run->result,
                                                  args_set(job->args, "trace") ? &run->traces : NULL);
  return status ? log_status(status, schedule_names[schedule]) : TOOL_OK;
}

static int choose_gpu(simulate_job *job, dt_schedule *schedule) {
  const dt_layer_model model = layer_model(job);
  const dt_layer_order grouping = layer_order(job, DT_SCHEDULE_DIRECT);
  dt_layer_choice choice;
  const dt_status status = dt_layer_choose(&model, &job->costs.layer, &grouping, &choice);
  if (status) return log_status(status, "--schedule auto");
  if (args_set(job->args, "explain")) device_explain(&choice);
  *schedule = choice.best.schedule;
  return TOOL_OK;
}

static int choose(simulate_job *job, dt_schedule *schedule) {
  double predicted_s[SCHEDULES];
  const dt_status status = dt_schedule_auto(&job->config, &job->costs.tasks, job->counts.values, schedule, predicted_s);
  if (status) return log_status(status, "--schedule auto");
  if (args_set(job->args, "explain")) rank_report_prices(predicted_s, *schedule);
  return TOOL_OK;
}

/* Serial first, the baseline; auto prices all and simulates the choice. */
static int simulate_all(simulate_job *job) {
  const arg_value *list = args_list(job->args, "schedule");
  int code = simulate_one(job, DT_SCHEDULE_SERIAL);
  for (int i = 0; code == TOOL_OK && i < list->list_count; i++) {
    dt_schedule schedule = (dt_schedule)list->list[i];
    if (list->list[i] == SCHEDULE_AUTO) {
      code = job->costs.gpu ? choose_gpu(job, &schedule) : choose(job, &schedule);
      if (code) return code;
      log_note("auto: %s", schedule_names[schedule]);
    }
    int seen = 0;
    for (int run = 0; run < job->run_count; run++) seen |= job->runs[run].schedule == schedule;
    if (!seen) code = simulate_one(job, schedule);
  }
  return code;
}

static figures_overlap overlap_of(const simulate_job *job, const simulated_run *run) {
  const dt_sim_result *serial = &job->runs[0].result;
  return figures_overlap_of(run->result.total_s, serial->compute_s, serial->dispatch_s + serial->combine_s,
                            serial->total_s);
}

static json_t *to_json(const simulate_job *job) {
  json_t *root = json_results("draintile-simulate"), *runs = json_array();
  for (int i = 0; i < job->run_count; i++) {
    const simulated_run *one = &job->runs[i];
    figures_overlap overlap = overlap_of(job, one);
    json_t *run = json_object();
    json_object_set_new(run, "schedule", json_string(schedule_names[one->schedule]));
    json_object_set_new(run, "predicted_s", json_figure(one->result.total_s));
    json_object_set_new(run, "compute_alone_s", json_figure(overlap.compute_alone_s));
    json_object_set_new(run, "comm_alone_s", json_figure(overlap.comm_alone_s));
    json_object_set_new(run, "serial_s", json_figure(job->runs[0].result.total_s));
    rank_report_ratios_json(run, &overlap);
    json_object_set_new(run, "worker_wait_s", json_figure(one->result.worker_wait_s));
    json_object_set_new(run, "store_stall_s", json_figure(one->result.store_stall_s));
    json_object_set_new(run, "rank_total_s", json_figures(one->rank_total_s, (size_t)job->counts.ranks));
    json_array_append_new(runs, run);
  }
  json_object_set_new(root, "ranks", json_integer(job->counts.ranks));
  json_object_set_new(root, "experts", json_integer(job->counts.experts));
  json_object_set_new(root, "tokens", json_wholes(job->tokens, (size_t)job->counts.ranks));
  json_object_set_new(root, "costs", job->costs.gpu ? json_null() : costs_json(&job->costs.tasks));
  json_object_set_new(root, "runs", runs);
  return root;
}

static void print_all(const simulate_job *job) {
  tool_table *table = table_create("<schedule|predicted|speedup|hidden|efficiency|worker waits|store stalls");
  figures_overlap alone = overlap_of(job, &job->runs[0]);
  char compute[32], comm[32];
  printf("%d ranks, %d experts; compute alone %s, communication alone %s\n\n", job->counts.ranks, job->counts.experts,
         dt_format_seconds(alone.compute_alone_s, compute, sizeof(compute)),
         dt_format_seconds(alone.comm_alone_s, comm, sizeof(comm)));
  for (int i = 0; i < job->run_count; i++) {
    const simulated_run *run = &job->runs[i];
    figures_overlap overlap = overlap_of(job, run);
    table_cell(table, "%s", schedule_names[run->schedule]);
    table_time(table, run->result.total_s);
    table_ratio(table, overlap.speedup_over_serial);
    table_ratio(table, overlap.hidden_ratio);
    table_ratio(table, overlap.efficiency);
    table_time(table, run->result.worker_wait_s);
    table_time(table, run->result.store_stall_s);
  }
  table_print(table, stdout);
}

static int write_trace(const simulate_job *job, const char *path) {
  size_t ranks = (size_t)job->counts.ranks, count = ranks * (size_t)job->run_count;
  dt_trace_rank *all = calloc(count, sizeof(*all));
  if (!all) return log_out_of_memory();
  for (size_t i = 0; i < count; i++) {
    all[i] = job->runs[i / ranks].traces[i % ranks];
    all[i].name = schedule_names[job->runs[i / ranks].schedule];
  }
  dt_status status = dt_trace_write(path, all, count);
  free(all);
  return status ? log_status(status, NULL) : TOOL_OK;
}

static int run(const tool_args *args) {
  simulate_job job = {.args = args};
  int code = read_counts(&job);
  if (code == TOOL_OK) code = simulate_costs_read(args, &job.counts, &job.costs);
  if (code == TOOL_OK) {
    make_config(&job);
    code = simulate_all(&job);
  }
  const char *json = args_text(args, "json");
  if (code == TOOL_OK && !json_is_stdout(json)) print_all(&job);
  if (code == TOOL_OK && json) code = json_write(to_json(&job), json);
  if (code == TOOL_OK && args_set(args, "trace")) code = write_trace(&job, args_text(args, "trace"));
  for (int i = 0; i < job.run_count; i++) {
    if (job.runs[i].traces) dt_sim_traces_free(job.runs[i].traces, job.counts.ranks);
    free(job.runs[i].rank_total_s);
  }
  free(job.tokens);
  free(job.counts.values);
  return code;
}

static const arg_option options[] = {
    OPT_TEXT("counts", "FILE", NULL, "JSON {\"counts\": [[...W*E...] x W]}; without it a routing is made"),
    OPT_INT("ranks", "W", NULL, 1, 1024, "ranks, without --counts"),
    OPT_INT("experts", "N", NULL, 1, 65536, "experts of all ranks, without --counts"),
    OPT_INT("tokens", "T", NULL, 0, 1e8, "tokens of all ranks (with --counts: as many as the slots need)"),
    OPT_INT("top-k", "K", "8", 1, 1024, "experts of a token"),
    OPT_CHOICE("routing", "MODE", "balanced", synthetic_routing_names, "how experts are chosen, without --counts"),
    OPTION_SEED,
    OPT_INT("hidden", "H", "2048", 1, 1e6, "hidden size"),
    OPT_INT("intermediate", "I", "768", 1, 1e6, "intermediate size of an expert"),
    OPTION_DTYPE,
    OPT_LIST("schedule", "LIST", "all", schedule_auto_names,
             "schedules to price, separated by commas; serial always is"),
    OPT_TEXT("platform", "FILE", NULL,
             "platform file: its sim_* constants are the costs; of a GPU, its tile times and links (--workers: its "
             "multiprocessors)"),
    OPT_TEXT(
        "costs", "FILE", NULL,
        "JSON with an object \"costs\", e.g. the results of draintile moe: give sizes and tiles of that run; replaces "
        "the platform's"),
    OPT_NUMBER("gemm-rate", "FLOP/S", NULL, 0, INFINITY, "costs of L1 and L2 rows from the rate of a worker"),
    OPT_RATE("memory-rate", NULL, "costs of weight panels from the rate at which a worker reads them"),
    OPT_RATE("copy-rate", NULL, "costs of issuing stores and of own rows"),
    OPT_RATE("link-rate", NULL, "drain rate of each rank's link"),
    OPT_SIZE("link-capacity", NULL, "bytes in flight before a sender blocks"),
    OPT_TIME("link-latency", NULL, "until bytes become visible, beyond the rate"),
    OPT_RATE("receiver-rate", NULL, "of a receiver's port, where many send to one"),
    OPT_NUMBER("cores", "N", NULL, 0, 1e6, "processor cores shared by all threads; 0: one each"),
    OPT_INT("workers", "N", "1", 1, 1024, "computing threads (or CTAs) of a rank"),
    OPT_INT("consumers", "N", "1", 0, 1024, "threads of a rank that carry dispatch and segments"),
    OPT_INT("tile-m", "M", "128", 1, 4096, "rows of a band"),
    OPT_INT("tile-n", "N", "256", 1, 65536, "columns of a tile"),
    OPT_CHOICE("layout", "LAYOUT", "packed", layout_names, "rows in memory"),
    OPT_CHOICE("order", "ORDER", NULL, order_names, "band order (default: the schedule's)"),
    OPT_INT("segment-bands", "B", "1", 1, 65536, "interior bands of a group that travel together"),
    OPT_INT("raster-bands", "R", "8", 1, 65536, "bands of a unit at most"),
    OPT_INT("group-tasks", "N", "0", 0, 1e9, "L1 tasks that a group holds at least; 0: the schedule's"),
    OPT_INT("wave-experts", "N", "0", 0, 65536, "experts of a wave; 0: by --group-tasks"),
    OPT_INT("lead", "D", "0", 0, 65536, "groups of L1 ahead of L2; 0: the schedule's"),
    OPT_INT("reduce-tokens", "N", "64", 1, 1e6, "tokens of a reduction task"),
    OPT_FLAG("no-dispatch", "rows are at their experts already"),
    OPT_FLAG("explain", "with --schedule auto: print the price of every schedule"),
    OPT_OUTPUT("trace", "write the simulated runs as Chrome/Perfetto JSON"),
    OPTION_JSON,
};

const tool_command command_simulate = {
    .name = "simulate",
    .summary = "price the schedules of a layer with the event simulator, for any number of ranks",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
};
