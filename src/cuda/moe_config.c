/* The MoE layer: what a configuration may be. */
#include <string.h>

#include "core/error.h"
#include "driver.h"
#include "moe_handle.h"
#include "plan/layer_defaults.h"

enum { EXPERTS_MAX = 2000, CONSUMERS_MAX = 64 };

static dt_status check_schedule(const dt_cuda_moe_config *c) {
  const dt_schedule s = c->schedule;
  if (s != DT_SCHEDULE_SERIAL && s != DT_SCHEDULE_SIGNAL && s != DT_SCHEDULE_DIRECT && s != DT_SCHEDULE_WAVE &&
      s != DT_SCHEDULE_INTERLEAVE && s != DT_SCHEDULE_ALTERNATE)
    return dt_fail(DT_ERR_UNSUPPORTED, "schedule: %s; serial, signal, direct, wave, interleave or alternate on GPUs",
                   dt_schedule_name(s));
  if (c->consumers < 0 || c->consumers > CONSUMERS_MAX || c->consumers % 2 != 0)
    return dt_fail(DT_ERR_ARGUMENT, "consumers: %d; an even number up to %d, or 0, allowed", c->consumers,
                   CONSUMERS_MAX);
  if (c->segment_bands < 0) return dt_fail(DT_ERR_ARGUMENT, "segment_bands: %d; 0 or more allowed", c->segment_bands);
  const int in_turn = s == DT_SCHEDULE_SERIAL || s == DT_SCHEDULE_SIGNAL || s == DT_SCHEDULE_DIRECT;
  if (c->order != DT_ORDER_NATURAL && c->order != DT_ORDER_REMOTE_FIRST && c->order != DT_ORDER_PACED)
    return dt_fail(DT_ERR_ARGUMENT, "order: %d; natural, remote-first or paced allowed", (int)c->order);
  if (c->dedup && (c->order == DT_ORDER_PACED || (c->order == DT_ORDER_REMOTE_FIRST && !in_turn)))
    return dt_fail(DT_ERR_UNSUPPORTED,
                   "order: %s; with dedup natural, or remote-first with serial, signal or direct allowed",
                   dt_order_name(c->order));
  if (c->raster_bands < 0 || c->raster_bands % 2 != 0 || c->raster_bands > 1 << 16)
    return dt_fail(DT_ERR_ARGUMENT, "raster_bands: %d; an even number up to 65536, or 0, allowed", c->raster_bands);
  if (c->group_tasks < 0) return dt_fail(DT_ERR_ARGUMENT, "group_tasks: %d; 0 or more allowed", c->group_tasks);
  if (c->lead < 0) return dt_fail(DT_ERR_ARGUMENT, "lead: %d; 0 or more allowed", c->lead);
  if (c->wave_experts < 0) return dt_fail(DT_ERR_ARGUMENT, "wave_experts: %d; 0 or more allowed", c->wave_experts);
  if (c->dedup != 0 && c->dedup != 1) return dt_fail(DT_ERR_ARGUMENT, "dedup: %d; 0 or 1 allowed", c->dedup);
  if (c->head < -1 || c->head > 1024) return dt_fail(DT_ERR_ARGUMENT, "head: %d; -1 to 1024 allowed", c->head);
  if (c->send_sms < 0 || c->send_sms % 2 != 0 || c->send_sms > 1024)
    return dt_fail(DT_ERR_ARGUMENT, "send_sms: %d; an even number up to 1024, or 0, allowed", c->send_sms);
  if (c->ahead < -1 || c->ahead > 1 << 20)
    return dt_fail(DT_ERR_ARGUMENT, "ahead: %d; -1 to 1048576 allowed", c->ahead);
  return DT_OK;
}

