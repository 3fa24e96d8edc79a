/* Reads JSON, and says where in a text a parser stopped: "constants.t0_s.low", "tables[2].points[0].n". */
#ifndef DT_IO_JSON_PATH_H
#define DT_IO_JSON_PATH_H

#include <jansson.h>
#include <stddef.h>

#include <draintile/status.h>

/* Duplicate keys are refused. NULL: *status is DT_ERR_MEMORY, its detail set, where there was too little memory, else
 * DT_ERR_INPUT, which the caller words from *error. */
json_t *dt_json_parse(const char *path, const char *text, size_t bytes, json_error_t *error, dt_status *status);

/* The path of keys around byte `position` of a text that may be broken there; "(top)" outside of any. */
void dt_json_path(const char *text, size_t length, size_t position, char *out, size_t size);

#endif
