/* The MoE layer: creation. The parameters of all its kernels are filled here, but for what a forward brings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "driver.h"
#include "fabric.h"
#include "moe_handle.h"
#include "tensor_map.h"

enum { SLOTS_WARPS = 16 };

static dt_status check_device(dt_cuda_moe *m) {
  dt_status status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  if (!status) status = dt_cuda_hopper(&m->sms);
  if (status) return status;
  if (m->config.sms > m->sms) return dt_fail(DT_ERR_ARGUMENT, "sms: %d; 0 to %d allowed", m->config.sms, m->sms);
  if (m->config.sms != 0) m->sms = m->config.sms;
  return dt_cuda_check(dt_moe_plan_prepare(DT_CUDA_MOE_SHARED_MAX), "plan");
}

/* Ranks that share this device. Their kernels wait for each other, so all need a place at once. */
static dt_status share_device(dt_cuda_moe *m) {
  struct cudaDeviceProp own;
  cudaUUID_t ids[DT_LAYER_RANKS];
  dt_status status = dt_cuda_check(cudaGetDeviceProperties(&own, m->device), "device");
  if (!status) status = dt_comm_allgather(m->config.comm, &own.uuid, ids, sizeof *ids);
  if (status) return status;
  int sharing = 0;
  for (int32_t r = 0; r < m->plan.ranks; r++) sharing += memcmp(&ids[r], &own.uuid, sizeof *ids) == 0;
  const int most = own.multiProcessorCount / sharing / DT_TILE_CLUSTER * DT_TILE_CLUSTER;
  m->plan.crowded = m->layer.crowded = sharing > 1;
  if (sharing > 1 && m->config.sms == 0) m->sms = most;
  if (sharing > 1 && m->sms > most)
    return dt_fail(DT_ERR_ARGUMENT, "sms: %d; with %d ranks on device %d 0 to %d allowed", m->sms, sharing, m->device,
                   most);
  return DT_OK;
}

static void fill_plan(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  p->ranks = dt_comm_ranks(c->comm);
  p->rank = dt_comm_rank(c->comm);
  p->experts = c->experts_per_rank;
  p->columns_1 = (int32_t)((c->intermediate + DT_TILE_N / 2 - 1) / (DT_TILE_N / 2));
  p->columns_2 = (int32_t)((c->hidden + DT_TILE_N - 1) / DT_TILE_N);
  p->put_rows = DT_TILE_M; /* about 128 KB: of a whole block, or through the copy engine */
  while (p->put_rows > 8 && (int64_t)p->put_rows * 2 * c->hidden > 160 * 1024) p->put_rows /= 2;
  p->piece_rows = dt_layer_piece_rows(c->hidden, DT_LAYER_PIECE_BYTES);
  p->row_bytes = 2 * c->hidden;
  p->tokens_max = c->max_tokens;
  p->expand_rows = dt_layer_piece_rows(c->hidden, DT_LAYER_EXPAND_BYTES);
  const int64_t most = c->top_k < p->experts ? c->top_k : p->experts;
  p->rows_max = c->max_rows ? c->max_rows : p->ranks * c->max_tokens * most;
  p->bands_max = (int32_t)(p->rows_max / DT_TILE_M + (p->rows_max < p->experts ? p->rows_max : p->experts));
  p->timeout_us = (uint32_t)(1e6 * (c->timeout_s > 0 ? c->timeout_s : 10));
  m->combine_rows = c->max_tokens * c->top_k;
  m->dedups = c->dedup;
  m->layer.staged_rows = c->dedup ? (int32_t)((p->ranks - 1) * c->max_tokens) : 0;
  p->slot.top_k = c->top_k;
  p->slot.experts = p->ranks * p->experts;
  p->slot.warps = SLOTS_WARPS;
  while (p->slot.warps > 1 && dt_slots_count_bytes(&p->slot) > DT_CUDA_MOE_SHARED_MAX) p->slot.warps /= 2;
}

