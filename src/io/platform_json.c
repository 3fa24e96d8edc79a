#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "file.h"
#include "json_path.h"
#include "platform.h"

static const char schema_name[] = "draintile-platform";
enum { SCHEMA_VERSION = 1, WHERE = 320 };
static const double most_exact = 9007199254740992.0; /* 2^53 */

static dt_status read_text(const json_t *object, const char *where, const char *key, int required, const char **text) {
  const json_t *value = json_object_get(object, key);
  *text = "";
  if (!value && !required) return DT_OK;
  if (!value) return dt_fail(DT_ERR_INPUT, "%s.%s: missing; a text is needed", where, key);
  if (!json_is_string(value)) return dt_fail(DT_ERR_INPUT, "%s.%s: not a text; a text is allowed", where, key);
  *text = json_string_value(value);
  return DT_OK;
}

static dt_status check_number(const json_t *value, const char *where, const char *key, double *number) {
  if (!json_is_number(value)) return dt_fail(DT_ERR_INPUT, "%s.%s: not a number; a number is allowed", where, key);
  if (json_is_integer(value) && fabs((double)json_integer_value(value)) > most_exact)
    return dt_fail(DT_ERR_INPUT, "%s.%s: %" JSON_INTEGER_FORMAT "; an integer of at most 2^53 is allowed", where, key,
                   json_integer_value(value));
  *number = json_number_value(value);
  return DT_OK;
}

static dt_status read_number(const json_t *object, const char *where, const char *key, double *number) {
  const json_t *value = json_object_get(object, key);
  if (!value) return dt_fail(DT_ERR_INPUT, "%s.%s: missing; a number is needed", where, key);
  return check_number(value, where, key, number);
}

static dt_status read_count(const json_t *object, const char *where, const char *key, int64_t *count) {
  double number = 0.0;
  dt_status status = read_number(object, where, key, &number);
  if (status) return status;
  if (!json_is_integer(json_object_get(object, key)))
    return dt_fail(DT_ERR_INPUT, "%s.%s: %g; an integer is allowed", where, key, number);
  *count = json_integer_value(json_object_get(object, key));
  return DT_OK;
}

static dt_status read_interval(const json_t *object, const char *where, dt_interval *interval) {
  dt_status status = read_number(object, where, "value", &interval->value);
  if (!status) status = read_number(object, where, "low", &interval->low);
  if (!status) status = read_number(object, where, "high", &interval->high);
  return status;
}

static dt_status read_samples(const json_t *object, const char *where, const double **samples, size_t *count) {
  const json_t *list = json_object_get(object, "samples");
  *samples = NULL;
  *count = 0;
  if (!list) return DT_OK;
  if (!json_is_array(list)) return dt_fail(DT_ERR_INPUT, "%s.samples: not a list; a list of numbers is allowed", where);
  size_t size = json_array_size(list);
  double *numbers = malloc((size + 1) * sizeof *numbers);
  if (!numbers) return dt_fail(DT_ERR_MEMORY, "%s.samples: no memory for %zu", where, size);
  for (size_t i = 0; i < size; i++) {
    char key[40];
    snprintf(key, sizeof key, "samples[%zu]", i);
    dt_status status = check_number(json_array_get(list, i), where, key, &numbers[i]);
    if (status) {
      free(numbers);
      return status;
    }
  }
  *samples = numbers;
  *count = size;
  return DT_OK;
}

/* The name says the unit; a "unit" beside it must say the same. */
static dt_status check_unit(const json_t *object, const char *where, const char *name) {
  const char *unit, *expected = dt_platform_unit(name);
  dt_status status = read_text(object, where, "unit", 0, &unit);
  if (status || !*unit || !expected || strcmp(unit, expected) == 0) return status;
  return dt_fail(DT_ERR_INPUT, "%s.unit: \"%s\"; \"%s\" is allowed, as its name says", where, unit, expected);
}

static dt_status read_constant(dt_platform *platform, const char *name, const json_t *object) {
  char where[WHERE];
  snprintf(where, sizeof where, "constants.%s", name);
  if (!json_is_object(object)) return dt_fail(DT_ERR_INPUT, "%s: not an object", where);
  dt_platform_constant constant = {.name = name};
  dt_status status = read_interval(object, where, &constant.interval);
  if (!status) status = read_count(object, where, "n", &constant.n);
  if (!status) status = read_text(object, where, "method", 1, &constant.method);
  if (!status) status = check_unit(object, where, name);
  if (!status) status = read_samples(object, where, &constant.samples, &constant.sample_count);
  if (!status) status = dt_platform_check_constant(&constant, where, DT_ERR_INPUT);
  if (!status) status = dt_platform_set_constant(platform, &constant);
  free((void *)constant.samples);
  return status;
}

