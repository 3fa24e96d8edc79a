#include "states.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/statistics.h"

static const double apart = 0.25; /* of the range of the middle 90 % */

typedef struct round_score {
  int32_t round, state;
  double score;
} round_score;

static int by_score(const void *a, const void *b) {
  const round_score *x = a, *y = b;
  if (x->score != y->score) return x->score < y->score ? -1 : 1;
  return (x->round > y->round) - (x->round < y->round);
}

/* One score a round, in order of first appearance; values is scratch of count. */
static size_t score_rounds(const dt_fit_sample *samples, const double *excess, size_t count, double *values,
                           round_score *scores) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++) {
    size_t r = 0, n = 0;
    while (r < found && scores[r].round != samples[i].round) r++;
    if (r < found || isnan(excess[i])) continue;
    for (size_t j = i; j < count; j++)
      if (samples[j].round == samples[i].round && !isnan(excess[j])) values[n++] = excess[j];
    scores[found++] = (round_score){.round = samples[i].round, .score = dt_median(values, n)};
  }
  return found;
}

/* [begin, end) of the longest run of scores between two cuts that lies outside [not_begin, not_end). */
static size_t longest_group(const round_score *scores, size_t count, double cut, size_t not_begin, size_t not_end,
                            size_t *end) {
  size_t best = 0, begin = 0;
  *end = 0;
  for (size_t i = 1; i <= count; i++) {
    if (i < count && scores[i].score - scores[i - 1].score <= cut) continue;
    if ((begin < not_begin || begin >= not_end) && i - begin > *end - best) best = begin, *end = i;
    begin = i;
  }
  return best;
}

static void tell_apart(round_score *scores, size_t count, double *values) {
  for (size_t i = 0; i < count; i++) values[i] = scores[i].score;
  double cut = apart * (dt_quantile(values, count, 0.95) - dt_quantile(values, count, 0.05));
  size_t usual_end, other_end, usual = longest_group(scores, count, cut, 0, 0, &usual_end),
                               other = longest_group(scores, count, cut, usual, usual_end, &other_end);
  if (other_end - other < DT_STATE_ROUNDS) return;
  for (size_t i = 0; i < count; i++) {
    scores[i].state = DT_STATE_NEITHER;
    if (i >= usual && i < usual_end) scores[i].state = DT_STATE_USUAL;
    if (i >= other && i < other_end) scores[i].state = DT_STATE_OTHER;
  }
}

dt_status dt_find_states(const dt_fit_sample *samples, const double *excess, size_t count, int32_t *state,
                         int64_t rounds[3]) {
  round_score *scores = calloc(count + 1, sizeof *scores);
  double *values = malloc((count + 1) * sizeof *values);
  dt_status status = scores && values ? DT_OK : dt_fail(DT_ERR_MEMORY, "states: %zu samples", count);
  rounds[0] = rounds[1] = rounds[2] = 0;
  if (!status) {
    size_t found = score_rounds(samples, excess, count, values, scores);
    qsort(scores, found, sizeof *scores, by_score);
    tell_apart(scores, found, values);
    for (size_t r = 0; r < found; r++) rounds[scores[r].state]++;
    for (size_t i = 0; i < count; i++) {
      state[i] = DT_STATE_USUAL;
      for (size_t r = 0; r < found; r++)
        if (scores[r].round == samples[i].round) state[i] = scores[r].state;
    }
  }
  free(scores), free(values);
  return status;
}
