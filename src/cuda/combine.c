/* Host side of the combine operator: checks, memory, windows, errors. */
#include <draintile/combine.h>

#include <stdlib.h>
#include <string.h>

#include "combine_handle.h"
#include "combine_reduce.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "fabric.h"
#include "tile_gemm.h"

#include <draintile/gemm.h>

static dt_status check_config(const dt_combine_config *c) {
  if (c == NULL || c->size != sizeof *c)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_combine_config_init; %zu expected", sizeof *c);
  if (c->comm == NULL || strcmp(dt_comm_fabric(c->comm), "cuda") != 0)
    return dt_fail(DT_ERR_ARGUMENT, "comm: %s; an endpoint of fabric cuda allowed",
                   c->comm ? dt_comm_fabric(c->comm) : "NULL");
  if (dt_comm_ranks(c->comm) > DT_COMBINE_RANKS)
    return dt_fail(DT_ERR_ARGUMENT, "comm: %d ranks; 1 to %d allowed", dt_comm_ranks(c->comm), DT_COMBINE_RANKS);
  if (c->experts_per_rank < 1 || c->experts_per_rank > DT_TILE_EXPERTS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; 1 to %d allowed", c->experts_per_rank, DT_TILE_EXPERTS_MAX);
  if (c->rows_max < 1 || c->rows_max > INT32_MAX / 2)
    return dt_fail(DT_ERR_ARGUMENT, "rows_max: %lld; 1 to %d allowed", (long long)c->rows_max, INT32_MAX / 2);
  if (c->combine_rows_max < 1 || c->combine_rows_max > INT32_MAX / 2)
    return dt_fail(DT_ERR_ARGUMENT, "combine_rows_max: %lld; 1 to %d allowed", (long long)c->combine_rows_max,
                   INT32_MAX / 2);
  if (c->consumers < 2 || c->consumers > 64 || c->consumers % 2 != 0)
    return dt_fail(DT_ERR_ARGUMENT, "consumers: %d; an even number from 2 to 64 allowed", c->consumers);
  if (c->segment_bands < 1) return dt_fail(DT_ERR_ARGUMENT, "segment_bands: %d; 1 or more allowed", c->segment_bands);
  if (c->layout != DT_LAYOUT_PACKED && c->layout != DT_LAYOUT_ALIGNED)
    return dt_fail(DT_ERR_ARGUMENT, "layout: %d; packed or aligned allowed", (int)c->layout);
  if (c->order < DT_ORDER_NATURAL || c->order > DT_ORDER_PACED)
    return dt_fail(DT_ERR_ARGUMENT, "order: %d; natural, remote-first or paced allowed", (int)c->order);
  if (c->launch < DT_COMBINE_LAUNCH_ONE || c->launch > DT_COMBINE_LAUNCH_TWO)
    return dt_fail(DT_ERR_ARGUMENT, "launch: %d; one or two allowed", (int)c->launch);
  if (c->entry < DT_COMBINE_ENTRY_BESIDE || c->entry > DT_COMBINE_ENTRY_BEFORE)
    return dt_fail(DT_ERR_ARGUMENT, "entry: %d; beside or before allowed", (int)c->entry);
  if (c->pacing < DT_COMBINE_PACING_AUTO || c->pacing > DT_COMBINE_PACING_OFF)
    return dt_fail(DT_ERR_ARGUMENT, "pacing: %d; auto, on or off allowed", (int)c->pacing);
  if (c->timestamps != 0 && c->timestamps != 1)
    return dt_fail(DT_ERR_ARGUMENT, "timestamps: %d; 0 or 1 allowed", c->timestamps);
  if (!(c->timeout_s >= 0 && c->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", c->timeout_s);
  return DT_OK; /* n, k, raster_bands and dtype: the GEMM says */
}

dt_status dt_combine_memory(void **pointer, size_t bytes, const char *what) {
  dt_status status = dt_cuda_check(cudaMalloc(pointer, bytes), what);
  return status ? status : dt_cuda_check(cudaMemset(*pointer, 0, bytes), what);
}

static dt_status make_memory(dt_combine *c) {
  const size_t rows = (size_t)c->config.rows_max, experts = (size_t)c->config.experts_per_rank,
               bands = (size_t)dt_combine_bands_max(&c->config);
  dt_combine_device_tables *t = &c->params.tables;
  size_t workspace = 0;
  dt_cuda_gemm gemm = dt_combine_gemm(c, 0);
  gemm.raster_bands = c->config.raster_bands;
  dt_status status = dt_cuda_gemm_workspace(&gemm, &workspace);
  const struct {
    void **pointer;
    size_t bytes;
    const char *what;
  } table[] = {{(void **)&c->staging, rows * (size_t)c->config.n * 2, "staging"},
               {&c->workspace, workspace, "workspace"},
               {&c->kept, workspace, "workspace"},
               {(void **)&c->state, sizeof *c->state, "state"},
               {(void **)&c->params.ready, bands * sizeof *c->params.ready, "counters"},
               {(void **)&t->sizes, sizeof *t->sizes, "sizes"},
               {(void **)&t->counts, experts * sizeof *t->counts, "counts"},
               {(void **)&t->active, experts * sizeof *t->active, "counts"},
               {(void **)&t->remote_rows, experts * sizeof *t->remote_rows, "counts"},
               {(void **)&t->band_rows, bands * sizeof *t->band_rows, "bands"},
               {(void **)&t->band_slot, bands * sizeof *t->band_slot, "bands"},
               {(void **)&t->staged, rows * sizeof *t->staged, "row targets"},
               {(void **)&t->direct, rows * sizeof *t->direct, "row targets"}};
  for (size_t i = 0; i < sizeof table / sizeof *table && !status; i++)
    status = dt_combine_memory(table[i].pointer, table[i].bytes, table[i].what);
  int least, greatest;
  if (!status) status = dt_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  if (!status)
    status = dt_cuda_check(cudaStreamCreateWithPriority(&c->side, cudaStreamNonBlocking, greatest), "stream");
  if (!status) status = dt_cuda_check(cudaEventCreateWithFlags(&c->entered, cudaEventDisableTiming), "event");
  if (!status) status = dt_cuda_check(cudaEventCreateWithFlags(&c->sent, cudaEventDisableTiming), "event");
  if (!status) status = dt_combine_make_recorder(c);
  if (!status && c->config.launch == DT_COMBINE_LAUNCH_TWO)
    status = dt_cuda_check(dt_combine_warm_launch(c->side), "consumers");
  return status ? status : dt_cuda_check(dt_cuda_settle(), "memory");
}

static void release_memory(dt_combine *c) {
  const dt_combine_device_tables *t = &c->params.tables;
  cudaSetDevice(c->device);
  if (c->side) cudaStreamDestroy(c->side);
  if (c->entered) cudaEventDestroy(c->entered);
  if (c->sent) cudaEventDestroy(c->sent);
  dt_combine_free_recorder(c);
  cudaFree(c->staging), cudaFree(c->workspace), cudaFree(c->kept), cudaFree(c->state), cudaFree(c->params.ready),
      cudaFree(c->plan_memory);
  cudaFree(t->sizes), cudaFree(t->counts), cudaFree(t->active), cudaFree(t->remote_rows), cudaFree(t->band_rows);
  cudaFree(t->band_slot), cudaFree(t->staged), cudaFree(t->direct), cudaFree(t->chunks);
}

static dt_status make_windows(dt_combine *c) {
  dt_comm *comm = c->config.comm;
  const int32_t ranks = dt_comm_ranks(comm);
  dt_status status = dt_comm_alloc(comm, (size_t)c->config.combine_rows_max * (size_t)c->config.n * 2, &c->buffer);
  if (!status) status = dt_comm_alloc(comm, (size_t)ranks * sizeof(dt_combine_slot), &c->control);
  return status;
}

static void fill_params(dt_combine *c) {
  dt_comm *comm = c->config.comm;
  dt_combine_params *p = &c->params;
  p->rank = dt_comm_rank(comm);
  p->ranks = dt_comm_ranks(comm);
  p->experts = c->config.experts_per_rank;
  p->meets = c->config.entry == DT_COMBINE_ENTRY_BEFORE;
  p->band_parts = 2 * (uint32_t)((c->config.n + DT_TILE_N - 1) / DT_TILE_N);
  p->row_bytes = 2 * c->config.n;
  p->state = c->state;
  p->gemm_error = &((const dt_tile_header *)c->workspace)->error;
  p->slots = dt_window_local(c->control);
  for (int32_t r = 0; r < p->ranks; r++) {
    p->peer_slot[r] = (dt_combine_slot *)c->control->pieces[r] + p->rank;
    p->buffers[r] = c->buffer->pieces[r];
    p->buffer_rows[r] = (int64_t)(dt_window_bytes(c->buffer, r) / (size_t)p->row_bytes);
  }
  p->staging = c->staging;
}

dt_status dt_combine_create(const dt_combine_config *config, dt_combine **combine) {
  dt_status status = check_config(config);
  if (status) return status;
  const dt_agree_field fields[] = {{"experts_per_rank", config->experts_per_rank}, {"n", config->n}, {"k", config->k}};
  status = dt_comm_agree(config->comm, fields, sizeof fields / sizeof *fields);
  if (status) return status;
  dt_combine *c = calloc(1, sizeof *c);
  if (!c) status = dt_fail(DT_ERR_MEMORY, "combine: %zu bytes", sizeof *c);
  if (c) {
    c->config = *config;
    c->params.timeout_us = (uint32_t)(1e6 * (config->timeout_s > 0 ? config->timeout_s : 10));
    c->device = dt_cuda_fabric_of(config->comm)->device;
    status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  }
  if (!status) status = dt_cuda_hopper(&c->sms);
  if (!status && config->sms != 0 && (config->sms < 4 || config->sms > c->sms))
    status = dt_fail(DT_ERR_ARGUMENT, "sms: %d; 4 to %d, or 0, allowed", config->sms, c->sms);
  if (!status && config->sms != 0) c->sms = config->sms;
  if (!status && config->consumers > c->sms - 2)
    status = dt_fail(DT_ERR_ARGUMENT, "consumers: %d; the GEMM needs 2 of %d", config->consumers, c->sms);
  if (!status) status = make_memory(c);
  if (status) { /* the peers wait in make_windows */
    dt_comm_abort(config->comm, status, dt_error_detail());
  } else {
    status = make_windows(c);
  }
  if (status) {
    if (c) release_memory(c);
    free(c);
    return status;
  }
  fill_params(c);
  *combine = c;
  return DT_OK;
}

void dt_combine_destroy(dt_combine *combine) {
  if (!combine) return;
  cudaSetDevice(combine->device);
  dt_cuda_settle();
  if (combine->matrix) dt_comm_free(combine->config.comm, combine->matrix);
  dt_comm_free(combine->config.comm, combine->control);
  dt_comm_free(combine->config.comm, combine->buffer);
  release_memory(combine);
  free(combine);
}

dt_status dt_combine_reduce(dt_combine *c, const float *weights, const int32_t *row_of_slot, int64_t tokens,
                            int32_t top_k, void *out, void *stream) {
  if (tokens < 0) return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 or more allowed", (long long)tokens);
  if (top_k < 1) return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; 1 or more allowed", top_k);
  if (tokens == 0) return DT_OK;
  if (weights == NULL) return dt_fail(DT_ERR_ARGUMENT, "weights: NULL; a device pointer allowed");
  if (row_of_slot == NULL) return dt_fail(DT_ERR_ARGUMENT, "row_of_slot: NULL; a device pointer allowed");
  if (out == NULL || (uintptr_t)out % 16 != 0)
    return dt_fail(DT_ERR_ARGUMENT, "out: %p; a device pointer aligned to 16 allowed", out);
  const dt_combine_reduction reduction = {.weights = weights,
                                          .row_of_slot = row_of_slot,
                                          .buffer = dt_window_local(c->buffer),
                                          .out = out,
                                          .tokens = tokens,
                                          .columns = c->config.n,
                                          .top_k = top_k};
  dt_status status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  return status ? status : dt_cuda_check(dt_combine_reduce_launch(&reduction, c->sms, stream), "reduction");
}

dt_status dt_combine_set_epoch(dt_combine *c, uint32_t epoch) {
  dt_combine_slot *slots = dt_window_local(c->control);
  cudaError_t error = cudaSetDevice(c->device);
  if (error == cudaSuccess) error = dt_cuda_write(&c->state->epoch, &epoch, sizeof epoch);
  if (error == cudaSuccess) error = dt_cuda_write(&c->state->opened, &epoch, sizeof epoch);
  for (int32_t r = 0; r < c->params.ranks && error == cudaSuccess; r++) {
    const dt_combine_slot slot = {.entered = epoch, .arrived = epoch};
    error = dt_cuda_write(&slots[r], &slot, sizeof slot);
  }
  return dt_cuda_check(error, "epoch");
}

void dt_combine_set_fault(dt_combine *c, dt_combine_fault fault) {
  c->params.fault = (int32_t)fault;
}

void dt_combine_set_form(dt_combine *c, dt_combine_launch launch, dt_combine_entry entry) {
  c->config.launch = launch;
  c->config.entry = entry;
  c->params.meets = entry == DT_COMBINE_ENTRY_BEFORE || c->params.own_counts != NULL;
}

static dt_status plan_failure(const dt_combine *c, uint32_t error) {
  switch (error) {
  case DT_DEVICE_PLAN_ERROR_COUNTS:
    return dt_fail(DT_ERR_INPUT, "rank %d, combine: counts: negative, or 2^31 rows or more", c->params.rank);
  case DT_DEVICE_PLAN_ERROR_CAPACITY:
    return dt_fail(DT_ERR_CAPACITY, "rank %d, combine: counts: more rows of local experts than rows_max, %lld",
                   c->params.rank, (long long)c->config.rows_max);
  default:
    return dt_fail(DT_ERR_INTERNAL, "rank %d, combine: plan: error %u", c->params.rank, error);
  }
}

dt_status dt_combine_check(dt_combine *c, void *stream) {
  dt_combine_state state;
  cudaError_t error = cudaMemcpyAsync(&state, c->state, sizeof state, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  dt_status status = dt_cuda_check(error, "combine");
  if (status) return status;
  const double limit_s = 1e-6 * c->params.timeout_us;
  switch (state.error) {
  case DT_COMBINE_ERROR_NONE:
  case DT_COMBINE_ERROR_GEMM:
    status = dt_cuda_gemm_check(c->workspace, stream);
    if (!status) status = dt_cuda_gemm_check(c->kept, stream);
    if (status || state.error == DT_COMBINE_ERROR_NONE) return status;
    return dt_fail(DT_ERR_INTERNAL, "rank %d, combine: the GEMM failed with %u before", c->params.rank, state.seen);
  case DT_COMBINE_ERROR_ENTRY:
  case DT_COMBINE_ERROR_ARRIVAL:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, combine: %s of rank %d: epoch %u expected, %u seen after %g s",
                   c->params.rank, state.error == DT_COMBINE_ERROR_ENTRY ? "entry" : "rows", state.index,
                   state.expected, state.seen, limit_s);
  case DT_COMBINE_ERROR_READY:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, combine: band %d: %u expected, %u seen after %g s", c->params.rank,
                   state.index, state.expected, state.seen, limit_s);
  case DT_COMBINE_ERROR_COPY:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, combine: a copy of consumer %d after %g s", c->params.rank, state.index,
                   limit_s);
  case DT_COMBINE_ERROR_PEER:
    return dt_fail(DT_ERR_PEER, "rank %d, combine: rank %d gave up", c->params.rank, state.index);
  case DT_COMBINE_ERROR_PLAN:
    return plan_failure(c, state.seen);
  case DT_COMBINE_ERROR_BUFFER:
    return dt_fail(DT_ERR_CAPACITY, "rank %d, combine: counts: %u rows of rank %d; its combine_rows_max is %u",
                   c->params.rank, state.seen, state.index, state.expected);
  default:
    return dt_fail(DT_ERR_INTERNAL, "rank %d, combine: error %u", c->params.rank, state.error);
  }
}

void *dt_combine_buffer(dt_combine *combine) {
  return dt_window_local(combine->buffer);
}
