#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "cuda/driver.h"
#include "cuda/libraries.h"
#include "extras.h"

enum { LARGEST = 268435456 };

/* Elapsed seconds between two events around the caller's work. */
typedef struct stopwatch {
  cudaEvent_t begin, end;
} stopwatch;

static dt_status stopwatch_create(stopwatch *watch) {
  cudaError_t error = cudaEventCreate(&watch->begin);
  if (error == cudaSuccess) error = cudaEventCreate(&watch->end);
  return dt_cuda_check(error, "event");
}

static void stopwatch_destroy(stopwatch *watch) {
  if (watch->begin) cudaEventDestroy(watch->begin);
  if (watch->end) cudaEventDestroy(watch->end);
}

static cudaError_t stop(const stopwatch *watch, cudaStream_t stream, double *seconds) {
  float ms = 0.0f;
  cudaError_t error = cudaEventRecord(watch->end, stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(watch->end);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, watch->begin, watch->end);
  *seconds = ms * 1e-3;
  return error;
}

/* Copies of every size, `copies` in a row between the events. to_device 0: inside one device, bytes read and written.
 */
static dt_status copy_rates(dt_cuda_probe *probe, int32_t rounds, int to_device, const stopwatch *watch,
                            unsigned char *from, unsigned char *to, dt_extras_table *table, dt_platform *platform) {
  cudaStream_t stream = probe->streams[0];
  for (size_t bytes = to_device ? 65536 : LARGEST; bytes <= LARGEST; bytes *= 4) {
    double samples[DT_EXTRA_ROUNDS];
    int copies = bytes < 8388608 ? 8 : 2;
    for (int32_t r = -1; r < rounds; r++) { /* the first warms up */
      double seconds = 0.0;
      cudaError_t error = cudaEventRecord(watch->begin, stream);
      for (int i = 0; i < copies && error == cudaSuccess; i++)
        error = to_device ? cudaMemcpyPeerAsync(to, 1, from, 0, bytes, stream)
                          : cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
      if (error == cudaSuccess) error = stop(watch, stream, &seconds);
      if (error != cudaSuccess) return dt_cuda_check(error, "copy");
      if (r >= 0) samples[r] = copies * (to_device ? 1.0 : 2.0) * (double)bytes / seconds;
    }
    const double at[] = {(double)bytes};
    dt_status status = to_device
                           ? dt_extras_point(table, at, samples, (size_t)rounds)
                           : dt_extras_constant(platform, "memory_bytes_per_s", samples, (size_t)rounds,
                                                "cudaMemcpyAsync inside one device, 256 MiB, bytes read and written");
    if (status) return status;
  }
  return DT_OK;
}

static int all_to_all(const dt_cuda_probe *probe, const dt_nccl *api, void **comms, unsigned char **send,
                      unsigned char **receive, size_t bytes) {
  size_t part = bytes / (size_t)probe->ranks;
  int error = api->group_start();
  for (int32_t r = 0; r < probe->ranks && !error; r++)
    for (int32_t p = 0; p < probe->ranks && !error; p++) {
      error = api->send(send[r] + (size_t)p * part, part, 0, p, comms[r], probe->streams[r]);
      if (!error) error = api->receive(receive[r] + (size_t)p * part, part, 0, p, comms[r], probe->streams[r]);
    }
  int ended = api->group_end();
  return error ? error : ended;
}

