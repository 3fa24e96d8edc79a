#include <draintile/model.h>
#include <draintile/simulate.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "core/random.h"

enum { MOST_RANKS = 8, MOST_EXPERTS = 64 };

typedef struct world {
  dt_sim_config config;
  dt_sim_costs costs;
  int64_t tokens[MOST_RANKS];
  int32_t counts[MOST_RANKS * MOST_EXPERTS];
} world;

static void world_init(world *w, int32_t ranks, int32_t experts_per_rank) {
  memset(w, 0, sizeof *w);
  dt_sim_config_init(&w->config);
  w->config.plan.ranks = ranks;
  w->config.plan.experts_per_rank = experts_per_rank;
  w->config.plan.tile_m = 16;
  w->config.plan.columns_1 = w->config.plan.columns_2 = 1;
  w->config.plan.segment_bands = w->config.plan.raster_bands = 1;
  w->config.plan.lead = 1;
  w->config.plan.group_tasks = 2;
  w->config.workers = 1;
  w->config.consumers = 0;
  w->config.row_in_bytes = w->config.row_out_bytes = 1000;
  w->config.reduce_tokens = 16;
  w->config.tokens = w->tokens;
  dt_sim_costs_init(&w->costs);
}

static void set_schedule(world *w, dt_schedule schedule) {
  w->config.plan.schedule = schedule;
  w->config.plan.order = dt_schedule_default_order(schedule);
}

static double total(const world *w) {
  dt_sim_result result = {0};
  if (dt_simulate(&w->config, &w->costs, w->counts, &result, NULL)) fail_msg("%s", dt_error_detail());
  return result.total_s;
}

static void assert_near(double got, double want) {
  if (!(fabs(got - want) <= 1e-9 * fabs(want) + 1e-15)) fail_msg("%.12g, expected %.12g", got, want);
}

/* Rank 1 computes `bands` bands of rows that all belong to rank 0, and stores each as one burst. */
static void bursts_world(world *w, int32_t bands) {
  world_init(w, 2, 1);
  set_schedule(w, DT_SCHEDULE_DIRECT);
  w->config.plan.dispatch = 0;
  w->counts[0 * 2 + 1] = 16 * bands;
  w->costs.copy_s_per_byte = 1e-9; /* T0 = 16 us a burst of 16000 bytes */
}

static size_t stores(const dt_trace_rank *trace, double *issue_s, size_t most) {
  size_t count = 0;
  for (size_t i = 0; i < trace->span_count; i++) {
    const dt_span *span = &trace->spans[i];
    if (span->kind == DT_SPAN_STORE && count < most) issue_s[count++] = (double)(span->end_ns - span->begin_ns) * 1e-9;
  }
  return count;
}

static void single_burst(void **state) {
  (void)state;
  world w;
  bursts_world(&w, 1);
  w.costs.link_bytes_per_s = 1e8;
  w.costs.link_latency_s = 5e-6;
  for (int step = 0; step <= 8; step++) {
    double capacity = 2500.0 * step;
    w.costs.link_capacity_bytes = capacity;
    dt_burst_model model = {16e-6, 1e8, capacity};
    dt_burst_question question = {16000, 1.0, 1};
    dt_burst_prediction p;
    assert_int_equal(dt_burst_predict(&model, &question, &p), DT_OK);
    dt_sim_result result = {0};
    dt_trace_rank *traces;
    assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, &traces), DT_OK);
    double issue = 0.0;
    assert_int_equal(stores(&traces[1], &issue, 1), 1);
    assert_true(fabs(issue - p.isolated_issue_s) < 1.1e-9);
    assert_near(result.total_s, 160e-6 + 5e-6); /* the last byte drains and becomes visible */
    assert_near(result.store_stall_s, p.isolated_issue_s - 16e-6);
    dt_sim_traces_free(traces, 2);
  }
}

