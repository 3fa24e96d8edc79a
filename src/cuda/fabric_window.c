/* Device memory that every rank maps. Memory of a process stays until the last mapping goes, so a rank that gave up
 * cannot take it from under the stores of one that has not noticed: between processes the driver counts, among threads
 * of one process a count in the piece does.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "driver.h"
#include "fabric.h"

typedef struct cuda_piece {
  CUdeviceptr address;
  size_t mapped; /* bytes, rounded to the granularity */
  CUmemGenericAllocationHandle handle;
  int device, has_handle, from_malloc;
  int32_t references; /* ranks of this process that use it */
  uint64_t allowed;   /* devices that were given access, a bit each */
} cuda_piece;

typedef struct cuda_window {
  cuda_piece *pieces[DT_MAX_RANKS]; /* one_process: shared by the ranks; else this rank's own mappings */
  int opened[DT_MAX_RANKS];         /* legacy IPC: opened, not made */
} cuda_window;

static CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
  return properties;
}

static void destroy_piece(cuda_piece *piece) {
  const dt_cuda_driver_api *api;
  if (!piece) return;
  if (piece->from_malloc) {
    cudaSetDevice(piece->device);
    cudaFree((void *)piece->address);
  } else if (dt_cuda_driver(&api) == DT_OK) {
    if (piece->address) {
      api->cuMemUnmap(piece->address, piece->mapped);
      api->cuMemAddressFree(piece->address, piece->mapped);
    }
    if (piece->has_handle) api->cuMemRelease(piece->handle);
  }
  free(piece);
}

static void release_piece(cuda_piece *piece) {
  if (piece && __atomic_sub_fetch(&piece->references, 1, __ATOMIC_ACQ_REL) == 0) destroy_piece(piece);
}

static dt_status allow(CUdeviceptr address, size_t bytes, int device) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUresult result = api->cuMemSetAccess(address, bytes, &access, 1);
  if (result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    return dt_fail(DT_ERR_UNSUPPORTED, "device %d has no peer access to another rank's memory", device);
  return dt_cuda_driver_check(result, "cuMemSetAccess");
}

/* Maps piece->handle and lets `device` use it. */
static dt_status map_piece(cuda_piece *piece, size_t granularity, int device) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  CUdeviceptr address = 0;
  status =
      dt_cuda_driver_check(api->cuMemAddressReserve(&address, piece->mapped, granularity, 0, 0), "cuMemAddressReserve");
  if (status) return status;
  status = dt_cuda_driver_check(api->cuMemMap(address, piece->mapped, 0, piece->handle, 0), "cuMemMap");
  if (status) {
    api->cuMemAddressFree(address, piece->mapped);
    return status;
  }
  piece->address = address;
  return allow(address, piece->mapped, device);
}

static dt_status granularity_of(int device, size_t *granularity) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  CUmemAllocationProp properties = properties_of(device);
  return dt_cuda_driver_check(
      api->cuMemGetAllocationGranularity(granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
}

static dt_status make_cumem(cuda_piece *piece, size_t bytes) {
  const dt_cuda_driver_api *api;
  size_t granularity = 0;
  dt_status status = dt_cuda_driver(&api);
  if (!status) status = granularity_of(piece->device, &granularity);
  if (status) return status;
  piece->mapped = (bytes / granularity + (bytes % granularity || !bytes)) * granularity;
  CUmemAllocationProp properties = properties_of(piece->device);
  CUresult result = api->cuMemCreate(&piece->handle, piece->mapped, &properties, 0);
  if (result != CUDA_SUCCESS) return dt_cuda_driver_check(result, "cuMemCreate");
  piece->has_handle = 1;
  return map_piece(piece, granularity, piece->device);
}

static dt_status make_piece(dt_comm *comm, size_t bytes, cuda_piece **made) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  cuda_piece *piece = calloc(1, sizeof *piece);
  if (!piece) return dt_fail(DT_ERR_MEMORY, "window: %zu bytes", sizeof *piece);
  piece->device = fabric->device;
  piece->references = fabric->one_process ? comm->ranks : 1;
  dt_status status = dt_cuda_check(cudaSetDevice(fabric->device), "cudaSetDevice");
  if (!status && fabric->sharing == DT_CUDA_SHARE_CUMEM) {
    status = make_cumem(piece, bytes);
  } else if (!status) {
    void *memory = NULL;
    status = dt_cuda_check(cudaMalloc(&memory, bytes ? bytes : 1), "cudaMalloc");
    piece->address = (CUdeviceptr)memory;
    piece->from_malloc = !status;
    piece->mapped = bytes;
  }
  if (!status && bytes) status = dt_cuda_check(cudaMemset((void *)piece->address, 0, bytes), "cudaMemset");
  if (!status) status = dt_cuda_check(dt_cuda_settle(), "window");
  if (status)
    destroy_piece(piece);
  else
    *made = piece;
  return status;
}

