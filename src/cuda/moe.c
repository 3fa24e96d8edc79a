/* Host side of the MoE layer: checks, memory, tensor maps, launches. */
#include <draintile/cuda_moe.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "fabric.h"
#include "moe_plan.h"
#include "plan.h"
#include "tensor_map.h"

enum { SLOTS_WARPS = 16, SLOTS_BLOCKS_MAX = 128, TABLE_BLOCKS = 64, EXPERTS_MAX = 2000, SHARED_MAX = 200 * 1024 };

struct dt_cuda_moe {
  dt_cuda_moe_config config;
  dt_cuda_moe_weights weights;
  int device, sms;
  int forwards; /* there is a plan that parts may use */
  int64_t combine_rows;
  dt_window *rows, *buffer, *control;
  void *memory; /* of everything below that is not in a window */
  size_t memory_bytes, control_bytes;
  uint8_t *act;
  dt_layer_state
      *seen; /* pinned: a copy to other memory keeps the process's other copies waiting until it is through */
  dt_moe_plan plan;
  dt_tile_layer layer;
  CUtensorMap buffers[DT_LAYER_RANKS], staging; /* combine buffers; expert rows, for stores */
};

void dt_cuda_moe_config_init(dt_cuda_moe_config *config) {
  *config = (dt_cuda_moe_config){.size = sizeof *config, .schedule = DT_SCHEDULE_DIRECT};
}

static dt_status check_schedule(const dt_cuda_moe_config *c) {
  const dt_schedule s = c->schedule;
  if (s != DT_SCHEDULE_SERIAL && s != DT_SCHEDULE_DIRECT && s != DT_SCHEDULE_WAVE && s != DT_SCHEDULE_INTERLEAVE &&
      s != DT_SCHEDULE_ALTERNATE)
    return dt_fail(DT_ERR_UNSUPPORTED, "schedule: %s; serial, direct, wave, interleave or alternate on GPUs",
                   dt_schedule_name(s));
  if (c->raster_bands < 0 || c->raster_bands % 2 != 0 || c->raster_bands > 1 << 16)
    return dt_fail(DT_ERR_ARGUMENT, "raster_bands: %d; an even number up to 65536, or 0, allowed", c->raster_bands);
  if (c->group_tasks < 0) return dt_fail(DT_ERR_ARGUMENT, "group_tasks: %d; 0 or more allowed", c->group_tasks);
  if (c->lead < 0) return dt_fail(DT_ERR_ARGUMENT, "lead: %d; 0 or more allowed", c->lead);
  if (c->wave_experts < 0) return dt_fail(DT_ERR_ARGUMENT, "wave_experts: %d; 0 or more allowed", c->wave_experts);
  if (c->dedup != 0) return dt_fail(DT_ERR_UNSUPPORTED, "dedup: %d; 0 allowed on GPUs", c->dedup);
  return DT_OK;
}

