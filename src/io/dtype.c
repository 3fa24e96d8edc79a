/* Element types: names and sizes. */
#include <draintile/weights.h>

#include <string.h>

#include "core/error.h"

static const struct {
  const char *name;
  size_t bytes;
} dtypes[] = {
    [DT_DTYPE_F32] = {"f32", 4},         [DT_DTYPE_BF16] = {"bf16", 2},   [DT_DTYPE_F16] = {"f16", 2},
    [DT_DTYPE_F8_E4M3] = {"f8_e4m3", 1}, [DT_DTYPE_MXFP4] = {"mxfp4", 0}, [DT_DTYPE_I64] = {"i64", 8},
    [DT_DTYPE_I32] = {"i32", 4},         [DT_DTYPE_U8] = {"u8", 1},       [DT_DTYPE_F64] = {"f64", 8},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

const char *dt_dtype_name(dt_dtype dtype) {
  return (unsigned)dtype < DTYPES ? dtypes[dtype].name : "unknown";
}

size_t dt_dtype_bytes(dt_dtype dtype) {
  return (unsigned)dtype < DTYPES ? dtypes[dtype].bytes : 0;
}

dt_status dt_dtype_parse(const char *text, dt_dtype *out) {
  for (int i = 0; i < DTYPES; i++) {
    if (strcmp(text, dtypes[i].name) != 0) continue;
    *out = (dt_dtype)i;
    return DT_OK;
  }
  return dt_fail(DT_ERR_ARGUMENT, "dtype: '%s'; allowed are f32, bf16, f16, f8_e4m3, mxfp4, i64, i32, u8, f64", text);
}
