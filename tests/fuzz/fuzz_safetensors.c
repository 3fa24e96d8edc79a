/* libFuzzer target: a safetensors file of any bytes is refused or read, and never read outside its bounds. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  dt_tensor_file *file = NULL;
  if (dt_tensor_file_parse(data, size, "fuzz", &file) != DT_OK) {
    /* the message is one line, and there is one */
    if (!*dt_error_detail() || strchr(dt_error_detail(), '\n')) abort();
    return 0;
  }
  volatile uint8_t sum = 0;
  uint64_t covered = 0;
  for (size_t i = 0; i < dt_tensor_file_count(file); i++) {
    const char *name = dt_tensor_file_name(file, i);
    if (!dt_tensor_file_has(file, name)) abort();
    dt_tensor tensor;
    if (dt_tensor_file_get(file, name, &tensor) != DT_OK) continue;
    uint64_t elements = 1;
    for (int32_t d = 0; d < tensor.dims; d++) elements *= (uint64_t)tensor.shape[d];
    if (elements * dt_dtype_bytes(tensor.dtype) != tensor.bytes) abort();
    for (size_t j = 0; j < tensor.bytes; j++) sum = (uint8_t)(sum + ((const uint8_t *)tensor.data)[j]);
    covered += tensor.bytes;
  }
  if (covered > size) abort(); /* tensors do not overlap */
  dt_tensor_file_close(file);
  return 0;
}
