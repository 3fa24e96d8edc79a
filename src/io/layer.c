/* The MoE layer of one rank: views of its own experts' tensors, in whichever of the forms below the folder holds them.
 * Small arrays (router, biases, narrow scales) become float32 copies; matrices stay in the file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "core/error.h"

enum { NAME = 256 };

typedef struct loader {
  dt_checkpoint *checkpoint;
  const dt_model_config *config;
  int32_t layer, first, count; /* own experts */
  dt_expert *experts;
  float *floats;  /* room left for copies */
  char block[64]; /* "model.layers.3.mlp" */
} loader;

/* "model.layers.3.mlp." and the two parts. */
static const char *name_of(const loader *l, char *buffer, const char *first, const char *second) {
  snprintf(buffer, NAME, "%s.%s%s", l->block, first, second);
  return buffer;
}

/* View of rows x cols elements inside a tensor, starting `first` elements in. */
static dt_matrix view(const dt_tensor *tensor, int64_t first, int64_t rows, int64_t cols, int64_t row_stride,
                      int64_t col_stride) {
  return (dt_matrix){.data = (const char *)tensor->data + (size_t)first * dt_dtype_bytes(tensor->dtype),
                     .dtype = tensor->dtype,
                     .rows = rows,
                     .cols = cols,
                     .row_stride = row_stride,
                     .col_stride = col_stride};
}

/* `count` values from element `first` on, `stride` apart, as float32 in the layer's own memory. */
static const float *copy_floats(loader *l, const dt_tensor *tensor, int64_t first, int64_t count, int64_t stride) {
  dt_matrix column = view(tensor, first, count, 1, stride, 1);
  float *out = l->floats;
  dt_matrix_widen(&column, 0, count, out);
  l->floats += count;
  return out;
}

static int64_t blocks_of(int64_t size, int64_t block) {
  return (size + block - 1) / block;
}

/* Scales of the three matrices of one MLP in fp8. */
static size_t count_scales(const dt_model_config *config, int64_t intermediate) {
  if (config->scale_rows == 0 || config->scale_cols == 0) return 0;
  const int64_t hidden = config->info.hidden, rows = config->scale_rows, cols = config->scale_cols;
  return (size_t)(2 * blocks_of(intermediate, rows) * blocks_of(hidden, cols) +
                  blocks_of(hidden, rows) * blocks_of(intermediate, cols));
}

/* One matrix a tensor: plain, or fp8 with one scale a block in NAME_scale_inv: in float32 where they lie, or, as Qwen's
 * are, in bf16. */
static dt_status load_matrix(loader *l, const char *name, int64_t rows, int64_t cols, dt_matrix *matrix) {
  const dt_model_config *config = l->config;
  dt_tensor tensor;
  unsigned types = DT_TYPES_FLOAT | (config->scale_rows ? 1u << DT_DTYPE_F8_E4M3 : 0);
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name, (int64_t[]){rows, cols}, 2, types, &tensor);
  if (status != DT_OK) return status;
  *matrix = view(&tensor, 0, rows, cols, cols, 1);
  if (tensor.dtype != DT_DTYPE_F8_E4M3 || config->scale_rows == 0 || config->scale_cols == 0) return DT_OK;
  char scale_name[NAME + 16];
  int64_t scale_rows = blocks_of(rows, config->scale_rows), scale_cols = blocks_of(cols, config->scale_cols);
  snprintf(scale_name, sizeof scale_name, "%s_scale_inv", name);
  status =
      dt_checkpoint_tensor(l->checkpoint, scale_name, (int64_t[]){scale_rows, scale_cols}, 2, DT_TYPES_FLOAT, &tensor);
  if (status != DT_OK) return status;
  const int wide = tensor.dtype == DT_DTYPE_F32;
  matrix->scales = wide ? tensor.data : copy_floats(l, &tensor, 0, scale_rows * scale_cols, 1);
  matrix->scale_rows = config->scale_rows;
  matrix->scale_cols = config->scale_cols;
  matrix->scale_stride = scale_cols;
  return DT_OK;
}

