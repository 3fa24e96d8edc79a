/* draintile bench combine: the GEMM of a rank's experts and the return of its rows, by several methods, over lists of
 * settings. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_combine.h"
#include "commands.h"
#include "figures.h"
#include "log.h"
#include "proc.h"

/* What a run is about, and what has come of it. */
typedef struct combine_run {
  dt_combine_bench_config config;
  dt_combine_bench_case *cases;
  combine_prediction *predictions; /* made before anything is measured */
  combine_platform platform;
  json_t *rows;
  char device[256], cublas[32], nccl[32];
  int64_t checks, passed; /* methods held to bulk's bits and to float64 */
  double error;
  int code, quiet, gpus;
  const char *json; /* NULL: none */
  time_t written;
} combine_run;

/* Bits equal to bulk's, and every method's rows near float64. */
static void judge(combine_run *run, const dt_combine_bench *bench) {
  for (int m = 0; m < DT_METHOD_GEMM; m++) {
    const dt_combine_timing *t = &bench->timings[m];
    if (!t->done) continue;
    const int held = m == DT_METHOD_SIGNAL || m == DT_METHOD_DIRECT;
    const int near = t->max_relative_error <= figures_tolerance(DT_DTYPE_BF16);
    if (held && t->words_wrong != 0)
      run->code = log_fail(TOOL_CHECK_FAILED, "setting %lld, %s: %lld words differ from bulk's",
                           (long long)bench->index, method_names[m], (long long)t->words_wrong);
    if (!near)
      run->code =
          log_fail(TOOL_CHECK_FAILED, "setting %lld, %s: relative error %g; allowed: up to %g", (long long)bench->index,
                   method_names[m], t->max_relative_error, figures_tolerance(DT_DTYPE_BF16));
    run->checks++;
    run->passed += near && (!held || t->words_wrong == 0);
    figures_raise(&run->error, t->max_relative_error);
  }
}

static json_t *results(const combine_run *run) {
  json_t *root = json_results("draintile-bench-combine"), *constants = json_object();
  for (int i = 0; i < COMBINE_CONSTANTS; i++)
    if (!isnan(run->platform.constant_s[i]))
      json_object_set_new(constants, combine_constant_names[i], json_figure(run->platform.constant_s[i]));
  json_object_update_new(root, json_pack("{s:o, s:o, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:O}",
                                         "device", json_text(run->device), "date", json_now(), "cublas", run->cublas,
                                         "nccl", run->nccl, "ranks", (int)run->config.ranks, "gpus", (int)run->gpus,
                                         "repeat", (int)run->config.repeat, "rate_bytes_per_s",
                                         json_figure(run->platform.rate_bytes_per_s), "constants_s",
                                         json_figure(run->platform.constants_s), "constants", constants, "checks",
                                         json_whole(run->checks), "checks_passed_first", json_whole(run->passed),
                                         "max_relative_error", json_figure(run->error), "runs", run->rows));
  return root;
}

static void done(void *context, const dt_combine_bench *bench) {
  combine_run *run = context;
  const combine_limit limit = combine_limit_of(bench, &run->platform);
  const combine_prediction *prediction = &run->predictions[bench->index];
  if (!run->quiet) combine_print(bench, &limit, prediction, run->config.case_count == 1);
  json_array_append_new(run->rows, combine_json(bench, &limit, prediction));
  memcpy(run->device, bench->device, sizeof run->device);
  run->gpus = bench->gpus;
  memcpy(run->cublas, bench->cublas, sizeof run->cublas);
  memcpy(run->nccl, bench->nccl, sizeof run->nccl);
  judge(run, bench);
  /* Now and then, so that a run that is ended from outside leaves what it has. */
  const time_t now = time(NULL);
  if (!json_is_replaced(run->json) || run->config.repeat == 0 || now - run->written < 3) return;
  run->written = now;
  const int code = json_write(results(run), run->json);
  if (code) run->code = code;
}

