/* Where a combine's plan comes from: counts of the host, or counts on the device that the ranks exchange in each run.
 */
#include <stdlib.h>
#include <string.h>

#include "combine_handle.h"
#include "combine_tables.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "tile_gemm.h"

int32_t dt_combine_bands_max(const dt_combine_config *config) {
  return (int32_t)(config->rows_max / DT_TILE_M + config->experts_per_rank);
}

int32_t dt_combine_raster(const dt_combine_config *config) {
  return config->raster_bands ? config->raster_bands : 4;
}

static dt_plan_config plan_config(const dt_combine *c) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = c->params.ranks;
  config.rank = c->params.rank;
  config.experts_per_rank = c->config.experts_per_rank;
  config.tile_m = DT_TILE_M;
  config.layout = c->config.layout;
  config.order = c->config.order;
  config.segment_bands = c->config.segment_bands;
  config.columns_1 = config.columns_2 = config.dispatch = 0;
  return config;
}

/* Room for the chunks of `chunks` more than there is. */
static dt_status reserve_chunks(dt_combine *c, int64_t chunks) {
  if (chunks <= c->chunks_max) return DT_OK;
  if (chunks > INT32_MAX) return dt_fail(DT_ERR_CAPACITY, "rows_max: %lld chunks to put", (long long)chunks);
  cudaFree(c->params.tables.chunks);
  c->params.tables.chunks = NULL;
  c->chunks_max = 0;
  dt_status status =
      dt_combine_memory((void **)&c->params.tables.chunks, (size_t)chunks * sizeof(dt_combine_chunk), "chunks");
  if (!status) c->chunks_max = (int32_t)chunks;
  return status;
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
    if (rows > c->params.buffer_rows[r])
      return dt_fail(DT_ERR_CAPACITY, "counts: %lld rows of rank %d; its combine_rows_max is %lld", (long long)rows, r,
                     (long long)c->params.buffer_rows[r]);
  }
  return DT_OK;
}

static dt_status copy_tables(dt_combine *c, const dt_plan *plan, const dt_combine_tables *tables) {
  const dt_combine_device_tables *t = &c->params.tables;
  const dt_combine_sizes sizes = {.bands = plan->band_count, .chunks = tables->chunk_count};
  const size_t experts = (size_t)c->config.experts_per_rank, bands = (size_t)plan->band_count,
               rows = (size_t)plan->rows;
  const struct {
    void *to;
    const void *from;
    size_t bytes;
  } copies[] = {{t->sizes, &sizes, sizeof sizes},
                {t->counts, tables->expert_rows, experts * sizeof *t->counts},
                {t->active, tables->expert_rows, experts * sizeof *t->active},
                {t->remote_rows, tables->remote_rows, experts * sizeof *t->remote_rows},
                {t->band_rows, tables->band_rows, bands * sizeof *t->band_rows},
                {t->band_slot, tables->band_slot, bands * sizeof *t->band_slot},
                {t->staged, tables->staged, rows * sizeof *t->staged},
                {t->direct, tables->direct, rows * sizeof *t->direct},
                {t->chunks, tables->chunks, (size_t)tables->chunk_count * sizeof *t->chunks}};
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < sizeof copies / sizeof *copies && error == cudaSuccess; i++)
    if (copies[i].bytes) error = cudaMemcpy(copies[i].to, copies[i].from, copies[i].bytes, cudaMemcpyHostToDevice);
  /* The next run clears only what this plan counts. */
  if (error == cudaSuccess)
    error = cudaMemset(c->params.ready, 0, (size_t)dt_combine_bands_max(&c->config) * sizeof *c->params.ready);
  if (error == cudaSuccess) error = dt_cuda_settle();
  return dt_cuda_check(error, "tables");
}

dt_status dt_combine_set_counts(dt_combine *c, const int32_t *counts) {
  c->has_counts = 0;
  c->params.own_counts = NULL;
  c->params.meets = c->config.entry == DT_COMBINE_ENTRY_BEFORE;
  const dt_plan_config config = plan_config(c);
  dt_plan *plan = NULL;
  dt_combine_tables tables = {0};
  dt_status status = dt_plan_create(&config, counts, &plan);
  if (!status) status = check_rows(c, plan, counts);
  if (!status) status = dt_combine_tables_create(plan, c->params.row_bytes, &tables);
  if (!status) status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  if (!status) status = reserve_chunks(c, tables.chunk_count);
  if (!status) status = copy_tables(c, plan, &tables);
  if (!status) status = dt_combine_keep_table(c, &tables);
  if (!status) c->rows = plan->rows;
  if (!status) c->has_counts = 1;
  dt_combine_tables_destroy(&tables);
  dt_plan_destroy(plan);
  return status;
}

