/* The Ulysses operator: what the device says of the runs that are through. */
#include "ulysses.h"

#include <stdlib.h>

#include "attention.h"
#include "comm/clock.h"
#include "core/error.h"
#include "driver.h"

static dt_status read_state(dt_ulysses *u, void *stream, dt_ulysses_state *state) {
  cudaError_t error = cudaMemcpyAsync(&u->pinned->state, u->state, sizeof *state, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  *state = u->pinned->state;
  return dt_cuda_check(error, "ulysses");
}

dt_status dt_ulysses_check(dt_ulysses *u, void *stream) {
  const int32_t rank = u->move_in.params.rank;
  const double limit_s = u->config.timeout_s;
  dt_ulysses_state state;
  dt_status status = read_state(u, stream, &state);
  if (status) return status;
  switch (state.error) {
  case DT_ULYSSES_ERROR_NONE:
  case DT_ULYSSES_ERROR_ATTENTION:
    status = dt_cuda_attention_check(u->workspace, stream);
    if (status || state.error == DT_ULYSSES_ERROR_NONE) return status;
    return dt_fail(DT_ERR_INTERNAL, "rank %d, ulysses: the attention failed with %u before", rank, state.seen);
  case DT_ULYSSES_ERROR_ENTRY:
  case DT_ULYSSES_ERROR_LEAVE:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, ulysses: %s of rank %d: epoch %u expected, %u seen after %g s", rank,
                   state.error == DT_ULYSSES_ERROR_ENTRY ? "entry" : "output rows", state.index, state.expected,
                   state.seen, limit_s);
  case DT_ULYSSES_ERROR_ARRIVAL:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, ulysses: arrival of head %d: %u expected, %u seen after %g s", rank,
                   state.index, state.expected, state.seen, limit_s);
  case DT_ULYSSES_ERROR_COPY:
  case DT_ULYSSES_ERROR_SENT:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, ulysses: %s %d: %u expected, %u seen after %g s", rank,
                   state.error == DT_ULYSSES_ERROR_COPY ? "copy of block" : "way in", state.index, state.expected,
                   state.seen, limit_s);
  case DT_ULYSSES_ERROR_PEER:
    return dt_fail(DT_ERR_PEER, "rank %d, ulysses: rank %d gave up", rank, state.index);
  default:
    return dt_fail(DT_ERR_INTERNAL, "rank %d, ulysses: error %u", rank, state.error);
  }
}

int32_t dt_ulysses_tile_rows(const dt_ulysses *u) {
  return 64 * dt_attention_shape_of(&u->attention).groups;
}

int64_t dt_ulysses_tile_count(const dt_ulysses *u) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT;
  const dt_attention_shape shape = dt_attention_shape_of(&u->attention);
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel || u->attention.kv_tokens == 0) {
    free(kernel);
    return 0;
  }
  dt_attention_plan(&u->attention, &shape, chosen.cut, u->attention.sms, kernel);
  const int64_t tiles = (int64_t)kernel->groups[0].tiles + kernel->groups[1].tiles;
  free(kernel);
  return tiles;
}

/* What to add to the GPU's timer: of some readings the one that took the host least time counts. */
static dt_status clock_offset(dt_ulysses *u, void *stream, uint64_t *offset) {
  enum { READINGS = 8 };
  uint64_t least = UINT64_MAX;
  for (int i = 0; i < READINGS; i++) {
    const uint64_t before = dt_now_ns();
    cudaError_t error = dt_ulysses_clock_launch(&u->pinned->clock_ns, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    if (error != cudaSuccess) return dt_cuda_check(error, "clock");
    const uint64_t took = dt_now_ns() - before;
    if (took >= least) continue;
    least = took;
    *offset = before + took / 2 - u->pinned->clock_ns;
  }
  return DT_OK;
}

dt_status dt_ulysses_spans(dt_ulysses *u, void *stream, const dt_span **spans, size_t *count) {
  enum { WORKER = 0, CONSUMER = 1 };
  dt_ulysses_state state;
  uint64_t offset = 0;
  dt_status status = read_state(u, stream, &state);
  if (!status) status = clock_offset(u, stream, &offset);
  if (status) return status;
  const dt_ulysses_times *t = &state.times;
  const int serial = u->config.attention.schedule == DT_ATTENTION_SERIAL;
  const struct {
    uint64_t begin, end;
    int32_t kind, track;
  } parts[] = {{t->in_first, t->in_last, DT_SPAN_DISPATCH, CONSUMER},
               {t->ready, serial ? t->out_first : t->stored, DT_SPAN_ATTENTION, WORKER},
               {serial ? t->out_first : t->stored, t->stored, DT_SPAN_SEGMENT, CONSUMER},
               {t->stored, t->left, DT_SPAN_BARRIER, WORKER}};
  size_t made = 0;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (parts[i].end <= parts[i].begin) continue;
    u->spans[made++] = (dt_span){.begin_ns = parts[i].begin + offset,
                                 .end_ns = parts[i].end + offset,
                                 .kind = parts[i].kind,
                                 .track = parts[i].track,
                                 .index = -1,
                                 .column = -1,
                                 .peer = -1,
                                 .rows = (int32_t)u->layout.tokens};
  }
  *spans = u->spans;
  *count = made;
  return DT_OK;
}
