/* Closed forms of the paced order (plan/order.h: dt_expert_paced): within an expert, remote band i of n_r has the key
 * (2i+1)/(2n_r), local band j of n_l has (2j+1)/(2n_l); ascending, ties remote first. */
#ifndef DT_CUDA_PLAN_PACED_H
#define DT_CUDA_PLAN_PACED_H

#include "plan/pure.h"
#include "plan_warp.h"

/* The k-th entry of an expert's paced order: i remote and k - i local bands come before it. A proportional guess for i
 * is off by two, and by the rounding of a float; comparing keys corrects it. */
DT_PHASE int32_t dt_paced_band(int32_t remote, int32_t local, int32_t k) {
  const int64_t nr = remote, nl = local;
  if (remote == 0 || local == 0) return k;
  int32_t i = dt_min32((int32_t)((float)k * (float)remote / (float)(remote + local)), k);
  /* Local j = k - i is before remote i - 1: one remote too many. Remote i is before local j - 1: one too few. */
  DT_ROLLED
  while (i > 0 && k - i < local && (2 * ((int64_t)k - i) + 1) * nr < (2 * (int64_t)i - 1) * nl) i--;
  DT_ROLLED
  while (k - i > 0 && i < remote && (2 * (int64_t)i + 1) * nl <= (2 * ((int64_t)k - i) - 1) * nr) i++;
  const int32_t j = k - i;
  const int take = j == local || (i < remote && (2 * (int64_t)i + 1) * nl <= (2 * (int64_t)j + 1) * nr);
  return take ? i : remote + j;
}

/* Local bands before remote band i in the paced order. */
DT_PHASE int32_t dt_paced_local_before(int32_t remote, int32_t local, int32_t i) {
  const int64_t key = (2 * (int64_t)i + 1) * local;
  return key == 0 ? 0 : (int32_t)dt_min64(((key - 1) / remote + 1) / 2, local);
}

/* The inverse of dt_paced_band: the place of an expert's band in its paced order. bands: all of the expert. */
DT_PHASE int32_t dt_paced_place(int32_t remote, int32_t bands, int32_t band) {
  const int32_t local = bands - remote, j = band - remote;
  if (remote == 0 || local == 0) return band;
  if (j < 0) return band + dt_paced_local_before(remote, local, band);
  const int64_t before = ((2 * (int64_t)j + 1) * remote / local + 1) / 2; /* remote bands whose key is not above */
  return j + (int32_t)dt_min64(before, remote);
}

#endif
