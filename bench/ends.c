/* Adds first_fill_s, measured on this machine's first GPU, to a platform file that lacks it:
 *
 *   ends PLATFORM.json OUT.json     exit code 77 without a Hopper GPU
 */
#include <draintile/platform.h>

#include <stdio.h>

#include "cuda/driver.h"
#include "cuda/probe/extras.h"

static int fail(const char *what) {
  fprintf(stderr, "%s: %s\n", what, dt_error_detail());
  return 1;
}

int main(int argc, char **argv) {
  dt_platform *platform = NULL;
  dt_cuda_probe *probe = NULL;
  int sms;
  if (argc != 3) return fprintf(stderr, "usage: ends PLATFORM.json OUT.json\n"), 2;
  if (dt_cuda_hopper(&sms)) return fail("ends"), 77;
  dt_status status = dt_platform_load(argv[1], &platform);
  if (!status) status = dt_cuda_probe_create(1, &probe);
  if (!status) status = dt_extras_ends(probe, DT_EXTRA_ROUNDS, platform);
  if (!status)
    status = dt_platform_add_note(platform, "first_fill_s was measured by bench_ends in a later job, on another card");
  if (!status) status = dt_platform_save(platform, argv[2]);
  if (status) fail("ends");
  dt_interval x;
  if (!status && dt_platform_lookup(platform, "first_fill_s", &x) == DT_OK)
    printf("first_fill_s %.3g s, %.3g to %.3g\n", x.value, x.low, x.high);
  if (probe) dt_cuda_probe_destroy(probe);
  dt_platform_destroy(platform);
  return status ? 1 : 0;
}
