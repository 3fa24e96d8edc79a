/* The plan's device code is written for warps, in phases with a barrier of the block between them: DT_FOR_LANES runs a
 * statement for every lane. Under nvcc's device pass that is the thread itself; on the host it is a loop, so that
 * tests run the same phases warp after warp, without a GPU.
 */
#ifndef DT_CUDA_PLAN_WARP_H
#define DT_CUDA_PLAN_WARP_H

#include <stdint.h>

enum { DT_WARP = 32, DT_SCAN_EACH = 8, DT_VECTOR = 4 };

/* Everything is inlined: the tables of pointers that phases pass around must stay in registers. Loops that mostly run
 * once stay rolled: a block runs this code only once, so its length costs time. */
#ifdef __CUDACC__
#define DT_PHASE __host__ __device__ static __forceinline__
#define DT_UNROLL _Pragma("unroll")
#define DT_ROLLED _Pragma("unroll 1")
#define DT_UNROLL_BY(n) DT_PRAGMA(unroll n)
#define DT_PRAGMA(text) _Pragma(#text)
#else
#define DT_PHASE static inline
#define DT_UNROLL
#define DT_ROLLED
#define DT_UNROLL_BY(n)
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
 * have a scan to do are not also the ones with items); and over the first or the last warps of all blocks. */
#define DT_FOR_ITEMS(i, team, count)                                                                                   \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = (team)->warp * DT_WARP + lane; i < (count); i += (team)->warps * DT_WARP)
#define DT_FOR_ITEMS_BACKWARD(i, team, count)                                                                          \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = ((team)->warps - (team)->warp) * DT_WARP - 1 - lane; i < (count);                         \
                 i += (team)->warps * DT_WARP)
#define DT_FOR_ALL_ITEMS(i, team, count)                                                                               \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = ((team)->warp * (team)->blocks + (team)->block) * DT_WARP + lane; i < (count);            \
                 i += (team)->blocks * (team)->warps * DT_WARP)
#define DT_FOR_ALL_ITEMS_BACKWARD(i, team, count)                                                                      \
  DT_FOR_LANES(lane)                                                                                                   \
  DT_ROLLED for (int32_t i = (((team)->warps - 1 - (team)->warp) * (team)->blocks + (team)->block) * DT_WARP + lane;   \
                 i < (count); i += (team)->blocks * (team)->warps * DT_WARP)

/* Four words that begin at a multiple of 16 bytes: four times fewer bank conflicts where each lane has a stretch. */
DT_PHASE void dt_vector_load(int32_t *to, const int32_t *from) {
#ifdef __CUDA_ARCH__
  const int4 v = *(const int4 *)from;
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#else
  for (int i = 0; i < DT_VECTOR; i++) to[i] = from[i];
#endif
}

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

/* The same of three lists in place, `stride` words apart, 32 entries at a time: the lists' memory is whole steps long,
 * and one entry more. */
DT_PHASE int dt_warp_scan_three(int32_t *lists, int32_t stride, int32_t count) {
  int wrong = 0;
#ifdef __CUDA_ARCH__
  const int32_t lane = (int32_t)(threadIdx.x % DT_WARP);
  int32_t before[3] = {0, 0, 0};
  DT_ROLLED
  for (int32_t base = 0; base < count; base += DT_WARP) {
    int32_t *list = lists + base + lane, value[3], until[3];
    DT_UNROLL
    for (int i = 0; i < 3; i++) value[i] = until[i] = base + lane < count ? list[i * stride] : 0;
    DT_ROLLED
    for (int step = 1; step < DT_WARP; step *= 2) {
      DT_UNROLL
      for (int i = 0; i < 3; i++) {
        const int32_t other = __shfl_up_sync(0xffffffffu, until[i], (unsigned)step);
        if (lane >= step) until[i] += other;
      }
    }
    DT_UNROLL
    for (int i = 0; i < 3; i++) {
      until[i] += before[i];
      list[i * stride] = until[i] - value[i];
      if (base + DT_WARP == count && lane == DT_WARP - 1) list[i * stride + 1] = until[i];
      wrong |= value[i] | until[i];
      before[i] = __shfl_sync(0xffffffffu, until[i], DT_WARP - 1);
    }
  }
  wrong = __any_sync(0xffffffffu, wrong < 0);
#else
  for (int i = 0; i < 3; i++) wrong |= dt_warp_scan(lists + i * stride, lists + i * stride, count, 1);
#endif
  return wrong;
}

