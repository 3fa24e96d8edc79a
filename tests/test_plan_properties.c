/* Random routings over all ranks: what one rank sends is what the other expects, row for row, in every layout, order
 * and schedule. */
#include "test_plan_support.h"

#include <stdio.h>

/* Who put a row there: source rank and combine row, packed; -1 for nobody. */
static int64_t origin(int32_t rank, int64_t row) {
  return ((int64_t)rank << 40) | row;
}

static int64_t **rows_of(dt_plan *const *plans, int32_t ranks) {
  int64_t **rows = take((size_t)ranks, sizeof *rows);
  for (int32_t r = 0; r < ranks; r++) {
    rows[r] = take((size_t)plans[r]->rows, sizeof **rows);
    for (int64_t i = 0; i < plans[r]->rows; i++) rows[r][i] = -1;
  }
  return rows;
}

static void rows_free(int64_t **rows, int32_t ranks) {
  for (int32_t r = 0; r < ranks; r++) free(rows[r]);
  free(rows);
}

/* Slots to combine rows and back; rows of one expert together, slots ascending within. */
static void check_slots(const routing *r, dt_plan *const *plans) {
  for (int32_t s = 0; s < r->ranks; s++) {
    int64_t rows = 0;
    for (int64_t i = 0; i < r->tokens[s] * r->top_k; i++) {
      int32_t row = r->row_of_slot[s][i];
      if (r->ids[s][i] < 0) {
        assert_int_equal(row, -1);
        continue;
      }
      assert_in_range(row, 0, plans[s]->combine_rows - 1);
      assert_int_equal(r->slot_of_row[s][row], i);
      rows++;
    }
    assert_int_equal(rows, plans[s]->combine_rows);
    for (int64_t i = 1; i < rows; i++) {
      int32_t a = r->slot_of_row[s][i - 1], b = r->slot_of_row[s][i];
      assert_true(r->ids[s][a] < r->ids[s][b] || (r->ids[s][a] == r->ids[s][b] && a < b));
    }
  }
}

/* Every rank carries out its dispatch; then every row holds what the receiver's parts say, and padding nothing. */
static void check_dispatch(const routing *r, dt_plan *const *plans) {
  int64_t **rows = rows_of(plans, r->ranks);
  for (int32_t s = 0; s < r->ranks; s++) {
    for (int32_t i = 0; i < plans[s]->dispatch_count; i++) {
      const dt_dispatch *d = &plans[s]->dispatch[i];
      const dt_plan *peer = plans[d->peer];
      assert_in_range(d->band, 0, peer->band_count - 1);
      const dt_band *band = &peer->bands[d->band];
      assert_true(d->row >= band->row && d->row + d->rows <= band->row + peer->config.tile_m);
      for (int32_t j = 0; j < d->rows; j++) {
        int32_t slot = r->slot_of_row[s][d->src_row + j];
        assert_int_equal(r->ids[s][slot], d->peer * r->experts_per_rank + band->expert);
        assert_int_equal(rows[d->peer][d->row + j], -1);
        rows[d->peer][d->row + j] = origin(s, d->src_row + j);
      }
    }
  }
  for (int32_t p = 0; p < r->ranks; p++) {
    int64_t valid = 0;
    for (int32_t i = 0; i < plans[p]->part_count; i++) {
      const dt_part *part = &plans[p]->parts[i];
      for (int32_t j = 0; j < part->rows; j++) {
        assert_true(rows[p][part->row + j] == origin(part->owner, part->dst_row + j));
        rows[p][part->row + j] = -1;
      }
      valid += part->rows;
    }
    for (int64_t i = 0; i < plans[p]->rows; i++) assert_int_equal(rows[p][i], -1);
    assert_int_equal(plans[p]->rows - plans[p]->padded_rows, valid);
  }
  rows_free(rows, r->ranks);
}

/* Every rank sends its segments and stores its own parts: each combine row of each owner is written exactly once, by
 * the rank of the slot's expert, and remote rows by segments only. */
