/* The MoE layer's memory: one allocation, and the windows that other ranks write. */
#include "core/error.h"
#include "driver.h"
#include "moe_handle.h"

/* What is not in a window, in one allocation. */
dt_status dt_cuda_moe_make_memory(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  dt_moe_plan *p = &m->plan;
  const size_t rows = (size_t)p->rows_max, slots = (size_t)m->combine_rows, g = (size_t)(p->ranks * p->experts);
  const size_t bands = (size_t)p->bands_max;
  const size_t tasks = bands * (size_t)((p->columns_1 + 1) / 2 + (p->columns_2 + 1) / 2);
  const size_t sends = slots / (size_t)p->piece_rows + 2 * g;
  const size_t copies = c->dedup ? rows / (size_t)p->expand_rows + 2 * g : 0, pieces = sends > copies ? sends : copies;
  const struct {
    void **pointer;
    size_t bytes;
  } parts[] = {{(void **)&m->act, rows * (size_t)c->intermediate * 2},
               {(void **)&p->state, sizeof *p->state},
               {(void **)&p->act_ready, bands * sizeof *p->act_ready},
               {(void **)&p->stored, bands * sizeof *p->stored},
               {(void **)&p->band_places, bands * sizeof *p->band_places},
               {(void **)&p->tasks, tasks * sizeof *p->tasks},
               {(void **)&p->pieces, pieces * sizeof *p->pieces},
               {(void **)&p->puts, (rows / (size_t)p->put_rows + 2 * g) * sizeof *p->puts},
               {(void **)&p->row_target, rows * sizeof *p->row_target},
               {(void **)&p->source_base, c->dedup ? g * sizeof *p->source_base : 0},
               {(void **)&p->slot.counts, g * sizeof *p->slot.counts},
               {(void **)&p->slot.row_of_slot, slots * sizeof *p->slot.row_of_slot},
               {(void **)&p->slot.slot_of_row, slots * sizeof *p->slot.slot_of_row},
               {(void **)&p->slot.histograms, DT_CUDA_MOE_SLOTS_BLOCKS * g * sizeof *p->slot.histograms}};
  size_t offsets[sizeof parts / sizeof *parts], bytes = 0;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    offsets[i] = bytes;
    bytes += (parts[i].bytes + 255) / 256 * 256;
  }
  dt_status status = dt_cuda_check(cudaMalloc(&m->memory, bytes), "layer");
  if (!status) status = dt_cuda_check(cudaMemset(m->memory, 0, bytes), "layer");
  if (!status)
    status = dt_cuda_check(cudaHostAlloc((void **)&m->seen, sizeof *m->seen, cudaHostAllocPortable), "layer");
  if (!status) status = dt_cuda_check(dt_cuda_settle(), "layer");
  if (status) return status;
  m->memory_bytes = bytes;
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) *parts[i].pointer = (uint8_t *)m->memory + offsets[i];
  p->slot.error = &p->state->slot_error;
  return dt_cuda_moe_make_recorder(m);
}

/* The control window: slots by writer, counts of two epochs, arrivals of two epochs, rows' sources of two epochs. */
size_t dt_cuda_moe_counts_offset(const dt_moe_plan *p) {
  return (size_t)p->ranks * sizeof(dt_layer_slot);
}
size_t dt_cuda_moe_arrivals_offset(const dt_moe_plan *p) {
  const size_t counts = 2 * (size_t)p->ranks * (size_t)p->ranks * (size_t)p->experts * sizeof(int32_t);
  return (dt_cuda_moe_counts_offset(p) + counts + 127) / 128 * 128;
}

size_t dt_cuda_moe_sources_offset(const dt_moe_plan *p) {
  return (dt_cuda_moe_arrivals_offset(p) + 2 * (size_t)p->bands_max * sizeof(uint32_t) + 127) / 128 * 128;
}

dt_status dt_cuda_moe_make_windows(dt_cuda_moe *m) {
  const dt_cuda_moe_config *c = &m->config;
  const size_t row_bytes = 2 * (size_t)c->hidden;
  m->control_bytes = dt_cuda_moe_sources_offset(&m->plan);
  if (c->dedup) m->control_bytes += 2 * (size_t)m->plan.bands_max * DT_TILE_M * sizeof(uint32_t);
  dt_status status = dt_comm_alloc(c->comm, (size_t)m->plan.rows_max * row_bytes, &m->rows);
  if (!status) status = dt_comm_alloc(c->comm, (size_t)m->combine_rows * row_bytes, &m->buffer);
  if (!status && m->layer.staged_rows > 0)
    status = dt_comm_alloc(c->comm, (size_t)m->layer.staged_rows * row_bytes, &m->tokens);
  return status ? status : dt_comm_alloc(c->comm, m->control_bytes, &m->control);
}

void dt_cuda_moe_free_windows(dt_cuda_moe *m) {
  dt_comm_free(m->config.comm, m->control);
  if (m->tokens) dt_comm_free(m->config.comm, m->tokens);
  dt_comm_free(m->config.comm, m->buffer);
  dt_comm_free(m->config.comm, m->rows);
}

void dt_cuda_moe_free_memory(dt_cuda_moe *m) {
  dt_cuda_moe_free_recorder(m);
  cudaFree(m->memory);
  cudaFreeHost(m->seen);
}

size_t dt_cuda_moe_device_bytes(const dt_cuda_moe *m) {
  const size_t row_bytes = 2 * (size_t)m->config.hidden;
  const size_t rows = (size_t)m->plan.rows_max + (size_t)m->combine_rows + (size_t)m->layer.staged_rows;
  return m->memory_bytes + m->control_bytes + rows * row_bytes;
}
