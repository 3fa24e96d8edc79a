/* Single-thread latencies between ranks: flags, fences, the entry barrier. */
#ifndef DT_CUDA_PROBE_LATENCY_H
#define DT_CUDA_PROBE_LATENCY_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_LATENCY_RANKS = 16, DT_LATENCY_WORDS = 8 }; /* a word has a 32-byte sector of its own */

typedef enum dt_latency_kind {
  DT_LATENCY_FLAG = 0,       /* ranks 0 and 1: st.relaxed.sys there, st.relaxed.sys back; a round trip is two flags */
  DT_LATENCY_RELEASE = 1,    /* the same with st.release.sys and ld.acquire.sys */
  DT_LATENCY_FENCE = 2,      /* rank 0: a 4-byte remote store, then fence.acq_rel.sys */
  DT_LATENCY_FENCE_IDLE = 3, /* rank 0: fence.acq_rel.sys with nothing outstanding */
  DT_LATENCY_BARRIER = 4,    /* all ranks: a release to every peer, an acquire of every peer */
  DT_LATENCY_ATOMIC = 5      /* rank 0: red.release.gpu on local memory, then ld.acquire.gpu of it */
} dt_latency_kind;

typedef struct dt_latency_launch {
  int32_t kind, rank, ranks;
  uint32_t first, iterations;        /* values first+1 .. first+iterations are written */
  uint32_t *slots[DT_LATENCY_RANKS]; /* slots[r]: rank r's words, one sector a writer */
  uint32_t *dead;                    /* local, sticky: a wait expired */
  uint64_t *cycles;                  /* local: over all iterations, the first one left out; 0: a wait expired */
} dt_latency_launch;

cudaError_t dt_latency_launch_kernel(const dt_latency_launch *launch, cudaStream_t stream);
/* A kernel that does nothing, to time launches. */
cudaError_t dt_empty_launch_kernel(cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