/* One block of memory for the arrays, each 256-byte aligned. */
static dt_status plan_memory(dt_combine *c, size_t workspace) {
  dt_device_plan *p = &c->plan;
  dt_build_arrays *a = &p->arrays;
  const dt_plan_capacity *n = &p->capacity;
  const struct {
    void **pointer;
    size_t bytes;
  } pieces[] = {{(void **)&a->groups, (size_t)n->groups * sizeof *a->groups},
                {(void **)&a->bands, (size_t)n->bands * sizeof *a->bands},
                {(void **)&a->parts, (size_t)n->parts * sizeof *a->parts},
                {(void **)&a->segments, (size_t)n->segments * sizeof *a->segments},
                {(void **)&a->band_order, (size_t)n->bands * sizeof *a->band_order},
                {(void **)&a->segment_order, (size_t)n->segments * sizeof *a->segment_order},
                {(void **)&p->sizes, sizeof *p->sizes},
                {(void **)&p->error, sizeof *p->error},
                {(void **)&p->workspace, workspace}};
  enum { PIECES = sizeof pieces / sizeof *pieces };
  size_t total = 0, offset[PIECES];
  for (size_t i = 0; i < PIECES; i++) {
    offset[i] = total;
    total += (pieces[i].bytes + 255) / 256 * 256;
  }
  dt_status status = dt_combine_memory(&c->plan_memory, total, "plan");
  for (size_t i = 0; i < PIECES && !status; i++)
    *pieces[i].pointer = pieces[i].bytes ? (uint8_t *)c->plan_memory + offset[i] : NULL;
  return status;
}

static dt_status prepare_plan(dt_combine *c) {
  size_t workspace = 0;
  memset(&c->plan, 0, sizeof c->plan);
  c->plan.config = plan_config(c);
  c->plan.capacity = dt_plan_capacity_of(&c->plan.config, c->config.rows_max, 0);
  c->plan.capacity.rows = c->config.rows_max; /* padding included */
  c->plan.counts = dt_window_local(c->matrix);
  dt_status status = dt_device_plan_prepare(&c->plan, &workspace);
  if (!status) status = plan_memory(c, workspace);
  if (!status)
    status =
        reserve_chunks(c, c->plan.capacity.segments + c->config.rows_max / dt_combine_chunk_rows(c->params.row_bytes));
  return status ? status : dt_cuda_check(dt_cuda_settle(), "plan");
}

dt_status dt_combine_follow_counts(dt_combine *c, const int32_t *counts) {
  dt_comm *comm = c->config.comm;
  const int32_t ranks = c->params.ranks, width = ranks * c->config.experts_per_rank;
  dt_status status = DT_OK;
  if (counts == NULL) status = dt_fail(DT_ERR_ARGUMENT, "counts: NULL; memory of the device allowed");
  c->has_counts = 0;
  if (!status) status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  if (!status && c->matrix == NULL) {
    status = dt_comm_alloc(comm, (size_t)ranks * (size_t)width * sizeof *counts, &c->matrix);
    if (!status) status = prepare_plan(c);
  }
  if (status) {
    dt_comm_abort(comm, status, dt_error_detail()); /* the peers wait below */
    return status;
  }
  for (int32_t r = 0; r < ranks; r++) c->params.matrix[r] = (int32_t *)(void *)c->matrix->pieces[r];
  status = dt_comm_barrier(comm, "counts");
  if (status) return status;
  c->params.own_counts = counts;
  c->params.meets = 1; /* the plan needs every rank's */
  c->rows = c->config.rows_max;
  c->has_counts = 1;
  return DT_OK;
}

dt_status dt_combine_queue_plan(dt_combine *c, dt_combine_mode mode, cudaStream_t stream) {
  enum { FEW = 2, MOST = 32, BANDS_EACH = 16 };
  dt_status status = dt_device_plan_launch(&c->plan, NULL, 1, stream);
  if (status) return status;
  const dt_combine_planned planned = {.params = c->params,
                                      .arrays = c->plan.arrays,
                                      .sizes = c->plan.sizes,
                                      .error = c->plan.error,
                                      .layout = (int32_t)c->config.layout,
                                      .chunk_rows = dt_combine_chunk_rows(c->params.row_bytes),
                                      .direct = mode == DT_COMBINE_DIRECT};
  const int64_t blocks = FEW + (c->plan.capacity.bands + BANDS_EACH - 1) / BANDS_EACH;
  const int most = c->sms < MOST ? c->sms : MOST;
  const int ctas = (int)(blocks < most ? blocks : most);
  return dt_cuda_check(dt_combine_tables_launch(&planned, ctas < FEW + 1 ? FEW + 1 : ctas, stream), "tables");
}
