/* The plan's algorithms are functions over the caller's arrays, without allocation, I/O or global state, so that the
 * host library and CUDA kernels compile the same source: include the header and call. */
#ifndef DT_PLAN_PURE_H
#define DT_PLAN_PURE_H

#include <stdint.h>

#ifdef __CUDACC__
#define DT_HD __host__ __device__
#else
#define DT_HD
#endif

DT_HD static inline int64_t dt_ceil_div(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor;
}

DT_HD static inline int64_t dt_min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}

#endif
