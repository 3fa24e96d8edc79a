/* draintile bench attention: Ulysses attention on GPUs over the shapes of diffusion transformers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/ulysses_bench.h>

#include "commands.h"
#include "figures.h"
#include "json.h"
#include "log.h"
#include "proc.h"
#include "table.h"

/* From here on the summary has ratios to the kernel, below differences. */
enum { SHORT_TOKENS = 16384 };

typedef struct attention_bench {
  tool_table *table;
  json_t *rows;
  char device[256];
  int64_t wrong; /* words that differ from serial's */
  double error, fused_over_kernel, fused_minus_kernel, whole_over_kernel, whole_minus_kernel;
  int code, gpus;
} attention_bench;

static double median_of(const dt_ulysses_bench *bench, dt_ulysses_method method) {
  return bench->timings[method].median_s;
}

static void add_row(attention_bench *all, const dt_ulysses_bench *bench) {
  const dt_ulysses_shape *s = &bench->config.shape;
  if (!all->table)
    all->table = table_create("<shape|tokens|heads|TFLOP/s|kernel|serial|fused|in|piggyback|whole|fused, graph|"
                              "whole, graph");
  table_cell(all->table, "%s", s->name);
  table_cell(all->table, "%lld", (long long)s->image_tokens + s->text_tokens);
  table_cell(all->table, "%d x %d", s->heads, s->head_dim);
  table_cell(all->table, "%.0f", 1e-12 * bench->flops / median_of(bench, DT_ULYSSES_METHOD_KERNEL));
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) table_time(all->table, median_of(bench, (dt_ulysses_method)m));
}

static const char *const store_names[] = {"paced", "direct", NULL};

static json_t *row_json(const dt_ulysses_bench *bench) {
  const dt_ulysses_bench_config *c = &bench->config;
  json_t *methods = json_array();
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) {
    const dt_ulysses_timing *t = &bench->timings[m];
    json_array_append_new(methods,
                          json_pack("{s:s, s:o, s:o, s:o}", "method", dt_ulysses_method_name((dt_ulysses_method)m),
                                    "median_s", json_figure(t->median_s), "words_wrong", json_whole(t->words_wrong),
                                    "samples_s", json_figures(t->samples_s, (size_t)c->repeat)));
  }
  json_t *row = json_pack(
      "{s:s, s:i, s:i, s:o, s:o, s:i, s:i, s:i}", "shape", c->shape.name, "heads", (int)c->shape.heads, "head_dim",
      (int)c->shape.head_dim, "tokens", json_whole(c->shape.image_tokens + c->shape.text_tokens), "text_tokens",
      json_whole(c->shape.text_tokens), "causal", (int)c->causal, "senders", (int)c->senders, "repeat", (int)c->repeat);
  json_object_set_new(row, "stores", json_string(store_names[c->direct_stores != 0]));
  json_object_set_new(row, "flops", json_figure(bench->flops));
  json_object_set_new(row, "kernel_flop_per_s", json_figure(bench->flops / median_of(bench, DT_ULYSSES_METHOD_KERNEL)));
  json_object_set_new(row, "in_bytes", json_whole(bench->in_bytes));
  json_object_set_new(row, "out_bytes", json_whole(bench->out_bytes));
  json_object_set_new(row, "device_bytes", json_whole_unsigned(bench->device_bytes));
  json_object_set_new(row, "max_relative_error", json_figure(bench->max_relative_error));
  json_object_set_new(row, "sm_hz_before", json_figure(bench->sm_hz_before));
  json_object_set_new(row, "sm_hz_after", json_figure(bench->sm_hz_after));
  json_object_set_new(row, "methods", methods);
  const dt_ulysses_timing *asleep = &bench->kernel_asleep;
  if (asleep->samples_s)
    json_object_set_new(row, "kernel_asleep",
                        json_pack("{s:o, s:o}", "median_s", json_figure(asleep->median_s), "samples_s",
                                  json_figures(asleep->samples_s, (size_t)c->repeat)));
  return row;
}

static void judge(attention_bench *all, const dt_ulysses_bench *bench) {
  const char *name = bench->config.shape.name;
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) {
    const int64_t wrong = bench->timings[m].words_wrong;
    if (wrong <= 0) continue;
    all->wrong += wrong;
    all->code = log_fail(TOOL_CHECK_FAILED, "%s, %s: %lld words differ from serial's", name,
                         dt_ulysses_method_name((dt_ulysses_method)m), (long long)wrong);
  }
  if (!(bench->max_relative_error <= figures_tolerance(DT_DTYPE_BF16)))
    all->code = log_fail(TOOL_CHECK_FAILED, "%s: relative error %g; allowed: up to %g", name, bench->max_relative_error,
                         figures_tolerance(DT_DTYPE_BF16));
  figures_raise(&all->error, bench->max_relative_error);
}

/* NaN until there is one. */
static void raise(double *most, double value) {
  if (!(value <= *most)) *most = value;
}

/* The better of live and graph, as for the peers. */
static double best_of(const dt_ulysses_bench *bench, dt_ulysses_method live, dt_ulysses_method graph) {
  return fmin(median_of(bench, live), median_of(bench, graph));
}

