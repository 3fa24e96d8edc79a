/* Runs the Ulysses operator: what is queued for each of its parts. */
#include "ulysses.h"

#include <string.h>

#include "attention.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "ulysses_tables.h"

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
        dt_ulysses_make_map(u, &u->move_in.from[tensor], (void *)inputs[tensor], rows, tensor ? l->kv_heads : l->heads);
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
  dt_ulysses_set_owners(u, &attention, 1);
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
                              .held = u->kept,
                              .held_bytes = u->kept_bytes,
                              .holds = u->holds,
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
  const dt_attention_carry carry = {
      .enters = 1, .meet = *p, .held = u->kept, .held_bytes = u->kept_bytes, .holds = u->holds};
  const int enters = u->attention.kv_tokens > 0 && u->attention.tokens > 0; /* there is an attention kernel */
  dt_cuda_attention attention = u->attention;
  dt_status status = DT_OK;
  switch (part) {
  case DT_ULYSSES_WHOLE:
    if (u->config.attention.schedule == DT_ATTENTION_SERIAL) return run_serial(u, inputs, stream);
    return run_piggyback(u, inputs, stream);
  case DT_ULYSSES_ATTENTION:
    dt_ulysses_set_one_owner(u, &attention);
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
