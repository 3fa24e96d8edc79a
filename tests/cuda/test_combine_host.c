/* The combine operator's host side: its tables say the same as the plan; arguments. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/combine.h>

#include "cuda/combine_tables.h"
#include "cuda/tile_gemm.h"

enum { RANKS = 4, EXPERTS = 5, N = 3000 };

/* Which owner and row a plan gives each row, found by walking the groups from the rows' side. */
static const dt_group *group_of(const dt_plan *plan, int64_t row) {
  for (int32_t g = 0; g < plan->group_count; g++)
    if (row >= plan->groups[g].row && row < plan->groups[g].row + plan->groups[g].rows) return &plan->groups[g];
  return NULL;
}

static void check_targets(const dt_plan *plan, const dt_combine_tables *tables) {
  int64_t valid = 0;
  for (int64_t row = 0; row < plan->rows; row++) {
    const dt_group *group = group_of(plan, row);
    if (group == NULL) { /* padding */
      assert_true(tables->direct[row] == DT_COMBINE_NOWHERE && tables->staged[row] == DT_COMBINE_NOWHERE);
      continue;
    }
    valid++;
    const uint64_t at = (uint64_t)(group->dst_row + row - group->row);
    assert_true(tables->direct[row] == ((uint64_t)group->owner << 32 | at));
    assert_true(tables->staged[row] == (group->owner == plan->config.rank
                                            ? (uint64_t)DT_COMBINE_OWN << 32 | at
                                            : (uint64_t)DT_COMBINE_STAGING << 32 | (uint64_t)row));
  }
  assert_int_equal(valid, plan->rows - plan->padded_rows);
}

/* Bands as the GEMM finds them from expert_rows: counters a permutation in the plan's order, but for short bands, which
 * stay in their unit. */
static void check_bands(const dt_plan *plan, const dt_combine_tables *tables) {
  int32_t band = 0;
  int64_t row = 0;
  uint8_t *taken = calloc((size_t)plan->band_count + 1, 1);
  for (int32_t e = 0; e < EXPERTS; e++) {
    const int64_t end = row + tables->expert_rows[e];
    int32_t remote = 0;
    for (; row < end; row += tables->band_rows[band++]) {
      assert_int_equal(plan->bands[band].row, row);
      assert_int_equal(tables->band_rows[band], end - row < DT_TILE_M ? end - row : DT_TILE_M);
      assert_int_equal(taken[tables->band_slot[band]]++, 0);
      remote += plan->bands[band].remote_rows > 0;
    }
    assert_int_equal(remote, (tables->remote_rows[e] + DT_TILE_M - 1) / DT_TILE_M);
  }
  assert_int_equal(band, plan->band_count);
  assert_int_equal(row, plan->rows);
  int moved = 0;
  for (int32_t at = 0; at < plan->band_count; at++) moved += tables->band_slot[plan->band_order[at]] != at;
  assert_true(moved == 0 || plan->config.order == DT_ORDER_PACED);
  free(taken);
}

static void check_chunks(const dt_plan *plan, const dt_combine_tables *tables) {
  int64_t remote = 0;
  uint8_t *sent = calloc((size_t)plan->rows + 1, 1);
  for (int32_t g = 0; g < plan->group_count; g++)
    if (plan->groups[g].owner != plan->config.rank) remote += plan->groups[g].rows;
  for (int32_t c = 0; c < tables->chunk_count; c++) {
    const dt_combine_chunk *chunk = &tables->chunks[c];
    assert_in_range(chunk->rows, 1, DT_COMBINE_CHUNK_BYTES / (2 * N));
    for (int32_t i = 0; i < chunk->rows; i++) {
      const int64_t row = chunk->row + i;
      assert_int_equal(sent[row]++, 0);
      assert_true(tables->direct[row] == ((uint64_t)chunk->owner << 32 | (uint64_t)(chunk->dst_row + i)));
      /* ready when the chunk's bands are: one of them holds the row */
      int held = 0;
      for (int32_t b = chunk->first_band; b < chunk->first_band + chunk->bands; b++)
        held |= row >= plan->bands[b].row && row < plan->bands[b].row + tables->band_rows[b];
      assert_true(held);
      remote--;
    }
  }
  assert_int_equal(remote, 0);
  free(sent);
}

static void check_tables(int32_t rank, dt_layout layout, dt_order order, int32_t segment_bands,
                         dt_combine_router router) {
  int32_t counts[RANKS * RANKS * EXPERTS];
  assert_int_equal(dt_combine_route(router, 5, RANKS, EXPERTS, 1400, counts), DT_OK);
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = RANKS;
  config.rank = rank;
  config.experts_per_rank = EXPERTS;
  config.layout = layout;
  config.order = order;
  config.segment_bands = segment_bands;
  dt_plan *plan = NULL;
  dt_combine_tables tables;
  assert_int_equal(dt_plan_create(&config, counts, &plan), DT_OK);
  assert_int_equal(dt_combine_tables_create(plan, 2 * N, &tables), DT_OK);
  check_targets(plan, &tables);
  check_bands(plan, &tables);
  check_chunks(plan, &tables);
  dt_combine_tables_destroy(&tables);
  dt_plan_destroy(plan);
}

static void test_tables(void **state) {
  (void)state;
  for (int32_t rank = 0; rank < RANKS; rank++)
    for (int32_t bands = 1; bands <= 3; bands++)
      for (int order = 0; order <= DT_ORDER_PACED; order++)
        for (int layout = 0; layout <= DT_LAYOUT_ALIGNED; layout++) {
          check_tables(rank, (dt_layout)layout, (dt_order)order, bands, DT_ROUTER_MODERATE);
          check_tables(rank, (dt_layout)layout, (dt_order)order, bands, DT_ROUTER_STRESS);
          check_tables(rank, (dt_layout)layout, (dt_order)order, bands, DT_ROUTER_CROSSED);
        }
}

static void test_arguments(void **state) {
  (void)state;
  dt_combine_config config;
  dt_combine *combine = NULL;
  dt_comm *comm = NULL;
  memset(&config, 0, sizeof config);
  assert_int_equal(dt_combine_create(&config, &combine), DT_ERR_ARGUMENT);
  dt_combine_config_init(&config);
  assert_int_equal(dt_combine_create(&config, &combine), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "comm: NULL"));
  assert_int_equal(dt_comm_create_local(1, NULL, &comm), DT_OK);
  config.comm = comm;
  assert_int_equal(dt_combine_create(&config, &combine), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "comm: local"));
  assert_null(combine);
  dt_comm_destroy(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables), cmocka_unit_test(test_arguments)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
