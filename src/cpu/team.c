#include "cpu/team.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "core/error.h"

typedef struct team_thread {
  dt_team *team;
  pthread_t handle;
  int32_t index;
} team_thread;

struct dt_team {
  dt_team_fn fn;
  void *context;
  pthread_mutex_t lock;
  pthread_cond_t start, finish;
  uint64_t number; /* of the last job */
  int job;
  bool leave;
  int32_t running, started;
  team_thread *threads;
};

static void *thread_main(void *argument) {
  team_thread *thread = argument;
  dt_team *team = thread->team;
  /* Paced puts and parked waits sleep for tens of microseconds; the default slack would add 50 to each. */
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  uint64_t done = 0;
  for (;;) {
    pthread_mutex_lock(&team->lock);
    while (team->number == done && !team->leave) pthread_cond_wait(&team->start, &team->lock);
    bool leave = team->leave;
    int job = team->job;
    done = team->number;
    pthread_mutex_unlock(&team->lock);
    if (leave) return NULL;
    team->fn(team->context, thread->index, job);
    pthread_mutex_lock(&team->lock);
    if (--team->running == 0) pthread_cond_signal(&team->finish);
    pthread_mutex_unlock(&team->lock);
  }
}

void dt_team_run(dt_team *team, int job) {
  pthread_mutex_lock(&team->lock);
  team->job = job;
  team->number++;
  team->running = team->started;
  pthread_cond_broadcast(&team->start);
  while (team->running > 0) pthread_cond_wait(&team->finish, &team->lock);
  pthread_mutex_unlock(&team->lock);
}

dt_status dt_team_create(int32_t threads, dt_team_fn fn, void *context, dt_team **out) {
  dt_team *team = calloc(1, sizeof(*team));
  if (team) team->threads = calloc((size_t)threads, sizeof(*team->threads));
  if (!team || !team->threads) {
    free(team);
    return dt_fail(DT_ERR_MEMORY, "workers: out of memory for %d threads", threads);
  }
  team->fn = fn;
  team->context = context;
  pthread_mutex_init(&team->lock, NULL);
  pthread_cond_init(&team->start, NULL);
  pthread_cond_init(&team->finish, NULL);
  for (int32_t i = 0; i < threads; i++) {
    team->threads[i] = (team_thread){.team = team, .index = i};
    if (pthread_create(&team->threads[i].handle, NULL, thread_main, &team->threads[i])) {
      dt_team_destroy(team);
      return dt_fail(DT_ERR_SYSTEM, "workers: cannot start thread %d of %d", i, threads);
    }
    team->started++;
  }
  *out = team;
  return DT_OK;
}

void dt_team_destroy(dt_team *team) {
  if (!team) return;
  pthread_mutex_lock(&team->lock);
  team->leave = true;
  pthread_cond_broadcast(&team->start);
  pthread_mutex_unlock(&team->lock);
  for (int32_t i = 0; i < team->started; i++) pthread_join(team->threads[i].handle, NULL);
  pthread_mutex_destroy(&team->lock);
  pthread_cond_destroy(&team->start);
  pthread_cond_destroy(&team->finish);
  free(team->threads);
  free(team);
}
