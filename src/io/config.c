#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "json_path.h"
#include "safetensors.h"

enum { MAX_WIDTH = 1 << 24, MAX_COUNT = 1 << 20 }; /* keeps every product of two sizes far inside 64 bits */

static const char *const family_names[] = {
    [DT_FAMILY_MIXTRAL] = "mixtral", [DT_FAMILY_QWEN2_MOE] = "qwen2_moe",     [DT_FAMILY_QWEN3_MOE] = "qwen3_moe",
    [DT_FAMILY_OLMOE] = "olmoe",     [DT_FAMILY_DEEPSEEK_V3] = "deepseek_v3", [DT_FAMILY_GPT_OSS] = "gpt_oss",
};

dt_status dt_parse_object(const char *path, const char *text, size_t bytes, json_t **object) {
  json_error_t error;
  char what[JSON_ERROR_TEXT_LENGTH];
  dt_status status;
  json_t *root = dt_json_parse(path, text, bytes, &error, &status);
  if (status == DT_ERR_INPUT) {
    return dt_fail(DT_ERR_INPUT, "%s: line %d: %s", path, error.line, dt_printable(error.text, what, sizeof what));
  }
  if (status != DT_OK) return status;
  if (!json_is_object(root)) {
    json_decref(root);
    return dt_fail(DT_ERR_INPUT, "%s: must be a JSON object", path);
  }
  *object = root;
  return DT_OK;
}

/* Fields are read one after the other; the first failure sticks and later reads return at once. */
typedef struct reader {
  const char *path;
  const json_t *root;
  dt_status status;
} reader;

/* NULL where absent or null, as Hugging Face writes either. */
static const json_t *field(const reader *r, const char *name) {
  const json_t *value = json_object_get(r->root, name);
  return json_is_null(value) ? NULL : value;
}

static int64_t read_int(reader *r, const char *name, int64_t fallback, int64_t low, int64_t high) {
  if (r->status != DT_OK) return low;
  const json_t *value = field(r, name);
  if (!value && fallback >= 0) return fallback;
  if (!value) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: %s: missing; an integer from %" PRId64 " to %" PRId64 " is needed", r->path,
                        name, low, high);
  } else if (!json_is_integer(value)) {
    r->status =
        dt_fail(DT_ERR_INPUT, "%s: %s: not an integer; allowed are %" PRId64 " to %" PRId64, r->path, name, low, high);
  } else if (json_integer_value(value) < low || json_integer_value(value) > high) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: %s: %" JSON_INTEGER_FORMAT "; allowed are %" PRId64 " to %" PRId64, r->path,
                        name, json_integer_value(value), low, high);
  }
  return r->status == DT_OK ? json_integer_value(value) : low;
}

static int read_bool(reader *r, const char *name, int fallback) {
  const json_t *value = field(r, name);
  if (r->status != DT_OK || !value) return fallback;
  if (!json_is_boolean(value)) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: %s: must be true or false", r->path, name);
  }
  return json_is_true(value);
}

static float read_float(reader *r, const char *name, float fallback) {
  const json_t *value = field(r, name);
  if (r->status != DT_OK || !value) return fallback;
  if (!json_is_number(value)) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: %s: must be a finite number above 0", r->path, name);
    return fallback;
  }
  const float number = (float)json_number_value(value);
  if (!isfinite(number) || number <= 0.0f) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: %s: %g; allowed is a finite number above 0", r->path, name, (double)number);
  }
  return number;
}

/* A string that, where present, must be `only`. */
static void require_text(reader *r, const char *name, const char *only) {
  const json_t *value = field(r, name);
  if (r->status != DT_OK || !value) return;
  char text[64];
  const char *found = json_is_string(value) ? json_string_value(value) : "(no string)";
  if (strcmp(found, only) != 0) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: %s: '%s'; allowed is '%s'", r->path, name,
                        dt_printable(found, text, sizeof text), only);
  }
}

static void read_family(reader *r, dt_model_config *config) {
  const json_t *value = field(r, "model_type");
  const char *found = json_is_string(value) ? json_string_value(value) : "";
  char text[64];
  for (size_t i = 0; i < sizeof family_names / sizeof *family_names; i++) {
    if (strcmp(found, family_names[i]) != 0) continue;
    config->family = (dt_family)i;
    config->info.model_type = family_names[i];
    return;
  }
  r->status = dt_fail(DT_ERR_INPUT,
                      "%s: model_type: '%s'; allowed are mixtral, qwen2_moe, qwen3_moe, olmoe, deepseek_v3 and gpt_oss",
                      r->path, dt_printable(found, text, sizeof text));
}

