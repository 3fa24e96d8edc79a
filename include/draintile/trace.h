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
  DT_SPAN_LINK = 10,     /* bytes draining on the link, from issue to visibility */
  DT_SPAN_ATTENTION = 11 /* one tile of attention, its waits and its store included */
} dt_span_kind;
const char *dt_span_kind_name(dt_span_kind kind);

/* Times are nanoseconds of CLOCK_MONOTONIC (or of the simulator), the same clock on all ranks of a machine. */
typedef struct dt_span {
  uint64_t begin_ns, end_ns;
  int32_t kind;
  int32_t track;         /* 0..workers-1, then consumers, then links: see dt_trace_rank */
  int32_t index, column; /* of the task; -1: none */
  int32_t peer;          /* -1: none */
  int32_t rows;          /* valid rows of the task */
  int64_t bytes;         /* moved off the rank */
} dt_span;

typedef struct dt_trace_rank {
  const char *name; /* of the run, e.g. the schedule */
  int32_t rank, workers, consumers;
  const dt_span *spans;
  size_t span_count;
} dt_trace_rank;

/* Chrome/Perfetto JSON: ranks as processes, a track a worker, consumer and link, slices that nest, times in us from
 * the earliest span. Written to a temporary name, then renamed. DT_ERR_IO names the path. */
dt_status dt_trace_write(const char *path, const dt_trace_rank *ranks, size_t count);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
