/* What moves rows between ranks: the way in, the way out; and the counters that say so. */

#include "cpu/attention.h"

/* Shorter waits are the cost of looking. */
enum { SHORT_WAIT_NS = 1000 };

static size_t bank_at(const dt_attention *a, int64_t counter) {
  return (size_t)(a->epoch & 1) * a->bank_bytes + (size_t)counter * sizeof(dt_counter);
}

/* A bank holds a counter a sender, then one a query head and one a key head of its rank. Banks are as large on every
 * rank. */
size_t dt_attention_done_at(const dt_attention *a, int32_t sender) {
  return bank_at(a, sender);
}

size_t dt_attention_arrival_at(const dt_attention *a, int32_t rank, int kv, int32_t head) {
  return bank_at(a, a->ranks + (kv ? dt_ulysses_head_count(&a->layout, rank) : 0) + head);
}

void dt_attention_delay(dt_attention_thread *thread) {
  const dt_attention_config *config = &thread->attention->config;
  dt_pause(&thread->delays, config->delay_seed, config->delay_max_us);
}

dt_span *dt_attention_span(dt_attention_thread *thread, dt_span_kind kind, uint64_t begin_ns, uint64_t end_ns) {
  dt_span *span = &thread->spans[thread->span_count++];
  *span = dt_span_of(kind, thread->track, begin_ns, end_ns);
  return span;
}

dt_status dt_attention_await(dt_attention_thread *thread, int kv, int32_t head) {
  dt_attention *a = thread->attention;
  dt_wait wait = {
      .phase = "attention", .counter = kv ? "arrival of key head" : "arrival of query head", .index = head, .peer = -1};
  uint32_t target = (uint32_t)(kv ? a->config.kv_tokens : a->config.tokens);
  dt_attention_delay(thread);
  uint64_t begin = dt_now_ns();
  dt_status status = dt_comm_wait(a->comm, a->counters, dt_attention_arrival_at(a, a->rank, kv, head), target, &wait);
  uint64_t end = dt_now_ns();
  if (end - begin >= SHORT_WAIT_NS) {
    dt_span *span = dt_attention_span(thread, DT_SPAN_WAIT, begin, end);
    span->index = head;
  }
  return status;
}

dt_status dt_attention_put(dt_attention_thread *thread, const dt_put *put, dt_span_kind kind, int64_t index,
                           int32_t column, uint64_t *visible_ns) {
  dt_attention *a = thread->attention;
  int64_t bytes = put->peer == a->rank ? 0 : put->rows * (int64_t)put->row_bytes;
  *visible_ns = 0;
  dt_attention_delay(thread);
  uint64_t begin = dt_now_ns();
  dt_status status = dt_comm_put(a->comm, put, visible_ns);
  dt_span moved = {.index = (int32_t)index,
                   .column = column,
                   .peer = put->peer,
                   .rows = (int32_t)put->rows,
                   .bytes = bytes,
                   .kind = (int32_t)kind,
                   .track = thread->track,
                   .begin_ns = begin,
                   .end_ns = dt_now_ns()};
  thread->spans[thread->span_count++] = moved;
  if (*visible_ns > begin) {
    moved.kind = DT_SPAN_LINK;
    moved.track = a->thread_count;
    moved.end_ns = *visible_ns;
    thread->spans[thread->span_count++] = moved;
  }
  dt_attention_delay(thread);
  return status;
}

/* The rows of one tensor that this rank holds, of one head, in pieces: a large put would leave the link's buffer no
 * room for an output tile. to: element of the peer's arrivals at which row 0 of the sequence lies. */
static dt_status send_tensor(dt_attention_thread *thread, int64_t ticket, const void *from, int32_t heads, int32_t head,
                             int64_t tokens, int32_t peer, int64_t to, uint64_t *stamp) {
  dt_attention *a = thread->attention;
  size_t row = (size_t)a->config.head_dim * a->element;
  for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
    dt_ulysses_rows run = dt_ulysses_sent(&a->layout, tokens, a->rank, peer, part);
    for (int64_t at = 0; at < run.rows; at += a->piece_rows) {
      size_t local = (size_t)(run.local + at);
      dt_put put = {.window = a->arrivals,
                    .peer = peer,
                    .offset = (size_t)to * a->element + (size_t)(run.first + at) * row,
                    .dst_stride = row,
                    .src = (const unsigned char *)from + (local * (size_t)heads + (size_t)head) * row,
                    .src_stride = (size_t)heads * row,
                    .row_bytes = row,
                    .rows = dt_min64(run.rows - at, a->piece_rows),
                    .backlog_limit_bytes = a->backlog_limit_bytes};
      uint64_t visible_ns;
      dt_status status = dt_attention_put(thread, &put, DT_SPAN_DISPATCH, ticket, head, &visible_ns);
      if (status) return status;
      if (visible_ns > *stamp) *stamp = visible_ns;
    }
  }
  return DT_OK;
}