/* What a rank tells the others about its piece. */
typedef struct piece_facts {
  cuda_piece *piece; /* one process */
  cudaIpcMemHandle_t ipc;
  uint64_t bytes;
  int32_t status;
} piece_facts;

static dt_status reach_in_process(const dt_cuda_fabric *fabric, cuda_piece *piece) {
  if (piece->device == fabric->device) return DT_OK;
  if (!piece->from_malloc) {
    /* Once a device: ranks that share one would give it access twice, which the driver refuses. */
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    const uint64_t bit = UINT64_C(1) << (fabric->device % 64);
    dt_status status = piece->allowed & bit ? DT_OK : allow(piece->address, piece->mapped, fabric->device);
    if (!status) piece->allowed |= bit;
    pthread_mutex_unlock(&lock);
    return status;
  }
  cudaError_t error = cudaDeviceEnablePeerAccess(piece->device, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError(); /* not an error; clears it */
    return DT_OK;
  }
  if (error == cudaErrorPeerAccessUnsupported || error == cudaErrorInvalidDevice)
    return dt_fail(DT_ERR_UNSUPPORTED, "device %d has no peer access to device %d", fabric->device, piece->device);
  return dt_cuda_check(error, "cudaDeviceEnablePeerAccess");
}

static dt_status reach_ipc(const dt_cuda_fabric *fabric, const piece_facts *facts, cuda_piece **made) {
  cuda_piece *piece = calloc(1, sizeof *piece);
  if (!piece) return dt_fail(DT_ERR_MEMORY, "window: %zu bytes", sizeof *piece);
  void *memory = NULL;
  dt_status status =
      dt_cuda_check(cudaIpcOpenMemHandle(&memory, facts->ipc, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
  if (status) {
    free(piece);
    return status;
  }
  *piece = (cuda_piece){.address = (CUdeviceptr)memory, .device = fabric->device, .references = 1};
  *made = piece;
  return DT_OK;
}

static dt_status reach_fd(const dt_cuda_fabric *fabric, int fd, size_t bytes, cuda_piece **made) {
  const dt_cuda_driver_api *api;
  size_t granularity = 0;
  dt_status status = dt_cuda_driver(&api);
  if (!status) status = granularity_of(fabric->device, &granularity);
  if (status) return status;
  cuda_piece *piece = calloc(1, sizeof *piece);
  if (!piece) return dt_fail(DT_ERR_MEMORY, "window: %zu bytes", sizeof *piece);
  *piece = (cuda_piece){.device = fabric->device, .references = 1, .mapped = bytes};
  status = dt_cuda_driver_check(api->cuMemImportFromShareableHandle(&piece->handle, (void *)(intptr_t)fd,
                                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                                "cuMemImportFromShareableHandle");
  if (!status) {
    piece->has_handle = 1;
    status = map_piece(piece, granularity, fabric->device);
  }
  if (status)
    destroy_piece(piece);
  else
    *made = piece;
  return status;
}

/* Exports this rank's memory as a file descriptor and imports every peer's. Collective also when `status` is set. */
static dt_status exchange_fds(dt_comm *comm, cuda_window *state, dt_status status) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  const dt_cuda_driver_api *api = NULL;
  int fds[DT_MAX_RANKS], fd = -1;
  size_t mapped[DT_MAX_RANKS], own = 0;
  if (!status) status = dt_cuda_driver(&api);
  if (!status) {
    own = state->pieces[comm->rank]->mapped;
    status = dt_cuda_driver_check(api->cuMemExportToShareableHandle(&fd, state->pieces[comm->rank]->handle,
                                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                                  "cuMemExportToShareableHandle");
    if (status) fd = -1;
  }
  dt_status exchanged = dt_shm_exchange_fd(fabric->control, fd, status, own, fds, mapped);
  if (fd >= 0) close(fd);
  if (exchanged) return status ? status : exchanged;
  for (int32_t r = 0; r < comm->ranks; r++) {
    if (r == comm->rank) continue;
    if (!status) status = reach_fd(fabric, fds[r], mapped[r], &state->pieces[r]);
    if (fds[r] >= 0) close(fds[r]);
  }
  return status;
}

static dt_status reach_peers(dt_comm *comm, cuda_window *state, const piece_facts *all) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  for (int32_t r = 0; r < comm->ranks; r++) {
    if (r == comm->rank) continue;
    dt_status status = DT_OK;
    if (fabric->one_process) {
      state->pieces[r] = all[r].piece;
      status = reach_in_process(fabric, state->pieces[r]);
    } else if (fabric->sharing == DT_CUDA_SHARE_IPC) {
      status = reach_ipc(fabric, &all[r], &state->pieces[r]);
      state->opened[r] = !status;
    }
    if (status) return status;
  }
  return DT_OK;
}

static void release_window(const dt_comm *comm, cuda_window *state) {
  for (int32_t r = 0; r < comm->ranks; r++) {
    if (state->opened[r]) {
      cudaIpcCloseMemHandle((void *)state->pieces[r]->address);
      free(state->pieces[r]);
    } else {
      release_piece(state->pieces[r]);
    }
  }
  free(state);
}

dt_status dt_cuda_window_alloc(dt_comm *comm, dt_window *window) {
  dt_cuda_fabric *fabric = dt_cuda_fabric_of(comm);
  cuda_window *state = calloc(1, sizeof *state);
  if (!state) {
    dt_comm_abort(comm, DT_ERR_MEMORY, "no memory for a window");
    return dt_fail(DT_ERR_MEMORY, "window: %zu bytes", sizeof *state);
  }
  piece_facts own = {.bytes = window->bytes[comm->rank]}, all[DT_MAX_RANKS];
  dt_status status = make_piece(comm, own.bytes, &state->pieces[comm->rank]);
  own.piece = state->pieces[comm->rank];
  if (!status && !fabric->one_process && fabric->sharing == DT_CUDA_SHARE_IPC)
    status = dt_cuda_check(cudaIpcGetMemHandle(&own.ipc, (void *)own.piece->address), "cudaIpcGetMemHandle");
  own.status = status;
  dt_status gathered = dt_comm_allgather(fabric->control, &own, all, sizeof own);
  if (!status) status = gathered;
  for (int32_t r = 0; r < comm->ranks && !gathered; r++) {
    window->bytes[r] = all[r].bytes;
    if (!status && all[r].status) status = dt_fail(DT_ERR_PEER, "rank %d: %s", r, dt_status_text(all[r].status));
  }
  if (!gathered && !fabric->one_process && fabric->sharing == DT_CUDA_SHARE_CUMEM)
    status = exchange_fds(comm, state, status);
  if (!status) status = reach_peers(comm, state, all);
  /* All or none: a rank that could not map takes the others with it. */
  int32_t failed = status != DT_OK, any[DT_MAX_RANKS];
  if (!gathered && dt_comm_allgather(fabric->control, &failed, any, sizeof failed) == DT_OK) {
    for (int32_t r = 0; r < comm->ranks && !status; r++)
      if (any[r]) status = dt_fail(DT_ERR_PEER, "rank %d could not map the window", r);
  }
  if (status) {
    /* Peers of this process may hold none of our references yet: give up those they would have dropped. */
    if (fabric->one_process && state->pieces[comm->rank]) state->pieces[comm->rank]->references = 1;
    for (int32_t r = 0; r < comm->ranks && fabric->one_process; r++)
      if (r != comm->rank) state->pieces[r] = NULL;
    release_window(comm, state);
    return status;
  }
  for (int32_t r = 0; r < comm->ranks; r++) window->pieces[r] = (unsigned char *)state->pieces[r]->address;
  window->state = state;
  return DT_OK;
}

void dt_cuda_window_free(dt_comm *comm, dt_window *window) {
  cudaSetDevice(dt_cuda_fabric_of(comm)->device);
  release_window(comm, window->state);
}
