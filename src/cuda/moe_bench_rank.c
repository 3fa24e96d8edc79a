#include "moe_bench_rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "comm/clock.h"
#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"

/* Elements of the three matrices and of a row buffer. */
static size_t matrix_elements(const dt_moe_bench_config *c) {
  return (size_t)(c->shape.experts / c->ranks) * (size_t)c->shape.hidden * (size_t)c->shape.intermediate;
}

static dt_status make_memory(dt_moe_bench_rank *r) {
  const dt_moe_bench_config *c = &r->shared->config;
  const size_t matrix = matrix_elements(c), rows = (size_t)c->max_tokens * (size_t)c->shape.hidden;
  const size_t slots = (size_t)c->max_tokens * (size_t)c->shape.top_k;
  const size_t samples = (size_t)c->ranks * (size_t)c->checked_tokens, choices = samples * (size_t)c->shape.top_k;
  const struct {
    void **at;
    size_t bytes;
    const char *what;
  } parts[] = {
      {(void **)&r->gate, 2 * matrix, "gate"},
      {(void **)&r->up, 2 * matrix, "up"},
      {(void **)&r->down, 2 * matrix, "down"},
      {(void **)&r->x, 2 * rows, "tokens"},
      {(void **)&r->output, 2 * rows, "output"},
      {(void **)&r->expected, 2 * rows, "expected output"},
      {(void **)&r->ids, slots * sizeof *r->ids, "ids"},
      {(void **)&r->weights, slots * sizeof *r->weights, "routing weights"},
      {(void **)&r->wrong, sizeof *r->wrong, "counter"},
      {(void **)&r->sampled_x, 2 * samples * (size_t)c->shape.hidden, "sampled tokens"},
      {(void **)&r->act, choices * (size_t)c->shape.intermediate * sizeof *r->act, "reference"},
      {(void **)&r->y, samples * (size_t)c->shape.hidden * sizeof *r->y, "reference"},
      {&r->choices, choices * sizeof(dt_moe_bench_choice), "choices"},
      {&r->first, (samples + 1) * sizeof(int32_t), "choices"},
  };
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    const dt_status status = dt_bench_allocate(parts[i].at, parts[i].bytes, parts[i].what);
    if (status) return status;
  }
  r->partial = malloc(samples * (size_t)c->shape.hidden * sizeof *r->partial + 1);
  if (!r->partial) return dt_fail(DT_ERR_MEMORY, "reference: %zu tokens", samples);
  const float to_hidden = 1.0f / sqrtf((float)c->shape.hidden), to_inner = 1.0f / sqrtf((float)c->shape.intermediate);
  const int32_t rank = r->rank;
  cudaError_t error =
      dt_moe_bench_fill(r->gate, (int64_t)matrix, DT_MOE_BENCH_STREAM(0, rank), 0, to_hidden, r->stream);
  if (error == cudaSuccess)
    error = dt_moe_bench_fill(r->up, (int64_t)matrix, DT_MOE_BENCH_STREAM(1, rank), 0, to_hidden, r->stream);
  if (error == cudaSuccess)
    error = dt_moe_bench_fill(r->down, (int64_t)matrix, DT_MOE_BENCH_STREAM(2, rank), 0, to_inner, r->stream);
  if (error == cudaSuccess)
    error = dt_moe_bench_fill(r->x, (int64_t)rows, DT_MOE_BENCH_STREAM(3, rank), 0, 1.0f, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  return dt_cuda_check(error, "operands");
}

static dt_status make_layer(dt_moe_bench_rank *r) {
  const dt_moe_bench_config *c = &r->shared->config;
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.comm = r->comm;
  config.hidden = c->shape.hidden;
  config.intermediate = c->shape.intermediate;
  config.experts_per_rank = c->shape.experts / c->ranks;
  config.top_k = c->shape.top_k;
  config.max_tokens = c->max_tokens;
  config.schedule = DT_SCHEDULE_SERIAL;
  config.timeout_s = c->timeout_s;
  config.dedup = c->dedup;
  const dt_cuda_moe_weights weights = {.gate = r->gate, .up = r->up, .down = r->down};
  return dt_cuda_moe_create(&config, &weights, &r->moe);
}

