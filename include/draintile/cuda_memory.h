/* Device memory, copies and timers of one GPU, for programs that link this library alone: what they need around
 * draintile/cuda_moe.h and the other operators. A program that has the CUDA runtime uses that instead: streams here are
 * cudaStream_t, events cudaEvent_t, and memory is cudaMalloc's.
 *
 * Calls concern the calling thread's device (dt_cuda_device_use; 0 at first). Errors: DT_ERR_MEMORY, DT_ERR_DEVICE, and
 * DT_ERR_UNSUPPORTED in a build without CUDA.
 */
#ifndef DRAINTILE_CUDA_MEMORY_H
#define DRAINTILE_CUDA_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct dt_cuda_device {
  char name[256];
  int32_t sms;           /* streaming multiprocessors */
  int32_t major, minor;  /* compute capability: 9.0 is Hopper */
  uint64_t memory_bytes; /* of the GPU */
} dt_cuda_device;

/* GPUs that this process sees; 0 without a driver or in a build without CUDA. A process that has asked must not fork
 * and use CUDA in the child. */
int32_t dt_cuda_devices(void);
/* DT_ERR_NO_DEVICE: no such GPU. */
dt_status dt_cuda_device_info(int32_t device, dt_cuda_device *info);
dt_status dt_cuda_device_use(int32_t device);

/* At least 256-byte aligned, contents undefined. */
dt_status dt_cuda_alloc(size_t bytes, void **memory);
void dt_cuda_free(void *memory); /* waits for the device; NULL allowed */
/* Between host and device memory in any direction; complete on return. */
dt_status dt_cuda_copy(void *to, const void *from, size_t bytes);
/* Every byte, complete on return. */
dt_status dt_cuda_set(void *memory, int value, size_t bytes);

/* A stream that does not wait for the default stream. */
dt_status dt_cuda_stream_create(void **stream);
dt_status dt_cuda_stream_wait(void *stream); /* until what is queued is done */
void dt_cuda_stream_destroy(void *stream);   /* NULL allowed */

dt_status dt_cuda_event_create(void **event);
dt_status dt_cuda_event_record(void *event, void *stream);
/* Waits for `stop`. Seconds on the device between two recorded events. */
dt_status dt_cuda_event_seconds(void *start, void *stop, double *seconds);
void dt_cuda_event_destroy(void *event); /* NULL allowed */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
