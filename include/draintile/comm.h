/* The fabric: symmetric windows, puts, counters, bounded waits, abort.
 *
 * Memory order. dt_comm_signal is a release: whoever sees the counter's new value through dt_comm_wait (an acquire)
 * sees every put the signalling thread made before it. Puts by other threads need their own happens-before edge to the
 * signalling thread. A paced fabric stamps each put with the time its bytes become visible; the signal carries the
 * stamp and the wait honours it.
 * Words written by plain stores have one writer and their own sector; shared words change by atomic add only.
 */
#ifndef DRAINTILE_COMM_H
#define DRAINTILE_COMM_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct dt_comm dt_comm;     /* one rank's endpoint */
typedef struct dt_window dt_window; /* memory that every rank has one piece of, and can write on every other rank */

/* Out-of-band all-gather, supplied by whoever started the ranks (a launcher, MPI, torch): every rank passes `bytes`
 * bytes and receives ranks*bytes in rank order. Returns 0, or a nonzero value that is reported in the detail. */
typedef int (*dt_allgather_fn)(void *context, const void *send, void *receive, size_t bytes);

typedef struct dt_comm_config {
  size_t size;                /* sizeof, set by dt_comm_config_init */
  double link_bytes_per_s;    /* R of each sender's link; 0: plain, memory speed */
  double link_capacity_bytes; /* Q: bytes in flight before a put blocks; with a rate, > 0 */
  double link_latency_s;      /* added to every put's visibility */
  double entry_timeout_s;     /* waits for a rank to arrive (default 300; 0: while its process lives) */
  double timeout_s;           /* waits inside a layer (default 60) */
} dt_comm_config;
void dt_comm_config_init(dt_comm_config *config);

/* Fabric `local`: ranks are threads of this process. Fills endpoints[ranks]; each is used by its rank's threads and
 * destroyed with dt_comm_destroy. DT_ERR_ARGUMENT, DT_ERR_MEMORY. */
dt_status dt_comm_create_local(int32_t ranks, const dt_comm_config *config, dt_comm **endpoints);

/* Fabric `shm`: ranks are processes of one machine. Collective over `allgather`. Memory is memfd, passed between the
 * ranks as file descriptors: nothing outlives the processes. `allgather` is not called afterwards. DT_ERR_ARGUMENT,
 * DT_ERR_MISMATCH (another configuration or version at a rank), DT_ERR_SYSTEM, DT_ERR_MEMORY, DT_ERR_PEER,
 * DT_ERR_TIMEOUT. */
dt_status dt_comm_create_shm(int32_t rank, int32_t ranks, dt_allgather_fn allgather, void *context,
                             const dt_comm_config *config, dt_comm **endpoint);

/* Fabric `cuda`: windows are memory of GPU `device` that kernels of every rank may load and store (cuMem allocations,
 * passed as file descriptors between processes; legacy IPC where a driver cannot export them). `control` is an endpoint
 * of the same ranks, `local` (ranks are threads) or `shm`: it carries barriers, agreement, liveness and abort, and
 * belongs to the new endpoint once this call succeeded. Collective. Puts may read host or device memory; counters are
 * polled from the host, kernels wait for themselves. DT_ERR_NO_DEVICE; DT_ERR_UNSUPPORTED (built without CUDA, no peer
 * access). */
dt_status dt_comm_create_cuda(dt_comm *control, int32_t device, dt_comm **endpoint);
void dt_comm_destroy(dt_comm *comm); /* frees its windows; NULL allowed */

int32_t dt_comm_rank(const dt_comm *comm);
int32_t dt_comm_ranks(const dt_comm *comm);
const char *dt_comm_fabric(const dt_comm *comm); /* "local", "shm", "cuda" */

/* Collective, in the same order on every rank; the pieces may differ in size. Zero-filled, at least 64-byte aligned,
 * and only touched pages take memory. The window is the endpoint's: dt_comm_free, or dt_comm_destroy at last, releases
 * it. DT_ERR_MEMORY, DT_ERR_SYSTEM; of cuda DT_ERR_DEVICE, DT_ERR_UNSUPPORTED; and as dt_comm_barrier. */