dt_status dt_moe_bench_rank_open(dt_moe_bench_rank *r) {
  dt_status status = dt_bench_rank_open(r->rank, &r->control, &r->comm, &r->stream);
  if (!status) status = make_memory(r);
  if (!status) status = make_layer(r);
  if (!status) status = dt_bench_watch_open(&r->watch, r->comm, r->stream);
  return status;
}

dt_status dt_moe_bench_rank_close(dt_moe_bench_rank *r) {
  cudaSetDevice(r->rank);
  cudaDeviceSynchronize();
  dt_bench_watch_close(&r->watch);
  dt_cuda_moe_destroy(r->moe);
  void *const memory[] = {r->gate,    r->up,    r->down,      r->x,   r->output, r->expected, r->ids,
                          r->weights, r->wrong, r->sampled_x, r->act, r->y,      r->choices,  r->first};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) cudaFree(memory[i]);
  free(r->partial);
  dt_bench_rank_close(r->control, r->comm, r->stream);
  return DT_OK;
}

static dt_cuda_moe_input input_of(const dt_moe_bench_rank *r) {
  return (dt_cuda_moe_input){
      .tokens = r->shared->row->tokens, .hidden = r->x, .ids = r->ids, .weights = r->weights, .output = r->output};
}

static dt_status load_row(dt_moe_bench_rank *r) {
  const dt_moe_bench *b = r->shared;
  const size_t slots = (size_t)(b->row->tokens * b->config.shape.top_k);
  cudaError_t error = dt_cuda_write(r->ids, b->ids + (size_t)r->rank * slots, slots * sizeof *r->ids);
  if (error == cudaSuccess)
    error = dt_cuda_write(r->weights, b->weights + (size_t)r->rank * slots, slots * sizeof *r->weights);
  return dt_cuda_check(error, "row");
}

/* Parts are captured on the plan of the layer before them, but L1 and L2 in place, which have a schedule. */
static dt_status choose(dt_moe_bench_rank *r, const dt_moe_bench_method *m) {
  if (m->part >= 0 && m->part != DT_CUDA_MOE_IN_PLACE) return DT_OK;
  if (r->set && r->set->schedule == m->schedule && r->set->order == m->order &&
      r->set->raster_bands == m->raster_bands && r->set->group_tasks == m->group_tasks && r->set->lead == m->lead &&
      r->set->wave_experts == m->wave_experts && r->set->consumers == m->consumers &&
      r->set->segment_bands == m->segment_bands && r->set->dedup == m->dedup && r->set->head == m->head &&
      r->set->send_sms == m->send_sms && r->set->ahead == m->ahead)
    return DT_OK;
  dt_cuda_moe_config config;
  dt_cuda_moe_config_init(&config);
  config.schedule = m->schedule;
  config.order = m->order;
  config.raster_bands = m->raster_bands;
  config.group_tasks = m->group_tasks;
  config.lead = m->lead;
  config.wave_experts = m->wave_experts;
  config.consumers = m->consumers;
  config.segment_bands = m->segment_bands;
  config.dedup = m->dedup;
  config.head = m->head;
  config.send_sms = m->send_sms;
  config.ahead = m->ahead;
  r->set = m;
  return dt_cuda_moe_set_schedule(r->moe, &config);
}

static dt_status launch(dt_moe_bench_rank *r, const dt_moe_bench_method *m, cudaGraphExec_t graph, double *issue_s) {
  const dt_cuda_moe_input input = input_of(r);
  if (graph) return dt_cuda_check(cudaGraphLaunch(graph, r->stream), "graph");
  if (m->part >= 0) return dt_cuda_moe_run_part(r->moe, (dt_cuda_moe_part)m->part, &input, r->stream);
  const double before_s = dt_now_s();
  const dt_status status = dt_cuda_moe_forward(r->moe, &input, r->stream);
  *issue_s = dt_now_s() - before_s;
  return status;
}

