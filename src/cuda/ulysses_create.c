/* Makes the Ulysses operator: checks, windows, memory; and unmakes it. */
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
    return dt_fail(DT_ERR_ARGUMENT, "dtype: %s; bf16 and f16 allowed", dt_dtype_name(a->dtype));
  if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256)
    return dt_fail(DT_ERR_ARGUMENT, "head_dim: %d; 64, 128 and 256 allowed", a->head_dim);
  if (a->heads > DT_ULYSSES_HEADS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "heads: %d; up to %d allowed", a->heads, DT_ULYSSES_HEADS_MAX);
  if (c->sms < 0) return dt_fail(DT_ERR_ARGUMENT, "sms: %d; 0 and up allowed", c->sms);
  if (c->senders < 0 || c->senders > 1024)
    return dt_fail(DT_ERR_ARGUMENT, "senders: %d; 0 to 1024 allowed", c->senders);
  if (!(c->timeout_s >= 0 && c->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", c->timeout_s);
  return DT_OK;
}

/* What the heads' words depend on beside that: where CTAs carry, k and v have words of their own. */
static dt_status agree(const dt_ulysses_config *config, const dt_attention_config *attention) {
  const dt_agree_field fields[] = {{"senders (0: none, 1: some)", config->senders > 0}};
  dt_status status = dt_attention_agree(config->comm, attention);
  return status ? status : dt_comm_agree(config->comm, fields, 1);
}

dt_status dt_ulysses_device_memory(dt_ulysses *u, void **pointer, size_t bytes, const char *what) {
  u->device_bytes += bytes;
  dt_status status = dt_cuda_check(cudaMalloc(pointer, bytes ? bytes : 16), what);
  return status ? status : dt_cuda_check(cudaMemset(*pointer, 0, bytes ? bytes : 16), what);
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

static dt_status make_workspace(dt_ulysses *u) {
  dt_cuda_attention alone = u->attention;
  size_t bytes = 0;
  dt_status status = dt_cuda_attention_workspace(&u->attention, &u->workspace_bytes);
  dt_ulysses_set_one_owner(u, &alone);
  if (!status) status = dt_cuda_attention_workspace(&alone, &bytes);
  if (bytes > u->workspace_bytes) u->workspace_bytes = bytes;
  return status ? status : dt_ulysses_device_memory(u, &u->workspace, u->workspace_bytes, "workspace");
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
  dt_status status = dt_ulysses_device_memory(u, (void **)&u->state, sizeof *u->state, "state");
  if (!status) status = dt_ulysses_device_memory(u, (void **)&u->gate, (size_t)p->heads * sizeof *u->gate, "gate");
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
  u->kept_bytes = 2 * (size_t)(l->tokens * u->move_in.params.heads * l->head_dim);
  dt_status status = make_state(u);
  if (!status) status = dt_ulysses_device_memory(u, (void **)&u->kept, u->kept_bytes, "outputs");
  if (!status) status = dt_ulysses_describe_attention(u);
  if (!status) status = make_workspace(u);
  if (!status) status = dt_ulysses_make_tables(u);
  if (!status) status = dt_ulysses_make_maps(u);
  u->move_in.params.attention_error = &((dt_attention_header *)u->workspace)->error;
  if (!status) status = dt_ulysses_upload_maps(u);
  u->move_in.enters = 1;
  u->move_out.params = u->move_in.params;
  u->move_out.items = u->out.items;
  u->move_out.first = u->out.first;
  return status ? status : dt_cuda_check(dt_cuda_settle(), "memory");
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
  status = agree(config, &attention);
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
  u->holds = -1;
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
  dt_cuda_settle();
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
