#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cuda/driver.h"
#include "cuda/fabric.h"

/* Collective calls of a fabric block, so each rank makes them on a thread of its own. */
typedef struct rank_call {
  dt_cuda_probe *probe;
  int32_t rank;
  dt_status (*call)(dt_cuda_probe *, int32_t);
  dt_status status;
  char detail[256];
} rank_call;

static void *run_rank(void *argument) {
  rank_call *c = argument;
  c->status = c->call(c->probe, c->rank);
  if (c->status) {
    snprintf(c->detail, sizeof c->detail, "%s", dt_error_detail());
    if (c->probe->endpoints[c->rank]) dt_comm_abort(c->probe->endpoints[c->rank], c->status, c->detail);
  }
  return NULL;
}

static dt_status on_every_rank(dt_cuda_probe *probe, dt_status (*call)(dt_cuda_probe *, int32_t)) {
  rank_call calls[DT_BURST_RANKS];
  pthread_t threads[DT_BURST_RANKS];
  int32_t started = 0;
  for (; started < probe->ranks; started++) {
    calls[started] = (rank_call){.probe = probe, .rank = started, .call = call};
    if (pthread_create(&threads[started], NULL, run_rank, &calls[started])) break;
  }
  for (int32_t r = started; r < probe->ranks; r++)
    dt_comm_abort(probe->endpoints[r], DT_ERR_SYSTEM, "no thread for a rank");
  for (int32_t r = 0; r < started; r++) pthread_join(threads[r], NULL);
  if (started < probe->ranks) return dt_fail(DT_ERR_SYSTEM, "no thread for rank %d", started);
  const rank_call *worst = NULL; /* a rank's own error says more than a peer's */
  for (int32_t r = 0; r < started; r++)
    if (calls[r].status && (!worst || worst->status == DT_ERR_PEER)) worst = &calls[r];
  return worst ? dt_fail(worst->status, "%s", worst->detail) : DT_OK;
}

static dt_status make_endpoint(dt_cuda_probe *probe, int32_t rank) {
  dt_comm *control = probe->endpoints[rank], *endpoint = NULL;
  dt_status status = dt_comm_create_cuda(control, rank, &endpoint);
  if (!status) probe->endpoints[rank] = endpoint;
  return status;
}

static dt_status make_memory(dt_cuda_probe *probe, int32_t rank) {
  dt_status status = dt_comm_alloc(probe->endpoints[rank], sizeof(dt_burst_control) + 4096, &probe->controls[rank]);
  if (!status)
    status = dt_comm_alloc(probe->endpoints[rank], DT_PROBE_AREA_BYTES * (size_t)probe->ranks, &probe->areas[rank]);
  if (status) return status;
  size_t producers = (size_t)probe->sms;
  cudaError_t error = cudaSetDevice(rank);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&probe->streams[rank], cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaMalloc((void **)&probe->sources[rank], DT_PROBE_AREA_BYTES);
  if (error == cudaSuccess) error = cudaMemset(probe->sources[rank], 0x5a, DT_PROBE_AREA_BYTES);
  if (error == cudaSuccess)
    error = cudaMalloc((void **)&probe->stamps[rank], producers * DT_BURST_SAMPLES * sizeof(dt_burst_stamp));
  if (error == cudaSuccess) error = cudaMalloc((void **)&probe->counts[rank], producers * sizeof(uint32_t));
  if (error == cudaSuccess) error = cudaMalloc((void **)&probe->clocks[rank], 4 * sizeof(uint64_t));
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  return dt_cuda_check(error, "probe memory");
}

static dt_status make_ranks(dt_cuda_probe *probe, int32_t ranks) {
  dt_comm_config config;
  dt_comm_config_init(&config);
  probe->ranks = ranks;
  dt_status status = dt_comm_create_local(ranks, &config, probe->endpoints);
  if (!status) status = on_every_rank(probe, make_endpoint);
  if (!status) status = on_every_rank(probe, make_memory);
  return status;
}

