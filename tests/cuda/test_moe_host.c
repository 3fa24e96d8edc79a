/* The MoE layer's plan, phase by phase on the host: every tile once and after what it waits for, rows and owners as
 * dt_plan_create has them, dispatch and puts covering every row once. Arguments that create refuses. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/cuda_moe.h>
#include <draintile/plan.h>

#include "core/random.h"
#include "moe_phases_support.h"

enum { RANKS = 4, EXPERTS = 24, COLUMNS_1 = 3, COLUMNS_2 = 5 };

static int32_t counts[RANKS * RANKS * EXPERTS];
static int32_t memory[RANKS][16 * RANKS * RANKS * EXPERTS];
static dt_moe_scratch scratch[RANKS];
static dt_plan *plans[RANKS];

static dt_moe_plan configure(int32_t ranks, int32_t experts, int32_t rank) {
  dt_moe_plan p;
  memset(&p, 0, sizeof p);
  p.ranks = ranks;
  p.rank = rank;
  p.experts = experts;
  p.columns_1 = COLUMNS_1;
  p.columns_2 = COLUMNS_2;
  p.raster_bands = 4;
  p.piece_rows = 16;
  p.put_rows = 32;
  p.segment_bands = 1;
  p.lead = 1;
  p.group_tasks = 7;
  p.expand_rows = 16;
  p.clusters = 2;
  p.slot.top_k = 2;
  return p;
}

static void run_phases(const dt_moe_plan *p) {
  memset(memory[p->rank], 0x55, sizeof memory[0]);
  scratch[p->rank] = support_phases(p, memory[p->rank], sizeof memory[0] / sizeof memory[0][0], counts);
}

static void random_counts(dt_random *random, int32_t ranks, int32_t experts, int32_t most) {
  for (int32_t i = 0; i < ranks * ranks * experts; i++)
    counts[i] = dt_random_u64(random) % 4 == 0 ? 0 : (int32_t)(dt_random_u64(random) % (uint64_t)most);
}

/* The band whose counters are at `place`. */
static int32_t band_at(const dt_moe_plan *p, const dt_plan *plan, int32_t place) {
  return p->order == DT_ORDER_PACED ? plan->band_order[place] : place;
}

static void check_tasks(const dt_moe_plan *p, const dt_plan *plan) {
  const dt_moe_scratch *s = &scratch[p->rank];
  const int32_t l1 = dt_moe_l1_tasks(p, s), tasks = l1 + dt_moe_l2_tasks(p, s);
  const int32_t bands = s->first_band[p->rank * (p->experts + 1) + p->experts];
  int32_t *at = malloc((size_t)(tasks + 1) * sizeof *at); /* which task a place has */
  int32_t *seen = calloc((size_t)(bands + 1) * (COLUMNS_1 + COLUMNS_2), sizeof *seen);
  int32_t *last = calloc((size_t)bands + 1, sizeof *last); /* place of a band's last L1 task */
  for (int32_t i = 0; i < tasks; i++) at[i] = -1;
  for (int32_t i = 0; i < tasks; i++) {
    int32_t place = -1;
    const int is_l1 = i < l1;
    const dt_tile_task task = dt_moe_task(p, s, is_l1, is_l1 ? i : i - l1, &place);
    assert_in_range(place, 0, tasks - 1);
    assert_int_equal(at[place], -1);
    at[place] = i;
    for (int cta = 0; cta < 2; cta++) {
      const int32_t column = is_l1 ? task.column[cta] : task.column[cta] / 2;
      if (column >= (is_l1 ? COLUMNS_1 : COLUMNS_2)) continue;
      const int32_t band = task.band + (task.flags & DT_TILE_SHARES_ROWS ? 0 : cta);
      assert_in_range(band, 0, bands - 1);
      const dt_band *expected = &plan->bands[band_at(p, plan, band)];
      assert_int_equal(task.row[cta], expected->row);
      assert_int_equal(task.rows[cta], expected->rows);
      assert_int_equal(task.expert, expected->expert);
      assert_int_equal(seen[band * (COLUMNS_1 + COLUMNS_2) + (is_l1 ? column : COLUMNS_1 + column)]++, 0);
      if (is_l1 && place > last[band]) last[band] = place;
      if (!is_l1) assert_true(place > last[band]);
    }
  }
  for (int32_t i = 0; i < bands * (COLUMNS_1 + COLUMNS_2); i++) assert_int_equal(seen[i], 1);
  free(at), free(seen), free(last);
}

