/* One forward: entry, the jobs of its schedule, the waits at its end, what it measured. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cpu/attention.h"

dt_status dt_attention_failure_status(dt_attention *a) {
  return dt_failure_status(&a->failure);
}

/* Records it with its detail and tells the peers. */
static dt_status fail(dt_attention *a, dt_status status) {
  if (dt_failure_record(&a->failure, status, dt_error_detail())) dt_comm_abort(a->comm, status, a->failure.detail);
  return dt_attention_failure_status(a);
}

static dt_status work(dt_attention_thread *thread, dt_attention_job job) {
  /* With consumers, workers leave all that moves rows to them. */
  bool carries = thread->consumer || thread->attention->config.consumers == 0;
  dt_status status = DT_OK;
  switch (job) {
  case DT_ATTENTION_JOB_IN:
    return carries ? dt_attention_run_sends(thread) : DT_OK;
  case DT_ATTENTION_JOB_TILES:
    return thread->consumer ? DT_OK : dt_attention_run_tiles(thread);
  case DT_ATTENTION_JOB_BOTH:
    if (carries) status = dt_attention_run_sends(thread);
    return status || thread->consumer ? status : dt_attention_run_tiles(thread);
  case DT_ATTENTION_JOB_OUT:
    return carries ? dt_attention_run_out(thread) : DT_OK;
  }
  return DT_OK;
}

void dt_attention_work(void *attention, int32_t thread, int job) {
  dt_attention *a = attention;
  dt_status status = work(&a->threads[thread], (dt_attention_job)job);
  if (status) fail(a, status);
}

static dt_status run_job(dt_attention *a, dt_attention_job job) {
  atomic_store(&a->sends_drawn.next, 0);
  atomic_store(&a->tiles_drawn.next, 0);
  dt_team_run(a->team, job);
  return dt_attention_failure_status(a);
}

static dt_status await_arrivals(dt_attention *a) {
  for (int kv = 0; kv < 2; kv++)
    for (int32_t head = 0; head < (kv ? a->kv_heads : a->heads); head++) {
      dt_wait wait = {.phase = "way in",
                      .counter = kv ? "arrival of key head" : "arrival of query head",
                      .index = head,
                      .peer = -1};
      uint32_t target = (uint32_t)(kv ? a->config.kv_tokens : a->config.tokens);
      dt_status status =
          dt_comm_wait(a->comm, a->counters, dt_attention_arrival_at(a, a->rank, kv, head), target, &wait);
      if (status) return status;
    }
  return DT_OK;
}

