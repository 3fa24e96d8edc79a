/* Comparing a plan made by device code with one of dt_plan_create; shared by tests/test_device_plan.c and
 * bench/device_plan.c. */
#ifndef DT_DEVICE_PLAN_SUPPORT_H
#define DT_DEVICE_PLAN_SUPPORT_H

#include <stddef.h>

#include "cuda/plan_device.h"

enum { DEVICE_PLAN_ARRAYS = 8 };

/* Groups, bands, parts, segments, band order, segment order, dispatch, tasks. */
static inline void device_plan_array_bytes(const dt_plan_capacity *capacity, size_t *bytes) {
  bytes[0] = (size_t)capacity->groups * sizeof(dt_group);
  bytes[1] = (size_t)capacity->bands * sizeof(dt_band);
  bytes[2] = (size_t)capacity->parts * sizeof(dt_part);
  bytes[3] = (size_t)capacity->segments * sizeof(dt_segment);
  bytes[4] = (size_t)capacity->bands * sizeof(int32_t);
  bytes[5] = (size_t)capacity->segments * sizeof(int32_t);
  bytes[6] = (size_t)capacity->dispatch * sizeof(dt_dispatch);
  bytes[7] = (size_t)capacity->tasks * sizeof(dt_task);
}

static inline void device_plan_point(dt_build_arrays *arrays, void *const *at) {
  arrays->groups = at[0];
  arrays->bands = at[1];
  arrays->parts = at[2];
  arrays->segments = at[3];
  arrays->band_order = at[4];
  arrays->segment_order = at[5];
  arrays->dispatch = at[6];
  arrays->tasks = at[7];
}

static inline dt_plan_capacity device_plan_exact(const dt_plan *plan) {
  dt_plan_capacity capacity;
  capacity.rows = plan->rows;
  capacity.groups = plan->group_count;
  capacity.bands = plan->band_count;
  capacity.parts = plan->part_count;
  capacity.segments = plan->segment_count;
  capacity.dispatch = plan->dispatch_tasks;
  capacity.tasks = plan->task_count;
  return capacity;
}

/* The first thing that differs, or NULL. Member by member: structures have padding. */
static inline const char *device_plan_difference(const dt_plan *plan, const dt_device_plan_sizes *sizes,
                                                 const dt_build_arrays *arrays) {
#define SAME(member)                                                                                                   \
  do {                                                                                                                 \
    if (a->member != b->member) return #member;                                                                        \
  } while (0)
  {
    const dt_plan *a = plan;
    const dt_device_plan_sizes *b = sizes;
    SAME(rows);
    SAME(padded_rows);
    SAME(combine_rows);
    SAME(task_count);
    SAME(dispatch_tasks);
    SAME(group_count);
    SAME(band_count);
    SAME(part_count);
    SAME(segment_count);
    SAME(dispatch_count);
  }
  for (int32_t i = 0; i < plan->group_count; i++) {
    const dt_group *a = &plan->groups[i], *b = &arrays->groups[i];
    SAME(expert);
    SAME(owner);
    SAME(row);
    SAME(rows);
    SAME(dst_row);
  }
  for (int32_t i = 0; i < plan->band_count; i++) {
    const dt_band *a = &plan->bands[i], *b = &arrays->bands[i];
    SAME(expert);
    SAME(rows);
    SAME(remote_rows);
    SAME(first_part);
    SAME(parts);
    SAME(row);
    if (plan->band_order[i] != arrays->band_order[i]) return "band_order";
  }
  for (int32_t i = 0; i < plan->part_count; i++) {
    const dt_part *a = &plan->parts[i], *b = &arrays->parts[i];
    SAME(owner);
    SAME(rows);
    SAME(row);
    SAME(dst_row);
  }
  for (int32_t i = 0; i < plan->segment_count; i++) {
    const dt_segment *a = &plan->segments[i], *b = &arrays->segments[i];
    SAME(expert);
    SAME(owner);
    SAME(row);
    SAME(rows);
    SAME(dst_row);
    SAME(first_band);
    SAME(bands);
    if (plan->segment_order[i] != arrays->segment_order[i]) return "segment_order";
  }
  for (int32_t i = 0; i < plan->dispatch_count; i++) {
    const dt_dispatch *a = &plan->dispatch[i], *b = &arrays->dispatch[i];
    SAME(peer);
    SAME(band);
    SAME(rows);
    SAME(row);
    SAME(src_row);
  }
  for (int64_t i = 0; i < plan->task_count; i++) {
    const dt_task *a = &plan->tasks[i], *b = &arrays->tasks[i];
    SAME(phase);
    SAME(index);
    SAME(column);
  }
#undef SAME
  return NULL;
}

#endif