static void release_ranks(dt_cuda_probe *probe) {
  for (int32_t r = 0; r < probe->ranks; r++) {
    cudaSetDevice(r);
    cudaDeviceSynchronize();
    cudaFree(probe->sources[r]), cudaFree(probe->stamps[r]), cudaFree(probe->counts[r]), cudaFree(probe->clocks[r]);
    if (probe->streams[r]) cudaStreamDestroy(probe->streams[r]);
    probe->sources[r] = NULL, probe->stamps[r] = NULL, probe->counts[r] = NULL, probe->clocks[r] = NULL;
    probe->streams[r] = NULL;
  }
  for (int32_t r = 0; r < probe->ranks; r++) {
    dt_comm_destroy(probe->endpoints[r]);
    probe->endpoints[r] = NULL, probe->controls[r] = NULL, probe->areas[r] = NULL;
  }
}

dt_status dt_cuda_probe_clock(dt_cuda_probe *probe) {
  uint64_t results[3] = {0};
  cudaError_t error = cudaSetDevice(0);
  if (error == cudaSuccess) error = dt_clock_launch_kernel(3000000, probe->clocks[0], probe->streams[0]);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(results, probe->clocks[0], sizeof results, cudaMemcpyDeviceToHost, probe->streams[0]);
  if (error == cudaSuccess) error = cudaStreamSynchronize(probe->streams[0]);
  dt_status status = dt_cuda_check(error, "clock");
  if (status) return status;
  if (!results[1]) return dt_fail(DT_ERR_DEVICE, "clock: globaltimer stands still");
  probe->hz = 1e9 * (double)results[0] / (double)results[1];
  probe->timer_step_s = 1e-9 * (double)results[2];
  return DT_OK;
}

dt_status dt_cuda_probe_create(int32_t ranks, dt_cuda_probe **out) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  int devices = dt_cuda_device_count();
  int32_t want = ranks > 0 ? ranks : devices;
  if (want > devices) return dt_fail(DT_ERR_NO_DEVICE, "ranks: %d; this machine has %d GPUs", want, devices);
  if (want > DT_BURST_RANKS) want = DT_BURST_RANKS;
  dt_cuda_probe *probe = calloc(1, sizeof *probe);
  if (!probe) return dt_fail(DT_ERR_MEMORY, "probe: %zu bytes", sizeof *probe);
  int major = 0, sms = 0;
  cudaError_t error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  status = dt_cuda_check(error, "device attributes");
  if (!status && major != 9)
    status = dt_fail(DT_ERR_UNSUPPORTED, "compute capability: %d; the kernels are built for 9 (Hopper)", major);
  probe->sms = sms;
  size_t stamps = (size_t)sms * DT_BURST_SAMPLES;
  if (!status) {
    error = cudaMallocHost((void **)&probe->host_stamps, stamps * sizeof(dt_burst_stamp));
    if (error == cudaSuccess) error = cudaMallocHost((void **)&probe->host_counts, (size_t)sms * sizeof(uint32_t));
    status = dt_cuda_check(error, "pinned memory");
  }
  if (!status) status = make_ranks(probe, want);
  if (status == DT_ERR_UNSUPPORTED && want > 1 && probe->endpoints[0]) { /* one GPU can still be measured alone */
    snprintf(probe->cannot_text, sizeof probe->cannot_text, "%s", dt_error_detail());
    release_ranks(probe);
    status = make_ranks(probe, 1);
    probe->cannot = probe->cannot_text;
  } else if (want == 1) {
    probe->cannot = "one GPU";
  }
  if (!status) status = dt_cuda_probe_clock(probe);
  if (status)
    dt_cuda_probe_destroy(probe);
  else
    *out = probe;
  return status;
}

void dt_cuda_probe_destroy(dt_cuda_probe *probe) {
  if (!probe) return;
  release_ranks(probe);
  cudaFreeHost(probe->host_stamps), cudaFreeHost(probe->host_counts);
  free(probe);
}