/* A worker that computes for G and stores V, again and again, is the sequence of dt_burst_sequence. */
static void periodic_bursts(void **state) {
  (void)state;
  enum { N = 40 };
  static const double gaps[] = {0.0, 10e-6, 60e-6, 140e-6, 200e-6}, capacities[] = {0.0, 9000.0, 40000.0, 1e9};
  for (size_t g = 0; g < 5; g++) {
    for (size_t q = 0; q < 4; q++) {
      world w;
      bursts_world(&w, N);
      w.costs.link_bytes_per_s = 1e8;
      w.costs.link_capacity_bytes = capacities[q];
      w.costs.l2_base_s = gaps[g];
      dt_burst bursts[N];
      double want[N], got[N];
      for (int i = 0; i < N; i++) bursts[i] = (dt_burst){16000, 16e-6, gaps[g]};
      assert_int_equal(dt_burst_sequence(1e8, capacities[q], bursts, N, want, NULL), DT_OK);
      dt_sim_result result = {0};
      dt_trace_rank *traces;
      assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, &traces), DT_OK);
      assert_int_equal(stores(&traces[1], got, N), N);
      for (int i = 0; i < N; i++)
        if (!(fabs(got[i] - want[i]) < 1.1e-9)) fail_msg("burst %d: %g, expected %g", i, got[i], want[i]);
      dt_sim_traces_free(traces, 2);
    }
  }
}

/* Everything returns to rank 0: its port is the bound, and it is met. */
static void many_to_one(void **state) {
  (void)state;
  world w;
  world_init(&w, 4, 1);
  set_schedule(&w, DT_SCHEDULE_DIRECT);
  w.config.plan.dispatch = 0;
  for (int g = 1; g < 4; g++) w.counts[g] = 160;
  w.costs.link_bytes_per_s = 1e8;
  w.costs.link_capacity_bytes = 32000;
  assert_near(total(&w), 160e3 / 1e8);
  w.costs.receiver_bytes_per_s = 1.5e8;
  assert_near(total(&w), 3 * 160e3 / 1.5e8);
  w.costs.receiver_bytes_per_s = 4e8; /* wide enough for three */
  double wide = total(&w);
  assert_true(wide >= 160e3 / 1e8 && wide < 1.05 * 160e3 / 1e8 + 16e3 / 4e8);
}

/* Behind a port that is slower than the link, however much so, a sender stalls by the port's rate: a faster link must
 * not make anything slower. */
static void a_port_slower_than_the_link(void **state) {
  (void)state;
  world w;
  bursts_world(&w, 6);
  w.costs.l2_row_s = 5e-6; /* what stalls hold up */
  w.costs.link_capacity_bytes = 10000;
  w.costs.receiver_bytes_per_s = 1e8; /* 160 us a burst of 16000 bytes */
  dt_sim_result open_link = {0}, result = {0};
  assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &open_link, NULL), DT_OK);
  assert_true(open_link.store_stall_s > 0);
  for (double rate = 1e8; rate < 1e17; rate *= 10) {
    w.costs.link_bytes_per_s = rate;
    assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, NULL), DT_OK);
    assert_near(result.total_s, open_link.total_s);
    assert_near(result.store_stall_s, open_link.store_stall_s);
  }
}

static void random_counts(world *w, uint64_t seed, int32_t most) {
  dt_random random = {seed};
  int32_t experts = w->config.plan.ranks * w->config.plan.experts_per_rank;
  for (int32_t s = 0; s < w->config.plan.ranks; s++) {
    w->tokens[s] = 0;
    for (int32_t g = 0; g < experts; g++) {
      int32_t count = (int32_t)dt_random_below(&random, (uint64_t)most);
      w->counts[s * experts + g] = count;
      w->tokens[s] += count;
    }
    w->tokens[s] /= 2;
  }
}

static void usual_costs(dt_sim_costs *costs) {
  costs->l1_base_s = 2e-6;
  costs->l1_row_s = 3e-6;
  costs->l1_panel_s = 7e-6;
  costs->l2_base_s = 1e-6;
  costs->l2_row_s = 2e-6;
  costs->l2_panel_s = 5e-6;
  costs->band_s_per_row = 0.5e-6;
  costs->reduce_base_s = 4e-6;
  costs->reduce_row_s = 0.2e-6;
  costs->copy_s_per_byte = 1e-10;
  costs->local_copy_s_per_byte = 0.7e-10;
  costs->put_base_s = 0.3e-6;
  costs->plan_s = 20e-6;
  costs->barrier_s = 3e-6;
}

