/* One rank of `draintile attention`, in its process. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <draintile/reference.h>

#include "attention.h"
#include "attention_device.h"
#include "figures.h"
#include "floats.h"
#include "log.h"

enum { CHECK_ROWS = 128, GEMM_SIDE = 512, GEMM_REPEATS = 3 };

typedef struct rank_run {
  rank_link *link;
  attention_job *job;
  dt_comm *comm;
  dt_attention *attention;
  attention_device *device; /* instead, with --device cuda */
  dt_attention_input input;
  void *copies[3];           /* q, k, v, where the file does not hold them in one piece */
  dt_attention_rows rows[2]; /* of the output */
  size_t token_bytes, output_bytes;
  void *serial;       /* serial's first output */
  const void *output; /* of the last forward */
} rank_run;

/* This rank's rows of one tensor: in the file where they lie together there, else a copy. */
static int hold(rank_run *run, const void *tensor, int32_t heads, int kv, int place, const void **out) {
  const dt_attention_config *config = &run->job->config;
  size_t row = (size_t)heads * (size_t)config->head_dim * dt_dtype_bytes(config->dtype);
  dt_attention_rows runs[2];
  dt_status status = dt_attention_rows_in(config, run->job->ranks, run->link->rank, kv, runs);
  if (status) return rank_link_fail_status(run->link, status);
  const char *whole = tensor;
  int32_t first = runs[0].rows ? 0 : 1;
  *out = whole + (size_t)runs[first].first * row;
  if (!runs[0].rows || !runs[1].rows || runs[0].first + runs[0].rows == runs[1].first) return TOOL_OK;
  char *copy = malloc((size_t)(runs[0].rows + runs[1].rows) * row);
  if (!copy) return rank_link_fail(run->link, TOOL_FAILED, "out of memory for text and image rows");
  run->copies[place] = copy;
  for (int i = 0; i < 2; i++)
    memcpy(copy + (size_t)runs[i].local * row, whole + (size_t)runs[i].first * row, (size_t)runs[i].rows * row);
  *out = copy;
  return TOOL_OK;
}

