/* The forwards of a rank on a GPU: what is run, what is timed, what is noted of it. */
#include <string.h>

#include "log.h"
#include "moe_cuda.h"

int moe_cuda_fail(moe_cuda_run *run, dt_status status) {
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

size_t moe_cuda_output_bytes(const moe_cuda_run *run) {
  return (size_t)(run->count * run->job->input.hidden) * sizeof(uint16_t);
}

dt_cuda_moe_config moe_cuda_config(const moe_cuda_run *run, int32_t index) {
  const moe_job *job = run->job;
  const moe_form *form = &job->shared.forms[index];
  const dt_schedule schedule = (dt_schedule)job->shared.schedules[index];
  int32_t sharers;
  dt_cuda_device info;
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = run->comm;
  config.hidden = job->info->hidden;
  config.intermediate = job->info->intermediate;
  config.experts_per_rank = run->weights.experts_per_rank;
  config.top_k = job->top_k + run->weights.extra;
  config.max_tokens = moe_max_tokens(job) > 0 ? moe_max_tokens(job) : 1;
  if (job->input.repeats) config.max_rows = job->input.tokens * config.top_k;
  config.activation = run->layer->weights.activation;
  config.activation_alpha = run->layer->weights.activation_alpha;
  config.activation_limit = run->layer->weights.activation_limit;
  config.schedule = schedule;
  config.order = moe_cuda_order(job);
  config.raster_bands = job->config.raster_bands;
  config.group_tasks = form->chosen ? form->group_tasks : job->config.group_tasks;
  config.lead = form->chosen ? form->lead : job->config.lead;
  config.wave_experts = schedule == DT_SCHEDULE_WAVE ? job->config.wave_experts : 0;
  if (args_given(job->args, "consumers")) config.consumers = job->config.consumers;
  config.segment_bands = job->config.segment_bands;
  config.dedup = moe_cuda_dedups(job, index);
  config.timestamps = run->traced;
  if (args_set(job->args, "timeout")) config.timeout_s = job->comm.timeout_s;
  const int32_t device = moe_cuda_device(job, run->link->rank, &sharers);
  if (sharers > 1 && dt_cuda_device_info(device, &info) == DT_OK) config.sms = info.sms / sharers / 2 * 2;
  return config;
}

/* What reports and prices need of a plan: the engine's tiles. */
static void describe_plan(moe_cuda_run *run, int32_t index) {
  moe_job *job = run->job;
  dt_plan_config *plan = &moe_run_of(job, index, run->link->rank)->plan;
  dt_plan_config_init(plan);
  plan->ranks = job->ranks;
  plan->rank = run->link->rank;
  plan->experts_per_rank = job->info->experts / job->ranks;
  plan->schedule = (dt_schedule)job->shared.schedules[index];
  plan->order = moe_cuda_order(job);
  plan->tile_m = 128;
  plan->columns_1 = (int32_t)((job->info->intermediate + 127) / 128);
  plan->columns_2 = (int32_t)((job->info->hidden + 255) / 256);
}

/* A part alone, all ranks at once. */
static dt_status time_part(moe_cuda_run *run, dt_cuda_moe_part part, double *seconds) {
  dt_status status = dt_comm_barrier(run->comm, "part");
  if (!status) status = dt_cuda_event_record(run->start, run->stream);
  if (!status) status = dt_cuda_moe_run_part(run->moe, part, &run->tokens.input, run->stream);
  if (!status) status = dt_cuda_event_record(run->stop, run->stream);
  return status ? status : dt_cuda_event_seconds(run->start, run->stop, seconds);
}

static dt_status time_parts(moe_cuda_run *run, dt_moe_stats *stats) {
  dt_status status = time_part(run, DT_CUDA_MOE_COMPUTE, &stats->compute_s);
  if (!status) status = time_part(run, DT_CUDA_MOE_DISPATCH, &stats->dispatch_s);
  if (!status) status = time_part(run, DT_CUDA_MOE_COMBINE, &stats->combine_s);
  return status ? status : time_part(run, DT_CUDA_MOE_REDUCE, &stats->reduce_s);
}

/* Two forwards: the first brings the GPUs together, the second is timed. */
static dt_status launch(moe_cuda_run *run, int32_t index, double *seconds) {
  const dt_cuda_moe_config config = moe_cuda_config(run, index);
  dt_status status = dt_cuda_moe_set_schedule(run->moe, &config);
  if (!status && run->count) status = dt_cuda_set(run->tokens.input.output, 0xff, moe_cuda_output_bytes(run));
  if (!status) status = dt_comm_barrier(run->comm, "start of a run");
  if (!status) status = dt_cuda_moe_forward(run->moe, &run->tokens.input, run->stream);
  if (!status) status = dt_cuda_event_record(run->start, run->stream);
  if (!status) status = dt_cuda_moe_forward(run->moe, &run->tokens.input, run->stream);
  if (!status) status = dt_cuda_event_record(run->stop, run->stream);
  if (!status) status = dt_cuda_moe_check(run->moe, run->stream);
  return status ? status : dt_cuda_event_seconds(run->start, run->stop, seconds);
}

/* Bytes to every peer in one forward: rows of its tokens' choices here, rows of this rank's tokens there. */
static void note_sent(moe_cuda_run *run, int32_t index) {
  const moe_job *job = run->job;
  const int32_t rank = run->link->rank, own = job->info->experts / job->ranks;
  uint64_t *sent = job->shared.sent + ((size_t)index * (size_t)job->ranks + (size_t)rank) * (size_t)job->ranks;
  for (int32_t peer = 0; peer < job->ranks; peer++) {
    int64_t rows = 0;
    const int dedup = moe_cuda_dedups(job, index);
    for (int64_t token = run->first; dedup && token < run->first + run->count; token++) {
      int wants = 0;
      for (int32_t c = 0; c < job->top_k; c++) {
        const int32_t id = job->shared.ids[token * job->top_k + c];
        wants |= id >= 0 && id / own == peer;
      }
      rows += wants;
    }
    if (!dedup) rows = moe_rows_between(job, rank, peer);
    rows += moe_rows_between(job, peer, rank);
    sent[peer] = peer == rank ? 0 : (uint64_t)(rows * job->input.hidden) * sizeof(uint16_t);
  }
}

static dt_status count_tiles(const moe_cuda_run *run, int32_t index, dt_moe_stats *stats) {
  dt_plan *plan = NULL;
  const dt_plan_config *config = &moe_run_of(run->job, index, run->link->rank)->plan;
  const dt_status status = dt_plan_create(config, run->job->shared.counts, &plan);
  if (status) return status;
  stats->rows = plan->rows;
  stats->padded_rows = plan->padded_rows;
  stats->tiles = (int64_t)plan->band_count * (config->columns_1 + config->columns_2);
  dt_plan_destroy(plan);
  return DT_OK;
}

/* One sample of run `index`; `repeat` < 0: warm-up. Compares with serial's first output. */
int moe_cuda_forward(moe_cuda_run *run, int32_t index, int32_t repeat) {
  moe_job *job = run->job;
  moe_rank_run *result = moe_run_of(job, index, run->link->rank);
  const int baseline = index == 0 && repeat < 0;
  uint16_t *output = baseline ? run->serial : run->output;
  dt_moe_stats stats = {0};
  dt_cuda_moe_stats seen;
  describe_plan(run, index);
  dt_status status = launch(run, index, &stats.total_s);
  if (!status && run->count) status = dt_cuda_copy(output, run->tokens.input.output, moe_cuda_output_bytes(run));
  if (!status) status = dt_cuda_moe_stats_read(run->moe, run->stream, &seen);
  if (!status) status = count_tiles(run, index, &stats);
  if (!status) stats.bytes_sent = seen.dispatch_bytes + seen.combine_bytes;
  if (!status && index == 0) status = time_parts(run, &stats);
  if (status) return moe_cuda_fail(run, status);
  note_sent(run, index);
  result->sms = seen.sms, result->send_sms = seen.send_sms, result->consumers = seen.consumers;
  if (!baseline && memcmp(run->serial, run->output, moe_cuda_output_bytes(run)) != 0) result->verdict.bit_equal = 0;
  if (repeat >= 0) *moe_sample(job, index, repeat, run->link->rank) = stats;
  atomic_fetch_add(&run->link->account->progress, 1);
  return TOOL_OK;
}

static dt_status send_spans(moe_cuda_run *run, int32_t index) {
  const dt_span *spans = NULL;
  size_t count = 0;
  double seconds;
  dt_status status = launch(run, index, &seconds);
  if (!status)
    status = dt_cuda_moe_spans(run->moe, run->stream, &spans, &count,
                               &moe_run_of(run->job, index, run->link->rank)->spans_lost);
  if (status) return status;
  const int32_t tag = moe_span_tag(index, run->job->repeat - 1);
  return rank_link_send(run->link, tag, spans, count * sizeof(*spans)) ? DT_ERR_SYSTEM : DT_OK;
}

int moe_cuda_trace(moe_cuda_run *run) {
  dt_cuda_moe_destroy(run->moe);
  run->moe = NULL;
  run->traced = 1;
  const dt_cuda_moe_config config = moe_cuda_config(run, 0);
  dt_status status = dt_cuda_moe_create(&config, &run->weights.weights, &run->moe);
  for (int32_t index = 0; index < *run->job->shared.run_count && !status; index++) status = send_spans(run, index);
  return moe_cuda_fail(run, status);
}