static dt_status send_rows(dt_attention_thread *thread, int64_t ticket, uint64_t *stamp) {
  dt_attention *a = thread->attention;
  const dt_ulysses_layout *u = &a->layout;
  const dt_ulysses_send *send = &a->sends[ticket];
  const dt_attention_config *config = &a->config;
  int32_t peer = send->peer;
  if (!send->kv)
    return send_tensor(thread, ticket, a->input->q, config->heads, u->head_first[peer] + send->head, config->tokens,
                       peer, dt_ulysses_q_at(u, send->head, 0), stamp);
  int32_t head = dt_ulysses_kv_first(u, peer) + send->head;
  dt_status status = send_tensor(thread, ticket, a->input->k, config->kv_heads, head, config->kv_tokens, peer,
                                 dt_ulysses_kv_at(u, peer, 0, send->head, 0), stamp);
  if (status) return status;
  return send_tensor(thread, ticket, a->input->v, config->kv_heads, head, config->kv_tokens, peer,
                     dt_ulysses_kv_at(u, peer, 1, send->head, 0), stamp);
}

static dt_status signal_arrival(dt_attention_thread *thread, const dt_ulysses_send *send, uint64_t stamp) {
  dt_attention *a = thread->attention;
  int64_t tokens = send->kv ? a->config.kv_tokens : a->config.tokens;
  int64_t rows = dt_ulysses_sent_rows(&a->layout, tokens, a->rank, send->peer);
  dt_attention_delay(thread);
  return dt_comm_signal(a->comm, a->counters, send->peer, dt_attention_arrival_at(a, send->peer, send->kv, send->head),
                        (uint32_t)rows, stamp);
}

dt_status dt_attention_run_sends(dt_attention_thread *thread) {
  dt_attention *a = thread->attention;
  while (!dt_failure_seen(&a->failure)) {
    int64_t ticket = atomic_fetch_add_explicit(&a->sends_drawn.next, 1, memory_order_relaxed);
    if (ticket >= a->send_count) return DT_OK;
    uint64_t stamp = 0;
    dt_status status = DT_OK;
    if (a->config.publish_early) status = signal_arrival(thread, &a->sends[ticket], 0);
    if (!status) status = send_rows(thread, ticket, &stamp);
    if (!status && !a->config.publish_early) status = signal_arrival(thread, &a->sends[ticket], stamp);
    if (status) return status;
  }
  return dt_attention_failure_status(a);
}

dt_status dt_attention_tell(dt_attention_thread *thread, int64_t position) {
  dt_attention *a = thread->attention;
  for (int32_t i = 1; i < a->ranks; i++) {
    int32_t peer = (a->rank + i) % a->ranks;
    if (thread->peer_told[peer] || a->last_tile[peer] >= position) continue;
    thread->peer_told[peer] = true;
    dt_attention_delay(thread);
    dt_status status =
        dt_comm_signal(a->comm, a->counters, peer, dt_attention_done_at(a, a->rank), 1, thread->peer_stamp[peer]);
    if (status) return status;
  }
  return DT_OK;
}

/* Serial's way out: all rows of one head to one owner. */
static dt_status send_kept(dt_attention_thread *thread, int64_t ticket) {
  dt_attention *a = thread->attention;
  int32_t head = (int32_t)(ticket / (a->ranks - 1));
  int32_t owner = (a->rank + 1 + (int32_t)(ticket % (a->ranks - 1))) % a->ranks;
  size_t row = (size_t)a->config.head_dim * a->element, token = (size_t)a->config.heads * row;
  for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
    dt_ulysses_rows run = dt_ulysses_owned(&a->layout, a->config.tokens, owner, part);
    if (run.rows == 0) continue;
    dt_put put = {.window = a->output,
                  .peer = owner,
                  .offset = (size_t)run.local * token + (size_t)(a->head_first + head) * row,
                  .dst_stride = token,
                  .src = a->kept + (size_t)dt_ulysses_q_at(&a->layout, head, run.first) * a->element,
                  .src_stride = row,
                  .row_bytes = row,
                  .rows = run.rows};
    uint64_t visible_ns;
    dt_status status = dt_attention_put(thread, &put, DT_SPAN_SEGMENT, ticket, a->head_first + head, &visible_ns);
    if (status) return status;
    if (visible_ns > thread->peer_stamp[owner]) thread->peer_stamp[owner] = visible_ns;
  }
  return DT_OK;
}

dt_status dt_attention_run_out(dt_attention_thread *thread) {
  dt_attention *a = thread->attention;
  while (!dt_failure_seen(&a->failure)) {
    int64_t ticket = atomic_fetch_add_explicit(&a->sends_drawn.next, 1, memory_order_relaxed);
    if (ticket >= a->out_count) return dt_attention_tell(thread, INT64_MAX);
    dt_status status = send_kept(thread, ticket);
    if (status) return status;
  }
  return dt_attention_failure_status(a);
}
