#include "rank_spans.h"

#include <stdlib.h>
#include <string.h>

#include "log.h"

int rank_spans_copy(int32_t rank, const void *data, size_t bytes, rank_spans *out) {
  dt_span *copy = malloc(bytes + 1);
  if (!copy) return log_fail(TOOL_FAILED, "out of memory for the spans of rank %d", rank);
  memcpy(copy, data, bytes);
  *out = (rank_spans){.spans = copy, .count = bytes / sizeof(dt_span)};
  return TOOL_OK;
}

void rank_spans_busy(const rank_spans *spans, int32_t ranks, double *busy_s, int kinds) {
  for (int kind = 0; kind < kinds; kind++) busy_s[kind] = 0;
  for (int32_t rank = 0; rank < ranks; rank++)
    for (size_t i = 0; i < spans[rank].count; i++) {
      const dt_span *span = &spans[rank].spans[i];
      if (span->kind >= 0 && span->kind < kinds) busy_s[span->kind] += 1e-9 * (double)(span->end_ns - span->begin_ns);
    }
}

static int write_file(const rank_trace *trace, const char *path) {
  size_t ranks = (size_t)trace->ranks, count = ranks * (size_t)trace->run_count;
  dt_trace_rank *all = calloc(count, sizeof(*all));
  if (!all) return log_out_of_memory();
  for (size_t i = 0; i < count; i++)
    all[i] = (dt_trace_rank){.name = trace->names[i / ranks],
                             .rank = (int32_t)(i % ranks),
                             .workers = trace->workers,
                             .consumers = trace->consumers,
                             .device = trace->device,
                             .spans = trace->spans[i].spans,
                             .span_count = trace->spans[i].count};
  dt_status status = dt_trace_write(path, all, count);
  free(all);
  return status ? log_status(status, NULL) : TOOL_OK;
}

int rank_trace_write(const rank_trace *trace, const char *path, int code) {
  if (!path || (code != TOOL_OK && code != TOOL_CHECK_FAILED)) return code;
  int written = write_file(trace, path);
  return code == TOOL_OK ? written : code;
}
