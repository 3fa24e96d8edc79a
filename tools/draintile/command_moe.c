/* draintile moe: one MoE layer of a checkpoint over rank processes, its all-to-alls hidden and measured. */
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "log.h"
#include "moe.h"
#include "moe_cuda.h"
#include "rank_options.h"
#include "rank_output.h"

int64_t moe_max_tokens(const moe_job *job) {
  int64_t first, count;
  dt_token_block(job->input.tokens, job->ranks, 0, &first, &count);
  return count;
}

dt_moe_config moe_config_of(const moe_job *job, dt_schedule schedule) {
  dt_moe_config config = job->config;
  config.schedule = schedule;
  if (!job->order_given) config.order = dt_schedule_default_order(schedule);
  return config;
}

dt_moe_stats *moe_sample(const moe_job *job, int32_t run, int32_t repeat, int32_t rank) {
  return &job->shared.samples[((size_t)run * (size_t)job->repeat + (size_t)repeat) * (size_t)job->ranks + (size_t)rank];
}

moe_rank_run *moe_run_of(const moe_job *job, int32_t run, int32_t rank) {
  return &job->shared.runs[(size_t)run * (size_t)job->ranks + (size_t)rank];
}

int64_t moe_rows_between(const moe_job *job, int32_t source, int32_t rank) {
  int32_t per_rank = job->info->experts / job->ranks;
  const int32_t *counts = job->shared.counts + (size_t)source * (size_t)job->info->experts + rank * per_rank;
  int64_t rows = 0;
  for (int32_t e = 0; e < per_rank; e++) rows += counts[e];
  return rows;
}

double moe_tolerance(const moe_job *job) {
  if (!job->gpus) return figures_tolerance(job->input.dtype);
  /* GPUs round tokens and weights of other types to bf16 first; the reference takes them as they are. */
  const int rounds = job->input.dtype != DT_DTYPE_BF16 || job->info->weights_dtype != DT_DTYPE_BF16;
  return figures_tolerance(DT_DTYPE_BF16) * (rounds ? 1.5 : 1);
}

/* Any slot of any rank: else there is nothing to price. */
static int has_rows(const moe_job *job) {
  size_t entries = (size_t)job->ranks * (size_t)job->info->experts;
  for (size_t i = 0; i < entries; i++)
    if (job->shared.counts[i] > 0) return 1;
  return 0;
}

static void read_config(moe_job *job) {
  const tool_args *args = job->args;
  dt_moe_config *config = &job->config;
  dt_moe_config_init(config);
  config->dtype = job->input.dtype;
  config->top_k = job->top_k;
  config->max_tokens = moe_max_tokens(job);
  if (job->input.repeats) config->max_rows = job->input.tokens * job->top_k; /* more than a row a token and expert */
  config->workers = (int32_t)args_int(args, "workers");
  config->consumers = (int32_t)args_int(args, "consumers");
  config->layout = (dt_layout)args_choice(args, "layout");
  job->order_given = args_set(args, "order");
  if (job->order_given) config->order = (dt_order)args_choice(args, "order");
  config->tile_m = (int32_t)args_int(args, "tile-m");
  config->tile_n = (int32_t)args_int(args, "tile-n");
  config->segment_bands = (int32_t)args_int(args, "segment-bands");
  config->raster_bands = (int32_t)args_int(args, "raster-bands");
  config->lead = (int32_t)args_int(args, "lead");
  config->wave_experts = (int32_t)args_int(args, "wave-experts");
  config->group_tasks = (int32_t)args_int(args, "group-tasks");
  rank_options_delay(args, &config->delay_max_us, &config->delay_seed);
}

/* Everything that can be wrong with the folder, before any rank starts: each rank's tensors as well. */
static int open_checkpoint(moe_job *job) {
  const char *folder = args_text(job->args, "checkpoint");
  dt_status status = dt_checkpoint_open(folder, &job->checkpoint);
  if (status) return log_unread(status);
  job->info = dt_checkpoint_get_info(job->checkpoint);
  job->layer = (int32_t)args_int(job->args, "layer");
  job->ranks = (int32_t)args_int(job->args, "ranks");
  if (job->layer >= job->info->layers)
    return log_fail(TOOL_USAGE, "--layer: %d; allowed: 0 to %d", job->layer, job->info->layers - 1);
  if (job->info->experts % job->ranks)
    return log_fail(TOOL_USAGE, "--ranks: %d; allowed: a divisor of the %d experts of %s", job->ranks,
                    job->info->experts, folder);
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    dt_layer *layer;
    status = dt_checkpoint_layer(job->checkpoint, job->layer, rank, job->ranks, &layer);
    if (status) return log_status(status == DT_ERR_IO ? DT_ERR_INPUT : status, NULL);
    dt_layer_free(layer);
  }
  return TOOL_OK;
}

