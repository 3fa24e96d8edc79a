#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "file.h"
#include "platform.h"

/* Measured quantities are JSON reals, also where they are whole; counts are JSON integers. Both were checked when they
 * came in, so nothing here is NaN, infinite or an integer above 2^53: a failure is a lack of memory. */
static int put(json_t *object, const char *key, json_t *value) {
  return json_object_set_new(object, key, value);
}

static int put_label(json_t *object, const char *key, const char *text) {
  return *text ? put(object, key, json_string(text)) : 0;
}

static int put_measurement(json_t *object, const dt_interval *interval, int64_t n, const double *samples,
                           size_t count) {
  int failed = put(object, "value", json_real(interval->value));
  failed |= put(object, "low", json_real(interval->low));
  failed |= put(object, "high", json_real(interval->high));
  failed |= put(object, "n", json_integer(n));
  if (count == 0) return failed;
  json_t *list = json_array();
  for (size_t i = 0; i < count; i++) failed |= json_array_append_new(list, json_real(samples[i]));
  return failed | put(object, "samples", list);
}

static json_t *constant_json(const dt_platform_constant *constant, int *failed) {
  json_t *object = json_object();
  *failed |= put(object, "unit", json_string(dt_platform_unit(constant->name)));
  *failed |= put(object, "method", json_string(constant->method));
  *failed |= put_measurement(object, &constant->interval, constant->n, constant->samples, constant->sample_count);
  return object;
}

static json_t *table_json(const dt_platform_table *table, int *failed) {
  json_t *object = json_object(), *arguments = json_array(), *points = json_array();
  *failed |= put(object, "name", json_string(table->name));
  *failed |= put(object, "unit", json_string(dt_platform_unit(table->name)));
  *failed |= put_label(object, "pattern", table->pattern);
  *failed |= put_label(object, "operation", table->operation);
  *failed |= put_label(object, "alignment", table->alignment);
  *failed |= put(object, "method", json_string(table->method));
  for (int32_t a = 0; a < table->argument_count; a++)
    *failed |= json_array_append_new(arguments, json_string(table->arguments[a]));
  for (size_t i = 0; i < table->point_count; i++) {
    const dt_platform_point *point = &table->points[i];
    json_t *entry = json_object(), *at = json_object();
    for (int32_t a = 0; a < table->argument_count; a++)
      *failed |= put(at, table->arguments[a], json_real(point->at[a]));
    *failed |= put(entry, "at", at);
    *failed |= put_measurement(entry, &point->interval, point->n, point->samples, point->sample_count);
    *failed |= json_array_append_new(points, entry);
  }
  *failed |= put(object, "arguments", arguments);
  *failed |= put(object, "points", points);
  return object;
}

static json_t *clocks_json(const dt_platform_clocks *clocks, int *failed) {
  json_t *object = json_object();
  *failed |= put(object, "sm_hz", json_real(clocks->sm_hz));
  *failed |= put(object, "memory_hz", json_real(clocks->memory_hz));
  return object;
}

static json_t *device_json(const dt_platform_device *device, int *failed) {
  json_t *object = json_object();
  *failed |= put(object, "kind", json_string(device->kind));
  *failed |= put(object, "name", json_string(device->name));
  *failed |= put(object, "driver", json_string(device->driver));
  *failed |= put(object, "date", json_string(device->date));
  *failed |= put(object, "count", json_integer(device->count));
  *failed |= put(object, "clocks_before", clocks_json(&device->clocks_before, failed));
  *failed |= put(object, "clocks_after", clocks_json(&device->clocks_after, failed));
  *failed |= put(object, "throttled", json_boolean(device->throttled));
  return object;
}

static json_t *platform_json(const dt_platform *platform, int *failed) {
  json_t *root = json_object(), *constants = json_object(), *tables = json_array(), *notes = json_array();
  *failed |= put(root, "schema", json_string("draintile-platform"));
  *failed |= put(root, "version", json_integer(1));
  *failed |= put(root, "device", device_json(&platform->device, failed));
  for (size_t i = 0; i < platform->constant_count; i++) {
    const dt_platform_constant *constant = &platform->constants[i].view;
    *failed |= put(constants, constant->name, constant_json(constant, failed));
  }
  for (size_t i = 0; i < platform->table_count; i++)
    *failed |= json_array_append_new(tables, table_json(&platform->tables[i].view, failed));
  for (size_t i = 0; i < platform->note_count; i++)
    *failed |= json_array_append_new(notes, json_string(platform->notes[i]));
  *failed |= put(root, "constants", constants);
  *failed |= put(root, "tables", tables);
  *failed |= put(root, "notes", notes);
  return root;
}

dt_status dt_platform_save(const dt_platform *platform, const char *path) {
  struct stat there;
  if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) /* the rename would put a file in a device's place */
    return dt_fail(DT_ERR_IO, "%s: not a regular file; a new or regular file is allowed", path);
  int failed = 0;
  errno = 0;
  json_t *root = platform_json(platform, &failed);
  if (failed || !root) {
    const bool memory = errno == ENOMEM;
    json_decref(root);
    if (memory) return dt_fail(DT_ERR_MEMORY, "%s: no memory to write it", path);
    /* json_string refuses what is not UTF-8. */
    return dt_fail(DT_ERR_ARGUMENT, "%s: a text that is not UTF-8; UTF-8 is allowed", path);
  }
  dt_output_file file;
  dt_status status = dt_output_open(path, &file);
  if (!status && json_dumpf(root, file.stream, JSON_INDENT(1) | JSON_PRESERVE_ORDER) == 0 &&
      fputc('\n', file.stream) != EOF) {
    status = dt_output_commit(&file);
  } else if (!status) {
    const int cause = ferror(file.stream) ? errno : ENOMEM;
    dt_output_discard(&file);
    status = dt_fail(cause == ENOMEM ? DT_ERR_MEMORY : DT_ERR_IO, "%s: cannot write: %s", path, strerror(cause));
  }
  json_decref(root);
  return status;
}
