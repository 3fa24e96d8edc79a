#include "fabric.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/clock.h"
#include "core/error.h"
#include "driver.h"

dt_cuda_fabric *dt_cuda_fabric_of(const dt_comm *comm) {
  return comm->state;
}

static dt_status finish(dt_cuda_fabric *fabric, cudaError_t error, const char *what) {
  if (error == cudaSuccess) error = cudaStreamSynchronize(fabric->stream);
  return dt_cuda_check(error, what);
}

/* The source may be memory of the host or of any device. Complete on return, so that a signal may follow. */
static dt_status cuda_put(dt_comm *comm, const dt_put *put, uint64_t *visible_ns) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  *visible_ns = 0;
  cudaError_t error = cudaSetDevice(fabric->device);
  unsigned char *to = put->window->pieces[put->peer] + put->offset;
  const unsigned char *from = put->src;
  if (error == cudaSuccess && !put->src_index && put->rows > 1 && put->src_stride >= put->row_bytes) {
    error = cudaMemcpy2DAsync(to, put->dst_stride, from, put->src_stride, put->row_bytes, (size_t)put->rows,
                              cudaMemcpyDefault, fabric->stream);
  } else {
    for (int64_t i = 0; i < put->rows && error == cudaSuccess; i++) {
      size_t row = (size_t)(put->src_index ? put->src_index[i] : i);
      error = cudaMemcpyAsync(to + (size_t)i * put->dst_stride, from + row * put->src_stride, put->row_bytes,
                              cudaMemcpyDefault, fabric->stream);
    }
  }
  return finish(fabric, error, "put");
}

static dt_status cuda_signal(dt_comm *comm, dt_window *window, int32_t peer, size_t offset, uint32_t value,
                             uint64_t visible_ns) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  cudaError_t error = cudaSetDevice(fabric->device);
  if (error == cudaSuccess)
    error = dt_cuda_signal_launch((dt_counter *)(window->pieces[peer] + offset), value, visible_ns, fabric->stream);
  return finish(fabric, error, "signal");
}

/* Polled from the host: the waits of a layer are the kernels' own; this one is for set-up and tests. */
static dt_status cuda_wait(dt_comm *comm, dt_window *window, size_t offset, uint32_t target, const dt_wait *wait) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  double limit = wait->entry ? comm->config.entry_timeout_s : comm->config.timeout_s;
  double deadline = limit > 0.0 ? dt_now_s() + limit : 1e300;
  for (;;) {
    cudaError_t error = cudaSetDevice(fabric->device);
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(fabric->seen, window->pieces[comm->rank] + offset, sizeof *fabric->seen,
                              cudaMemcpyDeviceToHost, fabric->stream);
    dt_status status = finish(fabric, error, "wait");
    if (!status && *fabric->seen >= target) return DT_OK;
    if (!status) status = dt_comm_status(fabric->control);
    if (status) return status;
    if (dt_now_s() > deadline) {
      status =
          dt_fail(DT_ERR_TIMEOUT, "rank %d, phase %s: %s %lld of rank %d: expected %u, seen %u after %g s", comm->rank,
                  wait->phase, wait->counter, (long long)wait->index, wait->peer, target, *fabric->seen, limit);
      dt_comm_abort(fabric->control, status, dt_error_detail());
      return status;
    }
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
}

static dt_status cuda_barrier(dt_comm *comm, const char *phase) {
  return dt_comm_barrier(dt_cuda_fabric_of(comm)->control, phase);
}

static dt_status cuda_allgather(dt_comm *comm, const void *send, void *receive, size_t bytes) {
  return dt_comm_allgather(dt_cuda_fabric_of(comm)->control, send, receive, bytes);
}

static void cuda_abort(dt_comm *comm, dt_status status, const char *detail) {
  dt_comm_abort(dt_cuda_fabric_of(comm)->control, status, detail);
}

