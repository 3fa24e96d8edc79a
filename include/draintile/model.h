/* The Burst-Gap model of a draining remote-store queue (arXiv 2607.23264), in closed form. Pure functions, SI units.
 *
 * K producers each issue B bytes, V = K*B; gap G from the end of an issue to the start of the next; T0 the issue time
 * without backpressure; R the drain rate; Q the capacity: bytes that can be outstanding.
 */
#ifndef DRAINTILE_MODEL_H
#define DRAINTILE_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum dt_regime { DT_REGIME_FLOOR = 0, DT_REGIME_DRAIN = 1, DT_REGIME_CAPACITY = 2 } dt_regime;
const char *dt_regime_name(dt_regime regime); /* "floor", "drain", "capacity" */

typedef struct dt_burst_model {
  double t0_s;             /* T0 >= 0 */
  double rate_bytes_per_s; /* R > 0 */
  double capacity_bytes;   /* Q >= 0 */
} dt_burst_model;

typedef struct dt_burst_question {
  double burst_bytes; /* V >= 0 */
  double gap_s;       /* G >= 0 */
  int aligned;        /* bursts of all producers start together */
} dt_burst_question;

typedef struct dt_burst_prediction {
  double t_issue_s;                   /* free: eq. (2); aligned: max(T0, V/R - min(G, Q/R)) */
  double period_s;                    /* T + G, eq. (3) */
  double recovery_gap_s;              /* G* = max(0, V/R - T0), eq. (5) */
  double isolated_issue_s;            /* max(T0, (V - Q)/R), eq. (7) */
  double completion_coupled_period_s; /* V/R + G, the rejected law */
  dt_regime regime;
  int rate_ok;     /* V <= R*(T0 + G), eq. (10) */
  int capacity_ok; /* max(0, V - R*T0) <= Q, eq. (10) */
} dt_burst_prediction;

/* DT_ERR_ARGUMENT names the field that is negative, not finite or (rate) zero. */
dt_status dt_burst_predict(const dt_burst_model *model, const dt_burst_question *question,
                           dt_burst_prediction *prediction);

/* A constant with its interval. low <= value <= high. */
typedef struct dt_interval {
  double value, low, high;
} dt_interval;
typedef enum dt_answer { DT_ANSWER_SAFE = 0, DT_ANSWER_UNSAFE = 1, DT_ANSWER_UNDECIDED = 2 } dt_answer;
const char *dt_answer_name(dt_answer answer);

typedef struct dt_burst_model_interval {
  dt_interval t0_s, rate_bytes_per_s, capacity_bytes;
} dt_burst_model_interval;

/* safe: no sender stall anywhere in the box of the intervals; unsafe: a stall everywhere in it; else undecided. The
 * capacity test counts for aligned bursts only. t_issue_s receives the interval of the issue time over the box.
 * DT_ERR_ARGUMENT names the field, also where low <= value <= high does not hold. */
dt_status dt_burst_answer(const dt_burst_model_interval *model, const dt_burst_question *question, dt_answer *answer,
                          dt_interval *t_issue_s);

/* Any sequence of bursts, eq. (1) with a capacity: T_i = max(T0_i, (q_i + V_i - Q)/R); q' = max(0, q_i + V_i - R*T_i);
 * q_{i+1} = max(0, q' - R*G_i). issue_s[count] and backlog_bytes[count] (q_i at each start) are the caller's; either
 * may be NULL; they are written on success only. DT_ERR_ARGUMENT names the burst and its field. */
typedef struct dt_burst {
  double burst_bytes, t0_s, gap_s;
} dt_burst;
dt_status dt_burst_sequence(double rate_bytes_per_s, double capacity_bytes, const dt_burst *bursts, size_t count,
                            double *issue_s, double *backlog_bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
