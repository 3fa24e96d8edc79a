#include "attention_device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/cuda_attention.h>
#include <draintile/cuda_memory.h>
#include <draintile/ulysses.h>

#include "log.h"
#include "rank_options.h"

struct attention_device {
  dt_comm *comm; /* borrowed */
  dt_ulysses *ulysses;
  void *inputs[3]; /* device memory: rows of q, k, v */
  void *stream, *start, *stop;
  void *output; /* host memory */
  size_t output_bytes;
  int32_t gpu, traced;
  const dt_span *spans; /* of the last forward, if traced */
  size_t span_count;
};

int attention_device_check(const attention_job *job) {
  static const char *const cpu_only[] = {"link-rate", "link-capacity", "link-latency", "workers", "consumers",
                                         "tile-rows", "own-lag",       "delay-seed",   "delay"};
  const dt_attention_config *config = &job->config;
  for (size_t i = 0; i < ARGS_COUNT(cpu_only); i++)
    if (args_given(job->args, cpu_only[i]))
      return log_fail(TOOL_USAGE, "--%s: given with --device cuda; allowed: with --device cpu", cpu_only[i]);
  if (config->dtype == DT_DTYPE_F32)
    return log_fail(TOOL_USAGE, "--device: cuda: %s is f32; allowed: bf16, f16", job->input.path);
  if (config->head_dim != 64 && config->head_dim != 128 && config->head_dim != 256)
    return log_fail(TOOL_USAGE, "--device: cuda: %s has head dim %d; allowed: 64, 128, 256", job->input.path,
                    config->head_dim);
  const int32_t rank_heads = (config->heads + job->ranks - 1) / job->ranks;
  if (config->heads > DT_ULYSSES_HEADS_MAX || rank_heads > DT_CUDA_ATTENTION_HEADS_MAX)
    return log_fail(TOOL_USAGE, "--device: cuda: %s has %d heads; allowed: %d, and %d a rank", job->input.path,
                    config->heads, DT_ULYSSES_HEADS_MAX, DT_CUDA_ATTENTION_HEADS_MAX);
  if (!isnan(config->scale) && !(config->scale > 0))
    return log_fail(TOOL_USAGE, "--scale: %g; allowed on cuda: above 0", (double)config->scale);
  if (job->ranks > 8) return log_fail(TOOL_USAGE, "--ranks: %d; allowed on cuda: 1 to 8", job->ranks);
  return TOOL_OK;
}

int attention_device_find(attention_job *job) {
  const int code = rank_options_device(job->args, &job->gpus);
  if (code == TOOL_OK && job->ranks > job->gpus)
    log_note("%d ranks on %d GPUs: they share them, and their multiprocessors evenly; times are of that sharing",
             job->ranks, job->gpus);
  return code;
}

/* Rows of this rank on its device. */
static dt_status bring(const attention_job *job, int32_t rank, int kv, const void *from, void **to) {
  const dt_attention_config *config = &job->config;
  const size_t row = (size_t)(kv ? config->kv_heads : config->heads) * (size_t)config->head_dim * 2;
  dt_attention_rows runs[2];
  dt_status status = dt_attention_rows_in(config, job->ranks, rank, kv, runs);
  const size_t bytes = (size_t)(runs[0].rows + runs[1].rows) * row;
  if (!status) status = dt_cuda_alloc(bytes + 16, to);
  return status || !bytes ? status : dt_cuda_copy(*to, from, bytes);
}

static dt_status make(attention_device *device, const attention_job *job, const dt_attention_input *input) {
  const int32_t rank = dt_comm_rank(device->comm);
  const void *const from[3] = {input->q, input->k, input->v};
  dt_status status = DT_OK;
  for (int i = 0; i < 3 && !status; i++) status = bring(job, rank, i > 0, from[i], &device->inputs[i]);
  if (!status) status = dt_cuda_stream_create(&device->stream);
  if (!status) status = dt_cuda_event_create(&device->start);
  if (!status) status = dt_cuda_event_create(&device->stop);
  return status;
}

static dt_status create_operator(attention_device *device, const attention_job *job) {
  dt_cuda_device info;
  dt_status status = dt_cuda_device_info(device->gpu, &info);
  if (status) return status;
  const int32_t sharing = (job->ranks - device->gpu + job->gpus - 1) / job->gpus;
  dt_ulysses_config config;
  dt_ulysses_config_init(&config);
  config.comm = device->comm;
  config.attention = job->config;
  config.sms = sharing > 1 ? info.sms / sharing : 0;
  config.timeout_s = job->comm.timeout_s < 3600 ? job->comm.timeout_s : 3600;
  return dt_ulysses_create(&config, &device->ulysses);
}