static dt_status cuda_status(dt_comm *comm) {
  return dt_comm_status(dt_cuda_fabric_of(comm)->control);
}

static void cuda_destroy(dt_comm *comm) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  cudaSetDevice(fabric->device);
  if (fabric->stream) cudaStreamDestroy(fabric->stream);
  if (fabric->seen) cudaFreeHost(fabric->seen);
  dt_comm_destroy(fabric->control);
  free(fabric);
}

static const dt_fabric cuda_fabric = {
    .api_version = DT_FABRIC_API,
    .name = "cuda",
    .alloc = dt_cuda_window_alloc,
    .free = dt_cuda_window_free,
    .put = cuda_put,
    .signal = cuda_signal,
    .wait = cuda_wait,
    .barrier = cuda_barrier,
    .allgather = cuda_allgather,
    .abort = cuda_abort,
    .status = cuda_status,
    .destroy = cuda_destroy,
};

/* What this rank brings to the agreement on sharing. */
typedef struct rank_facts {
  int32_t status, cumem;
} rank_facts;

static dt_status check_device(int device, dt_cuda_sharing sharing, rank_facts *facts) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  int devices = dt_cuda_device_count();
  if (device < 0 || device >= devices) return dt_fail(DT_ERR_NO_DEVICE, "device: %d; 0 to %d", device, devices - 1);
  int supported = 0;
  if (api->cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) !=
      CUDA_SUCCESS)
    supported = 0;
  facts->cumem = supported && sharing == DT_CUDA_SHARE_CUMEM;
  return dt_cuda_check(cudaSetDevice(device), "cudaSetDevice");
}

dt_status dt_cuda_fabric_create(dt_comm *control, int device, dt_cuda_sharing sharing, dt_comm **endpoint) {
  int32_t ranks = dt_comm_ranks(control);
  rank_facts own = {0, 0}, all[DT_MAX_RANKS];
  own.status = check_device(device, sharing, &own);
  char detail[256] = "";
  if (own.status) strncpy(detail, dt_error_detail(), sizeof detail - 1);
  dt_status status = dt_comm_allgather(control, &own, all, sizeof own);
  if (status) return status;
  if (own.status) return dt_fail(own.status, "%s", detail);
  dt_cuda_sharing agreed = DT_CUDA_SHARE_CUMEM;
  for (int32_t r = 0; r < ranks; r++) {
    if (all[r].status) return dt_fail(DT_ERR_PEER, "rank %d: %s", r, dt_status_text(all[r].status));
    if (!all[r].cumem) agreed = DT_CUDA_SHARE_IPC;
  }
  dt_comm *comm = NULL;
  status = dt_comm_new(&cuda_fabric, dt_comm_rank(control), ranks, &control->config, &comm);
  if (status) return status;
  dt_cuda_fabric *fabric = calloc(1, sizeof *fabric);
  if (!fabric) {
    free(comm);
    return dt_fail(DT_ERR_MEMORY, "endpoint: %zu bytes", sizeof *fabric);
  }
  *fabric = (dt_cuda_fabric){.device = device, .sharing = agreed};
  fabric->one_process = strcmp(dt_comm_fabric(control), "local") == 0;
  status = dt_cuda_check(cudaStreamCreateWithFlags(&fabric->stream, cudaStreamNonBlocking), "stream");
  if (!status) status = dt_cuda_check(cudaMallocHost((void **)&fabric->seen, sizeof *fabric->seen), "pinned memory");
  if (status) {
    if (fabric->stream) cudaStreamDestroy(fabric->stream);
    free(fabric), free(comm);
    return status;
  }
  fabric->control = control; /* its owner from here on */
  comm->state = fabric;
  *endpoint = comm;
  return DT_OK;
}

dt_status dt_comm_create_cuda(dt_comm *control, int32_t device, dt_comm **endpoint) {
  return dt_cuda_fabric_create(control, device, DT_CUDA_SHARE_CUMEM, endpoint);
}
