/* Checkpoints of every family against what transformers computes (tests/golden), by a naive float64 layer; and the
 * folders that must be refused. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include <draintile/checkpoint.h>

#include "folder.h"
#include "io/config.h"

#define GOLDEN DT_TEST_DATA "/../golden/"

/* y += weight * down(act(gate(x), up(x))), everything in float64 but the dequantized weights. */
static void add_mlp(const dt_moe_weights *w, const dt_expert *expert, int64_t intermediate, const double *x,
                    double weight, double *y) {
  int64_t H = w->hidden;
  float *gate = malloc((size_t)(intermediate * H) * sizeof *gate),
        *up = malloc((size_t)(intermediate * H) * sizeof *up);
  float *down = malloc((size_t)(H * intermediate) * sizeof *down);
  double *middle = malloc((size_t)intermediate * sizeof *middle);
  dt_matrix_widen(&expert->gate, 0, intermediate, gate);
  dt_matrix_widen(&expert->up, 0, intermediate, up);
  dt_matrix_widen(&expert->down, 0, H, down);
  for (int64_t i = 0; i < intermediate; i++) {
    double g = expert->gate_bias ? (double)expert->gate_bias[i] : 0.0;
    double u = expert->up_bias ? (double)expert->up_bias[i] : 0.0;
    for (int64_t j = 0; j < H; j++) {
      g += (double)gate[i * H + j] * x[j];
      u += (double)up[i * H + j] * x[j];
    }
    if (w->activation == DT_ACTIVATION_SWIGLU_CLAMPED) {
      double limit = (double)w->activation_limit;
      g = g > limit ? limit : g;
      u = u > limit ? limit : u < -limit ? -limit : u;
      middle[i] = (u + 1.0) * g / (1.0 + exp(-(double)w->activation_alpha * g));
    } else {
      middle[i] = u * g / (1.0 + exp(-g));
    }
  }
  for (int64_t j = 0; j < H; j++) {
    double sum = expert->down_bias ? (double)expert->down_bias[j] : 0.0;
    for (int64_t i = 0; i < intermediate; i++) sum += (double)down[j * intermediate + i] * middle[i];
    y[j] += weight * sum;
  }
  free(gate);
  free(up);
  free(down);
  free(middle);
}

typedef struct golden {
  const char *name;
  dt_checkpoint *checkpoint;
  dt_tensor_file *input, *expected;
  dt_tensor hidden, ids, weights, output;
  int32_t layer;
  double tolerance;
} golden;

static void open_golden(const json_t *item, golden *g) {
  char path[512];
  *g = (golden){.name = json_string_value(json_object_get(item, "name")),
                .layer = (int32_t)json_integer_value(json_object_get(item, "layer")),
                .tolerance = json_real_value(json_object_get(item, "tolerance"))};
  print_message("  %s\n", g->name);
  snprintf(path, sizeof path, GOLDEN "%s", json_string_value(json_object_get(item, "checkpoint")));
  assert_int_equal(dt_checkpoint_open(path, &g->checkpoint), DT_OK);
  snprintf(path, sizeof path, GOLDEN "%s", json_string_value(json_object_get(item, "input")));
  assert_int_equal(dt_tensor_file_open(path, &g->input), DT_OK);
  snprintf(path, sizeof path, GOLDEN "%s", json_string_value(json_object_get(item, "expected")));
  assert_int_equal(dt_tensor_file_open(path, &g->expected), DT_OK);
  assert_int_equal(dt_tensor_file_get(g->input, "hidden_states", &g->hidden), DT_OK);
  assert_int_equal(dt_tensor_file_get(g->expected, "topk_ids", &g->ids), DT_OK);
  assert_int_equal(dt_tensor_file_get(g->expected, "topk_weights", &g->weights), DT_OK);
  assert_int_equal(dt_tensor_file_get(g->expected, "output", &g->output), DT_OK);
}

static void close_golden(golden *g) {
  dt_tensor_file_close(g->input);
  dt_tensor_file_close(g->expected);
  dt_checkpoint_close(g->checkpoint);
}