static dt_status check_config(const dt_cuda_moe_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_cuda_moe_config_init; %zu expected", sizeof *c);
  if (c->comm == NULL || strcmp(dt_comm_fabric(c->comm), "cuda") != 0)
    return dt_fail(DT_ERR_UNSUPPORTED, "comm: %s; an endpoint of fabric cuda allowed",
                   c->comm ? dt_comm_fabric(c->comm) : "NULL");
  const int32_t ranks = dt_comm_ranks(c->comm);
  if (ranks > DT_LAYER_RANKS) return dt_fail(DT_ERR_ARGUMENT, "comm: %d ranks; 1 to %d allowed", ranks, DT_LAYER_RANKS);
  const struct {
    const char *name;
    int64_t value, least, most, multiple;
  } fields[] = {{"hidden", c->hidden, 8, 1 << 16, 8},
                {"intermediate", c->intermediate, 8, 1 << 16, 8},
                {"experts_per_rank", c->experts_per_rank, 1, EXPERTS_MAX, 1},
                {"top_k", c->top_k, 1, DT_LAYER_TOP_K, 1},
                {"max_tokens", c->max_tokens, 1, INT32_MAX / 2 / DT_LAYER_TOP_K, 1},
                {"max_rows", c->max_rows, 0, INT32_MAX / 2, 1},
                {"sms", c->sms, 0, 1024, 2}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].value < fields[i].least || fields[i].value > fields[i].most ||
        fields[i].value % fields[i].multiple != 0)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; a multiple of %lld from %lld to %lld allowed", fields[i].name,
                     (long long)fields[i].value, (long long)fields[i].multiple, (long long)fields[i].least,
                     (long long)fields[i].most);
  if (sizeof(int32_t) * dt_moe_scratch_words(ranks, c->experts_per_rank) > SHARED_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; the plan of %d ranks does not fit into shared memory",
                   c->experts_per_rank, ranks);
  if (c->activation != DT_ACTIVATION_SILU && c->activation != DT_ACTIVATION_SWIGLU_CLAMPED)
    return dt_fail(DT_ERR_ARGUMENT, "activation: %d; silu or swiglu_clamped allowed", (int)c->activation);
  if (c->activation == DT_ACTIVATION_SWIGLU_CLAMPED && !(c->activation_limit > 0))
    return dt_fail(DT_ERR_ARGUMENT, "activation_limit: %g; above 0 allowed", (double)c->activation_limit);
  if (!(c->timeout_s >= 0 && c->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", c->timeout_s);
  if (c->timestamps != 0) return dt_fail(DT_ERR_UNSUPPORTED, "timestamps: %d; 0 allowed", c->timestamps);
  return check_schedule(c);
}

static dt_status check_weights(const dt_cuda_moe_weights *w) {
  const struct {
    const char *name;
    const void *pointer;
    int optional;
  } fields[] = {{"gate", w->gate, 0},           {"up", w->up, 0},           {"down", w->down, 0},
                {"gate_bias", w->gate_bias, 1}, {"up_bias", w->up_bias, 1}, {"down_bias", w->down_bias, 1}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if ((fields[i].pointer == NULL && !fields[i].optional) || (uintptr_t)fields[i].pointer % 16 != 0)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p; device memory aligned to 16 allowed", fields[i].name, fields[i].pointer);
  return DT_OK;
}

static dt_status check_device(dt_cuda_moe *m) {
  int major = 0, minor = 0;
  dt_status status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  if (!status)
    status = dt_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, m->device), "device");
  if (!status)
    status = dt_cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, m->device), "device");
  if (!status)
    status = dt_cuda_check(cudaDeviceGetAttribute(&m->sms, cudaDevAttrMultiProcessorCount, m->device), "device");
  if (status) return status;
  if (major != 9 || minor != 0)
    return dt_fail(DT_ERR_UNSUPPORTED, "compute capability: %d.%d; 9.0 allowed", major, minor);
  if (m->config.sms > m->sms) return dt_fail(DT_ERR_ARGUMENT, "sms: %d; 0 to %d allowed", m->config.sms, m->sms);
  if (m->config.sms != 0) m->sms = m->config.sms;
  return dt_cuda_check(dt_moe_plan_prepare(SHARED_MAX), "plan");
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

/* What is not in a window, in one allocation. */
static dt_status make_memory(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  const size_t rows = (size_t)p->rows_max, slots = (size_t)m->combine_rows, g = (size_t)(p->ranks * p->experts);
  const size_t bands = (size_t)p->bands_max;
  const size_t tasks = bands * (size_t)((p->columns_1 + 1) / 2 + (p->columns_2 + 1) / 2);
  const struct {
    void **pointer;
    size_t bytes;
  } parts[] = {{(void **)&m->act, rows * (size_t)c->intermediate * 2},
               {(void **)&p->state, sizeof *p->state},
               {(void **)&p->act_ready, bands * sizeof *p->act_ready},
               {(void **)&p->tasks, tasks * sizeof *p->tasks},
               {(void **)&p->pieces, (slots / (size_t)p->piece_rows + 2 * g) * sizeof *p->pieces},
               {(void **)&p->puts, (rows / (size_t)p->piece_rows + g) * sizeof *p->puts},
               {(void **)&p->row_target, rows * sizeof *p->row_target},
               {(void **)&p->slot.counts, g * sizeof *p->slot.counts},
               {(void **)&p->slot.row_of_slot, slots * sizeof *p->slot.row_of_slot},
               {(void **)&p->slot.slot_of_row, slots * sizeof *p->slot.slot_of_row},
               {(void **)&p->slot.histograms, SLOTS_BLOCKS_MAX * g * sizeof *p->slot.histograms}};
  size_t offsets[sizeof parts / sizeof *parts], bytes = 0;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    offsets[i] = bytes;
    bytes += (parts[i].bytes + 255) / 256 * 256;
  }
  dt_status status = dt_cuda_check(cudaMalloc(&m->memory, bytes), "layer");
  if (!status) status = dt_cuda_check(cudaMemset(m->memory, 0, bytes), "layer");
  if (!status)
    status = dt_cuda_check(cudaHostAlloc((void **)&m->seen, sizeof *m->seen, cudaHostAllocPortable), "layer");
  if (!status) status = dt_cuda_check(cudaDeviceSynchronize(), "layer");
  if (status) return status;
  m->memory_bytes = bytes;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i].pointer = (uint8_t *)m->memory + offsets[i];
  p->slot.error = &p->state->slot_error;
  return DT_OK;
}

