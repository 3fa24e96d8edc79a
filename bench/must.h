/* What a benchmark does where a call fails: it says what and why, and ends. */
#ifndef DT_BENCH_MUST_H
#define DT_BENCH_MUST_H

#include <stdio.h>
#include <stdlib.h>

#include <draintile/status.h>

static inline void must(dt_status status, const char *what) {
  if (status == DT_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, dt_status_name(status), dt_error_detail());
  exit(3);
}

#endif
