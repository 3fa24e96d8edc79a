/* Fabric `cuda`: windows are device memory that kernels of every rank may store to. The endpoint keeps another one
 * inside (`local`: ranks are threads of this process; `shm`: processes) for barriers, agreement, liveness and abort.
 */
#ifndef DT_CUDA_FABRIC_H
#define DT_CUDA_FABRIC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "comm/fabric.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dt_cuda_sharing {
  DT_CUDA_SHARE_CUMEM = 0, /* cuMem allocations; between processes as POSIX file descriptors */
  DT_CUDA_SHARE_IPC = 1    /* cudaMalloc; between processes as legacy IPC handles */
} dt_cuda_sharing;

typedef struct dt_cuda_fabric {
  dt_comm *control;
  int device;
  dt_cuda_sharing sharing; /* agreed by all ranks: IPC if any of them cannot export cuMem allocations */
  int one_process;
  cudaStream_t stream; /* of puts, signals and polls */
  uint32_t *seen;      /* pinned: where polls land */
} dt_cuda_fabric;

/* As dt_comm_create_cuda, with the sharing given: DT_CUDA_SHARE_CUMEM still falls back. */
dt_status dt_cuda_fabric_create(dt_comm *control, int device, dt_cuda_sharing sharing, dt_comm **endpoint);
dt_cuda_fabric *dt_cuda_fabric_of(const dt_comm *comm);

dt_status dt_cuda_window_alloc(dt_comm *comm, dt_window *window);
void dt_cuda_window_free(dt_comm *comm, dt_window *window);

/* red.release.sys.add of `value`; and the stamp's maximum. */
cudaError_t dt_cuda_signal_launch(dt_counter *counter, uint32_t value, uint64_t visible_ns, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