/* The layer spread over `ranks`, each rank's experts from its own dt_layer. */
static void check_golden(const golden *g, int32_t ranks) {
  int64_t tokens = g->hidden.shape[0];
  dt_layer *layers[8];
  for (int32_t r = 0; r < ranks; r++) {
    dt_status status = dt_checkpoint_layer(g->checkpoint, g->layer, r, ranks, &layers[r]);
    if (status != DT_OK) fail_msg("%s: %s", g->name, dt_error_detail());
  }
  const dt_moe_weights *w = &layers[0]->weights;
  int64_t H = w->hidden, k = layers[0]->router.top_k;
  assert_int_equal(g->hidden.shape[1], H);
  assert_int_equal(g->ids.shape[1], k);
  int32_t *ids = malloc((size_t)(tokens * k + 1) * sizeof *ids);
  float *weights = malloc((size_t)(tokens * k + 1) * sizeof *weights);
  float *x = malloc((size_t)(tokens * H + 1) * sizeof *x);
  assert_int_equal(dt_router_run(&layers[0]->router, g->hidden.dtype, g->hidden.data, tokens, ids, weights), DT_OK);
  dt_matrix hidden = {
      .data = g->hidden.data, .dtype = g->hidden.dtype, .rows = tokens, .cols = H, .row_stride = H, .col_stride = 1};
  dt_matrix_widen(&hidden, 0, tokens, x);
  for (int64_t t = 0; t < tokens; t++) {
    double wide[64], y[64] = {0}, error = 0.0, norm = 0.0;
    for (int64_t j = 0; j < H; j++) wide[j] = (double)x[t * H + j];
    for (int64_t i = 0; i < k; i++) {
      int32_t id = ids[t * k + i];
      assert_int_equal(id, ((const int64_t *)g->ids.data)[t * k + i]);
      float expected = ((const float *)g->weights.data)[t * k + i];
      assert_true(fabsf(weights[t * k + i] - expected) <= 1e-5f * fabsf(expected));
      const dt_layer *owner = layers[id / w->experts_per_rank];
      add_mlp(w, &owner->weights.experts[id % w->experts_per_rank], w->intermediate, wide, (double)weights[t * k + i],
              y);
    }
    if (w->shared_intermediate) {
      double scale = 1.0;
      if (w->shared_gate) {
        double logit = 0.0;
        for (int64_t j = 0; j < H; j++) logit += (double)w->shared_gate[j] * wide[j];
        scale = 1.0 / (1.0 + exp(-logit));
      }
      add_mlp(w, &w->shared, w->shared_intermediate, wide, scale, y);
    }
    for (int64_t j = 0; j < H; j++) {
      double reference = (double)((const float *)g->output.data)[t * H + j];
      error += (y[j] - reference) * (y[j] - reference);
      norm += reference * reference;
    }
    /* no rounding to the exchange type here: 1e-5 whatever the case */
    if (!(sqrt(error) <= 1e-5 * sqrt(norm))) {
      fail_msg("%s: %d ranks, token %d: relative error %g", g->name, (int)ranks, (int)t, sqrt(error / norm));
    }
  }
  free(ids);
  free(weights);
  free(x);
  for (int32_t r = 0; r < ranks; r++) dt_layer_free(layers[r]);
}

static void layers_of_every_family_match_transformers(void **state) {
  (void)state;
  json_t *cases = json_load_file(GOLDEN "cases.json", 0, NULL);
  assert_true(json_array_size(cases) >= 15);
  unsigned families = 0;
  for (size_t i = 0; i < json_array_size(cases); i++) {
    golden g;
    open_golden(json_array_get(cases, i), &g);
    static const char *const names[] = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss"};
    for (unsigned f = 0; f < 6; f++) {
      if (!strcmp(dt_checkpoint_get_info(g.checkpoint)->model_type, names[f])) families |= 1u << f;
    }
    for (int32_t ranks = 1; ranks <= 8; ranks *= 2) check_golden(&g, ranks);
    close_golden(&g);
  }
  assert_int_equal(families, 63);
  json_decref(cases);
}

