#include "statistics.h"

#include <stdint.h>
#include <string.h>

int dt_ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Whole numbers in the order of the values; a NaN comes before or after all of them, by its sign. */
static uint64_t key_of(double value) {
  const uint64_t sign = (uint64_t)1 << 63;
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & sign ? ~bits : bits | sign;
}

static double value_of(uint64_t key) {
  const uint64_t sign = (uint64_t)1 << 63;
  const uint64_t bits = key & sign ? key ^ sign : ~key;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* The sample with `below` others before it in ascending order: bisects the keys, so that nothing is copied or sorted.
 */
static double order_statistic(const double *samples, size_t count, size_t below) {
  uint64_t low = UINT64_MAX, high = 0;
  for (size_t i = 0; i < count; i++) {
    const uint64_t key = key_of(samples[i]);
    if (key < low) low = key;
    if (key > high) high = key;
  }
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    size_t within = 0;
    for (size_t i = 0; i < count; i++) within += key_of(samples[i]) <= middle;
    if (within > below)
      high = middle;
    else
      low = middle + 1;
  }
  return value_of(low);
}

double dt_quantile(const double *samples, size_t count, double p) {
  if (count == 0) return 0.0;
  const double at = p * (double)(count - 1);
  const size_t low = (size_t)at, high = low + 1 < count ? low + 1 : low;
  const double below = order_statistic(samples, count, low);
  return below + (at - (double)low) * (order_statistic(samples, count, high) - below);
}

double dt_median(const double *samples, size_t count) {
  return dt_quantile(samples, count, 0.5);
}