static void check_combine(const routing *r, dt_plan *const *plans) {
  int32_t **written = take((size_t)r->ranks, sizeof *written);
  for (int32_t s = 0; s < r->ranks; s++) written[s] = take((size_t)plans[s]->combine_rows, sizeof **written);
  for (int32_t p = 0; p < r->ranks; p++) {
    for (int32_t i = 0; i < plans[p]->segment_count; i++) {
      const dt_segment *segment = &plans[p]->segments[i];
      assert_int_not_equal(segment->owner, p);
      for (int64_t j = segment->dst_row; j < segment->dst_row + segment->rows; j++) {
        int32_t slot = r->slot_of_row[segment->owner][j];
        assert_int_equal(r->ids[segment->owner][slot], p * r->experts_per_rank + segment->expert);
        written[segment->owner][j]++;
      }
    }
    for (int32_t i = 0; i < plans[p]->part_count; i++) {
      const dt_part *part = &plans[p]->parts[i];
      if (part->owner != p) continue;
      for (int64_t j = part->dst_row; j < part->dst_row + part->rows; j++) written[p][j]++;
    }
  }
  for (int32_t s = 0; s < r->ranks; s++) {
    for (int64_t i = 0; i < plans[s]->combine_rows; i++) assert_int_equal(written[s][i], 1);
    free(written[s]);
  }
  free(written);
}

/* Own rows first; the rest takes turns from rank + 1 on, skipping peers that have all; each peer's in its own order. */
static void check_dispatch_order(const routing *r, dt_plan *const *plans) {
  int32_t *last = take((size_t)r->ranks, sizeof *last), *left = take((size_t)r->ranks, sizeof *left);
  int32_t **position = take((size_t)r->ranks, sizeof *position);
  for (int32_t p = 0; p < r->ranks; p++) {
    position[p] = take((size_t)plans[p]->band_count, sizeof **position);
    for (int32_t i = 0; i < plans[p]->band_count; i++) position[p][plans[p]->band_order[i]] = i;
  }
  for (int32_t s = 0; s < r->ranks; s++) {
    for (int32_t p = 0; p < r->ranks; p++) {
      last[p] = -1;
      left[p] = 0;
    }
    for (int32_t i = 0; i < plans[s]->dispatch_count; i++) left[plans[s]->dispatch[i].peer]++;
    int32_t turn = s;
    for (int32_t i = 0; i < plans[s]->dispatch_count; i++) {
      const dt_dispatch *d = &plans[s]->dispatch[i];
      if (left[s] == 0) {
        do turn = (turn + 1) % r->ranks;
        while (left[turn] == 0);
      }
      assert_int_equal(d->peer, turn);
      assert_true(position[d->peer][d->band] >= last[d->peer]);
      last[d->peer] = position[d->peer][d->band];
      left[d->peer]--;
    }
  }
  for (int32_t p = 0; p < r->ranks; p++) free(position[p]);
  free(position);
  free(left);
  free(last);
}

/* The band order again, by sorting the definition's keys instead of merging. */
typedef struct keyed {
  int64_t pass, rank, numerator, denominator, side;
  int32_t band;
} keyed;

static int by_key(const void *left, const void *right) {
  const keyed *a = left, *b = right;
  int64_t x = a->numerator * b->denominator, y = b->numerator * a->denominator;
  if (a->pass != b->pass) return a->pass < b->pass ? -1 : 1;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  if (x != y) return x < y ? -1 : 1;
  if (a->side != b->side) return a->side < b->side ? -1 : 1;
  return (a->band > b->band) - (a->band < b->band);
}

