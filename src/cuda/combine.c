/* Host side of the combine operator: windows, tables, launches. */
#include <draintile/combine.h>

#include <stdlib.h>
#include <string.h>

#include "combine_kernels.h"
#include "combine_tables.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "fabric.h"
#include "tile_gemm.h"

#include <draintile/gemm.h>

struct dt_combine {
  dt_combine_config config;
  int device, sms, has_counts;
  dt_window *buffer, *control;
  uint8_t *staging; /* [rows_max][n]: rows of other ranks; run_gemm: all */
  void *workspace;  /* the GEMM's */
  dt_combine_state *state;
  int32_t *counts, *active, *band_rows; /* device */
  uint32_t *ready;
  uint64_t *staged, *direct; /* row targets, [rows_max] */
  dt_combine_chunk *chunks;
  int32_t bands_max, chunks_max;
  cudaStream_t side; /* of the consumers */
  cudaEvent_t entered, sent;
  dt_combine_params params;
};

void dt_combine_config_init(dt_combine_config *config) {
  *config = (dt_combine_config){.size = sizeof *config, .consumers = 16, .segment_bands = 1};
}

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
  if (!(c->timeout_s >= 0 && c->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", c->timeout_s);
  return DT_OK; /* n, k and raster_bands: the GEMM says */
}

/* The GEMM of a mode, all but the operands. sms: 0 for all. */
static dt_cuda_gemm describe(const dt_combine *c, int sms) {
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.counts = c->active;
  gemm.experts = c->config.experts_per_rank;
  gemm.rows_max = c->config.rows_max;
  gemm.n = c->config.n;
  gemm.k = c->config.k;
  gemm.sms = sms;
  gemm.timeout_s = 1e-6 * c->params.timeout_us;
  gemm.out = c->staging;
  return gemm;
}

static dt_status device_memory(void **pointer, size_t bytes, const char *what) {
  dt_status status = dt_cuda_check(cudaMalloc(pointer, bytes), what);
  return status ? status : dt_cuda_check(cudaMemset(*pointer, 0, bytes), what);
}

static dt_status make_memory(dt_combine *c) {
  const size_t rows = (size_t)c->config.rows_max, experts = (size_t)c->config.experts_per_rank;
  c->bands_max = (int32_t)(rows / DT_TILE_M + experts);
  size_t workspace = 0;
  dt_cuda_gemm gemm = describe(c, 0);
  gemm.raster_bands = c->config.raster_bands;
  dt_status status = dt_cuda_gemm_workspace(&gemm, &workspace);
  const struct {
    void **pointer;
    size_t bytes;
    const char *what;
  } table[] = {{(void **)&c->staging, rows * (size_t)c->config.n * 2, "staging"},
               {&c->workspace, workspace, "workspace"},
               {(void **)&c->state, sizeof *c->state, "state"},
               {(void **)&c->counts, experts * sizeof *c->counts, "counts"},
               {(void **)&c->active, experts * sizeof *c->active, "counts"},
               {(void **)&c->band_rows, (size_t)c->bands_max * sizeof *c->band_rows, "bands"},
               {(void **)&c->ready, (size_t)c->bands_max * sizeof *c->ready, "counters"},
               {(void **)&c->staged, rows * sizeof *c->staged, "row targets"},
               {(void **)&c->direct, rows * sizeof *c->direct, "row targets"}};
  for (size_t i = 0; i < sizeof table / sizeof *table && !status; i++)
    status = device_memory(table[i].pointer, table[i].bytes, table[i].what);
  int least, greatest;
  if (!status) status = dt_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "stream priorities");
  if (!status)
    status = dt_cuda_check(cudaStreamCreateWithPriority(&c->side, cudaStreamNonBlocking, greatest), "stream");
  if (!status) status = dt_cuda_check(cudaEventCreateWithFlags(&c->entered, cudaEventDisableTiming), "event");
  if (!status) status = dt_cuda_check(cudaEventCreateWithFlags(&c->sent, cudaEventDisableTiming), "event");
  return status ? status : dt_cuda_check(cudaDeviceSynchronize(), "memory");
}

