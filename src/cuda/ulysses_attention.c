/* What the Ulysses operator's attention kernel is told: where its rows go, and in which order. */
#include "ulysses.h"

#include <stdlib.h>

#include "comm/fabric.h"
#include "core/error.h"
#include "ulysses_tables.h"

void dt_ulysses_set_owners(const dt_ulysses *u, dt_cuda_attention *attention, int kept) {
  const dt_ulysses_layout *l = &u->layout;
  const int32_t self = u->move_in.params.rank, heads = dt_ulysses_head_count(l, self);
  const int64_t row = 2 * (int64_t)l->head_dim;
  attention->owners_count = 0;
  for (int32_t i = 1; i <= l->ranks; i++)
    for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
      const int32_t owner = (self + i) % l->ranks;
      dt_ulysses_rows run = dt_ulysses_owned(l, l->tokens, owner, part);
      const int64_t first = dt_ulysses_place(l, self, 0, owner, part);
      if (dt_ulysses_by_owner(l)) { /* text and image lie together, here and there */
        if (part != DT_ULYSSES_TEXT) continue;
        run.rows = dt_ulysses_owned_rows(l, l->tokens, owner);
      }
      if (run.rows == 0) continue;
      dt_cuda_attention_owner *o = &attention->owners[attention->owners_count++];
      *o = (dt_cuda_attention_owner){.first = first,
                                     .rows = run.rows,
                                     .out =
                                         u->output->pieces[owner] + (run.local * l->heads + l->head_first[self]) * row,
                                     .row_stride = (int64_t)l->heads * l->head_dim,
                                     .remote = 1, /* one group: others' rows first, in the order of the runs */
                                     .away = owner != self};
      if (!kept || owner == self) continue;
      o->away = 0;
      o->out = u->kept + first * heads * row;
      o->row_stride = (int64_t)heads * l->head_dim;
    }
}

void dt_ulysses_set_one_owner(const dt_ulysses *u, dt_cuda_attention *attention) {
  attention->lead_rows = 0;
  attention->lead_heads = 0;
  attention->owners_count = 1;
  attention->owners[0] =
      (dt_cuda_attention_owner){.rows = u->layout.tokens, .out = u->kept, .row_stride = attention->q_row_stride};
}

/* Rows of others first, so that they are on their way before the last tiles, which stay here, are done. But where the
 * attention's CTAs bring the way in own rows first, whose q is here and half of whose k and v. All heads' before any of
 * the rest, if the heads' k and v fit the L2 cache together. */
enum { LEAD_BYTES = 48 << 20 };
static void set_order(const dt_ulysses *u, dt_cuda_attention *a) {
  const dt_ulysses_layout *l = &u->layout;
  if (!dt_ulysses_by_owner(l)) return;
  const int64_t own = dt_ulysses_owned_rows(l, l->tokens, u->move_in.params.rank);
  a->lead_rows = u->config.attention.overlap_in && u->carries ? -own : l->tokens - own;
  if (4 * l->kv_tokens * l->head_dim * a->kv_heads <= LEAD_BYTES) a->lead_heads = a->heads;
}

dt_status dt_ulysses_describe_attention(dt_ulysses *u) {
  const dt_ulysses_layout *l = &u->layout;
  const int32_t self = u->move_in.params.rank;
  const uint16_t *base = dt_window_local(u->arrivals);
  dt_cuda_attention *a = &u->attention;
  dt_cuda_attention_init(a);
  a->q = base + dt_ulysses_tensor_at(l, self, 0);
  a->k = base + dt_ulysses_tensor_at(l, self, 1);
  a->v = base + dt_ulysses_tensor_at(l, self, 2);
  a->dtype = u->config.attention.dtype;
  a->tokens = l->tokens;
  a->kv_tokens = l->kv_tokens;
  a->heads = dt_ulysses_head_count(l, self);
  a->kv_heads = dt_ulysses_kv_count(l, self);
  a->q_row_stride = (int64_t)a->heads * l->head_dim;
  a->kv_row_stride = (int64_t)a->kv_heads * l->head_dim;
  a->head_dim = l->head_dim;
  a->causal = l->causal;
  a->scale = u->config.attention.scale;
  /* Fixed, since it decides where tiles are cut: every run of this operator gives the same bits. */
  a->sms = u->config.attention.overlap_in && !u->carries && u->senders < u->sms ? u->sms - u->senders : u->sms;
  a->timeout_s = u->config.timeout_s;
  a->paced = !u->config.direct_stores;
  u->head_to_kv = calloc((size_t)a->heads, sizeof *u->head_to_kv);
  if (!u->head_to_kv) return dt_fail(DT_ERR_MEMORY, "heads: %d", a->heads);
  for (int32_t h = 0; h < a->heads; h++) u->head_to_kv[h] = dt_ulysses_kv_of(l, self, h);
  a->head_to_kv = u->head_to_kv;
  dt_ulysses_set_owners(u, a, 0);
  set_order(u, a);
  return DT_OK;
}
