/* What of the grouped GEMM needs no GPU: the task table's arithmetic and the
 * checks of arguments. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/gemm.h>

#include "core/random.h"
#include "cuda/tile_split.h"
#include "cuda/tile_table.h"
#include "plan/order.h"

/* Counts how often a task covers each piece of 64 rows by 128 columns of an
 * expert. */
static void cover(const dt_tile_task *task, int32_t first_row, int32_t rows, int32_t columns, uint8_t *covered) {
  const int shares_rows = task->flags & DT_TILE_SHARES_ROWS, turned = task->flags & DT_TILE_TURNED;
  const int wide = task->flags & DT_TILE_NARROW || turned ? 1 : 2;
  for (int i = 0; i < 2; i++) {
    const int32_t from = task->row[i] - first_row;
    assert_in_range(task->rows[i], turned ? DT_TILE_M + 1 : 0, turned ? DT_TURNED_MAX : DT_TILE_M);
    if (task->rows[i] == 0) continue; /* the upper half of a short band that was cut */
    assert_true(from >= 0 && from + task->rows[i] <= rows && from % 64 == 0);
    /* A tile ends with its expert or at a whole half band. */
    assert_true(from + task->rows[i] == rows || task->rows[i] % 64 == 0);
    if (task->column[i] >= 2 * columns) { /* beside the last of an odd number of columns */
      assert_true(shares_rows && i == 1 && columns % 2 == 1);
      continue;
    }
    assert_true(wide == 1 || task->column[i] % 2 == 0);
    for (int32_t piece = from / 64; piece * 64 < from + task->rows[i]; piece++)
      for (int j = 0; j < wide; j++) covered[piece * 2 * columns + task->column[i] + j]++;
  }
  if (turned) {
    assert_true(task->row[0] == task->row[1] && task->column[0] + 1 == task->column[1]);
  } else if (shares_rows) {
    assert_true(task->row[0] == task->row[1] && task->column[0] + 2 == task->column[1]);
  } else {
    assert_true(task->column[0] == task->column[1] && task->row[0] != task->row[1]);
  }
}

/* Which bands a run's order holds, by the plan's own rule (plan/order.h). */
static void order_of(int32_t bands, int32_t remote, int32_t *order) {
  const dt_expert_layout expert = {.bands = bands, .remote_bands = remote};
  if (remote > 0) {
    dt_expert_paced(&expert, order);
    return;
  }
  for (int32_t b = 0; b < bands; b++) order[b] = b;
}

static void every_tile_is_in_the_table_once(void **state) {
  (void)state;
  dt_random random = {7};
  int cuts[5] = {0}, turned_tasks = 0;
  for (int round = 0; round < 6000; round++) {
    const int32_t rows = 1 + (int32_t)dt_random_below(&random, round % 3 ? 700 : 9000), bands = dt_bands(rows);
    const int32_t columns = 1 + (int32_t)dt_random_below(&random, 9);
    const int32_t raster = 2 * (1 + (int32_t)dt_random_below(&random, 9)), units = (bands + raster - 1) / raster;
    const int32_t remote = round % 2 ? 0 : (int32_t)dt_random_below(&random, (uint64_t)bands + 1);
    const dt_run run = {.expert = 3,
                        .row = (int32_t)dt_random_below(&random, 100000),
                        .rows = rows,
                        .slot = 50,
                        .remote = remote,
                        .turns = remote == 0 && round % 5 < 3};
    const int32_t tasks = dt_run_tasks(&run, columns);
    const dt_cut cut = dt_cut_of(tasks, 1 + (int32_t)dt_random_below(&random, 70), (int32_t)(random.state >> 40 & 1),
                                 (int32_t)(random.state >> 41 & 1));
    cuts[cut.tasks ? cut.parts : 0]++;
    cuts[1] += cut.quarters > 0 && cut.halves > 0;
    int32_t place = 0, parts; /* in the table */
    int32_t *order = calloc((size_t)bands, sizeof *order), *slot_of = calloc((size_t)bands, sizeof *slot_of);
    order_of(bands, run.remote, order);
    for (int32_t at = 0; at < bands; at++) {
      assert_int_equal(dt_run_band(&run, at), order[at]);
      slot_of[order[at]] = run.slot + at;
    }
    uint8_t *covered = calloc((size_t)((rows + 63) / 64 * 2 * columns), 1);
    int32_t unit = 0;
    for (int32_t t = 0; t < tasks; t++) {
      const dt_tile_task task = dt_run_task(&run, columns, raster, t);
      const int shares_rows = task.flags & DT_TILE_SHARES_ROWS;
      assert_int_equal(task.expert, 3);
      const int turned = task.flags & DT_TILE_TURNED;
      turned_tasks += turned != 0;
      for (int i = 0; i < 2; i++)
        assert_int_equal(task.band + (shares_rows || turned ? 0 : i), slot_of[(task.row[i] - run.row) / DT_TILE_M]);
      assert_true((task.band - run.slot) / raster >= unit); /* unit after unit */
      unit = (task.band - run.slot) / raster;
      assert_int_equal(dt_cut_place(&cut, tasks, t, &parts), place);
      place += parts;
      for (int i = 0; i < parts; i++) {
        const dt_tile_task part = parts > 1 ? dt_part_of(task, i, parts) : task;
        cover(&part, run.row, rows, columns, covered);
      }
    }
    assert_int_equal(dt_cut_place(&cut, tasks, tasks, &parts), place);
    assert_true(place <= tasks + 2048); /* the room that a workspace has (gemm.c) */
    assert_int_equal(unit, units - 1);
    for (int32_t i = 0; i < (rows + 63) / 64 * 2 * columns; i++) assert_int_equal(covered[i], 1);
    free(covered), free(order), free(slot_of);
  }
  assert_true(cuts[0] > 100 && cuts[1] > 100 && cuts[2] > 100 && cuts[4] > 100); /* all kinds were met */
  assert_true(turned_tasks > 1000);
  const dt_run none = {0};
  assert_int_equal(dt_run_tasks(&none, 5), 0);
}