static int open_output(moe_job *job) {
  const dt_tensor_spec spec = {
      .name = "hidden_states", .dtype = job->input.dtype, .dims = 2, .shape = {job->input.tokens, job->input.hidden}};
  return rank_output_open(args_text(job->args, "output"), &spec, &job->writer);
}

static int map_shared(moe_job *job) {
  moe_shared *shared = &job->shared;
  size_t ranks = (size_t)job->ranks, tokens = (size_t)job->input.tokens, experts = (size_t)job->info->experts;
  size_t slots = tokens * (size_t)job->top_k;
  const rank_array arrays[] = {
      {(void **)&shared->samples, RUNS_MAX * (size_t)job->repeat * ranks * sizeof(*shared->samples)},
      {(void **)&shared->runs, RUNS_MAX * ranks * sizeof(*shared->runs)},
      {(void **)&shared->facts, ranks * sizeof(*shared->facts)},
      {(void **)&shared->sent, RUNS_MAX * ranks * ranks * sizeof(*shared->sent)},
      {(void **)&shared->counts, ranks * experts * sizeof(*shared->counts)},
      {(void **)&shared->ids, slots * sizeof(*shared->ids)},
      {(void **)&shared->weights, slots * sizeof(*shared->weights)},
      {(void **)&shared->reference, job->check ? tokens * (size_t)job->input.hidden * sizeof(*shared->reference) : 0},
      {(void **)&shared->run_count, sizeof(*shared->run_count)},
      {(void **)&shared->schedules, RUNS_MAX * sizeof(*shared->schedules)},
      {(void **)&shared->forms, RUNS_MAX * sizeof(*shared->forms)},
  };
  return rank_memory_map(arrays, ARGS_COUNT(arrays), &shared->base, &shared->bytes);
}

static int share_memory(moe_job *job) {
  moe_shared *shared = &job->shared;
  int code = map_shared(job);
  if (code) return code;
  const arg_value *list = args_list(job->args, "schedule");
  *shared->run_count = 1; /* serial, the baseline of every figure */
  for (int i = 0; i < list->list_count; i++) {
    if (list->list[i] == SCHEDULE_AUTO)
      job->choose = 1;
    else if (job->gpus && !args_given(job->args, "schedule")) /* the option's default is that of CPUs */
      shared->schedules[(*shared->run_count)++] = DT_SCHEDULE_DIRECT;
    else if (list->list[i] != DT_SCHEDULE_SERIAL)
      shared->schedules[(*shared->run_count)++] = list->list[i];
  }
  for (int32_t i = 0; i < RUNS_MAX * job->ranks; i++)
    shared->runs[i].verdict = (figures_verdict){.bit_equal = 1, .worst_token = -1};
  size_t ranks = (size_t)job->ranks;
  job->serial_spans = calloc((size_t)(job->repeat + 1) * ranks, sizeof(*job->serial_spans));
  job->last_spans = calloc(RUNS_MAX * ranks, sizeof(*job->last_spans));
  return job->serial_spans && job->last_spans ? TOOL_OK : log_out_of_memory();
}

static int take_spans(void *context, int32_t rank, int32_t tag, const void *data, size_t bytes) {
  moe_job *job = context;
  int32_t run = tag >> 24, repeat = tag & 0xffffff;
  rank_spans copy;
  int code = rank_spans_copy(rank, data, bytes, &copy);
  if (code) return code;
  size_t ranks = (size_t)job->ranks, at = (size_t)rank;
  rank_spans *last = &job->last_spans[(size_t)run * ranks + at];
  rank_spans *kept = run == 0 ? &job->serial_spans[(size_t)repeat * ranks + at] : last;
  free(kept->spans);
  *kept = copy;
  if (run == 0 && repeat == job->repeat - 1) *last = copy;
  return TOOL_OK;
}