/* The same of one list, a stretch of DT_SCAN_EACH entries a lane at a time; both lists begin with a whole vector. */
DT_PHASE int dt_warp_scan_long(int32_t *to, const int32_t *from, int32_t count) {
#ifdef __CUDA_ARCH__
  const int32_t lane = (int32_t)(threadIdx.x % DT_WARP);
  int32_t before = 0;
  int wrong = 0;
  DT_ROLLED
  for (int32_t base = 0; base < count; base += DT_SCAN_EACH * DT_WARP) {
    const int32_t at = base + lane * DT_SCAN_EACH;
    int32_t value[DT_SCAN_EACH], sum = 0;
    DT_UNROLL
    for (int i = 0; i < DT_SCAN_EACH; i += DT_VECTOR) dt_vector_load(&value[i], &from[at + i]);
    DT_UNROLL
    for (int i = 0; i < DT_SCAN_EACH; i++) {
      value[i] = at + i < count ? value[i] : 0;
      sum += value[i];
    }
    int32_t until = sum;
    DT_ROLLED
    for (int step = 1; step < DT_WARP; step *= 2) {
      const int32_t other = __shfl_up_sync(0xffffffffu, until, (unsigned)step);
      if (lane >= step) until += other;
    }
    int32_t next = before + until - sum;
    before += __shfl_sync(0xffffffffu, until, DT_WARP - 1);
    DT_UNROLL
    for (int i = 0; i < DT_SCAN_EACH; i += DT_VECTOR) {
      int4 v;
      v.x = next, v.y = v.x + value[i], v.z = v.y + value[i + 1], v.w = v.z + value[i + 2];
      *(int4 *)&to[at + i] = v;
      next = v.w + value[i + 3];
      wrong |= value[i] | value[i + 1] | value[i + 2] | value[i + 3] | v.x | v.y | v.z | v.w | next;
    }
    if (at + DT_SCAN_EACH == count) to[count] = next;
  }
  return __any_sync(0xffffffffu, wrong < 0);
#else
  return dt_warp_scan(to, from, count, 1);
#endif
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

DT_PHASE int32_t dt_bits(uint32_t mask) {
#ifdef __CUDA_ARCH__
  return __popc(mask);
#else
  return __builtin_popcount(mask);
#endif
}

#ifdef __CUDA_ARCH__
/* Lanes with the same `number` as this one, of [0, count); all lanes take part, and a negative number has none. A vote
 * for every bit of the number is faster than a match of 32 different ones. */
static __device__ __forceinline__ uint32_t dt_warp_alike(int32_t number, int32_t count) {
  uint32_t alike = __ballot_sync(0xffffffffu, number >= 0);
  for (int32_t rest = count - 1, bit = 1; rest > 0; rest /= 2, bit *= 2) {
    const uint32_t votes = __ballot_sync(0xffffffffu, number & bit);
    alike &= number & bit ? votes : ~votes;
  }
  return alike;
}
#endif

/* How many of the `count` lists whose sums these are have entries; all lanes of a warp take part. */
DT_PHASE int32_t dt_warp_count_filled(const int32_t *sums, int32_t count) {
  int32_t filled = 0;
#ifdef __CUDA_ARCH__
  const int32_t lane = (int32_t)(threadIdx.x % DT_WARP);
  DT_ROLLED
  for (int32_t i = lane; i - lane < count; i += DT_WARP) {
    filled += __popc(__ballot_sync(0xffffffffu, i < count && sums[i + 1] > sums[i]));
  }
#else
  for (int32_t i = 0; i < count; i++) filled += sums[i + 1] > sums[i];
#endif
  return filled;
}

/* The largest power of two below a count; 0: there is none. */
DT_PHASE int32_t dt_power_below(int32_t count) {
#ifdef __CUDA_ARCH__
  return count < 2 ? 0 : 1 << (31 - __clz(count - 1));
#else
  return count < 2 ? 0 : 1 << (31 - __builtin_clz((unsigned)count - 1));
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

/* The same with steps that do not depend on values, so that only a load and a comparison follow one another. */
DT_PHASE int32_t dt_last_by_steps(const int32_t *values, int32_t count, int32_t limit) {
  int32_t low = 0;
  DT_ROLLED
  for (int32_t step = dt_power_below(count); step > 0; step /= 2) {
    if (low + step < count && values[low + step] <= limit) low += step;
  }
  return low;
}

/* Division of numbers below 2^31 by a constant of the configuration, as the upper half of a product and a shift. */
typedef struct dt_divider {
  uint32_t multiplier, shift;
} dt_divider;

/* 1 <= divisor < 2^31. With 2^(s-1) < d <= 2^s and m = floor(2^(31+s)/d) + 1, m*d exceeds 2^(31+s) by at most 2^s, so
 * n*m / 2^(31+s) exceeds n/d by less than 1/d for n < 2^31: the floor is the same. 2n has 32 bits, so that 32 of the
 * 31+s+1 bits to drop are the lower half. */
static inline dt_divider dt_divider_of(int32_t divisor) {
  dt_divider result = {0, 0};
  while (((uint64_t)1 << result.shift) < (uint64_t)divisor) result.shift++;
  result.multiplier = (uint32_t)(((uint64_t)1 << (31 + result.shift)) / (uint64_t)divisor + 1);
  return result;
}

DT_PHASE int32_t dt_divide(dt_divider by, int32_t value) {
#ifdef __CUDA_ARCH__
  return (int32_t)(__umulhi(2u * (uint32_t)value, by.multiplier) >> by.shift);
#else
  return (int32_t)((uint32_t)((uint64_t)(2u * (uint32_t)value) * by.multiplier >> 32) >> by.shift);
#endif
}

/* Of numbers from 0 to 2^31 - 1 by any of 1 to 2^31 - 1: a guess in floating point, then corrected. */
DT_PHASE int32_t dt_quotient(int32_t value, int32_t by) {
#ifdef __CUDA_ARCH__
  int32_t quotient = (int32_t)__fdividef((float)value, (float)by), left = value - quotient * by;
  DT_ROLLED
  for (; left < 0; left += by) quotient--;
  DT_ROLLED
  for (; left >= by; left -= by) quotient++;
  return quotient;
#else
  return value / by;
#endif
}

DT_PHASE int32_t dt_min32(int32_t a, int32_t b) {
  return a < b ? a : b;
}

DT_PHASE int32_t dt_max32(int32_t a, int32_t b) {
  return a > b ? a : b;
}

#endif