/* One band at most has no partner, the last of the order. */
static void bands_go_in_pairs(void **state) {
  (void)state;
  for (int32_t rows = 1; rows < 1500; rows++)
    for (int32_t remote = 0; remote < 4 && remote <= dt_bands(rows); remote++) {
      const dt_run run = {.rows = rows, .remote = remote};
      int32_t alone = 0;
      for (int32_t t = 0; t < dt_run_tasks(&run, 3); t++) {
        const dt_tile_task task = dt_run_task(&run, 3, 4, t);
        if (!(task.flags & DT_TILE_SHARES_ROWS)) continue;
        assert_int_equal(task.band, dt_bands(rows) - 1);
        alone++;
      }
      assert_int_equal(alone, dt_bands(rows) % 2 * 2);
    }
}

static void the_last_round_is_cut_when_it_is_short(void **state) {
  (void)state;
  const struct {
    int32_t tasks, whole_columns, cut, parts;
  } cases[] = {{2048, 1, 2, 4}, {2048, 0, 2, 2}, {1024, 1, 0, 0} /* 34 of 66 */, {33, 1, 33, 2}, {16, 1, 16, 4},
               {17, 1, 17, 2},  {0, 1, 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const dt_cut cut = dt_cut_of(cases[i].tasks, 66, cases[i].whole_columns, 0);
    assert_int_equal(cut.tasks, cases[i].cut);
    if (cut.tasks) assert_int_equal(cut.parts, cases[i].parts);
  }
}

/* A third of the clusters begins with a quarter, a third with a half. */
static void the_first_round_is_cut_where_the_link_holds_tiles_up(void **state) {
  (void)state;
  dt_cut cut = dt_cut_of(2048, 66, 1, 1);
  assert_int_equal(4 * cut.quarters, 24);
  assert_int_equal(2 * cut.halves, 22);
  cut = dt_cut_of(2048, 66, 1, 0);
  assert_int_equal(cut.quarters + cut.halves, 0);
  cut = dt_cut_of(2048, 66, 0, 1); /* no quarters of tiles that end early */
  assert_int_equal(cut.quarters + cut.halves, 0);
  cut = dt_cut_of(20, 66, 1, 1); /* all are in the last round */
  assert_int_equal(cut.quarters + cut.halves, 0);
}

/* Two owners' rows: those of owner 1 from its row 300 on, then those of owner 0 from 7000 on. */
static uint64_t target_of(int32_t row, int32_t remote) {
  return row < remote ? (uint64_t)1 << 32 | (uint32_t)(300 + row) : (uint32_t)(7000 + row - remote);
}

/* What a ragged view stores of a slab for one piece: box row i is element (z, inside + i), row z + inside + i - box of
 * the owner's buffer, where inside + i < box. row_at: of the task, -1: none, by places of 32 bytes; step: of a row. */
static void store_piece(uint64_t piece, int32_t box, int32_t view, const int32_t *row_at, int32_t step, int32_t remote,
                        int32_t *stored) {
  const int32_t inside = dt_piece_inside(piece), z = (int32_t)(piece & 0xffffffffu);
  if (!(piece >> 63)) return;
  assert_int_equal(dt_piece_at(piece) % 4, 0); /* 128 bytes: what the copy engine takes */
  for (int32_t i = 0; inside + i < box; i++) {
    const int32_t row = row_at[dt_piece_at(piece) + i * step];
    assert_true(row >= 0);
    assert_int_equal((uint64_t)(dt_piece_view(piece) - view) << 32 | (uint32_t)(z + inside + i - box),
                     target_of(row, remote));
    stored[row]++;
  }
}

/* Every row of a slab goes to its place once, and nothing else is stored. */
static void slabs_of_two_owners_leave_in_two_pieces(void **state) {
  (void)state;
  for (int32_t rows = 1; rows <= DT_SPLIT_TURNED_MAX; rows++)
    for (int32_t remote = 0; remote <= rows; remote++) {
      int32_t stored[DT_SPLIT_TURNED_MAX] = {0}, row_at[64 + 64];
      for (int32_t lane = 0; lane < 32; lane += 2) {
        const int32_t first = lane / 2 * DT_SPLIT_TURNED_SLAB, second = dt_turned_piece(lane + 1, rows, remote);
        uint64_t pieces[2];
        memset(row_at, -1, sizeof row_at);
        for (int32_t i = 0; i < DT_SPLIT_TURNED_SLAB && first + i < rows; i++) {
          const int32_t place = dt_turned_place(i, second < 0 ? DT_SPLIT_TURNED_SLAB : second - first);
          assert_true(place < DT_SPLIT_TURNED_BOX);
          row_at[place] = first + i;
        }
        for (int32_t i = 0; i < 2; i++) {
          const int32_t at = dt_turned_piece(lane + i, rows, remote);
          pieces[i] = dt_turned_target(lane + i, at < 0 ? 0 : target_of(at, remote), rows, remote);
          assert_int_equal(pieces[i] >> 62 & 1, 1);
          store_piece(pieces[i], DT_SPLIT_TURNED_BOX, DT_SPLIT_OUT, row_at, 1, remote, stored);
        }
        assert_int_equal(pieces[1] >> 63, second >= 0);
        if (second >= 0) assert_int_equal(dt_piece_begin(pieces[1]), second - first);
      }
      for (int32_t row = 0; row < rows; row++) assert_int_equal(stored[row], 1);
      for (int32_t first = 0; first < rows; first += DT_SPLIT_SLAB) {
        const int32_t last = rows - first < DT_SPLIT_SLAB ? rows - first : DT_SPLIT_SLAB;
        const int32_t meet = dt_split_meet(first, last, remote), begin = meet > 0 ? meet : last;
        memset(row_at, -1, sizeof row_at);
        for (int32_t i = 0; i < last; i++) row_at[4 * i] = first + i;
        store_piece(dt_piece(target_of(first, remote), 0, 0, begin, DT_SPLIT_SLAB), DT_SPLIT_SLAB, 0, row_at, 4, remote,
                    stored);
        if (begin < last)
          store_piece(dt_piece(target_of(first + begin, remote), begin, 4 * begin, last - begin, DT_SPLIT_SLAB),
                      DT_SPLIT_SLAB, 0, row_at, 4, remote, stored);
      }
      for (int32_t row = 0; row < rows; row++) assert_int_equal(stored[row], 2);
    }
}

static dt_cuda_gemm valid(void) {
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.a = gemm.b = gemm.out = (void *)(uintptr_t)4096; /* never followed: every call here fails before */
  gemm.counts = (const int32_t *)(uintptr_t)4096;
  gemm.experts = 4;
  gemm.rows_max = 1000;
  gemm.n = 512;
  gemm.k = 256;
  return gemm;
}

/* Experts with fewer units than asked for keep natural order, in which no band
 * counts as spread. */
static void experts_of_one_unit_stay_in_natural_order(void **state) {
  (void)state;
  assert_int_equal(dt_paced_bands(16 * DT_TILE_M, 700, 16, 2), 0);
  assert_int_equal(dt_paced_bands(16 * DT_TILE_M + 1, 700, 16, 2), 6);
  assert_int_equal(dt_paced_bands(16 * DT_TILE_M, 700, 16, 0), 6);
  assert_int_equal(dt_paced_bands(40, 40, 16, 0), 1);
  assert_int_equal(dt_paced_bands(0, 0, 16, 0), 0);
  assert_int_equal(dt_paced_bands(32 * DT_TILE_M, 5000, 16, 3), 0);
  assert_int_equal(dt_paced_bands(32 * DT_TILE_M + 1, 5000, 16, 3), 33);
}

static void refused(const dt_cuda_gemm *gemm, const char *field) {
  size_t bytes = 0;
  assert_int_equal(dt_cuda_gemm_workspace(gemm, &bytes), DT_ERR_ARGUMENT);
  assert_int_equal(strncmp(dt_error_detail(), field, strlen(field)), 0);
  assert_int_equal(dt_cuda_grouped_gemm(gemm, (void *)(uintptr_t)4096, NULL), DT_ERR_ARGUMENT);
}

static void bad_arguments_are_named(void **state) {
  (void)state;
  size_t bytes = 0;
  dt_cuda_gemm gemm = valid();
  assert_int_equal(dt_cuda_gemm_workspace(&gemm, &bytes), DT_OK);
  assert_true(bytes >= 128 + 32 * (1000 / 128 + 4));
#define DT_REFUSED(field, value)                                                                                       \
  gemm = valid();                                                                                                      \
  gemm.field = value;                                                                                                  \
  refused(&gemm, #field);
  DT_REFUSED(size, 3)
  DT_REFUSED(experts, 0)
  DT_REFUSED(experts, 4001)
  DT_REFUSED(rows_max, -1)
  DT_REFUSED(n, 12)
  DT_REFUSED(k, 0)
  DT_REFUSED(raster_bands, 3)
  DT_REFUSED(timeout_s, 5000.0)
  DT_REFUSED(dtype, DT_DTYPE_F8_E4M3)
  DT_REFUSED(order, (dt_order)3)
  DT_REFUSED(paced_units, -1)
  gemm = valid();
  gemm.b = (void *)(uintptr_t)4100;
  assert_int_equal(dt_cuda_grouped_gemm(&gemm, (void *)(uintptr_t)4096, NULL), DT_ERR_ARGUMENT);
  assert_int_equal(strncmp(dt_error_detail(), "b:", 2), 0);
  gemm = valid();
  gemm.order = DT_ORDER_PACED;
  assert_int_equal(dt_cuda_grouped_gemm(&gemm, (void *)(uintptr_t)4096, NULL), DT_ERR_ARGUMENT);
  assert_int_equal(strncmp(dt_error_detail(), "remote_rows:", 12), 0);
  gemm = valid();
  gemm.row_target = (const uint64_t *)(uintptr_t)4096;
  refused(&gemm, "owners");
  gemm.owners = 2;
  gemm.owner_rows[1] = -1;
  refused(&gemm, "owner_rows[1]");
  gemm.owner_rows[1] = 5;
  assert_int_equal(dt_cuda_grouped_gemm(&gemm, (void *)(uintptr_t)4096, NULL), DT_ERR_ARGUMENT);
  assert_int_equal(strncmp(dt_error_detail(), "owner_out[1]:", 13), 0);
  gemm = valid();
  assert_int_equal(dt_cuda_grouped_gemm(&gemm, NULL, NULL), DT_ERR_ARGUMENT);
  assert_int_equal(strncmp(dt_error_detail(), "workspace:", 10), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_tile_is_in_the_table_once),
                                     cmocka_unit_test(bands_go_in_pairs),
                                     cmocka_unit_test(slabs_of_two_owners_leave_in_two_pieces),
                                     cmocka_unit_test(the_last_round_is_cut_when_it_is_short),
                                     cmocka_unit_test(the_first_round_is_cut_where_the_link_holds_tiles_up),
                                     cmocka_unit_test(experts_of_one_unit_stay_in_natural_order),
                                     cmocka_unit_test(bad_arguments_are_named)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