/* Every combination; what costs most to change comes first. */
static int64_t combine_cases(const tool_args *args, dt_combine_bench_case *cases) {
  static const char *const names[] = {
      "n",      "k",     "experts", "layout", "order", "consumers", "segment-bands", "raster-bands",
      "launch", "entry", "pacing",  "rows",   "router"};
  enum { LISTS = sizeof names / sizeof *names };
  const arg_value *lists[LISTS], *modes = args_list(args, "mode");
  int64_t count = 1;
  for (int i = 0; i < LISTS; i++) {
    lists[i] = args_list(args, names[i]);
    count *= lists[i]->list_count;
  }
  for (int64_t c = 0; cases && c < count; c++) {
    int64_t value[LISTS], rest = c;
    for (int i = LISTS; i-- > 0; rest /= lists[i]->list_count) value[i] = lists[i]->list[rest % lists[i]->list_count];
    dt_combine_bench_case_init(&cases[c]);
    cases[c].n = value[0];
    cases[c].k = value[1];
    cases[c].experts = (int32_t)value[2];
    cases[c].layout = (dt_layout)value[3];
    cases[c].order = (dt_order)value[4];
    cases[c].consumers = (int32_t)value[5];
    cases[c].segment_bands = (int32_t)value[6];
    cases[c].raster_bands = (int32_t)value[7];
    cases[c].launch = (dt_combine_launch)value[8];
    cases[c].entry = (dt_combine_entry)value[9];
    cases[c].pacing = (dt_combine_pacing)value[10];
    cases[c].rows = value[11];
    cases[c].router = (dt_combine_router)value[12];
    cases[c].seed = (uint64_t)args_int(args, "seed");
    for (int i = 0; i < modes->list_count; i++) cases[c].methods[modes->list[i]] = 1;
  }
  return count;
}

static dt_status predict_all(combine_run *run) {
  const int32_t ranks = run->config.ranks;
  int32_t experts = 1;
  for (int64_t i = 0; i < run->config.case_count; i++)
    if (run->cases[i].experts > experts) experts = run->cases[i].experts;
  int32_t *counts = malloc((size_t)ranks * (size_t)ranks * (size_t)experts * sizeof *counts);
  dt_status status = counts ? DT_OK : DT_ERR_MEMORY;
  for (int64_t i = 0; i < run->config.case_count && !status; i++) {
    const dt_combine_bench_case *s = &run->cases[i];
    status = dt_combine_route(s->router, s->seed, ranks, s->experts, s->rows, counts);
    if (!status) status = combine_predict(s, ranks, counts, &run->platform, &run->predictions[i]);
  }
  free(counts);
  return status;
}

static json_t *predictions_only(const combine_run *run) {
  json_t *root = json_results("draintile-predict-combine");
  for (int64_t i = 0; i < run->config.case_count; i++) {
    json_t *row = combine_setting_json(&run->cases[i]);
    json_object_set_new(row, "predicted", combine_prediction_json(&run->predictions[i]));
    json_array_append_new(run->rows, row);
  }
  json_object_set(root, "runs", run->rows);
  return root;
}

static int measure(combine_run *run, const tool_args *args) {
  const char *json = args_text(args, "json");
  if (!args_set(args, "no-prediction")) {
    dt_status status = predict_all(run);
    if (status) return log_status(status, NULL);
  }
  if (args_set(args, "predict-only")) return json_write(predictions_only(run), json ? json : "-");
  run->quiet = json_is_stdout(json);
  run->json = json;
  run->written = time(NULL);
  proc_gpu_queues();
  dt_status status = dt_combine_bench_run(&run->config);
  if (status) run->code = log_status(status, NULL);
  if (status && json_array_size(run->rows) == 0) return run->code;
  if (run->config.repeat == 0 && !run->quiet)
    printf("%lld checks, %lld passed at first, relative error at most %.3e\n", (long long)run->checks,
           (long long)run->passed, run->error);
  const int written = json ? json_write(results(run), json) : TOOL_OK; /* after a failure: what there is */
  return run->code ? run->code : written;
}