static void info_says_what_the_configuration_says(void **state) {
  (void)state;
  dt_checkpoint *checkpoint = NULL;
  assert_int_equal(dt_checkpoint_open(GOLDEN "deepseek_v3-fp8", &checkpoint), DT_OK);
  const dt_checkpoint_info *info = dt_checkpoint_get_info(checkpoint);
  assert_string_equal(info->model_type, "deepseek_v3");
  assert_int_equal(info->hidden, 64);
  assert_int_equal(info->intermediate, 32);
  assert_int_equal(info->shared_intermediate, 64);
  assert_int_equal(info->layers, 2);
  assert_int_equal(info->experts, 8);
  assert_int_equal(info->top_k, 3);
  assert_int_equal(info->dtype, DT_DTYPE_F32);
  assert_int_equal(info->weights_dtype, DT_DTYPE_F8_E4M3);
  assert_false(dt_checkpoint_layer_is_moe(checkpoint, 0)); /* first_k_dense_replace 1 */
  assert_true(dt_checkpoint_layer_is_moe(checkpoint, 1));
  assert_false(dt_checkpoint_layer_is_moe(checkpoint, 2));
  assert_false(dt_checkpoint_layer_is_moe(checkpoint, -1));
  dt_checkpoint_close(checkpoint);
  assert_int_equal(dt_checkpoint_open(GOLDEN "gpt_oss-mxfp4", &checkpoint), DT_OK);
  assert_int_equal(dt_checkpoint_get_info(checkpoint)->weights_dtype, DT_DTYPE_MXFP4);
  dt_checkpoint_close(checkpoint);
}

static dt_model_config config_of(const char *fields) {
  char text[512];
  dt_model_config config;
  snprintf(text, sizeof text,
           "{\"hidden_size\": 64, \"intermediate_size\": 32, \"moe_intermediate_size\": 16, \"num_hidden_layers\": 12, "
           "\"num_local_experts\": 32, \"num_experts_per_tok\": 4, %s}",
           fields);
  if (dt_model_config_parse("config.json", text, strlen(text), &config)) fail_msg("%s", dt_error_detail());
  return config;
}

/* The defaults of the models' own configurations, where a file leaves them out. */
static void fields_that_are_missing_have_their_defaults(void **state) {
  (void)state;
  dt_model_config c = config_of("\"model_type\": \"gpt_oss\"");
  assert_true(c.swiglu_alpha == 1.702f && c.swiglu_limit == 7.0f && c.score == DT_ROUTER_TOPK_SOFTMAX);
  dt_model_config_free(&c);
  c = config_of("\"model_type\": \"mixtral\"");
  assert_true(c.normalize == 1 && c.scale == 1.0f && c.info.intermediate == 32 && c.info.dtype == DT_DTYPE_F32);
  dt_model_config_free(&c);
  c = config_of("\"model_type\": \"olmoe\"");
  assert_int_equal(c.normalize, 0);
  dt_model_config_free(&c);
  c = config_of("\"model_type\": \"qwen3_moe\"");
  assert_true(c.normalize == 0 && c.info.intermediate == 16 && c.info.shared_intermediate == 0);
  for (int32_t layer = 0; layer < 12; layer++) assert_true(dt_model_config_layer_is_moe(&c, layer));
  dt_model_config_free(&c);
  c = config_of("\"model_type\": \"deepseek_v3\"");
  assert_true(c.normalize == 1 && c.groups == 8 && c.group_top_k == 4 && c.scale == 2.5f);
  assert_int_equal(c.info.shared_intermediate, 16);
  for (int32_t layer = -1; layer < 13; layer++)
    assert_int_equal(dt_model_config_layer_is_moe(&c, layer), layer >= 3 && layer < 12);
  dt_model_config_free(&c);
}

/* Of a clamp or a scale of 0, or of none, nothing would be left. */
static void factors_are_above_zero(void **state) {
  (void)state;
  static const char *const factors[] = {"\"swiglu_limit\": %s", "\"swiglu_alpha\": %s"};
  static const char *const wrong[] = {"0", "-1", "1e39", "\"7\"", "true"};
  for (size_t f = 0; f < sizeof factors / sizeof *factors; f++)
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
      char text[512], factor[64];
      dt_model_config config;
      snprintf(factor, sizeof factor, factors[f], wrong[i]);
      snprintf(text, sizeof text,
               "{\"model_type\": \"gpt_oss\", \"hidden_size\": 64, \"intermediate_size\": 32, "
               "\"num_hidden_layers\": 2, \"num_local_experts\": 8, \"num_experts_per_tok\": 4, %s}",
               factor);
      assert_int_equal(dt_model_config_parse("config.json", text, strlen(text), &config), DT_ERR_INPUT);
      assert_non_null(strstr(dt_error_detail(), f == 0 ? "swiglu_limit: " : "swiglu_alpha: "));
      if (i < 2) assert_non_null(strstr(dt_error_detail(), i == 0 ? ": 0;" : ": -1;"));
      assert_non_null(
          strstr(dt_error_detail(), i < 3 ? "allowed is a finite number above 0" : "must be a finite number above 0"));
    }
}

