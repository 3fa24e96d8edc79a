/* The clock of measurements and deadlines. */
#ifndef DRAINTILE_TOOL_CLOCK_H
#define DRAINTILE_TOOL_CLOCK_H

#include <time.h>

static inline double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
