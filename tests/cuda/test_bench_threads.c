/* The threads of a benchmark's ranks, on the fabric of this process: all succeed, one fails, all fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"
#include "cuda/bench_threads.h"

enum { RANKS = 3 };

typedef struct rank {
  dt_comm *control, *comm;
  int32_t fails; /* before the barrier */
  int32_t met;
} rank;

static dt_status work(void *context) {
  rank *r = context;
  if (r->fails) return dt_fail(DT_ERR_DEVICE, "rank %d: broken", dt_comm_rank(r->control));
  const dt_status status = dt_comm_barrier(r->comm ? r->comm : r->control, "together");
  r->met = status == DT_OK;
  return status;
}

/* failing: bit a rank. owned: the endpoints are the ranks' own (comm), else those they would be made from. */
static dt_status run(rank *ranks, int failing, int owned) {
  dt_comm *endpoints[RANKS] = {NULL};
  assert_int_equal(dt_comm_create_local(RANKS, NULL, endpoints), DT_OK);
  dt_bench_thread threads[RANKS];
  for (int32_t r = 0; r < RANKS; r++) {
    ranks[r] = (rank){.control = endpoints[r], .comm = owned ? endpoints[r] : NULL, .fails = failing >> r & 1};
    threads[r] =
        (dt_bench_thread){.rank = &ranks[r], .work = work, .control = &ranks[r].control, .comm = &ranks[r].comm};
  }
  const dt_status status = dt_bench_threads_run(threads, RANKS);
  for (int32_t r = 0; r < RANKS; r++) dt_comm_destroy(endpoints[r]);
  return status;
}

static void all_meet(void **state) {
  (void)state;
  rank ranks[RANKS];
  for (int owned = 0; owned < 2; owned++) {
    assert_int_equal(run(ranks, 0, owned), DT_OK);
    for (int32_t r = 0; r < RANKS; r++) assert_true(ranks[r].met);
  }
}

/* Whoever waits for the rank that failed ends at once, and what is told is the cause. */
static void the_cause_is_told(void **state) {
  (void)state;
  rank ranks[RANKS];
  for (int32_t failing = 0; failing < RANKS; failing++) {
    assert_int_equal(run(ranks, 1 << failing, failing % 2), DT_ERR_DEVICE);
    assert_non_null(strstr(dt_error_detail(), "broken"));
    assert_int_equal(dt_error_detail()[strlen("rank ")] - '0', failing);
    for (int32_t r = 0; r < RANKS; r++) assert_false(ranks[r].met);
  }
  assert_int_equal(run(ranks, 7, 0), DT_ERR_DEVICE);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_meet), cmocka_unit_test(the_cause_is_told)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
