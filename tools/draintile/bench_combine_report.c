#include "bench_combine.h"

#include <math.h>
#include <stdio.h>

#include "commands.h"
#include "figures.h"
#include "table.h"

const char *const bench_combine_routers[] = {"balanced", "moderate", "stress", "crossed", NULL};
const char *const method_names[] = {"loop",       "grouped",       "bulk",   "signal",      "direct",
                                    "loop-graph", "grouped-graph", "gemm",   "cublas-gemm", "gemm-reserved",
                                    "reduce",     "exchange",      "counts", NULL};

const char *const launch_names[] = {"one", "two", NULL};
const char *const entry_names[] = {"beside", "before", NULL};
const char *const pacing_names[] = {"auto", "on", "off", NULL};

static double least(const double *samples_s, int32_t count) {
  double value = NAN;
  for (int32_t i = 0; i < count; i++)
    if (!(samples_s[i] >= value)) value = samples_s[i];
  return value;
}

static void print_setting(const dt_combine_bench_case *s) {
  printf("M %lld N %lld K %lld E %d %s", (long long)s->rows, (long long)s->n, (long long)s->k, s->experts,
         bench_combine_routers[s->router]);
  printf(" consumers %d segment %d raster %d %s %s", s->consumers, s->segment_bands, s->raster_bands,
         layout_names[s->layout], order_names[s->order]);
  printf(" launch %s entry %s pacing %s", launch_names[s->launch], entry_names[s->entry], pacing_names[s->pacing]);
}

/* Beside what the model takes for the producers of a burst: all multiprocessors. */
static void print_stores(const dt_combine_bench *bench) {
  tool_table *table =
      table_create("<direct's stores|bursts|span, median|span, p95|storing, mean|storing, most|K_act|K");
  for (int32_t r = 0; r < bench->ranks; r++) {
    const dt_store_activity *s = &bench->stores[r];
    table_cell(table, "rank %d", r);
    table_cell(table, "%lld", (long long)s->bursts);
    table_time(table, s->span_median_s);
    table_time(table, s->span_p95_s);
    table_cell(table, "%.1f", s->active_mean);
    table_cell(table, "%.0f", s->active_max);
    table_cell(table, "%.1f", s->k_act);
    table_cell(table, "%d", bench->producers);
  }
  table_print(table, stdout);
}

static json_t *stores_json(const dt_combine_bench *bench) {
  json_t *stores = json_array();
  for (int32_t r = 0; r < bench->ranks; r++) {
    const dt_store_activity *s = &bench->stores[r];
    json_array_append_new(stores, json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "bursts", json_whole(s->bursts),
                                            "bytes", json_whole(s->bytes), "active_mean", json_figure(s->active_mean),
                                            "active_max", json_figure(s->active_max), "k_act", json_figure(s->k_act),
                                            "span_mean_s", json_figure(s->span_mean_s), "span_median_s",
                                            json_figure(s->span_median_s), "span_p95_s", json_figure(s->span_p95_s)));
  }
  return json_pack("{s:o, s:i, s:o}", "window_s", json_figure(bench->window_s), "producers", (int)bench->producers,
                   "ranks", stores);
}

