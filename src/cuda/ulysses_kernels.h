/* What host and device share of the Ulysses operator's own kernels. */
#ifndef DT_CUDA_ULYSSES_KERNELS_H
#define DT_CUDA_ULYSSES_KERNELS_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include "cuda/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DT_ULYSSES_STAGE_BYTES = DT_ATTENTION_CARRY_BYTES, /* an item: up to so many bytes of one head */
  DT_ULYSSES_LOADS = 6,                              /* items of a block that are being read */
  DT_ULYSSES_STORES = 6,                             /* and that are being written */
  DT_ULYSSES_STAGES = DT_ULYSSES_LOADS + DT_ULYSSES_STORES,
  DT_ULYSSES_FROM_MAPS = 3,                      /* of q, k, v */
  DT_ULYSSES_TO_MAPS = 6 * DT_ULYSSES_RANKS_MAX, /* of both parts of each, at every rank */
  DT_ULYSSES_UNITS = 1 << 20                     /* what a rank's rows of a head add to the head's word, all told */
};

static inline int32_t dt_ulysses_map_in(int32_t rank, int32_t part, int32_t tensor) {
  return (2 * rank + part) * 3 + tensor;
}
static inline int32_t dt_ulysses_map_out(int32_t rank, int32_t part) {
  return 2 * rank + part;
}

/* Rows of one head from a local tensor to a run of rows at a rank; from < 0: nothing to copy. Of a block of the copying
 * kernel: `word` is the head there whose word gets `weight`, after this item and all before it of its block. */
typedef dt_attention_carried dt_ulysses_item;

typedef enum dt_ulysses_error {
  DT_ULYSSES_ERROR_NONE = 0,
  DT_ULYSSES_ERROR_ENTRY = 1,     /* a peer did not enter */
  DT_ULYSSES_ERROR_COPY = 2,      /* a block's copy did not end */
  DT_ULYSSES_ERROR_ARRIVAL = 3,   /* a head did not arrive */
  DT_ULYSSES_ERROR_LEAVE = 4,     /* a peer's output rows did not arrive */
  DT_ULYSSES_ERROR_PEER = 5,      /* a peer gave up */
  DT_ULYSSES_ERROR_ATTENTION = 6, /* the attention's workspace says why */
  DT_ULYSSES_ERROR_SENT = 7       /* the way in did not end */
} dt_ulysses_error;

typedef struct dt_ulysses_move {
  CUtensorMap to[DT_ULYSSES_TO_MAPS];
  CUtensorMap from[DT_ULYSSES_FROM_MAPS];
  dt_ulysses_params params;
  const dt_ulysses_item *items;
  const int32_t *first; /* [blocks + 1] */
  int32_t enters;       /* 1: the way in; 0: behind it, no entry and no words */
} dt_ulysses_move;

/* Tells every peer that this rank enters, waits for every peer, opens the gate. The kernel behind it may come early. */
cudaError_t dt_ulysses_enter_launch(const dt_ulysses_params *params, cudaStream_t stream);
/* Copies; the way in also enters, counts arrivals and lets the kernel behind it come once the ranks have met. */
cudaError_t dt_ulysses_move_launch(const dt_ulysses_move *move, int blocks, cudaStream_t stream);
/* Until all heads have arrived. */
cudaError_t dt_ulysses_gather_launch(const dt_ulysses_params *params, cudaStream_t stream);
/* After the kernels before it: tells every peer that its rows are there, waits for the own ones, closes the epoch.
 * blocks: of this run's copying kernel, 0: there was none; brought: there was a way in; told: the attention has told
 * the peers. */
cudaError_t dt_ulysses_leave_launch(const dt_ulysses_params *params, int blocks, int brought, int told,
                                    cudaStream_t stream);
/* The global timer now, to memory that the device can write. */
cudaError_t dt_ulysses_clock_launch(uint64_t *now_ns, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