/* One rank: no link, every task once, workers always busy. */
static void one_rank_is_the_sum_of_its_tasks(void **state) {
  (void)state;
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    if (s == DT_SCHEDULE_SIGNAL) continue;
    world w;
    world_init(&w, 1, 4);
    set_schedule(&w, (dt_schedule)s);
    random_counts(&w, 3, 60);
    usual_costs(&w.costs);
    w.costs.l1_panel_s = w.costs.l2_panel_s = 0.0;
    w.costs.barrier_s = 0.0;
    double want = w.costs.plan_s;
    for (int e = 0; e < 4; e++) {
      int rows = w.counts[e], bands = (rows + 15) / 16;
      want += bands * (2e-6 + 1e-6) + rows * (3e-6 + 2e-6 + 0.5e-6 + 1000 * 0.7e-10);
    }
    int64_t blocks = (w.tokens[0] + 15) / 16;
    want += (double)blocks * 4e-6 + (double)w.tokens[0] * 0.2e-6;
    assert_near(total(&w), want);
  }
}

/* Sixteen equal bands, four workers: a quarter of the work each. On two cores, half the speed; panels are paid for by
 * every worker that takes another expert's. */
static void workers_share_the_table_and_the_cores(void **state) {
  (void)state;
  world w;
  world_init(&w, 1, 16);
  set_schedule(&w, DT_SCHEDULE_DIRECT);
  w.config.plan.dispatch = 0;
  for (int e = 0; e < 16; e++) w.counts[e] = 16;
  w.costs.l1_base_s = 10e-6;
  w.costs.l2_base_s = 5e-6;
  assert_near(total(&w), 16 * 15e-6);
  w.config.workers = 4;
  assert_near(total(&w), 4 * 15e-6);
  w.costs.cores = 2;
  assert_near(total(&w), 8 * 15e-6);
  w.costs.cores = 3; /* all four slow down alike */
  assert_near(total(&w), 16 * 15e-6 / 3);
  w.costs.cores = 4;
  assert_near(total(&w), 4 * 15e-6);
  w.costs.l1_panel_s = 1e-6;
  assert_near(total(&w), 4 * 16e-6);
  w.costs.cache_panels = 64; /* each panel is new to the rank once */
  assert_near(total(&w), 4 * 16e-6);
}

/* Two bands of one expert with two columns, unit by unit: the order decides how often a panel is fetched. */
static void panels_follow_the_raster(void **state) {
  (void)state;
  world w;
  world_init(&w, 1, 1);
  set_schedule(&w, DT_SCHEDULE_DIRECT);
  w.config.plan.dispatch = 0;
  w.config.plan.columns_1 = 2;
  w.counts[0] = 32;
  w.costs.l1_panel_s = 1e-6;
  assert_near(total(&w), 4e-6); /* band by band: every tile changes the panel */
  w.config.plan.raster_bands = 2;
  assert_near(total(&w), 2e-6);
  w.config.plan.raster_bands = 1;
  w.costs.cache_panels = 2;
  assert_near(total(&w), 2e-6);
  w.costs.cache_panels = 1;
  assert_near(total(&w), 4e-6);
}