static dt_status read_arguments(const json_t *object, const char *where, dt_platform_table *table) {
  const json_t *list = json_object_get(object, "arguments");
  if (!json_is_array(list)) return dt_fail(DT_ERR_INPUT, "%s.arguments: missing; a list of names is needed", where);
  if (json_array_size(list) > DT_PLATFORM_ARGUMENTS)
    return dt_fail(DT_ERR_INPUT, "%s.arguments: %zu of them; 0 to %d are allowed", where, json_array_size(list),
                   DT_PLATFORM_ARGUMENTS);
  table->argument_count = (int32_t)json_array_size(list);
  for (int32_t a = 0; a < table->argument_count; a++) {
    table->arguments[a] = json_string_value(json_array_get(list, (size_t)a));
    if (!table->arguments[a]) return dt_fail(DT_ERR_INPUT, "%s.arguments[%d]: not a text", where, a);
  }
  return DT_OK;
}

static dt_status read_point(const json_t *object, const char *where, const dt_platform_table *table,
                            dt_platform_point *point) {
  const json_t *at = json_object_get(object, "at");
  if (!json_is_object(at)) return dt_fail(DT_ERR_INPUT, "%s.at: missing; an object of the arguments is needed", where);
  char inner[WHERE + 8];
  snprintf(inner, sizeof inner, "%s.at", where);
  dt_status status = DT_OK;
  for (int32_t a = 0; !status && a < table->argument_count; a++)
    status = read_number(at, inner, table->arguments[a], &point->at[a]);
  if (!status) status = read_interval(object, where, &point->interval);
  if (!status) status = read_count(object, where, "n", &point->n);
  if (!status) status = read_samples(object, where, &point->samples, &point->sample_count);
  return status;
}

static dt_status read_points(const json_t *object, const char *where, dt_platform_table *table,
                             dt_platform_point *points) {
  const json_t *list = json_object_get(object, "points");
  table->points = points;
  for (; table->point_count < json_array_size(list); table->point_count++) {
    char inner[WHERE];
    snprintf(inner, sizeof inner, "%.200s.points[%zu]", where, table->point_count);
    const json_t *point = json_array_get(list, table->point_count);
    dt_status status = read_point(point, inner, table, &points[table->point_count]);
    if (status) return status;
  }
  return DT_OK;
}

static dt_status read_table(dt_platform *platform, size_t index, const json_t *object) {
  char where[WHERE];
  snprintf(where, sizeof where, "tables[%zu]", index);
  dt_platform_table table = {0};
  dt_status status = read_text(object, where, "name", 1, &table.name);
  if (status) return status;
  snprintf(where, sizeof where, "tables[%zu] (%.100s)", index, table.name);
  status = read_text(object, where, "pattern", 0, &table.pattern);
  if (!status) status = read_text(object, where, "operation", 0, &table.operation);
  if (!status) status = read_text(object, where, "alignment", 0, &table.alignment);
  if (!status) status = read_text(object, where, "method", 1, &table.method);
  if (!status) status = check_unit(object, where, table.name);
  if (!status) status = read_arguments(object, where, &table);
  if (status) return status;
  const json_t *list = json_object_get(object, "points");
  if (!json_is_array(list)) return dt_fail(DT_ERR_INPUT, "%s.points: missing; a list of points is needed", where);
  dt_platform_point *points = calloc(json_array_size(list) + 1, sizeof *points);
  if (!points) return dt_fail(DT_ERR_MEMORY, "%s.points: no memory", where);
  status = read_points(object, where, &table, points);
  if (!status) status = dt_platform_check_table(&table, where, DT_ERR_INPUT);
  if (!status) status = dt_platform_add_table(platform, &table);
  if (status == DT_ERR_ARGUMENT) /* only another table with its labels is left to refuse */
    status = dt_fail(DT_ERR_INPUT, "%s: a second table with the same labels; each is allowed once", where);
  for (size_t i = 0; i < json_array_size(list); i++) free((void *)points[i].samples);
  free(points);
  return status;
}

