/* The clock of stamps and deadlines: nanoseconds of CLOCK_MONOTONIC, the same on all ranks of a machine. */
#ifndef DT_COMM_CLOCK_H
#define DT_COMM_CLOCK_H

#include <stdint.h>
#include <time.h>

enum { DT_NS_PER_S = 1000000000 };

static inline uint64_t dt_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * DT_NS_PER_S + (uint64_t)now.tv_nsec;
}

static inline double dt_now_s(void) {
  return 1e-9 * (double)dt_now_ns();
}

static inline struct timespec dt_timespec(uint64_t ns) {
  return (struct timespec){.tv_sec = (time_t)(ns / DT_NS_PER_S), .tv_nsec = (long)(ns % DT_NS_PER_S)};
}

#endif
