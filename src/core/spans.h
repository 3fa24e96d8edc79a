/* Orders of spans, for what writes traces and what fits costs to them. Pure. */
#ifndef DT_CORE_SPANS_H
#define DT_CORE_SPANS_H

#include <draintile/trace.h>

/* For qsort of pointers to spans: by track, begin, longest first. Slices of one track nest only if, so sorted, each
 * ends no later than the slice that is open around it. */
static inline int dt_span_order(const void *a, const void *b) {
  const dt_span *x = *(const dt_span *const *)a, *y = *(const dt_span *const *)b;
  if (x->track != y->track) return x->track < y->track ? -1 : 1;
  if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
  return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

/* The earliest begin of all; UINT64_MAX without a span. */
static inline uint64_t dt_spans_begin_ns(const dt_trace_rank *ranks, size_t count) {
  uint64_t first = UINT64_MAX;
  for (size_t r = 0; r < count; r++)
    for (size_t i = 0; i < ranks[r].span_count; i++)
      if (ranks[r].spans[i].begin_ns < first) first = ranks[r].spans[i].begin_ns;
  return first;
}

#endif