/* Every rank has sent the spans of a warm serial forward: fit, price, add the choice to the runs. */
static int decide(void *context, int32_t *answer) {
  moe_job *job = context;
  int32_t chosen = DT_SCHEDULE_SERIAL, *count = job->shared.run_count;
  moe_form form = {0};
  int code = TOOL_OK;
  if (has_rows(job)) { /* else every schedule costs the same nothing, and serial stays */
    if (!job->gpus) code = moe_fit(job, job->repeat, job->repeat + 1);
    if (code == TOOL_OK) code = job->gpus ? moe_cuda_choose(job, &chosen, &form) : moe_choose(job, &chosen);
  }
  if (code) return code;
  for (int32_t run = 0; run < *count; run++)
    if (job->shared.schedules[run] == chosen && !form.chosen) {
      *answer = *count;
      return TOOL_OK;
    }
  job->shared.schedules[*count] = chosen;
  job->shared.forms[*count] = form;
  *answer = ++*count;
  return TOOL_OK;
}

static void tick(void *context, const rank_account *accounts) {
  moe_job *job = context;
  job->bar.total = (double)*job->shared.run_count * (job->repeat + 1);
  progress_reach(&job->bar, (double)atomic_load(&accounts[0].progress));
}

static int run_ranks(moe_job *job) {
  const ranks_config config = {
      .ranks = job->ranks,
      .timeout_s = job->comm.timeout_s,
      .entry_timeout_s = job->comm.entry_timeout_s,
      .context = job,
      .run = job->gpus ? moe_cuda_rank_main : moe_rank_main,
      .message = take_spans,
      .decide = decide,
      .tick = tick,
  };
  progress_start(&job->bar, "layer", 1);
  int code = ranks_run(&config);
  progress_end(&job->bar);
  return code;
}

/* The ranks have written every row; what is left is the parent's: prices, tables, the name of the output. */
static int finish(moe_job *job) {
  for (int32_t run = 0; run < RUNS_MAX; run++) job->predicted_s[run] = NAN;
  if (job->gpus)
    moe_cuda_predict(job);
  else if (has_rows(job) && moe_fit(job, 0, job->repeat) == TOOL_OK)
    moe_predict(job);
  const char *names[RUNS_MAX];
  for (int32_t run = 0; run < *job->shared.run_count; run++) {
    names[run] = schedule_names[job->shared.schedules[run]];
    const uint64_t lost = moe_spans_lost(job, run);
    if (lost) log_note("trace: no room for %llu spans of %s", (unsigned long long)lost, names[run]);
  }
  const rank_trace trace = {.spans = job->last_spans,
                            .names = names,
                            .run_count = *job->shared.run_count,
                            .ranks = job->ranks,
                            .workers = job->config.workers,
                            .consumers = job->config.consumers,
                            .device = job->gpus > 0};
  int code = rank_trace_write(&trace, args_text(job->args, "trace"), moe_report(job));
  return rank_output_commit(&job->writer, code);
}

static void release(moe_job *job) {
  dt_tensor_writer_discard(job->writer);
  size_t ranks = (size_t)job->ranks, runs = job->shared.base ? (size_t)*job->shared.run_count : 0;
  for (size_t i = ranks; job->last_spans && i < runs * ranks; i++) free(job->last_spans[i].spans);
  for (size_t i = 0; job->serial_spans && i < (size_t)(job->repeat + 1) * ranks; i++) free(job->serial_spans[i].spans);
  free(job->last_spans);
  free(job->serial_spans);
  if (job->shared.base) munmap(job->shared.base, job->shared.bytes);
  moe_input_close(&job->input);
  device_machine_release(&job->machine);
  dt_checkpoint_close(job->checkpoint);
}