/* qwen counts layers from 1, deepseek from 0. */
static void dense_layers_lie_between(void **state) {
  (void)state;
  dt_model_config c = config_of("\"model_type\": \"qwen3_moe\", \"decoder_sparse_step\": 3, \"mlp_only_layers\": [5]");
  for (int32_t layer = 0; layer < 12; layer++)
    assert_int_equal(dt_model_config_layer_is_moe(&c, layer), layer % 3 == 2 && layer != 5);
  dt_model_config_free(&c);
  c = config_of("\"model_type\": \"deepseek_v3\", \"moe_layer_freq\": 2, \"first_k_dense_replace\": 1");
  for (int32_t layer = 0; layer < 12; layer++)
    assert_int_equal(dt_model_config_layer_is_moe(&c, layer), layer > 0 && layer % 2 == 0);
  dt_model_config_free(&c);
}

static int is_scale(const char *name) {
  const size_t length = strlen(name), end = strlen("_scale_inv");
  return length > end && strcmp(name + length - end, "_scale_inv") == 0;
}

/* The fp8 folder with scales of another type, or in float32 what these hold. */
static void write_scales(dt_dtype dtype, int as_f32) {
  dt_tensor_file *from = NULL;
  dt_tensor_writer *to = NULL;
  dt_tensor_spec specs[256];
  char path[300];
  assert_int_equal(dt_tensor_file_open(GOLDEN "deepseek_v3-fp8/model.safetensors", &from), DT_OK);
  const size_t count = dt_tensor_file_count(from);
  assert_true(count <= sizeof specs / sizeof *specs);
  for (size_t i = 0; i < count; i++) {
    dt_tensor t;
    assert_int_equal(dt_tensor_file_get(from, dt_tensor_file_name(from, i), &t), DT_OK);
    specs[i] = (dt_tensor_spec){.name = t.name, .dtype = t.dtype, .dims = t.dims};
    memcpy(specs[i].shape, t.shape, sizeof t.shape);
    if (is_scale(t.name) && !as_f32) specs[i].dtype = dtype;
  }
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(dt_tensor_writer_create(path, specs, count, &to), DT_OK);
  for (size_t i = 0; i < count; i++) {
    dt_tensor t;
    assert_int_equal(dt_tensor_file_get(from, specs[i].name, &t), DT_OK);
    const int64_t rows = t.dims ? t.shape[0] : 1;
    const size_t values = is_scale(t.name) ? t.bytes / sizeof(float) : 0;
    uint16_t *narrow = malloc((values + 1) * sizeof *narrow);
    float *wide = malloc((values + 1) * sizeof *wide);
    for (size_t v = 0; v < values; v++) { /* powers of two within float16 are the same in all types */
      uint32_t bits;
      const float scale = ldexpf(1.0f, -(int)((i + v) % 12));
      memcpy(&bits, &scale, sizeof bits);
      narrow[v] = dtype == DT_DTYPE_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(((bits >> 23) - 112) << 10);
      wide[v] = scale;
    }
    const void *data = !values ? t.data : as_f32 ? (const void *)wide : narrow;
    assert_int_equal(dt_tensor_writer_rows(to, t.name, 0, rows, data), DT_OK);
    free(narrow);
    free(wide);
  }
  assert_int_equal(dt_tensor_writer_commit(to), DT_OK);
  dt_tensor_file_close(from);
}

static void widen_layer(int32_t ranks, int32_t rank, float *out) {
  dt_checkpoint *checkpoint = NULL;
  dt_layer *layer = NULL;
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  if (dt_checkpoint_layer(checkpoint, 1, rank, ranks, &layer)) fail_msg("%s", dt_error_detail());
  const dt_moe_weights *w = &layer->weights;
  for (int32_t e = 0; e <= w->experts_per_rank; e++) {
    const dt_expert *expert = e < w->experts_per_rank ? &w->experts[e] : &w->shared;
    const dt_matrix *const matrices[] = {&expert->gate, &expert->up, &expert->down};
    for (int m = 0; m < 3; m++) {
      assert_int_equal(matrices[m]->dtype, DT_DTYPE_F8_E4M3);
      assert_non_null(matrices[m]->scales);
      dt_matrix_widen(matrices[m], 0, matrices[m]->rows, out);
      out += matrices[m]->rows * matrices[m]->cols;
    }
  }
  dt_layer_free(layer);
  dt_checkpoint_close(checkpoint);
}

