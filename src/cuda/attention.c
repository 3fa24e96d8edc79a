/* Host side of attention on a GPU: checks, tensor maps, the launch. */
#include "cuda/attention.h"

#include <math.h>
#include <string.h>

#include "core/error.h"
#include "cuda/driver.h"

static dt_status check_numbers(const dt_cuda_attention *a) {
  if (a == NULL || a->size != sizeof *a)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_cuda_attention_init; %zu expected", sizeof *a);
  if (a->dtype != DT_DTYPE_BF16 && a->dtype != DT_DTYPE_F16)
    return dt_fail(DT_ERR_ARGUMENT, "dtype: %s; bf16 and f16 allowed", dt_dtype_name(a->dtype));
  if (a->head_dim != 64 && a->head_dim != 128 && a->head_dim != 256)
    return dt_fail(DT_ERR_ARGUMENT, "head_dim: %d; 64, 128 and 256 allowed", a->head_dim);
  if (a->tokens < 0 || a->tokens > INT32_MAX / 4)
    return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 to %d allowed", (long long)a->tokens, INT32_MAX / 4);
  if (a->kv_tokens < 0 || a->kv_tokens > INT32_MAX / 4)
    return dt_fail(DT_ERR_ARGUMENT, "kv_tokens: %lld; 0 to %d allowed", (long long)a->kv_tokens, INT32_MAX / 4);
  if (a->heads < 0 || a->heads > DT_CUDA_ATTENTION_HEADS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "heads: %d; 0 to %d allowed", a->heads, DT_CUDA_ATTENTION_HEADS_MAX);
  if (a->kv_heads < 1 || a->kv_heads > DT_CUDA_ATTENTION_HEADS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "kv_heads: %d; 1 to %d allowed", a->kv_heads, DT_CUDA_ATTENTION_HEADS_MAX);
  if (a->head_to_kv == NULL && a->heads % a->kv_heads != 0)
    return dt_fail(DT_ERR_ARGUMENT, "kv_heads: %d; a divisor of heads (%d), or head_to_kv, allowed", a->kv_heads,
                   a->heads);
  for (int32_t h = 0; a->head_to_kv != NULL && h < a->heads; h++)
    if (a->head_to_kv[h] < 0 || a->head_to_kv[h] >= a->kv_heads)
      return dt_fail(DT_ERR_ARGUMENT, "head_to_kv[%d]: %d; 0 to %d allowed", h, a->head_to_kv[h], a->kv_heads - 1);
  if (!isnan(a->scale) && !(a->scale > 0 && isfinite(a->scale)))
    return dt_fail(DT_ERR_ARGUMENT, "scale: %g; a positive number, or NaN, allowed", (double)a->scale);
  if (!(a->timeout_s >= 0 && a->timeout_s < 4000))
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; 0 to 4000 allowed", a->timeout_s);
  return DT_OK;
}

/* The runs lie one after the other, in any order, and cover every row. */
static dt_status check_owners(const dt_cuda_attention *a) {
  if (a->owners_count < 1 || a->owners_count > DT_CUDA_ATTENTION_OWNERS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "owners_count: %d; 1 to %d allowed", a->owners_count, DT_CUDA_ATTENTION_OWNERS_MAX);
  int64_t covered = 0;
  for (int32_t i = 0; i < a->owners_count; i++) {
    const dt_cuda_attention_owner *owner = &a->owners[i];
    if (owner->first < 0 || owner->rows < 0 || owner->first > a->tokens - owner->rows)
      return dt_fail(DT_ERR_ARGUMENT, "owners[%d]: rows %lld to %lld; within 0 to %lld allowed", i,
                     (long long)owner->first, (long long)((uint64_t)owner->first + (uint64_t)owner->rows),
                     (long long)a->tokens);
    if (owner->rows > 0 && (owner->out == NULL || (uintptr_t)owner->out % 16 != 0))
      return dt_fail(DT_ERR_ARGUMENT, "owners[%d].out: %p; memory aligned to 16 allowed", i, owner->out);
    if (owner->row_stride % 8 != 0 || owner->row_stride < 0 || owner->row_stride > INT64_MAX / 2 ||
        (owner->rows > 1 && owner->row_stride < (int64_t)a->heads * a->head_dim))
      return dt_fail(DT_ERR_ARGUMENT, "owners[%d].row_stride: %lld; a multiple of 8, at least %lld, allowed", i,
                     (long long)owner->row_stride, (long long)a->heads * a->head_dim);
    for (int32_t j = 0; j < i; j++)
      if (owner->rows > 0 && a->owners[j].rows > 0 && owner->first < a->owners[j].first + a->owners[j].rows &&
          a->owners[j].first < owner->first + owner->rows)
        return dt_fail(DT_ERR_ARGUMENT, "owners[%d]: shares rows with owners[%d]; none allowed", i, j);
    covered += owner->rows;
  }
  if (covered != a->tokens)
    return dt_fail(DT_ERR_ARGUMENT, "owners: cover %lld rows; %lld (tokens) allowed", (long long)covered,
                   (long long)a->tokens);
  return DT_OK;
}