static dt_status nccl_rates(dt_cuda_probe *probe, int32_t rounds, const dt_nccl *api, const stopwatch *watch,
                            unsigned char **send, unsigned char **receive, dt_platform *platform) {
  int devices[DT_BURST_RANKS], version = 0;
  void *comms[DT_BURST_RANKS] = {NULL};
  for (int32_t r = 0; r < probe->ranks; r++) devices[r] = r;
  api->version(&version);
  if (api->init_all(comms, probe->ranks, devices))
    return dt_platform_add_note(platform, "NCCL all-to-all was not measured: ncclCommInitAll failed");
  char method[160];
  snprintf(method, sizeof method,
           "NCCL %d, grouped ncclSend and ncclRecv, one process; off-rank bytes a rank sends, over time on rank 0",
           version);
  dt_extras_table *table = NULL;
  dt_status status = dt_extras_table_create("alltoall_bytes_per_s", "all-to-all", "nccl", "", method, &table);
  if (!status) dt_extras_argument(table, "message_bytes");
  for (size_t bytes = 1048576; bytes <= LARGEST && !status; bytes *= 4) {
    double samples[DT_EXTRA_ROUNDS];
    for (int32_t r = -2; r < rounds && !status; r++) {
      double seconds = 0.0;
      cudaError_t error = cudaSetDevice(0);
      if (error == cudaSuccess) error = cudaEventRecord(watch->begin, probe->streams[0]);
      if (error == cudaSuccess && all_to_all(probe, api, comms, send, receive, bytes)) error = cudaErrorUnknown;
      if (error == cudaSuccess) error = cudaSetDevice(0);
      if (error == cudaSuccess) error = stop(watch, probe->streams[0], &seconds);
      for (int32_t p = 1; p < probe->ranks && error == cudaSuccess; p++)
        error = cudaStreamSynchronize(probe->streams[p]);
      status = dt_cuda_check(error, "NCCL all-to-all");
      if (r >= 0 && !status) samples[r] = (double)bytes * (probe->ranks - 1) / probe->ranks / seconds;
    }
    const double at[] = {(double)bytes};
    if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
  }
  for (int32_t r = 0; r < probe->ranks; r++) api->destroy(comms[r]);
  return table ? dt_extras_table_finish(table, status, platform) : status;
}

static dt_status peer_copies(dt_cuda_probe *probe, int32_t rounds, const stopwatch *watch, unsigned char **send,
                             unsigned char **receive, dt_platform *platform) {
  dt_extras_table *table;
  dt_status status = dt_extras_table_create("copy_bytes_per_s", "one-way", "copy-engine", "",
                                            "cudaMemcpyPeerAsync, 8 (from 8 MiB: 2) in a row, events", &table);
  if (status) return status;
  dt_extras_argument(table, "message_bytes");
  status = copy_rates(probe, rounds, 1, watch, send[0], receive[1], table, platform);
  return dt_extras_table_finish(table, status, platform);
}

/* Without it a copy between plain allocations goes through the host. */
static cudaError_t enable_peers(const dt_cuda_probe *probe, int32_t rank) {
  for (int32_t p = 0; p < probe->ranks; p++) {
    if (p == rank) continue;
    cudaError_t error = cudaDeviceEnablePeerAccess(p, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError(); /* clears it */
    else if (error != cudaSuccess)
      return error;
  }
  return cudaSuccess;
}

dt_status dt_extras_copies(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  unsigned char *send[DT_BURST_RANKS] = {NULL}, *receive[DT_BURST_RANKS] = {NULL};
  stopwatch watch = {NULL, NULL};
  cudaError_t error = cudaSuccess;
  for (int32_t r = probe->ranks - 1; r >= 0 && error == cudaSuccess; r--) {
    error = cudaSetDevice(r);
    if (error == cudaSuccess) error = enable_peers(probe, r);
    if (error == cudaSuccess) error = cudaMalloc((void **)&send[r], LARGEST);
    if (error == cudaSuccess) error = cudaMalloc((void **)&receive[r], LARGEST);
    if (error == cudaSuccess) error = cudaMemset(send[r], 0x3c, LARGEST);
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
  }
  dt_status status = dt_cuda_check(error, "copy buffers");
  if (!status) status = stopwatch_create(&watch);
  if (!status) status = copy_rates(probe, rounds, 0, &watch, send[0], receive[0], NULL, platform);
  if (!status && probe->ranks > 1) status = peer_copies(probe, rounds, &watch, send, receive, platform);
  dt_nccl api;
  if (!status && probe->ranks > 1) {
    if (dt_nccl_load(&api))
      status = nccl_rates(probe, rounds, &api, &watch, send, receive, platform);
    else
      status = dt_platform_add_note(platform, "NCCL all-to-all was not measured: libnccl.so.2 was not found");
  }
  stopwatch_destroy(&watch);
  for (int32_t r = 0; r < probe->ranks; r++) {
    cudaSetDevice(r);
    cudaFree(send[r]), cudaFree(receive[r]);
  }
  return status;
}
