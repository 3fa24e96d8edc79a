/* Setting the thread's error detail. The function that detects an error formats it once and returns the code; callers
 * only pass the code on. */
#ifndef DT_CORE_ERROR_H
#define DT_CORE_ERROR_H

#include <draintile/status.h>

/* Formats the detail of this thread and is `status`, so that `return dt_fail(DT_ERR_INPUT, "...")` reads well. A macro,
 * so that an analyzer sees which status comes out. */
#define dt_fail(status, ...) (dt_set_detail(__VA_ARGS__), dt_failed(status))

void dt_set_detail(const char *format, ...) __attribute__((format(printf, 1, 2)));

static inline dt_status dt_failed(dt_status status) {
  return status;
}

#endif