static int prepare(rank_run *run) {
  attention_job *job = run->job;
  dt_attention_config config = job->config;
  dt_status status = dt_attention_rows_out(&config, job->ranks, run->link->rank, run->rows);
  if (status) return rank_link_fail_status(run->link, status);
  run->token_bytes = (size_t)config.heads * (size_t)config.head_dim * dt_dtype_bytes(config.dtype);
  run->output_bytes = (size_t)(run->rows[0].rows + run->rows[1].rows) * run->token_bytes;
  run->serial = malloc(run->output_bytes + 1);
  if (!run->serial) return rank_link_fail(run->link, TOOL_FAILED, "out of memory for the output");
  int code = hold(run, job->input.q, config.heads, 0, 0, &run->input.q);
  if (code == TOOL_OK) code = hold(run, job->input.k, config.kv_heads, 1, 1, &run->input.k);
  if (code == TOOL_OK) code = hold(run, job->input.v, config.kv_heads, 1, 2, &run->input.v);
  if (code) return code;
  status = dt_comm_create_shm(run->link->rank, job->ranks, rank_link_allgather, run->link, &job->comm, &run->comm);
  if (!status && job->gpus) {
    dt_comm *control = run->comm;
    run->comm = NULL;
    status = attention_device_open(job, control, &run->input, &run->comm, &run->device);
    if (!run->comm) run->comm = control;
  } else if (!status) {
    status = dt_attention_create(run->comm, &config, &run->attention);
  }
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

/* On the CPU, or on this rank's GPU. */
static dt_status attend(rank_run *run, const dt_attention_config *config, dt_attention_stats *stats, uint64_t *sent,
                        const void **output) {
  const attention_job *job = run->job;
  if (job->gpus) {
    dt_status status = attention_device_forward(run->device, config, stats, output);
    return status ? status : attention_device_sent(job, run->link->rank, sent);
  }
  uint64_t before[RANKS_MAX] = {0}, after[RANKS_MAX] = {0};
  dt_status status = dt_attention_set_schedule(run->attention, config);
  if (!status) status = dt_comm_barrier(run->comm, "start of a run");
  dt_comm_bytes_sent(run->comm, before);
  if (!status) status = dt_attention_forward(run->attention, &run->input, stats);
  if (status) return status;
  dt_comm_bytes_sent(run->comm, after);
  for (int32_t peer = 0; peer < job->ranks; peer++) sent[peer] = after[peer] - before[peer];
  *output = dt_attention_output(run->attention);
  return DT_OK;
}

/* One forward of run `index`; `repeat` < 0: warm-up. Compares with serial's first output. */
static int forward(rank_run *run, int32_t index, int32_t repeat) {
  attention_job *job = run->job;
  figures_verdict *result = attention_verdict(job, index, run->link->rank);
  dt_attention_config config = job->config;
  dt_attention_stats stats;
  const void *output;
  config.schedule = job->schedules[index];
  dt_status status = attend(run, &config, &stats, attention_sent(job, index, run->link->rank), &output);
  if (status) return rank_link_fail_status(run->link, status);
  run->output = output;
  if (index == 0 && repeat < 0)
    memcpy(run->serial, output, run->output_bytes);
  else if (memcmp(run->serial, output, run->output_bytes) != 0)
    result->bit_equal = 0;
  if (repeat >= 0) *attention_sample(job, index, repeat, run->link->rank) = stats;
  atomic_fetch_add(&run->link->account->progress, 1);
  return TOOL_OK;
}

static int send_spans(rank_run *run, int32_t index) {
  const dt_span *spans = NULL;
  size_t count = 0;
  if (run->job->gpus)
    attention_device_spans(run->device, &spans, &count);
  else
    dt_attention_spans(run->attention, &spans, &count);
  return rank_link_send(run->link, index, spans, count * sizeof(*spans));
}

static int measure(rank_run *run) {
  attention_job *job = run->job;
  int code = TOOL_OK;
  for (int32_t repeat = -1; code == TOOL_OK && repeat < job->repeat; repeat++)
    for (int32_t index = 0; code == TOOL_OK && index < job->run_count; index++) {
      code = forward(run, index, repeat);
      if (code == TOOL_OK && repeat + 1 == job->repeat) code = send_spans(run, index);
    }
  return code;
}

static int write_rows(rank_run *run) {
  const char *output = run->output;
  for (int i = 0; i < 2; i++) {
    const dt_attention_rows *rows = &run->rows[i];
    if (rows->rows == 0) continue;
    dt_status status = dt_tensor_writer_rows(run->job->writer, "o", rows->first, rows->rows,
                                             output + (size_t)rows->local * run->token_bytes);
    if (status) return rank_link_fail_status(run->link, status);
  }
  return TOOL_OK;
}

/* Two products of every visible pair of rows, and what a big product reaches with all ranks at it. */
static int probe(rank_run *run) {
  attention_job *job = run->job;
  const dt_attention_config *config = &job->config;
  attention_rank_facts *facts = &job->shared.facts[run->link->rank];
  int32_t first, heads, kv_first, kv_heads;
  double pairs = 0, mean;
  dt_status status = dt_attention_heads(config, job->ranks, run->link->rank, &first, &heads, &kv_first, &kv_heads);
  for (int64_t row = 0; row < config->tokens; row++) {
    int64_t visible = config->causal ? row + 1 + config->kv_tokens - config->tokens : config->kv_tokens;
    pairs += (double)(visible > 0 ? visible : 0);
  }
  facts->flops = 4 * pairs * heads * config->head_dim;
  if (job->gpus) {
    attention_device_describe(run->device, facts);
    return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
  }
  if (!status) status = dt_comm_barrier(run->comm, "GEMM probe");
  if (!status) status = dt_sgemm_rate(config->workers, GEMM_SIDE, GEMM_REPEATS, &facts->sgemm_flop_per_s, &mean);
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  facts->peak_bytes = (int64_t)usage.ru_maxrss * 1024;
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

/* The errors of rows [first, first + count) of the file, which begin at `output`. */
static dt_status check_rows(const attention_job *job, int64_t first, int64_t count, const char *output,
                            double *reference, double *y, figures_verdict *result) {
  int64_t values = (int64_t)job->config.heads * job->config.head_dim;
  size_t token = (size_t)values * dt_dtype_bytes(job->config.dtype);
  dt_status status =
      dt_attention_reference(&job->config, job->input.q, job->input.k, job->input.v, first, count, reference);
  for (int64_t row = 0; !status && row < count; row++) {
    floats_load(job->config.dtype, output + (size_t)row * token, (size_t)values, y);
    figures_verdict_add(result, figures_token_error(job->config.dtype, y, reference + row * values, values),
                        first + row);
  }
  return status;
}

/* This rank's rows of one output against float64. */
static int check_output(rank_run *run, const char *output, figures_verdict *result) {
  const attention_job *job = run->job;
  size_t values = (size_t)job->config.heads * (size_t)job->config.head_dim;
  double *reference = malloc(CHECK_ROWS * values * sizeof(double)), *y = malloc(values * sizeof(double));
  dt_status status = DT_OK;
  result->max_relative_error = 0;
  result->worst_token = -1;
  for (int i = 0; reference && y && i < 2; i++)
    for (int64_t at = 0; !status && at < run->rows[i].rows; at += CHECK_ROWS) {
      int64_t left = run->rows[i].rows - at, count = left < CHECK_ROWS ? left : CHECK_ROWS;
      status = check_rows(job, run->rows[i].first + at, count,
                          output + (size_t)(run->rows[i].local + at) * run->token_bytes, reference, y, result);
    }
  int ready = reference && y;
  free(reference);
  free(y);
  if (!ready) return rank_link_fail(run->link, TOOL_FAILED, "out of memory for the check");
  return status ? rank_link_fail_status(run->link, status) : TOOL_OK;
}

static int check(rank_run *run) {
  attention_job *job = run->job;
  figures_verdict *serial = attention_verdict(job, 0, run->link->rank);
  int code = check_output(run, run->serial, serial);
  dt_status status = code == TOOL_OK ? dt_comm_barrier(run->comm, "check") : DT_OK;
  if (status) return rank_link_fail_status(run->link, status);
  for (int32_t index = 1; code == TOOL_OK && index < job->run_count; index++) {
    figures_verdict *result = attention_verdict(job, index, run->link->rank);
    result->max_relative_error = serial->max_relative_error;
    result->worst_token = serial->worst_token;
    int differs = 0; /* all ranks must run the schedule again where one differs */
    for (int32_t rank = 0; rank < job->ranks; rank++) differs |= !attention_verdict(job, index, rank)->bit_equal;
    if (!differs) continue;
    code = forward(run, index, -1);
    if (code == TOOL_OK) code = check_output(run, run->output, result);
  }
  return code;
}

static int run_all(rank_run *run) {
  int code = prepare(run);
  if (code == TOOL_OK) code = measure(run);
  if (code == TOOL_OK) code = write_rows(run);
  if (code == TOOL_OK) code = probe(run);
  if (code == TOOL_OK && run->job->check) code = check(run);
  return code;
}

int attention_rank_main(rank_link *link, void *context) {
  rank_run run = {.link = link, .job = context};
  int code = run_all(&run);
  if (code != TOOL_OK && run.comm) dt_comm_abort(run.comm, DT_ERR_PEER, link->account->detail);
  dt_attention_destroy(run.attention);
  attention_device_close(run.device);
  dt_comm_destroy(run.comm);
  free(run.serial);
  for (int i = 0; i < 3; i++) free(run.copies[i]);
  return code;
}
