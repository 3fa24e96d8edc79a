/* `draintile moe --device cuda`: what differs from the ranks that compute on CPUs. */
#ifndef DRAINTILE_TOOL_MOE_CUDA_H
#define DRAINTILE_TOOL_MOE_CUDA_H

#include <draintile/cuda_memory.h>
#include <draintile/cuda_moe.h>

#include "device_price.h"
#include "moe.h"

/* Options that say nothing on GPUs are refused, and GPUs shared where there are more ranks. Parent. Exit code. */
int moe_cuda_options(moe_job *job);
/* Of bands, of every schedule: natural if none was asked for. */
dt_order moe_cuda_order(const moe_job *job);
/* Says what a run on these GPUs means: shared ones, rows as bf16. */
void moe_cuda_notes(const moe_job *job);
/* The GPU of a rank, and how many ranks share it. */
int32_t moe_cuda_device(const moe_job *job, int32_t rank, int32_t *sharers);

/* A rank's experts in device memory. A shared expert becomes `extra` more local experts of the routed ones' inner size,
 * which every token of the rank chooses with the same weight: y is linear in the inner values. */
typedef struct moe_cuda_weights {
  dt_cuda_moe_weights weights;
  void *memory[6];
  int32_t experts_per_rank, extra;
  uint64_t bytes;
} moe_cuda_weights;
dt_status moe_cuda_upload(const dt_moe_weights *weights, moe_cuda_weights *out);
void moe_cuda_weights_release(moe_cuda_weights *weights);

/* A rank's tokens in device memory, bf16, with the choices of shared experts behind the others. */
typedef struct moe_cuda_tokens {
  dt_cuda_moe_input input;
  void *hidden, *ids, *weights;
} moe_cuda_tokens;
dt_status moe_cuda_tokens_upload(const moe_job *job, const dt_moe_weights *weights, int32_t rank, int64_t first,
                                 int64_t count, moe_cuda_tokens *out);
void moe_cuda_tokens_release(moe_cuda_tokens *tokens);

/* moe_cuda_rank.c: one rank, in its process. */
int moe_cuda_rank_main(rank_link *link, void *job);

/* moe_cuda_forward.c. Exit codes. */
typedef struct moe_cuda_run {
  rank_link *link;
  moe_job *job;
  dt_comm *comm;
  dt_layer *layer;
  moe_cuda_weights weights;
  moe_cuda_tokens tokens;
  dt_cuda_moe *moe;
  void *stream, *start, *stop;
  int traced;                /* the layer records spans */
  int64_t first, count;      /* this rank's tokens */
  uint16_t *serial, *output; /* host, [count][hidden]: serial's first output; the output being made */
  void *converted;           /* [count][hidden] of the input's type */
} moe_cuda_run;
int moe_cuda_fail(moe_cuda_run *run, dt_status status); /* TOOL_OK, or the failure noted */
size_t moe_cuda_output_bytes(const moe_cuda_run *run);
dt_cuda_moe_config moe_cuda_config(const moe_cuda_run *run, int32_t index); /* of a run; 0: serial */
/* One sample of run `index`; repeat < 0: warm-up. Compares with serial's first output. */
int moe_cuda_forward(moe_cuda_run *run, int32_t index, int32_t repeat);
/* The spans of one more forward of every run, by a layer made anew with timestamps: what was timed had none. */
int moe_cuda_trace(moe_cuda_run *run);

/* moe_cuda_price.c: by the platform file. Exit codes. */
int moe_cuda_predict(moe_job *job);
int moe_cuda_choose(moe_job *job, int32_t *schedule, moe_form *form); /* form: if what was given does not say it */
int moe_cuda_dedups(const moe_job *job, int32_t index);
moe_limits moe_cuda_limit(const moe_job *job, double compute_alone_s);

#endif
