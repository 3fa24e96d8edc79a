/* The threads of a rank: made once, parked between jobs. A failure anywhere stops all of them at their next task. */
#include "cpu/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/error.h"

static bool record_failure(dt_moe *moe, dt_status status, const char *detail) {
  pthread_mutex_lock(&moe->lock);
  bool first = moe->status == DT_OK;
  if (first) {
    moe->status = status;
    snprintf(moe->detail, sizeof(moe->detail), "%s", detail);
  }
  pthread_mutex_unlock(&moe->lock);
  atomic_store(&moe->failed, true);
  return first;
}

dt_status dt_layer_refuse(dt_moe *moe, dt_status status, const char *detail) {
  record_failure(moe, status, detail);
  return dt_layer_error(moe);
}

dt_status dt_layer_fail(dt_moe *moe, dt_status status, const char *detail) {
  if (record_failure(moe, status, detail)) dt_comm_abort(moe->comm, status, detail);
  return dt_layer_error(moe);
}

dt_status dt_layer_error(dt_moe *moe) {
  pthread_mutex_lock(&moe->lock);
  dt_status status = moe->status;
  if (status) dt_fail(status, "%s", moe->detail);
  pthread_mutex_unlock(&moe->lock);
  return status;
}

void dt_delay(dt_thread *thread) {
  const dt_moe_config *config = &thread->moe->config;
  if (!config->delay_seed || config->delay_max_us < 1) return;
  /* Most pauses are none, so that threads drift apart instead of all slowing down alike. */
  if (dt_random_below(&thread->delays, 4)) return;
  int64_t ns = (int64_t)dt_random_below(&thread->delays, (uint64_t)config->delay_max_us * 1000 + 1);
  nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
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
  case DT_JOB_EXIT:
    break;
  }
  return DT_OK;
}

static void *thread_main(void *argument) {
  dt_thread *thread = argument;
  dt_moe *moe = thread->moe;
  /* Paced puts and parked waits sleep for tens of microseconds; the default slack would add 50 to each. */
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  uint64_t done = 0;
  for (;;) {
    pthread_mutex_lock(&moe->lock);
    while (moe->job_number == done) pthread_cond_wait(&moe->start, &moe->lock);
    done = moe->job_number;
    dt_job job = moe->job;
    pthread_mutex_unlock(&moe->lock);
    if (job == DT_JOB_EXIT) return NULL;
    dt_status status = run_job(thread, job);
    if (status) dt_layer_fail(moe, status, dt_error_detail());
    pthread_mutex_lock(&moe->lock);
    if (--moe->running == 0) pthread_cond_signal(&moe->finish);
    pthread_mutex_unlock(&moe->lock);
  }
}

dt_status dt_pool_run(dt_moe *moe, dt_job job) {
  pthread_mutex_lock(&moe->lock);
  moe->job = job;
  moe->job_number++;
  moe->running = moe->thread_count;
  pthread_cond_broadcast(&moe->start);
  while (moe->running > 0) pthread_cond_wait(&moe->finish, &moe->lock);
  pthread_mutex_unlock(&moe->lock);
  return dt_layer_error(moe);
}

static dt_status create_thread(dt_moe *moe, dt_thread *thread, int32_t track) {
  thread->moe = moe;
  thread->track = track;
  thread->consumer = track >= moe->config.workers;
  thread->peer_stamp = calloc((size_t)moe->ranks, sizeof(*thread->peer_stamp));
  thread->peer_told = calloc((size_t)moe->ranks, sizeof(*thread->peer_told));
  thread->peer_used = calloc((size_t)moe->ranks, sizeof(*thread->peer_used));
  if (!thread->peer_stamp || !thread->peer_told || !thread->peer_used)
    return dt_fail(DT_ERR_MEMORY, "workers: out of memory for thread %d", track);
  if (!thread->consumer) {
    dt_status status = dt_panels_create(thread);
    if (status) return status;
  }
  if (pthread_create(&thread->handle, NULL, thread_main, thread))
    return dt_fail(DT_ERR_SYSTEM, "workers: cannot start thread %d of %d", track, moe->thread_count);
  thread->started = true;
  return DT_OK;
}

dt_status dt_pool_create(dt_moe *moe) {
  pthread_mutex_init(&moe->lock, NULL);
  pthread_cond_init(&moe->start, NULL);
  pthread_cond_init(&moe->finish, NULL);
  moe->thread_count = moe->config.workers + moe->config.consumers;
  moe->threads = calloc((size_t)moe->thread_count, sizeof(*moe->threads));
  if (!moe->threads) return dt_fail(DT_ERR_MEMORY, "workers: out of memory for %d threads", moe->thread_count);
  for (int32_t i = 0; i < moe->thread_count; i++) {
    dt_status status = create_thread(moe, &moe->threads[i], i);
    if (status) return status;
  }
  return DT_OK;
}

void dt_pool_destroy(dt_moe *moe) {
  if (!moe->threads) return;
  pthread_mutex_lock(&moe->lock);
  moe->job = DT_JOB_EXIT;
  moe->job_number++;
  pthread_cond_broadcast(&moe->start);
  pthread_mutex_unlock(&moe->lock);
  for (int32_t i = 0; i < moe->thread_count; i++) {
    dt_thread *thread = &moe->threads[i];
    if (thread->started) pthread_join(thread->handle, NULL);
    dt_panels_destroy(thread);
    free(thread->peer_stamp);
    free(thread->peer_told);
    free(thread->peer_used);
    free(thread->spans);
  }
  free(moe->threads);
  pthread_mutex_destroy(&moe->lock);
  pthread_cond_destroy(&moe->start);
  pthread_cond_destroy(&moe->finish);
}
