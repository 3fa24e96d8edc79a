/* Counters: release adds, and acquiring waits that park. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits.h>
#include <stdio.h>

#include "clock.h"
#include "core/error.h"
#include "host.h"

/* Sequentially consistent, so a release, and ordered against the look at `waiters`. Negative control (a) of
 * docs/memory-order.md builds this file with __ATOMIC_RELAXED. */
#ifndef DT_SIGNAL_ORDER
#define DT_SIGNAL_ORDER __ATOMIC_SEQ_CST
#endif

enum { DT_SPINS = 64 }; /* about 2 us of pause instructions: more would take the core from whoever is to signal */

static void spin_pause(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void counter_add(dt_counter *counter, uint32_t value, uint64_t visible_ns) {
  uint64_t seen = __atomic_load_n(&counter->visible_ns, __ATOMIC_RELAXED);
  while (seen < visible_ns &&
         !__atomic_compare_exchange_n(&counter->visible_ns, &seen, visible_ns, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  /* Release: pairs with the acquire in reached(). Publishes the stamp above and every put before. */
  __atomic_fetch_add(&counter->value, value, DT_SIGNAL_ORDER);
  /* Either this load sees the waiter, or the waiter's load after its increment sees the new value: both sides are
   * sequentially consistent. */
  if (__atomic_load_n(&counter->waiters, __ATOMIC_SEQ_CST) > 0) {
    syscall(SYS_futex, &counter->value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
}

static int reached(const dt_counter *counter, uint32_t target, uint32_t *seen) {
  *seen = __atomic_load_n(&counter->value, __ATOMIC_SEQ_CST); /* acquire: pairs with counter_add */
  return *seen >= target;
}

static dt_status expire(dt_comm *comm, const dt_wait *wait, uint32_t epoch, uint32_t target, uint32_t seen,
                        double waited_s) {
  char index[32] = "", peers[512], text[DT_ABORT_TEXT];
  if (wait->index >= 0) snprintf(index, sizeof index, " %lld", (long long)wait->index);
  dt_host_describe(comm, dt_host_suspects(comm, wait, epoch), dt_now_ns(), peers, sizeof peers);
  snprintf(text, sizeof text, "rank %d, phase %s: %s%s: expected %u, seen %u after %.3g s%s%s", comm->rank, wait->phase,
           wait->counter, index, target, seen, waited_s, *peers ? "; " : "", peers);
  dt_host_abort(comm, DT_ERR_TIMEOUT, text);
  return dt_fail(DT_ERR_TIMEOUT, "%s", text);
}

/* 0: no bound. */
static double timeout_of(const dt_comm *comm, const dt_wait *wait) {
  return wait->entry ? comm->config.entry_timeout_s : comm->config.timeout_s;
}

/* Bounded: by the time-out, or (entry time-out 0) by the lives of the peers. */
static dt_status park(dt_comm *comm, dt_counter *counter, uint32_t target, const dt_wait *wait, uint32_t epoch) {
  double timeout_s = timeout_of(comm, wait);
  uint64_t start = dt_now_ns(), now = start, checked = start;
  uint64_t deadline = timeout_s > 0.0 && timeout_s < 1e9 ? start + (uint64_t)(timeout_s * 1e9) : UINT64_MAX;
  uint32_t seen = 0;
  while (!reached(counter, target, &seen)) {
    if (dt_host_aborted(comm)) return dt_host_status(comm);
    if (now >= deadline) return expire(comm, wait, epoch, target, seen, (double)(now - start) * 1e-9);
    uint64_t slice = deadline - now < DT_SLICE_NS ? deadline - now : DT_SLICE_NS;
    struct timespec bound = dt_timespec(slice);
    syscall(SYS_futex, &counter->value, FUTEX_WAIT, seen, &bound, NULL, 0);
    uint64_t before = now;
    now = dt_now_ns();
    /* This process itself was stopped (or starved): its peers deserve the rest of their time. */
    if (now - before > slice + DT_NS_PER_S && deadline != UINT64_MAX) deadline += now - before - slice;
    if (now - checked >= DT_SLICE_NS / 2) {
      checked = now;
      dt_status status = dt_host_check_peers(comm, wait, epoch);
      if (status && !reached(counter, target, &seen)) {
        if (dt_host_aborted(comm)) return dt_host_status(comm); /* it told why before it left or died */
        dt_host_abort(comm, status, dt_error_detail());
        return status;
      }
    }
  }
  return DT_OK;
}

/* epoch: of the barrier that this wait belongs to; 0: none. */
static dt_status counter_wait(dt_comm *comm, dt_counter *counter, uint32_t target, const dt_wait *wait,
                              uint32_t epoch) {
  uint32_t seen = 0;
  int done = reached(counter, target, &seen);
  for (int i = 0; i < DT_SPINS && !done; i++) {
    spin_pause();
    done = reached(counter, target, &seen);
  }
  if (!done) {
    dt_host_progress_enter(comm, wait, target, dt_now_ns());
    __atomic_fetch_add(&counter->waiters, 1, __ATOMIC_SEQ_CST);
    dt_status status = park(comm, counter, target, wait, epoch);
    __atomic_fetch_sub(&counter->waiters, 1, __ATOMIC_RELAXED);
    dt_host_progress_leave(comm);
    if (status) return status;
  }
  uint64_t visible_ns = __atomic_load_n(&counter->visible_ns, __ATOMIC_RELAXED);
  return visible_ns ? dt_host_sleep_until(comm, visible_ns, timeout_of(comm, wait)) : DT_OK;
}

dt_status dt_host_signal(dt_comm *comm, dt_window *window, int32_t peer, size_t offset, uint32_t value,
                         uint64_t visible_ns) {
  if (dt_host_aborted(comm)) return dt_host_status(comm);
  counter_add((dt_counter *)(window->pieces[peer] + offset), value, visible_ns);
  return DT_OK;
}

dt_status dt_host_wait(dt_comm *comm, dt_window *window, size_t offset, uint32_t target, const dt_wait *wait) {
  return counter_wait(comm, (dt_counter *)(window->pieces[comm->rank] + offset), target, wait, 0);
}

/* Two counters by parity: a peer can be at most one barrier ahead, and it enters the one after only when this rank has
 * arrived at the next, after zeroing this parity. */
dt_status dt_host_barrier(dt_comm *comm, const char *phase) {
  dt_host *host = dt_host_of(comm);
  if (dt_host_aborted(comm)) return dt_host_status(comm);
  uint32_t epoch = ++host->epoch;

  uint64_t visible_ns = __atomic_load_n(&host->controls[comm->rank]->drain_free, __ATOMIC_RELAXED) / DT_TICKS_PER_NS;
  if (visible_ns) visible_ns += host->latency_ns; /* what this rank has put is there after the barrier */
  for (int32_t i = 1; i < comm->ranks; i++) {
    dt_control *peer = host->controls[(comm->rank + i) % comm->ranks];
    __atomic_store_n(&peer->arrived[comm->rank], epoch, __ATOMIC_RELAXED);
    counter_add(&peer->arrivals[epoch & 1], 1, visible_ns);
  }
  dt_counter *arrivals = &host->controls[comm->rank]->arrivals[epoch & 1];
  dt_wait wait = {.phase = phase, .counter = "arrivals at barrier", .index = epoch, .peer = -1, .entry = 1};
  dt_status status = counter_wait(comm, arrivals, (uint32_t)comm->ranks - 1, &wait, epoch);
  if (!status && visible_ns) /* own puts, so that all leave together */
    status = dt_host_sleep_until(comm, visible_ns, timeout_of(comm, &wait));
  if (status) return status;
  __atomic_store_n(&arrivals->visible_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&arrivals->value, 0, __ATOMIC_RELAXED);
  return DT_OK;
}
