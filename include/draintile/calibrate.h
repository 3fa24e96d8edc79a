/* Measures a machine once: the constants of the Burst-Gap model with their intervals, and what else prices a schedule,
 * as a platform file. Every experiment runs once a round, rounds one after the other, so that drift touches all alike;
 * intervals come from resampling rounds.
 *
 *     dt_calibrate_config_init(&config);
 *     dt_calibrate(&config, &platform);                 on the GPUs of this process
 *     dt_platform_save(platform, "platform.json");
 *     dt_verify(&config, platform, &verification);      other settings, measured anew
 */
#ifndef DRAINTILE_CALIBRATE_H
#define DRAINTILE_CALIBRATE_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/platform.h>
#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* done of total, in seconds of estimated work. */
typedef void (*dt_calibrate_progress_fn)(void *context, double done, double total);

typedef struct dt_calibrate_config {
  size_t size;       /* sizeof, set by dt_calibrate_config_init */
  dt_comm *comm;     /* the CPU fabric to measure: the calls are then collective over its ranks (at least 2 for
                        anything between ranks). NULL: the GPUs of this process */
  int32_t ranks;     /* GPUs; 0: all */
  int32_t producers; /* comm: threads a sender stores with, 1 to 8 (default 1). GPUs: always one a multiprocessor */
  int32_t quick;     /* fewer settings and rounds: 20 s at most on two GPUs; else 120 s */
  uint64_t seed;     /* of the bootstrap */
  dt_calibrate_progress_fn progress; /* may be NULL */
  void *progress_context;
} dt_calibrate_config;
void dt_calibrate_config_init(dt_calibrate_config *config);

/* The platform belongs to the caller; with a comm, ranks other than 0 receive NULL. What this machine cannot measure is
 * left out, and a note of the platform says why. DT_ERR_NO_DEVICE, DT_ERR_UNSUPPORTED (built without CUDA, another kind
 * of GPU); DT_ERR_INPUT (nothing drained: the samples cannot fix a constant). */
dt_status dt_calibrate(const dt_calibrate_config *config, dt_platform **platform);

/* One setting of the held-out set. */
typedef struct dt_verify_row {
  const char *pattern, *operation, *alignment; /* static strings; alignment as of dt_platform_issue */
  int32_t producers;
  double producer_bytes;
  double gap_s;            /* as measured; "drained": long */
  double issue_s;          /* measured, mean over producers, median over rounds */
  dt_interval predicted_s; /* by the model with the platform's constants */
  double error;            /* |predicted - measured|/measured */
  int64_t n;               /* rounds */
  double *samples_s;       /* [n] issue times by round; the verification's */
} dt_verify_row;

typedef struct dt_verify_group {
  const char *pattern, *operation, *alignment;
  int64_t n;
  double error_median, error_p90;
  int32_t pass; /* median at most 5 %, 90th percentile at most 15 % */
} dt_verify_group;

typedef struct dt_verification {
  dt_verify_row *rows;
  size_t row_count;
  dt_verify_group *groups;
  size_t group_count;
  int64_t late_settings; /* aligned settings left out: their bursts started together in under half of the rounds */
  double issue_error_median, issue_error_p90; /* over all rows */
  double rate_half_width;                     /* half of R's interval, relative */
  double capacity_half_width;                 /* the widest of Q's, relative */
  double both_ways_over_one_way;              /* R both ways, each way, over R one way; 0: not measured */
  int32_t pass; /* every group passes, rate_half_width <= 2 %, capacity_half_width <= 10 %, both ways within 2 % */
} dt_verification;

/* Measures settings that no constant was fitted to and compares. Collective as dt_calibrate; ranks other than 0 pass
 * NULL for the platform and receive NULL. DT_ERR_INPUT names what the platform lacks. */
dt_status dt_verify(const dt_calibrate_config *config, const dt_platform *platform, dt_verification **verification);
void dt_verification_destroy(dt_verification *verification);

/* What the burst model says with this platform's constants for one setting; the rows of dt_verify are made with it.
 * alignment: "free"; "aligned": the second burst of a pair, gap_s after an isolated first; "drained": isolated;
 * "alone": free-running bursts of a single producer, which is always aligned with itself. */
dt_status dt_platform_issue(const dt_platform *platform, const char *pattern, const char *operation,
                            const char *alignment, double producers, double producer_bytes, double gap_s,
                            dt_interval *issue_s);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
