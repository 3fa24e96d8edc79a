/* draintile bench residual: what stays visible of the output all-to-all behind the attention, by sequence length, with
 * the curves of X-Stage's two laws beside it (arXiv 2607.23264, figure 11). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/simulate.h>
#include <draintile/ulysses_bench.h>

#include "commands.h"
#include "device_limit.h"
#include "figures.h"
#include "json.h"
#include "log.h"
#include "proc.h"
#include "table.h"

static const int32_t lengths[] = {256,  384,  512,  640,   768,   1024,  1280,  1536,  2048, 3072,
                                  4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536};
enum {
  LENGTHS = ARGS_COUNT(lengths),
  HEAD_DIM = 128,
  KV_TILE = 128,     /* keys that sigma is for */
  FLOOR_FROM = 8192, /* rows whose residuals are the floor */
  FLOOR_TO = 16384,  /* beyond, the kernel's own scatter is larger than what is looked for */
  SIGMA_FROM = 4096  /* the longest row from here on gives sigma */
};

typedef struct residual_row {
  int32_t tokens, sms, tile_rows;
  double kernel_s, fused_s;
  int repeat;
  double *samples_s;              /* [repeat]: fused minus kernel, sample by sample */
  double median_s, low_s, high_s; /* and quartiles */
  dt_piggyback_answer model;
} residual_row;

typedef struct residual_job {
  const tool_args *args;
  device_machine machine;
  residual_row rows[LENGTHS];
  int count, ranks, heads, repeat, gpus;
  double floor_s, floor_low_s, floor_high_s, sigma_s;
  int32_t least_tokens; /* measured; 0: no row is flat */
  int64_t wrong;
  double error;
  char device[256];
} residual_job;

/* Of the attention kernel on a rank. */
static double tiles_of(const residual_job *job, const residual_row *row) {
  return ceil((double)row->tokens / row->tile_rows) * job->heads;
}

static int measure(residual_job *job, int32_t tokens, residual_row *row) {
  dt_ulysses_bench_config config;
  dt_ulysses_bench_config_init(&config);
  config.ranks = job->ranks;
  config.shape = (dt_ulysses_shape){
      .name = "residual", .heads = job->heads * job->ranks, .head_dim = HEAD_DIM, .image_tokens = tokens};
  config.repeat = job->repeat;
  config.seed = (uint64_t)args_int(job->args, "seed");
  config.methods = 1u << DT_ULYSSES_METHOD_KERNEL | 1u << DT_ULYSSES_METHOD_FUSED;
  dt_ulysses_bench *bench = NULL;
  dt_status status = dt_ulysses_bench_run(&config, &bench);
  if (status) return log_status(status, NULL);
  const dt_ulysses_timing *kernel = &bench->timings[DT_ULYSSES_METHOD_KERNEL];
  const dt_ulysses_timing *fused = &bench->timings[DT_ULYSSES_METHOD_FUSED];
  *row = (residual_row){.tokens = tokens,
                        .sms = bench->sms,
                        .tile_rows = bench->tile_rows,
                        .kernel_s = kernel->median_s,
                        .fused_s = fused->median_s,
                        .repeat = bench->config.repeat,
                        .samples_s = calloc((size_t)bench->config.repeat, sizeof(double))};
  for (int i = 0; row->samples_s && i < row->repeat; i++)
    row->samples_s[i] = fused->samples_s[i] - kernel->samples_s[i];
  if (row->samples_s) figures_quartiles(row->samples_s, row->repeat, &row->low_s, &row->median_s, &row->high_s);
  if (fused->words_wrong > 0) job->wrong += fused->words_wrong;
  figures_raise(&job->error, bench->max_relative_error);
  job->gpus = bench->gpus;
  memcpy(job->device, bench->device, sizeof job->device);
  dt_ulysses_bench_destroy(bench);
  return row->samples_s ? TOOL_OK : log_fail(TOOL_FAILED, "out of memory");
}

/* The floor is what long rows are left with; a row is above it when its lower quartile is above the floor's upper one.
 * From the row behind the last such one on, up to FLOOR_TO, nothing but the floor is left. */
