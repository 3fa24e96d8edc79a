/* The host's side of stamps: their memory on the device, and what they say in nanoseconds of the host's clock. */
#ifndef DT_CUDA_RECORDER_H
#define DT_CUDA_RECORDER_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#include "cuda/spans.h"

enum { DT_MARKS = 8 };

typedef struct dt_recorder {
  dt_stamps stamps; /* what the engine is launched with */
  uint64_t *marks;  /* [DT_MARKS], device: see dt_mark_launch */
  size_t device_bytes;
  int32_t ctas;
  void *memory; /* of both, on the device */
  dt_clock_words *words;
  /* What dt_recorder_read has brought. */
  dt_stamp *records;  /* [ctas][DT_STAMP_ROLES][kept], pinned, room for all */
  dt_stamp_cta *cta;  /* [ctas], pinned */
  uint64_t *marks_ns; /* [DT_MARKS], of the host's clock after read */
  uint32_t kept;      /* the longest role's records */
  uint64_t lost;      /* records beyond the capacity */
  int64_t host_minus_device_ns;
  uint64_t host_error_ns; /* half of the fastest question's time */
  uint64_t timer_step_ns; /* the smallest that was seen */
} dt_recorder;

/* Records a role of each of `ctas` CTAs. On the current device. */
dt_status dt_recorder_create(int32_t ctas, uint32_t capacity, dt_recorder **recorder);
void dt_recorder_destroy(dt_recorder *recorder); /* NULL allowed */

/* Waits for `stream` and reads what its last launch wrote. */
dt_status dt_recorder_read(dt_recorder *recorder, cudaStream_t stream);
/* Records of a role that were kept, in order of time. */
const dt_stamp *dt_recorder_role(const dt_recorder *recorder, int32_t cta, int32_t role, uint32_t *count);
/* CLOCK_MONOTONIC of a CTA's clock, between its two readings of the timer. */
uint64_t dt_recorder_ns(const dt_recorder *recorder, int32_t cta, uint32_t clock);
/* Cycles a second of a CTA's multiprocessor, over the launch. */
double dt_recorder_hz(const dt_recorder *recorder, int32_t cta);

/* Of a consumer's record of a layer: as dt_tile's shape has it. */
static inline int dt_stamp_is_l1(const dt_stamp *stamp) {
  return stamp->shape >> 9 & 1;
}
static inline int32_t dt_stamp_rows(const dt_stamp *stamp) {
  return (int32_t)(stamp->shape & 255);
}

#endif