static void release_memory(dt_combine *c) {
  cudaSetDevice(c->device);
  if (c->side) cudaStreamDestroy(c->side);
  if (c->entered) cudaEventDestroy(c->entered);
  if (c->sent) cudaEventDestroy(c->sent);
  cudaFree(c->staging), cudaFree(c->workspace), cudaFree(c->state), cudaFree(c->counts), cudaFree(c->active);
  cudaFree(c->band_rows), cudaFree(c->ready), cudaFree(c->staged), cudaFree(c->direct), cudaFree(c->chunks);
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
  p->band_parts = 2 * (uint32_t)((c->config.n + DT_TILE_N - 1) / DT_TILE_N);
  p->row_bytes = 2 * c->config.n;
  p->state = c->state;
  p->gemm_error = &((const dt_tile_header *)c->workspace)->error;
  p->slots = dt_window_local(c->control);
  for (int32_t r = 0; r < p->ranks; r++) {
    p->peer_slot[r] = (dt_combine_slot *)c->control->pieces[r] + p->rank;
    p->buffers[r] = c->buffer->pieces[r];
  }
  p->staging = c->staging;
  p->counts = c->counts;
  p->active = c->active;
  p->ready = c->ready;
  p->band_rows = c->band_rows;
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
  if (!status)
    status = dt_cuda_check(cudaDeviceGetAttribute(&c->sms, cudaDevAttrMultiProcessorCount, c->device), "device");
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
  cudaDeviceSynchronize();
  dt_comm_free(combine->config.comm, combine->control);
  dt_comm_free(combine->config.comm, combine->buffer);
  release_memory(combine);
  free(combine);
}

/* Rows that fit here and at every peer. */
static dt_status check_rows(const dt_combine *c, const dt_plan *plan, const int32_t *counts) {
  const int32_t ranks = c->params.ranks, experts = ranks * c->config.experts_per_rank;
  if (plan->rows > c->config.rows_max)
    return dt_fail(DT_ERR_CAPACITY, "counts: %lld rows of local experts; rows_max is %lld", (long long)plan->rows,
                   (long long)c->config.rows_max);
  for (int32_t r = 0; r < ranks; r++) {
    int64_t rows = 0;
    for (int32_t g = 0; g < experts; g++) rows += counts[(int64_t)r * experts + g];
    const int64_t most = (int64_t)(dt_window_bytes(c->buffer, r) / (size_t)c->params.row_bytes);
    if (rows > most)
      return dt_fail(DT_ERR_CAPACITY, "counts: %lld rows of rank %d; its combine_rows_max is %lld", (long long)rows, r,
                     (long long)most);
  }
  return DT_OK;
}

dt_status dt_combine_set_counts(dt_combine *c, const int32_t *counts) {
  c->has_counts = 0;
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = c->params.ranks;
  config.rank = c->params.rank;
  config.experts_per_rank = c->config.experts_per_rank;
  config.tile_m = DT_TILE_M;
  config.layout = DT_LAYOUT_PACKED;
  config.order = DT_ORDER_NATURAL; /* the order in which the GEMM's table has its units */
  config.segment_bands = c->config.segment_bands;
  dt_plan *plan = NULL;
  dt_combine_tables tables = {0};
  dt_status status = dt_plan_create(&config, counts, &plan);
  if (!status) status = check_rows(c, plan, counts);
  if (!status) status = dt_combine_tables_create(plan, c->params.row_bytes, &tables);
  if (!status) status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  if (!status && tables.chunk_count > c->chunks_max) {
    cudaFree(c->chunks);
    c->chunks = NULL;
    c->chunks_max = 0;
    status = device_memory((void **)&c->chunks, (size_t)tables.chunk_count * sizeof *c->chunks, "chunks");
    if (!status) c->chunks_max = tables.chunk_count;
  }
  if (!status) {
    const struct {
      void *to;
      const void *from;
      size_t bytes;
    } copies[] = {{c->counts, tables.expert_rows, (size_t)config.experts_per_rank * sizeof *tables.expert_rows},
                  {c->active, tables.expert_rows, (size_t)config.experts_per_rank * sizeof *tables.expert_rows},
                  {c->band_rows, tables.band_rows, (size_t)plan->band_count * sizeof *tables.band_rows},
                  {c->staged, tables.staged, (size_t)plan->rows * sizeof *tables.staged},
                  {c->direct, tables.direct, (size_t)plan->rows * sizeof *tables.direct},
                  {c->chunks, tables.chunks, (size_t)tables.chunk_count * sizeof *tables.chunks}};
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < sizeof copies / sizeof *copies && error == cudaSuccess; i++)
      if (copies[i].bytes) error = cudaMemcpy(copies[i].to, copies[i].from, copies[i].bytes, cudaMemcpyHostToDevice);
    status = dt_cuda_check(error, "tables");
  }
  if (!status) {
    c->params.bands = plan->band_count;
    c->params.chunks = tables.chunk_count;
    c->params.chunks_of = c->chunks;
    c->has_counts = 1;
  }
  dt_combine_tables_destroy(&tables);
  dt_plan_destroy(plan);
  return status;
}

