/* Seeded random numbers: splitmix64. Same sequence everywhere. */
#ifndef DT_CORE_RANDOM_H
#define DT_CORE_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct dt_random {
  uint64_t state;
} dt_random;

static inline uint64_t dt_random_u64(dt_random *random) {
  uint64_t z = (random->state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Uniform in [0, bound). */
static inline uint64_t dt_random_below(dt_random *random, uint64_t bound) {
  return (uint64_t)(((unsigned __int128)dt_random_u64(random) * bound) >> 64);
}

/* Uniform in [0, 1). */
static inline double dt_random_unit(dt_random *random) {
  return (double)(dt_random_u64(random) >> 11) * 0x1p-53;
}

/* A random permutation of the list (Fisher and Yates). */
static inline void dt_random_shuffle(dt_random *random, int32_t *list, int32_t count) {
  for (int32_t i = count - 1; i > 0; i--) {
    const int32_t other = (int32_t)dt_random_below(random, (uint64_t)i + 1), swap = list[i];
    list[i] = list[other];
    list[other] = swap;
  }
}

/* An index in [0, count), by weights of which `upto` has the running sums. */
static inline int32_t dt_random_draw(dt_random *random, const double *upto, int32_t count) {
  const double at = dt_random_unit(random) * upto[count - 1];
  int32_t low = 0, high = count - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (upto[middle] > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/* Standard normal (Box-Muller). */
static inline double dt_random_normal(dt_random *random) {
  double u = 1.0 - dt_random_unit(random), v = dt_random_unit(random);
  return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

#endif