static void fill_pointers(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  dt_tile_layer *l = &m->layer;
  uint8_t *own = dt_window_local(m->control);
  p->slots = l->slots = (dt_layer_slot *)own;
  p->counts = (int32_t *)(own + dt_cuda_moe_counts_offset(p));
  p->sources = (uint32_t *)(own + dt_cuda_moe_sources_offset(p));
  for (int32_t r = 0; r < p->ranks; r++) {
    uint8_t *control = m->control->pieces[r];
    p->peer_slot[r] = l->peer_slot[r] = (dt_layer_slot *)control + p->rank;
    p->peer_counts[r] = (int32_t *)(control + dt_cuda_moe_counts_offset(p));
    p->arrivals[r] = l->arrivals[r] = (uint32_t *)(control + dt_cuda_moe_arrivals_offset(p));
    l->sources[r] = (uint32_t *)(control + dt_cuda_moe_sources_offset(p));
    p->rows_of[r] = l->rows_of[r] = m->rows->pieces[r];
    p->staging_of[r] = l->staging[r] = m->tokens ? m->tokens->pieces[r] : NULL;
    l->buffers[r] = m->buffer->pieces[r];
  }
  l->rank = p->rank;
  l->ranks = p->ranks;
  l->top_k = c->top_k;
  l->bands_max = p->bands_max;
  l->experts = p->experts;
  l->tokens_max = c->max_tokens;
  l->source_base = p->source_base;
  l->state = p->state;
  l->act_ready = p->act_ready;
  l->pieces = p->pieces;
  l->puts = p->puts;
  l->slot_of_row = p->slot.slot_of_row;
  l->row_of_slot = p->slot.row_of_slot;
  l->l1_columns = (int32_t)c->intermediate;
  l->l1_k_blocks = (int32_t)((c->hidden + DT_TILE_K - 1) / DT_TILE_K);
  l->l1_tiles = (uint32_t)p->columns_1;
  l->l2_tiles = (uint32_t)p->columns_2;
  l->gate_bias = m->weights.gate_bias;
  l->up_bias = m->weights.up_bias;
  l->down_bias = m->weights.down_bias;
  l->biases = l->gate_bias || l->up_bias || l->down_bias;
  const int clamped = c->activation == DT_ACTIVATION_SWIGLU_CLAMPED;
  l->limit = clamped ? c->activation_limit : INFINITY;
  l->alpha = clamped ? c->activation_alpha : 1;
  l->add = clamped ? 1 : 0;
  l->gemm.tasks = p->tasks;
  l->gemm.row_target = p->row_target;
  l->gemm.row_bytes = 2 * c->hidden;
  l->gemm.timeout_us = p->timeout_us;
  l->gemm.columns = (int32_t)c->hidden;
  l->gemm.k_blocks = (int32_t)((c->intermediate + DT_TILE_K - 1) / DT_TILE_K);
  l->gemm.tensor_stores = 1;
}

static dt_status make_maps(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  const int64_t rows = m->plan.rows_max, h = c->hidden, i = c->intermediate, e = c->experts_per_rank;
  const void *x = dt_window_local(m->rows);
  const struct {
    dt_tensor tensor;
    CUtensorMap *map;
  } maps[] = {{dt_tensor_ragged("rows", x, rows, h, 64), &m->layer.x},
              {dt_tensor_experts("gate", m->weights.gate, e, i, h, 128), &m->layer.gate},
              {dt_tensor_experts("up", m->weights.up, e, i, h, 128), &m->layer.up},
              {dt_tensor_ragged("act", m->act, rows, i, 64), &m->layer.gemm.a},
              {dt_tensor_experts("down", m->weights.down, e, h, i, 128), &m->layer.gemm.b},
              {dt_tensor_ragged("act", m->act, rows, i, 16), &m->layer.act},
              {dt_tensor_ragged("rows", x, rows, h, 16), &m->staging}};
  dt_status status = DT_OK;
  for (size_t n = 0; n < sizeof maps / sizeof *maps && !status; n++)
    status = dt_tensor_encode(&maps[n].tensor, maps[n].map);
  for (int32_t r = 0; r < m->plan.ranks && !status; r++) {
    const dt_tensor buffer = dt_tensor_ragged("combine buffer", m->buffer->pieces[r], m->combine_rows, h, 16);
    status = dt_tensor_encode(&buffer, &m->buffers[r]);
  }
  return status;
}

static void release(dt_cuda_moe *m) {
  if (!m) return;
  cudaSetDevice(m->device);
  dt_cuda_moe_graph_free(m);
  dt_cuda_moe_free_memory(m);
  free(m);
}

dt_status dt_cuda_moe_create(const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights, dt_cuda_moe **moe) {
  dt_status status = dt_cuda_moe_check_config(config);
  if (!status) status = dt_cuda_moe_check_weights(weights);
  if (!status) status = dt_cuda_moe_agree(config);
  if (status) return status;
  dt_cuda_moe *m = calloc(1, sizeof *m);
  if (!m) status = dt_fail(DT_ERR_MEMORY, "layer: %zu bytes", sizeof *m);
  if (m) {
    m->config = *config;
    m->weights = *weights;
    m->device = dt_cuda_fabric_of(config->comm)->device;
    fill_plan(m);
    status = check_device(m);
  }
  if (!status) status = share_device(m);
  if (!status) status = dt_cuda_moe_check_fits(m, config);
  if (!status) status = dt_cuda_moe_make_memory(m);
  if (status) /* the peers wait in make_windows */
    dt_comm_abort(config->comm, status, dt_error_detail());
  else
    status = dt_cuda_moe_make_windows(m);
  if (!status) {
    dt_cuda_moe_fill_schedule(m);
    fill_pointers(m);
    status = make_maps(m);
    if (!status) status = dt_cuda_moe_graph_make(m);
  }
  if (status) {
    release(m);
    return status;
  }
  *moe = m;
  return DT_OK;
}

void dt_cuda_moe_destroy(dt_cuda_moe *m) {
  if (!m) return;
  cudaSetDevice(m->device);
  dt_cuda_settle();
  dt_cuda_moe_free_windows(m);
  release(m);
}
