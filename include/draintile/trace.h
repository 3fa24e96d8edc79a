/* Spans of one run: what each worker, consumer and link did, and when. The three executors write the same kind. */
#ifndef DRAINTILE_TRACE_H
#define DRAINTILE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum dt_span_kind {
  DT_SPAN_PLAN = 0,     /* counts exchange and plan */
  DT_SPAN_DISPATCH = 1, /* one D task */
  DT_SPAN_L1 = 2,
  DT_SPAN_L2 = 3,
  DT_SPAN_STORE = 4,   /* L2's store to its owner, inside an L2 span */
  DT_SPAN_SEGMENT = 5, /* a consumer's transfer */
  DT_SPAN_REDUCE = 6,
  DT_SPAN_SHARED = 7,
  DT_SPAN_WAIT = 8, /* waiting for a counter; inside the span of its task */
  DT_SPAN_BARRIER = 9,
  DT_SPAN_LINK = 10,      /* bytes draining on the link, from issue to visibility */
  DT_SPAN_ATTENTION = 11, /* one tile of attention, its waits and its store included */
  DT_SPAN_STALL = 12,     /* GPU: a warpgroup has no operands to multiply, at the begin of a tile; inside its span */
  DT_SPAN_PUBLISH = 13    /* GPU: the fence and add that tell of stored rows */
} dt_span_kind;
enum { DT_SPAN_KINDS = 14 };
const char *dt_span_kind_name(dt_span_kind kind);

/* Times are nanoseconds of CLOCK_MONOTONIC (or of the simulator), the same clock on all ranks of a machine. */
typedef struct dt_span {
  uint64_t begin_ns, end_ns;
  int32_t kind;
  int32_t track;         /* 0..workers-1, then consumers, then links: see dt_trace_rank; GPU: dt_device_track */
  int32_t index, column; /* of the task; -1: none */
  int32_t peer;          /* -1: none */
  int32_t rows;          /* valid rows of the task */
  int64_t bytes;         /* moved off the rank */
} dt_span;

/* What of a multiprocessor writes spans. */
typedef enum dt_device_role {
  DT_ROLE_CONSUMER = 0, /* and 1: warpgroups that multiply */
  DT_ROLE_STORES = 2,   /* and 3: what they store meanwhile */
  DT_ROLE_LOADER = 4,
  DT_ROLE_RELEASE = 5,
  DT_ROLE_COPIES = 6, /* and 7: warps that dispatch */
  DT_DEVICE_ROLES = 8
} dt_device_role;
/* Track 0 has whole kernels. */
static inline int32_t dt_device_track(int32_t sm, int32_t role) {
  return 1 + sm * DT_DEVICE_ROLES + role;
}

typedef struct dt_trace_rank {
  const char *name; /* of the run, e.g. the schedule */
  int32_t rank, workers, consumers;
  int32_t device; /* 1: the tracks are dt_device_track's */
  const dt_span *spans;
  size_t span_count;
} dt_trace_rank;

/* How many multiprocessors store at once, from the STORE spans of one rank on a GPU (other spans are passed over). A
 * burst is a tile's stores by all warpgroups of a multiprocessor; remote: only what went to other ranks. */
typedef struct dt_store_activity {
  int64_t bursts, bytes;          /* bytes: off the rank */
  double active_mean, active_max; /* multiprocessors with a burst under way, over the time from first to last */
  double k_act; /* 95th percentile over burst starts t of the bursts that start in [t, t + window_s) */
  double span_mean_s, span_median_s, span_p95_s; /* of a burst */
} dt_store_activity;
/* window_s: one drain time of the capacity, Q/R. Without any burst all is 0. DT_ERR_MEMORY. */
dt_status dt_trace_stores(const dt_span *spans, size_t count, int remote, double window_s, dt_store_activity *activity);

/* Chrome/Perfetto JSON: ranks as processes, a track a worker, consumer and link, slices that nest, times in us from
 * the earliest span. Written to a temporary name, then renamed. DT_ERR_IO names the path. */
dt_status dt_trace_write(const char *path, const dt_trace_rank *ranks, size_t count);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
