/* What is known about the other ranks: who died, who left, who stands still, who gave up. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "core/error.h"
#include "host.h"
#include "process.h"

enum { ABORT_NONE = 0, ABORT_WRITING = 1, ABORT_WRITTEN = 2 };

static int record_abort(dt_abort_record *record, int32_t rank, dt_status status, const char *detail) {
  uint32_t none = ABORT_NONE;
  if (!__atomic_compare_exchange_n(&record->state, &none, ABORT_WRITING, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return 0;
  record->rank = rank;
  record->status = (int32_t)status;
  snprintf(record->text, sizeof record->text, "%s", detail);
  __atomic_store_n(&record->state, ABORT_WRITTEN, __ATOMIC_RELEASE); /* pairs with dt_host_status */
  return 1;
}

/* A rank that was told already tells nobody: the first aborter does, and the cause must not be retold as its own.
 * Parked peers look at their record every DT_SLICE_NS; those at a barrier are woken at once. */
void dt_host_abort(dt_comm *comm, dt_status status, const char *detail) {
  dt_host *host = dt_host_of(comm);
  for (int32_t i = 0; i < comm->ranks; i++) {
    dt_control *peer = host->controls[(comm->rank + i) % comm->ranks];
    if (!peer) continue; /* half-way through create */
    int first = record_abort(&peer->abort, comm->rank, status, detail);
    if (i == 0 && !first) return;
    for (int parity = 0; parity < 2; parity++) {
      syscall(SYS_futex, &peer->arrivals[parity].value, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
  }
}

dt_status dt_host_status(dt_comm *comm) {
  const dt_abort_record *record = &dt_host_of(comm)->controls[comm->rank]->abort;
  uint32_t state = __atomic_load_n(&record->state, __ATOMIC_ACQUIRE);
  if (state == ABORT_NONE) return DT_OK;
  for (int i = 0; i < 100 && state != ABORT_WRITTEN; i++) { /* 10 ms: its writer may have died in between */
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    state = __atomic_load_n(&record->state, __ATOMIC_ACQUIRE);
  }
  if (state != ABORT_WRITTEN) return dt_fail(DT_ERR_PEER, "a rank died while it was aborting");
  if (record->rank == comm->rank) return dt_fail((dt_status)record->status, "%s", record->text);
  return dt_fail(DT_ERR_PEER, "rank %d gave up (%s): %s", record->rank, dt_status_name((dt_status)record->status),
                 record->text);
}

uint64_t dt_host_suspects(const dt_comm *comm, const dt_wait *wait, uint32_t epoch) {
  if (wait->peer >= 0 && wait->peer < comm->ranks) return (uint64_t)1 << wait->peer;
  uint64_t suspects = 0;
  const dt_control *own = dt_host_of(comm)->controls[comm->rank];
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (p == comm->rank) continue;
    uint32_t arrived = __atomic_load_n(&own->arrived[p], __ATOMIC_RELAXED);
    if (!epoch || (int32_t)(arrived - epoch) < 0) suspects |= (uint64_t)1 << p;
  }
  return suspects;
}

static int is_dead(const dt_host *host, int32_t peer) {
  return host->pidfds[peer] >= 0 && dt_process_died(host->pidfds[peer]);
}

static int has_left(const dt_host *host, int32_t peer) {
  return __atomic_load_n(&host->controls[peer]->left, __ATOMIC_ACQUIRE) != 0;
}

dt_status dt_host_check_peers(dt_comm *comm, const dt_wait *wait, uint32_t epoch) {
  const dt_host *host = dt_host_of(comm);
  int named = epoch != 0 || wait->peer >= 0; /* only then is it certain that this wait needs the rank that left */
  uint64_t suspects = dt_host_suspects(comm, wait, epoch);
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (p == comm->rank) continue;
    const char *fate = NULL;
    if (has_left(host, p)) {
      if (named && (suspects >> p & 1)) fate = "left (dt_comm_destroy)";
    } else if (is_dead(host, p)) {
      fate = "died";
    }
    if (fate) {
      return dt_fail(DT_ERR_PEER, "rank %d %s; rank %d waited in phase %s for %s", p, fate, comm->rank, wait->phase,
                     wait->counter);
    }
  }
  return DT_OK;
}

