#include <draintile/calibrate.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calibration.h"
#include "core/error.h"
#include "core/statistics.h"
#include "cpu/probe.h"

void dt_calibrate_config_init(dt_calibrate_config *config) {
  *config = (dt_calibrate_config){.size = sizeof *config, .producers = 1, .seed = 1};
}

static dt_status cpu_clocks(void *context, dt_platform_clocks *clocks, int *throttled) {
  (void)context;
  *clocks = (dt_platform_clocks){0.0, 0.0};
  *throttled = 0;
  return DT_OK;
}

static void close_cpu(void *context) {
  dt_cpu_probe_end(context);
  dt_cpu_probe_destroy(context);
}

static void read_cpu_name(char *name, size_t size) {
  char line[256];
  snprintf(name, size, "unknown processor");
  FILE *file = fopen("/proc/cpuinfo", "r");
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (strncmp(line, "model name", 10) != 0 || !colon) continue;
    line[strcspn(line, "\n")] = 0;
    snprintf(name, size, "%.*s", (int)size - 1, colon + 2);
    break;
  }
  if (file) fclose(file);
}

static dt_status open_cpu(const dt_calibrate_config *config, dt_calibration_device *device) {
  dt_cpu_probe *probe = NULL;
  dt_status status = dt_cpu_probe_create(config->comm, config->producers, &probe);
  if (status) return status;
  if (dt_comm_rank(config->comm) != 0) {
    status = dt_cpu_probe_serve(probe);
    dt_cpu_probe_destroy(probe);
    device->context = NULL;
    return status;
  }
  *device = (dt_calibration_device){.context = probe,
                                    .unit_bytes = 64,
                                    .engine_unit_bytes = 64,
                                    .bursts = 10,
                                    .detail = 1,
                                    .stores = DT_PROBE_PUT,
                                    .pilot_s = 0.05,
                                    .rounds_s = 30.0,
                                    .count = dt_comm_ranks(config->comm),
                                    .cannot = dt_comm_ranks(config->comm) < 2 ? "one rank" : NULL,
                                    .clocks = cpu_clocks,
                                    .close = close_cpu};
  snprintf(device->kind, sizeof device->kind, "cpu");
  snprintf(device->driver, sizeof device->driver, "fabric %s", dt_comm_fabric(config->comm));
  read_cpu_name(device->name, sizeof device->name);
  dt_cpu_probe_machine(probe, &device->machine);
  return DT_OK;
}

dt_status dt_calibration_open(const dt_calibrate_config *config, dt_calibration_device *device) {
  if (config->size != sizeof *config)
    return dt_fail(DT_ERR_ARGUMENT, "config.size: %zu; %zu, set by dt_calibrate_config_init", config->size,
                   sizeof *config);
  return config->comm ? open_cpu(config, device) : dt_calibration_open_cuda(config->ranks, device);
}

#ifndef DT_WITH_CUDA
dt_status dt_calibration_open_cuda(int32_t ranks, dt_calibration_device *device) {
  (void)ranks, (void)device;
  return dt_fail(DT_ERR_NO_DEVICE, "device: cuda; this build has no CUDA parts");
}
#endif

static void now_text(char *text, size_t size) {
  time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(text, size, "%Y-%m-%dT%H:%M:%SZ", &utc);
}

/* Clocks are in the platform's device, which is fixed when it is made: so it is made at the end. */
static dt_status make_platform(const dt_calibration_device *device, const dt_calibration *calibration,
                               dt_platform_clocks before, int throttled_before, int quick, dt_platform **out) {
  char date[32];
  now_text(date, sizeof date);
  dt_platform_device facts = {.kind = device->kind,
                              .name = device->name,
                              .driver = device->driver,
                              .date = date,
                              .count = device->count,
                              .clocks_before = before};
  int throttled = 0;
  dt_status status = device->clocks(device->context, &facts.clocks_after, &throttled);
  if (status) return status;
  double drift = before.sm_hz > 0.0 ? fabs(facts.clocks_after.sm_hz / before.sm_hz - 1.0) : 0.0;
  facts.throttled = throttled || throttled_before || drift > 0.01;
  dt_platform *platform = NULL;
  status = dt_platform_create(&facts, &platform);
  if (status) return status;
  char note[384];
  snprintf(note, sizeof note, "%d rounds of interleaved experiments%s", calibration->rounds, quick ? ", quick" : "");
  status = dt_platform_add_note(platform, note);
  if (!status && device->cannot) {
    snprintf(note, sizeof note, "patterns between ranks were not measured: %s", device->cannot);
    status = dt_platform_add_note(platform, note);
  }
  if (!status) status = dt_calibration_tables(calibration, platform);
  if (!status && device->extras) status = device->extras(device->context, quick, platform);
  if (status)
    dt_platform_destroy(platform);
  else
    *out = platform;
  return status;
}

dt_status dt_calibrate(const dt_calibrate_config *config, dt_platform **platform) {
  dt_calibration_device device = {.context = NULL};
  dt_status status = dt_calibration_open(config, &device);
  if (status) return status;
  if (!device.context) { /* a rank that served */
    *platform = NULL;
    return DT_OK;
  }
  dt_platform_clocks before;
  int throttled = 0;
  dt_calibration calibration = {0};
  status = device.clocks(device.context, &before, &throttled);
  if (!status) status = dt_calibration_run(config, &device, 0, &calibration);
  if (!status) status = make_platform(&device, &calibration, before, throttled, config->quick, platform);
  dt_calibration_release(&calibration);
  device.close(device.context);
  return status;
}
