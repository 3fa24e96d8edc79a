#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "file.h"
#include "safetensors.h"

static char *join(const char *folder, const char *file) {
  size_t room = strlen(folder) + strlen(file) + 2;
  char *path = malloc(room);
  if (path) snprintf(path, room, "%s/%s", folder, file);
  return path;
}

static dt_status read_config(dt_checkpoint *checkpoint) {
  char *path = join(checkpoint->folder, "config.json"), *text = NULL;
  size_t bytes = 0;
  if (!path) return dt_fail(DT_ERR_MEMORY, "%s: no memory to open it", checkpoint->folder);
  dt_status status = dt_read_text(path, true, &text, &bytes);
  if (status == DT_OK) status = dt_model_config_parse(path, text, bytes, &checkpoint->config);
  free(text);
  free(path);
  return status;
}

/* A single file wins over an index, as transformers has it. */
static dt_status find_shards(dt_checkpoint *checkpoint) {
  char *single = join(checkpoint->folder, "model.safetensors");
  char *index = join(checkpoint->folder, "model.safetensors.index.json"), *text = NULL;
  size_t bytes = 0;
  dt_status status = DT_OK;
  if (!single || !index) {
    status = dt_fail(DT_ERR_MEMORY, "%s: no memory to open it", checkpoint->folder);
  } else if (!access(single, F_OK)) {
    status = dt_shards_single("model.safetensors", &checkpoint->shards);
  } else if (access(index, F_OK)) {
    status =
        dt_fail(DT_ERR_IO, "%s: holds neither model.safetensors nor model.safetensors.index.json", checkpoint->folder);
  } else {
    status = dt_read_text(index, true, &text, &bytes);
    if (status == DT_OK) status = dt_shards_parse(index, text, bytes, &checkpoint->shards);
  }
  free(text);
  free(single);
  free(index);
  return status;
}

dt_status dt_checkpoint_open(const char *dir, dt_checkpoint **out) {
  if (!*dir) return dt_fail(DT_ERR_IO, "dir: \"\"; a folder is needed"); /* or files of the root would be read */
  dt_checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
  if (checkpoint) checkpoint->folder = strdup(dir);
  if (!checkpoint || !checkpoint->folder) {
    free(checkpoint);
    return dt_fail(DT_ERR_MEMORY, "%s: no memory to open it", dir);
  }
  pthread_mutex_init(&checkpoint->lock, NULL);
  dt_status status = read_config(checkpoint);
  if (status == DT_OK) status = find_shards(checkpoint);
  if (status != DT_OK) {
    dt_checkpoint_close(checkpoint);
    return status;
  }
  *out = checkpoint;
  return DT_OK;
}

void dt_checkpoint_close(dt_checkpoint *checkpoint) {
  if (!checkpoint) return;
  dt_shards_free(&checkpoint->shards);
  dt_model_config_free(&checkpoint->config);
  pthread_mutex_destroy(&checkpoint->lock);
  free(checkpoint->folder);
  free(checkpoint);
}

const dt_checkpoint_info *dt_checkpoint_get_info(const dt_checkpoint *checkpoint) {
  return &checkpoint->config.info;
}

int dt_checkpoint_layer_is_moe(const dt_checkpoint *checkpoint, int32_t layer) {
  return dt_model_config_layer_is_moe(&checkpoint->config, layer);
}

/* *file stays NULL when no shard lists the tensor. */
static dt_status open_shard(dt_checkpoint *checkpoint, const char *name, dt_tensor_file **file) {
  dt_shard *shard = dt_shards_find(&checkpoint->shards, name);
  *file = NULL;
  if (!shard) return DT_OK;
  dt_status status = DT_OK;
  pthread_mutex_lock(&checkpoint->lock);
  if (!shard->open) {
    char *path = join(checkpoint->folder, shard->file);
    status = path ? dt_tensor_file_open(path, &shard->open)
                  : dt_fail(DT_ERR_MEMORY, "%s: no memory to open a shard", checkpoint->folder);
    free(path);
  }
  *file = shard->open;
  pthread_mutex_unlock(&checkpoint->lock);
  return status;
}

dt_status dt_checkpoint_has(dt_checkpoint *checkpoint, const char *name, int *has) {
  dt_tensor_file *file = NULL;
  dt_status status = open_shard(checkpoint, name, &file);
  *has = file && dt_tensor_file_has(file, name);
  return status;
}

static const char *types_text(unsigned types, char *buffer, size_t bytes) {
  size_t at = 0;
  buffer[0] = 0;
  for (int dtype = 0; dtype < 32 && at < bytes; dtype++) {
    const char *name = types >> dtype & 1u ? dt_safetensors_dtype_name((dt_dtype)dtype) : NULL;
    if (name) at += (size_t)snprintf(buffer + at, bytes - at, "%s%s", at ? " or " : "", name);
  }
  return buffer;
}

dt_status dt_checkpoint_tensor(dt_checkpoint *checkpoint, const char *name, const int64_t *shape, int32_t dims,
                               unsigned types, dt_tensor *tensor) {
  char expected[128], found[128], allowed[64];
  dt_tensor_file *file = NULL;
  dt_status status = open_shard(checkpoint, name, &file);
  if (status != DT_OK) return status;
  dt_shape_text(shape, dims, expected, sizeof expected);
  types_text(types, allowed, sizeof allowed);
  if (!file || !dt_tensor_file_has(file, name)) {
    return dt_fail(DT_ERR_INPUT, "%s: tensor '%s': missing; expected %s of %s",
                   file ? dt_tensor_file_path(file) : checkpoint->folder, name, expected, allowed);
  }
  dt_tensor got;
  status = dt_tensor_file_get(file, name, &got);
  if (status != DT_OK) return status;
  int same = got.dims == dims;
  for (int32_t i = 0; i < dims && same; i++) same = got.shape[i] == shape[i];
  if (!same) {
    return dt_fail(DT_ERR_INPUT, "%s: tensor '%s': shape %s; config.json makes it %s", dt_tensor_file_path(file), name,
                   dt_shape_text(got.shape, got.dims, found, sizeof found), expected);
  }
  if (!(types >> got.dtype & 1u)) {
    return dt_fail(DT_ERR_INPUT, "%s: tensor '%s': dtype %s; allowed are %s", dt_tensor_file_path(file), name,
                   dt_safetensors_dtype_name(got.dtype), allowed);
  }
  *tensor = got;
  return DT_OK;
}