/* Four ranks, two of each kind of thread, all schedules: bounds, order of the stages, repeatability. */
static void bounds_and_determinism(void **state) {
  (void)state;
  for (int consumers = 0; consumers <= 2; consumers++) {
    double serial = 0.0;
    for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
      world w;
      world_init(&w, 4, 3);
      random_counts(&w, 17, 90);
      usual_costs(&w.costs);
      w.config.workers = 2;
      w.config.consumers = consumers;
      w.config.plan.columns_1 = 3;
      w.config.plan.columns_2 = 4;
      w.config.plan.raster_bands = 2;
      w.costs.link_bytes_per_s = 2e8;
      w.costs.link_capacity_bytes = 20000;
      w.costs.link_latency_s = 2e-6;
      w.costs.dispatch_backlog_bytes = s % 2 ? 5000 : 0;
      set_schedule(&w, (dt_schedule)s);
      if (s == DT_SCHEDULE_SIGNAL && consumers == 0) {
        dt_sim_result result = {0};
        assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, NULL), DT_ERR_ARGUMENT);
        assert_int_equal(strncmp(dt_error_detail(), "consumers", 9), 0);
        continue;
      }
      double rank_total[4];
      dt_sim_result result = {.rank_total_s = rank_total}, again = {0};
      assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, NULL), DT_OK);
      dt_trace_rank *traces;
      assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &again, &traces), DT_OK);
      assert_true(result.total_s == again.total_s && result.store_stall_s == again.store_stall_s);
      double compute_bound = 0.0, link_bound = 0.0, slowest = 0.0;
      for (int r = 0; r < 4; r++) {
        double work = 0.0, sent = 0.0;
        for (size_t i = 0; i < traces[r].span_count; i++) {
          const dt_span *span = &traces[r].spans[i];
          assert_true(span->end_ns >= span->begin_ns);
          if (span->kind == DT_SPAN_L1) work += 2e-6 + span->rows * 3e-6;
          if (span->kind == DT_SPAN_L2) work += 1e-6 + span->rows * 2e-6;
          if (span->kind == DT_SPAN_LINK) sent += (double)span->bytes;
        }
        int64_t remote = 0;
        for (int g = 0; g < 12; g++)
          for (int o = 0; o < 4; o++)
            if ((o == r) != (g / 3 == r)) remote += w.counts[o * 12 + g];
        assert_near(sent, (double)remote * 1000.0); /* dispatched and combined rows */
        compute_bound = fmax(compute_bound, work / 2);
        link_bound = fmax(link_bound, sent / 2e8);
        slowest = fmax(slowest, rank_total[r]);
      }
      dt_sim_traces_free(traces, 4);
      assert_true(slowest == result.total_s);
      assert_true(result.total_s >= compute_bound && result.total_s >= link_bound);
      if (s == DT_SCHEDULE_SERIAL) {
        serial = result.total_s;
        assert_near(result.dispatch_s + result.compute_s + result.combine_s + result.reduce_s + 20e-6, serial);
        assert_true(result.compute_s >= compute_bound && result.dispatch_s + result.combine_s >= link_bound);
      } else if (s == DT_SCHEDULE_DIRECT || s == DT_SCHEDULE_INTERLEAVE) {
        assert_true(result.total_s < serial);
      }
    }
  }
}

/* Long bursts of compute with cheap stores in between: the total is the larger of the two, but for the ends. */
static void overlap_is_nearly_perfect(void **state) {
  (void)state;
  for (int ratio = 1; ratio <= 3; ratio++) {
    world w;
    world_init(&w, 2, 8);
    set_schedule(&w, DT_SCHEDULE_DIRECT);
    w.config.plan.dispatch = 0;
    for (int s = 0; s < 2; s++)
      for (int g = 0; g < 16; g++) w.counts[s * 16 + g] = 160;
    w.costs.l2_row_s = 1e-6; /* 2560 rows a rank */
    w.costs.link_bytes_per_s = 1280 * 1000 / (2560e-6 * 0.4 * ratio);
    w.costs.link_capacity_bytes = 64000;
    w.costs.copy_s_per_byte = 1e-13;
    double bound = 2560e-6 * fmax(1.0, 0.4 * ratio);
    assert_true(total(&w) >= bound && total(&w) <= 1.02 * bound);
  }
}

static void faster_links_never_hurt_one_worker(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 5; seed++) {
    for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
      double previous = INFINITY, rate = 2e7;
      for (int step = 0; step < 16; step++, rate *= 1.5) {
        world w;
        world_init(&w, 3, 2);
        random_counts(&w, seed, 70);
        usual_costs(&w.costs);
        w.config.consumers = 1;
        w.config.plan.columns_2 = 2;
        w.costs.link_bytes_per_s = rate;
        w.costs.link_capacity_bytes = 30000;
        set_schedule(&w, (dt_schedule)s);
        double now = total(&w);
        assert_true(now <= previous * (1 + 1e-12));
        previous = now;
      }
      world free_link;
      world_init(&free_link, 3, 2);
      random_counts(&free_link, seed, 70);
      usual_costs(&free_link.costs);
      free_link.config.consumers = 1;
      free_link.config.plan.columns_2 = 2;
      set_schedule(&free_link, (dt_schedule)s);
      assert_true(total(&free_link) <= previous * (1 + 1e-12));
    }
  }
}

