/* Host side of the Ulysses operator: windows, maps, tables, launches. */
#include "ulysses.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "cpu/attention.h"
#include "driver.h"
#include "fabric.h"
#include "ulysses_tables.h"

/* As many as fill the link; measured (docs/notes/ulysses.md). */
enum { FAST_SENDERS = 28 };

/* What the operator reads of the CPU executor's configuration, and nothing else. */
static dt_attention_config normalized(const dt_attention_config *config) {
  dt_attention_config attention = *config;
  attention.tile_rows = 128;
  attention.own_lag = 0;
  attention.workers = attention.consumers = 1;
  attention.delay_seed = 0;
  attention.delay_max_us = 0;
  attention.publish_early = 0;
  return attention;
}

static dt_status check_config(const dt_ulysses_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_ulysses_config_init; %zu expected", sizeof *c);
  if (c->comm == NULL || strcmp(dt_comm_fabric(c->comm), "cuda") != 0)
    return dt_fail(DT_ERR_ARGUMENT, "comm: %s; an endpoint of fabric cuda allowed",
                   c->comm ? dt_comm_fabric(c->comm) : "NULL");
  if (dt_comm_ranks(c->comm) > DT_ULYSSES_RANKS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "comm: %d ranks; 1 to %d allowed", dt_comm_ranks(c->comm), DT_ULYSSES_RANKS_MAX);
  const dt_attention_config *a = &c->attention;
  if (a->dtype != DT_DTYPE_BF16 && a->dtype != DT_DTYPE_F16)
    return dt_fail(DT_ERR_ARGUMENT, "dtype: %d; bf16 and f16 allowed", (int)a->dtype);
  if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256)
    return dt_fail(DT_ERR_ARGUMENT, "head_dim: %d; 64, 128 and 256 allowed", a->head_dim);
  if (a->heads > 4096) return dt_fail(DT_ERR_ARGUMENT, "heads: %d; up to 4096 allowed", a->heads);
  if (c->sms < 0) return dt_fail(DT_ERR_ARGUMENT, "sms: %d; 0 and up allowed", c->sms);
  if (c->senders < 0 || c->senders > 1024)
    return dt_fail(DT_ERR_ARGUMENT, "senders: %d; 0 to 1024 allowed", c->senders);
  if (!(c->timeout_s >= 0 && c->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", c->timeout_s);
  return DT_OK;
}

int64_t dt_ulysses_tensor_at(const dt_ulysses_layout *u, int32_t rank, int32_t tensor) {
  const int64_t q = u->tokens * dt_ulysses_head_count(u, rank), kv = u->kv_tokens * dt_ulysses_kv_count(u, rank);
  return (tensor == 0 ? 0 : q + (tensor - 1) * kv) * u->head_dim;
}

static dt_status device_memory(dt_ulysses *u, void **pointer, size_t bytes, const char *what) {
  u->device_bytes += bytes;
  dt_status status = dt_cuda_check(cudaMalloc(pointer, bytes ? bytes : 16), what);
  return status ? status : dt_cuda_check(cudaMemset(*pointer, 0, bytes ? bytes : 16), what);
}

/* [rows][heads][head_dim] elements of 2 bytes at `memory`, in boxes of one head. A tensor without rows is never read.
 */
static dt_status make_map(const dt_ulysses *u, CUtensorMap *map, void *memory, int64_t rows, int32_t heads) {
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
static dt_status make_maps(dt_ulysses *u) {
  const dt_ulysses_layout *l = &u->layout;
  const int32_t self = u->move_in.params.rank;
  const int64_t row = 2 * (int64_t)l->head_dim; /* of one head */
  dt_status status =
      make_map(u, &u->move_out.from[0], u->kept, l->tokens, dt_ulysses_head_count(l, self)); /* the kept rows */
  for (int32_t r = 0; r < l->ranks; r++)
    for (int part = 0; part < DT_ULYSSES_PARTS && !status; part++) {
      for (int32_t tensor = 0; tensor < 3 && !status; tensor++) {
        const int32_t heads = tensor ? dt_ulysses_kv_count(l, r) : dt_ulysses_head_count(l, r);
        const dt_ulysses_rows run = dt_ulysses_sent(l, tensor ? l->kv_tokens : l->tokens, self, r, part);
        uint8_t *to = u->arrivals->pieces[r] + 2 * dt_ulysses_tensor_at(l, r, tensor) +
                      place(l, self, r, tensor, part) * heads * row;
        status = make_map(u, &u->move_in.to[dt_ulysses_map_in(r, part, tensor)], to, run.rows, heads);
      }
      const dt_ulysses_rows run = dt_ulysses_owned(l, l->tokens, r, part);
      if (!status)
        status = make_map(u, &u->move_out.to[dt_ulysses_map_out(r, part)],
                          u->output->pieces[r] + run.local * l->heads * row, run.rows, l->heads);
    }
  return status;
}

/* What the attention's launch has no room for. */
static dt_status upload_maps(dt_ulysses *u) {
  dt_status status = device_memory(u, (void **)&u->carried_to, sizeof u->move_in.to, "tensor maps");
  if (status) return status;
  return dt_cuda_check(cudaMemcpy(u->carried_to, u->move_in.to, sizeof u->move_in.to, cudaMemcpyHostToDevice),
                       "tensor maps");
}

static dt_status upload(dt_ulysses *u, dt_ulysses_table *table, dt_ulysses_moves *moves) {
  const size_t items = (size_t)table->count * sizeof *table->items;
  const size_t first = ((size_t)table->blocks + 1) * sizeof *table->first;
  moves->blocks = table->blocks;
  moves->count = table->count;
  dt_status status = device_memory(u, (void **)&moves->items, items, "table");
  if (!status) status = device_memory(u, (void **)&moves->first, first, "table");
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

/* D 256, where the attention's CTAs do not carry: multiprocessors that bring in a head in less time than one takes to
 * compute. The rate of one that sends was measured (docs/notes/ulysses.md); the attention's is what an earlier kernel
 * did not reach. */
static int32_t choose_senders(const dt_ulysses *u) {
  static const double send_bytes_per_s = 17e9, attention_flop_per_s = 7e14;
  const dt_ulysses_layout *l = &u->layout;
  const double group = dt_ulysses_group(l), remote = (double)(l->ranks - 1) / l->ranks;
  const double bytes = 2.0 * l->head_dim * ((double)l->tokens + 2 * (double)l->kv_tokens / group) * remote;
  const double flops = (l->causal ? 2.0 : 4.0) * (double)l->tokens * (double)l->kv_tokens * l->head_dim;
  const double head_s = flops / (attention_flop_per_s * u->sms / 132.0);
  const double senders = head_s > 0 ? ceil(bytes / head_s / send_bytes_per_s) : 1;
  return senders < 1 ? 1 : senders > 16 ? 16 : (int32_t)senders;
}

/* The way in that the attention's CTAs bring. Later items come twice as fast as they are needed, evenly: more at a time
 * would hold up the operands' loads. */
static dt_status make_carried(dt_ulysses *u) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT;
  const dt_attention_shape shape = dt_attention_shape_of(&u->attention);
  const int32_t rank = dt_comm_rank(u->config.comm), ctas = u->attention.sms;
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  if (!kernel) return dt_fail(DT_ERR_MEMORY, "plan: %zu bytes", sizeof *kernel);
  dt_attention_plan(&u->attention, &shape, chosen.cut, ctas, kernel);
  dt_ulysses_needs needs;
  dt_ulysses_table table;
  dt_status status = dt_ulysses_order(&u->layout, rank, kernel, 64 * shape.groups, ctas, &needs);
  if (!status) status = dt_ulysses_table_carried(&u->layout, rank, &needs, &table);
  const double tiles = (double)kernel->groups[0].tiles / ctas;
  free(kernel);
  dt_ulysses_needs_destroy(&needs);
  if (status) return status;
  u->carried_early = table.early;
  u->carried_ns = (uint32_t)(0.5 * tiles * dt_attention_tile_ns(&u->attention, &shape) / (table.count + 1));
  return upload(u, &table, &u->carried);
}

/* All copy all; or few beside the attention, once more of them have brought the first heads. */
static dt_status make_tables(dt_ulysses *u) {
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

/* Runs of output rows by owner: [S][heads][D] that stays here, or each owner's output. `kept`: rows of others stay,
 * their tiles in the same order. */
static void set_owners(const dt_ulysses *u, dt_cuda_attention *attention, int kept) {
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

static void set_one_owner(const dt_ulysses *u, dt_cuda_attention *attention) {
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

/* What all parts share: rows of this rank's heads to their owners. */
static dt_status describe_attention(dt_ulysses *u) {
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
  set_owners(u, a, 0);
  set_order(u, a);
  return DT_OK;
}

static dt_status make_workspace(dt_ulysses *u) {
  dt_cuda_attention alone = u->attention;
  size_t bytes = 0;
  dt_status status = dt_cuda_attention_workspace(&u->attention, &u->workspace_bytes);
  set_one_owner(u, &alone);
  if (!status) status = dt_cuda_attention_workspace(&alone, &bytes);
  if (bytes > u->workspace_bytes) u->workspace_bytes = bytes;
  return status ? status : device_memory(u, &u->workspace, u->workspace_bytes, "workspace");
}

static dt_status make_windows(dt_ulysses *u) {
  const dt_ulysses_layout *l = &u->layout;
  dt_comm *comm = u->config.comm;
  const int32_t self = dt_comm_rank(comm);
  const size_t arrivals = 2 * (size_t)dt_ulysses_tensor_at(l, self, 3);
  const size_t output = 2 * (size_t)(dt_ulysses_owned_rows(l, l->tokens, self) * l->heads * l->head_dim);
  const size_t control =
      (size_t)l->ranks * sizeof(dt_ulysses_slot) + 2 * (size_t)dt_ulysses_head_count(l, self) * sizeof(uint32_t);
  u->device_bytes += arrivals + output + control;
  dt_status status = dt_comm_alloc(comm, arrivals, &u->arrivals);
  if (!status) status = dt_comm_alloc(comm, output, &u->output);
  if (!status) status = dt_comm_alloc(comm, control, &u->control);
  return status;
}

static void fill_params(dt_ulysses *u) {
  dt_ulysses_params *p = &u->move_in.params;
  p->rank = dt_comm_rank(u->config.comm);
  p->ranks = u->layout.ranks;
  p->heads = dt_ulysses_head_count(&u->layout, p->rank);
  p->timeout_us = (uint32_t)(1e6 * u->config.timeout_s);
  p->slots = dt_window_local(u->control);
  for (int32_t r = 0; r < p->ranks; r++) {
    dt_ulysses_slot *slots = (dt_ulysses_slot *)u->control->pieces[r];
    p->peer_slot[r] = slots + p->rank;
    p->arrived[r] = (uint32_t *)(slots + p->ranks);
    p->late[r] = p->arrived[r] + dt_ulysses_head_count(&u->layout, r);
  }
}

static dt_status make_state(dt_ulysses *u) {
  dt_ulysses_params *p = &u->move_in.params;
  const dt_ulysses_state state = {.target = (uint32_t)(p->ranks * DT_ULYSSES_UNITS), .next = 1};
  dt_status status = device_memory(u, (void **)&u->state, sizeof *u->state, "state");
  if (!status) status = device_memory(u, (void **)&u->gate, (size_t)p->heads * sizeof *u->gate, "gate");
  if (!status) status = dt_cuda_check(cudaMemcpy(u->state, &state, sizeof state, cudaMemcpyHostToDevice), "state");
  if (!status) status = dt_cuda_check(cudaMallocHost((void **)&u->pinned, sizeof *u->pinned), "pinned memory");
  p->state = u->state;
  p->gate = u->gate;
  return status;
}

/* This rank's part of a creation, behind the windows. */
static dt_status make(dt_ulysses *u) {
  const dt_ulysses_layout *l = &u->layout;
  fill_params(u);
  const size_t kept = 2 * (size_t)(l->tokens * u->move_in.params.heads * l->head_dim);
  dt_status status = make_state(u);
  if (!status) status = device_memory(u, (void **)&u->kept, kept, "outputs");
  if (!status) status = describe_attention(u);
  if (!status) status = make_workspace(u);
  if (!status) status = make_tables(u);
  if (!status) status = make_maps(u);
  u->move_in.params.attention_error = &((dt_attention_header *)u->workspace)->error;
  if (!status) status = upload_maps(u);
  u->move_in.enters = 1;
  u->move_out.params = u->move_in.params;
  u->move_out.items = u->out.items;
  u->move_out.first = u->out.first;
  return status ? status : dt_cuda_check(cudaDeviceSynchronize(), "memory");
}

static void release(dt_ulysses *u) {
  dt_ulysses_moves *moves[] = {&u->in_few, &u->in_all, &u->out, &u->carried};
  for (int i = 0; i < 4; i++) cudaFree(moves[i]->items), cudaFree(moves[i]->first);
  cudaFree(u->state), cudaFree(u->gate), cudaFree(u->kept), cudaFree(u->workspace), cudaFree(u->carried_to);
  if (u->pinned) cudaFreeHost(u->pinned);
  free(u->head_to_kv), free(u);
}

static void free_windows(dt_ulysses *u) {
  dt_window *windows[] = {u->control, u->output, u->arrivals};
  for (int i = 0; i < 3; i++)
    if (windows[i]) dt_comm_free(u->config.comm, windows[i]);
}

dt_status dt_ulysses_create(const dt_ulysses_config *config, dt_ulysses **ulysses) {
  dt_status status = check_config(config);
  if (status) return status;
  const dt_attention_config attention = normalized(&config->attention);
  dt_ulysses_layout layout;
  status = dt_attention_agree(config->comm, &attention);
  if (!status) status = dt_attention_check_schedule(&attention);
  if (!status) status = dt_attention_layout(&attention, dt_comm_ranks(config->comm), &layout);
  if (status) return status;
  dt_ulysses *u = calloc(1, sizeof *u);
  if (!u) return dt_fail(DT_ERR_MEMORY, "operator: %zu bytes", sizeof *u);
  u->config = *config;
  u->config.attention = attention;
  if (u->config.timeout_s == 0) u->config.timeout_s = 10;
  u->layout = layout;
  u->device = dt_cuda_fabric_of(config->comm)->device;
  status = dt_cuda_check(cudaSetDevice(u->device), "cudaSetDevice");
  if (!status) status = dt_cuda_hopper(&u->sms);
  if (!status && config->sms > u->sms)
    status = dt_fail(DT_ERR_ARGUMENT, "sms: %d; 0 to %d allowed", config->sms, u->sms);
  if (config->sms) u->sms = config->sms;
  u->senders = config->senders ? config->senders : choose_senders(u);
  if (u->senders > (u->sms + 1) / 2) u->senders = (u->sms + 1) / 2;
  u->carries = config->senders == 0 && dt_ulysses_may_carry(&layout);
  if (status) dt_comm_abort(config->comm, status, dt_error_detail()); /* the peers wait in make_windows */
  if (!status) status = make_windows(u);
  if (!status) {
    status = make(u);
    if (status) dt_comm_abort(config->comm, status, dt_error_detail());
    if (!status) status = dt_comm_barrier(config->comm, "ulysses");
  }
  if (status) {
    release(u);
    return status;
  }
  *ulysses = u;
  return DT_OK;
}

void dt_ulysses_destroy(dt_ulysses *u) {
  if (!u) return;
  cudaSetDevice(u->device);
  cudaDeviceSynchronize();
  free_windows(u);
  release(u);
}

dt_status dt_ulysses_set_schedule(dt_ulysses *u, const dt_ulysses_config *config) {
  dt_attention_config attention = u->config.attention;
  attention.schedule = config->attention.schedule;
  attention.overlap_in = config->attention.overlap_in;
  dt_status status = dt_attention_agree(u->config.comm, &attention);
  if (!status) status = dt_attention_check_schedule(&attention);
  if (!status) u->config.attention = attention;
  return status;
}

/* Maps of the caller's tensors. */
static dt_status read_from(dt_ulysses *u, const void *const *inputs) {
  const dt_ulysses_layout *l = &u->layout;
  const int32_t self = u->move_in.params.rank;
  for (int tensor = 0; tensor < 3; tensor++) {
    const int64_t tokens = tensor ? l->kv_tokens : l->tokens;
    const int64_t rows = dt_ulysses_held(l, tokens, self, DT_ULYSSES_TEXT).rows +
                         dt_ulysses_held(l, tokens, self, DT_ULYSSES_IMAGE).rows;
    if (rows && ((uintptr_t)inputs[tensor] % 16 || !inputs[tensor]))
      return dt_fail(DT_ERR_ARGUMENT, "%c: %p; device memory at a multiple of 16 bytes allowed", "qkv"[tensor],
                     inputs[tensor]);
    dt_status status =
        make_map(u, &u->move_in.from[tensor], (void *)inputs[tensor], rows, tensor ? l->kv_heads : l->heads);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status queue_in(dt_ulysses *u, const dt_ulysses_moves *moves, const void *const *inputs,
                          cudaStream_t stream) {
  dt_status status = read_from(u, inputs);
  if (status) return status;
  u->move_in.items = moves->items;
  u->move_in.first = moves->first;
  return dt_cuda_check(dt_ulysses_move_launch(&u->move_in, moves->blocks, stream), "way in");
}

/* The heads' words, or the gate's before it stores: what the attention waits for. */
static void wait_for(const dt_ulysses *u, dt_cuda_attention *attention, int arrivals) {
  const dt_ulysses_params *p = &u->move_in.params;
  attention->arrived = arrivals ? p->arrived[p->rank] : u->gate;
  attention->arrived_target_from = arrivals ? &u->state->target : &u->state->next;
  attention->arrived_gates_stores = !arrivals;
}

static dt_status run_serial(dt_ulysses *u, const void *const *inputs, cudaStream_t stream) {
  const dt_ulysses_params *p = &u->move_in.params;
  dt_cuda_attention attention = u->attention;
  set_owners(u, &attention, 1);
  dt_status status = queue_in(u, &u->in_all, inputs, stream);
  if (!status) status = dt_cuda_check(dt_ulysses_gather_launch(p, stream), "arrival");
  if (!status) status = dt_cuda_attention_forward(&attention, u->workspace, stream);
  if (!status) status = dt_cuda_check(dt_ulysses_move_launch(&u->move_out, u->out.blocks, stream), "way out");
  return status ? status : dt_cuda_check(dt_ulysses_leave_launch(p, u->in_all.blocks, 1, 0, stream), "exit");
}

static void read_own(const dt_ulysses *u, const void *const *inputs, dt_attention_carry *carry) {
  const dt_ulysses_layout *l = &u->layout;
  const int32_t self = u->move_in.params.rank;
  carry->reads_own = 1;
  carry->own_q = (int32_t)(l->tokens - dt_ulysses_owned_rows(l, l->tokens, self));
  for (int tensor = 0; tensor < 3; tensor++) {
    const int32_t first = tensor ? dt_ulysses_kv_first(l, self) : l->head_first[self];
    carry->own[tensor] = (const uint16_t *)inputs[tensor] + (int64_t)first * l->head_dim;
    carry->own_stride[tensor] = (int64_t)(tensor ? l->kv_heads : l->heads) * l->head_dim;
  }
}

/* The attention's own CTAs bring the way in: entry, attention, exit. */
static dt_status run_carrying(dt_ulysses *u, const dt_cuda_attention *attention, const void *const *inputs,
                              cudaStream_t stream) {
  const dt_ulysses_params *p = &u->move_in.params;
  dt_status status = read_from(u, inputs);
  dt_attention_carry carry = {.to = u->carried_to,
                              .items = u->carried.items,
                              .count = u->carried.count,
                              .early = u->carried_early,
                              .interval_ns = u->carried_ns,
                              .ticket = &u->state->ticket,
                              .gate = u->gate,
                              .gate_target = &u->state->next,
                              .enters = 1,
                              .meet = *p,
                              .late = p->late[p->rank],
                              .late_rows = (int32_t)dt_ulysses_late_rows(&u->layout, p->rank)};
  if (dt_ulysses_by_owner(&u->layout)) read_own(u, inputs, &carry);
  memcpy(carry.from, u->move_in.from, sizeof carry.from);
  memcpy(carry.arrived, p->arrived, sizeof carry.arrived);
  if (!status) status = dt_attention_forward_carrying(attention, &carry, u->workspace, stream);
  return status ? status : dt_cuda_check(dt_ulysses_leave_launch(p, 0, 1, 1, stream), "exit");
}

static dt_status run_piggyback(dt_ulysses *u, const void *const *inputs, cudaStream_t stream) {
  const dt_ulysses_params *p = &u->move_in.params;
  const int overlap = u->config.attention.overlap_in;
  const dt_ulysses_moves *moves = overlap ? &u->in_few : &u->in_all;
  dt_cuda_attention attention = u->attention;
  wait_for(u, &attention, 1);
  if (overlap && u->carries) return run_carrying(u, &attention, inputs, stream);
  dt_status status = queue_in(u, moves, inputs, stream);
  if (!status && !overlap) status = dt_cuda_check(dt_ulysses_gather_launch(p, stream), "arrival");
  if (!status) status = dt_cuda_attention_forward(&attention, u->workspace, stream);
  return status ? status : dt_cuda_check(dt_ulysses_leave_launch(p, moves->blocks, 1, 0, stream), "exit");
}

dt_status dt_ulysses_run(dt_ulysses *u, dt_ulysses_part part, const void *q, const void *k, const void *v,
                         void *stream) {
  const dt_ulysses_params *p = &u->move_in.params;
  const void *inputs[3] = {q, k, v};
  const dt_attention_carry carry = {.enters = 1, .meet = *p};
  const int enters = u->attention.kv_tokens > 0 && u->attention.tokens > 0; /* there is an attention kernel */
  dt_cuda_attention attention = u->attention;
  dt_status status = DT_OK;
  switch (part) {
  case DT_ULYSSES_WHOLE:
    if (u->config.attention.schedule == DT_ATTENTION_SERIAL) return run_serial(u, inputs, stream);
    return run_piggyback(u, inputs, stream);
  case DT_ULYSSES_ATTENTION:
    set_one_owner(u, &attention);
    return dt_cuda_attention_forward(&attention, u->workspace, stream);
  case DT_ULYSSES_FUSED:
    wait_for(u, &attention, 0);
    if (!enters) status = dt_cuda_check(dt_ulysses_enter_launch(p, stream), "entry");
    if (!status) status = dt_attention_forward_carrying(&attention, &carry, u->workspace, stream);
    return status
               ? status
               : dt_cuda_check(dt_ulysses_leave_launch(p, 0, 0, enters && attention.head_dim <= 128, stream), "exit");
  case DT_ULYSSES_IN:
    status = queue_in(u, &u->in_all, inputs, stream);
    if (!status) status = dt_cuda_check(dt_ulysses_gather_launch(p, stream), "arrival");
    return status ? status : dt_cuda_check(dt_ulysses_leave_launch(p, u->in_all.blocks, 1, 0, stream), "exit");
  }
  return dt_fail(DT_ERR_ARGUMENT, "part: %d; 0 to 3 allowed", (int)part);
}

void *dt_ulysses_output(dt_ulysses *u) {
  return dt_window_local(u->output);
}

size_t dt_ulysses_device_bytes(const dt_ulysses *u) {
  return u->device_bytes;
}