/* Qwen's own fp8 checkpoints have their scales in bf16, some in f16. */
static void scales_may_be_narrow(void **state) {
  (void)state;
  enum { VALUES = (8 * 32 + 64) * 64 * 3 };
  static float expected[VALUES], got[VALUES];
  char command[1024];
  snprintf(command, sizeof command, "cp %sdeepseek_v3-fp8/config.json %s", GOLDEN, folder);
  assert_int_equal(system(command), 0);
  for (dt_dtype dtype = DT_DTYPE_BF16; dtype <= DT_DTYPE_F16; dtype++)
    for (int32_t ranks = 1; ranks <= 8; ranks *= 8)
      for (int32_t rank = 0; rank < ranks; rank++) {
        memset(expected, 0, sizeof expected);
        memset(got, 0xff, sizeof got);
        write_scales(dtype, 1);
        widen_layer(ranks, rank, expected);
        write_scales(dtype, 0);
        widen_layer(ranks, rank, got);
        const size_t values = (size_t)(8 / ranks * 32 + 64) * 64 * 3;
        assert_memory_equal(got, expected, values * sizeof *got);
      }
  snprintf(command, sizeof command, "rm %s/config.json %s/model.safetensors", folder, folder);
  assert_int_equal(system(command), 0);
}

static void refuse_layer(const dt_checkpoint *checkpoint, int32_t layer, int32_t rank, int32_t ranks, dt_status status,
                         const char *first, const char *second) {
  dt_layer *out = NULL;
  assert_int_equal(dt_checkpoint_layer((dt_checkpoint *)checkpoint, layer, rank, ranks, &out), status);
  if (!strstr(dt_error_detail(), first) || !strstr(dt_error_detail(), second) || strchr(dt_error_detail(), '\n')) {
    fail_msg("detail: %s", dt_error_detail());
  }
  assert_null(out);
}

static void layers_and_ranks_that_do_not_fit_are_refused(void **state) {
  (void)state;
  dt_checkpoint *checkpoint = NULL;
  assert_int_equal(dt_checkpoint_open(GOLDEN "deepseek_v3-f32", &checkpoint), DT_OK);
  refuse_layer(checkpoint, 0, 0, 1, DT_ERR_INPUT, "layer: 0", "first layer with experts is 1");
  refuse_layer(checkpoint, 2, 0, 1, DT_ERR_ARGUMENT, "layer: 2", "0 to 1");
  refuse_layer(checkpoint, -1, 0, 1, DT_ERR_ARGUMENT, "layer: -1", "0 to 1");
  refuse_layer(checkpoint, 1, 0, 3, DT_ERR_ARGUMENT, "ranks: 3", "8 experts");
  refuse_layer(checkpoint, 1, 0, 16, DT_ERR_ARGUMENT, "ranks: 16", "8 experts");
  refuse_layer(checkpoint, 1, 2, 2, DT_ERR_ARGUMENT, "rank: 2", "2 ranks");
  refuse_layer(checkpoint, 1, 0, 0, DT_ERR_ARGUMENT, "of 0 ranks", "rank: 0");
  dt_checkpoint_close(checkpoint);
}

static void write_text(const char *name, const char *text) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static void refuse_folder(dt_status status, const char *first, const char *second) {
  dt_checkpoint *checkpoint = NULL;
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), status);
  if (!strstr(dt_error_detail(), first) || !strstr(dt_error_detail(), second) || strchr(dt_error_detail(), '\n')) {
    fail_msg("detail: %s", dt_error_detail());
  }
  assert_null(checkpoint);
}