/* Bands come first in the plan's order: those of L1, or of L2. Waves of whole experts have an order of their own. */
static void check_order(const dt_moe_plan *p, const dt_plan *plan, int l1) {
  const dt_moe_scratch *s = &scratch[p->rank];
  uint8_t *seen = calloc((size_t)plan->band_count + 1, 1);
  int32_t bands = 0;
  for (int32_t i = 0; i < (l1 ? dt_moe_l1_tasks(p, s) : dt_moe_l2_tasks(p, s)); i++) {
    int32_t place;
    const dt_tile_task task = dt_moe_task(p, s, l1, i, &place);
    for (int cta = 0; cta < (task.flags & DT_TILE_SHARES_ROWS ? 1 : 2); cta++) {
      const int32_t band = band_at(p, plan, task.band + cta);
      if (!seen[band]) assert_int_equal(band, plan->band_order[bands++]);
      seen[band] = 1;
    }
  }
  assert_int_equal(bands, plan->band_count);
  free(seen);
}

/* Where slots' rows have their sources, once each; early runs first. */
static void check_sources(const dt_moe_plan *p, int32_t to) {
  const int32_t experts = p[0].experts, g = p[0].ranks * experts;
  const dt_plan *plan = plans[to];
  const int32_t bands = scratch[to].first_band[to * (experts + 1) + experts];
  uint8_t *seen = calloc((size_t)bands * DT_TILE_M + 1, 1);
  for (int32_t from = 0; from < p[0].ranks; from++)
    for (int32_t e = 0; e < experts; e++) {
      const int32_t base = dt_moe_source_base(&p[from], &scratch[from], to * experts + e);
      const int32_t *rows = scratch[from].combine_row + from * (g + 1) + to * experts + e;
      for (int32_t c = rows[0]; c < rows[1]; c++) {
        const int32_t at = base + c, band = at / DT_TILE_M, row = at % DT_TILE_M;
        assert_in_range(band, 0, bands - 1);
        assert_int_equal(plan->bands[band].expert, e);
        assert_true(row < plan->bands[band].rows);
        assert_int_equal(seen[at]++, 0);
        const uint64_t home = dt_moe_row_target(&p[to], &scratch[to], (int32_t)plan->bands[band].row + row);
        assert_true(home == ((uint64_t)(uint32_t)from << 32 | (uint32_t)c));
      }
    }
  int32_t rows = 0;
  for (int32_t i = 0; i < bands * DT_TILE_M; i++) rows += seen[i];
  assert_int_equal(rows, plan->rows);
  free(seen);
}

/* With dedup every row of this rank is copied once, by a piece inside its band; rows without others' first, as L1. */
static void check_expands(const dt_moe_plan *p) {
  const dt_moe_scratch *s = &scratch[p->rank];
  const dt_plan *plan = plans[p->rank];
  uint8_t *seen = calloc((size_t)plan->rows + 1, 1);
  int64_t rows = 0;
  int32_t before = -1, behind = 0; /* pieces must follow the order of their bands' L1 tasks, expert by expert */
  for (int32_t i = 0; i < dt_moe_pieces(p, s); i++) {
    const dt_layer_piece piece = dt_moe_piece(p, s, i);
    const dt_band *band = &plan->bands[piece.band];
    assert_in_range(piece.rows, 1, p->expand_rows);
    assert_int_equal(piece.peer, p->rank);
    assert_int_equal(piece.from / DT_TILE_M, piece.band);
    assert_int_equal(piece.from % DT_TILE_M, piece.to - band->row);
    assert_true(piece.to + piece.rows <= band->row + band->rows);
    for (int32_t n = 0; n < piece.rows; n++, rows++) assert_int_equal(seen[piece.to + n]++, 0);
    behind += band->expert < before;
    before = band->expert;
  }
  assert_int_equal(rows, plan->rows);
  assert_true(behind <= 1); /* back to the first expert once, with the late runs */
  free(seen);
}