/* A gated MLP stored as three matrices: an expert, or the shared expert. `stem` is below the block. */
static dt_status load_mlp(loader *l, const char *stem, const char *const parts[3], int64_t intermediate,
                          dt_expert *expert) {
  char name[NAME];
  int64_t hidden = l->config->info.hidden;
  dt_status status = load_matrix(l, name_of(l, name, stem, parts[0]), intermediate, hidden, &expert->gate);
  if (status == DT_OK) {
    status = load_matrix(l, name_of(l, name, stem, parts[1]), intermediate, hidden, &expert->up);
  }
  if (status == DT_OK) {
    status = load_matrix(l, name_of(l, name, stem, parts[2]), hidden, intermediate, &expert->down);
  }
  return status;
}

static const char *const proj_parts[3] = {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"};

/* Form 1, hub checkpoints: a tensor per expert and matrix. */
static dt_status load_per_expert(loader *l) {
  static const char *const mixtral_parts[3] = {".w1.weight", ".w3.weight", ".w2.weight"};
  int is_mixtral = l->config->family == DT_FAMILY_MIXTRAL;
  for (int32_t e = 0; e < l->count; e++) {
    char stem[64];
    snprintf(stem, sizeof stem, "experts.%d", l->first + e);
    dt_status status =
        load_mlp(l, stem, is_mixtral ? mixtral_parts : proj_parts, l->config->info.intermediate, &l->experts[e]);
    if (status != DT_OK) return status;
  }
  return DT_OK;
}

/* Form 2, transformers 5 in memory layout: experts.gate_up_proj [E][2I][H] (gate rows, then up), down_proj [E][H][I].
 */
static dt_status load_fused(loader *l) {
  const dt_checkpoint_info *info = &l->config->info;
  int64_t E = info->experts, H = info->hidden, I = info->intermediate;
  char name[NAME];
  dt_tensor gate_up, down;
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "experts.gate_up_proj", ""),
                                          (int64_t[]){E, 2 * I, H}, 3, DT_TYPES_FLOAT, &gate_up);
  if (status != DT_OK) return status;
  status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "experts.down_proj", ""), (int64_t[]){E, H, I}, 3,
                                DT_TYPES_FLOAT, &down);
  if (status != DT_OK) return status;
  for (int32_t e = 0; e < l->count; e++) {
    int64_t at = (int64_t)(l->first + e) * 2 * I * H;
    l->experts[e].gate = view(&gate_up, at, I, H, H, 1);
    l->experts[e].up = view(&gate_up, at + I * H, I, H, H, 1);
    l->experts[e].down = view(&down, (l->first + e) * H * I, H, I, I, 1);
  }
  return DT_OK;
}

/* gpt_oss biases: gate_up_proj_bias [E][2I] (gate and up alternate), down_proj_bias [E][H]. */
static dt_status load_gpt_oss_biases(loader *l) {
  const dt_checkpoint_info *info = &l->config->info;
  int64_t E = info->experts, H = info->hidden, I = info->intermediate;
  char name[NAME];
  dt_tensor gate_up, down;
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "experts.gate_up_proj_bias", ""),
                                          (int64_t[]){E, 2 * I}, 2, DT_TYPES_FLOAT, &gate_up);
  if (status != DT_OK) return status;
  status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "experts.down_proj_bias", ""), (int64_t[]){E, H}, 2,
                                DT_TYPES_FLOAT, &down);
  if (status != DT_OK) return status;
  for (int32_t e = 0; e < l->count; e++) {
    int64_t at = (l->first + e) * 2 * I;
    l->experts[e].gate_bias = copy_floats(l, &gate_up, at, I, 2);
    l->experts[e].up_bias = copy_floats(l, &gate_up, at + 1, I, 2);
    l->experts[e].down_bias = copy_floats(l, &down, (l->first + e) * H, H, 1);
  }
  return DT_OK;
}

