/* Results as JSON: SI units in key names, never NaN, never an integer that a double cannot hold. */
#ifndef DRAINTILE_TOOL_JSON_H
#define DRAINTILE_TOOL_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* {"schema": schema, "version": 1}. */
json_t *json_results(const char *schema);
/* Now, UTC: "2026-01-31T23:59:59Z". */
json_t *json_now(void);
/* Bytes that are not UTF-8 become '?': a path may hold any. */
json_t *json_text(const char *text);
/* Not finite: null. */
json_t *json_figure(double value);
/* Beyond 2^53: a string, so that no reader rounds it. */
json_t *json_whole(int64_t value);
json_t *json_whole_unsigned(uint64_t value);
json_t *json_figures(const double *values, size_t count);
/* {names[i]: values[i]}. */
json_t *json_named_figures(const char *const *names, const double *values, size_t count);
json_t *json_wholes(const int64_t *values, size_t count);
json_t *json_wholes32(const int32_t *values, size_t count);

/* A JSON file without duplicate keys, at most DT_TEXT_MAX_BYTES (draintile/platform.h). Returns an exit code, having
 * said what is wrong. Released by json_decref. */
int json_read(const char *path, json_t **root);

/* Of --json, NULL where not given: "-", or a name of the file that standard output is. What would be printed there is
 * left out, or goes to standard error. */
bool json_is_stdout(const char *path);
/* Writing to it again replaces what was written: not so of standard output, pipes and devices. False for NULL. */
bool json_is_replaced(const char *path);
/* Writes to `path` ("-": stdout) and releases `root`; a regular file appears whole or not at all. Returns an exit
 * code, having said what failed. */
int json_write(json_t *root, const char *path);
/* The same for another option than --json. */
int json_write_as(json_t *root, const char *path, const char *option);

#endif
