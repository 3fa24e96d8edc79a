#include "cpu/forward.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/clock.h"
#include "comm/fabric.h"
#include "core/error.h"

void dt_stage_add(dt_stage_log *log, dt_span_kind kind, uint64_t begin_ns) {
  if (log->count < DT_STAGE_SPANS) log->spans[log->count++] = dt_span_of(kind, 0, begin_ns, dt_now_ns());
}

dt_status dt_stage_barrier(dt_stage_log *log, dt_comm *comm, const char *phase) {
  uint64_t begin = dt_now_ns();
  dt_status status = dt_comm_barrier(comm, phase);
  dt_stage_add(log, DT_SPAN_BARRIER, begin);
  return status;
}

double dt_seconds_since(uint64_t *mark) {
  uint64_t now = dt_now_ns();
  double seconds = (double)(now - *mark) * 1e-9;
  *mark = now;
  return seconds;
}

dt_span dt_span_of(dt_span_kind kind, int32_t track, uint64_t begin_ns, uint64_t end_ns) {
  return (dt_span){.begin_ns = begin_ns,
                   .end_ns = end_ns,
                   .kind = (int32_t)kind,
                   .track = track,
                   .index = -1,
                   .column = -1,
                   .peer = -1};
}

static int by_end(const void *a, const void *b) {
  const dt_span *x = a, *y = b;
  return x->end_ns < y->end_ns ? -1 : x->end_ns > y->end_ns;
}

/* A put is issued while earlier ones drain: each span starts where the one before it ends, so that the slices of the
 * track do not overlap. */
void dt_spans_line_up(dt_span *links, size_t count) {
  if (count) qsort(links, count, sizeof(*links), by_end);
  for (size_t i = 1; i < count; i++) {
    if (links[i].begin_ns < links[i - 1].end_ns) links[i].begin_ns = links[i - 1].end_ns;
  }
}

void dt_failure_init(dt_failure *failure) {
  pthread_mutex_init(&failure->lock, NULL);
  atomic_store(&failure->failed, false);
  failure->status = DT_OK;
}

void dt_failure_destroy(dt_failure *failure) {
  pthread_mutex_destroy(&failure->lock);
}

bool dt_failure_record(dt_failure *failure, dt_status status, const char *detail) {
  pthread_mutex_lock(&failure->lock);
  bool first = failure->status == DT_OK;
  if (first) {
    failure->status = status;
    snprintf(failure->detail, sizeof(failure->detail), "%s", detail);
  }
  pthread_mutex_unlock(&failure->lock);
  atomic_store(&failure->failed, true);
  return first;
}

dt_status dt_failure_status(dt_failure *failure) {
  pthread_mutex_lock(&failure->lock);
  dt_status status = failure->status;
  if (status) dt_fail(status, "%s", failure->detail);
  pthread_mutex_unlock(&failure->lock);
  return status;
}

void dt_pause(dt_random *delays, uint64_t seed, int32_t max_us) {
  if (!seed || max_us < 1) return;
  /* Most pauses are none, so that threads drift apart instead of all slowing down alike. */
  if (dt_random_below(delays, 4)) return;
  struct timespec pause = dt_timespec(dt_random_below(delays, (uint64_t)max_us * 1000 + 1));
  nanosleep(&pause, NULL);
}

uint64_t dt_bytes_sent(const dt_comm *comm) {
  uint64_t sent[DT_MAX_RANKS] = {0}, sum = 0;
  dt_comm_bytes_sent(comm, sent);
  for (int32_t p = 0; p < comm->ranks; p++) sum += sent[p];
  return sum;
}
