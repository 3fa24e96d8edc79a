/* The threads of a rank: what each does for a job. A failure anywhere stops all of them at their next task. */
#include "cpu/executor.h"

#include <stdlib.h>

#include "core/error.h"
#include "cpu/blas_memory.h"

dt_status dt_layer_refuse(dt_moe *moe, dt_status status, const char *detail) {
  dt_failure_record(&moe->failure, status, detail);
  return dt_layer_error(moe);
}

dt_status dt_layer_fail(dt_moe *moe, dt_status status, const char *detail) {
  if (dt_failure_record(&moe->failure, status, detail)) dt_comm_abort(moe->comm, status, detail);
  return dt_layer_error(moe);
}

dt_status dt_layer_error(dt_moe *moe) {
  return dt_failure_status(&moe->failure);
}

void dt_delay(dt_thread *thread) {
  dt_pause(&thread->delays, thread->moe->config.delay_seed, thread->moe->config.delay_max_us);
}

static dt_status run_layer(dt_thread *thread) {
  dt_moe *moe = thread->moe;
  if (!thread->consumer) {
    dt_status status = dt_tasks_run(thread);
    if (!status && dt_schedule_stores_direct(moe->config.schedule)) status = dt_tell_peers(thread, INT64_MAX);
    return status;
  }
  dt_status status = dt_dispatch_run(thread);
  if (!status && moe->config.schedule == DT_SCHEDULE_SIGNAL) status = dt_segments_run(thread);
  return status;
}

static dt_status run_job(dt_thread *thread, dt_job job) {
  /* With consumers, workers leave all that moves rows to them. */
  bool carries = thread->consumer || thread->moe->config.consumers == 0;
  switch (job) {
  case DT_JOB_LAYER:
    return run_layer(thread);
  case DT_JOB_DISPATCH:
    return carries ? dt_dispatch_run(thread) : DT_OK;
  case DT_JOB_COMBINE:
    return carries ? dt_bulk_run(thread) : DT_OK;
  case DT_JOB_COMPUTE:
  case DT_JOB_REDUCE:
    return thread->consumer ? DT_OK : dt_tasks_run(thread);
  }
  return DT_OK;
}

static void work(void *context, int32_t index, int job) {
  dt_moe *moe = context;
  dt_status status = run_job(&moe->threads[index], (dt_job)job);
  if (status) dt_layer_fail(moe, status, dt_error_detail());
}

dt_status dt_pool_run(dt_moe *moe, dt_job job) {
  dt_team_run(moe->team, job);
  return dt_layer_error(moe);
}

static dt_status prepare_thread(dt_moe *moe, dt_thread *thread, int32_t track) {
  thread->moe = moe;
  thread->track = track;
  thread->consumer = track >= moe->config.workers;
  thread->peer_stamp = calloc((size_t)moe->ranks, sizeof(*thread->peer_stamp));
  thread->peer_told = calloc((size_t)moe->ranks, sizeof(*thread->peer_told));
  thread->peer_used = calloc((size_t)moe->ranks, sizeof(*thread->peer_used));
  if (!thread->peer_stamp || !thread->peer_told || !thread->peer_used)
    return dt_fail(DT_ERR_MEMORY, "workers: out of memory for thread %d", track);
  return thread->consumer ? DT_OK : dt_panels_create(thread);
}

dt_status dt_pool_create(dt_moe *moe) {
  moe->thread_count = moe->config.workers + moe->config.consumers;
  moe->threads = calloc((size_t)moe->thread_count, sizeof(*moe->threads));
  if (!moe->threads) return dt_fail(DT_ERR_MEMORY, "workers: out of memory for %d threads", moe->thread_count);
  if (blas_reserve(moe->config.workers))
    return dt_fail(DT_ERR_MEMORY, "workers: out of memory for the BLAS buffers of %d", moe->config.workers);
  moe->blas_buffers = moe->config.workers;
  for (int32_t i = 0; i < moe->thread_count; i++) {
    dt_status status = prepare_thread(moe, &moe->threads[i], i);
    if (status) return status;
  }
  return dt_team_create(moe->thread_count, work, moe, &moe->team);
}

void dt_pool_destroy(dt_moe *moe) {
  dt_team_destroy(moe->team);
  blas_release(moe->blas_buffers);
  if (!moe->threads) return;
  for (int32_t i = 0; i < moe->thread_count; i++) {
    dt_thread *thread = &moe->threads[i];
    dt_panels_destroy(thread);
    free(thread->peer_stamp);
    free(thread->peer_told);
    free(thread->peer_used);
    free(thread->spans);
  }
  free(moe->threads);
}