/* The control window: slots by writer, counts of two epochs, arrivals of two epochs. */
static size_t counts_offset(const dt_moe_plan *p) {
  return (size_t)p->ranks * sizeof(dt_layer_slot);
}
static size_t arrivals_offset(const dt_moe_plan *p) {
  const size_t counts = 2 * (size_t)p->ranks * (size_t)p->ranks * (size_t)p->experts * sizeof(int32_t);
  return (counts_offset(p) + counts + 127) / 128 * 128;
}

static dt_status make_windows(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  const size_t row_bytes = 2 * (size_t)c->hidden;
  m->control_bytes = arrivals_offset(&m->plan) + 2 * (size_t)m->plan.bands_max * sizeof(uint32_t);
  dt_status status = dt_comm_alloc(c->comm, (size_t)m->plan.rows_max * row_bytes, &m->rows);
  if (!status) status = dt_comm_alloc(c->comm, (size_t)m->combine_rows * row_bytes, &m->buffer);
  return status ? status : dt_comm_alloc(c->comm, m->control_bytes, &m->control);
}

static void fill_plan(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  p->ranks = dt_comm_ranks(c->comm);
  p->rank = dt_comm_rank(c->comm);
  p->experts = c->experts_per_rank;
  p->columns_1 = (int32_t)((c->intermediate + DT_TILE_N / 2 - 1) / (DT_TILE_N / 2));
  p->columns_2 = (int32_t)((c->hidden + DT_TILE_N - 1) / DT_TILE_N);
  p->piece_rows = DT_TILE_M; /* about 128 KB a piece */
  while (p->piece_rows > 8 && (int64_t)p->piece_rows * 2 * c->hidden > 160 * 1024) p->piece_rows /= 2;
  const int64_t most = c->top_k < p->experts ? c->top_k : p->experts;
  p->rows_max = c->max_rows ? c->max_rows : p->ranks * c->max_tokens * most;
  p->bands_max = (int32_t)(p->rows_max / DT_TILE_M + (p->rows_max < p->experts ? p->rows_max : p->experts));
  p->timeout_us = (uint32_t)(1e6 * (c->timeout_s > 0 ? c->timeout_s : 10));
  m->combine_rows = c->max_tokens * c->top_k;
  p->slot.top_k = c->top_k;
  p->slot.experts = p->ranks * p->experts;
  p->slot.warps = SLOTS_WARPS;
  while (p->slot.warps > 1 && dt_slots_count_bytes(&p->slot) > SHARED_MAX) p->slot.warps /= 2;
}

/* What a schedule is to the plan. A wave of workers is a task a cluster. */
static void fill_schedule(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  const int32_t wave = m->sms / DT_TILE_CLUSTER;
  p->raster_bands = c->raster_bands ? c->raster_bands : 16;
  p->lead = c->lead ? c->lead : 1;
  p->group_tasks = c->group_tasks ? c->group_tasks : 2 * wave;
  p->wave_experts = 0;
  p->alternate = c->schedule == DT_SCHEDULE_ALTERNATE;
  p->staged = c->schedule == DT_SCHEDULE_SERIAL;
  p->put_blocks = m->sms;
  if (c->schedule == DT_SCHEDULE_WAVE) {
    p->lead = 0;
    p->wave_experts = c->wave_experts;
    if (!c->group_tasks) p->group_tasks = 6 * wave;
  }
  if (c->schedule == DT_SCHEDULE_SERIAL || c->schedule == DT_SCHEDULE_DIRECT) p->lead = DT_MOE_LEAD_ALL;
}