static dt_status capture(dt_moe_bench_rank *r, const dt_moe_bench_method *m, cudaGraphExec_t *out) {
  cudaGraph_t graph = NULL;
  double issue_s;
  dt_status status =
      dt_cuda_check(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  if (status) return status;
  status = launch(r, m, NULL, &issue_s);
  const dt_status ended = dt_cuda_check(cudaStreamEndCapture(r->stream, &graph), "cudaStreamEndCapture");
  if (!status) status = ended;
  if (!status) status = dt_cuda_check(cudaGraphInstantiate(out, graph, 0), "cudaGraphInstantiate");
  if (graph) cudaGraphDestroy(graph);
  return status;
}

static size_t output_bytes(const dt_moe_bench_rank *r) {
  return 2 * (size_t)r->shared->row->tokens * (size_t)r->shared->config.shape.hidden;
}

/* Counts the output's words that are not as expected, having kept it as that if asked to. */
static dt_status compare_output(dt_moe_bench_rank *r, dt_moe_bench_seen *seen, int keep) {
  const size_t bytes = output_bytes(r);
  unsigned long long wrong = 0;
  cudaError_t error = cudaMemsetAsync(r->wrong, 0, sizeof *r->wrong, r->stream);
  if (keep && error == cudaSuccess)
    error = cudaMemcpyAsync(r->expected, r->output, bytes, cudaMemcpyDeviceToDevice, r->stream);
  if (error == cudaSuccess && bytes) error = dt_bench_compare(r->output, r->expected, bytes, r->wrong, r->stream);
  if (error == cudaSuccess) error = cudaMemcpyAsync(&wrong, r->wrong, sizeof wrong, cudaMemcpyDeviceToHost, r->stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(r->stream);
  seen->words_wrong += (int64_t)wrong;
  return dt_cuda_check(error, "compare");
}

/* Runs a method once from a poisoned output, which is then kept as what is expected, or compared with that. */
static dt_status check_layer(dt_moe_bench_rank *r, int32_t index, int keep) {
  const dt_moe_bench_method *m = &r->shared->row->methods[index];
  dt_moe_bench_seen *seen = &r->seen[index];
  double issue_s;
  dt_status status = dt_cuda_check(cudaMemsetAsync(r->output, 0xff, output_bytes(r), r->stream), "poison");
  if (!status) status = launch(r, m, seen->graph, &issue_s);
  if (!status) status = dt_cuda_moe_check(r->moe, r->stream);
  if (!status) status = dt_cuda_moe_stats_read(r->moe, r->stream, &seen->stats);
  return status ? status : compare_output(r, seen, keep);
}

/* A part that all ranks have been through. */
static dt_status run_part(dt_moe_bench_rank *r, dt_cuda_moe_part part, const dt_cuda_moe_input *input) {
  dt_status status = dt_cuda_moe_run_part(r->moe, part, input, r->stream);
  if (!status) status = dt_cuda_moe_check(r->moe, r->stream);
  return status ? status : dt_comm_barrier(r->comm, "part");
}

/* Rows of another layer are everywhere before, so that what is reduced can only be what L1 and L2 in place stored. */
static dt_status check_in_place(dt_moe_bench_rank *r, int32_t index) {
  const dt_cuda_moe_input input = input_of(r);
  dt_cuda_moe_input other = input;
  other.hidden = r->expected;
  r->seen[index].words_wrong = 0;
  dt_status status = dt_cuda_moe_forward(r->moe, &other, r->stream);
  if (!status) status = dt_cuda_moe_check(r->moe, r->stream);
  if (!status) status = dt_comm_barrier(r->comm, "another layer");
  if (!status) status = run_part(r, DT_CUDA_MOE_DISPATCH, &input);
  if (!status) status = run_part(r, DT_CUDA_MOE_IN_PLACE, &input);
  if (!status) status = dt_cuda_check(cudaMemsetAsync(r->output, 0xff, output_bytes(r), r->stream), "poison");
  if (!status) status = run_part(r, DT_CUDA_MOE_REDUCE, &input);
  return status ? status : compare_output(r, &r->seen[index], 0);
}

static dt_status check_method(dt_moe_bench_rank *r, int32_t index) {
  const dt_moe_bench_method *m = &r->shared->row->methods[index];
  dt_moe_bench_seen *seen = &r->seen[index];
  double issue_s;
  dt_status status = choose(r, m);
  if (m->part >= 0) {
    if (!status) status = launch(r, m, NULL, &issue_s);
    if (!status) status = dt_cuda_moe_check(r->moe, r->stream);
    if (!status && m->part == DT_CUDA_MOE_IN_PLACE) status = check_in_place(r, index);
    return !status && m->graph ? capture(r, m, &seen->graph) : status;
  }
  seen->words_wrong = 0;
  if (!status) status = check_layer(r, index, index == 0);
  if (!status && m->graph) status = capture(r, m, &seen->graph);
  if (!status && m->graph) status = check_layer(r, index, 0);
  if (!status && index == 0) status = dt_moe_bench_refer_samples(r);
  if (!status && index == 0) status = dt_comm_barrier(r->comm, "reference");
  return status ? status : dt_moe_bench_error(r, &seen->error);
}

/* Before a method is timed. Graphs are replayed as they were captured, so the layer stays set for the method that is
 * launched live, as a model's layer does. Only what dedup changes on the device needs setting; then the layer's new
 * graph is launched once before it is timed. */
static dt_status make_ready(dt_moe_bench_rank *r, const dt_moe_bench_method *m) {
  const dt_moe_bench_method *had = r->set;
  if (m->graph && (m->part >= 0 || (had && had->dedup == m->dedup))) return DT_OK;
  double issue_s;
  dt_status status = choose(r, m);
  return status || m->graph || m->part >= 0 || r->set == had ? status : launch(r, m, NULL, &issue_s);
}

static dt_status time_method(dt_moe_bench_rank *r, int32_t index, double *seconds, double *issue_s) {
  const dt_moe_bench_method *m = &r->shared->row->methods[index];
  dt_status status = make_ready(r, m);
  if (!status) status = dt_comm_barrier(r->comm, "sample");
  if (!status) status = dt_bench_watch_start(&r->watch, 1);
  if (!status) status = launch(r, m, r->seen[index].graph, issue_s);
  return status ? status : dt_bench_watch_stop(&r->watch, seconds);
}

dt_status dt_moe_bench_rank_run(dt_moe_bench_rank *r) {
  const dt_moe_bench *b = r->shared;
  const dt_moe_bench_config *c = &b->config;
  const int32_t methods = b->row->method_count;
  dt_status status = dt_cuda_check(cudaSetDevice(r->rank), "cudaSetDevice");
  r->set = NULL; /* the last row's methods may be gone */
  if (!status) status = load_row(r);
  for (int32_t i = 0; i < methods && !status; i++) status = check_method(r, i);
  if (!status && r->rank == 0) status = dt_bench_clock(r->stream, &b->result->sm_hz_before);
  for (int32_t round = -c->warm_up; round < c->repeat && !status; round++)
    for (int32_t i = 0; i < methods && !status; i++) {
      double seconds = 0, issue_s = NAN;
      status = time_method(r, i, &seconds, &issue_s);
      if (status || round < 0) continue;
      r->seen[i].samples[round] = seconds;
      r->seen[i].issues[round] = issue_s;
    }
  if (!status) status = dt_cuda_moe_check(r->moe, r->stream);
  if (!status && r->rank == 0) status = dt_bench_clock(r->stream, &b->result->sm_hz_after);
  if (!status) status = dt_bench_watch_check(&r->watch);
  for (int32_t i = 0; i < methods; i++)
    if (r->seen[i].graph) cudaGraphExecDestroy(r->seen[i].graph);
  return status ? status : dt_comm_barrier(r->comm, "end of a row");
}