static int32_t signal_raster(const dt_combine *c) {
  return c->config.raster_bands ? c->config.raster_bands : 4;
}

/* Rows of this rank's experts to their places; `direct`: also those of others. */
static dt_status queue_gemm(dt_combine *c, int sms, int direct, uint32_t *ready, const void *a, const void *b,
                            cudaStream_t stream) {
  dt_cuda_gemm gemm = describe(c, sms);
  gemm.a = a;
  gemm.b = b;
  gemm.row_target = direct ? c->direct : c->staged;
  gemm.owners = direct ? c->params.ranks : 2;
  if (direct) {
    for (int32_t r = 0; r < c->params.ranks; r++) {
      gemm.owner_out[r] = c->params.buffers[r];
      gemm.owner_rows[r] = (int64_t)(dt_window_bytes(c->buffer, r) / (size_t)c->params.row_bytes);
    }
  } else {
    gemm.owner_out[DT_COMBINE_OWN] = c->params.buffers[c->params.rank];
    gemm.owner_rows[DT_COMBINE_OWN] = c->config.combine_rows_max;
    gemm.owner_out[DT_COMBINE_STAGING] = c->staging;
    gemm.owner_rows[DT_COMBINE_STAGING] = c->config.rows_max;
  }
  gemm.ready = ready;
  if (ready) gemm.raster_bands = signal_raster(c);
  return dt_cuda_grouped_gemm(&gemm, c->workspace, stream);
}

static dt_status run_signal(dt_combine *c, const void *a, const void *b, cudaStream_t stream) {
  dt_status status = dt_cuda_check(cudaEventRecord(c->entered, stream), "event");
  if (!status) status = dt_cuda_check(cudaStreamWaitEvent(c->side, c->entered, 0), "event");
  if (!status) status = dt_cuda_check(dt_combine_send_launch(&c->params, c->config.consumers, 1, c->side), "consumers");
  if (!status) status = dt_cuda_check(cudaEventRecord(c->sent, c->side), "event");
  if (!status) status = queue_gemm(c, c->sms - c->config.consumers, 0, c->ready, a, b, stream);
  return status ? status : dt_cuda_check(cudaStreamWaitEvent(stream, c->sent, 0), "event");
}

dt_status dt_combine_run(dt_combine *c, dt_combine_mode mode, const void *a, const void *b, void *stream) {
  if (!c->has_counts) return dt_fail(DT_ERR_ARGUMENT, "counts: not set; dt_combine_set_counts comes first");
  if (mode < DT_COMBINE_BULK || mode > DT_COMBINE_DIRECT)
    return dt_fail(DT_ERR_ARGUMENT, "mode: %d; bulk, signal or direct allowed", (int)mode);
  dt_status status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  if (!status) status = dt_cuda_check(dt_combine_enter_launch(&c->params, stream), "entry");
  if (status) return status;
  if (mode == DT_COMBINE_SIGNAL) return run_signal(c, a, b, stream);
  status = queue_gemm(c, 0, mode == DT_COMBINE_DIRECT, NULL, a, b, stream);
  if (status) return status;
  if (mode == DT_COMBINE_DIRECT) return dt_cuda_check(dt_combine_leave_launch(&c->params, stream), "exit");
  return dt_cuda_check(dt_combine_send_launch(&c->params, c->sms / 2 * 2, 0, stream), "put");
}

dt_status dt_combine_run_gemm(dt_combine *c, int reserve, const void *a, const void *b, void *stream) {
  if (!c->has_counts) return dt_fail(DT_ERR_ARGUMENT, "counts: not set; dt_combine_set_counts comes first");
  dt_cuda_gemm gemm = describe(c, reserve ? c->sms - c->config.consumers : 0);
  if (reserve) gemm.raster_bands = signal_raster(c);
  gemm.a = a;
  gemm.b = b;
  return dt_cuda_grouped_gemm(&gemm, c->workspace, stream);
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
  case DT_COMBINE_ERROR_PEER:
    return dt_fail(DT_ERR_PEER, "rank %d, combine: rank %d gave up", c->params.rank, state.index);
  default:
    return dt_fail(DT_ERR_INTERNAL, "rank %d, combine: error %u", c->params.rank, state.error);
  }
}

void *dt_combine_buffer(dt_combine *combine) {
  return dt_window_local(combine->buffer);
}