static void fill_pointers(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  dt_tile_layer *l = &m->layer;
  uint8_t *own = dt_window_local(m->control);
  p->slots = l->slots = (dt_layer_slot *)own;
  p->counts = (int32_t *)(own + counts_offset(p));
  p->arrivals = (uint32_t *)(own + arrivals_offset(p));
  for (int32_t r = 0; r < p->ranks; r++) {
    uint8_t *control = m->control->pieces[r];
    p->peer_slot[r] = l->peer_slot[r] = (dt_layer_slot *)control + p->rank;
    p->peer_counts[r] = (int32_t *)(control + counts_offset(p));
    l->arrivals[r] = (uint32_t *)(control + arrivals_offset(p));
    l->rows_of[r] = m->rows->pieces[r];
    l->buffers[r] = m->buffer->pieces[r];
  }
  l->rank = p->rank;
  l->ranks = p->ranks;
  l->top_k = c->top_k;
  l->bands_max = p->bands_max;
  l->state = p->state;
  l->act_ready = p->act_ready;
  l->pieces = p->pieces;
  l->puts = p->puts;
  l->slot_of_row = p->slot.slot_of_row;
  l->row_of_slot = p->slot.row_of_slot;
  l->l1_columns = (int32_t)c->intermediate;
  l->l1_k_blocks = (int32_t)((c->hidden + DT_TILE_K - 1) / DT_TILE_K);
  l->l1_tiles = (uint32_t)p->columns_1;
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
  cudaFree(m->memory);
  cudaFreeHost(m->seen);
  free(m);
}

static dt_status agree(const dt_cuda_moe_config *c) {
  const dt_agree_field fields[] = {{"hidden", c->hidden},
                                   {"intermediate", c->intermediate},
                                   {"experts_per_rank", c->experts_per_rank},
                                   {"top_k", c->top_k},
                                   {"max_tokens", c->max_tokens},
                                   {"max_rows", c->max_rows},
                                   {"activation", c->activation},
                                   {"schedule", c->schedule},
                                   {"raster_bands", c->raster_bands},
                                   {"group_tasks", c->group_tasks},
                                   {"lead", c->lead},
                                   {"wave_experts", c->wave_experts},
                                   {"dedup", c->dedup}};
  return dt_comm_agree(c->comm, fields, sizeof fields / sizeof *fields);
}

