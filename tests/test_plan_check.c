/* The checker finds planted damage of every kind and says which rule broke. */
#include "test_plan_support.h"

#include <stdio.h>

/* The plan's arrays lie in its own block, so a test may write to them. */
#define BAND(plan, i) (((dt_band *)(plan)->bands)[i])
#define GROUP(plan, i) (((dt_group *)(plan)->groups)[i])
#define PART(plan, i) (((dt_part *)(plan)->parts)[i])
#define SEGMENT(plan, i) (((dt_segment *)(plan)->segments)[i])
#define DISPATCH(plan, i) (((dt_dispatch *)(plan)->dispatch)[i])
#define TASK(plan, i) (((dt_task *)(plan)->tasks)[i])
#define ORDER(plan, i) (((int32_t *)(plan)->band_order)[i])
#define SEGMENT_ORDER(plan, i) (((int32_t *)(plan)->segment_order)[i])

static int64_t find(const dt_plan *plan, dt_phase phase) {
  for (int64_t i = 0; i < plan->task_count; i++) {
    if (plan->tasks[i].phase == (int32_t)phase) return i;
  }
  fail_msg("no %s task", dt_phase_name(phase));
  return -1;
}

static void swap(dt_plan *plan, int64_t a, int64_t b) {
  dt_task kept = TASK(plan, a);
  TASK(plan, a) = TASK(plan, b);
  TASK(plan, b) = kept;
}

