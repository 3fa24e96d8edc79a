#include "tensor_map.h"

#include "core/error.h"
#include "driver.h"

dt_tensor dt_tensor_ragged(const char *name, const void *data, int64_t rows, int64_t columns, uint32_t box_rows) {
  const dt_tensor view = {name,
                          (const void *)((uintptr_t)data - 2 * (uintptr_t)columns * box_rows),
                          {columns, box_rows, rows + box_rows},
                          {columns, columns},
                          box_rows,
                          0};
  return view;
}

dt_tensor dt_tensor_experts(const char *name, const void *data, int64_t experts, int64_t rows, int64_t columns,
                            uint32_t box_rows) {
  const dt_tensor tensor = {name, data, {columns, rows, experts}, {columns, rows * columns}, box_rows, 0};
  return tensor;
}

dt_status dt_tensor_encode(const dt_tensor *tensor, CUtensorMap *map) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  cuuint64_t dims[3], strides[2];
  for (int i = 0; i < 3; i++) dims[i] = (cuuint64_t)tensor->dims[i];
  for (int i = 0; i < 2; i++) strides[i] = 2 * (cuuint64_t)tensor->strides[i];
  const cuuint32_t columns = tensor->box_columns ? tensor->box_columns : 64, box[3] = {columns, tensor->box_rows, 1},
                   steps[3] = {1, 1, 1};
  return dt_cuda_driver_check(
      api->cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)(uintptr_t)tensor->data, dims,
                                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                  tensor->box_columns ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B,
                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
      tensor->name);
}
