/* The stopwatch of a rank of a benchmark: the time of what its stream runs between start and stop, from a start that
 * all ranks' streams share, with a cold cache. */
#ifndef DT_CUDA_BENCH_WATCH_H
#define DT_CUDA_BENCH_WATCH_H

#include "combine_bench.h"

enum { DT_BENCH_FLUSH_BYTES = 512 << 20 };

typedef struct dt_bench_watch {
  dt_comm *comm;       /* the caller's */
  cudaStream_t stream; /* likewise */
  cudaEvent_t begin, end;
  dt_window *words; /* of the ranks' common start */
  uint32_t *theirs[DT_BENCH_RANKS], *late, round;
  uint8_t *flush; /* device, [DT_BENCH_FLUSH_BYTES]: read before every start; what else it holds does not matter */
} dt_bench_watch;

/* Collective. On failure too the caller closes it; memory is there, and set, when the stream's work so far is done. */
dt_status dt_bench_watch_open(dt_bench_watch *watch, dt_comm *comm, cudaStream_t stream);
/* Collective where it was opened. One that is all zeros is closed already. */
void dt_bench_watch_close(dt_bench_watch *watch);
/* together: collective, all streams begin at the same time; else this stream by itself, and nothing goes over links. */
dt_status dt_bench_watch_start(dt_bench_watch *watch, int together);
/* Waits for what was queued since the start. */
dt_status dt_bench_watch_stop(dt_bench_watch *watch, double *seconds);
/* DT_ERR_TIMEOUT: a rank came more than five seconds late to a common start, and times say nothing. Behind a stop. */
dt_status dt_bench_watch_check(const dt_bench_watch *watch);

#endif
