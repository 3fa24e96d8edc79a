#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "cpu/attention.h"
#include "cpu/blas_memory.h"
#include "cpu/executor.h"

/* Beside overlapped tiles the way in leaves most of the link's buffer to them, since a store that blocks is a worker
 * that waits: it adds an eighth of it when the backlog is as small. Nothing competes with it otherwise. */
static void pace_in(dt_attention *a) {
  bool beside = a->config.schedule == DT_ATTENTION_PIGGYBACK && a->config.overlap_in;
  a->backlog_limit_bytes = 0;
  a->piece_rows = INT32_MAX;
  if (!beside || a->comm->config.link_bytes_per_s <= 0) return;
  a->backlog_limit_bytes = a->comm->config.link_capacity_bytes / 8;
  int64_t rows = (int64_t)(a->backlog_limit_bytes / (double)((size_t)a->config.head_dim * a->element));
  a->piece_rows = rows < 1 ? 1 : dt_min64(rows, INT32_MAX);
}

/* Everything that one thread can record in one forward. */
static size_t span_room(const dt_attention *a) {
  size_t pieces = 0, parts = DT_ULYSSES_PARTS;
  for (int64_t i = 0; i < a->send_count; i++)
    for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
      const dt_ulysses_send *send = &a->sends[i];
      int64_t tokens = send->kv ? a->config.kv_tokens : a->config.tokens;
      int64_t rows = dt_ulysses_sent(&a->layout, tokens, a->rank, send->peer, part).rows;
      pieces += (size_t)dt_ceil_div(rows, a->piece_rows) * (send->kv ? 2 : 1);
    }
  return 2 * pieces + 5 * (size_t)a->tile_count + 2 * parts * (size_t)a->out_count;
}

static dt_status make_tables(dt_attention *a) {
  const dt_ulysses_layout *u = &a->layout;
  a->send_count = dt_ulysses_sends(u, a->rank, NULL);
  a->tile_count = dt_ulysses_tiles(u, a->rank, NULL);
  a->out_count = (int64_t)a->heads * (a->ranks - 1);
  a->sends = calloc((size_t)a->send_count + 1, sizeof(*a->sends));
  a->tiles = calloc((size_t)a->tile_count + 1, sizeof(*a->tiles));
  if (!a->sends || !a->tiles)
    return dt_fail(DT_ERR_MEMORY, "tokens: out of memory for %lld tiles", (long long)a->tile_count);
  dt_ulysses_sends(u, a->rank, a->sends);
  dt_ulysses_tiles(u, a->rank, a->tiles);
  for (int32_t r = 0; r < a->ranks; r++) a->last_tile[r] = -1;
  for (int64_t i = 0; i < a->tile_count; i++) a->last_tile[a->tiles[i].owner] = i;
  return DT_OK;
}

static dt_status make_worker(const dt_attention *a, dt_attention_thread *thread) {
  size_t rows = (size_t)a->config.tile_rows, width = (size_t)a->config.head_dim;
  thread->q = malloc(rows * width * sizeof(float));
  thread->o = malloc(rows * width * sizeof(float));
  thread->scores = malloc(rows * DT_KV_BLOCK * sizeof(float));
  thread->top = malloc(rows * sizeof(float));
  thread->sum = malloc(rows * sizeof(float));
  bool ready = thread->q && thread->o && thread->scores && thread->top && thread->sum;
  if (a->config.dtype != DT_DTYPE_F32) {
    thread->k = malloc(DT_KV_BLOCK * width * sizeof(float));
    thread->v = malloc(DT_KV_BLOCK * width * sizeof(float));
    thread->rounded = malloc(rows * width * a->element);
    ready = ready && thread->k && thread->v && thread->rounded;
  }
  return ready ? DT_OK : dt_fail(DT_ERR_MEMORY, "workers: out of memory for thread %d", thread->track);
}

static void free_threads(dt_attention *a) {
  blas_release(a->blas_buffers);
  for (int32_t i = 0; a->threads && i < a->thread_count; i++) {
    dt_attention_thread *thread = &a->threads[i];
    void *owned[] = {thread->q,   thread->o,   thread->scores,  thread->k,    thread->v,
                     thread->top, thread->sum, thread->rounded, thread->spans};
    for (size_t j = 0; j < sizeof(owned) / sizeof(owned[0]); j++) free(owned[j]);
  }
  free(a->threads);
  a->threads = NULL;
}

/* Room for the smallest pieces that any schedule sends. */
static dt_status make_spans(dt_attention *a) {
  dt_attention_config given = a->config;
  a->config.schedule = DT_ATTENTION_PIGGYBACK;
  a->config.overlap_in = 1;
  pace_in(a);
  a->span_room = span_room(a);
  a->config = given;
  pace_in(a);
  for (int32_t i = 0; i < a->thread_count; i++) {
    a->threads[i].spans = malloc((a->span_room + 1) * sizeof(dt_span));
    if (!a->threads[i].spans) return dt_fail(DT_ERR_MEMORY, "spans: out of memory for %zu", a->span_room);
  }
  return DT_OK;
}

static dt_status allocate_local(dt_attention *a) {
  dt_status status = make_tables(a);
  if (status) return status;
  a->kept_bytes = (size_t)(a->heads * a->config.tokens * a->config.head_dim) * a->element;
  a->kept = dt_pages_alloc(a->kept_bytes);
  a->thread_count = a->config.workers + a->config.consumers;
  a->threads = calloc((size_t)a->thread_count, sizeof(*a->threads));
  if (!a->kept || !a->threads) return dt_fail(DT_ERR_MEMORY, "tokens: out of memory for %zu bytes", a->kept_bytes);
  if (blas_reserve(a->config.workers))
    return dt_fail(DT_ERR_MEMORY, "workers: out of memory for the BLAS buffers of %d", a->config.workers);
  a->blas_buffers = a->config.workers;
  for (int32_t i = 0; i < a->thread_count; i++) {
    dt_attention_thread *thread = &a->threads[i];
    thread->attention = a;
    thread->track = i;
    thread->consumer = i >= a->config.workers;
    if (!thread->consumer) status = make_worker(a, thread);
    if (status) return status;
  }
  status = make_spans(a);
  return status ? status : dt_team_create(a->thread_count, dt_attention_work, a, &a->team);
}

