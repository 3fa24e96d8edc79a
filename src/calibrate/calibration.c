#include "calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

typedef struct set_row {
  int32_t operation; /* -1: the device's stores */
  int32_t pattern, detail, fitted;
} set_row;

/* The local control is run with the settings of the first set and not fitted: it shows that no law of a link holds
 * there. */
static const set_row set_rows[] = {
    {-1, DT_PROBE_ONE_WAY, 2, 1},
    {-1, DT_PROBE_BOTH_WAYS, 1, 1},
    {-1, DT_PROBE_ALL_TO_ALL, 1, 1},
    {-1, DT_PROBE_MANY_TO_ONE, 1, 1},
    {DT_PROBE_BULK, DT_PROBE_ONE_WAY, 1, 1},
    {DT_PROBE_TENSOR, DT_PROBE_ONE_WAY, 1, 1},
    {DT_PROBE_BULK, DT_PROBE_BOTH_WAYS, 1, 1},
    {-1, DT_PROBE_LOCAL, 0, 0},
};

static int can_run(const dt_calibration_device *device, const set_row *row) {
  int32_t operation = row->operation < 0 ? device->stores : row->operation;
  return (device->machine.patterns >> row->pattern & 1) && (device->machine.operations >> operation & 1);
}

static dt_status design_set(const dt_calibration_device *device, const set_row *row, int quick, int held_out,
                            const dt_design *pilot, dt_calibration_set *set) {
  set->operation = row->operation < 0 ? device->stores : row->operation;
  set->pattern = row->pattern;
  set->fitted = row->fitted;
  set->design = *pilot;
  set->design.operation = set->operation;
  set->design.pattern = set->pattern;
  int engine = set->operation == DT_PROBE_BULK || set->operation == DT_PROBE_TENSOR;
  set->design.unit_bytes = engine ? device->engine_unit_bytes : device->unit_bytes;
  set->design.detail = row->detail < device->detail ? row->detail : device->detail;
  if (quick && set->design.detail > 0) set->design.detail--;
  if (held_out) return row->fitted ? dt_design_held_out(&set->design, &set->experiments) : DT_OK;
  return dt_design_fit(&set->design, &set->experiments);
}

/* How long one round takes, by what its settings ask for. */
static double round_s(const dt_calibration *calibration) {
  double sum = 0.0;
  for (size_t s = 0; s < calibration->set_count; s++) {
    const dt_experiments *e = &calibration->sets[s].experiments;
    for (size_t i = 0; i < e->count; i++) {
      const dt_probe_setting *p = &e->list[i].setting;
      sum += 0.4e-3 + (p->alignment == DT_FIT_FREE ? p->window_s : p->trains * p->train_s);
    }
  }
  return sum;
}

static dt_status design_sets(const dt_calibrate_config *config, const dt_calibration_device *device, int held_out,
                             dt_calibration *c) {
  dt_design pilot = {.operation = device->stores,
                     .pattern = device->machine.patterns >> DT_PROBE_ONE_WAY & 1 ? DT_PROBE_ONE_WAY : DT_PROBE_LOCAL,
                     .producers = device->machine.max_producers,
                     .producer_bytes = device->producer_bytes,
                     .unit_bytes = device->unit_bytes,
                     .pilot_s = device->pilot_s,
                     .bursts = device->bursts};
  dt_status status = dt_design_pilot(&device->machine, &pilot);
  for (size_t i = 0; i < sizeof set_rows / sizeof *set_rows && !status; i++) {
    if (!can_run(device, &set_rows[i])) continue;
    status = design_set(device, &set_rows[i], config->quick, held_out, &pilot, &c->sets[c->set_count++]);
  }
  return status;
}

static dt_status allocate_results(dt_calibration *c) {
  for (size_t s = 0; s < c->set_count; s++) {
    size_t total = (size_t)c->rounds * c->sets[s].experiments.count + 1;
    c->sets[s].results = calloc(total, sizeof *c->sets[s].results);
    c->sets[s].samples = calloc(total, sizeof *c->sets[s].samples);
    if (!c->sets[s].results || !c->sets[s].samples) return dt_fail(DT_ERR_MEMORY, "calibration: %zu runs", total);
  }
  return DT_OK;
}

static dt_status run_rounds(const dt_calibrate_config *config, const dt_calibration_device *device, dt_calibration *c) {
  dt_status status = DT_OK;
  for (int32_t round = 0; round < c->rounds && !status; round++) {
    dt_platform_clocks clocks;
    int throttled;
    status = device->clocks(device->context, &clocks, &throttled);
    c->sm_hz[round] = clocks.sm_hz;
    for (size_t s = 0; s < c->set_count && !status; s++) {
      if (config->progress) {
        double at = round + (double)s / (double)c->set_count;
        config->progress(config->progress_context, at, c->rounds);
      }
      dt_calibration_set *set = &c->sets[s];
      status = dt_experiments_run(&device->machine, &set->experiments, 1, NULL, NULL,
                                  set->results + (size_t)round * set->experiments.count);
    }
  }
  if (config->progress && !status) config->progress(config->progress_context, c->rounds, c->rounds);
  return status;
}

dt_status dt_calibration_run(const dt_calibrate_config *config, const dt_calibration_device *device, int held_out,
                             dt_calibration *calibration) {
  dt_calibration c = {.sets = calloc(DT_CALIBRATION_SETS, sizeof *c.sets)};
  if (!c.sets) return dt_fail(DT_ERR_MEMORY, "calibration: %d sets", DT_CALIBRATION_SETS);
  dt_status status = design_sets(config, device, held_out, &c);
  if (!status) {
    double budget_s = config->quick ? device->rounds_s / 6.0 : device->rounds_s;
    int32_t most = config->quick ? 40 : 48, least = config->quick ? 5 : 20;
    c.rounds = (int32_t)fmin(most, fmax(least, budget_s / round_s(&c)));
    status = allocate_results(&c);
  }
  if (!status) status = run_rounds(config, device, &c);
  for (size_t s = 0; s < c.set_count && !status; s++) {
    dt_calibration_set *set = &c.sets[s];
    set->sample_count =
        dt_experiments_samples(&set->design, &set->experiments, c.rounds, set->results, set->samples, &set->late);
    if (set->fitted && !held_out)
      status = dt_fit_samples(set->samples, set->sample_count, 1000, config->seed, &set->fit);
  }
  if (status)
    dt_calibration_release(&c);
  else
    *calibration = c;
  return status;
}

void dt_calibration_release(dt_calibration *calibration) {
  for (size_t s = 0; s < calibration->set_count; s++)
    free(calibration->sets[s].results), free(calibration->sets[s].samples);
  free(calibration->sets);
  *calibration = (dt_calibration){0};
}
