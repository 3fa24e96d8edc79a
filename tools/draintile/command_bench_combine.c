/* draintile bench combine: the GEMM of a rank's experts and the return of its rows, by several methods. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <draintile/combine.h>
#include <draintile/platform.h>

#include "commands.h"
#include "figures.h"
#include "json.h"
#include "log.h"
#include "table.h"

static const char *const router_names[] = {"balanced", "moderate", "stress", "crossed", NULL};
static const char *const method_names[] = {"loop",       "grouped",       "bulk", "signal",      "direct",
                                           "loop-graph", "grouped-graph", "gemm", "cublas-gemm", "gemm-reserved",
                                           NULL};

/* What the time of a combine cannot be below on this machine. */
typedef struct limit {
  double compute_s, link_s, rate_bytes_per_s, constants_s, total_s; /* NaN: unknown without a platform file */
  int64_t bytes;                                                    /* the most that one rank sends or receives */
  double constant_s[4];
} limit;
static const char *const constant_names[4] = {"entry_barrier_s", "link_latency_s", "fence_sys_s", "flag_release_s"};

static int read_platform(const char *path, limit *l) {
  l->rate_bytes_per_s = l->constants_s = NAN;
  for (int i = 0; i < 4; i++) l->constant_s[i] = NAN;
  if (!path) return TOOL_OK;
  dt_platform *platform = NULL;
  dt_interval interval;
  if (dt_platform_load(path, &platform)) return log_status(DT_ERR_INPUT, NULL);
  dt_status status = dt_platform_lookup(platform, "rate_bytes_per_s", &interval);
  if (!status) l->rate_bytes_per_s = interval.value;
  l->constants_s = 0;
  for (int i = 0; i < 4 && !status; i++) {
    status = dt_platform_lookup(platform, constant_names[i], &interval);
    if (status) break;
    l->constant_s[i] = interval.value;
    l->constants_s += interval.value;
  }
  dt_platform_destroy(platform);
  return status ? log_status(DT_ERR_INPUT, path) : TOOL_OK;
}

static void compute_limit(const dt_combine_bench *bench, limit *l) {
  for (int32_t r = 0; r < bench->config.ranks; r++) {
    const int64_t rows = bench->sent_rows[r] > bench->received_rows[r] ? bench->sent_rows[r] : bench->received_rows[r];
    if (rows * 2 * bench->config.n > l->bytes) l->bytes = rows * 2 * bench->config.n;
  }
  l->compute_s = bench->timings[DT_METHOD_GEMM].median_s;
  if (bench->timings[DT_METHOD_CUBLAS].timed)
    l->compute_s = fmin(l->compute_s, bench->timings[DT_METHOD_CUBLAS].median_s);
  l->link_s = (double)l->bytes / l->rate_bytes_per_s;
  l->total_s = isnan(l->link_s) ? NAN : fmax(l->compute_s, l->link_s) + l->constants_s;
}

static void print(const dt_combine_bench *bench, const limit *l) {
  const dt_combine_bench_config *c = &bench->config;
  printf("%s x %d, rows a rank %lld (mean), n %lld, k %lld, experts a rank %d, router %s, seed %llu\n", bench->device,
         c->ranks, (long long)c->rows, (long long)c->n, (long long)c->k, c->experts, router_names[c->router],
         (unsigned long long)c->seed);
  printf("consumers %d, segment bands %d, raster bands %d, %d samples; cuBLAS %s, NCCL %s; SM clock %.0f, %.0f MHz\n",
         c->consumers, c->segment_bands, c->raster_bands, c->repeat, bench->cublas, bench->nccl,
         1e-6 * bench->sm_hz_before, 1e-6 * bench->sm_hz_after);
  for (int32_t r = 0; r < c->ranks; r++)
    printf("rank %d: %lld rows, %lld sent, %lld received\n", r, (long long)bench->rank_rows[r],
           (long long)bench->sent_rows[r], (long long)bench->received_rows[r]);
  printf("limit: compute %.1f us, link %.1f us, constants %.1f us\n", 1e6 * l->compute_s, 1e6 * l->link_s,
         1e6 * l->constants_s);
  tool_table *table = table_create("<method|median|least|over limit|over gemm|words wrong|error");
  for (int m = 0; m < DT_METHODS; m++) {
    const dt_combine_timing *t = &bench->timings[m];
    if (!t->timed) continue;
    double least = t->samples_s[0];
    for (int32_t i = 1; i < c->repeat; i++) least = fmin(least, t->samples_s[i]);
    table_cell(table, "%s", method_names[m]);
    table_time(table, t->median_s);
    table_time(table, least);
    table_ratio(table, m < DT_METHOD_GEMM ? t->median_s / l->total_s : NAN);
    table_ratio(table, t->median_s / bench->timings[DT_METHOD_GEMM].median_s);
    if (t->words_wrong < 0)
      table_cell(table, "-");
    else
      table_cell(table, "%lld", (long long)t->words_wrong);
    if (isnan(t->max_relative_error))
      table_cell(table, "-");
    else
      table_cell(table, "%.2e", t->max_relative_error);
  }
  table_print(table, stdout);
}

