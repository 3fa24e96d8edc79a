/* What dt_calibrate and dt_verify share: the machine under the probe, and the sets of bursts that it is asked for. */
#ifndef DT_CALIBRATION_H
#define DT_CALIBRATION_H

#include <draintile/calibrate.h>

#include "model/experiments.h"

/* A machine to calibrate. close releases all of it. */
typedef struct dt_calibration_device {
  dt_probe_machine machine;
  void *context;
  int64_t unit_bytes, engine_unit_bytes; /* multiples of bursts: stores and puts; bulk and tensor copies */
  int64_t producer_bytes;                /* the base burst; 0: find one */
  int32_t bursts, detail;                /* of a run; of the designs at most */
  int32_t stores;                        /* operation of the main sets */
  double pilot_s;                        /* shortest run of the pilot */
  double rounds_s;                       /* time for all rounds; quick: a sixth of it */
  char kind[8], name[256], driver[96];
  int64_t count;
  const char *cannot; /* why patterns are missing; NULL: none is */
  dt_status (*clocks)(void *context, dt_platform_clocks *clocks, int *throttled); /* also before every round */
  dt_status (*extras)(void *context, int quick, dt_platform *platform);           /* may be NULL */
  void (*close)(void *context);
} dt_calibration_device;

/* Serves rank 0 and returns with device->context NULL on the other ranks of a comm. */
dt_status dt_calibration_open(const dt_calibrate_config *config, dt_calibration_device *device);
/* The GPUs of this process (src/cuda/probe); DT_ERR_UNSUPPORTED in a build without CUDA. */
dt_status dt_calibration_open_cuda(int32_t ranks, dt_calibration_device *device);

/* One operation and pattern: its settings, results of all rounds, samples and fit. */
typedef struct dt_calibration_set {
  int32_t operation, pattern, fitted;
  dt_design design;
  dt_experiments experiments;
  dt_probe_result *results; /* [rounds][experiments.count] */
  dt_fit_sample *samples;
  size_t sample_count, late;
  dt_fit fit;
} dt_calibration_set;

enum { DT_CALIBRATION_SETS = 12, DT_CALIBRATION_ROUNDS = 64 };
typedef struct dt_calibration {
  dt_calibration_set *sets; /* [set_count] */
  size_t set_count;
  int32_t rounds;                      /* at most DT_CALIBRATION_ROUNDS */
  double sm_hz[DT_CALIBRATION_ROUNDS]; /* before each round; 0: not read */
} dt_calibration;

/* Designs and runs every set that the machine can; held_out: those of dt_verify. Rounds go over all sets in turn. */
dt_status dt_calibration_run(const dt_calibrate_config *config, const dt_calibration_device *device, int held_out,
                             dt_calibration *calibration);
void dt_calibration_release(dt_calibration *calibration);

/* Rows, groups and summary from held-out sets that were run. The verification is all zero before; whatever the outcome,
 * dt_verification_destroy's. */
dt_status dt_verification_fill(const dt_calibration *calibration, const dt_platform *platform,
                               dt_verification *verification);

/* Constants and tables of the fitted sets, and the measured issue times of all. */
dt_status dt_calibration_tables(const dt_calibration *calibration, dt_platform *platform);

#endif
