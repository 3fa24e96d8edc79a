#include "moe_input.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "floats.h"
#include "log.h"
#include "proc.h"

static int open_hidden(const dt_checkpoint_info *info, moe_input *input) {
  dt_tensor tensor;
  dt_status status = dt_tensor_file_get(input->file, "hidden_states", &tensor);
  if (status) return log_status(status, NULL);
  if (tensor.dims != 2)
    return log_fail(TOOL_USAGE, "%s: hidden_states: %d dimensions; allowed: 2, [T, H]", input->path, tensor.dims);
  if (tensor.dtype != DT_DTYPE_F32 && tensor.dtype != DT_DTYPE_BF16 && tensor.dtype != DT_DTYPE_F16)
    return log_fail(TOOL_USAGE, "%s: hidden_states: type %s; allowed: f32, bf16, f16", input->path,
                    dt_dtype_name(tensor.dtype));
  if (tensor.shape[1] != info->hidden)
    return log_fail(TOOL_USAGE, "%s: hidden_states: %lld values a token; allowed: %lld, the checkpoint's hidden size",
                    input->path, (long long)tensor.shape[1], (long long)info->hidden);
  if (tensor.shape[0] > INT32_MAX)
    return log_fail(TOOL_USAGE, "%s: hidden_states: %lld tokens; allowed: 0 to %d", input->path,
                    (long long)tensor.shape[0], INT32_MAX);
  input->tokens = tensor.shape[0];
  input->hidden = tensor.shape[1];
  input->dtype = tensor.dtype;
  input->data = tensor.data;
  return TOOL_OK;
}

static int open_choice(const char *name, dt_dtype dtype, moe_input *input, const void **data, int32_t *top_k) {
  dt_tensor tensor;
  dt_status status = dt_tensor_file_get(input->file, name, &tensor);
  if (status) return log_status(status, NULL);
  if (tensor.dims != 2 || tensor.shape[0] != input->tokens)
    return log_fail(TOOL_USAGE, "%s: %s: first of %d dimensions %lld; allowed: [%lld, k], a row a token", input->path,
                    name, tensor.dims, tensor.dims ? (long long)tensor.shape[0] : 0, (long long)input->tokens);
  if (tensor.dtype != dtype)
    return log_fail(TOOL_USAGE, "%s: %s: type %s; allowed: %s", input->path, name, dt_dtype_name(tensor.dtype),
                    dt_dtype_name(dtype));
  if (tensor.shape[1] < 1 || tensor.shape[1] > INT32_MAX)
    return log_fail(TOOL_USAGE, "%s: %s: %lld choices a token; allowed: 1 or more", input->path, name,
                    (long long)tensor.shape[1]);
  *data = tensor.data;
  *top_k = (int32_t)tensor.shape[1];
  return TOOL_OK;
}

static int check_hidden(const moe_input *input) {
  size_t count = (size_t)input->tokens * (size_t)input->hidden;
  size_t at = floats_first_not_finite(input->dtype, input->data, count);
  if (at == count) return TOOL_OK;
  double value;
  size_t bytes = dt_dtype_bytes(input->dtype);
  floats_load(input->dtype, (const char *)input->data + at * bytes, 1, &value);
  return log_fail(TOOL_USAGE, "%s: hidden_states: token %zu, value %zu: %s; allowed: finite values", input->path,
                  at / (size_t)input->hidden, at % (size_t)input->hidden, isnan(value) ? "nan" : "infinite");
}

static int repeats_before(const int64_t *ids, int64_t choice) {
  for (int64_t i = 0; i < choice; i++)
    if (ids[i] >= 0 && ids[i] == ids[choice]) return 1;
  return 0;
}

static int check_choices(const dt_checkpoint_info *info, moe_input *input) {
  int64_t slots = input->tokens * input->top_k;
  for (int64_t i = 0; i < slots; i++) {
    long long token = (long long)(i / input->top_k), choice = (long long)(i % input->top_k);
    if (input->ids[i] < -1 || input->ids[i] >= info->experts)
      return log_fail(TOOL_USAGE, "%s: topk_ids: token %lld, choice %lld: %lld; allowed: 0 to %d, or -1 (dropped)",
                      input->path, token, choice, (long long)input->ids[i], info->experts - 1);
    if (!isfinite(input->weights[i]))
      return log_fail(TOOL_USAGE, "%s: topk_weights: token %lld, choice %lld: %s; allowed: finite values", input->path,
                      token, choice, isnan(input->weights[i]) ? "nan" : "infinite");
    input->repeats |= repeats_before(input->ids + token * input->top_k, choice);
  }
  return TOOL_OK;
}

static int open_choices(const dt_checkpoint_info *info, moe_input *input) {
  int ids = dt_tensor_file_has(input->file, "topk_ids"), weights = dt_tensor_file_has(input->file, "topk_weights");
  if (!ids && !weights) return TOOL_OK;
  if (!ids || !weights)
    return log_fail(TOOL_USAGE, "%s: %s: missing; allowed: both topk_ids and topk_weights, or neither", input->path,
                    ids ? "topk_weights" : "topk_ids");
  const void *id_data = NULL, *weight_data = NULL;
  int32_t top_k = 0, weight_k = 0;
  int code = open_choice("topk_ids", DT_DTYPE_I64, input, &id_data, &top_k);
  if (code == TOOL_OK) code = open_choice("topk_weights", DT_DTYPE_F32, input, &weight_data, &weight_k);
  if (code) return code;
  if (top_k != weight_k)
    return log_fail(TOOL_USAGE, "%s: topk_weights: %d choices a token; allowed: %d, as in topk_ids", input->path,
                    weight_k, top_k);
  if (top_k > info->experts)
    return log_fail(TOOL_USAGE, "%s: topk_ids: top-k %d; allowed: 1 to %d, the experts", input->path, top_k,
                    info->experts);
  input->top_k = top_k;
  input->ids = id_data;
  input->weights = weight_data;
  return TOOL_OK;
}

/* Of all ranks: rows sent, computed and returned, what is between the two GEMMs, two outputs, the routing. Weights stay
 * in their files. */
static int check_memory(const dt_checkpoint_info *info, const moe_input *input) {
  const double tokens = (double)input->tokens, slots = tokens * (input->top_k ? input->top_k : info->top_k);
  const double row = (double)input->hidden * (double)dt_dtype_bytes(input->dtype);
  const double shared = info->shared_intermediate ? 4 * (double)input->hidden : 0;
  return proc_memory_check(input->path,
                           slots * (3 * row + 4 * (double)info->intermediate + 8) + tokens * (2 * row + shared));
}

int moe_input_open(const char *path, const dt_checkpoint_info *info, bool on_host, moe_input *input) {
  *input = (moe_input){.path = path};
  dt_status status = dt_tensor_file_open(path, &input->file);
  if (status) return log_unread(status);
  int code = open_hidden(info, input);
  if (code == TOOL_OK) code = open_choices(info, input);
  if (code == TOOL_OK && on_host) code = check_memory(info, input);
  if (code == TOOL_OK) code = check_hidden(input);
  if (code == TOOL_OK && input->ids) code = check_choices(info, input);
  if (code) moe_input_close(input);
  return code;
}

void moe_input_close(moe_input *input) {
  dt_tensor_file_close(input->file);
  input->file = NULL;
}
