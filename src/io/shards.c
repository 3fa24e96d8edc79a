#include "shards.h"

#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "core/error.h"
#include "safetensors.h"

static int by_file(const void *a, const void *b) {
  return strcmp(((const dt_shard *)a)->file, ((const dt_shard *)b)->file);
}

static int by_tensor(const void *a, const void *b) {
  return strcmp(((const dt_shard_entry *)a)->tensor, ((const dt_shard_entry *)b)->tensor);
}

/* One shard per distinct file name of the map. */
static dt_status collect_files(const char *path, const json_t *map, dt_shards *shards) {
  size_t count = json_object_size(map), kept = 0;
  shards->shards = calloc(count + 1, sizeof *shards->shards);
  if (!shards->shards) return dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path);
  const char *tensor;
  json_t *value;
  char text[256];
  json_object_foreach((json_t *)map, tensor, value) {
    const char *file = json_string_value(value);
    if (!file || !*file || file[0] == '.' || strchr(file, '/')) {
      return dt_fail(DT_ERR_INPUT, "%s: weight_map: tensor '%s': must name a file of the same folder", path,
                     dt_printable(tensor, text, sizeof text));
    }
    shards->shards[shards->shard_count].file = strdup(file);
    if (!shards->shards[shards->shard_count].file) return dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path);
    shards->shard_count++;
  }
  qsort(shards->shards, shards->shard_count, sizeof *shards->shards, by_file);
  for (size_t i = 0; i < shards->shard_count; i++) {
    if (kept && !strcmp(shards->shards[kept - 1].file, shards->shards[i].file)) {
      free(shards->shards[i].file);
    } else {
      shards->shards[kept++] = shards->shards[i];
    }
  }
  shards->shard_count = kept;
  return DT_OK;
}

static dt_status collect_tensors(const char *path, const json_t *map, dt_shards *shards) {
  shards->entries = calloc(json_object_size(map) + 1, sizeof *shards->entries);
  if (!shards->entries) return dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path);
  const char *tensor;
  json_t *value;
  json_object_foreach((json_t *)map, tensor, value) {
    dt_shard key = {.file = (char *)json_string_value(value)};
    const dt_shard *shard = bsearch(&key, shards->shards, shards->shard_count, sizeof key, by_file);
    dt_shard_entry *entry = &shards->entries[shards->entry_count];
    entry->tensor = strdup(tensor);
    if (!entry->tensor) return dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path);
    entry->shard = (size_t)(shard - shards->shards);
    shards->entry_count++;
  }
  qsort(shards->entries, shards->entry_count, sizeof *shards->entries, by_tensor);
  return DT_OK;
}

dt_status dt_shards_parse(const char *path, const char *text, size_t bytes, dt_shards *out) {
  json_t *root = NULL;
  dt_status status = dt_parse_object(path, text, bytes, &root);
  if (status != DT_OK) return status;
  const json_t *map = json_object_get(root, "weight_map");
  dt_shards shards = {0};
  if (!json_is_object(map) || json_object_size(map) == 0) {
    status = dt_fail(DT_ERR_INPUT, "%s: weight_map: must be an object that names a file for each tensor", path);
  } else {
    status = collect_files(path, map, &shards);
    if (status == DT_OK) status = collect_tensors(path, map, &shards);
  }
  json_decref(root);
  if (status != DT_OK) {
    dt_shards_free(&shards);
    return status;
  }
  *out = shards;
  return DT_OK;
}

dt_status dt_shards_single(const char *file, dt_shards *out) {
  dt_shards shards = {.shards = calloc(1, sizeof *shards.shards), .shard_count = 1};
  if (shards.shards) shards.shards[0].file = strdup(file);
  if (!shards.shards || !shards.shards[0].file) {
    free(shards.shards);
    return dt_fail(DT_ERR_MEMORY, "%s: no memory for its name", file);
  }
  *out = shards;
  return DT_OK;
}

void dt_shards_free(dt_shards *shards) {
  for (size_t i = 0; i < shards->shard_count; i++) {
    dt_tensor_file_close(shards->shards[i].open);
    free(shards->shards[i].file);
  }
  for (size_t i = 0; i < shards->entry_count; i++) free(shards->entries[i].tensor);
  free(shards->shards);
  free(shards->entries);
  *shards = (dt_shards){0};
}

dt_shard *dt_shards_find(const dt_shards *shards, const char *tensor) {
  if (shards->entry_count == 0) return shards->shard_count ? &shards->shards[0] : NULL;
  dt_shard_entry key = {.tensor = (char *)tensor};
  const dt_shard_entry *entry = bsearch(&key, shards->entries, shards->entry_count, sizeof key, by_tensor);
  return entry ? &shards->shards[entry->shard] : NULL;
}
