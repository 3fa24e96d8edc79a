/* Host side of the grouped GEMM: checks, tensor maps, launches. */
#include <draintile/gemm.h>

#include <string.h>

#include "core/error.h"
#include "cuda/driver.h"
#include "cuda/gemm_prepare.h"
#include "cuda/tensor_map.h"
#include "cuda/tile_table.h"

static dt_status check_shape(const dt_cuda_gemm *gemm) {
  if (gemm == NULL || gemm->size != sizeof *gemm)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_cuda_gemm_init; %zu expected", sizeof *gemm);
  if (gemm->experts < 1 || gemm->experts > DT_TILE_EXPERTS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "experts: %d; 1 to %d allowed", gemm->experts, DT_TILE_EXPERTS_MAX);
  if (gemm->rows_max < 0 || gemm->rows_max > INT32_MAX / 2)
    return dt_fail(DT_ERR_ARGUMENT, "rows_max: %lld; 0 to %d allowed", (long long)gemm->rows_max, INT32_MAX / 2);
  if (gemm->n < 8 || gemm->n % 8 != 0 || gemm->n > 1 << 22)
    return dt_fail(DT_ERR_ARGUMENT, "n: %lld; a multiple of 8 up to 2^22 allowed", (long long)gemm->n);
  if (gemm->k < 8 || gemm->k % 8 != 0 || gemm->k > 1 << 30)
    return dt_fail(DT_ERR_ARGUMENT, "k: %lld; a multiple of 8 up to 2^30 allowed", (long long)gemm->k);
  if (gemm->raster_bands < 0 || gemm->raster_bands % 2 != 0 || gemm->raster_bands > 1 << 16)
    return dt_fail(DT_ERR_ARGUMENT, "raster_bands: %d; an even number up to 65536, or 0, allowed", gemm->raster_bands);
  if (gemm->paced_units < 0 || gemm->paced_units > 1 << 10)
    return dt_fail(DT_ERR_ARGUMENT, "paced_units: %d; 0 to 1024 allowed", gemm->paced_units);
  if (gemm->link_k < 0) return dt_fail(DT_ERR_ARGUMENT, "link_k: %d; 0 or more allowed", gemm->link_k);
  if (gemm->order < DT_ORDER_NATURAL || gemm->order > DT_ORDER_PACED)
    return dt_fail(DT_ERR_ARGUMENT, "order: %d; natural, remote-first or paced allowed", (int)gemm->order);
  if (gemm->dtype != DT_DTYPE_BF16)
    return dt_fail(DT_ERR_ARGUMENT, "dtype: %s; bf16 allowed", dt_dtype_name(gemm->dtype));
  if (!(gemm->timeout_s >= 0 && gemm->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", gemm->timeout_s);
  if (gemm->row_target != NULL && (gemm->owners < 1 || gemm->owners > DT_CUDA_OWNERS_MAX))
    return dt_fail(DT_ERR_ARGUMENT, "owners: %d; 1 to %d allowed", gemm->owners, DT_CUDA_OWNERS_MAX);
  for (int32_t i = 0; gemm->row_target != NULL && i < gemm->owners; i++)
    if (gemm->owner_rows[i] < 0 || gemm->owner_rows[i] > INT32_MAX / 2)
      return dt_fail(DT_ERR_ARGUMENT, "owner_rows[%d]: %lld; 0 to %d allowed", i, (long long)gemm->owner_rows[i],
                     INT32_MAX / 2);
  return DT_OK;
}

static int32_t column_tiles(const dt_cuda_gemm *gemm) {
  return (int32_t)((gemm->n + DT_TILE_N - 1) / DT_TILE_N);
}

/* Bands if every expert's last is short, each at every pair of columns; the table may hold CUT_MORE more. */
enum { CLUSTERS_MAX = 1024, CUT_MORE = 2 * CLUSTERS_MAX };
static int64_t tasks_max(const dt_cuda_gemm *gemm) {
  int64_t bands = gemm->rows_max / DT_TILE_M + (gemm->rows_max < gemm->experts ? gemm->rows_max : gemm->experts);
  return bands * ((column_tiles(gemm) + 1) / 2);
}

dt_status dt_cuda_gemm_workspace(const dt_cuda_gemm *gemm, size_t *bytes) {
  dt_status status = check_shape(gemm);
  if (status != DT_OK) return status;
  *bytes = DT_TILE_TABLE_OFFSET + (size_t)(tasks_max(gemm) + CUT_MORE) * sizeof(dt_tile_task);
  return DT_OK;
}

static dt_status check_pointers(const dt_cuda_gemm *gemm, const void *workspace) {
  const struct {
    const char *name;
    const void *pointer;
    uintptr_t alignment;
    int optional;
  } fields[] = {{"a", gemm->a, 16, 0},
                {"b", gemm->b, 16, 0},
                {"out", gemm->out, 16, gemm->row_target != NULL},
                {"counts", gemm->counts, 4, 0},
                {"remote_rows", gemm->remote_rows, 4, gemm->order == DT_ORDER_NATURAL},
                {"row_target", gemm->row_target, 8, 1},
                {"ready", gemm->ready, 4, 1},
                {"workspace", workspace, DT_TILE_TABLE_OFFSET, 0}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if ((fields[i].pointer == NULL && !fields[i].optional) || (uintptr_t)fields[i].pointer % fields[i].alignment != 0)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p; a device pointer aligned to %zu allowed", fields[i].name,
                     fields[i].pointer, (size_t)fields[i].alignment);
  for (int32_t i = 0; gemm->row_target != NULL && i < gemm->owners; i++)
    if ((gemm->owner_out[i] == NULL && gemm->owner_rows[i] > 0) || (uintptr_t)gemm->owner_out[i] % 16 != 0)
      return dt_fail(DT_ERR_ARGUMENT, "owner_out[%d]: %p; a device pointer aligned to 16 allowed", i,
                     gemm->owner_out[i]);
  return DT_OK;
}

static dt_status encode_maps(const dt_cuda_gemm *gemm, dt_tile_gemm *params) {
  const int64_t n = gemm->n, k = gemm->k;
  const dt_tensor a = dt_tensor_ragged("a", gemm->a, gemm->rows_max, k, 64);
  const dt_tensor b = dt_tensor_experts("b", gemm->b, gemm->experts, n, k, 128);
  dt_status status = dt_tensor_encode(&a, &params->a);
  if (status == DT_OK) status = dt_tensor_encode(&b, &params->b);
  const int32_t owners = gemm->row_target ? gemm->owners : 1;
  for (int32_t i = 0; status == DT_OK && i < owners; i++) {
    const void *out = gemm->row_target ? gemm->owner_out[i] : gemm->out;
    const int64_t rows = gemm->row_target ? gemm->owner_rows[i] : gemm->rows_max;
    if (rows == 0) continue;
    const dt_tensor view = dt_tensor_ragged("out", out, rows, n, 16);
    params->owner_rows[i] = (uint8_t *)(uintptr_t)out;
    status = dt_tensor_encode(&view, &params->owners[i]);
  }
  return status;
}

/* Whether experts may be mixed: nobody waits for bands or sees them arrive. They are sorted in passing, each compared
 * with all others. */
enum { MIXED_MAX = 512 };
static int may_mix(const dt_cuda_gemm *gemm) {
  return gemm->order == DT_ORDER_NATURAL && gemm->ready == NULL && gemm->row_target == NULL &&
         gemm->experts <= MIXED_MAX;
}

/* Whether tasks may be turned: as for mixing, and all rows go to `out` through the copy engine. The table's kernel
 * turns those that gain. Where experts have many rows few do, where K is small little is gained, and the kernel that
 * can is 0.3 to 2 % slower when none is. */
enum { TURNED_MEAN_ROWS = 512, TURNED_K_MIN = 768 };
static int may_turn(const dt_cuda_gemm *gemm) {
  return may_mix(gemm) && gemm->tensor_stores && gemm->rows_max > DT_TILE_M && gemm->k >= TURNED_K_MIN &&
         gemm->rows_max <= (int64_t)gemm->experts * TURNED_MEAN_ROWS;
}

/* Views for turned tasks: of an output's rows, of A. */
static dt_status encode_turned_rows(const dt_cuda_gemm *gemm, const void *out, int64_t rows, CUtensorMap *map) {
  dt_tensor view = dt_tensor_ragged("out", out, rows, gemm->n, 64);
  view.box_columns = 16;
  return dt_tensor_encode(&view, map);
}
static dt_status encode_turned_views(const dt_cuda_gemm *gemm, CUtensorMap *views) {
  dt_status status = DT_OK;
  for (uint32_t rows = DT_TURNED_MIN; status == DT_OK && rows <= DT_TURNED_MAX; rows += 16) {
    const dt_tensor a = dt_tensor_experts("a", gemm->a, 1, gemm->rows_max, gemm->k, rows / 2);
    status = dt_tensor_encode(&a, &views[(rows - DT_TURNED_MIN) / 16]);
  }
  return status;
}
static dt_status encode_turned(const dt_cuda_gemm *gemm, dt_tile_gemm *params) {
  const dt_status status = encode_turned_rows(gemm, gemm->out, gemm->rows_max, &params->owners[DT_TURNED_OUT]);
  return status ? status : encode_turned_views(gemm, &params->owners[DT_TURNED_VIEWS]);
}

/* Clusters that the kernel is launched with. */
static dt_status count_clusters(const dt_cuda_gemm *gemm, int *clusters) {
  int sms = 0;
  const dt_status status = dt_cuda_hopper(&sms);
  if (status != DT_OK) return status;
  if (gemm->sms != 0 && (gemm->sms < DT_TILE_CLUSTER || gemm->sms > sms))
    return dt_fail(DT_ERR_ARGUMENT, "sms: %d; %d to %d, or 0, allowed", gemm->sms, DT_TILE_CLUSTER, sms);
  *clusters = (gemm->sms ? gemm->sms : sms) / DT_TILE_CLUSTER;
  if (*clusters > CLUSTERS_MAX) *clusters = CLUSTERS_MAX;
  return DT_OK;
}

/* split: nobody waits for bands either. */
static dt_status make_table(const dt_cuda_gemm *gemm, int turns, int split, void *workspace, void *stream) {
  int clusters;
  const dt_status status = count_clusters(gemm, &clusters);
  if (status != DT_OK) return status;
  const dt_tile_table table = {.header = workspace,
                               .tasks = (dt_tile_task *)((uint8_t *)workspace + DT_TILE_TABLE_OFFSET),
                               .counts = gemm->counts,
                               .experts = gemm->experts,
                               .rows_capacity = (int32_t)gemm->rows_max,
                               .column_tiles = column_tiles(gemm),
                               .raster_bands = gemm->raster_bands ? gemm->raster_bands : 16,
                               .clusters = clusters,
                               .whole_columns = gemm->n % DT_TILE_N == 0,
                               .mixes = split || may_mix(gemm),
                               .turns = split || turns,
                               .split = split,
                               .k = (int32_t)gemm->k,
                               .link_k = gemm->remote_rows ? gemm->link_k : 0};
  const dt_tile_order order = {
      .order = (int32_t)gemm->order, .remote_rows = gemm->remote_rows, .paced_units = gemm->paced_units};
  return dt_cuda_check(dt_tile_ordered_table_launch(&table, &order, tasks_max(gemm), stream), "task table");
}

static dt_status describe(const dt_cuda_gemm *gemm, int turns, void *workspace, dt_tile_gemm *prepared, int *ctas) {
  int clusters;
  dt_status status = check_shape(gemm);
  if (status == DT_OK) status = check_pointers(gemm, workspace);
  if (status == DT_OK) status = count_clusters(gemm, &clusters);
  if (status != DT_OK) return status;
  dt_tile_gemm params;
  memset(&params, 0, sizeof params);
  status = encode_maps(gemm, &params);
  if (status == DT_OK && turns) status = encode_turned(gemm, &params);
  if (status != DT_OK) return status;
  params.header = workspace;
  params.tasks = (const dt_tile_task *)((const uint8_t *)workspace + DT_TILE_TABLE_OFFSET);
  params.row_target = gemm->row_target;
  params.owners_count = gemm->row_target ? gemm->owners : 1;
  params.row_bytes = 2 * gemm->n;
  params.ready = gemm->ready;
  params.timeout_us = (uint32_t)(1e6 * (gemm->timeout_s > 0 ? gemm->timeout_s : 10));
  params.columns = (int32_t)gemm->n;
  params.k_blocks = (int32_t)((gemm->k + DT_TILE_K - 1) / DT_TILE_K);
  params.tensor_stores = gemm->tensor_stores;
  *prepared = params;
  *ctas = DT_TILE_CLUSTER * clusters;
  return DT_OK;
}

static dt_status prepare(const dt_cuda_gemm *gemm, int turns, void *workspace, void *stream, dt_tile_gemm *prepared,
                         int *ctas) {
  dt_status status = check_shape(gemm);
  *ctas = 0;
  if (status != DT_OK || gemm->rows_max == 0) return status;
  status = describe(gemm, turns, workspace, prepared, ctas);
  return status != DT_OK ? status : make_table(gemm, turns, 0, workspace, stream);
}

dt_status dt_gemm_prepare(const dt_cuda_gemm *gemm, void *workspace, void *stream, dt_tile_gemm *prepared, int *ctas) {
  return prepare(gemm, 0, workspace, stream, prepared, ctas);
}

dt_status dt_gemm_table(const dt_cuda_gemm *gemm, int split, void *workspace, void *stream) {
  return make_table(gemm, 0, split, workspace, stream);
}

dt_status dt_gemm_describe(const dt_cuda_gemm *gemm, void *workspace, dt_tile_gemm *prepared, int *ctas) {
  return describe(gemm, 0, workspace, prepared, ctas);
}

int dt_gemm_may_split(const dt_cuda_gemm *gemm, const int32_t *rows) {
  enum { COLUMNS_MAX = 1 << 20 /* as dt_shape_split holds them */ };
  int64_t all = 0;
  int any = 0;
  if (!gemm->tensor_stores || gemm->n > COLUMNS_MAX || gemm->k < TURNED_K_MIN || gemm->experts > MIXED_MAX) return 0;
  for (int32_t e = 0; e < gemm->experts; e++) {
    any |= dt_may_turn_split(rows[e]);
    all += rows[e];
  }
  return any && all <= (int64_t)gemm->experts * TURNED_MEAN_ROWS;
}

dt_status dt_gemm_describe_split(const dt_cuda_gemm *gemm, void *workspace, dt_tile_split *prepared, int *ctas) {
  dt_tile_gemm *params = &prepared->combine.gemm;
  dt_status status = describe(gemm, 0, workspace, params, ctas);
  for (int32_t i = 0; i < gemm->owners && !status; i++)
    if (gemm->owner_rows[i] > 0)
      status = encode_turned_rows(gemm, gemm->owner_out[i], gemm->owner_rows[i], &params->owners[DT_SPLIT_OUT + i]);
  return status ? status : encode_turned_views(gemm, prepared->views);
}

dt_status dt_cuda_grouped_gemm(const dt_cuda_gemm *gemm, void *workspace, void *stream) {
  dt_tile_gemm params;
  int ctas;
  const int turns = gemm != NULL && may_turn(gemm);
  dt_status status = prepare(gemm, turns, workspace, stream, &params, &ctas);
  if (status != DT_OK || ctas == 0) return status;
  const cudaError_t error =
      turns ? dt_tile_turned_launch(&params, ctas, stream) : dt_tile_gemm_launch(&params, ctas, stream);
  return dt_cuda_check(error, "tile kernel");
}

dt_status dt_cuda_gemm_check(const void *workspace, void *stream) {
  dt_tile_header header;
  cudaError_t error = cudaMemcpyAsync(&header, workspace, sizeof header, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return dt_cuda_check(error, "grouped GEMM");
  static const char *const waits[] = {[DT_TILE_ERROR_FULL] = "operands",
                                      [DT_TILE_ERROR_EMPTY] = "a free stage",
                                      [DT_TILE_ERROR_TICKET] = "a ticket",
                                      [DT_TILE_ERROR_SLOT] = "a free ticket slot",
                                      [DT_TILE_ERROR_DONE] = "a tile's stores"};
  switch (header.error) {
  case DT_TILE_OK:
    return DT_OK;
  case DT_TILE_ERROR_ROWS:
    return dt_fail(DT_ERR_CAPACITY, "counts: negative, or more rows than rows_max");
  case DT_TILE_ERROR_FULL:
  case DT_TILE_ERROR_EMPTY:
  case DT_TILE_ERROR_TICKET:
  case DT_TILE_ERROR_SLOT:
  case DT_TILE_ERROR_DONE:
    return dt_fail(DT_ERR_TIMEOUT, "tile kernel: a wait for %s expired (%u of %u tasks drawn)", waits[header.error],
                   header.next, header.count);
  default:
    return dt_fail(DT_ERR_INTERNAL, "tile kernel: error %u", header.error);
  }
}
