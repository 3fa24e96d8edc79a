/* What a build without the CUDA parts says. */
#include <draintile/cuda_memory.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "memory of a GPU; this build has no CUDA parts");
}

int32_t dt_cuda_devices(void) {
  return 0;
}
dt_status dt_cuda_device_info(int32_t device, dt_cuda_device *info) {
  (void)device, (void)info;
  return without();
}
dt_status dt_cuda_device_use(int32_t device) {
  (void)device;
  return without();
}
dt_status dt_cuda_alloc(size_t bytes, void **memory) {
  (void)bytes, (void)memory;
  return without();
}
void dt_cuda_free(void *memory) {
  (void)memory;
}
dt_status dt_cuda_copy(void *to, const void *from, size_t bytes) {
  (void)to, (void)from, (void)bytes;
  return without();
}
dt_status dt_cuda_set(void *memory, int value, size_t bytes) {
  (void)memory, (void)value, (void)bytes;
  return without();
}
dt_status dt_cuda_stream_create(void **stream) {
  (void)stream;
  return without();
}
dt_status dt_cuda_stream_wait(void *stream) {
  (void)stream;
  return without();
}
void dt_cuda_stream_destroy(void *stream) {
  (void)stream;
}
dt_status dt_cuda_event_create(void **event) {
  (void)event;
  return without();
}
dt_status dt_cuda_event_record(void *event, void *stream) {
  (void)event, (void)stream;
  return without();
}
dt_status dt_cuda_event_seconds(void *start, void *stop, double *seconds) {
  (void)start, (void)stop, (void)seconds;
  return without();
}
void dt_cuda_event_destroy(void *event) {
  (void)event;
}
#endif
