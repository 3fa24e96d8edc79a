/* What the checks of the MoE layer share: shapes, random inputs and weights, float64 references, and ranks as threads
 * or as processes, on as many GPUs as there are; several on one GPU share its multiprocessors.
 */
#ifndef DT_TEST_MOE_LAYER_SUPPORT_H
#define DT_TEST_MOE_LAYER_SUPPORT_H

#include <draintile/cuda_moe.h>

#include <cuda_runtime_api.h>
#include <pthread.h>

enum { MOE_RANKS_MAX = 4, MOE_INPUTS = 4, MOE_SKIPPED = 77, MOE_POISON = 0xffff /* of outputs; a NaN */ };

typedef struct moe_shape {
  int32_t ranks;
  int64_t hidden, intermediate;
  int32_t experts, top_k; /* experts: per rank */
  int64_t tokens;
  int32_t bias, hot; /* bias: and the clamped activation; hot: most choices go to the first expert of rank 0 */
} moe_shape;

typedef struct moe_input {
  int64_t tokens;
  uint16_t *hidden; /* host, as the next two */
  int32_t *ids;
  float *weights;
  uint16_t *expected; /* host: what serial gave */
  dt_cuda_moe_input device;
} moe_input;

typedef struct moe_rank moe_rank;
extern double moe_timeout_s; /* of a layer's waits: 2 */
/* A rank's part of a check. config: of the shape, schedule serial; waits of moe_timeout_s. */
typedef dt_status (*moe_work)(moe_rank *rank, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights);

struct moe_rank {
  pthread_t thread;
  int32_t rank, device, sms;
  dt_comm *control, *comm;
  const moe_shape *shape;
  moe_work work;
  cudaStream_t stream;
  moe_input inputs[MOE_INPUTS];
  double worst; /* relative error seen */
  dt_status status;
  char detail[256];
};

/* Hopper GPUs that reach each other, at most 2, and the multiprocessors of the first; 0: none. */
int moe_devices(int *sms);
/* `work` by every rank, as threads of this process. 1: all well. Prints what was not, and a line under `name`. */
int moe_check_threads(const char *name, const moe_shape *shape, int devices, int sms, moe_work work);
/* The same with a process a rank, before this process has used CUDA. -1: no GPU. `dies`: the rank that is expected to
 * be killed by a signal, -1: none. */
int moe_check_processes(const char *name, const moe_shape *shape, moe_work work, int32_t dies);

/* DT_OK, or prints and DT_ERR_DEVICE. */
dt_status moe_cuda(cudaError_t error, const char *what);
/* Prints what a check found; DT_ERR_INTERNAL. */
dt_status moe_fail(const moe_rank *rank, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the error's detail and tells the peers, who may wait for this rank. */
void moe_give_up(moe_rank *rank, dt_status status);

/* A copy in device memory; after an error nothing more happens. */
void *moe_to_device(const void *host, size_t bytes, dt_status *status);
/* bf16 in (-2, 2) / 2^power. */
void moe_fill(uint16_t *to, size_t count, uint64_t seed, int power);
/* Largest relative error against float64 of a few tokens of input `index`, which `output` (host) came from. Infinite if
 * any word was not written. */
double moe_error(const moe_rank *rank, int index, const uint16_t *output);

/* Queues a forward of an input over a poisoned output. */
dt_status moe_forward(moe_rank *rank, dt_cuda_moe *moe, int index);
dt_status moe_fetch(const moe_rank *rank, int index, uint16_t *output);
/* The output must be `expected`, to the bit. */
dt_status moe_compare(const moe_rank *rank, int index, const char *what, int number);

/* All inputs in a captured graph, replayed five times; every part three times, then all inputs again. With the schedule
 * that is set; outputs must be `expected`. */
dt_status moe_run_graph(moe_rank *rank, dt_cuda_moe *moe);
dt_status moe_run_parts(moe_rank *rank, dt_cuda_moe *moe);

#endif