static void print_table(const dt_combine_bench *bench, const combine_limit *l) {
  for (int32_t r = 0; r < bench->ranks; r++)
    printf("rank %d: %lld rows, %lld padded, %lld sent, %lld received\n", r, (long long)bench->rank_rows[r],
           (long long)bench->padded_rows[r], (long long)bench->sent_rows[r], (long long)bench->received_rows[r]);
  printf("limit: compute %.1f us, link %.1f us, all with constants %.1f us\n", 1e6 * l->compute_s, 1e6 * l->link_s,
         1e6 * l->total_s);
  tool_table *table = table_create("<method|median|least|over limit|over gemm|words wrong|error");
  for (int m = 0; m < DT_METHODS; m++) {
    const dt_combine_timing *t = &bench->timings[m];
    if (!t->done) continue;
    table_cell(table, "%s", method_names[m]);
    table_time(table, t->median_s);
    table_time(table, least(t->samples_s, bench->repeat));
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

void combine_print(const dt_combine_bench *bench, const combine_limit *l, const combine_prediction *prediction,
                   int whole) {
  print_setting(&bench->setting);
  if (whole) {
    if (bench->gpus < bench->ranks)
      printf("\n%d ranks share %d GPUs: no row crosses a link", bench->ranks, bench->gpus);
    printf("\n%s x %d, %d samples; cuBLAS %s, NCCL %s; SM clock %.0f, %.0f MHz\n", bench->device, bench->gpus,
           bench->repeat, bench->cublas, bench->nccl, 1e-6 * bench->sm_hz_before, 1e-6 * bench->sm_hz_after);
    print_table(bench, l);
    if (bench->window_s > 0) print_stores(bench);
    return;
  }
  printf(": limit %.1f", 1e6 * l->total_s);
  double error = 0;
  long long wrong = 0;
  for (int m = 0; m < DT_METHODS; m++) {
    const dt_combine_timing *t = &bench->timings[m];
    if (!t->done) continue;
    if (!isnan(t->median_s)) printf(" %s %.1f", method_names[m], 1e6 * t->median_s);
    if (m < DT_METHOD_GEMM && t->words_wrong > 0) wrong += t->words_wrong;
    if (m < DT_METHOD_GEMM) figures_raise(&error, t->max_relative_error);
  }
  printf(" us; wrong %lld, error %.1e; predicted signal %.1f direct %.1f; %.2f s\n", wrong, error,
         1e6 * prediction->signal_s, 1e6 * prediction->direct_s, bench->wall_s);
  fflush(stdout);
}

json_t *combine_setting_json(const dt_combine_bench_case *s) {
  return json_pack("{s:o, s:o, s:o, s:i, s:s, s:o, s:i, s:i, s:i, s:s, s:s, s:s, s:s, s:s}", "rows",
                   json_whole(s->rows), "n", json_whole(s->n), "k", json_whole(s->k), "experts", (int)s->experts,
                   "router", bench_combine_routers[s->router], "seed", json_whole((int64_t)s->seed), "consumers",
                   (int)s->consumers, "segment_bands", (int)s->segment_bands, "raster_bands", (int)s->raster_bands,
                   "layout", layout_names[s->layout], "order", order_names[s->order], "launch", launch_names[s->launch],
                   "entry", entry_names[s->entry], "pacing", pacing_names[s->pacing]);
}

json_t *combine_prediction_json(const combine_prediction *p) {
  return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "gemm_s", json_figure(p->gemm_s), "signal_s",
                   json_figure(p->signal_s), "signal_remote_first_s", json_figure(p->signal_remote_first_s), "direct_s",
                   json_figure(p->direct_s), "direct_natural_s", json_figure(p->direct_natural_s), "direct_paced_s",
                   json_figure(p->direct_paced_s));
}

static json_t *timing_json(const dt_combine_bench *bench, int m, const combine_limit *l) {
  const dt_combine_timing *t = &bench->timings[m];
  return json_pack("{s:s, s:o, s:o, s:o, s:o, s:o}", "method", method_names[m], "median_s", json_figure(t->median_s),
                   "over_limit", json_figure(m < DT_METHOD_GEMM ? t->median_s / l->total_s : NAN), "words_wrong",
                   t->words_wrong < 0 ? json_null() : json_whole(t->words_wrong), "max_relative_error",
                   json_figure(t->max_relative_error), "samples_s", json_figures(t->samples_s, (size_t)bench->repeat));
}

json_t *combine_json(const dt_combine_bench *bench, const combine_limit *l, const combine_prediction *prediction) {
  json_t *row = combine_setting_json(&bench->setting), *timings = json_array();
  for (int m = 0; m < DT_METHODS; m++)
    if (bench->timings[m].done) json_array_append_new(timings, timing_json(bench, m, l));
  json_object_update_new(row,
                         json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "sm_hz_before",
                                   json_figure(bench->sm_hz_before), "sm_hz_after", json_figure(bench->sm_hz_after),
                                   "rank_rows", json_wholes(bench->rank_rows, (size_t)bench->ranks), "padded_rows",
                                   json_wholes(bench->padded_rows, (size_t)bench->ranks), "tiles",
                                   json_wholes(bench->tiles, (size_t)bench->ranks), "sent_rows",
                                   json_wholes(bench->sent_rows, (size_t)bench->ranks), "received_rows",
                                   json_wholes(bench->received_rows, (size_t)bench->ranks), "expert_rows_max",
                                   json_whole(bench->expert_rows_max)));
  json_object_update_new(row, json_pack("{s:{s:o, s:o, s:o, s:o, s:o, s:o}, s:o, s:o}", "limit", "compute_s",
                                        json_figure(l->compute_s), "bytes", json_whole(l->bytes), "link_s",
                                        json_figure(l->link_s), "weights_bytes", json_whole(l->weights_bytes),
                                        "weights_s", json_figure(l->weights_s), "limit_s", json_figure(l->total_s),
                                        "predicted", combine_prediction_json(prediction), "timings", timings));
  if (bench->window_s > 0) json_object_set_new(row, "stores", stores_json(bench));
  return row;
}