static int find_floor(residual_job *job) {
  size_t samples = 1;
  for (int i = 0; i < job->count; i++) samples += (size_t)job->rows[i].repeat;
  double *all = calloc(samples, sizeof *all);
  int count = 0, last_above = -1;
  if (!all) return log_fail(TOOL_FAILED, "out of memory");
  for (int i = 0; i < job->count; i++) {
    const residual_row *row = &job->rows[i];
    if (row->tokens < FLOOR_FROM || row->tokens > FLOOR_TO) continue;
    memcpy(all + count, row->samples_s, (size_t)row->repeat * sizeof *all);
    count += row->repeat;
  }
  job->floor_s = job->floor_low_s = job->floor_high_s = NAN;
  if (count) figures_quartiles(all, count, &job->floor_low_s, &job->floor_s, &job->floor_high_s);
  free(all);
  for (int i = 0; count && i < job->count; i++)
    if (job->rows[i].tokens <= FLOOR_TO && job->rows[i].low_s > job->floor_high_s) last_above = i;
  if (count && last_above + 1 < job->count && job->rows[last_above + 1].tokens <= FLOOR_TO)
    job->least_tokens = job->rows[last_above + 1].tokens;
  return TOOL_OK;
}

/* A multiprocessor's time for a tile and 128 keys, from the longest row measured. */
static void find_sigma(residual_job *job) {
  job->sigma_s = 0;
  for (int i = 0; i < job->count; i++) {
    const residual_row *row = &job->rows[i];
    if (row->tokens < SIGMA_FROM) continue;
    job->sigma_s = row->kernel_s * row->sms / (tiles_of(job, row) * ceil((double)row->tokens / KV_TILE));
  }
}

/* Of a tile's bytes those count that leave: (W - 1)/W in the mean. */
static int price(residual_job *job) {
  find_sigma(job);
  for (int i = 0; i < job->count; i++) {
    residual_row *row = &job->rows[i];
    const dt_piggyback_question question = {.tokens = row->tokens,
                                            .heads = job->heads,
                                            .head_dim = HEAD_DIM * (job->ranks - 1.0) / job->ranks,
                                            .ranks = job->ranks,
                                            .producers = fmin(row->sms, tiles_of(job, row)),
                                            .tile_rows = row->tile_rows,
                                            .kv_tile = KV_TILE,
                                            .kv_tile_s = job->sigma_s};
    dt_status status = dt_sim_piggyback(job->machine.platform, &question, &row->model);
    if (status) return log_status(status, args_text(job->args, "platform"));
  }
  return TOOL_OK;
}

static void print(const residual_job *job) {
  tool_table *table =
      table_create("tokens|kernel|fused|residual|lower quartile|upper quartile|X-Stage|if aligned|coupled");
  for (int i = 0; i < job->count; i++) {
    const residual_row *row = &job->rows[i];
    table_cell(table, "%d", row->tokens);
    table_time(table, row->kernel_s);
    table_time(table, row->fused_s);
    table_time(table, row->median_s);
    table_time(table, row->low_s);
    table_time(table, row->high_s);
    table_time(table, row->model.residual_s);
    table_time(table, row->model.residual_high_s);
    table_time(table, row->model.coupled_s);
  }
  printf("%d heads of %d columns a rank, %d ranks on %d x %s\n\n", job->heads, HEAD_DIM, job->ranks, job->gpus,
         job->device);
  table_print(table, stdout);
  printf("\nfloor %.3g us (%.3g to %.3g); M* measured: %d tokens, predicted: %g\n", 1e6 * job->floor_s,
         1e6 * job->floor_low_s, 1e6 * job->floor_high_s, job->least_tokens,
         job->count ? job->rows[job->count - 1].model.least_tokens : NAN);
}

static json_t *row_json(const residual_row *row) {
  json_t *model = json_object(), *out = json_object();
  json_object_set_new(model, "gap_s", json_figure(row->model.gap_s));
  json_object_set_new(model, "recovery_gap_s", json_figure(row->model.recovery_gap_s));
  json_object_set_new(model, "bursts", json_figure(row->model.bursts));
  json_object_set_new(model, "residual_s", json_figure(row->model.residual_s));
  json_object_set_new(model, "residual_high_s", json_figure(row->model.residual_high_s));
  json_object_set_new(model, "coupled_s", json_figure(row->model.coupled_s));
  json_object_set_new(model, "least_tokens", json_figure(row->model.least_tokens));
  json_object_set_new(out, "tokens", json_integer(row->tokens));
  json_object_set_new(out, "tile_rows", json_integer(row->tile_rows));
  json_object_set_new(out, "kernel_s", json_figure(row->kernel_s));
  json_object_set_new(out, "fused_s", json_figure(row->fused_s));
  json_object_set_new(out, "residual_s", json_figure(row->median_s));
  json_object_set_new(out, "residual_low_s", json_figure(row->low_s));
  json_object_set_new(out, "residual_high_s", json_figure(row->high_s));
  json_object_set_new(out, "samples_s", json_figures(row->samples_s, (size_t)row->repeat));
  json_object_set_new(out, "model", model);
  return out;
}