static int64_t q_stride(const dt_cuda_attention *a) {
  return a->q_row_stride ? a->q_row_stride : (int64_t)a->heads * a->head_dim;
}
static int64_t kv_stride(const dt_cuda_attention *a) {
  return a->kv_row_stride ? a->kv_row_stride : (int64_t)a->kv_heads * a->head_dim;
}

static dt_status check_pointers(const dt_cuda_attention *a, const void *workspace) {
  const struct {
    const char *name;
    const void *pointer;
    uintptr_t alignment;
    int needed;
  } fields[] = {{"q", a->q, 16, 1},
                {"k", a->k, 16, a->kv_tokens > 0},
                {"v", a->v, 16, a->kv_tokens > 0},
                {"arrived", a->arrived, 4, 0},
                {"arrived_target_from", a->arrived_target_from, 4, 0},
                {"workspace", workspace, 128, 1}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
    if ((fields[i].pointer == NULL && fields[i].needed) || (uintptr_t)fields[i].pointer % fields[i].alignment != 0)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p; a device pointer aligned to %zu allowed", fields[i].name,
                     fields[i].pointer, (size_t)fields[i].alignment);
  if (q_stride(a) % 8 != 0 || q_stride(a) < (int64_t)a->heads * a->head_dim)
    return dt_fail(DT_ERR_ARGUMENT, "q_row_stride: %lld; a multiple of 8, at least %lld, allowed",
                   (long long)a->q_row_stride, (long long)a->heads * a->head_dim);
  if (kv_stride(a) % 8 != 0 || kv_stride(a) < (int64_t)a->kv_heads * a->head_dim)
    return dt_fail(DT_ERR_ARGUMENT, "kv_row_stride: %lld; a multiple of 8, at least %lld, allowed",
                   (long long)a->kv_row_stride, (long long)a->kv_heads * a->head_dim);
  return DT_OK;
}

