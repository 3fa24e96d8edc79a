/* Which bursts a calibration runs: the settings that are fitted and, apart from them, those held out to verify with.
 * Settings are fractions of a machine's own scales (its producers, a base burst, V/R), so that one design serves a GPU
 * and a paced CPU link.
 */
#ifndef DT_MODEL_EXPERIMENTS_H
#define DT_MODEL_EXPERIMENTS_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#include "probe.h"

typedef struct dt_experiment {
  dt_probe_setting setting;
  int32_t held_out;
} dt_experiment;

typedef struct dt_design {
  int32_t operation, pattern;
  int32_t producers;       /* all of the machine's */
  int64_t producer_bytes;  /* the base burst; V = producers*producer_bytes should be 1.5 to 3 times Q */
  int64_t unit_bytes;      /* bursts are multiples of this */
  double bytes_per_s;      /* R, roughly */
  double issue_s_per_byte; /* T0 over B, roughly, not less than the truth */
  double capacity_bytes;   /* Q, roughly; 0: not known, and many producers that stagger themselves */
  double pilot_s;          /* shortest run of the pilot; 0: 20 ms */
  int32_t bursts;          /* a run's, about */
  int32_t detail;          /* 0: R, T0 and Q only; 1: and aligned pairs, fewer producers; 2: and R by producers */
} dt_design;

enum { DT_EXPERIMENTS = 256 };
typedef struct dt_experiments {
  dt_experiment list[DT_EXPERIMENTS];
  size_t count;
} dt_experiments;

/* Appends the design's settings. DT_ERR_INTERNAL when they do not fit. */
dt_status dt_design_fit(const dt_design *design, dt_experiments *experiments);
dt_status dt_design_held_out(const dt_design *design, dt_experiments *experiments);

/* One setting of a design: `gap` is G/(V/R) when free, period/(V/R) when aligned, unused when drained. */
dt_probe_setting dt_design_setting(const dt_design *design, int32_t alignment, double producers, double bytes,
                                   double gap);

/* Finds bytes_per_s and issue_s_per_byte by a few runs, and a base burst where producer_bytes is 0: for links of
 * unknown speed. */
dt_status dt_design_pilot(const dt_probe_machine *machine, dt_design *design);

/* Runs every experiment once a round, in order, rounds one after the other: A B C A B C. results[rounds][count]; a run
 * of which no burst counted has bursts 0. progress may be NULL. */
typedef void (*dt_progress_fn)(void *context, double done, double total);
dt_status dt_experiments_run(const dt_probe_machine *machine, const dt_experiments *experiments, int32_t rounds,
                             dt_progress_fn progress, void *context, dt_probe_result *results);

/* Samples of what counted. Aligned bursts that did not start together (spread above a tenth of V/R, because the burst
 * before was still being issued) are left out and counted in *late. samples[rounds*count]; returns how many. */
size_t dt_experiments_samples(const dt_design *design, const dt_experiments *experiments, int32_t rounds,
                              const dt_probe_result *results, dt_fit_sample *samples, size_t *late);

/* The alignment that a setting's bursts have: free-running ones of a single producer are DT_FIT_ALONE. */
int32_t dt_design_alignment(const dt_probe_setting *setting);

#endif
