/* The spans that ranks send of their forwards: kept, summed and written as a trace. */
#ifndef DRAINTILE_TOOL_RANK_SPANS_H
#define DRAINTILE_TOOL_RANK_SPANS_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/trace.h>

typedef struct rank_spans {
  dt_span *spans; /* owned */
  size_t count;
} rank_spans;

/* Copies a message of rank `rank` into `out`. Exit code. */
int rank_spans_copy(int32_t rank, const void *data, size_t bytes, rank_spans *out);

/* Busy seconds by span kind, busy_s[kinds], summed over the threads of spans[ranks]. */
void rank_spans_busy(const rank_spans *spans, int32_t ranks, double *busy_s, int kinds);

typedef struct rank_trace {
  const rank_spans *spans;  /* [run_count][ranks] */
  const char *const *names; /* [run_count] */
  int32_t run_count, ranks, workers, consumers;
  int32_t device; /* as dt_trace_rank */
} rank_trace;

/* Writes --trace `path` (NULL: none) of a run that ended with `code`, a failed check included. Returns `code`, or where
 * that was TOOL_OK the trace's own failure. */
int rank_trace_write(const rank_trace *trace, const char *path, int code);

#endif
