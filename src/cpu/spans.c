#include "cpu/executor.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static size_t spans_bound(const dt_moe *moe) {
  const dt_plan *plan = moe->plan;
  /* A task with its wait; a put with its store and link; a reduction with a wait a peer and two. */
  size_t parts = (size_t)plan->part_count * (size_t)plan->config.columns_2;
  size_t pieces = (size_t)plan->dispatch_count;
  for (int32_t i = 0; i < plan->dispatch_count; i++)
    pieces += (size_t)(plan->dispatch[i].rows / moe->dispatch_piece_rows);
  return 2 * (size_t)plan->task_count + 2 * parts + 2 * pieces +
         (size_t)plan->config.reduce_blocks * ((size_t)moe->ranks + 2) + 2 * (size_t)plan->group_count +
         (size_t)plan->segment_count * 2;
}

dt_status dt_spans_reserve(dt_moe *moe) {
  size_t bound = spans_bound(moe);
  for (int32_t i = 0; i < moe->thread_count; i++) {
    dt_thread *thread = &moe->threads[i];
    size_t extra = 0;
    /* A segment waits once a band. */
    if (thread->consumer) {
      for (int32_t s = 0; s < moe->plan->segment_count; s++) extra += (size_t)moe->plan->segments[s].bands;
    }
    thread->span_count = 0;
    if (thread->span_capacity >= bound + extra) continue;
    free(thread->spans);
    thread->span_capacity = 0;
    thread->spans = malloc((bound + extra) * sizeof(dt_span));
    if (!thread->spans) return dt_fail(DT_ERR_MEMORY, "spans: out of memory for %zu", bound + extra);
    thread->span_capacity = bound + extra;
  }
  return DT_OK;
}

dt_span *dt_span_add(dt_thread *thread, dt_span_kind kind, uint64_t begin_ns, uint64_t end_ns) {
  dt_span *span = &thread->spans[thread->span_count++];
  *span = dt_span_of(kind, thread->track, begin_ns, end_ns);
  return span;
}

dt_status dt_spans_gather(dt_moe *moe, const dt_span *own, size_t own_count) {
  size_t total = own_count;
  for (int32_t i = 0; i < moe->thread_count; i++) total += moe->threads[i].span_count;
  if (moe->span_capacity < total) {
    free(moe->spans);
    moe->span_count = moe->span_capacity = 0;
    moe->spans = malloc(total * sizeof(dt_span));
    if (!moe->spans) return dt_fail(DT_ERR_MEMORY, "spans: out of memory for %zu", total);
    moe->span_capacity = total;
  }
  if (own_count) memcpy(moe->spans, own, own_count * sizeof(*own));
  size_t count = own_count;
  for (int links = 0; links < 2; links++) {
    size_t first = count;
    for (int32_t i = 0; i < moe->thread_count; i++) {
      const dt_thread *thread = &moe->threads[i];
      for (size_t s = 0; s < thread->span_count; s++) {
        if ((thread->spans[s].kind == (int32_t)DT_SPAN_LINK) == links) moe->spans[count++] = thread->spans[s];
      }
    }
    if (links) dt_spans_line_up(moe->spans + first, count - first);
  }
  moe->span_count = count;
  return DT_OK;
}
