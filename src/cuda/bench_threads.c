#include "bench_threads.h"

#include <stdio.h>

#include "core/error.h"
#include "driver.h"

static void give_up(const dt_bench_thread *t, dt_status status, const char *detail) {
  dt_comm *comm = *t->comm ? *t->comm : *t->control;
  if (comm) dt_comm_abort(comm, status, detail);
}

static void *run_rank(void *context) {
  dt_bench_thread *t = context;
  t->status = t->work(t->rank);
  if (t->status) {
    snprintf(t->detail, sizeof t->detail, "%s", dt_error_detail());
    give_up(t, t->status, t->detail);
  }
  return NULL;
}

dt_status dt_bench_threads_run(dt_bench_thread *threads, int32_t ranks) {
  int32_t started = 0;
  while (started < ranks && pthread_create(&threads[started].thread, NULL, run_rank, &threads[started]) == 0) started++;
  if (started < ranks) give_up(&threads[started], DT_ERR_SYSTEM, "a rank's thread could not start");
  const dt_bench_thread *failed = NULL;
  for (int32_t r = 0; r < started; r++) {
    pthread_join(threads[r].thread, NULL);
    if (threads[r].status && (!failed || failed->status == DT_ERR_PEER)) failed = &threads[r];
  }
  if (started < ranks) return dt_fail(DT_ERR_SYSTEM, "pthread_create: rank %d", started);
  return failed ? dt_fail(failed->status, "%s", failed->detail) : DT_OK;
}

dt_status dt_bench_rank_open(int32_t device, dt_comm **control, dt_comm **comm, cudaStream_t *stream) {
  const dt_status status = dt_comm_create_cuda(*control, device, comm);
  if (status) return status;
  *control = NULL;
  cudaError_t error = cudaSetDevice(device);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
  return dt_cuda_check(error, "stream");
}

void dt_bench_rank_close(dt_comm *control, dt_comm *comm, cudaStream_t stream) {
  if (stream) cudaStreamDestroy(stream);
  if (comm) dt_comm_destroy(comm);
  if (control) dt_comm_destroy(control);
}

dt_status dt_bench_allocate(void **pointer, size_t bytes, const char *what) {
  return dt_cuda_check(cudaMalloc(pointer, bytes ? bytes : 16), what);
}
