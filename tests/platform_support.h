/* The platform file of two H200, loaded once for a test program. */
#ifndef DT_TESTS_PLATFORM_SUPPORT_H
#define DT_TESTS_PLATFORM_SUPPORT_H

#include <draintile/simulate.h>

static dt_platform *platform;

static int load_platform(void **state) {
  (void)state;
  return dt_platform_load(DT_TEST_DATA "/../../bench/results/h200x2/platform.json", &platform) != DT_OK;
}

static int free_platform(void **state) {
  (void)state;
  dt_platform_destroy(platform);
  return 0;
}

#endif