/* Form 3, gpt_oss unquantized: transposed, gate and up columns alternate: gate_up_proj [E][H][2I], down_proj [E][I][H].
 */
static dt_status load_gpt_oss(loader *l) {
  const dt_checkpoint_info *info = &l->config->info;
  int64_t E = info->experts, H = info->hidden, I = info->intermediate;
  char name[NAME];
  dt_tensor gate_up, down;
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "experts.gate_up_proj", ""),
                                          (int64_t[]){E, H, 2 * I}, 3, DT_TYPES_FLOAT, &gate_up);
  if (status != DT_OK) return status;
  status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "experts.down_proj", ""), (int64_t[]){E, I, H}, 3,
                                DT_TYPES_FLOAT, &down);
  if (status != DT_OK) return status;
  for (int32_t e = 0; e < l->count; e++) {
    int64_t at = (int64_t)(l->first + e) * H * 2 * I;
    l->experts[e].gate = view(&gate_up, at, I, H, 2, 2 * I);
    l->experts[e].up = view(&gate_up, at + 1, I, H, 2, 2 * I);
    l->experts[e].down = view(&down, (l->first + e) * I * H, H, I, 1, H);
  }
  return DT_OK;
}

static dt_status load_blocks(loader *l, const char *matrix, int64_t rows, int64_t cols, dt_tensor *blocks,
                             dt_tensor *scales) {
  char name[NAME];
  int64_t E = l->config->info.experts;
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, matrix, "_blocks"),
                                          (int64_t[]){E, rows, cols / 32, 16}, 4, 1u << DT_DTYPE_U8, blocks);
  if (status != DT_OK) return status;
  return dt_checkpoint_tensor(l->checkpoint, name_of(l, name, matrix, "_scales"), (int64_t[]){E, rows, cols / 32}, 3,
                              1u << DT_DTYPE_U8, scales);
}

/* `first` in rows of the tensor. */
static dt_matrix view_blocks(const dt_tensor *blocks, const dt_tensor *scales, int64_t first, int64_t rows,
                             int64_t cols, int64_t row_stride) {
  int64_t per_row = cols / 32;
  return (dt_matrix){.data = (const uint8_t *)blocks->data + first * per_row * 16,
                     .scales = (const uint8_t *)scales->data + first * per_row,
                     .dtype = DT_DTYPE_MXFP4,
                     .rows = rows,
                     .cols = cols,
                     .row_stride = row_stride,
                     .col_stride = 1};
}

/* Form 4, gpt_oss mxfp4: gate_up_proj_blocks [E][2I][H/32][16], gate and up rows alternate, and one scale a block. */
static dt_status load_gpt_oss_mxfp4(loader *l) {
  const dt_checkpoint_info *info = &l->config->info;
  int64_t H = info->hidden, I = info->intermediate;
  if (H % 32 || I % 32) {
    return dt_fail(DT_ERR_INPUT,
                   "%s: hidden_size %" PRId64 ", intermediate_size %" PRId64 ": mxfp4 blocks take multiples of 32",
                   l->checkpoint->folder, H, I);
  }
  dt_tensor gate_up, gate_up_scales, down, down_scales;
  dt_status status = load_blocks(l, "experts.gate_up_proj", 2 * I, H, &gate_up, &gate_up_scales);
  if (status == DT_OK) status = load_blocks(l, "experts.down_proj", H, I, &down, &down_scales);
  if (status != DT_OK) return status;
  for (int32_t e = 0; e < l->count; e++) {
    int64_t at = (int64_t)(l->first + e) * 2 * I;
    l->experts[e].gate = view_blocks(&gate_up, &gate_up_scales, at, I, H, 2);
    l->experts[e].up = view_blocks(&gate_up, &gate_up_scales, at + 1, I, H, 2);
    l->experts[e].down = view_blocks(&down, &down_scales, (l->first + e) * H, H, I, 1);
  }
  return DT_OK;
}