static int run_job(moe_job *job) {
  const tool_args *args = job->args;
  int code = TOOL_OK;
  job->gpus = (int32_t)args_choice(args, "device"); /* how many there are is asked when all else is right */
  if (!job->gpus && args_choice(args, "dedup") == 1)
    code = log_fail(TOOL_USAGE, "--dedup: \"on\"; allowed: off on the cpu");
  if (!job->gpus && args_set(args, "platform"))
    code = log_fail(TOOL_USAGE, "--platform: \"%s\"; allowed: with --device cuda", args_text(args, "platform"));
  if (code == TOOL_OK) code = rank_options_link(args, &job->comm);
  if (code == TOOL_OK) code = rank_options_waits(args, &job->comm);
  if (code == TOOL_OK) code = device_machine_read(args_text(args, "platform"), &job->machine);
  if (code == TOOL_OK) code = open_checkpoint(job);
  if (code == TOOL_OK) code = moe_input_open(args_text(args, "input"), job->info, !job->gpus, &job->input);
  if (code) return code;
  job->top_k = job->input.top_k ? job->input.top_k : job->info->top_k;
  job->repeat = (int32_t)args_int(args, "repeat");
  job->check = args_set(args, "check");
  read_config(job);
  code = share_memory(job);
  if (code == TOOL_OK && job->gpus) code = moe_cuda_options(job);
  if (code == TOOL_OK) code = rank_options_device(args, &job->gpus);
  if (code == TOOL_OK && job->gpus) moe_cuda_notes(job);
  const arg_value *list = args_list(args, "schedule");
  for (int i = 0; code == TOOL_OK && !job->gpus && i < list->list_count; i++)
    if (list->list[i] == DT_SCHEDULE_SIGNAL && job->config.consumers < 1)
      code = log_fail(TOOL_USAGE, "--consumers: 0; allowed: 1 or more with the schedule signal");
  if (code == TOOL_OK) code = open_output(job);
  if (code == TOOL_OK) code = run_ranks(job);
  return code == TOOL_OK ? finish(job) : code;
}

static int run(const tool_args *args) {
  moe_job job = {.args = args};
  int code = run_job(&job);
  release(&job);
  return code;
}

static const arg_option options[] = {
    OPT_TEXT("checkpoint", "DIR", arg_required, "Hugging Face model folder"),
    OPT_INT("layer", "N", "0", 0, 65535, "layer of the model"),
    OPT_TEXT("input", "FILE", arg_required,
             "safetensors with hidden_states [T, H]; topk_ids and topk_weights [T, k] replace the router"),
    OPT_TEXT("output", "FILE", arg_required, "safetensors to write: hidden_states [T, H], whole or absent"),
    OPT_INT("ranks", "W", "2", 1, RANKS_MAX, "rank processes; the experts are divided evenly among them"),
    OPT_LIST("schedule", "LIST", "signal", schedule_auto_names,
             "schedules to run, separated by commas; serial always runs as the baseline"),
    OPTION_DEVICE,
    OPTIONS_MEASURE,
    OPTIONS_LINK,
    OPT_INT("workers", "N", "1", 1, 1024, "computing threads of a rank"),
    OPT_INT(
        "consumers", "N", "1", 0, 1024,
        "threads of a rank that carry dispatch and segments; cuda, signal: multiprocessors that put them, even, 16 or "
        "a quarter of fewer where not given"),
    OPT_INT("tile-m", "M", "128", 1, 4096, "rows of a band"),
    OPT_INT("tile-n", "N", "0", 0, 65536, "columns of a tile; 0: by the layer's sizes"),
    OPT_CHOICE("layout", "LAYOUT", "packed", layout_names, "rows in memory"),
    OPT_CHOICE("order", "ORDER", NULL, order_names, "band order (default: the schedule's)"),
    OPT_INT("segment-bands", "B", "0", 0, 65536, "interior bands of a group that travel together; 0: the schedule's"),
    OPT_INT("raster-bands", "R", "0", 0, 65536, "bands of a unit at most; 0: the schedule's"),
    OPT_INT("group-tasks", "N", "0", 0, 1e9, "L1 tasks that a group holds at least; 0: the schedule's"),
    OPT_INT("wave-experts", "N", "0", 0, 65536, "experts of a wave; 0: by --group-tasks"),
    OPT_INT("lead", "D", "0", 0, 65536, "groups of L1 ahead of L2 (interleave, alternate); 0: the schedule's"),
    OPT_CHOICE("dedup", "SWITCH", "off", switch_names,
               "send a token once to a rank that wants it for several experts (GPUs)"),
    OPT_TEXT("platform", "FILE", NULL, "cuda: platform file for the limit, the predictions and auto"),
    OPT_FLAG("explain", "with --schedule auto: print the price of every schedule"),
    OPTIONS_WAITS,
    OPTION_TRACE,
    OPTION_JSON,
};

const tool_command command_moe = {
    .name = "moe",
    .summary = "run one MoE layer of a checkpoint over several ranks, its all-to-alls hidden, and measure it",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
};