static void group_row(dt_plan *p) {
  GROUP(p, 1).row++;
}
static void group_rows(dt_plan *p) {
  GROUP(p, 0).rows--;
}
static void group_owner(dt_plan *p) {
  GROUP(p, 0).owner = p->config.rank;
}
static void group_dst(dt_plan *p) {
  GROUP(p, 2).dst_row++;
}
static void group_missing(dt_plan *p) {
  p->group_count--;
}
static void rows_total(dt_plan *p) {
  p->rows++;
}
static void padding_total(dt_plan *p) {
  p->padded_rows++;
}
static void combine_total(dt_plan *p) {
  p->combine_rows--;
}
static void band_row(dt_plan *p) {
  BAND(p, 1).row--;
}
static void band_rows(dt_plan *p) {
  BAND(p, 0).rows--;
}
static void band_remote(dt_plan *p) {
  BAND(p, 0).remote_rows = 0;
}
static void band_expert(dt_plan *p) {
  BAND(p, 0).expert = 1;
}
static void band_missing(dt_plan *p) {
  p->band_count--;
}
static void part_owner(dt_plan *p) {
  PART(p, 0).owner = p->config.rank;
}
static void part_dst(dt_plan *p) {
  PART(p, 1).dst_row--;
}
static void part_overlap(dt_plan *p) {
  PART(p, 1).row--;
}
static void part_shared(dt_plan *p) {
  BAND(p, 1).first_part--;
}
static void segment_dst(dt_plan *p) {
  SEGMENT(p, 1).dst_row++;
}
static void segment_rows(dt_plan *p) {
  SEGMENT(p, 0).rows--;
}
static void segment_bands(dt_plan *p) {
  SEGMENT(p, 0).bands++;
}
static void segment_band(dt_plan *p) {
  SEGMENT(p, 1).first_band = 0;
}
/* The last band of a full interior segment goes to the shorter one behind it. */
static void segment_early_short(dt_plan *p) {
  for (int32_t i = 0; i + 1 < p->segment_count; i++) {
    dt_segment *full = &SEGMENT(p, i), *next = &SEGMENT(p, i + 1);
    if (full->bands < 2 || next->owner != full->owner || next->expert != full->expert) continue;
    full->bands--;
    full->rows -= p->config.tile_m;
    next->bands++;
    next->first_band--;
    next->rows += p->config.tile_m;
    next->row -= p->config.tile_m;
    next->dst_row -= p->config.tile_m;
    return;
  }
  fail_msg("no interior segment of several bands");
}
static void segment_missing(dt_plan *p) {
  p->segment_count--;
}
static void order_twice(dt_plan *p) {
  ORDER(p, 1) = ORDER(p, 0);
}
static void order_range(dt_plan *p) {
  ORDER(p, 1) = p->band_count;
}
static void segment_order_twice(dt_plan *p) {
  SEGMENT_ORDER(p, 1) = SEGMENT_ORDER(p, 0);
}
static void segment_order_early(dt_plan *p) {
  int32_t last = p->segment_count - 1, kept = SEGMENT_ORDER(p, 0);
  SEGMENT_ORDER(p, 0) = SEGMENT_ORDER(p, last);
  SEGMENT_ORDER(p, last) = kept;
}
static void dispatch_row(dt_plan *p) {
  DISPATCH(p, p->dispatch_count - 1).row++;
}
static void dispatch_band(dt_plan *p) {
  DISPATCH(p, p->dispatch_count - 1).band++;
}
static void dispatch_source(dt_plan *p) {
  DISPATCH(p, 0).src_row++;
}
static void dispatch_rows(dt_plan *p) {
  DISPATCH(p, p->dispatch_count - 1).rows--;
}
static void dispatch_peer(dt_plan *p) {
  DISPATCH(p, 0).peer = p->config.ranks;
}
static void dispatch_twice(dt_plan *p) {
  DISPATCH(p, 1) = DISPATCH(p, 0);
}
static void dispatch_late_own(dt_plan *p) {
  dt_dispatch kept = DISPATCH(p, 0);
  DISPATCH(p, 0) = DISPATCH(p, p->dispatch_count - 1);
  DISPATCH(p, p->dispatch_count - 1) = kept;
}
static void task_dispatch_late(dt_plan *p) {
  swap(p, p->dispatch_tasks - 1, find(p, DT_PHASE_L1));
}
static void task_dispatch_order(dt_plan *p) {
  swap(p, 0, 1);
}
static void task_shared_late(dt_plan *p) { /* the last of them, so that they stay in order */
  swap(p, find(p, DT_PHASE_SHARED) + p->config.shared_blocks - 1, find(p, DT_PHASE_L1));
}
static void task_shared_order(dt_plan *p) {
  swap(p, find(p, DT_PHASE_SHARED), find(p, DT_PHASE_SHARED) + 1);
}
static void task_twice(dt_plan *p) {
  TASK(p, find(p, DT_PHASE_L1) + 1) = TASK(p, find(p, DT_PHASE_L1));
}
static void task_column_twice(dt_plan *p) { /* and another of its band's missing: as many tiles as there should be */
  const int64_t first = find(p, DT_PHASE_L1);
  int64_t other = first + 1;
  while (p->tasks[other].index != p->tasks[first].index) other++;
  assert_int_equal(p->tasks[other].phase, DT_PHASE_L1);
  TASK(p, other).column = p->tasks[first].column;
}
static void task_l2_early(dt_plan *p) {
  swap(p, find(p, DT_PHASE_L1), find(p, DT_PHASE_L2));
}
static void task_column(dt_plan *p) {
  TASK(p, find(p, DT_PHASE_L2)).column = p->config.columns_2;
}
static void task_band(dt_plan *p) {
  TASK(p, find(p, DT_PHASE_L1)).index = -1;
}
static void task_phase(dt_plan *p) {
  TASK(p, find(p, DT_PHASE_L1)).phase = DT_PHASE_SEGMENT;
}
static void task_reduce_early(dt_plan *p) {
  swap(p, find(p, DT_PHASE_REDUCE), find(p, DT_PHASE_L2));
}
static void task_reduce_twice(dt_plan *p) {
  TASK(p, p->task_count - 1) = TASK(p, p->task_count - 2);
}
static void task_missing(dt_plan *p) {
  p->task_count--;
}
static void task_dispatch_count(dt_plan *p) {
  p->dispatch_tasks--;
}

typedef struct damage {
  const char *name, *rule; /* how the detail begins */
  void (*plant)(dt_plan *plan);
} damage;