static void folders_and_configurations_that_are_wrong_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *config, *first, *second;
  } cases[] = {
      {"{", "config.json: line 1", ""},
      {"[]", "config.json", "object"},
      {"{\"a\":1,\"a\":2}", "config.json", "duplicate"},
      {"{}", "model_type: ''", "mixtral, qwen2_moe"},
      {"{\"model_type\":\"llama\"}", "model_type: 'llama'", "gpt_oss"},
      {"{\"model_type\":\"mixtral\",\"hidden_act\":\"gelu\"}", "hidden_act: 'gelu'", "silu"},
      {"{\"model_type\":\"mixtral\"}", "hidden_size: missing", ""},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":\"64\"}", "hidden_size: not an integer", ""},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":0}", "hidden_size: 0", "1 to"},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"num_local_experts\":8,\"num_experts_per_tok\":9}",
       "num_experts_per_tok: 9", "num_local_experts = 8"},
      {"{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"num_experts_per_tok\":9}",
       "num_local_experts: missing", ""},
      {"{\"model_type\":\"mixtral\",\"dtype\":\"int8\"}", "dtype: 'int8'", "bfloat16"},
      {"{\"model_type\":\"mixtral\",\"quantization_config\":{\"quant_method\":\"gptq\"}}", "quant_method: 'gptq'",
       "fp8"},
      {"{\"model_type\":\"gpt_oss\",\"quantization_config\":{\"quant_method\":\"fp8\"}}", "quant_method: 'fp8'",
       "mxfp4"},
      {"{\"model_type\":\"mixtral\",\"quantization_config\":{\"quant_method\":\"fp8\"}}", "weight_block_size", ""},
      {"{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"num_experts\":8,\"num_experts_per_tok\":2,\"decoder_sparse_step\":0}",
       "decoder_sparse_step: 0", ""},
      {"{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"num_experts\":8,\"num_experts_per_tok\":2,\"norm_topk_prob\":1}",
       "norm_topk_prob", "true or false"},
      {"{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"num_experts\":8,\"num_experts_per_tok\":2,\"mlp_only_layers\":[1.5]}",
       "mlp_only_layers", ""},
      {"{\"model_type\":\"deepseek_v3\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"n_group\":3,\"topk_group\":1}",
       "n_group: 3", "8 experts"},
      {"{\"model_type\":\"deepseek_v3\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"n_group\":4,\"topk_group\":1}",
       "num_experts_per_tok: 3", "leave 2 experts"},
      {"{\"model_type\":\"deepseek_v3\",\"hidden_size\":64,\"moe_intermediate_size\":32,\"num_hidden_layers\":1,"
       "\"n_routed_experts\":8,\"num_experts_per_tok\":3,\"scoring_func\":\"softmax\"}",
       "scoring_func: 'softmax'", "sigmoid"},
  };
  refuse_folder(DT_ERR_IO, folder, "config.json");
  dt_checkpoint *none;
  assert_int_equal(dt_checkpoint_open("", &none), DT_ERR_IO); /* whatever lies in the root directory */
  assert_string_equal(dt_error_detail(), "dir: \"\"; a folder is needed");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_text("config.json", cases[i].config);
    refuse_folder(DT_ERR_INPUT, cases[i].first, cases[i].second);
    assert_non_null(strstr(dt_error_detail(), folder));
  }
  write_text("config.json", "{\"model_type\":\"mixtral\",\"hidden_size\":64,\"intermediate_size\":32,"
                            "\"num_hidden_layers\":1,\"num_local_experts\":8,\"num_experts_per_tok\":2}");
  refuse_folder(DT_ERR_IO, folder, "model.safetensors.index.json");
  write_text("model.safetensors.index.json", "{\"weight_map\":[]}");
  refuse_folder(DT_ERR_INPUT, "index.json: weight_map", folder);
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}");
  refuse_folder(DT_ERR_INPUT, "tensor 'a'", "same folder");
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"b/c.safetensors\"}}");
  refuse_folder(DT_ERR_INPUT, "tensor 'a'", "same folder");
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"..\"}}");
  refuse_folder(DT_ERR_INPUT, "tensor 'a'", "same folder");
  write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":7}}");
  refuse_folder(DT_ERR_INPUT, "tensor 'a'", "same folder");
}

