/* Puts, and the paced link: a leaky bucket per sender, an X-Stage (arXiv 2607.23264) in software. Its state is one word
 * of virtual time, the moment at which the link will have drained everything put so far. Backlog in bytes is that
 * moment minus now, times R; nothing drains it but the clock.
 */
#include <sys/prctl.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "core/error.h"
#include "host.h"

enum { DT_SPIN_NS = 2000 };           /* below this a timer costs more than the time left */
#define MAX_TICKS ((uint64_t)1 << 62) /* two years: sums with the clock stay far from the word's end */

static uint64_t ticks_of(double bytes, double ticks_per_byte) {
  double ticks = bytes * ticks_per_byte;
  return ticks < (double)MAX_TICKS ? (uint64_t)llround(ticks) : MAX_TICKS;
}

void dt_host_init(dt_comm *comm, dt_host *host) {
  const dt_comm_config *config = &comm->config;
  for (int32_t p = 0; p < DT_MAX_RANKS; p++) host->pidfds[p] = -1;
  if (config->link_bytes_per_s > 0.0) {
    host->ticks_per_byte = 1e9 * DT_TICKS_PER_NS / config->link_bytes_per_s;
    host->capacity_ticks = ticks_of(config->link_capacity_bytes, host->ticks_per_byte);
    host->latency_ns = ticks_of(config->link_latency_s, 1e9);
  }
  comm->state = host;
}

/* The default slack of 50 us would let every park end late by as much. */
static void sharpen_timers(void) {
  static _Thread_local int sharp;
  if (!sharp) prctl(PR_SET_TIMERSLACK, 1UL);
  sharp = 1;
}

/* A link that needs longer than a wait may last is an error at once: no later look could find it any faster. */
static dt_status too_slow(dt_comm *comm, uint64_t wait_ns, double timeout_s) {
  char text[160];
  snprintf(text, sizeof text, "rank %d, paced link: needs %.3g s for what was put; allowed: the timeout of %.3g s",
           comm->rank, (double)wait_ns * 1e-9, timeout_s);
  dt_host_abort(comm, DT_ERR_TIMEOUT, text);
  return dt_fail(DT_ERR_TIMEOUT, "%s", text);
}

dt_status dt_host_sleep_until(dt_comm *comm, uint64_t time_ns, double timeout_s) {
  uint64_t start = dt_now_ns();
  if (time_ns > start && timeout_s > 0.0 && (double)(time_ns - start) * 1e-9 > timeout_s)
    return dt_host_aborted(comm) ? dt_host_status(comm) : too_slow(comm, time_ns - start, timeout_s);
  for (uint64_t now = start; now < time_ns; now = dt_now_ns()) {
    if (dt_host_aborted(comm)) return dt_host_status(comm);
    if (time_ns - now < DT_SPIN_NS) continue;
    sharpen_timers();
    struct timespec until = dt_timespec(time_ns - now < DT_SLICE_NS ? time_ns : now + DT_SLICE_NS);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  }
  return DT_OK;
}

/* Takes the link for `bytes`, once the backlog is within the limit. *free_ticks: when the link will be free again. */
static dt_status reserve(dt_comm *comm, uint64_t bytes, double backlog_limit_bytes, uint64_t *free_ticks) {
  dt_host *host = dt_host_of(comm);
  uint64_t *drain_free = &host->controls[comm->rank]->drain_free;
  uint64_t ticks = ticks_of((double)bytes, host->ticks_per_byte);
  uint64_t limit = backlog_limit_bytes > 0.0 ? ticks_of(backlog_limit_bytes, host->ticks_per_byte) : UINT64_MAX;
  uint64_t old = __atomic_load_n(drain_free, __ATOMIC_RELAXED);
  for (;;) {
    uint64_t now = dt_now_ns() * DT_TICKS_PER_NS;
    if (old > now && old - now > limit) {
      dt_status status = dt_host_sleep_until(comm, (old - limit) / DT_TICKS_PER_NS + 1, comm->config.timeout_s);
      if (status) return status;
      old = __atomic_load_n(drain_free, __ATOMIC_RELAXED);
      continue;
    }
    uint64_t next = (old > now ? old : now) + ticks;
    if (next > now + MAX_TICKS) next = now + MAX_TICKS;
    if (__atomic_compare_exchange_n(drain_free, &old, next, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
      *free_ticks = next;
      return DT_OK;
    }
  }
}

static void copy_rows(const dt_put *put) {
  unsigned char *to = put->window->pieces[put->peer] + put->offset;
  const unsigned char *from = put->src;
  size_t rows = (size_t)put->rows, width = put->row_bytes;
  if (rows == 1 || (!put->src_index && put->src_stride == width && put->dst_stride == width)) {
    size_t first = put->src_index ? (size_t)put->src_index[0] : 0;
    memcpy(to, from + first * put->src_stride, rows * width);
    return;
  }
  for (size_t i = 0; i < rows; i++) {
    size_t row = put->src_index ? (size_t)put->src_index[i] : i;
    memcpy(to + i * put->dst_stride, from + row * put->src_stride, width);
  }
}

dt_status dt_host_put(dt_comm *comm, const dt_put *put, uint64_t *visible_ns) {
  dt_host *host = dt_host_of(comm);
  if (dt_host_aborted(comm)) return dt_host_status(comm);
  if (host->ticks_per_byte == 0.0 || put->peer == comm->rank) {
    copy_rows(put);
    return DT_OK;
  }
  uint64_t bytes = (uint64_t)put->rows * put->row_bytes, free_ticks = 0;
  dt_status status = reserve(comm, bytes, put->backlog_limit_bytes, &free_ticks);
  if (status) return status;
  copy_rows(put);
  *visible_ns = free_ticks / DT_TICKS_PER_NS + host->latency_ns;
  if (free_ticks <= host->capacity_ticks) return DT_OK;
  return dt_host_sleep_until(comm, (free_ticks - host->capacity_ticks) / DT_TICKS_PER_NS, comm->config.timeout_s);
}
