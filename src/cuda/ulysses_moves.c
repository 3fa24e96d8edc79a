/* What the Ulysses operator moves: tensor maps and tables of the way in and of the way out. */
#include "ulysses.h"

#include <stdlib.h>

#include "attention.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "ulysses_tables.h"

/* As many as fill the link; measured (docs/notes/ulysses.md). */
enum { FAST_SENDERS = 28 };

int64_t dt_ulysses_tensor_at(const dt_ulysses_layout *u, int32_t rank, int32_t tensor) {
  const int64_t q = u->tokens * dt_ulysses_head_count(u, rank), kv = u->kv_tokens * dt_ulysses_kv_count(u, rank);
  return (tensor == 0 ? 0 : q + (tensor - 1) * kv) * u->head_dim;
}

dt_status dt_ulysses_make_map(const dt_ulysses *u, CUtensorMap *map, void *memory, int64_t rows, int32_t heads) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status || rows == 0 || heads == 0) return status;
  const cuuint32_t dim = (cuuint32_t)u->layout.head_dim;
  const cuuint64_t sizes[3] = {dim, (cuuint64_t)heads, (cuuint64_t)rows};
  const cuuint64_t strides[2] = {2 * (cuuint64_t)dim, 2 * (cuuint64_t)dim * (cuuint64_t)heads};
  const cuuint32_t box[3] = {dim, 1, (cuuint32_t)dt_ulysses_box_rows((int32_t)dim)}, steps[3] = {1, 1, 1};
  return dt_cuda_driver_check(
      api->cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, memory, sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      "cuTensorMapEncodeTiled");
}

/* Where this rank's rows lie at a rank: those it owns, or all of a replicated text. */
static int64_t place(const dt_ulysses_layout *l, int32_t self, int32_t rank, int32_t tensor, int part) {
  if (l->text_replicated) return dt_ulysses_sent(l, tensor ? l->kv_tokens : l->tokens, self, rank, part).first;
  return dt_ulysses_place(l, rank, tensor, self, part);
}

/* Each map ends with its run: what a box holds beyond is not written. */
dt_status dt_ulysses_make_maps(dt_ulysses *u) {
  const dt_ulysses_layout *l = &u->layout;
  const int32_t self = u->move_in.params.rank;
  const int64_t row = 2 * (int64_t)l->head_dim; /* of one head */
  dt_status status = dt_ulysses_make_map(u, &u->move_out.from[0], u->kept, l->tokens,
                                         dt_ulysses_head_count(l, self)); /* the kept rows */
  for (int32_t r = 0; r < l->ranks; r++)
    for (int part = 0; part < DT_ULYSSES_PARTS && !status; part++) {
      for (int32_t tensor = 0; tensor < 3 && !status; tensor++) {
        const int32_t heads = tensor ? dt_ulysses_kv_count(l, r) : dt_ulysses_head_count(l, r);
        const dt_ulysses_rows run = dt_ulysses_sent(l, tensor ? l->kv_tokens : l->tokens, self, r, part);
        uint8_t *to = u->arrivals->pieces[r] + 2 * dt_ulysses_tensor_at(l, r, tensor) +
                      place(l, self, r, tensor, part) * heads * row;
        status = dt_ulysses_make_map(u, &u->move_in.to[dt_ulysses_map_in(r, part, tensor)], to, run.rows, heads);
      }
      const dt_ulysses_rows run = dt_ulysses_owned(l, l->tokens, r, part);
      if (!status)
        status = dt_ulysses_make_map(u, &u->move_out.to[dt_ulysses_map_out(r, part)],
                                     u->output->pieces[r] + run.local * l->heads * row, run.rows, l->heads);
    }
  return status;
}

/* What the attention's launch has no room for. */
dt_status dt_ulysses_upload_maps(dt_ulysses *u) {
  dt_status status = dt_ulysses_device_memory(u, (void **)&u->carried_to, sizeof u->move_in.to, "tensor maps");
  if (status) return status;
  return dt_cuda_check(cudaMemcpy(u->carried_to, u->move_in.to, sizeof u->move_in.to, cudaMemcpyHostToDevice),
                       "tensor maps");
}

