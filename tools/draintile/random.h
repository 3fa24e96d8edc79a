/* Seeded random numbers for synthetic data: splitmix64, the same on every machine. */
#ifndef DRAINTILE_TOOL_RANDOM_H
#define DRAINTILE_TOOL_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* In [0, bound). */
static inline uint64_t random_below(uint64_t *state, uint64_t bound) {
  return (uint64_t)(((unsigned __int128)random_next(state) * bound) >> 64);
}

/* In [0, 1). */
static inline double random_unit(uint64_t *state) {
  return (double)(random_next(state) >> 11) * 0x1p-53;
}

/* A seed of its own for every named thing, so that no tensor depends on which others are written. */
static inline uint64_t random_seed_of(uint64_t seed, const char *name) {
  uint64_t state = seed ^ 0xcbf29ce484222325u;
  for (; *name; name++) state = (state ^ (uint8_t)*name) * 0x100000001b3u;
  return random_next(&state);
}

#endif