/* Three dimensions, innermost first: columns, heads, tokens. */
static dt_status encode(const dt_cuda_driver_api *driver, CUtensorMap *map, const char *name, const void *data,
                        const dt_cuda_attention *a, int32_t heads, int64_t tokens, int64_t row_stride, int32_t box) {
  const cuuint64_t dims[3] = {(cuuint64_t)a->head_dim, (cuuint64_t)heads, (cuuint64_t)tokens};
  const cuuint64_t strides[2] = {2 * (cuuint64_t)a->head_dim, 2 * (cuuint64_t)row_stride};
  const cuuint32_t boxes[3] = {64, 1, (cuuint32_t)box}, steps[3] = {1, 1, 1};
  const CUtensorMapDataType type =
      a->dtype == DT_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return dt_cuda_driver_check(
      driver->cuTensorMapEncodeTiled(map, type, 3, (void *)(uintptr_t)data, dims, strides, boxes, steps,
                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      name);
}
static dt_status encode_maps(const dt_cuda_attention *a, const dt_attention_shape *shape, dt_attention_kernel *kernel) {
  const dt_cuda_driver_api *driver;
  dt_status status = dt_cuda_driver(&driver);
  if (status == DT_OK)
    status = encode(driver, &kernel->q, "tensor map of q", a->q, a, a->heads, a->tokens, q_stride(a), 64);
  if (status == DT_OK)
    status =
        encode(driver, &kernel->k, "tensor map of k", a->k, a, a->kv_heads, a->kv_tokens, kv_stride(a), shape->block);
  if (status == DT_OK)
    status =
        encode(driver, &kernel->v, "tensor map of v", a->v, a, a->kv_heads, a->kv_tokens, kv_stride(a), shape->block);
  return status;
}

/* What lies here anyway is read where it lies: the maps begin where row 0 would be, in front of the memory, and no box
 * that begins before the first own row, or has none, is read by them. */
static dt_status encode_own(const dt_cuda_attention *a, const dt_attention_shape *shape,
                            const dt_attention_carry *carry, dt_attention_kernel *kernel) {
  dt_attention_plan_own(a, carry, kernel);
  if (!carry || !carry->reads_own) return DT_OK;
  const struct {
    const char *name;
    CUtensorMap *map;
    int32_t heads, first, box;
    int64_t tokens;
  } maps[3] = {{"tensor map of own q", &kernel->own_q, a->heads, carry->own_q, 64, a->tokens},
               {"tensor map of own k", &kernel->own_k, a->kv_heads, carry->late_rows, shape->block, a->kv_tokens},
               {"tensor map of own v", &kernel->own_v, a->kv_heads, carry->late_rows, shape->block, a->kv_tokens}};
  const dt_cuda_driver_api *driver;
  dt_status status = dt_cuda_driver(&driver);
  for (int i = 0; i < 3 && !status; i++) {
    if (maps[i].first >= maps[i].tokens) continue; /* none of it is here */
    const uint8_t *base = (const uint8_t *)carry->own[i] - 2 * carry->own_stride[i] * maps[i].first;
    status = encode(driver, maps[i].map, maps[i].name, base, a, maps[i].heads, maps[i].tokens, carry->own_stride[i],
                    maps[i].box);
  }
  return status;
}

/* Nothing to attend to: every row is fully masked. */
static dt_status zero_rows(const dt_cuda_attention *a, cudaStream_t stream) {
  const size_t width = 2 * (size_t)a->heads * (size_t)a->head_dim;
  for (int32_t i = 0; i < a->owners_count; i++) {
    const dt_cuda_attention_owner *owner = &a->owners[i];
    if (owner->rows == 0) continue;
    const size_t pitch = owner->rows > 1 ? 2 * (size_t)owner->row_stride : width;
    cudaError_t error = cudaMemset2DAsync(owner->out, pitch, 0, width, (size_t)owner->rows, stream);
    if (error != cudaSuccess) return dt_cuda_check(error, "zeroing fully masked rows");
  }
  return DT_OK;
}

static cudaError_t launch(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas,
                          cudaStream_t stream) {
  switch (shape->head_dim) {
  case 64:
    return dt_attention_launch_d64(kernel, shape, ctas, stream);
  case 128:
    return dt_attention_launch_d128(kernel, shape, ctas, stream);
  default:
    return dt_attention_launch_d256(kernel, shape, ctas, stream);
  }
}

dt_status dt_cuda_attention_workspace(const dt_cuda_attention *attention, size_t *bytes) {
  dt_status status = check_numbers(attention);
  if (status != DT_OK) return status;
  *bytes = DT_ATTENTION_SCRATCH_OFFSET;
  if (!attention->causal) { /* slabs of pieces: sums of a tile's rows, with their maximum and sum */
    const int32_t groups = dt_attention_shape_of(attention).groups;
    *bytes += (size_t)(DT_ATTENTION_PIECES * DT_ATTENTION_CTAS_MAX) * 64 * (size_t)groups *
              ((size_t)attention->head_dim + 2) * sizeof(float);
  }
  return DT_OK;
}

static dt_status forward(const dt_cuda_attention *a, const dt_attention_choice *choice, const dt_attention_carry *carry,
                         void *workspace, void *stream) {
  dt_status status = check_numbers(a);
  if (status != DT_OK) return status;
  if (a->tokens == 0 || a->heads == 0) return DT_OK;
  int sms = 0;
  if ((status = check_owners(a)) != DT_OK || (status = check_pointers(a, workspace)) != DT_OK ||
      (status = dt_cuda_hopper(&sms)) != DT_OK)
    return status;
  if (a->sms < 0 || a->sms > sms) return dt_fail(DT_ERR_ARGUMENT, "sms: %d; 0 to %d allowed", a->sms, sms);
  if (a->kv_tokens == 0) return zero_rows(a, stream);

  dt_attention_kernel kernel;
  memset(&kernel, 0, sizeof kernel);
  const dt_attention_shape shape = dt_attention_shape_of(a);
  if ((status = encode_maps(a, &shape, &kernel)) != DT_OK) return status;
  if ((status = encode_own(a, &shape, carry, &kernel)) != DT_OK) return status;
  kernel.header = workspace;
  kernel.scratch = (float *)((uint8_t *)workspace + DT_ATTENTION_SCRATCH_OFFSET);
  kernel.arrived = a->arrived;
  kernel.arrived_target = a->arrived_target;
  kernel.arrived_target_from = a->arrived_target_from;
  kernel.arrived_gates_stores = a->arrived_gates_stores;
  if (carry) kernel.carry = *carry;
  kernel.timeout_us = (uint32_t)(1e6 * (a->timeout_s > 0 ? a->timeout_s : 10));
  kernel.heads = a->heads;
  kernel.kv_heads = a->kv_heads;
  kernel.kv_tokens = (int32_t)a->kv_tokens;
  kernel.causal_offset = (int32_t)(a->kv_tokens - a->tokens);
  kernel.mapped = a->head_to_kv != NULL;
  for (int32_t h = 0; kernel.mapped && h < a->heads; h++) kernel.head_to_kv[h] = (uint16_t)a->head_to_kv[h];
  kernel.scale_log2 = (float)(1.4426950408889634 * (isnan(a->scale) ? 1 / sqrt(a->head_dim) : (double)a->scale));
  int ctas = a->sms ? a->sms : sms;
  if (ctas > DT_ATTENTION_CTAS_MAX) ctas = DT_ATTENTION_CTAS_MAX;
  dt_attention_plan(a, &shape, carry && carry->holds == 1 ? 0 : choice->cut, ctas, &kernel);
  if (!carry || carry->count == 0) dt_attention_plan_alone(&kernel);
  dt_attention_plan_first(&shape, ctas, &kernel);
  dt_attention_plan_pace(a, &shape, &kernel);
  dt_attention_plan_hold(a, &shape, ctas, &kernel);
  return dt_cuda_check(launch(&kernel, &shape, ctas, stream), "attention kernel");
}

dt_status dt_attention_forward_chosen(const dt_cuda_attention *attention, const dt_attention_choice *choice,
                                      void *workspace, void *stream) {
  return forward(attention, choice, NULL, workspace, stream);
}

dt_status dt_attention_forward_carrying(const dt_cuda_attention *attention, const dt_attention_carry *carry,
                                        void *workspace, void *stream) {
  static const dt_attention_choice chosen = DT_ATTENTION_CHOICE_INIT;
  if (carry && carry->count > 0 && attention->kv_tokens == 0)
    return dt_fail(DT_ERR_ARGUMENT, "kv_tokens: 0; at least 1 allowed where the attention carries");
  return forward(attention, &chosen, carry, workspace, stream);
}

dt_status dt_cuda_attention_forward(const dt_cuda_attention *attention, void *workspace, void *stream) {
  return dt_attention_forward_carrying(attention, NULL, workspace, stream);
}

dt_status dt_cuda_attention_check(const void *workspace, void *stream) {
  dt_attention_header header;
  cudaError_t error = cudaMemcpyAsync(&header, workspace, sizeof header, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess) return dt_cuda_check(error, "attention");
  static const char *const waits[] = {[DT_ATTENTION_ERROR_Q] = "Q",
                                      [DT_ATTENTION_ERROR_K] = "K",
                                      [DT_ATTENTION_ERROR_V] = "V",
                                      [DT_ATTENTION_ERROR_FREE_Q] = "room for Q",
                                      [DT_ATTENTION_ERROR_FREE_K] = "room for K",
                                      [DT_ATTENTION_ERROR_FREE_V] = "room for V",
                                      [DT_ATTENTION_ERROR_FREE_SENT] = "room for rows to send"};
  switch (header.error) {
  case DT_ATTENTION_OK:
    return DT_OK;
  case DT_ATTENTION_ERROR_Q:
  case DT_ATTENTION_ERROR_K:
  case DT_ATTENTION_ERROR_V:
  case DT_ATTENTION_ERROR_FREE_Q:
  case DT_ATTENTION_ERROR_FREE_K:
  case DT_ATTENTION_ERROR_FREE_V:
  case DT_ATTENTION_ERROR_FREE_SENT:
    return dt_fail(DT_ERR_TIMEOUT, "attention kernel: a wait for %s expired", waits[header.error]);
  case DT_ATTENTION_ERROR_RESUME:
    return dt_fail(DT_ERR_TIMEOUT, "attention kernel: the wait for the first part of a tile expired");
  case DT_ATTENTION_ERROR_ARRIVED:
    return dt_fail(DT_ERR_TIMEOUT, "attention kernel: the wait for arrived[%u] expired", header.error_head);
  case DT_ATTENTION_ERROR_CARRY:
    return dt_fail(DT_ERR_TIMEOUT, "attention kernel: a copy beside it did not end");
  case DT_ATTENTION_ERROR_STOPPED:
    return dt_fail(DT_ERR_PEER, "attention kernel: stopped: what it waited for will not come");
  default:
    return dt_fail(DT_ERR_INTERNAL, "attention kernel: error %u", header.error);
  }
}
