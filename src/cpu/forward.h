/* What a forward is to both executors, MoE layers and attention: its stages, its spans, its first failure. */
#ifndef DT_CPU_FORWARD_H
#define DT_CPU_FORWARD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/trace.h>

#include "core/random.h"

enum { DT_STAGE_SPANS = 8 };

/* What the calling thread does, for the trace; it appears on the first worker's track, which is idle meanwhile. */
typedef struct dt_stage_log {
  dt_span spans[DT_STAGE_SPANS];
  size_t count;
} dt_stage_log;

void dt_stage_add(dt_stage_log *log, dt_span_kind kind, uint64_t begin_ns); /* ends now */
dt_status dt_stage_barrier(dt_stage_log *log, dt_comm *comm, const char *phase);
double dt_seconds_since(uint64_t *mark); /* moves the mark to now */

/* A span whose index, column and peer are not set. */
dt_span dt_span_of(dt_span_kind kind, int32_t track, uint64_t begin_ns, uint64_t end_ns);
/* The link carries one put after the other: makes its spans follow one another by their ends. */
void dt_spans_line_up(dt_span *links, size_t count);

/* The first failure of any thread; sticky. `failed` has a cache line of its own: threads read it at every task. */
typedef struct dt_failure {
  _Alignas(64) atomic_bool failed;
  _Alignas(64) pthread_mutex_t lock;
  dt_status status; /* under lock */
  char detail[512];
} dt_failure;

void dt_failure_init(dt_failure *failure);
void dt_failure_destroy(dt_failure *failure);
bool dt_failure_record(dt_failure *failure, dt_status status, const char *detail); /* true: it is the first */
dt_status dt_failure_status(dt_failure *failure); /* sets the recorded detail, returns the recorded status */
static inline bool dt_failure_seen(dt_failure *failure) {
  return atomic_load_explicit(&failure->failed, memory_order_relaxed);
}

/* Testing: a random pause of at most this; a seed or a maximum of 0: none. */
void dt_pause(dt_random *delays, uint64_t seed, int32_t max_us);

/* Bytes put to all other ranks since the communicator was made. */
uint64_t dt_bytes_sent(const dt_comm *comm);

#endif