static int run_command(const tool_args *args) {
  if (args_set(args, "predict-only") && !args_set(args, "platform"))
    return log_fail(TOOL_USAGE, "--platform: required with --predict-only");
  if (args_set(args, "predict-only") && args_set(args, "no-prediction"))
    return log_fail(TOOL_USAGE, "--no-prediction: allowed: without --predict-only");
  combine_run run = {.rows = json_array()};
  int code = combine_platform_read(&run.platform, args_text(args, "platform"));
  if (code) {
    json_decref(run.rows);
    return code;
  }
  dt_combine_bench_config_init(&run.config);
  run.config.ranks = (int32_t)args_int(args, "ranks");
  run.config.repeat = (int32_t)args_int(args, "repeat");
  run.config.case_count = combine_cases(args, NULL);
  run.cases = calloc((size_t)run.config.case_count, sizeof *run.cases);
  run.predictions = malloc((size_t)run.config.case_count * sizeof *run.predictions);
  run.config.cases = run.cases;
  run.config.done = done;
  run.config.context = &run;
  if (args_set(args, "timestamps")) run.config.window_s = run.platform.capacity_bytes / run.platform.rate_bytes_per_s;
  if (isnan(run.config.window_s))
    code = log_fail(TOOL_USAGE, "--timestamps: without the link's rate and capacity; allowed: with --platform");
  if (code) {
  } else if (run.cases && run.predictions && run.rows) {
    combine_cases(args, run.cases);
    for (int64_t i = 0; i < run.config.case_count; i++)
      run.predictions[i] = (combine_prediction){NAN, NAN, NAN, NAN, NAN, NAN};
    code = measure(&run, args);
  } else {
    code = log_out_of_memory();
  }
  json_decref(run.rows);
  dt_platform_destroy(run.platform.platform);
  free(run.cases), free(run.predictions);
  return code;
}

static const arg_option options[] = {
    OPT_INT("ranks", "W", "2", 2, 8, "ranks, a GPU each; where there are fewer they share them"),
    OPT_INTS("rows", "M,..", "16384", 2, 16777216, "rows a rank on average, even"),
    OPT_INTS("n", "N,..", "8192", 8, 4194304, "columns of the output, a multiple of 8"),
    OPT_INTS("k", "K,..", "2048", 8, 1073741824, "columns of the input, a multiple of 8"),
    OPT_INTS("experts", "E,..", "8", 1, 4000, "experts a rank"),
    OPT_LIST("router", "ROUTERS", "balanced", bench_combine_routers,
             "how rows fall on experts; crossed: all to the peer"),
    OPT_LIST("mode", "MODES", "loop,grouped,bulk,signal,direct", method_names, "what is timed, in turns"),
    OPT_INTS("consumers", "C,..", "16", 2, 64, "signal: multiprocessors that send, even"),
    OPT_INTS("segment-bands", "B,..", "1", 1, 1048576, "signal: interior bands that travel together"),
    OPT_INTS("raster-bands", "R,..", "4", 2, 65536, "signal: bands that run column by column together, even"),
    OPT_LIST("layout", "LAYOUTS", "packed", layout_names, "of an expert's rows"),
    OPT_LIST("order", "ORDERS", "natural", order_names, "of bands and segments"),
    OPT_LIST("launch", "FORMS", "one", launch_names, "signal: consumers in the GEMM's launch or a kernel of their own"),
    OPT_LIST("entry", "FORMS", "beside", entry_names, "tiles while the ranks meet, or after"),
    OPT_LIST("pacing", "FORMS", "auto", pacing_names, "direct, natural order: mixing an expert's bands"),
    OPT_INT("repeat", "N", "20", 0, 10000, "samples of each mode; 0: the checks alone"),
    OPT_TEXT("platform", "FILE", NULL, "platform file: the link's rate, the limit's constants, the prediction"),
    OPT_FLAG("timestamps", "how many multiprocessors of direct store at once, from one more run; needs --platform"),
    OPT_FLAG("no-prediction", "do not simulate the settings before the run"),
    OPT_FLAG("predict-only", "simulate the settings and end; needs --platform, and no GPU"),
    OPTION_SEED,
    OPTION_JSON,
};

const tool_command command_bench_combine = {
    .name = "combine",
    .summary = "a GEMM by experts and the return of its rows to their owners, on GPUs",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run_command,
    .notes =
        "Every combination of the lists is a setting; buffers are made once. Times are of the slowest rank. signal\n"
        "and direct must equal bulk to the bit. Where ranks share a GPU nothing crosses a link, and there are no\n"
        "baselines. Exits with 77 where there is no GPU.",
};