static void store_words(uint64_t *words, size_t count, const char *text) {
  uint64_t copy[4] = {0};
  strncpy((char *)copy, text, count * sizeof *copy - 1);
  for (size_t i = 0; i < count; i++) __atomic_store_n(&words[i], copy[i], __ATOMIC_RELAXED);
}

static void load_words(const uint64_t *words, size_t count, char *text) {
  uint64_t copy[4] = {0};
  for (size_t i = 0; i < count; i++) copy[i] = __atomic_load_n(&words[i], __ATOMIC_RELAXED);
  memcpy(text, copy, sizeof copy);
  text[sizeof copy - 1] = '\0';
}

void dt_host_progress_enter(dt_comm *comm, const dt_wait *wait, uint32_t target, uint64_t now_ns) {
  dt_progress *progress = &dt_host_of(comm)->controls[comm->rank]->progress;
  store_words(progress->phase, 3, wait->phase);
  store_words(progress->counter, 4, wait->counter);
  __atomic_store_n(&progress->index, (uint64_t)wait->index, __ATOMIC_RELAXED);
  __atomic_store_n(&progress->target, target, __ATOMIC_RELAXED);
  __atomic_store_n(&progress->since_ns, now_ns, __ATOMIC_RELAXED);
  __atomic_fetch_add(&progress->waiting, 1, __ATOMIC_RELAXED);
}

void dt_host_progress_leave(dt_comm *comm) {
  __atomic_fetch_sub(&dt_host_of(comm)->controls[comm->rank]->progress.waiting, 1, __ATOMIC_RELAXED);
}

static void describe_behind(const dt_progress *progress, uint64_t now_ns, char *text, size_t size) {
  uint64_t since = __atomic_load_n(&progress->since_ns, __ATOMIC_RELAXED);
  if (since == 0) {
    snprintf(text, size, "behind: has not waited for anything yet");
    return;
  }
  char phase[32], counter[32];
  load_words(progress->phase, 3, phase);
  load_words(progress->counter, 4, counter);
  long long index = (long long)__atomic_load_n(&progress->index, __ATOMIC_RELAXED);
  int waiting = __atomic_load_n(&progress->waiting, __ATOMIC_RELAXED) > 0;
  double ago = now_ns > since ? (double)(now_ns - since) * 1e-9 : 0.0;
  snprintf(text, size, "behind: %s phase %s for %s %lld, entered %.3g s ago", waiting ? "waits in" : "last waited in",
           phase, counter, index, ago);
}

void dt_host_describe(const dt_comm *comm, uint64_t suspects, uint64_t now_ns, char *text, size_t size) {
  const dt_host *host = dt_host_of(comm);
  size_t used = 0;
  text[0] = '\0';
  for (int32_t p = 0; p < comm->ranks && used + 1 < size; p++) {
    if (!(suspects >> p & 1) || p == comm->rank) continue;
    char state = 'R', what[192];
    if (host->pidfds[p] >= 0) state = dt_process_state(host->pids[p], NULL);
    if (is_dead(host, p)) {
      snprintf(what, sizeof what, "dead");
    } else if (has_left(host, p)) {
      snprintf(what, sizeof what, "gone (dt_comm_destroy)");
    } else if (state == 'T' || state == 't') {
      snprintf(what, sizeof what, "stopped");
    } else {
      describe_behind(&host->controls[p]->progress, now_ns, what, sizeof what);
    }
    int wrote = snprintf(text + used, size - used, "%srank %d is %s", used ? "; " : "", p, what);
    used += wrote > 0 ? (size_t)wrote : 0;
  }
}
