#include "recorder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/clock.h"
#include "core/error.h"
#include "driver.h"

static size_t records_bytes(const dt_recorder *r) {
  return (size_t)r->ctas * DT_STAMP_ROLES * r->stamps.capacity * sizeof(dt_stamp);
}

dt_status dt_recorder_create(int32_t ctas, uint32_t capacity, dt_recorder **recorder) {
  dt_recorder *r = calloc(1, sizeof *r);
  if (!r) return dt_fail(DT_ERR_MEMORY, "spans: %zu bytes", sizeof *r);
  r->ctas = ctas;
  r->stamps.capacity = capacity;
  const size_t records = records_bytes(r), head = (size_t)ctas * sizeof(dt_stamp_cta);
  r->device_bytes = records + head + DT_MARKS * sizeof(uint64_t);
  cudaError_t error = cudaMalloc(&r->memory, r->device_bytes);
  if (error == cudaSuccess) error = cudaMemset(r->memory, 0, r->device_bytes);
  if (error == cudaSuccess) error = cudaHostAlloc((void **)&r->records, records, cudaHostAllocPortable);
  if (error == cudaSuccess) error = cudaHostAlloc((void **)&r->cta, head, cudaHostAllocPortable);
  if (error == cudaSuccess)
    error = cudaHostAlloc((void **)&r->marks_ns, DT_MARKS * sizeof *r->marks_ns, cudaHostAllocPortable);
  if (error == cudaSuccess) error = cudaHostAlloc((void **)&r->words, sizeof *r->words, cudaHostAllocPortable);
  if (error == cudaSuccess) error = dt_cuda_settle();
  const dt_status status = dt_cuda_check(error, "spans");
  if (status) {
    dt_recorder_destroy(r);
    return status;
  }
  r->stamps.records = r->memory;
  r->stamps.ctas = (dt_stamp_cta *)((uint8_t *)r->memory + records);
  r->marks = (uint64_t *)((uint8_t *)r->stamps.ctas + head);
  *recorder = r;
  return DT_OK;
}

void dt_recorder_destroy(dt_recorder *r) {
  if (!r) return;
  cudaFree(r->memory);
  cudaFreeHost(r->records), cudaFreeHost(r->cta), cudaFreeHost(r->marks_ns), cudaFreeHost(r->words);
  free(r);
}

/* The fastest of some questions to the device bounds its timer from both sides. */
static dt_status read_clocks(dt_recorder *r, cudaStream_t stream) {
  volatile dt_clock_words *words = r->words;
  memset(r->words, 0, sizeof *r->words);
  dt_status status = dt_cuda_check(dt_clock_answer_launch(r->words, stream), "clock");
  if (status) return status;
  uint64_t best = UINT64_MAX;
  for (uint32_t i = 1; i <= DT_CLOCK_ROUNDS; i++) {
    const uint64_t asked = dt_now_ns();
    uint64_t now = asked;
    __atomic_store_n(&r->words->asked, i, __ATOMIC_RELEASE);
    while (__atomic_load_n(&r->words->answered, __ATOMIC_ACQUIRE) < i && (now = dt_now_ns()) - asked < 5000000000u) {}
    if (__atomic_load_n(&r->words->answered, __ATOMIC_ACQUIRE) < i)
      return dt_fail(DT_ERR_DEVICE, "clock: the device does not answer");
    now = dt_now_ns();
    if (now - asked >= best) continue;
    best = now - asked;
    r->host_minus_device_ns = (int64_t)(asked + best / 2 - words->answer_ns);
    r->host_error_ns = best / 2;
  }
  status = dt_cuda_check(cudaStreamSynchronize(stream), "clock");
  r->timer_step_ns = r->words->step_ns;
  return status;
}

dt_status dt_recorder_read(dt_recorder *r, cudaStream_t stream) {
  cudaError_t error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(r->cta, r->stamps.ctas, (size_t)r->ctas * sizeof *r->cta, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(r->marks_ns, r->marks, DT_MARKS * sizeof *r->marks_ns, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return dt_cuda_check(error, "spans");
  const uint32_t capacity = r->stamps.capacity;
  r->kept = 0;
  r->lost = 0;
  for (int32_t c = 0; c < r->ctas; c++)
    for (int role = 0; role < DT_STAMP_ROLES; role++) {
      const uint32_t count = r->cta[c].count[role];
      if (count > capacity) r->lost += count - capacity;
      const uint32_t kept = count < capacity ? count : capacity;
      if (kept > r->kept) r->kept = kept;
    }
  if (r->kept > 0)
    error =
        cudaMemcpy2DAsync(r->records, r->kept * sizeof(dt_stamp), r->stamps.records, capacity * sizeof(dt_stamp),
                          r->kept * sizeof(dt_stamp), (size_t)r->ctas * DT_STAMP_ROLES, cudaMemcpyDeviceToHost, stream);
  const dt_status status = dt_cuda_check(error, "spans");
  if (status) return status;
  const dt_status clocks = read_clocks(r, stream);
  for (int i = 0; i < DT_MARKS; i++) r->marks_ns[i] += (uint64_t)r->host_minus_device_ns;
  return clocks;
}

const dt_stamp *dt_recorder_role(const dt_recorder *r, int32_t cta, int32_t role, uint32_t *count) {
  const uint32_t made = r->cta[cta].count[role];
  *count = made < r->stamps.capacity ? made : r->stamps.capacity;
  return r->records + ((size_t)cta * DT_STAMP_ROLES + (size_t)role) * r->kept;
}

double dt_recorder_hz(const dt_recorder *r, int32_t cta) {
  const dt_stamp_cta *c = &r->cta[cta];
  return 1e9 * (double)(c->end_clock - c->begin_clock) / (double)(c->end_ns - c->begin_ns);
}

uint64_t dt_recorder_ns(const dt_recorder *r, int32_t cta, uint32_t clock) {
  const dt_stamp_cta *c = &r->cta[cta];
  const uint32_t cycles = clock - c->begin_clock;
  const uint64_t ns = (uint64_t)llround(1e9 * (double)cycles / dt_recorder_hz(r, cta));
  return c->begin_ns + ns + (uint64_t)r->host_minus_device_ns;
}
