/* draintile attention: Ulysses attention over rank processes, its all-to-alls hidden and measured. */
#include <stdlib.h>
#include <sys/mman.h>

#include "attention.h"
#include "attention_device.h"
#include "commands.h"
#include "log.h"
#include "rank_options.h"
#include "rank_output.h"

const char *const attention_schedule_names[] = {"serial", "piggyback", NULL};
const char *const attention_text_names[] = {"sharded", "replicated", NULL};

dt_attention_stats *attention_sample(const attention_job *job, int32_t run, int32_t repeat, int32_t rank) {
  return &job->shared.samples[((size_t)run * (size_t)job->repeat + (size_t)repeat) * (size_t)job->ranks + (size_t)rank];
}

figures_verdict *attention_verdict(const attention_job *job, int32_t run, int32_t rank) {
  return &job->shared.verdicts[(size_t)run * (size_t)job->ranks + (size_t)rank];
}

uint64_t *attention_sent(const attention_job *job, int32_t run, int32_t rank) {
  return &job->shared.sent[((size_t)run * (size_t)job->ranks + (size_t)rank) * (size_t)job->ranks];
}

static int read_config(attention_job *job) {
  const tool_args *args = job->args;
  dt_attention_config *config = &job->config;
  job->ranks = (int32_t)args_int(args, "ranks");
  job->repeat = (int32_t)args_int(args, "repeat");
  job->check = args_set(args, "check");
  config->causal = args_set(args, "causal");
  if (args_set(args, "scale")) config->scale = (float)args_number(args, "scale");
  config->overlap_in = args_choice(args, "overlap-in");
  config->workers = (int32_t)args_int(args, "workers");
  config->consumers = (int32_t)args_int(args, "consumers");
  config->tile_rows = (int32_t)args_int(args, "tile-rows");
  config->own_lag = (int32_t)args_int(args, "own-lag");
  config->text = (dt_attention_text)args_choice(args, "text");
  rank_options_delay(args, &config->delay_max_us, &config->delay_seed);
  if (args_set(args, "text-tokens")) {
    int64_t most = config->tokens < config->kv_tokens ? config->tokens : config->kv_tokens;
    config->text_tokens = args_int(args, "text-tokens");
    if (config->text_tokens > most)
      return log_fail(TOOL_USAGE, "--text-tokens: %lld; allowed: 0 to %lld, the tokens of %s",
                      (long long)config->text_tokens, (long long)most, job->input.path);
  } else if (args_given(args, "text")) {
    return log_fail(TOOL_USAGE, "--text-tokens: required with --text");
  }
  if (config->heads < job->ranks)
    return log_fail(TOOL_USAGE, "--ranks: %d; allowed: 1 to %d, the heads of %s", job->ranks, config->heads,
                    job->input.path);
  /* Whatever else no layout can be made of. */
  dt_attention_rows runs[2];
  dt_status status = dt_attention_rows_out(config, job->ranks, 0, runs);
  return status ? log_status(DT_ERR_INPUT, NULL) : TOOL_OK;
}

static void read_schedules(attention_job *job) {
  const arg_value *list = args_list(job->args, "schedule");
  job->schedules[0] = DT_ATTENTION_SERIAL;
  job->run_count = 1;
  for (int i = 0; i < list->list_count; i++)
    if (list->list[i] != DT_ATTENTION_SERIAL) job->schedules[job->run_count++] = (dt_attention_schedule)list->list[i];
}

static int open_output(attention_job *job) {
  const dt_attention_config *config = &job->config;
  const dt_tensor_spec spec = {
      .name = "o", .dtype = config->dtype, .dims = 3, .shape = {config->tokens, config->heads, config->head_dim}};
  return rank_output_open(args_text(job->args, "output"), &spec, &job->writer);
}

static int share_memory(attention_job *job) {
  attention_shared *shared = &job->shared;
  size_t ranks = (size_t)job->ranks, runs = ATTENTION_SCHEDULES;
  const rank_array arrays[] = {
      {(void **)&shared->samples, runs * (size_t)job->repeat * ranks * sizeof(*shared->samples)},
      {(void **)&shared->verdicts, runs * ranks * sizeof(*shared->verdicts)},
      {(void **)&shared->facts, ranks * sizeof(*shared->facts)},
      {(void **)&shared->sent, runs * ranks * ranks * sizeof(*shared->sent)},
  };
  int code = rank_memory_map(arrays, ARGS_COUNT(arrays), &shared->base, &shared->bytes);
  for (size_t i = 0; code == TOOL_OK && i < runs * ranks; i++)
    shared->verdicts[i] = (figures_verdict){.bit_equal = 1, .worst_token = -1};
  return code;
}