dt_status dt_cuda_moe_check_config(const dt_cuda_moe_config *c) {
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
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    const long long value = fields[i].value, least = fields[i].least, most = fields[i].most;
    const long long multiple = fields[i].multiple;
    if (value >= least && value <= most && value % multiple == 0) continue;
    if (multiple == 1)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; %lld to %lld allowed", fields[i].name, value, least, most);
    return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; a multiple of %lld from %lld to %lld allowed", fields[i].name, value,
                   multiple, least, most);
  }
  if (sizeof(int32_t) * dt_moe_scratch_words(ranks, c->experts_per_rank, c->order) > DT_CUDA_MOE_SHARED_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; the plan of %d ranks does not fit into shared memory",
                   c->experts_per_rank, ranks);
  if (c->activation != DT_ACTIVATION_SILU && c->activation != DT_ACTIVATION_SWIGLU_CLAMPED)
    return dt_fail(DT_ERR_ARGUMENT, "activation: %d; silu or swiglu_clamped allowed", (int)c->activation);
  if (c->activation == DT_ACTIVATION_SWIGLU_CLAMPED && !(c->activation_limit > 0))
    return dt_fail(DT_ERR_ARGUMENT, "activation_limit: %g; above 0 allowed", (double)c->activation_limit);
  if (!(c->timeout_s >= 0 && c->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", c->timeout_s);
  if (c->timestamps != 0 && c->timestamps != 1)
    return dt_fail(DT_ERR_ARGUMENT, "timestamps: %d; 0 or 1 allowed", c->timestamps);
  if (c->timestamps && c->dedup)
    return dt_fail(DT_ERR_UNSUPPORTED, "timestamps: %d; 0 allowed with dedup", c->timestamps);
  return check_schedule(c);
}

/* Memory that CUDA knows nothing of: a kernel that reads it would end the process's use of the GPU. */
static int is_of_host(const void *pointer) {
  struct cudaPointerAttributes attributes;
  return pointer && cudaPointerGetAttributes(&attributes, pointer) == cudaSuccess &&
         attributes.type == cudaMemoryTypeUnregistered;
}

dt_status dt_cuda_moe_check_weights(const dt_cuda_moe_weights *w) {
  const struct {
    const char *name;
    const void *pointer;
    int optional;
  } fields[] = {{"gate", w->gate, 0},           {"up", w->up, 0},           {"down", w->down, 0},
                {"gate_bias", w->gate_bias, 1}, {"up_bias", w->up_bias, 1}, {"down_bias", w->down_bias, 1}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    const void *pointer = fields[i].pointer;
    if ((pointer == NULL && !fields[i].optional) || (uintptr_t)pointer % 16 != 0)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p; device memory aligned to 16 allowed", fields[i].name, pointer);
    if (is_of_host(pointer))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p is the host's; device memory allowed", fields[i].name, pointer);
  }
  return DT_OK;
}

dt_status dt_cuda_moe_agree(const dt_cuda_moe_config *c) {
  const dt_agree_field fields[] = {{"hidden", c->hidden},
                                   {"intermediate", c->intermediate},
                                   {"experts_per_rank", c->experts_per_rank},
                                   {"top_k", c->top_k},
                                   {"max_tokens", c->max_tokens},
                                   {"max_rows", c->max_rows},
                                   {"activation", c->activation},
                                   {"schedule", c->schedule},
                                   {"order", c->order},
                                   {"raster_bands", c->raster_bands},
                                   {"group_tasks", c->group_tasks},
                                   {"lead", c->lead},
                                   {"wave_experts", c->wave_experts},
                                   {"dedup", c->dedup}};
  return dt_comm_agree(c->comm, fields, sizeof fields / sizeof *fields);
}

dt_status dt_cuda_moe_check_fits(const dt_cuda_moe *m, const dt_cuda_moe_config *c) {
  const int consumers = dt_layer_consumers(c->schedule, c->consumers, m->sms);
  if (consumers > m->sms - DT_TILE_CLUSTER)
    return dt_fail(DT_ERR_ARGUMENT, "consumers: %d; tiles need %d of %d multiprocessors", consumers, DT_TILE_CLUSTER,
                   m->sms);
  if (sizeof(int32_t) * dt_moe_scratch_words(m->plan.ranks, m->plan.experts, c->order) > DT_CUDA_MOE_SHARED_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "order: %s; the plan of %d ranks with %d experts does not fit into shared memory",
                   dt_order_name(c->order), m->plan.ranks, m->plan.experts);
  return DT_OK;
}

/* What a schedule is to the plan. A wave of workers is a task a cluster. */
void dt_cuda_moe_fill_schedule(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  m->consumers = dt_layer_consumers(c->schedule, c->consumers, m->sms);
  const int32_t wave = (m->sms - m->consumers) / DT_TILE_CLUSTER;
  const dt_layer_grouping given = {c->raster_bands, c->segment_bands, c->group_tasks, c->lead, c->wave_experts};
  const dt_layer_grouping full = dt_layer_group(c->schedule, given, wave);
  p->raster_bands = full.raster_bands;
  p->segment_bands = full.segment_bands;
  p->group_tasks = full.group_tasks;
  p->lead = full.lead;
  p->wave_experts = full.wave_experts;
  p->order = (int32_t)c->order;
  p->alternate = c->schedule == DT_SCHEDULE_ALTERNATE;
  p->staged = c->schedule == DT_SCHEDULE_SERIAL || m->consumers;
  p->put_blocks = m->consumers ? m->consumers : m->sms;
  p->dedup = m->layer.dedup = c->dedup;
  p->ahead = c->schedule == DT_SCHEDULE_SERIAL ? -1 : c->ahead;
  p->clusters = wave;
}

/* Without dedup nobody clears the words of the next layer, so what is there may be of any layer before. Every rank does
 * this before it agrees to use them; nobody writes them until then. */
static dt_status clear_sources(dt_cuda_moe *m) {
  const size_t bytes = 2 * (size_t)m->plan.bands_max * DT_TILE_M * sizeof *m->plan.sources;
  cudaError_t error = cudaSetDevice(m->device);
  if (error == cudaSuccess) error = dt_cuda_settle();
  if (error == cudaSuccess) error = cudaMemset(m->plan.sources, 0, bytes);
  if (error == cudaSuccess) error = dt_cuda_settle();
  return dt_cuda_check(error, "dedup");
}

dt_status dt_cuda_moe_set_schedule(dt_cuda_moe *m, const dt_cuda_moe_config *config) {
  dt_status status = check_schedule(config);
  if (!status) status = dt_cuda_moe_check_fits(m, config);
  if (!status && config->dedup && !m->dedups)
    status = dt_fail(DT_ERR_ARGUMENT, "dedup: %d; 0 allowed in a layer that was created without", config->dedup);
  if (!status && config->dedup && !m->config.dedup) status = clear_sources(m);
  dt_cuda_moe_config merged = m->config;
  merged.schedule = config->schedule;
  merged.order = config->order;
  merged.raster_bands = config->raster_bands;
  merged.group_tasks = config->group_tasks;
  merged.lead = config->lead;
  merged.wave_experts = config->wave_experts;
  merged.consumers = config->consumers;
  merged.segment_bands = config->segment_bands;
  merged.dedup = config->dedup;
  merged.head = config->head;
  merged.send_sms = config->send_sms;
  merged.ahead = config->ahead;
  if (!status) status = dt_cuda_moe_agree(&merged);
  if (status) return status;
  m->config = merged;
  dt_cuda_moe_fill_schedule(m);
  return dt_cuda_moe_graph_make(m);
}