/* Every thread of every peer has stored its last row here. */
static dt_status await_done(dt_attention *a) {
  for (int32_t i = 1; i < a->ranks; i++) {
    int32_t peer = (a->rank + i) % a->ranks;
    bool by_workers = a->config.schedule == DT_ATTENTION_PIGGYBACK || a->consumers[peer] == 0;
    dt_wait wait = {.phase = "way out", .counter = "output rows of rank", .index = peer, .peer = peer};
    dt_status status = dt_comm_wait(a->comm, a->counters, dt_attention_done_at(a, peer),
                                    (uint32_t)(by_workers ? a->workers[peer] : a->consumers[peer]), &wait);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status run_serial(dt_attention *a, dt_attention_stats *stats, dt_stage_log *log) {
  uint64_t mark = dt_now_ns();
  dt_status status = run_job(a, DT_ATTENTION_JOB_IN);
  if (!status) status = await_arrivals(a);
  if (!status) status = dt_stage_barrier(log, a->comm, "after the way in");
  if (status) return status;
  stats->in_s = dt_seconds_since(&mark);
  status = run_job(a, DT_ATTENTION_JOB_TILES);
  if (!status) status = dt_stage_barrier(log, a->comm, "after attention");
  if (status) return status;
  stats->compute_s = dt_seconds_since(&mark);
  status = run_job(a, DT_ATTENTION_JOB_OUT);
  if (!status) status = await_done(a);
  if (!status) status = dt_stage_barrier(log, a->comm, "after the way out");
  stats->out_s = dt_seconds_since(&mark);
  return status;
}

static dt_status run_piggyback(dt_attention *a) {
  dt_status status = DT_OK;
  if (a->config.overlap_in) {
    status = run_job(a, DT_ATTENTION_JOB_BOTH);
  } else {
    status = run_job(a, DT_ATTENTION_JOB_IN);
    if (!status) status = await_arrivals(a);
    if (!status) status = run_job(a, DT_ATTENTION_JOB_TILES);
  }
  if (!status) status = await_done(a);
  /* Without rows of q nothing has waited for k and v, whose counters must be still before they are reset. */
  return status ? status : await_arrivals(a);
}

/* All ranks have entered, so none is still in the forward before this one, whose bank the next one will use. */
static dt_status enter(dt_attention *a, dt_stage_log *log) {
  a->epoch++;
  for (int32_t i = 0; i < a->thread_count; i++) {
    dt_attention_thread *thread = &a->threads[i];
    memset(thread->peer_stamp, 0, sizeof(thread->peer_stamp));
    memset(thread->peer_told, 0, sizeof(thread->peer_told));
    thread->span_count = 0;
    thread->delays.state = a->config.delay_seed + a->epoch * 1000003u + (uint64_t)(a->rank * 1024 + i) * 7919u;
  }
  dt_status status = dt_stage_barrier(log, a->comm, "entry of attention");
  if (status) return status;
  unsigned char *counters = dt_window_local(a->counters);
  memset(counters + ((a->epoch + 1) & 1) * a->bank_bytes, 0, a->bank_bytes);
  return DT_OK;
}

static dt_status gather_spans(dt_attention *a, const dt_stage_log *log) {
  if (!a->spans) {
    size_t room = (size_t)a->thread_count * a->span_room + DT_STAGE_SPANS;
    a->spans = malloc(room * sizeof(dt_span));
    if (!a->spans) return dt_fail(DT_ERR_MEMORY, "spans: out of memory for %zu", room);
  }
  memcpy(a->spans, log->spans, log->count * sizeof(dt_span));
  size_t count = log->count;
  for (int links = 0; links < 2; links++) {
    size_t first = count;
    for (int32_t i = 0; i < a->thread_count; i++)
      for (size_t s = 0; s < a->threads[i].span_count; s++)
        if ((a->threads[i].spans[s].kind == DT_SPAN_LINK) == links) a->spans[count++] = a->threads[i].spans[s];
    if (links) dt_spans_line_up(a->spans + first, count - first);
  }
  a->span_count = count;
  return DT_OK;
}

static dt_status check_input(const dt_attention *a, const dt_attention_input *input) {
  int64_t q = 0, kv = 0;
  for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
    q += dt_ulysses_held(&a->layout, a->config.tokens, a->rank, part).rows;
    kv += dt_ulysses_held(&a->layout, a->config.kv_tokens, a->rank, part).rows;
  }
  if ((q > 0 && !input->q) || (kv > 0 && (!input->k || !input->v)))
    return dt_fail(DT_ERR_ARGUMENT, "q, k, v: must be given for %lld rows of q, %lld of k and v", (long long)q,
                   (long long)kv);
  return DT_OK;
}

dt_status dt_attention_forward(dt_attention *a, const dt_attention_input *input, dt_attention_stats *stats) {
  if (!a || !input) return dt_fail(DT_ERR_ARGUMENT, "attention, input: must be given");
  dt_status status = dt_attention_failure_status(a);
  if (status) return status;
  dt_attention_stats measured = {0};
  dt_stage_log log = {.count = 0};
  uint64_t begin = dt_now_ns(), sent = dt_bytes_sent(a->comm);
  a->input = input;
  status = check_input(a, input);
  if (!status) status = enter(a, &log);
  if (!status && a->config.schedule == DT_ATTENTION_SERIAL) status = run_serial(a, &measured, &log);
  if (!status && a->config.schedule == DT_ATTENTION_PIGGYBACK) status = run_piggyback(a);
  if (status) return fail(a, status);
  measured.total_s = (double)(dt_now_ns() - begin) * 1e-9;
  status = gather_spans(a, &log);
  if (status) return fail(a, status);
  measured.tiles = a->tile_count;
  measured.bytes_sent = dt_bytes_sent(a->comm) - sent;
  if (stats) *stats = measured;
  return DT_OK;
}

const void *dt_attention_output(const dt_attention *a) {
  return dt_window_local(a->output);
}

void dt_attention_spans(const dt_attention *a, const dt_span **spans, size_t *count) {
  *spans = a->spans;
  *count = a->span_count;
}
