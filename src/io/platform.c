#include "platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static dt_status no_memory(void) {
  return dt_fail(DT_ERR_MEMORY, "platform: no memory for a copy");
}

static char *copy_text(const char *text) {
  size_t length = text ? strlen(text) : 0;
  char *copy = malloc(length + 1);
  if (copy && length) memcpy(copy, text, length);
  if (copy) copy[length] = '\0';
  return copy;
}

/* One more element of `size` bytes, zeroed; the arrays are short. */
static void *grow(void *array, size_t count, size_t size) {
  char *grown = realloc(array, (count + 1) * size);
  if (grown) memset(grown + count * size, 0, size);
  return grown;
}

static void release_constant(owned_constant *constant) {
  free(constant->name);
  free(constant->method);
  free(constant->samples);
}

static void release_table(owned_table *table) {
  for (size_t i = 0; i < sizeof table->strings / sizeof *table->strings; i++) free(table->strings[i]);
  free(table->points);
  free(table->samples);
}

dt_status dt_platform_create(const dt_platform_device *device, dt_platform **out) {
  dt_status status = dt_platform_check_device(device, DT_ERR_ARGUMENT);
  if (status) return status;
  dt_platform *platform = calloc(1, sizeof *platform);
  if (!platform) return no_memory();
  const char *const texts[] = {device->kind, device->name, device->driver, device->date};
  for (int i = 0; i < 4; i++) {
    platform->device_strings[i] = copy_text(texts[i]);
    if (!platform->device_strings[i]) {
      dt_platform_destroy(platform);
      return no_memory();
    }
  }
  platform->device = *device;
  platform->device.kind = platform->device_strings[0];
  platform->device.name = platform->device_strings[1];
  platform->device.driver = platform->device_strings[2];
  platform->device.date = platform->device_strings[3];
  platform->device.throttled = device->throttled != 0;
  *out = platform;
  return DT_OK;
}

void dt_platform_destroy(dt_platform *platform) {
  if (!platform) return;
  for (size_t i = 0; i < platform->constant_count; i++) release_constant(&platform->constants[i]);
  for (size_t i = 0; i < platform->table_count; i++) release_table(&platform->tables[i]);
  for (size_t i = 0; i < platform->note_count; i++) free(platform->notes[i]);
  for (int i = 0; i < 4; i++) free(platform->device_strings[i]);
  free(platform->constants);
  free(platform->tables);
  free(platform->notes);
  free(platform);
}

static dt_status copy_samples(const double *samples, size_t count, double **copy) {
  if (count == 0) return DT_OK;
  *copy = malloc(count * sizeof **copy);
  if (!*copy) return no_memory();
  memcpy(*copy, samples, count * sizeof **copy);
  return DT_OK;
}

static dt_status copy_constant(const dt_platform_constant *from, owned_constant *to) {
  memset(to, 0, sizeof *to);
  to->name = copy_text(from->name);
  to->method = copy_text(from->method);
  dt_status status = to->name && to->method ? DT_OK : no_memory();
  if (!status) status = copy_samples(from->samples, from->sample_count, &to->samples);
  if (status) {
    release_constant(to);
    return status;
  }
  to->view = *from;
  to->view.name = to->name;
  to->view.method = to->method;
  to->view.samples = to->samples;
  return DT_OK;
}

dt_status dt_platform_set_constant(dt_platform *platform, const dt_platform_constant *constant) {
  dt_status status = dt_platform_constant_check(constant);
  if (status) return status;
  owned_constant copy;
  status = copy_constant(constant, &copy);
  if (status) return status;
  for (size_t i = 0; i < platform->constant_count; i++) {
    if (strcmp(platform->constants[i].name, copy.name) != 0) continue;
    release_constant(&platform->constants[i]);
    platform->constants[i] = copy;
    return DT_OK;
  }
  owned_constant *grown = grow(platform->constants, platform->constant_count, sizeof *grown);
  if (!grown) {
    release_constant(&copy);
    return no_memory();
  }
  platform->constants = grown;
  platform->constants[platform->constant_count++] = copy;
  return DT_OK;
}