/* A Qwen3-MoE-shaped file of layer 0 (hidden 8, intermediate 4, 2 experts) with one thing wrong. */
static void write_layer(const char *skip, const char *reshape, dt_dtype dtype) {
  static char names[7][96];
  dt_tensor_spec specs[7];
  size_t count = 0;
  for (int i = 0; i < 7; i++) {
    static const char *const parts[3] = {"gate_proj", "up_proj", "down_proj"};
    if (i == 6) {
      snprintf(names[i], sizeof names[i], "model.layers.0.mlp.gate.weight");
    } else {
      snprintf(names[i], sizeof names[i], "model.layers.0.mlp.experts.%d.%s.weight", i / 3, parts[i % 3]);
    }
    dt_tensor_spec spec = {names[i], dtype, 2, {i == 6 ? 2 : i % 3 == 2 ? 8 : 4, i < 6 && i % 3 == 2 ? 4 : 8}};
    if (skip && !strcmp(names[i], skip)) continue;
    if (reshape && !strcmp(names[i], reshape)) spec.shape[0]++;
    specs[count++] = spec;
  }
  char path[300];
  dt_tensor_writer *writer = NULL;
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(dt_tensor_writer_create(path, specs, count, &writer), DT_OK);
  assert_int_equal(dt_tensor_writer_commit(writer), DT_OK);
}

static void tensors_that_are_missing_or_wrong_are_named(void **state) {
  (void)state;
  dt_checkpoint *checkpoint = NULL;
  const char *down = "model.layers.0.mlp.experts.1.down_proj.weight", *gate = "model.layers.0.mlp.gate.weight";
  write_text("config.json", "{\"model_type\":\"qwen3_moe\",\"hidden_size\":8,\"moe_intermediate_size\":4,"
                            "\"num_hidden_layers\":2,\"num_experts\":2,\"num_experts_per_tok\":2}");
  write_layer(down, NULL, DT_DTYPE_F32);
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  dt_layer *layer = NULL;
  assert_int_equal(dt_checkpoint_layer(checkpoint, 0, 0, 2, &layer), DT_OK); /* rank 0 does not need expert 1 */
  dt_layer_free(layer);
  refuse_layer(checkpoint, 0, 1, 2, DT_ERR_INPUT, down, "missing; expected [8, 4] of F32 or BF16 or F16");
  refuse_layer(checkpoint, 0, 1, 2, DT_ERR_INPUT, folder, "missing");
  refuse_layer(checkpoint, 1, 0, 1, DT_ERR_INPUT, "model.layers.1.mlp.gate.weight", "missing; expected [2, 8]");
  dt_checkpoint_close(checkpoint);
  write_layer(NULL, gate, DT_DTYPE_F32);
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  refuse_layer(checkpoint, 0, 0, 2, DT_ERR_INPUT, gate, "shape [3, 8]; config.json makes it [2, 8]");
  dt_checkpoint_close(checkpoint);
  write_layer(NULL, NULL, DT_DTYPE_I32);
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  refuse_layer(checkpoint, 0, 0, 2, DT_ERR_INPUT, gate, "dtype I32; allowed are F32 or BF16 or F16");
  dt_checkpoint_close(checkpoint);
  write_layer(NULL, NULL, DT_DTYPE_F8_E4M3); /* without a quantization_config */
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  refuse_layer(checkpoint, 0, 0, 2, DT_ERR_INPUT, gate, "dtype F8_E4M3");
  dt_checkpoint_close(checkpoint);
  char path[300];
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(truncate(path, 100), 0);
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  refuse_layer(checkpoint, 0, 0, 2, DT_ERR_INPUT, path, "truncated");
  dt_checkpoint_close(checkpoint);
  unlink(path);
  char index[256];
  snprintf(index, sizeof index, "{\"weight_map\":{\"%s\":\"absent.safetensors\"}}", gate);
  write_text("model.safetensors.index.json", index);
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  refuse_layer(checkpoint, 0, 0, 2, DT_ERR_IO, "absent.safetensors", "No such file");
  refuse_layer(checkpoint, 1, 0, 2, DT_ERR_INPUT, folder, "model.layers.1.mlp.gate.weight");
  dt_checkpoint_close(checkpoint);
}

static void *load_layer(void *checkpoint) {
  dt_layer *layer = NULL;
  dt_status status = dt_checkpoint_layer(checkpoint, 1, 0, 2, &layer);
  dt_layer_free(layer);
  return (void *)(intptr_t)status;
}

