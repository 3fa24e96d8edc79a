/* The combine of a setting as the simulator sees it: the table of the second GEMM alone. Its tiles take what the
 * platform file says; direct stores go through the platform's link as their tile ends; signal's consumers are one
 * server of the rate that as many SMs put at. docs/combine.md has the rules. */
#include "bench_combine.h"

#include <draintile/simulate.h>
#include <math.h>

enum {
  TILE_M = 128,
  TILE_N = 256,
  RANKS_MAX = 8,
  SMS = 132, /* of an H200: platform files do not say */
  GEMM_RASTER = 16,
  SIGNAL_RASTER = 4
};
/* A tile of 64 rows takes 0.63 of a whole one's time (src/cuda/tile_table.h): base and rows of a straight line. */
static const double base_share = 0.26;

/* A multiprocessor's time for a whole tile: the tile engine's own or, if the file has none, at the best rate of the
 * file's GEMM table. */
static double tile_time(const combine_platform *p, int64_t k) {
  const dt_platform_table *table = dt_platform_find_table(p->platform, "tile_s", NULL, NULL, NULL);
  const double at[1] = {(double)k};
  dt_interval interval;
  if (table && table->argument_count == 1 && dt_platform_interpolate(table, at, &interval, NULL) == DT_OK)
    return interval.value;
  table = dt_platform_find_table(p->platform, "gemm_flop_per_s", NULL, NULL, NULL);
  double best = NAN;
  for (size_t i = 0; table && i < table->point_count; i++)
    if (!(table->points[i].interval.value <= best)) best = table->points[i].interval.value;
  return 2.0 * TILE_M * TILE_N * (double)k / (best / SMS);
}

/* Of `sms` multiprocessors that copy to a peer. */
static double put_rate(const dt_platform *platform, int32_t sms) {
  const dt_platform_table *table = dt_platform_find_table(platform, "put_bytes_per_s", NULL, NULL, NULL);
  const double at[2] = {16 << 20, sms};
  dt_interval interval;
  if (!table || table->argument_count != 2 || dt_platform_interpolate(table, at, &interval, NULL)) return NAN;
  return interval.value;
}

static double constant(const dt_platform *platform, const char *name) {
  dt_interval interval;
  return dt_platform_lookup(platform, name, &interval) ? NAN : interval.value;
}

static dt_status simulate(const dt_combine_bench_case *s, int32_t ranks, const int32_t *counts,
                          const combine_platform *p, dt_schedule schedule, dt_order order, double *total_s) {
  const int64_t tokens[RANKS_MAX] = {0};
  dt_sim_config config;
  dt_sim_config_init(&config);
  const int signal = schedule == DT_SCHEDULE_SIGNAL;
  config.plan.ranks = ranks;
  config.plan.experts_per_rank = s->experts;
  config.plan.tile_m = TILE_M;
  config.plan.layout = s->layout;
  config.plan.order = order;
  config.plan.segment_bands = s->segment_bands;
  config.plan.schedule = schedule;
  config.plan.columns_1 = 1;
  config.plan.columns_2 = (int32_t)((s->n + TILE_N - 1) / TILE_N);
  config.plan.raster_bands = signal ? (s->raster_bands ? s->raster_bands : SIGNAL_RASTER) : GEMM_RASTER;
  config.plan.dispatch = 0;
  config.workers = signal ? SMS - s->consumers : SMS;
  config.consumers = signal;
  config.row_in_bytes = 1;
  config.row_out_bytes = 2 * s->n;
  config.tokens = tokens;
  dt_sim_costs costs;
  dt_sim_costs_init(&costs);
  const double tile_s = tile_time(p, s->k);
  costs.l2_base_s = base_share * tile_s;
  costs.l2_row_s = (1 - base_share) * tile_s / TILE_M;
  if (signal) costs.copy_s_per_byte = 1 / put_rate(p->platform, s->consumers);
  costs.link_bytes_per_s = p->rate_bytes_per_s;
  costs.link_capacity_bytes = p->capacity_bytes;
  costs.link_latency_s = constant(p->platform, "link_latency_s");
  /* The entry's kernel, unless the tiles' own launch is the entry; then that launch, which need not wait for the peers;
   * after the last bytes a fence and a flag. */
  const int before = s->entry == DT_COMBINE_ENTRY_BEFORE;
  costs.entry_s = (signal || before ? 2 : 1) * constant(p->platform, "launch_s");
  if (before) costs.entry_s += constant(p->platform, "entry_barrier_s");
  const double closing_s = constant(p->platform, "fence_sys_s") + constant(p->platform, "flag_release_s");
  *total_s = NAN;
  if (isnan(tile_s) || isnan(costs.entry_s) || isnan(closing_s) || isnan(costs.copy_s_per_byte) ||
      isnan(costs.link_latency_s) || isnan(costs.link_capacity_bytes))
    return DT_OK;
  dt_sim_result result = {0};
  dt_status status = dt_simulate(&config, &costs, counts, &result, NULL);
  if (!status) *total_s = result.total_s + closing_s;
  return status;
}