/* Spans of a track nest: sorted by begin, each ends within what is open around it. */
static int by_begin(const void *a, const void *b) {
  const dt_span *x = a, *y = b;
  if (x->track != y->track) return x->track < y->track ? -1 : 1;
  if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
  return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

static void traces_nest(void **state) {
  (void)state;
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    world w;
    world_init(&w, 3, 2);
    random_counts(&w, 23, 70);
    usual_costs(&w.costs);
    w.config.workers = 2;
    w.config.consumers = 1;
    w.costs.link_bytes_per_s = 1e8;
    w.costs.link_capacity_bytes = 10000;
    set_schedule(&w, (dt_schedule)s);
    dt_sim_result result = {0};
    dt_trace_rank *traces;
    assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, &traces), DT_OK);
    for (int r = 0; r < 3; r++) {
      assert_string_equal(traces[r].name, dt_schedule_name((dt_schedule)s));
      size_t count = traces[r].span_count;
      dt_span *spans = malloc(count * sizeof *spans);
      memcpy(spans, traces[r].spans, count * sizeof *spans);
      qsort(spans, count, sizeof *spans, by_begin);
      uint64_t open[16];
      int depth = 0;
      for (size_t i = 0; i < count; i++) {
        if (i && spans[i - 1].track != spans[i].track) depth = 0;
        while (depth && open[depth - 1] <= spans[i].begin_ns) depth--;
        assert_true(depth == 0 || spans[i].end_ns <= open[depth - 1]);
        open[depth++] = spans[i].end_ns;
        assert_true(depth < 16);
      }
      free(spans);
    }
    dt_sim_traces_free(traces, 3);
  }
}

static void no_tokens_no_time(void **state) {
  (void)state;
  world w;
  world_init(&w, 3, 2);
  usual_costs(&w.costs);
  w.config.consumers = 1;
  for (int s = DT_SCHEDULE_SIGNAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    set_schedule(&w, (dt_schedule)s);
    assert_near(total(&w), w.costs.plan_s);
  }
  set_schedule(&w, DT_SCHEDULE_SERIAL);
  assert_near(total(&w), w.costs.plan_s + 3 * w.costs.barrier_s);
}

/* A parked worker runs again a little later: each of the stalled stores and the wait for L1's rows costs it once. */
static void waking_takes_time(void **state) {
  (void)state;
  world w;
  bursts_world(&w, 10);
  w.costs.link_bytes_per_s = 1e8;
  w.costs.link_capacity_bytes = 1e9;
  w.costs.wake_s = 5e-6;
  double free_running = total(&w); /* nothing stalls; rank 0 has no reduction */
  w.costs.wake_s = 0.0;
  assert_near(free_running, total(&w));
  w.costs.link_capacity_bytes = 0.0; /* every store waits for its own drain */
  assert_near(total(&w), 10 * 160e-6);
  w.costs.wake_s = 5e-6;
  assert_near(total(&w), 10 * 165e-6);
  /* Rank 0 sends a band to rank 1, then one to rank 2, 16 us each and a latency: rank 1 asks for rows that are on their
   * way, rank 2 before they are sent. */
  for (int last = 1; last <= 2; last++) {
    double seconds[2];
    for (int wakes = 0; wakes < 2; wakes++) {
      world_init(&w, 3, 1);
      set_schedule(&w, DT_SCHEDULE_DIRECT);
      for (int to = 1; to <= last; to++) w.counts[to] = 16;
      w.costs.copy_s_per_byte = 1e-9;
      w.costs.link_bytes_per_s = 1e9;
      w.costs.link_capacity_bytes = 1e9;
      w.costs.link_latency_s = 100e-6;
      w.costs.wake_s = wakes * 5e-6;
      seconds[wakes] = total(&w);
    }
    assert_near(seconds[1], seconds[0] + 5e-6);
  }
}