static int take_spans(void *context, int32_t rank, int32_t run, const void *data, size_t bytes) {
  attention_job *job = context;
  return rank_spans_copy(rank, data, bytes, &job->spans[run * job->ranks + rank]);
}

static void tick(void *context, const rank_account *accounts) {
  attention_job *job = context;
  progress_reach(&job->bar, (double)atomic_load(&accounts[0].progress));
}

static int run_ranks(attention_job *job) {
  const ranks_config config = {
      .ranks = job->ranks,
      .timeout_s = job->comm.timeout_s,
      .entry_timeout_s = job->comm.entry_timeout_s,
      .context = job,
      .run = attention_rank_main,
      .message = take_spans,
      .tick = tick,
  };
  progress_start(&job->bar, "attention", (double)job->run_count * (job->repeat + 1));
  int code = ranks_run(&config);
  progress_end(&job->bar);
  return code;
}

/* The ranks have written every row; what is left is the parent's: tables, the name of the output. */
static int finish(attention_job *job) {
  const char *names[ATTENTION_SCHEDULES];
  for (int32_t run = 0; run < job->run_count; run++) names[run] = attention_schedule_names[job->schedules[run]];
  const rank_trace trace = {.spans = job->spans,
                            .names = names,
                            .run_count = job->run_count,
                            .ranks = job->ranks,
                            .workers = job->gpus ? 1 : job->config.workers,
                            .consumers = job->gpus ? 1 : job->config.consumers};
  int code = rank_trace_write(&trace, args_text(job->args, "trace"), attention_report(job));
  return rank_output_commit(&job->writer, code);
}

static int run_job(attention_job *job) {
  const tool_args *args = job->args;
  dt_attention_config_init(&job->config);
  const int cuda = args_choice(args, "device") == 1;
  int code = rank_options_link(args, &job->comm);
  if (code == TOOL_OK) code = rank_options_waits(args, &job->comm);
  if (code == TOOL_OK) code = attention_input_open(args_text(args, "input"), !cuda, &job->input, &job->config);
  if (code == TOOL_OK) code = read_config(job);
  if (code == TOOL_OK && cuda) code = attention_device_check(job);
  if (code == TOOL_OK && cuda) code = attention_device_find(job);
  if (code) return code;
  read_schedules(job);
  code = share_memory(job);
  if (code == TOOL_OK) code = open_output(job);
  if (code == TOOL_OK) code = run_ranks(job);
  return code == TOOL_OK ? finish(job) : code;
}

static int run(const tool_args *args) {
  attention_job job = {.args = args};
  int code = run_job(&job);
  dt_tensor_writer_discard(job.writer);
  for (size_t i = 0; i < ARGS_COUNT(job.spans); i++) free(job.spans[i].spans);
  if (job.shared.base) munmap(job.shared.base, job.shared.bytes);
  attention_input_close(&job.input);
  return code;
}

static const arg_option options[] = {
    OPT_TEXT("input", "FILE", arg_required, "safetensors with q [S, H, D], k and v [S_kv, H_kv, D]"),
    OPT_TEXT("output", "FILE", arg_required, "safetensors to write: o [S, H, D], whole or absent"),
    OPT_INT("ranks", "W", "2", 1, RANKS_MAX, "rank processes, at most as many as heads"),
    OPT_LIST("schedule", "LIST", "piggyback", attention_schedule_names,
             "schedules to run, separated by commas; serial always runs as the baseline"),
    OPTION_DEVICE,
    OPT_FLAG("causal", "row i of q sees the rows of k up to i + S_kv - S"),
    OPT_NUMBER("scale", "X", NULL, -1e30, 1e30, "factor of the scores (default: 1/sqrt(D))"),
    OPT_CHOICE("overlap-in", "SWITCH", "on", switch_names,
               "piggyback: compute the first heads while later ones arrive"),
    OPT_INT("text-tokens", "N", NULL, 0, 1e9, "the first N tokens are text, the others an image"),
    OPT_CHOICE("text", "WHERE", "sharded", attention_text_names,
               "which ranks hold the text: each its share, or each all of it"),
    OPTIONS_MEASURE,
    OPTIONS_LINK,
    OPT_INT("workers", "N", "1", 1, 1024, "computing threads of a rank"),
    OPT_INT("consumers", "N", "1", 0, 1024, "threads of a rank that carry q, k and v"),
    OPT_INT("tile-rows", "M", "128", 1, 4096, "rows of q in a tile, at most"),
    OPT_INT("own-lag", "N", "0", 0, 65536, "heads by which the tiles of own rows of a head follow its remote ones"),
    OPTIONS_WAITS,
    OPTION_TRACE,
    OPTION_JSON,
};

const tool_command command_attention = {
    .name = "attention",
    .summary = "run attention over several ranks that share a sequence, its all-to-alls hidden, and measure it",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
};
