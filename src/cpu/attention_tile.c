/* One tile: softmax(scale * q k^T) v in float32, over blocks of k and v with a running maximum and sum (Milakov and
 * Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135). The blocks of a tile and the order of their sums do
 * not depend on the schedule, so neither do the bits. */
#include <math.h>
#include <string.h>

#include "cpu/attention.h"
#include "cpu/kernels.h"

static const unsigned char *arrived(const dt_attention *a, int64_t element) {
  return (const unsigned char *)dt_window_local(a->arrivals) + (size_t)element * a->element;
}

/* Rows as float32, where they lie if they are that. */
static const float *widen(const dt_attention *a, int64_t element, int64_t rows, float *space) {
  const unsigned char *from = arrived(a, element);
  if (a->config.dtype == DT_DTYPE_F32) return (const float *)(const void *)from;
  dt_widen_row(a->config.dtype, from, rows * a->config.head_dim, space);
  return space;
}

static void load_queries(dt_attention_thread *thread, const dt_ulysses_tile *tile) {
  const dt_attention *a = thread->attention;
  int64_t values = (int64_t)tile->rows * a->config.head_dim;
  dt_widen_row(a->config.dtype, arrived(a, dt_ulysses_q_at(&a->layout, tile->head, tile->row)), values, thread->q);
  dt_scale_row(thread->q, values, a->config.scale);
  memset(thread->o, 0, (size_t)values * sizeof(float));
  for (int32_t i = 0; i < tile->rows; i++) {
    thread->top[i] = -INFINITY;
    thread->sum[i] = 0;
  }
}

/* Keys and values [first, first + count). */
static void add_block(dt_attention_thread *thread, const dt_ulysses_tile *tile, int64_t first, int64_t count) {
  const dt_attention *a = thread->attention;
  const dt_ulysses_layout *u = &a->layout;
  int64_t width = a->config.head_dim;
  int32_t kv = dt_ulysses_kv_of(u, a->rank, tile->head);
  const float *k = widen(a, dt_ulysses_kv_at(u, a->rank, 0, kv, first), count, thread->k);
  dt_gemm_nt(tile->rows, count, width, thread->q, width, k, width, thread->scores, count);
  for (int32_t i = 0; i < tile->rows; i++) {
    int64_t visible = dt_ulysses_visible(u, tile->row + i) - first;
    visible = visible < 0 ? 0 : dt_min64(visible, count);
    float rescale = dt_softmax_row(thread->scores + i * count, visible, count, &thread->top[i], &thread->sum[i]);
    if (rescale != 1.0f) dt_scale_row(thread->o + i * width, width, rescale);
  }
  const float *v = widen(a, dt_ulysses_kv_at(u, a->rank, 1, kv, first), count, thread->v);
  dt_gemm_nn_add(tile->rows, width, count, thread->scores, count, v, width, thread->o, width);
}

static void attend(dt_attention_thread *thread, const dt_ulysses_tile *tile) {
  const dt_attention *a = thread->attention;
  int64_t end = dt_ulysses_visible(&a->layout, tile->row + tile->rows - 1), width = a->config.head_dim;
  load_queries(thread, tile);
  for (int64_t first = 0; first < end; first += DT_KV_BLOCK)
    add_block(thread, tile, first, dt_min64(end - first, DT_KV_BLOCK));
  /* A row that sees nothing stays zero. One whose scores are all below float32 has the sum 0, and is no number. */
  for (int32_t i = 0; i < tile->rows; i++)
    if (dt_ulysses_visible(&a->layout, tile->row + i) > 0)
      dt_scale_row(thread->o + i * width, width, 1.0f / thread->sum[i]);
}

static dt_status store(dt_attention_thread *thread, int64_t index, const dt_ulysses_tile *tile) {
  dt_attention *a = thread->attention;
  const void *from = thread->o;
  size_t row = (size_t)a->config.head_dim * a->element, token = (size_t)a->config.heads * row;
  if (a->config.dtype != DT_DTYPE_F32) {
    dt_round_row(a->config.dtype, thread->o, (int64_t)tile->rows * a->config.head_dim, thread->rounded);
    from = thread->rounded;
  }
  if (tile->owner != a->rank && a->config.schedule == DT_ATTENTION_SERIAL) {
    memcpy(a->kept + (size_t)dt_ulysses_q_at(&a->layout, tile->head, tile->row) * a->element, from,
           (size_t)tile->rows * row);
    return DT_OK;
  }
  dt_put put = {.window = a->output,
                .peer = tile->owner,
                .offset = (size_t)tile->local * token + (size_t)(a->head_first + tile->head) * row,
                .dst_stride = token,
                .src = from,
                .src_stride = row,
                .row_bytes = row,
                .rows = tile->rows};
  uint64_t visible_ns;
  dt_status status = dt_attention_put(thread, &put, DT_SPAN_STORE, index, a->head_first + tile->head, &visible_ns);
  if (visible_ns > thread->peer_stamp[tile->owner]) thread->peer_stamp[tile->owner] = visible_ns;
  return status;
}

static dt_status run_tile(dt_attention_thread *thread, int64_t position) {
  dt_attention *a = thread->attention;
  const dt_ulysses_tile *tile = &a->tiles[position];
  uint64_t begin = dt_now_ns();
  dt_status status = dt_attention_await(thread, 1, dt_ulysses_kv_of(&a->layout, a->rank, tile->head));
  if (!status) status = dt_attention_await(thread, 0, tile->head);
  if (status) return status;
  attend(thread, tile);
  if (a->config.publish_early && a->config.schedule == DT_ATTENTION_PIGGYBACK) {
    status = dt_attention_tell(thread, position + 1);
    if (status) return status;
  }
  dt_attention_delay(thread);
  status = store(thread, position, tile);
  dt_span *span = dt_attention_span(thread, DT_SPAN_ATTENTION, begin, dt_now_ns());
  span->index = (int32_t)position;
  span->column = a->head_first + tile->head;
  span->peer = tile->owner;
  span->rows = tile->rows;
  return status;
}

dt_status dt_attention_run_tiles(dt_attention_thread *thread) {
  dt_attention *a = thread->attention;
  bool direct = a->config.schedule == DT_ATTENTION_PIGGYBACK;
  while (!dt_failure_seen(&a->failure)) {
    int64_t position = atomic_fetch_add_explicit(&a->tiles_drawn.next, 1, memory_order_relaxed);
    /* Before anything that may wait: once a peer's last tile is behind, it hears so. */
    if (direct) {
      dt_status status = dt_attention_tell(thread, position < a->tile_count ? position : INT64_MAX);
      if (status) return status;
    }
    if (position >= a->tile_count) return DT_OK;
    dt_status status = run_tile(thread, position);
    if (status) return status;
  }
  return dt_attention_failure_status(a);
}