static dt_status upload(dt_ulysses *u, dt_ulysses_table *table, dt_ulysses_moves *moves) {
  const size_t items = (size_t)table->count * sizeof *table->items;
  const size_t first = ((size_t)table->blocks + 1) * sizeof *table->first;
  moves->blocks = table->blocks;
  moves->count = table->count;
  dt_status status = dt_ulysses_device_memory(u, (void **)&moves->items, items, "table");
  if (!status) status = dt_ulysses_device_memory(u, (void **)&moves->first, first, "table");
  cudaError_t error = cudaSuccess;
  if (!status && items) error = cudaMemcpy(moves->items, table->items, items, cudaMemcpyHostToDevice);
  if (!status && error == cudaSuccess) error = cudaMemcpy(moves->first, table->first, first, cudaMemcpyHostToDevice);
  dt_ulysses_table_destroy(table);
  return status ? status : dt_cuda_check(error, "table");
}

/* Heads that the attention's first tiles need. */
static int32_t first_heads(const dt_ulysses *u) {
  const int64_t tile = dt_ulysses_tile_rows(u), tiles = (u->layout.tokens + tile - 1) / tile;
  return tiles ? (int32_t)((u->sms + tiles - 1) / tiles) : 0;
}

/* The way in that the attention's CTAs bring. Later items come twice as fast as they are needed, evenly: more at a time
 * would hold up the operands' loads. Where links may sleep meanwhile, in a sixteenth of the time, so that they do. */
static dt_status make_carried(dt_ulysses *u) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT;
  const int32_t rank = dt_comm_rank(u->config.comm), ctas = u->attention.sms;
  dt_cuda_attention attention = u->attention;
  if (attention.causal) attention.arrived = u->move_in.params.arrived[rank]; /* sections as heads are waited for */
  const dt_attention_shape shape = dt_attention_shape_of(&attention);
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) return dt_fail(DT_ERR_MEMORY, "plan: %zu bytes", sizeof *kernel);
  dt_attention_plan(&attention, &shape, chosen.cut, ctas, kernel);
  dt_ulysses_needs needs;
  dt_ulysses_table table;
  dt_status status = dt_ulysses_order(&u->layout, rank, kernel, 64 * shape.groups, ctas, &needs);
  if (!status) status = dt_ulysses_table_carried(&u->layout, rank, &needs, &table);
  const double tiles = (double)kernel->groups[0].tiles / ctas;
  const double share = dt_attention_outlasts_links(&attention, &shape, ctas, kernel) ? 1.0 / 16 : 0.5;
  free(kernel);
  dt_ulysses_needs_destroy(&needs);
  if (status) return status;
  u->carried_early = table.early;
  u->carried_ns = (uint32_t)(share * tiles * dt_attention_tile_ns(&attention, &shape) / (table.count + 1));
  return upload(u, &table, &u->carried);
}

/* All copy all; or few beside the attention, once more of them have brought the first heads. */
dt_status dt_ulysses_make_tables(dt_ulysses *u) {
  const int32_t rank = dt_comm_rank(u->config.comm), blocks = u->sms, half = (blocks + 1) / 2;
  const int32_t fast = FAST_SENDERS < half ? FAST_SENDERS : half;
  const dt_ulysses_shares few = {blocks, u->senders, fast < u->senders ? u->senders : fast, first_heads(u)};
  const dt_ulysses_shares all = {blocks, blocks, blocks, 0};
  dt_ulysses_table table;
  dt_status status = dt_ulysses_table_in(&u->layout, rank, &all, &table);
  if (!status) status = upload(u, &table, &u->in_all);
  if (!status && !u->carries) status = dt_ulysses_table_in(&u->layout, rank, &few, &table);
  if (!status && !u->carries) status = upload(u, &table, &u->in_few);
  if (!status && u->carries) status = make_carried(u);
  if (!status) status = dt_ulysses_table_out(&u->layout, rank, blocks, &table);
  if (!status) status = upload(u, &table, &u->out);
  return status;
}
