/* One rank of `draintile moe --device cuda`, in its process, with a GPU or a share of one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "floats.h"
#include "log.h"
#include "moe_cuda.h"

static int open_fabric(moe_cuda_run *run) {
  moe_job *job = run->job;
  const int32_t rank = run->link->rank, device = moe_cuda_device(job, rank, NULL);
  dt_comm *control = NULL;
  dt_status status = dt_comm_create_shm(rank, job->ranks, rank_link_allgather, run->link, &job->comm, &control);
  if (status) return moe_cuda_fail(run, status);
  status = dt_comm_create_cuda(control, device, &run->comm);
  if (status) {
    dt_comm_destroy(control);
    return moe_cuda_fail(run, status);
  }
  dt_cuda_device info = {.sms = 0};
  status = dt_cuda_device_use(device);
  if (!status) status = dt_cuda_device_info(device, &info);
  job->shared.facts[rank].sms = info.sms;
  if (!status) status = dt_cuda_stream_create(&run->stream);
  if (!status) status = dt_cuda_event_create(&run->start);
  if (!status) status = dt_cuda_event_create(&run->stop);
  if (!status) status = dt_checkpoint_layer(job->checkpoint, job->layer, rank, job->ranks, &run->layer);
  return moe_cuda_fail(run, status);
}

/* Every rank writes its row of the counts that all share. */
static int count_rows(moe_cuda_run *run) {
  moe_job *job = run->job;
  int32_t *counts = job->shared.counts + (size_t)run->link->rank * (size_t)job->info->experts;
  const int32_t *ids = job->shared.ids + run->first * job->top_k;
  for (int64_t slot = 0; slot < run->count * job->top_k; slot++)
    if (ids[slot] >= 0) counts[ids[slot]]++;
  return moe_cuda_fail(run, dt_comm_barrier(run->comm, "routing"));
}

static int prepare(moe_cuda_run *run) {
  moe_job *job = run->job;
  dt_token_block(job->input.tokens, job->ranks, run->link->rank, &run->first, &run->count);
  const size_t values = (size_t)(run->count * job->input.hidden);
  run->serial = malloc(moe_cuda_output_bytes(run) + 1);
  run->output = malloc(moe_cuda_output_bytes(run) + 1);
  run->converted = malloc(values * dt_dtype_bytes(job->input.dtype) + 1);
  if (!run->serial || !run->output || !run->converted)
    return rank_link_fail(run->link, TOOL_FAILED, "out of memory for the output");
  int code = open_fabric(run);
  if (code == TOOL_OK) code = moe_route(run->link, job, run->layer, run->first, run->count);
  if (code == TOOL_OK) code = count_rows(run);
  if (code == TOOL_OK) code = moe_cuda_fail(run, moe_cuda_upload(&run->layer->weights, &run->weights));
  if (code == TOOL_OK)
    code = moe_cuda_fail(
        run, moe_cuda_tokens_upload(job, &run->layer->weights, run->link->rank, run->first, run->count, &run->tokens));
  if (code) return code;
  const dt_cuda_moe_config config = moe_cuda_config(run, 0);
  code = moe_cuda_fail(run, dt_cuda_moe_create(&config, &run->weights.weights, &run->moe));
  if (code == TOOL_OK)
    job->shared.facts[run->link->rank].peak_bytes = (int64_t)(run->weights.bytes + dt_cuda_moe_device_bytes(run->moe));
  return code;
}

static int warm_up(moe_cuda_run *run) {
  moe_job *job = run->job;
  int32_t runs = 0;
  int code = moe_cuda_forward(run, 0, -1);
  if (code == TOOL_OK && job->choose) code = rank_link_ask(run->link, &runs);
  for (int32_t index = 1; code == TOOL_OK && index < *job->shared.run_count; index++)
    code = moe_cuda_forward(run, index, -1);
  return code;
}

static int measure(moe_cuda_run *run) {
  moe_job *job = run->job;
  int code = TOOL_OK;
  for (int32_t repeat = 0; code == TOOL_OK && repeat < job->repeat; repeat++)
    for (int32_t index = 0; code == TOOL_OK && index < *job->shared.run_count; index++)
      code = moe_cuda_forward(run, index, repeat);
  return code == TOOL_OK && args_set(job->args, "trace") ? moe_cuda_trace(run) : code;
}

/* bf16 rows as the input's type, for the check and the file. */
static int convert(moe_cuda_run *run, const uint16_t *rows) {
  const size_t values = (size_t)(run->count * run->job->input.hidden);
  double *wide = malloc(values * sizeof *wide + 1);
  float *single = malloc(values * sizeof *single + 1);
  if (wide && single) {
    floats_load(DT_DTYPE_BF16, rows, values, wide);
    for (size_t i = 0; i < values; i++) single[i] = (float)wide[i];
    floats_store(run->job->input.dtype, single, values, run->converted);
  }
  const int ready = wide && single;
  free(wide), free(single);
  return ready ? TOOL_OK : rank_link_fail(run->link, TOOL_FAILED, "out of memory for the output");
}

static int check_run(moe_cuda_run *run, int32_t index, const uint16_t *rows) {
  const int code = convert(run, rows);
  if (code == TOOL_OK)
    moe_check_error(run->job, run->first, run->count, run->converted,
                    &moe_run_of(run->job, index, run->link->rank)->verdict);
  return code;
}

static int check(moe_cuda_run *run) {
  moe_job *job = run->job;
  int code = moe_cuda_fail(run, dt_comm_barrier(run->comm, "before the check"));
  if (code == TOOL_OK) code = moe_check_reference(run->link, job, run->comm, &run->layer->weights);
  if (code == TOOL_OK) code = check_run(run, 0, run->serial);
  for (int32_t index = 1; code == TOOL_OK && index < *job->shared.run_count; index++) {
    int differs = 0; /* all ranks must run the schedule again where one differs */
    for (int32_t rank = 0; rank < job->ranks; rank++) differs |= !moe_run_of(job, index, rank)->verdict.bit_equal;
    if (differs) code = moe_cuda_forward(run, index, -1);
    if (code == TOOL_OK) code = check_run(run, index, differs ? run->output : run->serial);
  }
  return code;
}

static int write_rows(moe_cuda_run *run) {
  if (run->count == 0) return TOOL_OK;
  const int code = convert(run, run->output);
  return code ? code
              : moe_cuda_fail(run, dt_tensor_writer_rows(run->job->writer, "hidden_states", run->first, run->count,
                                                         run->converted));
}

static int run_all(moe_cuda_run *run) {
  int code = prepare(run);
  if (code == TOOL_OK) moe_facts(run->link, run->job, &run->layer->weights);
  if (code == TOOL_OK) code = warm_up(run);
  if (code == TOOL_OK) code = measure(run);
  if (code == TOOL_OK) code = write_rows(run);
  if (code == TOOL_OK && run->job->check) code = check(run);
  return code;
}

int moe_cuda_rank_main(rank_link *link, void *context) {
  moe_cuda_run run = {.link = link, .job = context};
  const int code = run_all(&run);
  if (code != TOOL_OK && run.comm) dt_comm_abort(run.comm, DT_ERR_PEER, link->account->detail);
  dt_cuda_moe_destroy(run.moe);
  moe_cuda_weights_release(&run.weights);
  moe_cuda_tokens_release(&run.tokens);
  dt_cuda_event_destroy(run.start);
  dt_cuda_event_destroy(run.stop);
  dt_cuda_stream_destroy(run.stream);
  dt_layer_free(run.layer);
  dt_comm_destroy(run.comm);
  free(run.serial), free(run.output), free(run.converted);
  return code;
}