static dt_dtype read_dtype(reader *r) {
  const char *name = field(r, "dtype") ? "dtype" : "torch_dtype";
  const json_t *value = field(r, name);
  if (r->status != DT_OK || !value) return DT_DTYPE_F32;
  const char *found = json_is_string(value) ? json_string_value(value) : "";
  if (!strcmp(found, "float32")) return DT_DTYPE_F32;
  if (!strcmp(found, "bfloat16")) return DT_DTYPE_BF16;
  if (!strcmp(found, "float16")) return DT_DTYPE_F16;
  char text[64];
  r->status = dt_fail(DT_ERR_INPUT, "%s: %s: '%s'; allowed are float32, bfloat16 and float16", r->path, name,
                      dt_printable(found, text, sizeof text));
  return DT_DTYPE_F32;
}

/* fp8 (blocks) for every family that stores one matrix a tensor, mxfp4 for gpt_oss. */
static void read_quantization(reader *r, dt_model_config *config) {
  const json_t *quantization = field(r, "quantization_config");
  if (r->status != DT_OK || !quantization) return;
  const char *method = json_string_value(json_object_get(quantization, "quant_method"));
  int is_gpt_oss = config->family == DT_FAMILY_GPT_OSS;
  const char *allowed = is_gpt_oss ? "mxfp4" : "fp8";
  if (!method || strcmp(method, allowed) != 0) {
    char text[64];
    r->status = dt_fail(DT_ERR_INPUT, "%s: quantization_config.quant_method: '%s'; allowed for %s is %s", r->path,
                        dt_printable(method ? method : "", text, sizeof text), config->info.model_type, allowed);
    return;
  }
  config->info.weights_dtype = is_gpt_oss ? DT_DTYPE_MXFP4 : DT_DTYPE_F8_E4M3;
  if (is_gpt_oss) return;
  const json_t *block = json_object_get(quantization, "weight_block_size");
  json_int_t sizes[2] = {0, 0};
  for (size_t i = 0; i < 2; i++) sizes[i] = json_integer_value(json_array_get(block, i));
  if (json_array_size(block) != 2 || sizes[0] < 1 || sizes[1] < 1 || sizes[0] > MAX_WIDTH || sizes[1] > MAX_WIDTH) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: quantization_config.weight_block_size: must be two integers from 1 to %d",
                        r->path, MAX_WIDTH);
    return;
  }
  config->scale_rows = (int32_t)sizes[0];
  config->scale_cols = (int32_t)sizes[1];
}

static void read_mlp_only(reader *r, dt_model_config *config) {
  const json_t *layers = field(r, "mlp_only_layers");
  if (r->status != DT_OK || !layers) return;
  size_t count = json_array_size(layers);
  config->mlp_only = calloc(count + 1, sizeof *config->mlp_only);
  if (!config->mlp_only) {
    r->status = dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", r->path);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    const json_t *layer = json_array_get(layers, i);
    if (!json_is_integer(layer) || json_integer_value(layer) < 0 || json_integer_value(layer) > MAX_COUNT) {
      r->status = dt_fail(DT_ERR_INPUT, "%s: mlp_only_layers: must be an array of layer numbers", r->path);
      return;
    }
    config->mlp_only[config->mlp_only_count++] = (int32_t)json_integer_value(layer);
  }
  if (!json_is_array(layers)) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: mlp_only_layers: must be an array of layer numbers", r->path);
  }
}

static void read_deepseek(reader *r, dt_model_config *config) {
  require_text(r, "scoring_func", "sigmoid");
  require_text(r, "topk_method", "noaux_tc");
  int32_t experts = config->info.experts, top_k = config->info.top_k;
  config->score = DT_ROUTER_SIGMOID_GROUPS;
  config->groups = (int32_t)read_int(r, "n_group", 8, 1, experts);
  config->group_top_k = (int32_t)read_int(r, "topk_group", 4, 1, config->groups);
  config->scale = read_float(r, "routed_scaling_factor", 2.5f);
  config->first_dense = (int32_t)read_int(r, "first_k_dense_replace", 3, 0, MAX_COUNT);
  config->sparse_step = (int32_t)read_int(r, "moe_layer_freq", 1, 1, MAX_COUNT);
  config->step_offset = 0;
  config->info.shared_intermediate = config->info.intermediate * read_int(r, "n_shared_experts", 1, 0, 1024);
  if (r->status != DT_OK) return;
  if (experts % config->groups || experts / config->groups < 2) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: n_group: %d; must split %d experts into equal groups of at least 2", r->path,
                        config->groups, experts);
  } else if (top_k > experts / config->groups * config->group_top_k) {
    r->status =
        dt_fail(DT_ERR_INPUT, "%s: num_experts_per_tok: %d; topk_group %d of %d groups leave %d experts to choose",
                r->path, top_k, config->group_top_k, config->groups, experts / config->groups * config->group_top_k);
  }
}