/* Until L1 has a row of another rank, it has as many tasks as were asked for, if there are as many early ones. */
static void check_ahead(const dt_moe_plan *p) {
  const dt_moe_scratch *s = &scratch[p->rank];
  const int32_t l1 = dt_moe_l1_tasks(p, s), wanted = p->ahead * p->clusters, g = p->rank * p->experts;
  int32_t first_remote = l1;
  for (int32_t i = 0; i < l1; i++) {
    int32_t place, remote = 0;
    const dt_tile_task task = dt_moe_task(p, s, 1, i, &place);
    const int32_t end = s->first_row[p->rank * (p->experts + 1) + task.expert + 1];
    const int32_t own = end - dt_moe_count(p, s, p->rank, g + task.expert);
    for (int cta = 0; cta < 2; cta++) remote |= task.row[cta] < own;
    if (remote && i < first_remote) first_remote = i;
  }
  assert_true(first_remote >= wanted || s->early[p->experts] < wanted);
}

/* Every row of every rank gets its tokens once, from the source that the plan names. */
static void check_copies(const dt_moe_plan *p) {
  const int32_t g = p[0].ranks * p[0].experts;
  for (int32_t to = 0; to < p[0].ranks; to++) {
    const dt_plan *plan = plans[to];
    int64_t *source = malloc(((size_t)plan->rows + 1) * sizeof *source);
    for (int64_t i = 0; i < plan->rows; i++) source[i] = -1;
    for (int32_t from = 0; from < p[0].ranks; from++)
      for (int32_t i = 0; i < scratch[from].piece[g]; i++) {
        const dt_layer_piece piece = dt_moe_piece(&p[from], &scratch[from], i);
        if (piece.peer != to) continue;
        assert_in_range(piece.rows, 1, p[0].piece_rows);
        const dt_band *band = &plan->bands[band_at(&p[to], plan, piece.band)];
        assert_true(piece.to >= band->row && piece.to + piece.rows <= band->row + band->rows);
        for (int32_t n = 0; n < piece.rows; n++) {
          assert_int_equal(source[piece.to + n], -1);
          source[piece.to + n] = (int64_t)from << 32 | (piece.from + n);
        }
      }
    uint8_t *put = calloc((size_t)plan->rows + 1, 1);
    for (int32_t i = 0; i < scratch[to].put[g]; i++) {
      const dt_layer_piece piece = dt_moe_put(&p[to], &scratch[to], i);
      for (int32_t n = 0; n < piece.rows; n++) {
        assert_int_equal(put[piece.from + n]++, 0);
        assert_true(source[piece.from + n] == ((int64_t)piece.peer << 32 | (piece.to + n)));
      }
    }
    for (int32_t n = 0; n < plan->group_count; n++)
      for (int64_t i = 0; i < plan->groups[n].rows; i++) {
        const dt_group *group = &plan->groups[n];
        const int64_t row = group->row + i, home = (int64_t)group->owner << 32 | (group->dst_row + i);
        assert_true(source[row] == home);
        assert_true(dt_moe_row_target(&p[to], &scratch[to], (int32_t)row) == (uint64_t)home);
        assert_int_equal(put[row], group->owner != to);
      }
    free(source), free(put);
  }
}