static dt_status read_clocks(const json_t *device, const char *key, dt_platform_clocks *clocks) {
  const json_t *object = json_object_get(device, key);
  char where[64];
  snprintf(where, sizeof where, "device.%s", key);
  if (!object) return DT_OK;
  if (!json_is_object(object)) return dt_fail(DT_ERR_INPUT, "%s: not an object", where);
  dt_status status = read_number(object, where, "sm_hz", &clocks->sm_hz);
  if (!status) status = read_number(object, where, "memory_hz", &clocks->memory_hz);
  return status;
}

static dt_status read_device(const json_t *root, dt_platform **platform) {
  const json_t *object = json_object_get(root, "device");
  if (!json_is_object(object)) return dt_fail(DT_ERR_INPUT, "device: missing; an object is needed");
  dt_platform_device device = {0};
  dt_status status = read_text(object, "device", "kind", 1, &device.kind);
  if (!status) status = read_text(object, "device", "name", 1, &device.name);
  if (!status) status = read_text(object, "device", "driver", 1, &device.driver);
  if (!status) status = read_text(object, "device", "date", 1, &device.date);
  if (!status) status = read_count(object, "device", "count", &device.count);
  if (!status) status = read_clocks(object, "clocks_before", &device.clocks_before);
  if (!status) status = read_clocks(object, "clocks_after", &device.clocks_after);
  device.throttled = json_is_true(json_object_get(object, "throttled"));
  if (!status) status = dt_platform_check_device(&device, DT_ERR_INPUT);
  if (!status) status = dt_platform_create(&device, platform);
  return status;
}

static dt_status read_root(json_t *root, dt_platform **platform) {
  const char *schema;
  int64_t version = 0;
  if (!json_is_object(root)) return dt_fail(DT_ERR_INPUT, "schema: missing; a JSON object is needed");
  dt_status status = read_text(root, "(top)", "schema", 1, &schema);
  if (status) return status;
  if (strcmp(schema, schema_name) != 0)
    return dt_fail(DT_ERR_INPUT, "schema: \"%s\"; \"%s\" is allowed", schema, schema_name);
  status = read_count(root, "(top)", "version", &version);
  if (status) return status;
  if (version != SCHEMA_VERSION)
    return dt_fail(DT_ERR_INPUT, "version: %lld; %d is allowed", (long long)version, SCHEMA_VERSION);
  status = read_device(root, platform);
  if (status) return status;

  json_t *constants = json_object_get(root, "constants"), *value;
  const json_t *tables = json_object_get(root, "tables"), *notes = json_object_get(root, "notes");
  const char *name;
  if (!json_is_object(constants)) return dt_fail(DT_ERR_INPUT, "constants: missing; an object is needed");
  if (!json_is_array(tables)) return dt_fail(DT_ERR_INPUT, "tables: missing; a list is needed");
  if (notes && !json_is_array(notes)) return dt_fail(DT_ERR_INPUT, "notes: not a list; a list of texts is allowed");
  json_object_foreach(constants, name, value) {
    status = read_constant(*platform, name, value);
    if (status) return status;
  }
  for (size_t i = 0; !status && i < json_array_size(tables); i++)
    status = read_table(*platform, i, json_array_get(tables, i));
  for (size_t i = 0; !status && i < json_array_size(notes); i++) {
    const char *note = json_string_value(json_array_get(notes, i));
    if (note) status = dt_platform_add_note(*platform, note);
    if (!note || status == DT_ERR_ARGUMENT)
      status = dt_fail(DT_ERR_INPUT, "notes[%zu]: a text that is not empty is allowed", i);
  }
  return status;
}

dt_status dt_platform_load(const char *path, dt_platform **out) {
  char *text = NULL;
  size_t length = 0;
  dt_status status = dt_read_text(path, false, &text, &length);
  if (status) return status;
  json_error_t error;
  json_t *root = dt_json_parse(path, text, length, &error, &status);
  if (status == DT_ERR_INPUT) {
    char where[256];
    dt_json_path(text, length, error.position > 0 ? (size_t)error.position : 0, where, sizeof where);
    status = dt_fail(DT_ERR_INPUT, "%s: %s: line %d: %s; JSON is allowed, which has no NaN or infinity", path, where,
                     error.line, error.text);
  }
  if (status) {
    free(text);
    return status;
  }
  dt_platform *platform = NULL;
  status = read_root(root, &platform);
  if (status) {
    status = dt_fail(status, "%s: %s", path, dt_error_detail());
    dt_platform_destroy(platform);
  } else {
    *out = platform;
  }
  json_decref(root);
  free(text);
  return status;
}
