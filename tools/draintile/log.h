/* What the command says on stderr. */
#ifndef DRAINTILE_TOOL_LOG_H
#define DRAINTILE_TOOL_LOG_H

#include <draintile/status.h>

/* The title starts every line; the string is borrowed. */
void log_set_title(const char *title);
/* One line; returns `code`, so that `return log_fail(TOOL_USAGE, "...")` reads well. */
int log_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The library's last failure as one line. Returns the exit code that belongs to the status: bad input 2, no such
 * device 77, all else 3. `subject` (may be NULL) is put before the detail. */
int log_status(dt_status status, const char *subject);
int log_exit_code(dt_status status);
void log_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