/* What is put is what the plan's segments hold, one segment after the other, each once its bands are stored. */
static void check_segments(const dt_moe_plan *p, const dt_plan_config *like) {
  const dt_moe_scratch *s = &scratch[p->rank];
  dt_plan_config config = *like;
  dt_plan *plan;
  config.segment_bands = p->segment_bands;
  assert_int_equal(dt_plan_create(&config, counts, &plan), DT_OK);
  int32_t piece = 0;
  const int32_t pieces = s->put[p->ranks * p->experts];
  for (int32_t i = 0; i < plan->segment_count; i++) {
    const dt_segment *segment = &plan->segments[plan->segment_order[i]];
    for (int64_t row = 0; row < segment->rows; piece++) {
      assert_true(piece < pieces);
      const dt_layer_piece put = dt_moe_put(p, s, piece);
      assert_int_equal(put.from, segment->row + row);
      assert_int_equal(put.to, segment->dst_row + row);
      assert_int_equal(put.peer, segment->owner);
      assert_int_equal(put.band, segment->first_band);
      for (int32_t band = put.band; band < put.band + put.bands; band++)
        assert_int_equal(band_at(p, plan, dt_moe_band_place(p, s, band)), band);
      assert_int_equal(put.bands, segment->bands);
      assert_in_range(put.rows, 1, p->put_rows);
      for (int32_t band = put.band; band < put.band + put.bands; band++)
        assert_int_equal(put.band_rows, plan->bands[band].rows);
      row += put.rows;
      assert_true(row <= segment->rows);
    }
  }
  assert_int_equal(piece, pieces);
  dt_plan_destroy(plan);
}

/* all_own: every expert has bands of its own rank's rows alone. */
static void check_world(int32_t ranks, int32_t experts, int32_t most, int all_own, dt_order order, dt_random *random) {
  dt_moe_plan p[RANKS];
  random_counts(random, ranks, experts, most);
  for (int32_t g = 0; all_own && g < ranks * experts; g++) counts[g / experts * ranks * experts + g] += 2 * DT_TILE_M;
  for (int32_t r = 0; r < ranks; r++) {
    p[r] = configure(ranks, experts, r);
    p[r].order = (int32_t)order;
    dt_plan_config config;
    dt_plan_config_init(&config);
    config.ranks = ranks;
    config.rank = r;
    config.experts_per_rank = experts;
    config.tile_m = DT_TILE_M;
    config.layout = DT_LAYOUT_PACKED;
    config.order = order;
    assert_int_equal(dt_plan_create(&config, counts, &plans[r]), DT_OK);
    const struct {
      int32_t lead, group_tasks, wave_experts, alternate;
    } forms[] = {{DT_LAYER_LEAD_ALL, 1, 0, 0},
                 {0, 1, 0, 0},
                 {0, 40, 0, 0},
                 {0, 1, 3, 0},
                 {1, 1, 0, 0},
                 {1, 20, 0, 0},
                 {2, 9, 0, 0},
                 {50, 5, 0, 0},
                 {1, 1, 0, 1},
                 {1, 30, 0, 1},
                 {3, 9, 0, 1}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
      p[r].lead = forms[i].lead;
      p[r].group_tasks = forms[i].group_tasks;
      p[r].wave_experts = forms[i].wave_experts;
      p[r].alternate = forms[i].alternate;
      run_phases(&p[r]);
      assert_int_equal(scratch[r].first_row[r * (experts + 1) + experts], plans[r]->rows);
      check_tasks(&p[r], plans[r]);
      if (!p[r].wave_experts) check_order(&p[r], plans[r], 0);
      if (!p[r].wave_experts) check_order(&p[r], plans[r], 1);
      if (order == DT_ORDER_PACED || (order == DT_ORDER_REMOTE_FIRST && p[r].lead < DT_LAYER_LEAD_ALL)) continue;
      p[r].dedup = 1;
      for (p[r].ahead = -1; p[r].ahead < 40; p[r].ahead = 2 * p[r].ahead + 3) {
        run_phases(&p[r]);
        check_tasks(&p[r], plans[r]);
        check_order(&p[r], plans[r], 0);
        check_expands(&p[r]);
        if (p[r].ahead > 0 && ranks > 1 && all_own) check_ahead(&p[r]);
        p[r].tiles_only = 1; /* nothing is waited for: no task comes ahead of others */
        run_phases(&p[r]);
        assert_int_equal(*scratch[r].ahead, 0);
        p[r].tiles_only = 0;
      }
      p[r].dedup = p[r].ahead = 0;
    }
    run_phases(&p[r]);
    for (p[r].segment_bands = 1; p[r].segment_bands < 6; p[r].segment_bands += 2) check_segments(&p[r], &config);
    p[r].segment_bands = 1;
  }
  check_copies(p);
  for (int32_t r = 0; r < ranks; r++) check_sources(p, r);
  for (int32_t r = 0; r < ranks; r++) dt_plan_destroy(plans[r]);
}