/* direct: the engine's stores leave while the next tile is multiplied, and hold it up where the link does not keep up:
 * unit by unit, so that one whose rows are all remote loses what the next, all local, cannot give back. The simulator's
 * link takes a unit's excess into its queue, so this is added: the slowest rank's sum over its units of the longer of
 * compute and link, less the longer of both sums. paced_units: experts with fewer have their bands in natural order,
 * others an even share of remote rows in every unit. */
static double unit_excess(const dt_combine_bench_case *s, int32_t ranks, const int32_t *counts,
                          const combine_platform *p, int32_t paced_units) {
  const double row_compute_s = tile_time(p, s->k) / TILE_M * (double)s->n / TILE_N / SMS;
  const double row_link_s = 2.0 * (double)s->n / p->rate_bytes_per_s;
  const int64_t unit_rows = GEMM_RASTER * TILE_M, width = (int64_t)ranks * s->experts;
  double worst = 0;
  for (int32_t r = 0; r < ranks; r++) {
    double longer_s = 0, compute_s = 0, link_s = 0;
    for (int32_t e = 0; e < s->experts; e++) {
      int64_t rows = 0, remote = 0;
      for (int32_t o = 0; o < ranks; o++) {
        const int64_t count = counts[o * width + r * s->experts + e];
        rows += count;
        if (o != r) remote += count;
      }
      const int paced = rows > (paced_units - 1) * unit_rows;
      for (int64_t row = 0; row < rows; row += unit_rows) {
        const int64_t of_unit = rows - row < unit_rows ? rows - row : unit_rows;
        const int64_t in_order = remote - row < 0 ? 0 : remote - row < of_unit ? remote - row : of_unit;
        const double sent = paced ? (double)remote * (double)of_unit / (double)rows : (double)in_order;
        longer_s += fmax((double)of_unit * row_compute_s, sent * row_link_s);
      }
      compute_s += (double)rows * row_compute_s;
      link_s += (double)remote * row_link_s;
    }
    worst = fmax(worst, longer_s - fmax(compute_s, link_s));
  }
  return worst;
}

dt_status combine_predict(const dt_combine_bench_case *s, int32_t ranks, const int32_t *counts,
                          const combine_platform *p, combine_prediction *prediction) {
  *prediction = (combine_prediction){NAN, NAN, NAN, NAN, NAN, NAN};
  if (!p->platform || ranks > RANKS_MAX) return DT_OK;
  double *const signal_s[2] = {&prediction->signal_s, &prediction->signal_remote_first_s};
  double *const direct_s[2] = {&prediction->direct_natural_s, &prediction->direct_paced_s};
  dt_status status = DT_OK;
  for (int i = 0; i < 2 && !status; i++) {
    status =
        simulate(s, ranks, counts, p, DT_SCHEDULE_SIGNAL, i ? DT_ORDER_REMOTE_FIRST : DT_ORDER_NATURAL, signal_s[i]);
    if (!status)
      status = simulate(s, ranks, counts, p, DT_SCHEDULE_DIRECT, i ? DT_ORDER_PACED : DT_ORDER_NATURAL, direct_s[i]);
  }
  prediction->direct_s = s->order == DT_ORDER_PACED || s->pacing == DT_COMBINE_PACING_ON
                             ? prediction->direct_paced_s
                             : prediction->direct_natural_s +
                                   unit_excess(s, ranks, counts, p, s->pacing == DT_COMBINE_PACING_OFF ? INT32_MAX : 2);
  prediction->direct_natural_s += unit_excess(s, ranks, counts, p, INT32_MAX);
  int64_t most = 0;
  for (int32_t r = 0; r < ranks; r++) {
    int64_t rows = 0;
    for (int32_t o = 0; o < ranks; o++)
      for (int32_t e = 0; e < s->experts; e++) rows += counts[((int64_t)o * ranks + r) * s->experts + e];
    if (rows > most) most = rows;
  }
  const double tiles = (double)most * (double)s->n / (TILE_M * TILE_N);
  prediction->gemm_s = tiles / SMS * tile_time(p, s->k);
  return status;
}
