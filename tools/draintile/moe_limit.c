/* The bound that no schedule can beat on this machine: docs/command.md explains each term. */
#include <math.h>
#include <string.h>

#include <draintile/build.h>
#include <draintile/reference.h>

#include "clock.h"
#include "moe.h"
#include "moe_cuda.h"

enum { GEMM_REPEATS = 3, READ_REPEATS = 3, SIDE_MIN = 256, SIDE_MAX = 1024 };

/* Stored bytes of a matrix, scales left out. */
static double matrix_bytes(const dt_matrix *matrix) {
  double elements = (double)matrix->rows * (double)matrix->cols;
  return matrix->dtype == DT_DTYPE_MXFP4 ? elements / 2 : elements * (double)dt_dtype_bytes(matrix->dtype);
}

static double expert_bytes(const dt_expert *expert) {
  return matrix_bytes(&expert->gate) + matrix_bytes(&expert->up) + matrix_bytes(&expert->down);
}

static volatile uint64_t read_sink; /* so that the reads are not optimized away */

/* Reads a contiguous matrix once; returns something that depends on every byte. */
static uint64_t read_matrix(const dt_matrix *matrix) {
  const char *data = matrix->data;
  size_t bytes = (size_t)matrix_bytes(matrix);
  uint64_t sums[4] = {0}, words[4];
  for (size_t at = 0; at + sizeof(words) <= bytes; at += sizeof(words)) {
    memcpy(words, data + at, sizeof(words));
    for (int i = 0; i < 4; i++) sums[i] += words[i];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
}

static int contiguous(const dt_matrix *matrix) {
  return matrix->col_stride == 1 && matrix->row_stride == matrix->cols;
}

/* Rows that all ranks send to a local expert of this one. */
static int64_t rows_of(const moe_job *job, int32_t rank, int32_t per_rank, int32_t expert) {
  int64_t rows = 0;
  for (int32_t source = 0; source < job->ranks; source++)
    rows += job->shared.counts[source * job->info->experts + rank * per_rank + expert];
  return rows;
}

/* The rate at which this rank reads the weights of its experts, all ranks reading at once. */
static double read_rate(const moe_job *job, int32_t rank, const dt_moe_weights *weights) {
  double best = 0;
  for (int repeat = 0; repeat < READ_REPEATS; repeat++) {
    double begin_s = now_s(), bytes = 0;
    for (int32_t e = 0; e < weights->experts_per_rank; e++) {
      const dt_matrix *all[] = {&weights->experts[e].gate, &weights->experts[e].up, &weights->experts[e].down};
      if (rows_of(job, rank, weights->experts_per_rank, e) == 0) continue;
      for (size_t i = 0; i < ARGS_COUNT(all); i++)
        if (contiguous(all[i])) {
          read_sink ^= read_matrix(all[i]);
          bytes += matrix_bytes(all[i]);
        }
    }
    double seconds = now_s() - begin_s, rate = bytes > 0 && seconds > 0 ? bytes / seconds : 0;
    if (rate > best) best = rate;
  }
  return best;
}

static int64_t distinct_pairs(const moe_job *job, int32_t rank, int64_t first, int64_t count, moe_rank_facts *facts) {
  int64_t pairs = 0;
  int32_t per_rank = job->info->experts / job->ranks;
  for (int64_t token = first; token < first + count; token++) {
    uint64_t seen = 0; /* at most 64 ranks */
    for (int32_t k = 0; k < job->top_k; k++) {
      int32_t id = job->shared.ids[token * job->top_k + k];
      facts->dropped_slots += id < 0;
      if (id >= 0 && id / per_rank != rank) seen |= (uint64_t)1 << (id / per_rank);
    }
    pairs += __builtin_popcountll(seen);
  }
  return pairs;
}

/* A square GEMM of about this work: big enough to reach the library's rate, no longer than the layer itself. */
static int32_t gemm_side(double flops) {
  double side = cbrt(flops / 2);
  return side < SIDE_MIN ? SIDE_MIN : side > SIDE_MAX ? SIDE_MAX : (int32_t)side / 64 * 64;
}

static int shares_processors(const moe_job *job) {
  return job->ranks * job->config.workers > dt_build_processors();
}

void moe_facts(const rank_link *link, moe_job *job, const dt_moe_weights *weights) {
  moe_rank_facts *facts = &job->shared.facts[link->rank];
  int32_t rank = link->rank, per_rank = weights->experts_per_rank;
  int64_t first, count;
  dt_token_block(job->input.tokens, job->ranks, rank, &first, &count);
  facts->tokens = count;
  facts->slots = count * job->top_k;
  facts->token_rank_pairs = distinct_pairs(job, rank, first, count, facts);
  for (int32_t e = 0; e < per_rank; e++) {
    const int64_t rows = rows_of(job, rank, per_rank, e);
    facts->flops += 6.0 * (double)rows * (double)weights->hidden * (double)weights->intermediate;
    if (rows == 0) continue;
    facts->weight_bytes += expert_bytes(&weights->experts[e]);
    facts->touched_bytes += 6.0 * (double)weights->hidden * (double)weights->intermediate;
  }
  if (weights->shared_intermediate) {
    facts->flops += 6.0 * (double)count * (double)weights->hidden * (double)weights->shared_intermediate;
    facts->weight_bytes += expert_bytes(&weights->shared);
    facts->touched_bytes += 6.0 * (double)weights->hidden * (double)weights->shared_intermediate;
  }
}

int moe_probe(rank_link *link, moe_job *job, const dt_moe_weights *weights, dt_comm *comm) {
  moe_rank_facts *facts = &job->shared.facts[link->rank];
  moe_facts(link, job, weights);
  dt_status status = dt_comm_barrier(comm, "read probe");
  if (!status) facts->read_bytes_per_s = read_rate(job, link->rank, weights);
  if (!status) status = dt_comm_barrier(comm, "GEMM probe");
  double mean;
  if (!status)
    status = dt_sgemm_rate(job->config.workers, gemm_side(facts->flops / job->config.workers), GEMM_REPEATS,
                           &facts->sgemm_flop_per_s, &mean);
  return status ? rank_link_fail_status(link, status) : TOOL_OK;
}

moe_limits moe_limit(const moe_job *job, double compute_alone_s) {
  if (job->gpus) return moe_cuda_limit(job, compute_alone_s);
  moe_limits limits = {0};
  double flops = 0, flop_rate = 0, weight_bytes = 0, read_rates = 0, slowest_s = 0, link_bytes = 0;
  size_t row = (size_t)job->input.hidden * dt_dtype_bytes(job->input.dtype);
  for (int32_t rank = 0; rank < job->ranks; rank++) {
    const moe_rank_facts *facts = &job->shared.facts[rank];
    flops += facts->flops;
    flop_rate += facts->sgemm_flop_per_s;
    weight_bytes += facts->weight_bytes;
    read_rates += facts->read_bytes_per_s;
    if (facts->sgemm_flop_per_s > 0 && facts->flops / facts->sgemm_flop_per_s > slowest_s)
      slowest_s = facts->flops / facts->sgemm_flop_per_s;
    double bytes = (double)facts->token_rank_pairs;
    for (int32_t source = 0; source < job->ranks; source++)
      if (source != rank) bytes += (double)moe_rows_between(job, source, rank);
    if (bytes * (double)row > link_bytes) link_bytes = bytes * (double)row;
  }
  double gemm_s = slowest_s;
  if (shares_processors(job)) {
    /* A best repeat had its processors to itself, and a rank that is done early leaves its share to the others: all
     * work at the rate of all processors. */
    int32_t processors = dt_build_processors(), workers = job->config.workers;
    double processor_rate = flop_rate / job->ranks / (workers < processors ? workers : processors);
    gemm_s = processor_rate > 0 ? flops / (processors * processor_rate) : 0;
  }
  limits.compute_s = gemm_s < compute_alone_s ? gemm_s : compute_alone_s;
  limits.memory_s = read_rates > 0 ? weight_bytes / read_rates : 0;
  if (job->comm.link_bytes_per_s > 0) {
    limits.link_s = link_bytes / job->comm.link_bytes_per_s;
    limits.constants_s = 2 * job->comm.link_latency_s; /* the first rows to come, the last to go */
  }
  double most = limits.compute_s;
  if (limits.link_s > most) most = limits.link_s;
  if (limits.memory_s > most) most = limits.memory_s;
  limits.limit_s = most + limits.constants_s;
  return limits;
}