static void read_fields(reader *r, dt_model_config *config) {
  static const char *const expert_fields[] = {"n_routed_experts", "num_experts", "num_local_experts"};
  dt_checkpoint_info *info = &config->info;
  read_family(r, config);
  if (r->status != DT_OK) return;
  require_text(r, "hidden_act", "silu");
  info->dtype = info->weights_dtype = read_dtype(r);
  read_quantization(r, config);
  int own_width = config->family == DT_FAMILY_QWEN2_MOE || config->family == DT_FAMILY_QWEN3_MOE ||
                  config->family == DT_FAMILY_DEEPSEEK_V3;
  info->hidden = read_int(r, "hidden_size", -1, 1, MAX_WIDTH);
  info->intermediate = read_int(r, own_width ? "moe_intermediate_size" : "intermediate_size", -1, 1, MAX_WIDTH);
  info->layers = (int32_t)read_int(r, "num_hidden_layers", -1, 1, MAX_COUNT);
  size_t i = config->family == DT_FAMILY_DEEPSEEK_V3 ? 0 : config->family == DT_FAMILY_MIXTRAL ? 2 : 1;
  const char *experts = expert_fields[i];
  for (size_t j = 0; j < 3 && !field(r, experts); j++) experts = expert_fields[j];
  if (!field(r, experts)) experts = expert_fields[i]; /* reported as missing */
  info->experts = (int32_t)read_int(r, experts, -1, 1, MAX_COUNT);
  info->top_k = (int32_t)read_int(r, "num_experts_per_tok", -1, 1, MAX_COUNT);
  if (r->status == DT_OK && info->top_k > info->experts) {
    r->status = dt_fail(DT_ERR_INPUT, "%s: num_experts_per_tok: %d; at most %s = %d are allowed", r->path, info->top_k,
                        experts, info->experts);
  }
  config->sparse_step = config->step_offset = 1;
  switch (config->family) {
  case DT_FAMILY_MIXTRAL:
    config->normalize = 1;
    break;
  case DT_FAMILY_OLMOE:
    config->normalize = read_bool(r, "norm_topk_prob", 0);
    break;
  case DT_FAMILY_QWEN2_MOE:
    info->shared_intermediate = read_int(r, "shared_expert_intermediate_size", -1, 0, MAX_WIDTH);
    /* fall through */
  case DT_FAMILY_QWEN3_MOE:
    config->normalize = read_bool(r, "norm_topk_prob", 0);
    config->sparse_step = (int32_t)read_int(r, "decoder_sparse_step", 1, 1, MAX_COUNT);
    read_mlp_only(r, config);
    break;
  case DT_FAMILY_DEEPSEEK_V3:
    config->normalize = read_bool(r, "norm_topk_prob", 1);
    read_deepseek(r, config);
    break;
  case DT_FAMILY_GPT_OSS:
    config->score = DT_ROUTER_TOPK_SOFTMAX;
    config->swiglu_alpha = read_float(r, "swiglu_alpha", 1.702f);
    config->swiglu_limit = read_float(r, "swiglu_limit", 7.0f);
    break;
  }
}

dt_status dt_model_config_parse(const char *path, const char *text, size_t bytes, dt_model_config *out) {
  json_t *root = NULL;
  dt_status status = dt_parse_object(path, text, bytes, &root);
  if (status != DT_OK) return status;
  dt_model_config config = {.scale = 1.0f, .groups = 1, .group_top_k = 1};
  reader r = {.path = path, .root = root, .status = DT_OK};
  read_fields(&r, &config);
  json_decref(root);
  if (r.status != DT_OK) {
    dt_model_config_free(&config);
    return r.status;
  }
  *out = config;
  return DT_OK;
}

void dt_model_config_free(dt_model_config *config) {
  free(config->mlp_only);
  config->mlp_only = NULL;
}

int dt_model_config_layer_is_moe(const dt_model_config *config, int32_t layer) {
  if (layer < 0 || layer >= config->info.layers || layer < config->first_dense) return 0;
  if ((layer + config->step_offset) % config->sparse_step) return 0;
  for (size_t i = 0; i < config->mlp_only_count; i++) {
    if (config->mlp_only[i] == layer) return 0;
  }
  return 1;
}
