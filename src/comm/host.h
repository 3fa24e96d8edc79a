/* What the fabrics `local` and `shm` share: ranks whose memory this process can address. They differ in where that
 * memory comes from and in how a rank can die.
 */
#ifndef DT_COMM_HOST_H
#define DT_COMM_HOST_H

#include <stdalign.h>
#include <stdint.h>
#include <sys/types.h>

#include "fabric.h"

enum {
  DT_ABORT_TEXT = 896,    /* detail of an abort, with its end */
  DT_TICKS_PER_NS = 64,   /* the link's virtual time: a 4 KiB row at 400 GB/s takes 10 ns, whole ns would lose 5 % */
  DT_SLICE_NS = 50000000, /* longest park between looks at aborts and peers: a death is seen within twice this */
};

/* First aborter wins: it takes state from 0 to 1, writes, and releases 2. */
typedef struct dt_abort_record {
  uint32_t state;
  int32_t rank, status;
  char text[DT_ABORT_TEXT];
} dt_abort_record;

/* The last wait that a rank parked in. Relaxed atomic words, written by any of its threads: a torn read words a message
 * badly and does nothing else. */
typedef struct dt_progress {
  uint64_t since_ns;
  uint64_t phase[3], counter[4]; /* characters */
  uint64_t index, target;
  uint64_t waiting; /* threads parked now */
} dt_progress;

/* One rank's shared state, zero at the start. */
typedef struct dt_control {
  alignas(64) uint64_t drain_free;    /* ticks: when this sender's link will have drained all that was put (atomic) */
  alignas(64) dt_counter arrivals[2]; /* of the peers at this rank's barrier, by parity of the epoch */
  uint32_t arrived[DT_MAX_RANKS];     /* last epoch at which each peer arrived: names who is missing */
  alignas(64) uint32_t left;          /* 1: destroyed its endpoint (atomic) */
  alignas(64) dt_abort_record abort;
  alignas(64) dt_progress progress;
} dt_control;

typedef struct dt_host {
  dt_control *controls[DT_MAX_RANKS]; /* of every rank, in this process */
  int pidfds[DT_MAX_RANKS];           /* -1: a rank of this process */
  pid_t pids[DT_MAX_RANKS];
  uint32_t epoch;        /* of the last barrier entered */
  double ticks_per_byte; /* 0: plain */
  uint64_t capacity_ticks, latency_ns;
} dt_host;

void dt_host_init(dt_comm *comm, dt_host *host); /* from comm->config; no peer is known yet */

/* The operations of fabric.h. */
dt_status dt_host_put(dt_comm *comm, const dt_put *put, uint64_t *visible_ns);
dt_status dt_host_signal(dt_comm *comm, dt_window *window, int32_t peer, size_t offset, uint32_t value,
                         uint64_t visible_ns);
dt_status dt_host_wait(dt_comm *comm, dt_window *window, size_t offset, uint32_t target, const dt_wait *wait);
dt_status dt_host_barrier(dt_comm *comm, const char *phase);
void dt_host_abort(dt_comm *comm, dt_status status, const char *detail);
dt_status dt_host_status(dt_comm *comm); /* reports an abort into the thread's detail */

/* Parks until the time, in slices: an abort ends it early with its error. A time beyond the timeout (0: none) is
 * DT_ERR_TIMEOUT at once, every peer aborted. */
dt_status dt_host_sleep_until(dt_comm *comm, uint64_t time_ns, double timeout_s);

/* host_peers.c. suspects: a bit for each rank that a wait may be waiting for. */
uint64_t dt_host_suspects(const dt_comm *comm, const dt_wait *wait, uint32_t epoch);
/* DT_ERR_PEER, and the peers aborted by the caller, when a rank died, or left although this wait needs it. */
dt_status dt_host_check_peers(dt_comm *comm, const dt_wait *wait, uint32_t epoch);
void dt_host_progress_enter(dt_comm *comm, const dt_wait *wait, uint32_t target, uint64_t now_ns);
void dt_host_progress_leave(dt_comm *comm);
/* "rank 2 is stopped; rank 3 is behind: ..." */
void dt_host_describe(const dt_comm *comm, uint64_t suspects, uint64_t now_ns, char *text, size_t size);

static inline dt_host *dt_host_of(const dt_comm *comm) {
  return comm->state;
}

static inline int dt_host_aborted(const dt_comm *comm) {
  return __atomic_load_n(&dt_host_of(comm)->controls[comm->rank]->abort.state, __ATOMIC_RELAXED) != 0;
}

#endif
