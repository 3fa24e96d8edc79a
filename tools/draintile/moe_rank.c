/* One rank of `draintile moe`, in its process. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "log.h"
#include "moe.h"

typedef struct rank_run {
  rank_link *link;
  moe_job *job;
  dt_comm *comm;
  dt_layer *layer;
  dt_moe *moe;
  dt_moe_input input;
  int64_t first, count;  /* this rank's tokens */
  void *serial, *output; /* [count][hidden]: serial's first output; the output being made */
} rank_run;

static int open_layer(rank_run *run) {
  moe_job *job = run->job;
  dt_status status =
      dt_comm_create_shm(run->link->rank, job->ranks, rank_link_allgather, run->link, &job->comm, &run->comm);
  if (!status) status = dt_checkpoint_layer(job->checkpoint, job->layer, run->link->rank, job->ranks, &run->layer);
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

int moe_route(rank_link *link, moe_job *job, const dt_layer *layer, int64_t first, int64_t count) {
  int64_t slots = count * job->top_k, base = first * job->top_k;
  size_t row = (size_t)job->input.hidden * dt_dtype_bytes(job->input.dtype);
  int32_t *ids = job->shared.ids + base;
  float *weights = job->shared.weights + base;
  for (int64_t i = 0; job->input.ids && i < slots; i++) {
    ids[i] = (int32_t)job->input.ids[base + i];
    weights[i] = job->input.weights[base + i];
  }
  if (job->input.ids) return TOOL_OK;
  dt_status status = dt_router_run(&layer->router, job->input.dtype,
                                   (const char *)job->input.data + (size_t)first * row, count, ids, weights);
  return status ? rank_link_fail_status(link, status) : TOOL_OK;
}

static int prepare(rank_run *run) {
  moe_job *job = run->job;
  size_t element = dt_dtype_bytes(job->input.dtype), row = (size_t)job->input.hidden * element;
  dt_token_block(job->input.tokens, job->ranks, run->link->rank, &run->first, &run->count);
  run->input = (dt_moe_input){
      .tokens = run->count,
      .hidden = (const char *)job->input.data + (size_t)run->first * row,
      .ids = job->shared.ids + run->first * job->top_k,
      .weights = job->shared.weights + run->first * job->top_k,
  };
  run->serial = malloc((size_t)run->count * row + 1);
  run->output = malloc((size_t)run->count * row + 1);
  if (!run->serial || !run->output) return rank_link_fail(run->link, TOOL_FAILED, "out of memory for the output");
  int code = open_layer(run);
  if (code == TOOL_OK) code = moe_route(run->link, job, run->layer, run->first, run->count);
  if (code) return code;
  dt_moe_config config = moe_config_of(job, DT_SCHEDULE_SERIAL);
  dt_status status = dt_moe_create(run->comm, &config, &run->layer->weights, &run->moe);
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

/* One forward of run `index`; `repeat` < 0: warm-up. Compares with serial's first output. */
static int forward(rank_run *run, int32_t index, int32_t repeat) {
  moe_job *job = run->job;
  dt_schedule schedule = (dt_schedule)job->shared.schedules[index];
  moe_rank_run *result = moe_run_of(job, index, run->link->rank);
  dt_moe_config config = moe_config_of(job, schedule);
  uint64_t before[RANKS_MAX] = {0}, after[RANKS_MAX] = {0};
  dt_moe_stats stats;
  int baseline = index == 0 && repeat < 0;
  void *output = baseline ? run->serial : run->output;
  dt_status status = dt_moe_set_schedule(run->moe, &config);
  if (!status) status = dt_comm_barrier(run->comm, "start of a run");
  dt_comm_bytes_sent(run->comm, before);
  if (!status) status = dt_moe_forward(run->moe, &run->input, output, &stats);
  if (status) return rank_link_fail_status(run->link, status);
  dt_comm_bytes_sent(run->comm, after);
  for (int32_t peer = 0; peer < job->ranks; peer++)
    job->shared
        .sent[((size_t)index * (size_t)job->ranks + (size_t)run->link->rank) * (size_t)job->ranks + (size_t)peer] =
        after[peer] - before[peer];
  result->plan = dt_moe_plan(run->moe)->config;
  size_t bytes = (size_t)(run->count * job->input.hidden) * dt_dtype_bytes(job->input.dtype);
  if (!baseline && memcmp(run->serial, run->output, bytes) != 0) result->verdict.bit_equal = 0;
  if (repeat >= 0) *moe_sample(job, index, repeat, run->link->rank) = stats;
  atomic_fetch_add(&run->link->account->progress, 1);
  return TOOL_OK;
}

static int send_spans(rank_run *run, int32_t index, int32_t repeat) {
  const dt_span *spans;
  size_t count;
  dt_moe_spans(run->moe, &spans, &count);
  return rank_link_send(run->link, moe_span_tag(index, repeat), spans, count * sizeof(*spans));
}

static int warm_up(rank_run *run) {
  moe_job *job = run->job;
  int code = forward(run, 0, -1);
  if (code) return code;
  if (run->link->rank == 0)
    memcpy(job->shared.counts, dt_moe_counts(run->moe),
           (size_t)job->ranks * (size_t)job->info->experts * sizeof(int32_t));
  if (job->choose) { /* the warm-up reads the weights from disk: price on a second forward */
    int32_t runs = 0;
    code = forward(run, 0, 0);
    if (code == TOOL_OK) code = send_spans(run, 0, job->repeat);
    if (code == TOOL_OK) code = rank_link_ask(run->link, &runs);
  }
  for (int32_t index = 1; code == TOOL_OK && index < *job->shared.run_count; index++) code = forward(run, index, -1);
  return code;
}

static int measure(rank_run *run) {
  moe_job *job = run->job;
  int code = TOOL_OK;
  for (int32_t repeat = 0; code == TOOL_OK && repeat < job->repeat; repeat++)
    for (int32_t index = 0; code == TOOL_OK && index < *job->shared.run_count; index++) {
      code = forward(run, index, repeat);
      if (code == TOOL_OK && (index == 0 || repeat + 1 == job->repeat)) code = send_spans(run, index, repeat);
    }
  return code;
}

static int check(rank_run *run) {
  moe_job *job = run->job;
  int code = moe_check_reference(run->link, job, run->comm, &run->layer->weights);
  if (code) return code;
  const figures_verdict *serial = &moe_run_of(job, 0, run->link->rank)->verdict;
  moe_check_error(job, run->first, run->count, run->serial, &moe_run_of(job, 0, run->link->rank)->verdict);
  for (int32_t index = 1; code == TOOL_OK && index < *job->shared.run_count; index++) {
    figures_verdict *result = &moe_run_of(job, index, run->link->rank)->verdict;
    result->max_relative_error = serial->max_relative_error;
    result->worst_token = serial->worst_token;
    int differs = 0; /* all ranks must run the schedule again where one differs */
    for (int32_t rank = 0; rank < job->ranks; rank++) differs |= !moe_run_of(job, index, rank)->verdict.bit_equal;
    if (!differs) continue;
    code = forward(run, index, -1);
    if (code == TOOL_OK) moe_check_error(job, run->first, run->count, run->output, result);
  }
  return code;
}

static int write_rows(rank_run *run) {
  moe_job *job = run->job;
  if (run->count == 0) return TOOL_OK;
  dt_status status = dt_tensor_writer_rows(job->writer, "hidden_states", run->first, run->count, run->output);
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

static int run_all(rank_run *run) {
  moe_job *job = run->job;
  int code = prepare(run);
  if (code == TOOL_OK) code = warm_up(run);
  if (code == TOOL_OK) code = measure(run);
  if (code == TOOL_OK) code = write_rows(run);
  if (code == TOOL_OK) code = moe_probe(run->link, job, &run->layer->weights, run->comm);
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  job->shared.facts[run->link->rank].peak_bytes = (int64_t)usage.ru_maxrss * 1024;
  if (code == TOOL_OK && job->check) {
    dt_status status = dt_comm_barrier(run->comm, "before the check");
    code = status ? rank_link_fail_status(run->link, status) : check(run);
  }
  return code;
}

int moe_rank_main(rank_link *link, void *context) {
  rank_run run = {.link = link, .job = context};
  int code = run_all(&run);
  if (code != TOOL_OK && run.comm) dt_comm_abort(run.comm, DT_ERR_PEER, link->account->detail);
  dt_moe_destroy(run.moe);
  dt_layer_free(run.layer);
  dt_comm_destroy(run.comm);
  free(run.serial);
  free(run.output);
  return code;
}