/* Zeros mean the executor's defaults. */
static void defaults_of_the_plan(void **state) {
  (void)state;
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    world w;
    world_init(&w, 2, 3);
    random_counts(&w, 29, 90);
    usual_costs(&w.costs);
    w.config.workers = 2;
    w.config.consumers = 1;
    w.config.plan.columns_1 = w.config.plan.columns_2 = 3;
    set_schedule(&w, (dt_schedule)s);
    dt_plan_config *plan = &w.config.plan;
    plan->segment_bands = plan->raster_bands = plan->lead = plan->group_tasks = 0;
    double zeros = total(&w);
    plan->segment_bands = plan->lead = 1;
    plan->raster_bands = DT_BAND_PANELS;
    plan->group_tasks = s == DT_SCHEDULE_WAVE ? 12 : 4;
    assert_true(zeros == total(&w));
  }
}

/* Ends of a rank's dispatch tasks to another, in order. */
static size_t dispatch_ends(const world *w, double *ends_s, size_t most) {
  dt_sim_result result = {0};
  dt_trace_rank *traces;
  size_t count = 0;
  if (dt_simulate(&w->config, &w->costs, w->counts, &result, &traces)) fail_msg("%s", dt_error_detail());
  for (size_t i = 0; i < traces[0].span_count; i++) {
    const dt_span *span = &traces[0].spans[i];
    if (span->kind == DT_SPAN_DISPATCH && count < most) ends_s[count++] = (double)span->end_ns * 1e-9;
  }
  dt_sim_traces_free(traces, w->config.plan.ranks);
  return count;
}

/* Beside direct stores a put of dispatch waits until no more than its share lies in the link's buffer, which would hold
 * all of them; serial's do not. */
static void dispatch_keeps_to_its_share(void **state) {
  (void)state;
  enum { BANDS = 6 };
  const double drain_s = 160e-6, copy_s = 16e-6; /* of a band: 16 rows of 1000 bytes */
  double ends_s[BANDS];
  world w;
  bursts_world(&w, BANDS);
  w.config.plan.dispatch = 1;
  w.costs.link_bytes_per_s = 1e8;
  w.costs.link_capacity_bytes = 1e6;
  w.costs.dispatch_backlog_bytes = 16000;
  assert_int_equal(dispatch_ends(&w, ends_s, BANDS), BANDS);
  for (int k = 1; k < BANDS; k++) assert_near(ends_s[k], fmax((k - 1) * drain_s, k * copy_s) + copy_s);
  w.costs.dispatch_backlog_bytes = 0;
  assert_int_equal(dispatch_ends(&w, ends_s, BANDS), BANDS);
  for (int k = 0; k < BANDS; k++) assert_near(ends_s[k], (k + 1) * copy_s);
  w.costs.dispatch_backlog_bytes = 16000;
  set_schedule(&w, DT_SCHEDULE_SERIAL);
  assert_int_equal(dispatch_ends(&w, ends_s, BANDS), BANDS);
  for (int k = 0; k < BANDS; k++) assert_near(ends_s[k], (k + 1) * copy_s);
}

/* Where the link is slow, hiding pays; auto must find the least of what it priced. */
static void auto_takes_the_least(void **state) {
  (void)state;
  world w;
  world_init(&w, 4, 3);
  random_counts(&w, 5, 90);
  usual_costs(&w.costs);
  w.costs.link_bytes_per_s = 1e9;
  w.costs.link_capacity_bytes = 50000;
  w.config.consumers = 0;
  double predicted[6];
  dt_schedule schedule;
  assert_int_equal(dt_schedule_auto(&w.config, &w.costs, w.counts, &schedule, predicted), DT_OK);
  assert_true(predicted[DT_SCHEDULE_SIGNAL] == 0.0);
  for (int s = 0; s < 6; s++) {
    if (s == DT_SCHEDULE_SIGNAL) continue;
    set_schedule(&w, (dt_schedule)s);
    assert_true(predicted[s] == total(&w));
    assert_true(predicted[schedule] <= predicted[s]);
  }
  assert_true(schedule != DT_SCHEDULE_SERIAL);
}