static json_t *report_json(const residual_job *job) {
  json_t *root = json_results("draintile-bench-residual"), *rows = json_array(), *summary = json_object();
  for (int i = 0; i < job->count; i++) json_array_append_new(rows, row_json(&job->rows[i]));
  json_object_set_new(summary, "floor_s", json_figure(job->floor_s));
  json_object_set_new(summary, "floor_low_s", json_figure(job->floor_low_s));
  json_object_set_new(summary, "floor_high_s", json_figure(job->floor_high_s));
  json_object_set_new(summary, "kv_tile_s", json_figure(job->sigma_s));
  json_object_set_new(summary, "least_tokens", json_integer(job->least_tokens));
  json_object_set_new(summary, "least_tokens_predicted", json_figure(job->rows[job->count - 1].model.least_tokens));
  json_object_set_new(summary, "bit_equal", json_boolean(job->wrong == 0));
  json_object_set_new(summary, "max_relative_error", json_figure(job->error));
  json_object_set_new(root, "device", json_text(job->device));
  json_object_set_new(root, "date", json_now());
  json_object_set_new(root, "ranks", json_integer(job->ranks));
  json_object_set_new(root, "gpus", json_integer(job->gpus));
  json_object_set_new(root, "heads", json_integer(job->heads));
  json_object_set_new(root, "head_dim", json_integer(HEAD_DIM));
  json_object_set_new(root, "repeat", json_integer(job->repeat));
  json_object_set_new(root, "rows", rows);
  json_object_set_new(root, "summary", summary);
  return root;
}

static int run_job(residual_job *job) {
  const tool_args *args = job->args;
  int code = device_machine_read(args_text(args, "platform"), &job->machine);
  for (int i = 0; i < LENGTHS && code == TOOL_OK && lengths[i] <= args_int(args, "to"); i++) {
    code = measure(job, lengths[i], &job->rows[i]);
    job->count = i + 1;
  }
  if (code == TOOL_OK && job->gpus < job->ranks)
    log_note("%d ranks on %d GPUs: no row crosses a link, and times are of that sharing", job->ranks, job->gpus);
  if (code == TOOL_OK) code = find_floor(job);
  if (code == TOOL_OK) code = price(job);
  if (code) return code;
  const char *json = args_text(args, "json");
  if (!json_is_stdout(json)) print(job);
  if (json) code = json_write(report_json(job), json);
  if (code == TOOL_OK && job->wrong)
    return log_fail(TOOL_CHECK_FAILED, "fused: %lld words differ from serial's", (long long)job->wrong);
  if (code == TOOL_OK && !(job->error <= figures_tolerance(DT_DTYPE_BF16)))
    return log_fail(TOOL_CHECK_FAILED, "relative error %g; allowed: up to %g", job->error,
                    figures_tolerance(DT_DTYPE_BF16));
  return code;
}

static int run(const tool_args *args) {
  proc_gpu_queues();
  residual_job job = {.args = args,
                      .ranks = (int)args_int(args, "ranks"),
                      .heads = (int)args_int(args, "heads"),
                      .repeat = (int)args_int(args, "repeat")};
  const int code = run_job(&job);
  for (int i = 0; i < job.count; i++) free(job.rows[i].samples_s);
  device_machine_release(&job.machine);
  return code;
}

static const arg_option options[] = {
    OPT_TEXT("platform", "FILE", arg_required, "platform file: rate, capacity, issue time and latencies of the curves"),
    OPT_INT("ranks", "W", "2", 2, 8, "GPUs of this machine"),
    OPT_INT("heads", "N", "4", 1, 64, "heads of 128 columns a rank"),
    OPT_INT("to", "S", "65536", 256, 65536, "longest sequence; the shortest has 256 tokens"),
    OPT_INT("repeat", "N", "20", 4, 10000, "samples of each length; more of runs of 10 ms and over"),
    OPTION_SEED,
    OPTION_JSON,
};

const tool_command command_bench_residual = {
    .name = "residual",
    .summary = "what stays visible of attention's output all-to-all, by sequence length, on GPUs",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
    .notes = "The residual is attention with its output rows at their owners, minus attention alone, sample by "
             "sample.\nExits with 77 where there is no GPU.",
};