static dt_status allocate_windows(dt_attention *a) {
  int32_t rank_heads = (int32_t)dt_ceil_div(a->config.heads, a->ranks);
  size_t token = (size_t)(a->config.heads * a->config.head_dim) * a->element;
  size_t rows = (size_t)dt_ulysses_owned_rows(&a->layout, a->config.tokens, a->rank);
  a->bank_bytes = ((size_t)a->ranks + 2 * (size_t)rank_heads) * sizeof(dt_counter);
  dt_status status =
      dt_comm_alloc(a->comm, (size_t)dt_ulysses_arrivals(&a->layout, a->rank) * a->element + 64, &a->arrivals);
  if (!status) status = dt_comm_alloc(a->comm, rows * token + 64, &a->output);
  if (!status) status = dt_comm_alloc(a->comm, 2 * a->bank_bytes, &a->counters);
  return status;
}

static dt_status gather_threads(dt_attention *a) {
  int32_t own[2] = {a->config.workers, a->config.consumers}, all[2 * DT_MAX_RANKS];
  dt_status status = dt_comm_allgather(a->comm, own, all, sizeof(own));
  for (int32_t r = 0; !status && r < a->ranks; r++) {
    a->workers[r] = all[2 * r];
    a->consumers[r] = all[2 * r + 1];
  }
  return status;
}

static void release(dt_attention *a) {
  dt_window *windows[] = {a->counters, a->output, a->arrivals};
  dt_team_destroy(a->team);
  for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
    if (windows[i]) dt_comm_free(a->comm, windows[i]);
  free_threads(a);
  dt_pages_free(a->kept, a->kept_bytes);
  free(a->sends);
  free(a->tiles);
  free(a->spans);
  dt_failure_destroy(&a->failure);
  free(a);
}

dt_status dt_attention_create(dt_comm *comm, const dt_attention_config *config, dt_attention **out) {
  if (!comm || !config || !out) return dt_fail(DT_ERR_ARGUMENT, "comm, config, attention: must be given");
  /* Agreement comes before any other check, so that what only one rank got wrong is an error on all of them. */
  dt_ulysses_layout layout;
  dt_status status = dt_attention_agree(comm, config);
  if (!status) status = dt_attention_layout(config, dt_comm_ranks(comm), &layout);
  if (!status) status = dt_attention_check_schedule(config);
  if (!status && (config->workers < 1 || config->workers > 1024))
    status = dt_fail(DT_ERR_ARGUMENT, "workers: %d; allowed: 1 to 1024", config->workers);
  if (!status && (config->consumers < 0 || config->consumers > 1024))
    status = dt_fail(DT_ERR_ARGUMENT, "consumers: %d; allowed: 0 to 1024", config->consumers);
  if (status) return status;

  dt_attention *a = aligned_alloc(_Alignof(dt_attention), sizeof(*a));
  if (!a) {
    status = dt_fail(DT_ERR_MEMORY, "attention: out of memory");
    dt_comm_abort(comm, status, dt_error_detail());
    return status;
  }
  memset(a, 0, sizeof(*a));
  dt_failure_init(&a->failure);
  a->comm = comm;
  a->config = *config;
  if (isnan(a->config.scale)) a->config.scale = 1.0f / sqrtf((float)config->head_dim);
  a->layout = layout;
  a->ranks = layout.ranks;
  a->rank = dt_comm_rank(comm);
  a->element = dt_dtype_bytes(config->dtype);
  a->heads = dt_ulysses_head_count(&layout, a->rank);
  a->head_first = layout.head_first[a->rank];
  a->kv_heads = dt_ulysses_kv_count(&layout, a->rank);
  status = gather_threads(a);
  if (!status) status = allocate_windows(a);
  if (!status) {
    status = allocate_local(a);
    if (status) dt_comm_abort(comm, status, dt_error_detail());
  }
  if (status) {
    char detail[sizeof(a->failure.detail)];
    snprintf(detail, sizeof(detail), "%s", dt_error_detail());
    release(a);
    return dt_fail(status, "%s", detail);
  }
  *out = a;
  return DT_OK;
}

void dt_attention_destroy(dt_attention *a) {
  if (!a) return;
  /* A peer may still be signalling the end of its last forward here: nobody's windows go before all have arrived. */
  if (!dt_comm_status(a->comm)) dt_comm_barrier(a->comm, "destroy");
  release(a);
}

dt_status dt_attention_set_schedule(dt_attention *a, const dt_attention_config *config) {
  if (!a || !config) return dt_fail(DT_ERR_ARGUMENT, "attention, config: must be given");
  dt_status status = dt_attention_failure_status(a);
  if (status) return status;
  const dt_agree_field fields[] = {{"schedule", (int64_t)config->schedule}, {"overlap_in", config->overlap_in}};
  status = dt_comm_agree(a->comm, fields, 2);
  if (!status) status = dt_attention_check_schedule(config);
  if (status) return status;
  a->config.schedule = config->schedule;
  a->config.overlap_in = config->overlap_in;
  a->config.delay_seed = config->delay_seed;
  a->config.delay_max_us = config->delay_max_us;
  a->config.publish_early = config->publish_early;
  pace_in(a);
  return DT_OK;
}
