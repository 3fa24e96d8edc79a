/* From probe samples to the constants of the Burst-Gap model, with bootstrap intervals, and the laws compared by
 * held-out error. Pure: no clock, no device, no file.
 *
 * What is fitted (K producers, B bytes each, V = K*B; T means over producers):
 *   R(K,B)   drain rate: median of V/(T+G) of free-running bursts that stall: T >= 1.15 T0. R itself is the median over
 *            all of these whose (K,B) reaches 95 % of the largest
 *   T0(K,B)  issue time without backpressure: median T of free-running bursts with a gap of at least 1.1 V/R; of one
 *            producer alone only where V is well below Q
 *   Q(K,B)   capacity: median of V - R*T over isolated (drained) bursts that stall, of settings of which at least half
 *            the bursts do. The law T = (V - Q)/R has its slope
 *            from R, so that R and Q are not traded against each other. Q(K) is the median over bursts of at most 4
 *            times the smallest that stalls: producers share a link unevenly, in long bursts the mean ends well before
 *            the last, and a law in means would count that as capacity.
 * Where the machine was in two states (states.h), Q is the usual one's; the other's is kept beside it.
 * Medians, because a delayed launch or a throttled round must not move a constant.
 */
#ifndef DT_MODEL_FIT_H
#define DT_MODEL_FIT_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/model.h>
#include <draintile/status.h>

typedef enum dt_fit_alignment {
  DT_FIT_FREE = 0,    /* producers run their own loops */
  DT_FIT_ALIGNED = 1, /* all start together, by the clock: the second burst of a pair, gap_s after a drained first */
  DT_FIT_DRAINED = 2, /* isolated: the queue is empty when a burst starts */
  DT_FIT_ALONE = 3    /* free-running, but one producer: aligned with itself, so the capacity limits it */
} dt_fit_alignment;

typedef struct dt_fit_sample {
  int32_t producers;     /* K */
  int32_t round;         /* the repetition it belongs to: rounds are what the bootstrap resamples */
  double producer_bytes; /* B */
  double gap_s, issue_s; /* G and T, means over producers */
  double bytes_per_s;    /* V over the mean period; 0: not measured */
  int32_t alignment;     /* dt_fit_alignment */
  int32_t held_out;      /* 1: not used by dt_fit_samples */
  int32_t may_stall;     /* 1: V may exceed Q, so that an isolated burst says nothing about T0 */
} dt_fit_sample;

typedef struct dt_fit_point {
  int32_t producers;
  double producer_bytes; /* 0: any */
  dt_interval interval;  /* value and bootstrap 95 % interval */
  int64_t n;
} dt_fit_point;

enum { DT_FIT_POINTS = 48 };
typedef struct dt_fit_points {
  dt_fit_point point[DT_FIT_POINTS]; /* by producers, then bytes, ascending */
  size_t count;
} dt_fit_points;

typedef struct dt_fit {
  dt_interval rate_bytes_per_s; /* R */
  int64_t rate_n;
  dt_fit_points rates, floors, capacities; /* R(K,B), T0(K,B), Q(K) */
  dt_fit_points burst_capacities;          /* Q(K,B) */
  dt_fit_points other_capacities;          /* Q(K,B) in the machine's other state; none: one state seen */
  int64_t state_rounds[3];                 /* rounds in the usual state, in the other, in neither */
  double producer_capacity_bytes;          /* q of the variant Q = K*q; 0: no capacity measured */
} dt_fit;

/* replicates: of the bootstrap (1000 is usual; 0: intervals of no width). DT_ERR_INPUT says which kind of sample is
 * missing; without stalled isolated bursts capacities.count is 0. DT_ERR_MEMORY. */
dt_status dt_fit_samples(const dt_fit_sample *samples, size_t count, int32_t replicates, uint64_t seed, dt_fit *fit);

typedef enum dt_law {
  DT_LAW_MAX = 0,               /* the published law, eq. (2): max(T0, V/R - G) */
  DT_LAW_CAPACITY = 1,          /* with finite Q(K): aligned max(T0, V/R - min(G, Q/R)) */
  DT_LAW_PRODUCER_CAPACITY = 2, /* the same with Q = K*q */
  DT_LAW_BURST_CAPACITY = 3     /* the same with Q(K,B) */
} dt_law;
enum { DT_LAWS = 4 };
const char *dt_law_name(dt_law law); /* "max", "capacity", "producer-capacity", "burst-capacity" */

/* The second burst's issue time when two equal ones start from an empty queue, gap_s apart. */
double dt_fit_pair_s(const dt_burst_model *model, double burst_bytes, double gap_s);
/* Linear between the measured K and B, nearest beyond them. */
double dt_fit_lookup(const dt_fit_points *points, double producers, double producer_bytes);

/* Absolute relative errors of the issue time over the samples with that alignment (-1: any) and held_out. */
typedef struct dt_fit_error {
  double median, p90, worst;
  size_t n;
} dt_fit_error;
dt_status dt_fit_compare(const dt_fit *fit, dt_law law, const dt_fit_sample *samples, size_t count, int32_t alignment,
                         int32_t held_out, dt_fit_error *error);

/* K_act: 95th percentile over burst starts t of the number of bursts that start in [t, t + window_s), window Q/R.
 * starts_s is scratch afterwards. */
double dt_fit_active_producers(double *starts_s, size_t count, double window_s);

#endif