dt_status dt_comm_alloc(dt_comm *comm, size_t bytes, dt_window **window);
void dt_comm_free(dt_comm *comm, dt_window *window);           /* collective */
void *dt_window_local(dt_window *window);                      /* this rank's piece */
size_t dt_window_bytes(const dt_window *window, int32_t rank); /* of a rank's piece; 0: no such rank */

/* A counter lives in a window, at a multiple of its own size. Zero-filled memory is a counter at 0. */
typedef struct dt_counter {
  uint32_t value, waiters; /* value: atomic add only */
  uint64_t visible_ns;     /* latest visibility stamp among the adds */
  uint32_t reserved[12];
} dt_counter; /* 64 bytes */

/* rows x row_bytes into peer's piece of `window`. Row i is read at src + (src_index ? src_index[i] : i)*src_stride and
 * written at offset + i*dst_stride. Blocks while the sender's backlog + bytes exceed the capacity (the Burst-Gap law:
 * T = max(copy, (q + V - Q)/R)); with backlog_limit_bytes > 0 it first waits until the backlog is at most that, so that
 * bulk traffic leaves room for stores that must not stall. *visible_ns (may be NULL) receives the stamp (0 on a plain
 * fabric). DT_ERR_ARGUMENT: past the piece, or no such peer; DT_ERR_TIMEOUT: the link needs longer than a wait may
 * last; DT_ERR_PEER; DT_ERR_DEVICE (cuda). */
typedef struct dt_put {
  dt_window *window;
  int32_t peer;
  size_t offset, dst_stride;
  const void *src;
  size_t src_stride;
  const int32_t *src_index; /* NULL: consecutive */
  size_t row_bytes;
  int64_t rows;
  double backlog_limit_bytes; /* 0: none */
} dt_put;
dt_status dt_comm_put(dt_comm *comm, const dt_put *put, uint64_t *visible_ns);

/* Adds `value` to the counter at `offset` of peer's piece (peer may be this rank). Release. DT_ERR_ARGUMENT: no counter
 * there; DT_ERR_PEER. */
dt_status dt_comm_signal(dt_comm *comm, dt_window *window, int32_t peer, size_t offset, uint32_t value,
                         uint64_t visible_ns);

/* What a wait is for, so that its expiry can say so. */
typedef struct dt_wait {
  const char *phase;   /* "counts", "L1", ... */
  const char *counter; /* "arrival of band", ... */
  int64_t index;       /* of the counter; -1: none */
  int32_t peer;        /* the rank waited for; -1: not one alone */
  int32_t entry;       /* 1: the entry timeout applies */
} dt_wait;
/* Waits until the counter in this rank's piece is >= target and its stamp has passed. Acquire. Parks, never spins for
 * long. DT_ERR_TIMEOUT (aborts the peers; the detail names rank, phase, counter, expected, seen, and a dead or stopped
 * peer), DT_ERR_PEER (another rank aborted or died; the detail says who and why). */
dt_status dt_comm_wait(dt_comm *comm, dt_window *window, size_t offset, uint32_t target, const dt_wait *wait);

/* Every rank arrives before any returns. `phase` as in dt_wait. Errors as dt_comm_wait. */
dt_status dt_comm_barrier(dt_comm *comm, const char *phase);

/* In-band all-gather through the fabric: `bytes` of every rank (any number, the same on each) into
 * receive[ranks*bytes], by rank. Errors as dt_comm_alloc. */
dt_status dt_comm_allgather(dt_comm *comm, const void *send, void *receive, size_t bytes);

/* One named configuration value; every rank must pass the same list. DT_ERR_MISMATCH on every rank names the first
 * field that differs, with the values and the ranks that hold them; otherwise as dt_comm_allgather. Collective. */
typedef struct dt_agree_field {
  const char *name;
  int64_t value;
} dt_agree_field;
dt_status dt_comm_agree(dt_comm *comm, const dt_agree_field *fields, size_t count);

/* Tells every peer that this rank gives up: their waits return DT_ERR_PEER with this detail. */
void dt_comm_abort(dt_comm *comm, dt_status status, const char *detail);
/* DT_OK, or the error that an abort (own or a peer's) left. */
dt_status dt_comm_status(dt_comm *comm);

/* Bytes this rank has put to each peer since creation: sent[ranks]. */
void dt_comm_bytes_sent(const dt_comm *comm, uint64_t *sent);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
