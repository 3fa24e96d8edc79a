/* Where there is no GPU, with the CUDA parts in the build or without: the same defaults, and a refusal in place of
 * everything that needs one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/draintile.h>

static void defaults_are_those_of_the_headers(void **state) {
  (void)state;
  dt_cuda_gemm gemm;
  memset(&gemm, 0xff, sizeof gemm);
  dt_cuda_gemm_init(&gemm);
  assert_int_equal(gemm.size, sizeof gemm);
  assert_int_equal(gemm.tensor_stores, 1);
  assert_int_equal(gemm.order, DT_ORDER_NATURAL);
  assert_int_equal(gemm.paced_units, 0);
  assert_int_equal(gemm.raster_bands, 0);
  assert_int_equal(gemm.sms, 0);
  assert_true(gemm.timeout_s == 0);
  assert_null(gemm.row_target);

  dt_combine_config combine;
  memset(&combine, 0xff, sizeof combine);
  dt_combine_config_init(&combine);
  assert_int_equal(combine.size, sizeof combine);
  assert_int_equal(combine.consumers, 16);
  assert_int_equal(combine.segment_bands, 1);
  assert_null(combine.comm);

  dt_combine_bench_case setting;
  memset(&setting, 0xff, sizeof setting);
  dt_combine_bench_case_init(&setting);
  assert_int_equal(setting.rows, 16384);
  assert_int_equal(setting.n, 8192);
  assert_int_equal(setting.k, 2048);
  assert_int_equal(setting.experts, 8);
  assert_int_equal(setting.consumers, 16);
  assert_int_equal(setting.segment_bands, 1);
  assert_int_equal(setting.methods[DT_METHOD_BULK], 0);

  dt_combine_bench_config bench;
  memset(&bench, 0xff, sizeof bench);
  dt_combine_bench_config_init(&bench);
  assert_int_equal(bench.size, sizeof bench);
  assert_int_equal(bench.ranks, 2);
  assert_int_equal(bench.repeat, 20);
  assert_int_equal(bench.warm_up, 3);
  assert_true(bench.window_s == 0);

  dt_cuda_moe_config moe;
  memset(&moe, 0xff, sizeof moe);
  dt_cuda_moe_config_init(&moe);
  assert_int_equal(moe.size, sizeof moe);
  assert_int_equal(moe.schedule, DT_SCHEDULE_DIRECT);
  assert_int_equal(moe.max_rows, 0);

  dt_cuda_attention attention;
  memset(&attention, 0, sizeof attention);
  dt_cuda_attention_init(&attention);
  assert_int_equal(attention.size, sizeof attention);
  assert_true(isnan(attention.scale));

  dt_ulysses_config ulysses;
  memset(&ulysses, 0xff, sizeof ulysses);
  dt_ulysses_config_init(&ulysses);
  assert_int_equal(ulysses.size, sizeof ulysses);
  assert_int_equal(ulysses.attention.size, sizeof ulysses.attention);
  assert_int_equal(ulysses.attention.dtype, DT_DTYPE_BF16);
  assert_null(ulysses.comm);
}

/* A refusal: its code, a line about it, and nothing written to the output. */
static void refused(const char *what, dt_status status, const void *output, const void *before) {
  if (status != DT_ERR_UNSUPPORTED && status != DT_ERR_NO_DEVICE)
    fail_msg("%s: %s (%s)", what, dt_status_name(status), dt_error_detail());
  if (!*dt_error_detail()) fail_msg("%s: no line about it", what);
  if (output != before) fail_msg("%s: its output was written", what);
}

static void everything_else_is_refused(void **state) {
  (void)state;
  assert_true(dt_cuda_devices() >= 0);
  if (dt_cuda_devices() > 0) skip();
  int place;
  dt_comm *control = NULL, *comm = (dt_comm *)&place;
  assert_int_equal(dt_comm_create_local(1, NULL, &control), DT_OK);
  refused("dt_comm_create_cuda", dt_comm_create_cuda(control, 0, &comm), comm, &place);
  dt_comm_destroy(control);

  dt_cuda_device info;
  refused("dt_cuda_device_info", dt_cuda_device_info(0, &info), NULL, NULL);
  refused("dt_cuda_device_use", dt_cuda_device_use(0), NULL, NULL);

  dt_combine_bench_config bench;
  dt_combine_bench_case setting;
  dt_combine_bench_config_init(&bench);
  dt_combine_bench_case_init(&setting);
  bench.cases = &setting;
  bench.case_count = 1;
  refused("dt_combine_bench_run", dt_combine_bench_run(&bench), NULL, NULL);
}

static void nothing_to_release_is_released(void **state) {
  (void)state;
  dt_cuda_moe_destroy(NULL);
  dt_combine_destroy(NULL);
  dt_ulysses_destroy(NULL);
  dt_ulysses_bench_destroy(NULL);
  dt_moe_bench_close(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_those_of_the_headers),
      cmocka_unit_test(everything_else_is_refused),
      cmocka_unit_test(nothing_to_release_is_released),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
