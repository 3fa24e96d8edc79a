/* The GPUs of this process as a machine to calibrate: facts, clocks, what is measured beside the bursts. */
#include <stdio.h>
#include <stdlib.h>

#include "calibrate/calibration.h"
#include "core/error.h"
#include "cuda/driver.h"
#include "cuda/libraries.h"
#include "extras.h"

/* NVML, loaded at run time, only ever reads. */
enum { NVML_SM = 1, NVML_MEMORY = 2 };
/* Reasons that slow a clock down: power, thermal and hardware; not idle, not a clock that was set. */
static const unsigned long long slowdown = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;

typedef struct nvml {
  int (*init)(void);
  int (*device)(unsigned index, void **device);
  int (*clock)(void *device, int type, unsigned *mhz);
  int (*reasons)(void *device, unsigned long long *reasons);
  int (*driver)(char *text, unsigned size);
} nvml;

typedef struct cuda_device {
  dt_cuda_probe *probe;
  nvml nvml;
  int has_nvml;
} cuda_device;

static int load_nvml(nvml *api) {
  static const char *const names[] = {"libnvidia-ml.so.1", "libnvidia-ml.so"};
  static const char *const symbols[] = {"nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetClockInfo",
                                        "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlSystemGetDriverVersion"};
  return dt_library_load(names, 2, symbols, sizeof symbols / sizeof *symbols, api) && api->init() == 0;
}

/* The SM clock is counted by the probe itself against the device's timer, under way: a reading between kernels may be
 * an idle one. */
static dt_status read_clocks(void *context, dt_platform_clocks *clocks, int *throttled) {
  cuda_device *device = context;
  dt_status status = dt_cuda_probe_clock(device->probe);
  if (status) return status;
  *clocks = (dt_platform_clocks){.sm_hz = device->probe->hz};
  *throttled = 0;
  for (int32_t r = 0; device->has_nvml && r < device->probe->ranks; r++) {
    void *handle;
    unsigned mhz = 0;
    unsigned long long reasons = 0;
    if (device->nvml.device((unsigned)r, &handle)) continue;
    if (!device->nvml.clock(handle, NVML_MEMORY, &mhz)) clocks->memory_hz = 1e6 * mhz;
    if (!device->nvml.reasons(handle, &reasons) && (reasons & slowdown)) *throttled = 1;
  }
  return DT_OK;
}

static dt_status measure_extras(void *context, int quick, dt_platform *platform) {
  cuda_device *device = context;
  int32_t rounds = quick ? DT_EXTRA_QUICK_ROUNDS : DT_EXTRA_ROUNDS;
  dt_status status = dt_extras_stores(device->probe, rounds, platform);
  if (!status) status = dt_extras_copies(device->probe, rounds, platform);
  if (!status && quick) return dt_platform_add_note(platform, "matrix products and attention were not measured: quick");
  if (!status) status = dt_extras_compute(device->probe, rounds, platform);
  if (!status) status = dt_extras_engine(device->probe, rounds, platform);
  if (!status) status = dt_extras_ends(device->probe, rounds, platform);
  return status ? status : dt_extras_attention(device->probe, rounds, platform);
}

static void close_device(void *context) {
  cuda_device *device = context;
  dt_cuda_probe_destroy(device->probe);
  free(device);
}

dt_status dt_calibration_open_cuda(int32_t ranks, dt_calibration_device *out) {
  cuda_device *device = calloc(1, sizeof *device);
  if (!device) return dt_fail(DT_ERR_MEMORY, "device: %zu bytes", sizeof *device);
  dt_status status = dt_cuda_probe_create(ranks, &device->probe);
  if (status) {
    free(device);
    return status;
  }
  device->has_nvml = load_nvml(&device->nvml);
  *out = (dt_calibration_device){.context = device,
                                 .unit_bytes = 512,
                                 .engine_unit_bytes = DT_BURST_CHUNK_BYTES,
                                 .producer_bytes = 32768, /* a tile's bytes in both papers */
                                 .bursts = 40,
                                 .detail = 2,
                                 .stores = DT_PROBE_STORE,
                                 .pilot_s = 1e-3,
                                 .rounds_s = 60.0,
                                 .count = device->probe->ranks,
                                 .cannot = device->probe->cannot,
                                 .clocks = read_clocks,
                                 .extras = measure_extras,
                                 .close = close_device};
  dt_cuda_probe_machine(device->probe, &out->machine);
  snprintf(out->kind, sizeof out->kind, "cuda");
  struct cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) == cudaSuccess)
    snprintf(out->name, sizeof out->name, "%s", properties.name);
  if (!device->has_nvml || device->nvml.driver(out->driver, sizeof out->driver)) {
    int version = 0;
    cudaDriverGetVersion(&version);
    snprintf(out->driver, sizeof out->driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
  }
  return DT_OK;
}
