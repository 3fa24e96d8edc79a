/* The combine benchmark's arguments. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/combine_bench.h>

static void refused(const dt_combine_bench_config *config, const char *field) {
  assert_int_equal(dt_combine_bench_run(config), DT_ERR_ARGUMENT);
  assert_int_equal(strncmp(dt_error_detail(), field, strlen(field)), 0);
}

static void test_config(void **state) {
  (void)state;
  dt_combine_bench_case setting;
  dt_combine_bench_case_init(&setting);
  dt_combine_bench_config config;
  memset(&config, 0, sizeof config);
  refused(&config, "size");
  dt_combine_bench_config_init(&config);
  refused(&config, "cases");
  config.cases = &setting;
  config.case_count = 1;
  config.ranks = 9;
  refused(&config, "ranks");
  config.ranks = 2;
  config.repeat = -1;
  refused(&config, "repeat");
}

static void test_settings(void **state) {
  (void)state;
  dt_combine_bench_case settings[2];
  dt_combine_bench_config config;
  dt_combine_bench_config_init(&config);
  config.cases = settings;
  config.case_count = 2;
  dt_combine_bench_case_init(&settings[0]);
  for (int i = 0; i < 4; i++) {
    static const char *const fields[] = {"rows", "n, k", "n, k", "experts"};
    dt_combine_bench_case_init(&settings[1]);
    if (i == 0) settings[1].rows = 3;
    if (i == 1) settings[1].n = 12;
    if (i == 2) settings[1].k = 0;
    if (i == 3) settings[1].experts = 0;
    refused(&config, fields[i]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_config), cmocka_unit_test(test_settings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