dt_status attention_device_open(const attention_job *job, dt_comm *control, const dt_attention_input *input,
                                dt_comm **comm, attention_device **out) {
  const int32_t rank = dt_comm_rank(control);
  attention_device *device = calloc(1, sizeof *device);
  if (!device) return DT_ERR_MEMORY;
  device->gpu = rank % job->gpus;
  device->traced = args_set(job->args, "trace");
  *out = device;
  dt_status status = dt_comm_create_cuda(control, device->gpu, comm);
  if (status) return status;
  device->comm = *comm;
  dt_attention_rows runs[2];
  status = dt_cuda_device_use(device->gpu);
  if (!status) status = dt_attention_rows_out(&job->config, job->ranks, rank, runs);
  if (!status)
    device->output_bytes =
        (size_t)(runs[0].rows + runs[1].rows) * (size_t)job->config.heads * (size_t)job->config.head_dim * 2;
  if (!status) status = create_operator(device, job);
  if (!status) status = make(device, job, input);
  device->output = malloc(device->output_bytes + 1);
  return status || device->output ? status : DT_ERR_MEMORY;
}

void attention_device_close(attention_device *device) {
  if (!device) return;
  dt_ulysses_destroy(device->ulysses);
  for (int i = 0; i < 3; i++) dt_cuda_free(device->inputs[i]);
  dt_cuda_event_destroy(device->start);
  dt_cuda_event_destroy(device->stop);
  dt_cuda_stream_destroy(device->stream);
  free(device->output);
  free(device);
}

static dt_status time_part(attention_device *device, dt_ulysses_part part, double *seconds) {
  dt_status status = dt_comm_barrier(device->comm, "start of a run");
  if (!status) status = dt_cuda_event_record(device->start, device->stream);
  if (!status)
    status =
        dt_ulysses_run(device->ulysses, part, device->inputs[0], device->inputs[1], device->inputs[2], device->stream);
  if (!status) status = dt_cuda_event_record(device->stop, device->stream);
  if (!status) status = dt_ulysses_check(device->ulysses, device->stream);
  return status ? status : dt_cuda_event_seconds(device->start, device->stop, seconds);
}

/* Serial's stages are measured by themselves; the way out is what is left. */
dt_status attention_device_forward(attention_device *device, const dt_attention_config *config,
                                   dt_attention_stats *stats, const void **output) {
  dt_ulysses_config schedule;
  dt_ulysses_config_init(&schedule);
  schedule.attention = *config;
  *stats = (dt_attention_stats){0};
  dt_status status = dt_ulysses_set_schedule(device->ulysses, &schedule);
  if (!status) status = time_part(device, DT_ULYSSES_WHOLE, &stats->total_s);
  if (!status && device->output_bytes)
    status = dt_cuda_copy(device->output, dt_ulysses_output(device->ulysses), device->output_bytes);
  *output = device->output;
  stats->tiles = dt_ulysses_tile_count(device->ulysses);
  if (!status && device->traced)
    status = dt_ulysses_spans(device->ulysses, device->stream, &device->spans, &device->span_count);
  if (status || config->schedule != DT_ATTENTION_SERIAL) return status;
  status = time_part(device, DT_ULYSSES_IN, &stats->in_s);
  if (!status) status = time_part(device, DT_ULYSSES_ATTENTION, &stats->compute_s);
  const double rest_s = stats->total_s - stats->in_s - stats->compute_s;
  stats->out_s = rest_s > 0 ? rest_s : 0;
  return status;
}

void attention_device_spans(const attention_device *device, const dt_span **spans, size_t *count) {
  *spans = device->spans;
  *count = device->span_count;
}

dt_status attention_device_sent(const attention_job *job, int32_t rank, uint64_t *sent) {
  const dt_attention_config *c = &job->config;
  const size_t row = (size_t)c->head_dim * 2;
  dt_attention_rows own[2], q[2], kv[2];
  int32_t first, heads, kv_first, kv_heads, own_heads, own_first, own_kv, own_kv_first;
  dt_status status = dt_attention_heads(c, job->ranks, rank, &own_first, &own_heads, &own_kv_first, &own_kv);
  if (!status) status = dt_attention_rows_in(c, job->ranks, rank, 0, q);
  if (!status) status = dt_attention_rows_in(c, job->ranks, rank, 1, kv);
  const int whole_text = c->text == DT_ATTENTION_TEXT_REPLICATED; /* every rank has it */
  for (int32_t peer = 0; peer < job->ranks && !status; peer++) {
    sent[peer] = 0;
    if (peer == rank) continue;
    status = dt_attention_heads(c, job->ranks, peer, &first, &heads, &kv_first, &kv_heads);
    if (!status) status = dt_attention_rows_out(c, job->ranks, peer, own);
    if (status) break;
    const int64_t q_rows = q[1].rows + (whole_text ? 0 : q[0].rows),
                  kv_rows = kv[1].rows + (whole_text ? 0 : kv[0].rows);
    sent[peer] = row * (uint64_t)(q_rows * heads + 2 * kv_rows * kv_heads + (own[0].rows + own[1].rows) * own_heads);
  }
  return status;
}

void attention_device_describe(const attention_device *device, attention_rank_facts *facts) {
  dt_cuda_device info;
  if (dt_cuda_device_info(device->gpu, &info) != DT_OK) return;
  memcpy(facts->gpu, info.name, sizeof facts->gpu - 1);
  facts->peak_bytes = (int64_t)dt_ulysses_device_bytes(device->ulysses);
}
