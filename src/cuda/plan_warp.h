/* The plan's device code is written for warps, in phases with a barrier of the block between them: DT_FOR_LANES runs a
 * statement for every lane. Under nvcc's device pass that is the thread itself; on the host it is a loop, so that
 * tests run the same phases warp after warp, without a GPU.
 */
#ifndef DT_CUDA_PLAN_WARP_H
#define DT_CUDA_PLAN_WARP_H

#include <stdint.h>

enum { DT_WARP = 32, DT_SCAN_EACH = 8 };

/* Everything is inlined: the tables of pointers that phases pass around must stay in registers. Loops that mostly run
 * once stay rolled: a block runs this code only once, so its length costs time. */
#ifdef __CUDACC__
#define DT_PHASE __host__ __device__ static __forceinline__
#define DT_UNROLL _Pragma("unroll")
#define DT_ROLLED _Pragma("unroll 1")
#else
#define DT_PHASE static inline
#define DT_UNROLL
#define DT_ROLLED
#endif

#ifdef __CUDA_ARCH__
#define DT_FOR_LANES(lane)                                                                                             \
  for (int32_t lane = (int32_t)(threadIdx.x % DT_WARP), lane##_once = 1; lane##_once; lane##_once = 0)
#else
#define DT_FOR_LANES(lane) for (int32_t lane = 0; lane < DT_WARP; lane++)
#endif

/* Which warp of which block runs, and how many there are. */
typedef struct dt_team {
  int32_t warp, warps, block, blocks;
} dt_team;

/* Items [0, count) over the threads of a block, from the first thread on, or from the last (so that first warps which
 * have a scan to do are not also the ones with items); and over the threads of all blocks. */
#define DT_FOR_ITEMS(i, team, count)                                                                                   \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = (team)->warp * DT_WARP + lane; i < (count); i += (team)->warps * DT_WARP)
#define DT_FOR_ITEMS_BACKWARD(i, team, count)                                                                          \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = ((team)->warps - (team)->warp) * DT_WARP - 1 - lane; i < (count);                         \
                 i += (team)->warps * DT_WARP)
#define DT_FOR_ALL_ITEMS(i, team, count)                                                                               \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = ((team)->block * (team)->warps + (team)->warp) * DT_WARP + lane; i < (count);             \
                 i += (team)->blocks * (team)->warps * DT_WARP)
#define DT_FOR_ALL_ITEMS_BACKWARD(i, team, count)                                                                      \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = (((team)->blocks - (team)->block) * (team)->warps - (team)->warp) * DT_WARP - 1 - lane;   \
                 i < (count); i += (team)->blocks * (team)->warps * DT_WARP)

DT_PHASE void dt_warp_sync(void) {
#ifdef __CUDA_ARCH__
  __syncwarp();
#endif
}

/* To memory that all threads of a block, or of the grid, add to. Sums do not depend on the order. */
DT_PHASE void dt_add(int32_t *to, int32_t value) {
#ifdef __CUDA_ARCH__
  atomicAdd(to, value);
#else
  *to = (int32_t)((uint32_t)*to + (uint32_t)value);
#endif
}

/* The first error stays. */
DT_PHASE void dt_error_set(uint32_t *error, uint32_t code) {
#ifdef __CUDA_ARCH__
  atomicCAS(error, 0u, code);
#else
  if (*error == 0) *error = code;
#endif
}

/* Exclusive prefix sums of `from` into `to` (which may be the same), by one warp; to[count] receives the total. Each
 * lane takes `each` entries in a row at a time, a constant up to DT_SCAN_EACH. Returns whether a value is negative or a
 * sum exceeds 31 bits: the first one to do so is below 2^32, so it shows as a sign. */