dt_status dt_cuda_moe_create(const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights, dt_cuda_moe **moe) {
  dt_status status = check_config(config);
  if (!status) status = check_weights(weights);
  if (!status) status = agree(config);
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
  if (!status) status = make_memory(m);
  if (status) /* the peers wait in make_windows */
    dt_comm_abort(config->comm, status, dt_error_detail());
  else
    status = make_windows(m);
  if (!status) {
    fill_schedule(m);
    fill_pointers(m);
    status = make_maps(m);
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
  cudaDeviceSynchronize();
  dt_comm_free(m->config.comm, m->control);
  dt_comm_free(m->config.comm, m->buffer);
  dt_comm_free(m->config.comm, m->rows);
  release(m);
}

dt_status dt_cuda_moe_set_schedule(dt_cuda_moe *m, const dt_cuda_moe_config *config) {
  dt_status status = check_schedule(config);
  dt_cuda_moe_config merged = m->config;
  merged.schedule = config->schedule;
  merged.raster_bands = config->raster_bands;
  merged.group_tasks = config->group_tasks;
  merged.lead = config->lead;
  merged.wave_experts = config->wave_experts;
  merged.dedup = config->dedup;
  if (!status) status = agree(&merged);
  if (status) return status;
  m->config = merged;
  fill_schedule(m);
  return DT_OK;
}

static dt_status check_input(const dt_cuda_moe *m, const dt_cuda_moe_input *in) {
  if (in->tokens < 0 || in->tokens > m->config.max_tokens)
    return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 to %lld allowed", (long long)in->tokens,
                   (long long)m->config.max_tokens);
  const struct {
    const char *name;
    const void *pointer;
  } fields[] = {{"hidden", in->hidden}, {"ids", in->ids}, {"weights", in->weights}, {"output", in->output}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (in->tokens > 0 && (fields[i].pointer == NULL || (uintptr_t)fields[i].pointer % 16 != 0))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p; device memory aligned to 16 allowed", fields[i].name, fields[i].pointer);
  return DT_OK;
}

static void take_input(dt_cuda_moe *m, const dt_cuda_moe_input *in) {
  dt_device_slots *slot = &m->plan.slot;
  slot->ids = in->ids;
  slot->tokens_capacity = in->tokens;
  const int64_t lanes = (int64_t)slot->warps * DT_WARP, blocks = (in->tokens * slot->top_k + lanes - 1) / lanes;
  slot->blocks = (int32_t)(blocks < 1 ? 1 : blocks > SLOTS_BLOCKS_MAX ? SLOTS_BLOCKS_MAX : blocks);
  m->layer.hidden = in->hidden;
  m->layer.weights = in->weights;
  m->layer.output = in->output;
  m->layer.tokens = in->tokens;
}

/* L1 and L2. staged: rows of other ranks stay here. local: all do, in the own combine buffer. */
static dt_status launch_tiles(dt_cuda_moe *m, int staged, int local, cudaStream_t stream) {
  dt_tile_layer layer = m->layer;
  const int32_t rank = m->plan.rank;
  layer.signals = !staged && !local;
  layer.waits = !local;
  /* What a rank computes may be more rows than it has slots; 16 rows are stored from each row below. */
  layer.local_rows = !local ? 0 : m->combine_rows > 16 ? (int32_t)m->combine_rows - 15 : 1;
  if (staged) {
    layer.gemm.owners_count = 2;
    layer.gemm.owners[0] = m->buffers[rank];
    layer.gemm.owner_rows[0] = layer.buffers[rank];
    layer.gemm.owners[1] = m->staging;
    layer.gemm.owner_rows[1] = layer.rows_of[rank];
  } else {
    layer.gemm.owners_count = (uint32_t)m->plan.ranks;
    for (int32_t r = 0; r < m->plan.ranks; r++) {
      layer.gemm.owners[r] = m->buffers[r];
      layer.gemm.owner_rows[r] = layer.buffers[r];
    }
  }
  return dt_cuda_check(dt_tile_layer_launch(&layer, m->sms / DT_TILE_CLUSTER * DT_TILE_CLUSTER, stream), "tiles");
}

static dt_status launch_plan(dt_cuda_moe *m, int head, cudaStream_t stream) {
  m->plan.head = head;
  m->plan.tiles_only = 0;
  dt_status status = dt_cuda_check(dt_moe_count_launch(&m->plan, stream), "counts");
  return status ? status : dt_cuda_check(dt_moe_table_launch(&m->plan, TABLE_BLOCKS, stream), "table");
}

/* Of the dispatch, what all multiprocessors copy before the tiles; warps beside the tiles copy the rest. Measured:
 * docs/notes/moe.md. */
static int head_of(const dt_cuda_moe *m) {
  return m->plan.staged ? 1024 : 256;
}

dt_status dt_cuda_moe_forward(dt_cuda_moe *m, const dt_cuda_moe_input *input, void *stream) {
  dt_status status = check_input(m, input);
  if (status) return status;
  status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  take_input(m, input);
  m->layer.waits = m->layer.signals = 1;
  if (!status) status = launch_plan(m, head_of(m), stream);
  if (!status) status = dt_cuda_check(dt_layer_dispatch_launch(&m->layer, m->sms, stream), "dispatch");
  if (!status) status = launch_tiles(m, m->plan.staged, 0, stream);
  if (!status && m->plan.staged)
    status = dt_cuda_check(dt_layer_put_launch(&m->layer, m->plan.put_blocks, stream), "put");
  if (!status) status = dt_cuda_check(dt_layer_reduce_launch(&m->layer, m->sms, stream), "reduction");
  if (!status) m->forwards = 1;
  return status;
}

dt_status dt_cuda_moe_run_part(dt_cuda_moe *m, dt_cuda_moe_part part, const dt_cuda_moe_input *input, void *stream) {
  dt_status status = check_input(m, input);
  if (!status && !m->forwards) status = dt_fail(DT_ERR_ARGUMENT, "part: %d; only after a forward", (int)part);
  if (!status) status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  if (status) return status;
  take_input(m, input);
  m->layer.waits = m->layer.signals = 0;
  switch (part) {
  case DT_CUDA_MOE_COMPUTE:
    m->plan.tiles_only = 1;
    status = dt_cuda_check(dt_moe_table_launch(&m->plan, TABLE_BLOCKS, stream), "table");
    return status ? status : launch_tiles(m, 0, 1, stream);
  case DT_CUDA_MOE_DISPATCH:
    status = launch_plan(m, 1024, stream);
    return status ? status : dt_cuda_check(dt_layer_dispatch_launch(&m->layer, m->sms, stream), "dispatch");
  case DT_CUDA_MOE_COMBINE:
    return dt_cuda_check(dt_layer_put_launch(&m->layer, m->plan.put_blocks, stream), "put");
  case DT_CUDA_MOE_REDUCE:
    return dt_cuda_check(dt_layer_reduce_launch(&m->layer, m->sms, stream), "reduction");
  default:
    return dt_fail(DT_ERR_ARGUMENT, "part: %d; compute, dispatch, combine or reduce allowed", (int)part);
  }
}

static dt_status read_state(dt_cuda_moe *m, void *stream, dt_layer_state *state) {
  cudaError_t error = cudaMemcpyAsync(m->seen, m->plan.state, sizeof *state, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  *state = *m->seen;
  return dt_cuda_check(error, "MoE layer");
}

dt_status dt_cuda_moe_check(dt_cuda_moe *m, void *stream) {
  static const char *const pipe[] = {[DT_TILE_ERROR_FULL] = "operands",
                                     [DT_TILE_ERROR_EMPTY] = "a free stage",
                                     [DT_TILE_ERROR_TICKET] = "a ticket",
                                     [DT_TILE_ERROR_SLOT] = "a free ticket slot",
                                     [DT_TILE_ERROR_DONE] = "a tile's stores"};
  dt_layer_state s;
  dt_status status = read_state(m, stream, &s);
  if (status) return status;
  const int32_t rank = m->plan.rank;
  switch (s.error) {
  case DT_LAYER_OK:
    return DT_OK;
  case DT_LAYER_ERROR_INPUT:
    return dt_fail(DT_ERR_INPUT, "rank %d, epoch %u: an id outside -1 to %d", rank, s.epoch, m->plan.slot.experts - 1);
  case DT_LAYER_ERROR_CAPACITY:
    return dt_fail(DT_ERR_CAPACITY, "rank %d, epoch %u: %u rows for the experts of rank %d; max_rows is %u", rank,
                   s.epoch, s.seen, s.index, s.expected);
  case DT_LAYER_ERROR_COUNTS:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, counts of rank %d: epoch %u expected, %u seen", rank, s.index, s.expected,
                   s.seen);
  case DT_LAYER_ERROR_ARRIVAL:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, L1: arrivals of band %d: %u expected, %u seen", rank, s.epoch,
                   s.index, s.expected, s.seen);
  case DT_LAYER_ERROR_ACT:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, L2: L1 of band %d: %u expected, %u seen", rank, s.epoch, s.index,
                   s.expected, s.seen);
  case DT_LAYER_ERROR_SENT:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, reduction: rows of rank %d: epoch %u expected, %u seen", rank, s.index,
                   s.expected, s.seen);
  case DT_LAYER_ERROR_PEER:
    return dt_fail(DT_ERR_PEER, "rank %d, epoch %u: rank %d gave up", rank, s.epoch, s.index);
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_FULL:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_EMPTY:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_TICKET:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_SLOT:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_DONE:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, tiles: a wait for %s expired (%u of %u tasks drawn)", rank,
                   s.epoch, pipe[s.error - DT_LAYER_ERROR_PIPE], s.next_task, s.tasks);
  default:
    return dt_fail(DT_ERR_INTERNAL, "rank %d, epoch %u: error %u", rank, s.epoch, s.error);
  }
}

