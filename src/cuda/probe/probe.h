/* The probe on the GPUs of this process, one rank a GPU, over fabric `cuda`. */
#ifndef DT_CUDA_PROBE_H
#define DT_CUDA_PROBE_H

#include <cuda_runtime_api.h>

#include "burst.h"
#include "comm/fabric.h"
#include "latency.h"
#include "model/probe.h"

/* One sender's part of every window; the producers of a burst divide it. */
#define DT_PROBE_AREA_BYTES ((size_t)64 << 20)

typedef struct dt_cuda_probe {
  int32_t ranks, sms;
  dt_comm *endpoints[DT_BURST_RANKS];
  dt_window *controls[DT_BURST_RANKS], *areas[DT_BURST_RANKS]; /* as each rank sees them */
  cudaStream_t streams[DT_BURST_RANKS];
  unsigned char *sources[DT_BURST_RANKS]; /* local memory that loads and copies read */
  dt_burst_stamp *stamps[DT_BURST_RANKS];
  uint32_t *counts[DT_BURST_RANKS];
  uint64_t *clocks[DT_BURST_RANKS];
  uint32_t arrivals[DT_BURST_RANKS];
  uint32_t epoch, latency_value;
  double hz, timer_step_s; /* SM clock by globaltimer, and the timer's resolution */
  dt_burst_stamp *host_stamps;
  uint32_t *host_counts;
  const char *cannot; /* why patterns between GPUs are not there; NULL: they are */
  char cannot_text[256];
} dt_cuda_probe;

/* ranks: GPUs to use; 0: all. DT_ERR_NO_DEVICE without a GPU. Without peer access the probe has one rank, and `cannot`
 * says why. */
dt_status dt_cuda_probe_create(int32_t ranks, dt_cuda_probe **probe);
void dt_cuda_probe_destroy(dt_cuda_probe *probe);
/* The experiment as a machine of probe.h; it borrows the probe. */
void dt_cuda_probe_machine(dt_cuda_probe *probe, dt_probe_machine *machine);
/* Measures the SM clock again. */
dt_status dt_cuda_probe_clock(dt_cuda_probe *probe);

/* Seconds per iteration. */
dt_status dt_cuda_probe_latency(dt_cuda_probe *probe, dt_latency_kind kind, uint32_t iterations, double *seconds);
dt_status dt_cuda_probe_launch(dt_cuda_probe *probe, double *launch_s, double *launch_and_wait_s);

#endif