static void check_band_order(const dt_plan *plan) {
  int32_t experts = plan->config.experts_per_rank;
  int64_t *bands[2] = {take((size_t)experts, sizeof(int64_t)), take((size_t)experts, sizeof(int64_t))};
  int64_t *seen[2] = {take((size_t)experts, sizeof(int64_t)), take((size_t)experts, sizeof(int64_t))};
  keyed *keys = take((size_t)plan->band_count, sizeof *keys);
  for (int32_t i = 0; i < plan->band_count; i++) bands[plan->bands[i].remote_rows == 0][plan->bands[i].expert]++;
  for (int32_t i = 0; i < plan->band_count; i++) {
    int32_t e = plan->bands[i].expert, local = plan->bands[i].remote_rows == 0;
    keyed key = {.rank = e, .denominator = 1, .band = i};
    if (plan->config.order == DT_ORDER_REMOTE_FIRST) {
      key.pass = local;
      key.rank = 0;
      for (int32_t f = 0; f < experts; f++)
        key.rank += bands[0][f] > bands[0][e] || (bands[0][f] == bands[0][e] && f < e);
    } else if (plan->config.order == DT_ORDER_PACED) {
      key.side = local;
      key.numerator = 2 * seen[local][e]++ + 1;
      key.denominator = 2 * bands[local][e];
    }
    keys[i] = key;
  }
  qsort(keys, (size_t)plan->band_count, sizeof *keys, by_key);
  for (int32_t i = 0; i < plan->band_count; i++) assert_int_equal(plan->band_order[i], keys[i].band);
  for (int i = 0; i < 2; i++) {
    free(bands[i]);
    free(seen[i]);
  }
  free(keys);
}

static void check_all(const routing *r, const dt_plan_config *config) {
  dt_plan **plans = plans_new(*config, r->counts);
  check_slots(r, plans);
  check_dispatch(r, plans);
  check_combine(r, plans);
  check_dispatch_order(r, plans);
  for (int32_t p = 0; p < r->ranks; p++) check_band_order(plans[p]);
  plans_free(plans, r->ranks);
}

/* Small ones by the thousand, where edges are dense; every layout, order and schedule in turn. */
static void small_routings(void **state) {
  (void)state;
  dt_random random = {20260};
  for (int32_t turn = 0; turn < 12000; turn++) {
    routing r = routing_random(&random, random_in(&random, 1, 6), random_in(&random, 1, 6), 24);
    dt_plan_config config = config_random(&random, &r, turn);
    check_all(&r, &config);
    routing_free(&r);
  }
}

static void large_routings(void **state) {
  (void)state;
  dt_random random = {4711};
  for (int32_t turn = 0; turn < 288; turn++) {
    routing r = routing_random(&random, random_in(&random, 1, 16), random_in(&random, 1, 64), 200);
    dt_plan_config config = config_random(&random, &r, turn);
    check_all(&r, &config);
    routing_free(&r);
  }
}

/* A plan without dispatch, without tiles or with another schedule differs in nothing but what was left out. */
static void parts_are_independent(void **state) {
  (void)state;
  dt_random random = {99};
  for (int32_t turn = 0; turn < 200; turn++) {
    routing r = routing_random(&random, random_in(&random, 1, 5), random_in(&random, 1, 5), 30);
    dt_plan_config config = config_random(&random, &r, turn), less;
    config.rank = random_in(&random, 0, r.ranks - 1);
    dt_plan *whole = plan_new(&config, r.counts);
    less = config;
    less.dispatch = 0;
    dt_plan *without = plan_new(&less, r.counts);
    assert_int_equal(without->dispatch_count, 0);
    assert_int_equal(without->task_count, whole->task_count - whole->dispatch_tasks);
    assert_memory_equal(without->tasks, whole->tasks + whole->dispatch_tasks,
                        (size_t)without->task_count * sizeof *without->tasks);
    assert_memory_equal(without->band_order, whole->band_order, (size_t)whole->band_count * sizeof(int32_t));
    dt_plan_destroy(without);
    less = config;
    *(turn % 2 ? &less.columns_1 : &less.columns_2) = 0;
    without = plan_new(&less, r.counts);
    assert_int_equal(without->task_count, whole->dispatch_tasks + config.shared_blocks + config.reduce_blocks);
    dt_plan_destroy(without);
    dt_plan_destroy(whole);
    routing_free(&r);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(small_routings), cmocka_unit_test(large_routings),
                                     cmocka_unit_test(parts_are_independent)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