dt_status dt_cuda_moe_stats_read(dt_cuda_moe *m, void *stream, dt_cuda_moe_stats *stats) {
  dt_layer_state s;
  dt_status status = read_state(m, stream, &s);
  if (status) return status;
  const uint64_t row_bytes = 2 * (uint64_t)m->config.hidden;
  *stats = (dt_cuda_moe_stats){.rows = s.rows,
                               .sent_rows = s.sent_rows,
                               .received_rows = s.received_rows,
                               .tasks = s.tasks,
                               .dispatch_bytes = (uint64_t)s.dispatch_rows * row_bytes,
                               .combine_bytes = (uint64_t)s.sent_rows * row_bytes};
  return DT_OK;
}

size_t dt_cuda_moe_device_bytes(const dt_cuda_moe *m) {
  const size_t row_bytes = 2 * (size_t)m->config.hidden;
  return m->memory_bytes + m->control_bytes + ((size_t)m->plan.rows_max + (size_t)m->combine_rows) * row_bytes;
}

dt_status dt_cuda_moe_spans(dt_cuda_moe *m, void *stream, const dt_span **spans, size_t *count) {
  (void)m, (void)stream, (void)spans, (void)count;
  return dt_fail(DT_ERR_ARGUMENT, "spans: timestamps were not asked for");
}
