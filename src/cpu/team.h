/* Threads that are made once and parked between jobs. */
#ifndef DT_CPU_TEAM_H
#define DT_CPU_TEAM_H

#include <stdint.h>

#include <draintile/status.h>

typedef struct dt_team dt_team;

/* What thread `thread` (0 .. threads - 1) does for `job`. */
typedef void (*dt_team_fn)(void *context, int32_t thread, int job);

dt_status dt_team_create(int32_t threads, dt_team_fn fn, void *context, dt_team **team);
/* Runs fn(context, thread, job) on every thread and returns when all are done: everything they wrote is seen. */
void dt_team_run(dt_team *team, int job);
void dt_team_destroy(dt_team *team); /* NULL allowed */

#endif