/* The form is what the folder holds; a folder that holds none is told what form 1 (or 3) lacks. */
static dt_status load_experts(loader *l) {
  char name[NAME];
  int is_gpt_oss = l->config->family == DT_FAMILY_GPT_OSS, other = 0;
  name_of(l, name, "experts.gate_up_proj", is_gpt_oss ? "_blocks" : "");
  dt_status status = dt_checkpoint_has(l->checkpoint, name, &other);
  if (status != DT_OK) return status;
  if (!is_gpt_oss) return other ? load_fused(l) : load_per_expert(l);
  status = load_gpt_oss_biases(l);
  if (status != DT_OK) return status;
  return other ? load_gpt_oss_mxfp4(l) : load_gpt_oss(l);
}

static dt_status load_vector(loader *l, const char *name, int64_t count, const float **out) {
  dt_tensor tensor;
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name, &count, 1, DT_TYPES_FLOAT, &tensor);
  if (status == DT_OK) *out = copy_floats(l, &tensor, 0, count, 1);
  return status;
}

static dt_status load_router(loader *l, dt_router *router) {
  const dt_model_config *config = l->config;
  const dt_checkpoint_info *info = &config->info;
  int is_gpt_oss = config->family == DT_FAMILY_GPT_OSS;
  *router = (dt_router){.score = config->score,
                        .hidden = info->hidden,
                        .experts = info->experts,
                        .top_k = info->top_k,
                        .normalize = config->normalize,
                        .groups = config->groups,
                        .group_top_k = config->group_top_k,
                        .scale = config->scale};
  char name[NAME];
  dt_tensor tensor;
  dt_status status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, is_gpt_oss ? "router" : "gate", ".weight"),
                                          (int64_t[]){info->experts, info->hidden}, 2, DT_TYPES_FLOAT, &tensor);
  if (status != DT_OK) return status;
  router->weight = copy_floats(l, &tensor, 0, info->experts * info->hidden, 1);
  if (is_gpt_oss) return load_vector(l, name_of(l, name, "router.bias", ""), info->experts, &router->bias);
  if (config->family != DT_FAMILY_DEEPSEEK_V3) return DT_OK;
  return load_vector(l, name_of(l, name, "gate.e_score_correction_bias", ""), info->experts, &router->correction);
}

static dt_status load_shared(loader *l, dt_moe_weights *weights) {
  const dt_checkpoint_info *info = &l->config->info;
  int is_qwen = l->config->family == DT_FAMILY_QWEN2_MOE;
  if (info->shared_intermediate == 0) return DT_OK;
  dt_status status = load_mlp(l, is_qwen ? "shared_expert" : "shared_experts", proj_parts, info->shared_intermediate,
                              &weights->shared);
  weights->shared_intermediate = info->shared_intermediate;
  if (status != DT_OK || !is_qwen) return status;
  char name[NAME];
  dt_tensor gate;
  status = dt_checkpoint_tensor(l->checkpoint, name_of(l, name, "shared_expert_gate.weight", ""),
                                (int64_t[]){1, info->hidden}, 2, DT_TYPES_FLOAT, &gate);
  if (status == DT_OK) weights->shared_gate = copy_floats(l, &gate, 0, info->hidden, 1);
  return status;
}

static dt_status check_request(const dt_checkpoint *checkpoint, int32_t layer, int32_t rank, int32_t ranks) {
  const dt_checkpoint_info *info = &checkpoint->config.info;
  if (layer < 0 || layer >= info->layers) {
    return dt_fail(DT_ERR_ARGUMENT, "layer: %d; %s has layers 0 to %d", layer, checkpoint->folder, info->layers - 1);
  }
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return dt_fail(DT_ERR_ARGUMENT, "rank: %d of %d ranks; allowed are 0 to ranks - 1", rank, ranks);
  }
  if (info->experts % ranks) {
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; must divide the %d experts of %s", ranks, info->experts,
                   checkpoint->folder);
  }
  if (dt_checkpoint_layer_is_moe(checkpoint, layer)) return DT_OK;
  int32_t sparse = 0;
  while (sparse < info->layers && !dt_checkpoint_layer_is_moe(checkpoint, sparse)) sparse++;
  if (sparse == info->layers) return dt_fail(DT_ERR_INPUT, "%s: no layer has experts", checkpoint->folder);
  return dt_fail(DT_ERR_INPUT, "layer: %d; it is dense in %s (no experts); the first layer with experts is %d", layer,
                 checkpoint->folder, sparse);
}

