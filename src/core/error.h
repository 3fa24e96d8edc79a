/* Setting the thread's error detail. The function that detects an error formats it once and returns the code; callers
 * only pass the code on. */
#ifndef DT_CORE_ERROR_H
#define DT_CORE_ERROR_H

#include <draintile/status.h>

/* Formats the detail of this thread and returns `status`, so that `return dt_fail(DT_ERR_INPUT, "...")` reads well. */
dt_status dt_fail(dt_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