/* More than there are bands to hold changes nothing, and takes no memory. */
static void any_number_of_held_bands(void **state) {
  (void)state;
  world w;
  world_init(&w, 4, 3);
  random_counts(&w, 5, 90);
  usual_costs(&w.costs);
  w.costs.band_s_per_row = 1e-6;
  w.config.plan.columns_1 = 2, w.config.plan.raster_bands = 4; /* a worker comes back to a band */
  set_schedule(&w, DT_SCHEDULE_DIRECT);
  w.costs.band_panels = 1000;
  const double expected = total(&w);
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
#ifndef __SANITIZE_ADDRESS__ /* which needs terabytes of addresses, and refuses as much by itself */
  const struct rlimit tight = {.rlim_cur = (rlim_t)4 << 30, .rlim_max = before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
#endif
  w.costs.band_panels = INT32_MAX;
  assert_true(total(&w) == expected);
  assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
  w.costs.band_panels = 1;
  assert_true(total(&w) > expected);
}

static void bad_arguments_name_the_field(void **state) {
  (void)state;
  world good;
  world_init(&good, 2, 2);
  dt_sim_result result = {0};
#define REFUSED(field, change)                                                                                         \
  do {                                                                                                                 \
    world w = good;                                                                                                    \
    w.config.tokens = w.tokens;                                                                                        \
    change;                                                                                                            \
    assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, NULL), DT_ERR_ARGUMENT);                      \
    if (!strstr(dt_error_detail(), field)) fail_msg("%s: %s", field, dt_error_detail());                               \
  } while (0)
  REFUSED("workers", w.config.workers = 0);
  REFUSED("consumers", w.config.consumers = -1);
  REFUSED("row_in_bytes", w.config.row_in_bytes = 0);
  REFUSED("reduce_tokens", w.config.reduce_tokens = 0);
  REFUSED("tokens", w.tokens[1] = -1);
  REFUSED("tokens", w.config.tokens = NULL);
  REFUSED("ranks", w.config.plan.ranks = 0);
  REFUSED("size", w.config.size = 1);
  REFUSED("l1_base_s", w.costs.l1_base_s = -1);
  REFUSED("link_bytes_per_s", w.costs.link_bytes_per_s = NAN);
  REFUSED("cores", w.costs.cores = INFINITY);
  REFUSED("cache_panels", w.costs.cache_panels = -1);
  REFUSED("workers, consumers: 65536, 65536; 32768 ranks may have at most 65535 threads each",
          (w.config.plan.ranks = 32768, w.config.workers = w.config.consumers = 65536));
#undef REFUSED
}

/* A span's nanoseconds end at 584 years. */
static void times_beyond_a_trace(void **state) {
  (void)state;
  world w;
  world_init(&w, 2, 1);
  w.tokens[0] = w.tokens[1] = 16;
  w.counts[0] = w.counts[3] = 16;
  dt_sim_result result = {0};
  dt_trace_rank *untouched = (dt_trace_rank *)&w, *traces = untouched;
  w.costs.entry_s = 1e12;
  assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, NULL), DT_OK);
  assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, &traces), DT_ERR_ARGUMENT);
  if (!strstr(dt_error_detail(), "costs: rank 0 ends at 1e+12 s; allowed with a trace: at most 1.8e+10 s"))
    fail_msg("%s", dt_error_detail());
  assert_ptr_equal(traces, untouched);
  w.costs.entry_s = 1e10;
  assert_int_equal(dt_simulate(&w.config, &w.costs, w.counts, &result, &traces), DT_OK);
  assert_true(traces[0].spans[0].end_ns == UINT64_C(10000000000000000000));
  dt_sim_traces_free(traces, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(single_burst),
      cmocka_unit_test(periodic_bursts),
      cmocka_unit_test(many_to_one),
      cmocka_unit_test(a_port_slower_than_the_link),
      cmocka_unit_test(one_rank_is_the_sum_of_its_tasks),
      cmocka_unit_test(workers_share_the_table_and_the_cores),
      cmocka_unit_test(panels_follow_the_raster),
      cmocka_unit_test(bounds_and_determinism),
      cmocka_unit_test(overlap_is_nearly_perfect),
      cmocka_unit_test(faster_links_never_hurt_one_worker),
      cmocka_unit_test(traces_nest),
      cmocka_unit_test(no_tokens_no_time),
      cmocka_unit_test(waking_takes_time),
      cmocka_unit_test(defaults_of_the_plan),
      cmocka_unit_test(dispatch_keeps_to_its_share),
      cmocka_unit_test(auto_takes_the_least),
      cmocka_unit_test(any_number_of_held_bands),
      cmocka_unit_test(bad_arguments_name_the_field),
      cmocka_unit_test(times_beyond_a_trace),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
