/* The burst experiment, whatever runs it: K producers, B bytes, gap G, many bursts. Settings, what a run yields, and
 * the summary of its stamps. Pure.
 */
#ifndef DT_MODEL_PROBE_H
#define DT_MODEL_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#include "fit.h"

typedef enum dt_probe_operation {
  DT_PROBE_STORE = 0,  /* 16-byte stores of registers */
  DT_PROBE_BULK = 1,   /* bulk copy, shared memory to peer */
  DT_PROBE_TENSOR = 2, /* tensor copy, shared memory to peer */
  DT_PROBE_PUT = 3     /* loads of local memory and stores; complete when remotely visible */
} dt_probe_operation;
const char *dt_probe_operation_name(int32_t operation); /* "st.v4", "bulk", "tensor", "put" */

typedef enum dt_probe_pattern {
  DT_PROBE_LOCAL = 0,      /* control: the same bursts to the sender's own memory */
  DT_PROBE_ONE_WAY = 1,    /* rank 0 to rank 1 */
  DT_PROBE_BOTH_WAYS = 2,  /* ranks 0 and 1 to each other */
  DT_PROBE_ALL_TO_ALL = 3, /* producers of every rank take turns over its peers */
  DT_PROBE_MANY_TO_ONE = 4 /* every rank but 0 to rank 0 */
} dt_probe_pattern;
const char *dt_probe_pattern_name(int32_t pattern);     /* "local", "one-way", ... */
const char *dt_probe_alignment_name(int32_t alignment); /* "free", "aligned", "drained", "alone" */

typedef enum dt_probe_third {
  DT_PROBE_NOTHING = 0,
  DT_PROBE_VISIBLE = 1, /* burst start to remote visibility */
  DT_PROBE_LOADS = 2    /* local loads issued right after the burst */
} dt_probe_third;

typedef struct dt_probe_setting {
  int32_t operation, pattern, alignment; /* dt_fit_alignment */
  int32_t producers;
  int64_t producer_bytes;
  double gap_s;              /* free: from the end of an issue to the start of the next */
  double window_s;           /* free: how long bursts are started; the first quarter is not counted */
  double period_s;           /* aligned: between the bursts of a train */
  double train_s;            /* aligned, drained: between trains, long enough to drain */
  int32_t per_train, trains; /* drained: per_train is 1 */
  int32_t third;
  double active_window_s; /* > 0: count K_act over this window */
} dt_probe_setting;

/* Means over producers and bursts, and over the sending ranks. */
typedef struct dt_probe_result {
  double issue_s;                  /* T */
  double issue_min_s, issue_max_s; /* least and most of the producers in one burst, mean over bursts */
  double gap_s;                    /* G as it was, not as it was asked for */
  double bytes_per_s;              /* V/(T+G) */
  double third_s;
  double start_spread_s;   /* last start minus first start of a burst */
  double active_producers; /* K_act */
  int64_t bursts;          /* counted, over all producers */
} dt_probe_result;

/* When one producer's bursts began and ended, in ticks from a common origin. */
typedef struct dt_probe_stamp {
  uint32_t start, end, third;
} dt_probe_stamp;

/* stamps[producers][stride], the first counts[p] valid. DT_ERR_INPUT when no burst counts; DT_ERR_MEMORY. */
dt_status dt_probe_summary(const dt_probe_setting *setting, const dt_probe_stamp *stamps, const uint32_t *counts,
                           size_t stride, double seconds_per_tick, dt_probe_result *result);

/* A machine to measure. */
typedef struct dt_probe_machine {
  void *context;
  int32_t max_producers;
  uint32_t patterns;   /* bit a dt_probe_pattern that it can run */
  uint32_t operations; /* bit a dt_probe_operation */
  dt_status (*run)(void *context, const dt_probe_setting *setting, dt_probe_result *result);
} dt_probe_machine;

#endif