static void summarize(attention_bench *all, const dt_ulysses_bench *bench) {
  const double kernel = median_of(bench, DT_ULYSSES_METHOD_KERNEL);
  const double fused = best_of(bench, DT_ULYSSES_METHOD_FUSED, DT_ULYSSES_METHOD_FUSED_GRAPH);
  const double whole = best_of(bench, DT_ULYSSES_METHOD_WHOLE, DT_ULYSSES_METHOD_WHOLE_GRAPH);
  if (bench->config.shape.image_tokens + bench->config.shape.text_tokens >= SHORT_TOKENS) {
    raise(&all->fused_over_kernel, fused / kernel);
    raise(&all->whole_over_kernel, whole / kernel);
  } else {
    raise(&all->fused_minus_kernel, fused - kernel);
    raise(&all->whole_minus_kernel, whole - kernel);
  }
}

static json_t *report_json(attention_bench *all, int ranks) {
  json_t *root = json_results("draintile-bench-attention");
  json_object_set_new(root, "device", json_text(all->device));
  json_object_set_new(root, "date", json_now());
  json_object_set_new(root, "ranks", json_integer(ranks));
  json_object_set_new(root, "gpus", json_integer(all->gpus));
  json_object_set_new(root, "rows", all->rows);
  json_object_set_new(root, "summary",
                      json_pack("{s:o, s:o, s:o, s:o, s:b, s:o}", "fused_over_kernel_max_s16384",
                                json_figure(all->fused_over_kernel), "fused_minus_kernel_max_s_short",
                                json_figure(all->fused_minus_kernel), "whole_over_kernel_max_s16384",
                                json_figure(all->whole_over_kernel), "whole_minus_kernel_max_s_short",
                                json_figure(all->whole_minus_kernel), "bit_equal", all->wrong == 0,
                                "max_relative_error", json_figure(all->error)));
  return root;
}

#define SHAPE_NAME(name, ...) name,
static const char *const shape_names[] = {DT_ULYSSES_SHAPE_TABLE(SHAPE_NAME) NULL};

static int run_shapes(const tool_args *args, attention_bench *all) {
  const arg_value *list = args_list(args, "shape");
  for (int i = 0; i < list->list_count; i++) {
    dt_ulysses_bench_config config;
    dt_ulysses_bench_config_init(&config);
    config.ranks = (int32_t)args_int(args, "ranks");
    config.shape = *dt_ulysses_shape_at((int32_t)list->list[i]);
    config.causal = args_set(args, "causal");
    config.senders = (int32_t)args_int(args, "senders");
    config.direct_stores = args_choice(args, "stores");
    config.repeat = (int32_t)args_int(args, "repeat");
    config.seconds = args_number(args, "time");
    config.seed = (uint64_t)args_int(args, "seed");
    dt_ulysses_bench *bench = NULL;
    dt_status status = dt_ulysses_bench_run(&config, &bench);
    if (status) return log_status(status, NULL);
    memcpy(all->device, bench->device, sizeof all->device);
    if (all->gpus == 0 && bench->gpus < config.ranks)
      log_note("%d ranks on %d GPUs: no row crosses a link, and times are of that sharing", config.ranks, bench->gpus);
    all->gpus = bench->gpus;
    add_row(all, bench);
    json_array_append_new(all->rows, row_json(bench));
    judge(all, bench);
    summarize(all, bench);
    dt_ulysses_bench_destroy(bench);
  }
  return all->code;
}

static int run(const tool_args *args) {
  proc_gpu_queues();
  attention_bench all = {.rows = json_array(),
                         .code = TOOL_OK,
                         .fused_over_kernel = NAN,
                         .fused_minus_kernel = NAN,
                         .whole_over_kernel = NAN,
                         .whole_minus_kernel = NAN};
  int code = run_shapes(args, &all);
  const int ran = code == TOOL_OK || code == TOOL_CHECK_FAILED;
  const char *json = args_text(args, "json");
  if (all.table) table_print(all.table, json_is_stdout(json) ? stderr : stdout);
  if (!ran || !json) {
    json_decref(all.rows);
    return code;
  }
  const int written = json_write(report_json(&all, (int)args_int(args, "ranks")), json);
  return written ? written : code;
}

static const arg_option options[] = {
    OPT_INT("ranks", "W", "2", 1, 8, "GPUs of this machine"),
    OPT_LIST("shape", "SHAPES", "flux", shape_names, "layers to time"),
    OPT_FLAG("causal", "row i sees the rows up to i"),
    OPT_INT("senders", "N", "0", 0, 1024, "whole: multiprocessors that send q, k, v beside the attention; 0: chosen"),
    OPT_CHOICE("stores", "HOW", "paced", store_names, "output rows to other ranks: behind the next tile, or at once"),
    OPT_INT("repeat", "N", "20", 1, 10000, "samples of each method; more of runs of 10 ms and over"),
    OPT_TIME("time", "0", "fewer samples, at least 5, where a shape would take longer; 0: no bound"),
    OPTION_SEED,
    OPTION_JSON,
};

const tool_command command_bench_attention = {
    .name = "attention",
    .summary = "Ulysses attention of diffusion transformers, its all-to-alls hidden, on GPUs",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
    .notes = "Times are of the slowest rank. All methods must equal serial to the bit. Ranks share GPUs where there\n"
             "are too few; 77: there is none.",
};
