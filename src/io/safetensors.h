/* The safetensors format, shared by reader and writer: an 8-byte little-endian header length, a JSON object
 * {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}, then the data, covered exactly. */
#ifndef DT_IO_SAFETENSORS_H
#define DT_IO_SAFETENSORS_H

#include <draintile/checkpoint.h>

/* The format's own limit, whatever other texts may hold. */
#define DT_SAFETENSORS_MAX_HEADER 100000000u

/* Checks a whole file in memory. `bytes` must outlive the result and is not released with it. `path` is for messages.
 */
dt_status dt_tensor_file_parse(const void *bytes, size_t size, const char *path, dt_tensor_file **file);

/* Name of the dtype in a header ("BF16"); NULL for MXFP4, which is no type of the format. */
const char *dt_safetensors_dtype_name(dt_dtype dtype);

/* A tensor name (or other text of a file) made fit for one line of a message: control characters replaced, cut to the
 * buffer. Returns buffer. */
const char *dt_printable(const char *text, char *buffer, size_t bytes);

/* "[2, 3]", cut to the buffer. Returns buffer. */
const char *dt_shape_text(const int64_t *shape, int32_t dims, char *buffer, size_t bytes);

#endif
