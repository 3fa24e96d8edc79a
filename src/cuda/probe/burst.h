/* The burst kernel: K producers (CTAs, one an SM) that store bursts of B bytes, and when each began and ended.
 *
 * Clock rendezvous: every producer reads its SM's clock when the device's globaltimer passes one agreed value, and
 * starts its bursts at agreed cycle counts after that. No memory traffic: a grid barrier's atomics would queue behind
 * the stores, drain the queue and hide the law. Samples stay in shared memory until the end for the same reason.
 */
#ifndef DT_CUDA_PROBE_BURST_H
#define DT_CUDA_PROBE_BURST_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DT_BURST_THREADS = 512,
  DT_BURST_RANKS = 16,
  DT_BURST_SAMPLES = 1536,         /* bursts a producer records */
  DT_BURST_DATA_BYTES = 64 * 1024, /* shared-memory source of bulk and tensor copies */
  DT_BURST_CHUNK_BYTES = 8 * 1024, /* one bulk or tensor copy: 64 rows of 128 bytes */
  DT_BURST_LOAD_BYTES = 8 * 1024   /* local loads after a burst: one 16-byte load a thread */
};

typedef enum dt_burst_operation {
  DT_BURST_STORE = 0,  /* 16-byte stores of registers */
  DT_BURST_BULK = 1,   /* cp.async.bulk, shared memory to peer */
  DT_BURST_TENSOR = 2, /* cp.async.bulk.tensor, shared memory to peer */
  DT_BURST_COPY = 3    /* 16-byte loads of local memory, 16-byte stores: a put */
} dt_burst_operation;

typedef enum dt_burst_third {
  DT_BURST_NOTHING = 0,
  DT_BURST_VISIBLE = 1, /* burst start to the end of a system fence behind it: an upper bound of remote visibility */
  DT_BURST_LOADS = 2    /* duration of local loads issued right after the burst */
} dt_burst_third;

/* One a rank, in its window; zeroed once. Words have one writer each, or change by atomic add. */
typedef struct dt_burst_control {
  uint32_t arrived; /* producers of this rank, all launches */
  uint32_t dead;    /* sticky: a wait expired */
  uint32_t pad[6];
  uint64_t start_ns; /* agreed globaltimer value of launch `start_epoch` */
  uint32_t start_epoch;
  uint32_t pad2[5];
  uint32_t ready[DT_BURST_RANKS][8]; /* ready[r][0]: epoch written by rank r */
} dt_burst_control;

/* Cycles after the rendezvous. */
typedef struct dt_burst_stamp {
  uint32_t start, end, third;
} dt_burst_stamp;

typedef struct dt_burst_launch {
  unsigned char *target[DT_BURST_RANKS]; /* where this rank's bursts to each of its destinations go */
  CUtensorMap map[DT_BURST_RANKS];       /* the same areas; tensor copies only */
  int32_t targets;                       /* producer p uses target[p % targets] */
  int32_t operation, third;
  uint64_t bytes;              /* B; a multiple of 16, of the chunk for bulk and tensor; 0: no burst */
  uint64_t stride;             /* between producers' areas */
  uint32_t slots;              /* bursts rotate over that many areas of `bytes` */
  const unsigned char *source; /* local memory that loads and copies read: stride*producers bytes */
  uint64_t gap_cycles;         /* free: from the end of a burst to the start of the next */
  uint64_t window_cycles;      /* free: no burst starts later */
  int32_t trains, per_train;   /* aligned (trains > 0): trains of per_train bursts */
  uint64_t train_cycles, period_cycles;
  uint32_t bursts;     /* at most, and at most DT_BURST_SAMPLES */
  int32_t rank, ranks; /* that take part in the rendezvous */
  uint32_t epoch;      /* of this launch, from 1 */
  uint32_t arrivals;   /* value of `arrived` once all producers of this launch are there */
  dt_burst_control *control[DT_BURST_RANKS];
  dt_burst_stamp *stamps; /* [producers][DT_BURST_SAMPLES], local */
  uint32_t *counts;       /* [producers] */
  uint64_t *clocks;       /* cycles and nanoseconds over the launch, of producer 0 */
} dt_burst_launch;

/* Enqueues on the current device. */
cudaError_t dt_burst_launch_kernel(const dt_burst_launch *launch, int32_t producers, cudaStream_t stream);

/* Cycles of the SM clock and nanoseconds of globaltimer over about `duration_ns`: results[2]; and the smallest step
 * seen of globaltimer: results[2]. */
cudaError_t dt_clock_launch_kernel(uint64_t duration_ns, uint64_t *results, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
