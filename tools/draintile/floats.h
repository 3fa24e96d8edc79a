/* The exchange types as arrays of float. */
#ifndef DRAINTILE_TOOL_FLOATS_H
#define DRAINTILE_TOOL_FLOATS_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/weights.h>

/* F32, BF16, F16; rounds to nearest, ties to even. */
void floats_store(dt_dtype dtype, const float *from, size_t count, void *to);
void floats_load(dt_dtype dtype, const void *from, size_t count, double *to);
/* Index of the first value that is NaN or infinite, or `count`. */
size_t floats_first_not_finite(dt_dtype dtype, const void *from, size_t count);

#endif
