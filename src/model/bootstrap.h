/* Resampling whole rounds with replacement: a round of interleaved experiments shares one state of the machine, so its
 * samples are not independent. With fewer than 5 rounds each sample counts as a round of its own.
 */
#ifndef DT_MODEL_BOOTSTRAP_H
#define DT_MODEL_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/model.h>
#include <draintile/status.h>

typedef struct dt_resample dt_resample;

/* rounds[count]: of each sample. Starts as the whole sample, every round once. DT_ERR_MEMORY. */
dt_status dt_resample_create(const int32_t *rounds, size_t count, uint64_t seed, dt_resample **resample);
void dt_resample_destroy(dt_resample *resample);
void dt_resample_draw(dt_resample *resample); /* the next replicate */

/* Collects values for a median: each as often as its sample's round was drawn. */
void dt_resample_clear(dt_resample *resample);
void dt_resample_take(dt_resample *resample, size_t sample, double value);
size_t dt_resample_count(const dt_resample *resample);
double dt_resample_median(dt_resample *resample);          /* NaN when nothing was taken */
dt_status dt_resample_status(const dt_resample *resample); /* DT_ERR_MEMORY: a value taken found no room */

/* The median of independent samples with its 95 % bootstrap interval. DT_ERR_MEMORY. */
dt_status dt_bootstrap_median(const double *samples, size_t count, int32_t replicates, uint64_t seed,
                              dt_interval *interval);

#endif