/* Mixtral's own block is block_sparse_moe; transformers 5 calls it mlp like everyone else's. */
static dt_status choose_block(loader *l) {
  char name[NAME];
  int is_mlp = 1;
  dt_status status = DT_OK;
  snprintf(l->block, sizeof l->block, "model.layers.%d.mlp", l->layer);
  if (l->config->family == DT_FAMILY_MIXTRAL) {
    status = dt_checkpoint_has(l->checkpoint, name_of(l, name, "gate.weight", ""), &is_mlp);
  }
  if (!is_mlp) snprintf(l->block, sizeof l->block, "model.layers.%d.block_sparse_moe", l->layer);
  return status;
}

dt_status dt_checkpoint_layer(dt_checkpoint *checkpoint, int32_t layer, int32_t rank, int32_t ranks, dt_layer **out) {
  dt_status status = check_request(checkpoint, layer, rank, ranks);
  if (status != DT_OK) return status;
  const dt_checkpoint_info *info = &checkpoint->config.info;
  size_t own = (size_t)(info->experts / ranks), experts = (size_t)info->experts, hidden = (size_t)info->hidden;
  size_t floats = experts * (hidden + 2) + hidden; /* router with bias or correction, shared gate */
  const size_t scales = count_scales(&checkpoint->config, info->intermediate); /* at most 3 * 2^48 */
  if (scales > SIZE_MAX / 64 / own) return dt_fail(DT_ERR_MEMORY, "%s: no memory for its scales", checkpoint->folder);
  floats += own * scales + count_scales(&checkpoint->config, info->shared_intermediate);
  if (checkpoint->config.family == DT_FAMILY_GPT_OSS) floats += own * (2 * (size_t)info->intermediate + hidden);
  dt_layer *made = calloc(1, sizeof *made);
  char *memory = calloc(1, own * sizeof(dt_expert) + floats * sizeof(float));
  if (!made || !memory) {
    free(made);
    free(memory);
    return dt_fail(DT_ERR_MEMORY, "%s: no memory for layer %d", checkpoint->folder, layer);
  }
  loader l = {.checkpoint = checkpoint,
              .config = &checkpoint->config,
              .layer = layer,
              .first = (int32_t)own * rank,
              .count = (int32_t)own,
              .experts = (dt_expert *)memory,
              .floats = (float *)(memory + own * sizeof(dt_expert))};
  made->memory = memory;
  made->weights = (dt_moe_weights){.hidden = info->hidden,
                                   .intermediate = info->intermediate,
                                   .experts_per_rank = (int32_t)own,
                                   .experts = l.experts};
  if (l.config->family == DT_FAMILY_GPT_OSS) {
    made->weights.activation = DT_ACTIVATION_SWIGLU_CLAMPED;
    made->weights.activation_alpha = l.config->swiglu_alpha;
    made->weights.activation_limit = l.config->swiglu_limit;
  }
  status = choose_block(&l);
  if (status == DT_OK) status = load_router(&l, &made->router);
  if (status == DT_OK) status = load_experts(&l);
  if (status == DT_OK) status = load_shared(&l, &made->weights);
  if (status != DT_OK) {
    dt_layer_free(made);
    return status;
  }
  *out = made;
  return DT_OK;
}

void dt_layer_free(dt_layer *layer) {
  if (!layer) return;
  free(layer->memory);
  free(layer);
}
