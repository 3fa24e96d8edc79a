/* Adds first_fill_s and last_drain_s, measured on this machine's GPUs, to a platform file that lacks them:
 *
 *   ends PLATFORM.json OUT.json     two GPUs; exit code 77 without a Hopper GPU
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
  if (!status) status = dt_cuda_probe_create(2, &probe);
  if (!status) status = dt_extras_ends(probe, DT_EXTRA_ROUNDS, platform);
  if (!status)
    status = dt_platform_add_note(platform, "first_fill_s and last_drain_s were measured by bench_ends in a later job, "
                                            "on other cards");
  if (!status) status = dt_platform_save(platform, argv[2]);
  if (status) fail("ends");
  static const char *const names[] = {"first_fill_s", "last_drain_s"};
  for (int i = 0; i < 2 && !status; i++) {
    dt_interval x;
    if (dt_platform_lookup(platform, names[i], &x) == DT_OK)
      printf("%s %.3g s, %.3g to %.3g\n", names[i], x.value, x.low, x.high);
  }
  if (probe) dt_cuda_probe_destroy(probe);
  dt_platform_destroy(platform);
  return status ? 1 : 0;
}
