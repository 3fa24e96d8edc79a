/* A machine can be in more than one state: on 2 x H200, for about a tenth of a second at a time, isolated bursts are 6
 * % shorter than usual, all settings alike, T0 and R the same. A median over rounds that are 60 % in one state and 40 %
 * in the other belongs to either by chance. So rounds are told apart first, and each state gets its own capacity. Pure.
 */
#ifndef DT_MODEL_STATES_H
#define DT_MODEL_STATES_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#include "fit.h"

enum {
  DT_STATE_USUAL = 0,   /* the most frequent */
  DT_STATE_OTHER = 1,   /* the next, at least DT_STATE_ROUNDS rounds */
  DT_STATE_NEITHER = 2, /* a few rounds apart from both, when there are both */
  DT_STATE_ROUNDS = 5
};

/* excess[i]: how much more than the median of its setting sample i holds, over V; NaN: it says nothing. A round's score
 * is the median excess of its samples. Scores are cut where neighbours are further apart than a quarter of the range
 * that holds the middle 90 % of them. Without a second group of DT_STATE_ROUNDS rounds all are usual. state[i] by the
 * sample's round; rounds[3]: how many there are of each. DT_ERR_MEMORY. */
dt_status dt_find_states(const dt_fit_sample *samples, const double *excess, size_t count, int32_t *state,
                         int64_t rounds[3]);

#endif