static dt_status copy_points(const dt_platform_table *from, owned_table *to) {
  size_t total = 0, at = 0;
  for (size_t i = 0; i < from->point_count; i++) total += from->points[i].sample_count;
  to->points = malloc((from->point_count + 1) * sizeof *to->points);
  to->samples = malloc((total + 1) * sizeof *to->samples);
  if (!to->points || !to->samples) return no_memory();
  for (size_t i = 0; i < from->point_count; i++) {
    dt_platform_point *point = &to->points[i];
    *point = from->points[i];
    if (point->sample_count) memcpy(to->samples + at, point->samples, point->sample_count * sizeof *to->samples);
    point->samples = point->sample_count ? to->samples + at : NULL;
    at += point->sample_count;
  }
  return DT_OK;
}

static dt_status copy_table(const dt_platform_table *from, owned_table *to) {
  memset(to, 0, sizeof *to);
  const char *texts[5 + DT_PLATFORM_ARGUMENTS] = {from->name, from->pattern, from->operation, from->alignment,
                                                  from->method};
  for (int32_t a = 0; a < from->argument_count; a++) texts[5 + a] = from->arguments[a];
  dt_status status = DT_OK;
  for (int32_t i = 0; i < 5 + from->argument_count; i++) {
    to->strings[i] = copy_text(texts[i]);
    if (!to->strings[i]) status = no_memory();
  }
  if (!status) status = copy_points(from, to);
  if (status) {
    release_table(to);
    return status;
  }
  to->view = (dt_platform_table){
      .name = to->strings[0],
      .pattern = to->strings[1],
      .operation = to->strings[2],
      .alignment = to->strings[3],
      .method = to->strings[4],
      .argument_count = from->argument_count,
      .points = to->points,
      .point_count = from->point_count,
  };
  for (int32_t a = 0; a < from->argument_count; a++) to->view.arguments[a] = to->strings[5 + a];
  return DT_OK;
}

static int same_text(const char *a, const char *b) {
  return strcmp(a ? a : "", b ? b : "") == 0;
}

dt_status dt_platform_add_table(dt_platform *platform, const dt_platform_table *table) {
  dt_status status = dt_platform_check_table(table, table->name ? table->name : "table", DT_ERR_ARGUMENT);
  if (status) return status;
  for (size_t i = 0; i < platform->table_count; i++) {
    const dt_platform_table *other = &platform->tables[i].view;
    if (same_text(other->name, table->name) && same_text(other->pattern, table->pattern) &&
        same_text(other->operation, table->operation) && same_text(other->alignment, table->alignment))
      return dt_fail(DT_ERR_ARGUMENT, "%s: a second table with the same labels; each is allowed once", table->name);
  }
  owned_table copy;
  status = copy_table(table, &copy);
  if (status) return status;
  owned_table *grown = grow(platform->tables, platform->table_count, sizeof *grown);
  if (!grown) {
    release_table(&copy);
    return no_memory();
  }
  platform->tables = grown;
  platform->tables[platform->table_count++] = copy;
  return DT_OK;
}

dt_status dt_platform_add_note(dt_platform *platform, const char *note) {
  if (!note || !*note) return dt_fail(DT_ERR_ARGUMENT, "note: empty; a line of text is allowed");
  char *copy = copy_text(note);
  char **grown = copy ? grow(platform->notes, platform->note_count, sizeof *grown) : NULL;
  if (!grown) {
    free(copy);
    return no_memory();
  }
  platform->notes = grown;
  platform->notes[platform->note_count++] = copy;
  return DT_OK;
}

const dt_platform_device *dt_platform_get_device(const dt_platform *platform) {
  return &platform->device;
}

size_t dt_platform_constant_count(const dt_platform *platform) {
  return platform->constant_count;
}

const dt_platform_constant *dt_platform_constant_at(const dt_platform *platform, size_t index) {
  return index < platform->constant_count ? &platform->constants[index].view : NULL;
}

size_t dt_platform_table_count(const dt_platform *platform) {
  return platform->table_count;
}

const dt_platform_table *dt_platform_table_at(const dt_platform *platform, size_t index) {
  return index < platform->table_count ? &platform->tables[index].view : NULL;
}

size_t dt_platform_note_count(const dt_platform *platform) {
  return platform->note_count;
}

const char *dt_platform_note_at(const dt_platform *platform, size_t index) {
  return index < platform->note_count ? platform->notes[index] : NULL;
}