static json_t *timing_json(const dt_combine_bench *bench, int m, const limit *l) {
  const dt_combine_timing *t = &bench->timings[m];
  return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "method", method_names[m], "median_s", json_figure(t->median_s),
                   "over_limit", json_figure(m < DT_METHOD_GEMM ? t->median_s / l->total_s : NAN), "words_wrong",
                   t->words_wrong < 0 ? json_null() : json_whole(t->words_wrong), "max_relative_error",
                   json_figure(t->max_relative_error), "samples_s",
                   json_figures(t->samples_s, (size_t)bench->config.repeat));
}

static json_t *bench_json(const dt_combine_bench *bench, const limit *l) {
  const dt_combine_bench_config *c = &bench->config;
  json_t *root = json_results("draintile-bench-combine"), *timings = json_array(), *constants = json_object();
  char date[32];
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  for (int i = 0; i < 4; i++) json_object_set_new(constants, constant_names[i], json_figure(l->constant_s[i]));
  for (int m = 0; m < DT_METHODS; m++)
    if (bench->timings[m].timed) json_array_append_new(timings, timing_json(bench, m, l));
  json_object_update_new(
      root, json_pack("{s:o, s:s, s:s, s:s, s:o, s:o, s:i, s:o, s:o, s:o, s:i, s:s, s:o, s:i, s:i, s:i, s:i}", "device",
                      json_text(bench->device), "date", date, "cublas", bench->cublas, "nccl", bench->nccl,
                      "sm_hz_before", json_figure(bench->sm_hz_before), "sm_hz_after", json_figure(bench->sm_hz_after),
                      "ranks", (int)c->ranks, "rows", json_whole(c->rows), "n", json_whole(c->n), "k", json_whole(c->k),
                      "experts", (int)c->experts, "router", router_names[c->router], "seed",
                      json_whole((int64_t)c->seed), "consumers", (int)c->consumers, "segment_bands",
                      (int)c->segment_bands, "raster_bands", (int)c->raster_bands, "repeat", (int)c->repeat));
  json_object_update_new(root,
                         json_pack("{s:o, s:o, s:o, s:o}", "rank_rows", json_wholes(bench->rank_rows, (size_t)c->ranks),
                                   "sent_rows", json_wholes(bench->sent_rows, (size_t)c->ranks), "received_rows",
                                   json_wholes(bench->received_rows, (size_t)c->ranks), "expert_rows_max",
                                   json_whole(bench->expert_rows_max)));
  json_object_update_new(root, json_pack("{s:{s:o, s:o, s:o, s:o, s:o, s:o, s:o}, s:o}", "limit", "compute_s",
                                         json_figure(l->compute_s), "bytes", json_whole(l->bytes), "rate_bytes_per_s",
                                         json_figure(l->rate_bytes_per_s), "link_s", json_figure(l->link_s),
                                         "constants_s", json_figure(l->constants_s), "constants", constants, "limit_s",
                                         json_figure(l->total_s), "timings", timings));
  return root;
}

