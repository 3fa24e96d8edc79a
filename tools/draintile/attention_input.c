#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attention.h"
#include "floats.h"
#include "log.h"
#include "proc.h"

static int open_tensor(const attention_input *input, const char *name, dt_tensor *tensor) {
  dt_status status = dt_tensor_file_get(input->file, name, tensor);
  if (status) return log_status(status, NULL);
  if (tensor->dims != 3)
    return log_fail(TOOL_USAGE, "%s: %s: %d dimensions; allowed: 3, [tokens, heads, head dim]", input->path, name,
                    tensor->dims);
  if (tensor->dtype != DT_DTYPE_F32 && tensor->dtype != DT_DTYPE_BF16 && tensor->dtype != DT_DTYPE_F16)
    return log_fail(TOOL_USAGE, "%s: %s: type %s; allowed: f32, bf16, f16", input->path, name,
                    dt_dtype_name(tensor->dtype));
  if (tensor->shape[0] > INT32_MAX)
    return log_fail(TOOL_USAGE, "%s: %s: %lld tokens; allowed: 0 to %d", input->path, name, (long long)tensor->shape[0],
                    INT32_MAX);
  if (tensor->shape[1] < 1 || tensor->shape[1] > 65536)
    return log_fail(TOOL_USAGE, "%s: %s: %lld heads; allowed: 1 to 65536", input->path, name,
                    (long long)tensor->shape[1]);
  if (tensor->shape[2] < 1 || tensor->shape[2] > 4096)
    return log_fail(TOOL_USAGE, "%s: %s: head dim %lld; allowed: 1 to 4096", input->path, name,
                    (long long)tensor->shape[2]);
  return TOOL_OK;
}

static int check_finite(const attention_input *input, const char *name, const dt_tensor *tensor) {
  size_t token = (size_t)(tensor->shape[1] * tensor->shape[2]), count = (size_t)tensor->shape[0] * token;
  size_t at = floats_first_not_finite(tensor->dtype, tensor->data, count);
  if (at == count) return TOOL_OK;
  double value;
  floats_load(tensor->dtype, (const char *)tensor->data + at * dt_dtype_bytes(tensor->dtype), 1, &value);
  return log_fail(TOOL_USAGE, "%s: %s: token %zu, head %zu, value %zu: %s; allowed: finite values", input->path, name,
                  at / token, at % token / (size_t)tensor->shape[2], at % (size_t)tensor->shape[2],
                  isnan(value) ? "nan" : "infinite");
}

/* k and v fit q, and v fits k. */
static int check_shapes(const attention_input *input, const dt_tensor *q, const dt_tensor *k, const dt_tensor *v) {
  if (k->dtype != q->dtype || v->dtype != q->dtype)
    return log_fail(TOOL_USAGE, "%s: %s: type %s; allowed: %s, as q", input->path, k->dtype != q->dtype ? "k" : "v",
                    dt_dtype_name(k->dtype != q->dtype ? k->dtype : v->dtype), dt_dtype_name(q->dtype));
  if (k->shape[2] != q->shape[2])
    return log_fail(TOOL_USAGE, "%s: k: head dim %lld; allowed: %lld, as q", input->path, (long long)k->shape[2],
                    (long long)q->shape[2]);
  if (q->shape[1] % k->shape[1])
    return log_fail(TOOL_USAGE, "%s: k: %lld heads; allowed: a divisor of the %lld heads of q", input->path,
                    (long long)k->shape[1], (long long)q->shape[1]);
  if (memcmp(v->shape, k->shape, 3 * sizeof(k->shape[0])) != 0)
    return log_fail(TOOL_USAGE, "%s: v: shape [%lld, %lld, %lld]; allowed: [%lld, %lld, %lld], as k", input->path,
                    (long long)v->shape[0], (long long)v->shape[1], (long long)v->shape[2], (long long)k->shape[0],
                    (long long)k->shape[1], (long long)k->shape[2]);
  return TOOL_OK;
}

/* Of all ranks: q, k, v as they hold them and as they arrive, two outputs and their way out. */
static int check_memory(const attention_input *input, const dt_tensor *q, const dt_tensor *k) {
  const double head = (double)q->shape[2] * (double)dt_dtype_bytes(q->dtype);
  const double rows_q = (double)q->shape[0] * (double)q->shape[1], rows_k = (double)k->shape[0] * (double)k->shape[1];
  return proc_memory_check(input->path, head * (2 * (rows_q + 2 * rows_k) + 3 * rows_q));
}

static int open_tensors(attention_input *input, bool on_host, dt_attention_config *config) {
  dt_tensor q, k, v;
  int code = open_tensor(input, "q", &q);
  if (code == TOOL_OK) code = open_tensor(input, "k", &k);
  if (code == TOOL_OK) code = open_tensor(input, "v", &v);
  if (code == TOOL_OK) code = check_shapes(input, &q, &k, &v);
  if (code == TOOL_OK && on_host) code = check_memory(input, &q, &k);
  if (code == TOOL_OK) code = check_finite(input, "q", &q);
  if (code == TOOL_OK) code = check_finite(input, "k", &k);
  if (code == TOOL_OK) code = check_finite(input, "v", &v);
  if (code) return code;
  input->q = q.data;
  input->k = k.data;
  input->v = v.data;
  config->dtype = q.dtype;
  config->tokens = q.shape[0];
  config->kv_tokens = k.shape[0];
  config->heads = (int32_t)q.shape[1];
  config->kv_heads = (int32_t)k.shape[1];
  config->head_dim = (int32_t)q.shape[2];
  return TOOL_OK;
}

int attention_input_open(const char *path, bool on_host, attention_input *input, dt_attention_config *config) {
  *input = (attention_input){.path = path};
  dt_status status = dt_tensor_file_open(path, &input->file);
  if (status) return log_unread(status);
  int code = open_tensors(input, on_host, config);
  if (code) attention_input_close(input);
  return code;
}

void attention_input_close(attention_input *input) {
  dt_tensor_file_close(input->file);
  input->file = NULL;
}