static void ranks_of_one_process_load_at_once(void **state) {
  (void)state;
  dt_checkpoint *checkpoint = NULL;
  assert_int_equal(dt_checkpoint_open(GOLDEN "olmoe-f32-sharded", &checkpoint), DT_OK);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, load_layer, checkpoint), 0);
  for (int i = 0; i < 4; i++) {
    void *status;
    pthread_join(threads[i], &status);
    assert_int_equal((intptr_t)status, DT_OK);
  }
  dt_checkpoint_close(checkpoint);
}

/* Resident bytes of the mappings of files called `name`. */
static int64_t resident_bytes(const char *name) {
  FILE *file = fopen("/proc/self/smaps", "r");
  char line[512];
  int64_t bytes = 0;
  int inside = 0;
  assert_non_null(file);
  while (fgets(line, sizeof line, file)) {
    long long kib;
    if (strchr(line, '/')) inside = strstr(line, name) != NULL; /* a mapping's first line */
    if (inside && sscanf(line, "Rss: %lld", &kib) == 1) {
      bytes += (int64_t)kib * 1024;
      inside = 0;
    }
  }
  fclose(file);
  return bytes;
}

/* 8 experts of 3 MiB each: loading and reading those of one rank must leave the others on disk. */
static void a_rank_touches_its_own_experts_alone(void **state) {
  (void)state;
  enum { HIDDEN = 512, INTERMEDIATE = 512, EXPERTS = 8 };
  const dt_tensor_spec specs[] = {
      {"model.layers.0.mlp.experts.gate_up_proj", DT_DTYPE_F32, 3, {EXPERTS, 2 * INTERMEDIATE, HIDDEN}},
      {"model.layers.0.mlp.experts.down_proj", DT_DTYPE_F32, 3, {EXPERTS, HIDDEN, INTERMEDIATE}},
      {"model.layers.0.mlp.gate.weight", DT_DTYPE_F32, 2, {EXPERTS, HIDDEN}}};
  char path[300];
  dt_tensor_writer *writer = NULL;
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(dt_tensor_writer_create(path, specs, 3, &writer), DT_OK);
  assert_int_equal(dt_tensor_writer_commit(writer), DT_OK);
  write_text("config.json", "{\"model_type\":\"qwen3_moe\",\"hidden_size\":512,\"moe_intermediate_size\":512,"
                            "\"num_hidden_layers\":1,\"num_experts\":8,\"num_experts_per_tok\":2}");
  dt_checkpoint *checkpoint = NULL;
  dt_layer *layer = NULL;
  int64_t own = 2 * 3 * (int64_t)HIDDEN * INTERMEDIATE * 4;
  assert_int_equal(dt_checkpoint_open(folder, &checkpoint), DT_OK);
  assert_int_equal(dt_checkpoint_layer(checkpoint, 0, 1, 4, &layer), DT_OK);
  float sum = 0.0f;
  for (int32_t e = 0; e < layer->weights.experts_per_rank; e++) {
    const dt_matrix *matrices[] = {&layer->weights.experts[e].gate, &layer->weights.experts[e].up,
                                   &layer->weights.experts[e].down};
    for (int m = 0; m < 3; m++) {
      int64_t stride = 0;
      const float *rows = dt_matrix_f32(matrices[m], 0, &stride);
      assert_non_null(rows); /* used in place */
      for (int64_t i = 0; i < 512 * 512; i++) sum += rows[i];
    }
  }
  assert_true(sum == 0.0f);
  int64_t touched = resident_bytes("/model.safetensors");
  if (touched < own || touched > own + (1 << 20)) {
    fail_msg("%lld bytes touched, %lld of own experts", (long long)touched, (long long)own);
  }
  dt_layer_free(layer);
  dt_checkpoint_close(checkpoint);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layers_of_every_family_match_transformers),
      cmocka_unit_test(info_says_what_the_configuration_says),
      cmocka_unit_test(fields_that_are_missing_have_their_defaults),
      cmocka_unit_test(factors_are_above_zero),
      cmocka_unit_test(dense_layers_lie_between),
      cmocka_unit_test(scales_may_be_narrow),
      cmocka_unit_test(layers_and_ranks_that_do_not_fit_are_refused),
      cmocka_unit_test(folders_and_configurations_that_are_wrong_are_refused),
      cmocka_unit_test(tensors_that_are_missing_or_wrong_are_named),
      cmocka_unit_test(ranks_of_one_process_load_at_once),
      cmocka_unit_test(a_rank_touches_its_own_experts_alone),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
