#include "bench_watch.h"

#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"

/* The window of the start's words, and this rank's at every peer. */
static dt_status open_words(dt_bench_watch *w) {
  const size_t slot = DT_BENCH_SLOT_WORDS * sizeof(uint32_t);
  const dt_status status = dt_comm_alloc(w->comm, slot * DT_BENCH_RANKS, &w->words);
  for (int32_t p = 0; p < dt_comm_ranks(w->comm) && !status; p++)
    w->theirs[p] = (uint32_t *)(w->words->pieces[p] + slot * (size_t)dt_comm_rank(w->comm));
  return status;
}

dt_status dt_bench_watch_open(dt_bench_watch *w, dt_comm *comm, cudaStream_t stream) {
  w->comm = comm;
  w->stream = stream;
  cudaError_t error = cudaEventCreate(&w->begin);
  if (error == cudaSuccess) error = cudaEventCreate(&w->end);
  if (error == cudaSuccess) error = cudaMalloc((void **)&w->flush, DT_BENCH_FLUSH_BYTES);
  if (error == cudaSuccess) error = cudaMalloc((void **)&w->late, sizeof *w->late);
  if (error == cudaSuccess) error = cudaMemsetAsync(w->flush, 1, DT_BENCH_FLUSH_BYTES, stream);
  if (error == cudaSuccess) error = cudaMemsetAsync(w->late, 0, sizeof *w->late, stream);
  const dt_status status = dt_cuda_check(error, "stopwatch");
  return status ? status : open_words(w);
}

void dt_bench_watch_close(dt_bench_watch *w) {
  if (w->words) dt_comm_free(w->comm, w->words);
  cudaFree(w->flush), cudaFree(w->late);
  if (w->begin) cudaEventDestroy(w->begin);
  if (w->end) cudaEventDestroy(w->end);
  *w = (dt_bench_watch){0};
}

dt_status dt_bench_watch_start(dt_bench_watch *w, int together) {
  cudaError_t error = dt_bench_settle(w->flush, DT_BENCH_FLUSH_BYTES, w->stream);
  if (error == cudaSuccess && together)
    error = dt_bench_align(dt_comm_rank(w->comm), dt_comm_ranks(w->comm), ++w->round, dt_window_local(w->words),
                           w->theirs, w->late, w->stream);
  if (error == cudaSuccess) error = cudaEventRecord(w->begin, w->stream);
  return dt_cuda_check(error, "start");
}

dt_status dt_bench_watch_stop(dt_bench_watch *w, double *seconds) {
  float ms = 0;
  cudaError_t error = cudaEventRecord(w->end, w->stream);
  if (error == cudaSuccess) error = cudaEventSynchronize(w->end);
  if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, w->begin, w->end);
  *seconds = 1e-3 * (double)ms;
  return dt_cuda_check(error, "stop");
}

dt_status dt_bench_watch_check(const dt_bench_watch *w) {
  uint32_t late = 0;
  const dt_status status = dt_cuda_check(cudaMemcpy(&late, w->late, sizeof late, cudaMemcpyDefault), "flag");
  if (status || !late) return status;
  return dt_fail(DT_ERR_TIMEOUT, "rank %d: a start was 5 s late", dt_comm_rank(w->comm));
}
