/* What config.json says about a model's MoE layers, checked. */
#ifndef DT_IO_CONFIG_H
#define DT_IO_CONFIG_H

#include <draintile/checkpoint.h>

#include <jansson.h>

typedef enum dt_family {
  DT_FAMILY_MIXTRAL,
  DT_FAMILY_QWEN2_MOE,
  DT_FAMILY_QWEN3_MOE,
  DT_FAMILY_OLMOE,
  DT_FAMILY_DEEPSEEK_V3,
  DT_FAMILY_GPT_OSS
} dt_family;

typedef struct dt_model_config {
  dt_family family;
  dt_checkpoint_info info;
  dt_router_score score;
  int32_t normalize, groups, group_top_k;
  float scale;                      /* routed_scaling_factor */
  float swiglu_alpha, swiglu_limit; /* gpt_oss */
  int32_t first_dense;              /* deepseek_v3: first_k_dense_replace */
  int32_t sparse_step;              /* layer is sparse only if (layer + step_offset) % sparse_step == 0 */
  int32_t step_offset;
  int32_t *mlp_only; /* layers that are dense whatever the rest says */
  size_t mlp_only_count;
  int32_t scale_rows, scale_cols; /* fp8 weight_block_size; 0: not fp8 */
} dt_model_config;

/* A JSON object without duplicate keys; `path` is for messages. Released by json_decref. */
dt_status dt_parse_object(const char *path, const char *text, size_t bytes, json_t **object);

dt_status dt_model_config_parse(const char *path, const char *text, size_t bytes, dt_model_config *config);
void dt_model_config_free(dt_model_config *config);
int dt_model_config_layer_is_moe(const dt_model_config *config, int32_t layer);

#endif