#define DAMAGE(function, rule)                                                                                         \
  { #function, rule, function }

static const damage damages[] = {
    DAMAGE(group_row, "group 1:"),
    DAMAGE(group_rows, "group 0:"),
    DAMAGE(group_owner, "group 0:"),
    DAMAGE(group_dst, "group 2: dst_row"),
    DAMAGE(group_missing, "groups:"),
    DAMAGE(rows_total, "rows:"),
    DAMAGE(padding_total, "padded_rows:"),
    DAMAGE(combine_total, "combine_rows:"),
    DAMAGE(band_row, "band 1:"),
    DAMAGE(band_rows, "band 0:"),
    DAMAGE(band_remote, "band 0:"),
    DAMAGE(band_expert, "band 0:"),
    DAMAGE(band_missing, "parts:"),
    DAMAGE(part_owner, "part 0:"),
    DAMAGE(part_dst, "part 1: dst_row"),
    DAMAGE(part_overlap, "part 1:"),
    DAMAGE(part_shared, "band 1: parts"),
    DAMAGE(segment_dst, "segment 1:"),
    DAMAGE(segment_rows, "segment "),
    DAMAGE(segment_bands, "segment 0:"),
    DAMAGE(segment_band, "segment 1:"),
    DAMAGE(segment_early_short, "segment "),
    DAMAGE(segment_missing, "segments:"),
    DAMAGE(order_twice, "band_order[1]:"),
    DAMAGE(order_range, "band_order[1]:"),
    DAMAGE(segment_order_twice, "segment_order[1]:"),
    DAMAGE(segment_order_early, "segment_order["),
    DAMAGE(dispatch_row, "dispatch "),
    DAMAGE(dispatch_band, "dispatch "),
    DAMAGE(dispatch_source, "dispatch 0:"),
    DAMAGE(dispatch_rows, "dispatch: row"),
    DAMAGE(dispatch_peer, "dispatch 0: peer"),
    DAMAGE(dispatch_twice, "dispatch 1: row"),
    DAMAGE(dispatch_late_own, "dispatch "),
    DAMAGE(task_dispatch_late, "task "),
    DAMAGE(task_dispatch_order, "task 0: dispatch 1"),
    DAMAGE(task_shared_late, "task "),
    DAMAGE(task_shared_order, "task "),
    DAMAGE(task_twice, "task "),
    DAMAGE(task_column_twice, "task "),
    DAMAGE(task_l2_early, "task "),
    DAMAGE(task_column, "task "),
    DAMAGE(task_band, "task "),
    DAMAGE(task_phase, "task "),
    DAMAGE(task_reduce_early, "task "),
    DAMAGE(task_reduce_twice, "task "),
    DAMAGE(task_missing, "reduction tasks:"),
    DAMAGE(task_dispatch_count, "dispatch tasks:"),
};

/* Three ranks, two experts, groups of several bands each. */
static const int32_t counts[3 * 6] = {9, 12, 30, 17, 5, 8, 14, 3, 21, 25, 7, 6, 4, 11, 19, 33, 2, 13};

static dt_plan_config config_of(int layout, int order, int schedule) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = 3;
  config.experts_per_rank = 2;
  config.rank = 1;
  config.tile_m = 8;
  config.layout = (dt_layout)layout;
  config.order = (dt_order)order;
  config.schedule = (dt_schedule)schedule;
  config.columns_1 = 3;
  config.columns_2 = 2;
  config.dispatch = 1;
  config.shared_blocks = 2;
  config.reduce_blocks = 2;
  return config;
}

static void damage_is_found(void **state) {
  (void)state;
  for (int variant = 0; variant < 2 * 3 * 6; variant++) {
    dt_plan_config config = config_of(variant % 2, variant / 2 % 3, variant / 6);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
      dt_plan *plan = plan_new(&config, counts);
      damages[i].plant(plan);
      dt_status status = dt_plan_check(plan, counts);
      if (status != DT_ERR_INTERNAL) fail_msg("%s: %s", damages[i].name, dt_status_name(status));
      if (strncmp(dt_error_detail(), damages[i].rule, strlen(damages[i].rule)) != 0) {
        fail_msg("%s: \"%s\" should begin \"%s\"", damages[i].name, dt_error_detail(), damages[i].rule);
      }
      dt_plan_destroy(plan);
    }
  }
}

/* A plan is right for its own counts only. */
static void other_counts_are_found(void **state) {
  (void)state;
  for (size_t i = 0; i < 18; i++) {
    int32_t other[18];
    dt_plan_config config = config_of(0, 2, 2);
    dt_plan *plan = plan_new(&config, counts);
    memcpy(other, counts, sizeof counts);
    other[i]++;
    /* The last source's rows for its own last expert come behind everything that rank 1 knows or sends. */
    int unseen = i == 17;
    assert_int_equal(dt_plan_check(plan, other), unseen ? DT_OK : DT_ERR_INTERNAL);
    dt_plan_destroy(plan);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(damage_is_found), cmocka_unit_test(other_counts_are_found)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