/* Bits equal to bulk's, and every method's rows near float64. */
static int verdict(const dt_combine_bench *bench) {
  int code = TOOL_OK;
  for (int m = 0; m < DT_METHOD_GEMM; m++) {
    const dt_combine_timing *t = &bench->timings[m];
    if (!t->timed) continue;
    if ((m == DT_METHOD_SIGNAL || m == DT_METHOD_DIRECT) && t->words_wrong != 0)
      code =
          log_fail(TOOL_CHECK_FAILED, "%s: %lld words differ from bulk's", method_names[m], (long long)t->words_wrong);
    if (!(t->max_relative_error <= figures_tolerance(DT_DTYPE_BF16)))
      code = log_fail(TOOL_CHECK_FAILED, "%s: relative error %g; allowed: up to %g", method_names[m],
                      t->max_relative_error, figures_tolerance(DT_DTYPE_BF16));
  }
  return code;
}

static int run(const tool_args *args) {
  dt_combine_bench_config config;
  dt_combine_bench_config_init(&config);
  limit l = {.bytes = 0};
  int code = read_platform(args_text(args, "platform"), &l);
  if (code) return code;
  config.ranks = (int32_t)args_int(args, "ranks");
  config.rows = args_int(args, "rows");
  config.n = args_int(args, "n");
  config.k = args_int(args, "k");
  config.experts = (int32_t)args_int(args, "experts");
  config.router = (dt_combine_router)args_choice(args, "router");
  config.seed = (uint64_t)args_int(args, "seed");
  config.consumers = (int32_t)args_int(args, "consumers");
  config.segment_bands = (int32_t)args_int(args, "segment-bands");
  config.raster_bands = (int32_t)args_int(args, "raster-bands");
  config.repeat = (int32_t)args_int(args, "repeat");
  config.warm_up = 3;
  const arg_value *modes = args_list(args, "mode");
  for (int i = 0; i < modes->list_count; i++) config.methods[modes->list[i]] = 1;
  dt_combine_bench *bench = NULL;
  dt_status status = dt_combine_bench_run(&config, &bench);
  if (status) return log_status(status, NULL);
  compute_limit(bench, &l);
  const char *json = args_text(args, "json");
  if (!json || strcmp(json, "-") != 0) print(bench, &l);
  code = verdict(bench);
  if (json) {
    const int written = json_write(bench_json(bench, &l), json);
    if (written) code = written;
  }
  dt_combine_bench_destroy(bench);
  return code;
}

static const char *const mode_names[] = {"loop",   "grouped",    "bulk",          "signal",
                                         "direct", "loop-graph", "grouped-graph", NULL};

static const arg_option options[] = {
    OPT_INT("ranks", "W", "2", 2, 8, "GPUs of this machine"),
    OPT_INT("rows", "M", "16384", 2, 16777216, "rows a rank on average, even"),
    OPT_INT("n", "N", "8192", 8, 4194304, "columns of the output, a multiple of 8"),
    OPT_INT("k", "K", "2048", 8, 1073741824, "columns of the input, a multiple of 8"),
    OPT_INT("experts", "E", "8", 1, 4000, "experts a rank"),
    OPT_CHOICE("router", "ROUTER", "balanced", router_names, "how rows fall on experts; crossed: all to the peer"),
    OPT_LIST("mode", "MODES", "loop,grouped,bulk,signal,direct", mode_names, "what is timed, in turns"),
    OPT_INT("consumers", "C", "16", 2, 64, "signal: multiprocessors that send, even"),
    OPT_INT("segment-bands", "B", "1", 1, 1048576, "signal: interior bands that travel together"),
    OPT_INT("raster-bands", "R", "4", 2, 65536, "signal: bands that run column by column together, even"),
    OPT_INT("repeat", "N", "20", 1, 10000, "samples of each mode"),
    OPT_TEXT("platform", "FILE", NULL, "platform file: the link's rate and the constants of the limit"),
    OPTION_SEED,
    OPTION_JSON,
};

const tool_command command_bench_combine = {
    .name = "combine",
    .summary = "a GEMM by experts and the return of its rows to their owners, on GPUs",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
    .notes = "Times are of the slowest rank. signal and direct must equal bulk to the bit. Exits with 77 where there\n"
             "are fewer GPUs than ranks.",
};