DT_PHASE int dt_warp_scan(int32_t *to, const int32_t *from, int32_t count, int each) {
  int wrong = 0;
#ifdef __CUDA_ARCH__
  const int32_t lane = (int32_t)(threadIdx.x % DT_WARP);
  int32_t before = 0;
  DT_ROLLED
  for (int32_t base = 0; base < count; base += each * DT_WARP) {
    const int32_t at = base + lane * each;
    int32_t value[DT_SCAN_EACH], sum = 0;
    DT_UNROLL
    for (int i = 0; i < each; i++) value[i] = at + i < count ? from[at + i] : 0;
    DT_UNROLL
    for (int i = 0; i < each; i++) sum += value[i];
    int32_t until = sum;
    DT_UNROLL
    for (int step = 1; step < DT_WARP; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, until, (unsigned)step);
      if (lane >= step) until += other;
    }
    int32_t next = before + until - sum;
    before += __shfl_sync(0xffffffffu, until, DT_WARP - 1);
    DT_UNROLL
    for (int i = 0; i < each; i++) {
      if (at + i < count) to[at + i] = next;
      next += value[i];
      wrong |= value[i] | next;
    }
  }
  if (lane == 0) to[count] = before;
  wrong = __any_sync(0xffffffffu, wrong < 0);
  __syncwarp();
#else
  uint32_t before = 0;
  (void)each;
  for (int32_t i = 0; i < count; i++) {
    uint32_t value = (uint32_t)from[i];
    to[i] = (int32_t)before;
    before += value;
    wrong |= (value | before) > INT32_MAX;
  }
  to[count] = (int32_t)before;
#endif
  return wrong;
}

/* The largest of the values before, in place, by one warp; INT32_MIN at first. */
DT_PHASE void dt_warp_peaks(int32_t *values, int32_t count) {
  int32_t peak = INT32_MIN;
#ifdef __CUDA_ARCH__
  const int32_t lane = (int32_t)(threadIdx.x % DT_WARP);
  DT_ROLLED
  for (int32_t at = lane; at - lane < count; at += DT_WARP) {
    int32_t until = at < count ? values[at] : INT32_MIN;
    for (int step = 1; step < DT_WARP; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, until, (unsigned)step);
      if (lane >= step) until = max(until, other);
    }
    const int32_t before = __shfl_up_sync(0xffffffffu, until, 1);
    if (at < count) values[at] = lane == 0 ? peak : max(peak, before);
    peak = max(peak, __shfl_sync(0xffffffffu, until, DT_WARP - 1));
  }
  __syncwarp();
#else
  for (int32_t i = 0; i < count; i++) {
    int32_t value = values[i];
    values[i] = peak;
    if (value > peak) peak = value;
  }
#endif
}

/* Last index in [0, count) whose value is at most `limit`, or 0. values ascend. */
DT_PHASE int32_t dt_last_at_most(const int32_t *values, int32_t count, int32_t limit) {
  int32_t low = 0, high = count;
  DT_ROLLED
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (values[middle] <= limit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/* Division of numbers below 2^31 by a constant of the configuration, as a multiplication. */
typedef struct dt_divider {
  uint32_t multiplier, shift;
} dt_divider;

/* 1 <= divisor < 2^31. With 2^(s-1) < d <= 2^s and m = floor(2^(31+s)/d) + 1, m*d exceeds 2^(31+s) by at most 2^s, so
 * n*m / 2^(31+s) exceeds n/d by less than 1/d for n < 2^31: the floor is the same. */
static inline dt_divider dt_divider_of(int32_t divisor) {
  dt_divider result = {0, 31};
  while (((uint64_t)1 << (result.shift - 31)) < (uint64_t)divisor) result.shift++;
  result.multiplier = (uint32_t)(((uint64_t)1 << result.shift) / (uint64_t)divisor + 1);
  return result;
}

DT_PHASE int32_t dt_divide(dt_divider by, int32_t value) {
  return (int32_t)(((uint64_t)(uint32_t)value * by.multiplier) >> by.shift);
}

DT_PHASE int32_t dt_min32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

DT_PHASE int32_t dt_max32(int32_t a, int32_t b) {
  return a > b ? a : b;
}

#endif
