/* libFuzzer target: config.json (first byte even) or model.safetensors.index.json (odd) of any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "io/config.h"
#include "io/shards.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_message(void) {
  if (!*dt_error_detail() || strchr(dt_error_detail(), '\n')) abort();
}

static void read_config(const char *text, size_t bytes) {
  dt_model_config config;
  if (dt_model_config_parse("config.json", text, bytes, &config) != DT_OK) {
    check_message();
    return;
  }
  const dt_checkpoint_info *info = &config.info;
  if (info->hidden < 1 || info->intermediate < 1 || info->top_k < 1 || info->top_k > info->experts) abort();
  if (config.score == DT_ROUTER_SIGMOID_GROUPS && info->experts % config.groups) abort();
  int moe = 0;
  for (int32_t layer = -1; layer < 100; layer++) moe += dt_model_config_layer_is_moe(&config, layer);
  if (moe > info->layers) abort();
  dt_model_config_free(&config);
}

static void read_index(const char *text, size_t bytes) {
  dt_shards shards;
  if (dt_shards_parse("model.safetensors.index.json", text, bytes, &shards) != DT_OK) {
    check_message();
    return;
  }
  for (size_t i = 0; i < shards.entry_count; i++) {
    const dt_shard *shard = dt_shards_find(&shards, shards.entries[i].tensor);
    if (!shard || strchr(shard->file, '/')) abort(); /* never outside the folder */
  }
  dt_shards_free(&shards);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    read_config((const char *)data + 1, size - 1);
  } else {
    read_index((const char *)data + 1, size - 1);
  }
  return 0;
}