static void test_plans(void **state) {
  (void)state;
  dt_random random = {9};
  for (int i = 0; i < 12; i++) {
    const dt_order order = (dt_order)(i % 3);
    check_world(1, 1 + i, 700, 0, order, &random);
    check_world(2, 1 + 2 * i, 300, i % 2, order, &random);
    check_world(2, 1 + i % 4, 3000, i % 2, order, &random);
    check_world(3, 5, 1 + 60 * i, i % 2, order, &random);
    check_world(4, EXPERTS, 90, i % 2, order, &random);
  }
}

/* What leaves while the table is made: half of the pieces, up to so many, as the price has it; tokens where at most an
 * eighth of the rank's rows stay; of neither any where no blocks do it. */
static void test_early(void **state) {
  (void)state;
  dt_moe_plan p = configure(2, 3, 1);
  p.dedup = 1;
  for (int32_t own = 0; own <= 2; own++) {
    for (int32_t i = 0; i < RANKS * RANKS * EXPERTS; i++) counts[i] = 0;
    counts[2 * 3] = 16 - own; /* of rank 1: to the others' first expert, and to its own last */
    counts[2 * 3 + 5] = own;
    run_phases(&p);
    const dt_moe_scratch *s = &scratch[1];
    p.early_blocks = 0;
    assert_int_equal(dt_moe_early_tokens(&p, s, 4096), 0);
    p.early_blocks = 32;
    assert_int_equal(dt_moe_early_tokens(&p, s, 4096), 1280);
    assert_int_equal(dt_moe_early_tokens(&p, s, 340), 340);
  }
  counts[2 * 3 + 5] = 3; /* of 17 */
  run_phases(&p);
  assert_int_equal(dt_moe_early_tokens(&p, &scratch[1], 4096), 0);
  p.early_share = DT_LAYER_EARLY_SHARE;
  for (int32_t pieces = 0; pieces < 1000; pieces++)
    assert_int_equal(dt_moe_early_pieces(&p, pieces), dt_layer_early_pieces(pieces));
  assert_int_equal(dt_moe_early_pieces(&p, 1), 0);
  assert_int_equal(dt_moe_early_pieces(&p, 63), 31);
  assert_int_equal(dt_moe_early_pieces(&p, 127), 63);
  assert_int_equal(dt_moe_early_pieces(&p, 6300), 64);
  p.early_blocks = 0;
  assert_int_equal(dt_moe_early_pieces(&p, 63), 0);
}

static void test_arguments(void **state) {
  (void)state;
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  dt_cuda_moe *moe = NULL;
  const dt_cuda_moe_weights weights = {0};
  assert_int_equal(dt_cuda_moe_create(&config, &weights, &moe), DT_ERR_UNSUPPORTED);
  config.size = 3;
  assert_int_equal(dt_cuda_moe_create(&config, &weights, &moe), DT_ERR_ARGUMENT);
  dt_cuda_moe_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_plans), cmocka_unit_test(test_early),
                                     cmocka_unit_test(test_arguments)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
