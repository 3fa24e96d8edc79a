/* Short form of the paced CPU calibration: the rate that was set comes back within 3 %, the capacity within 10 %.
 * scripts/calibrate_paced.sh runs all twelve settings, over processes. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <draintile/calibrate.h>

enum { RANKS = 2 };

typedef struct rank_call {
  dt_calibrate_config config;
  dt_platform *platform;
  dt_status status;
} rank_call;

static void *run_rank(void *argument) {
  rank_call *call = argument;
  call->status = dt_calibrate(&call->config, &call->platform);
  return NULL;
}

static void calibrate(double rate, double capacity) {
  dt_comm_config link;
  dt_comm_config_init(&link);
  link.link_bytes_per_s = rate, link.link_capacity_bytes = capacity;
  dt_comm *endpoints[RANKS];
  assert_int_equal(dt_comm_create_local(RANKS, &link, endpoints), DT_OK);
  rank_call calls[RANKS];
  pthread_t threads[RANKS];
  for (int r = 0; r < RANKS; r++) {
    calls[r].platform = NULL;
    dt_calibrate_config_init(&calls[r].config);
    calls[r].config.comm = endpoints[r], calls[r].config.quick = 1;
    assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &calls[r]), 0);
  }
  for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
  assert_int_equal(calls[0].status, DT_OK);
  assert_int_equal(calls[1].status, DT_OK);
  assert_null(calls[1].platform);
  dt_interval got;
  assert_int_equal(dt_platform_lookup(calls[0].platform, "rate_bytes_per_s", &got), DT_OK);
  if (!(fabs(got.value / rate - 1.0) <= 0.03)) fail_msg("rate %g, set %g", got.value, rate);
  assert_int_equal(dt_platform_lookup(calls[0].platform, "capacity_bytes", &got), DT_OK);
  if (!(fabs(got.value / capacity - 1.0) <= 0.10)) fail_msg("capacity %g, set %g", got.value, capacity);
  dt_platform_destroy(calls[0].platform);
  for (int r = 0; r < RANKS; r++) dt_comm_destroy(endpoints[r]);
}

static void test_slow_link(void **state) {
  (void)state;
  calibrate(20e6, 2e4);
}

static void test_fast_link(void **state) {
  (void)state;
  calibrate(1e9, 1e6);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_slow_link), cmocka_unit_test(test_fast_link)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
