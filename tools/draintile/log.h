/* What the command says on stderr, and what it exits with. */
#ifndef DRAINTILE_TOOL_LOG_H
#define DRAINTILE_TOOL_LOG_H

#include <draintile/status.h>

/* What every subcommand exits with. */
enum { TOOL_OK = 0, TOOL_CHECK_FAILED = 1, TOOL_USAGE = 2, TOOL_FAILED = 3, TOOL_SKIPPED = 77 };

/* The title starts every line; the string is borrowed. */
void log_set_title(const char *title);
/* One line; returns `code`, so that `return log_fail(TOOL_USAGE, "...")` reads well. */
int log_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The library's last failure as one line. Returns the exit code that belongs to the status: bad input 2, no such
 * device 77, all else 3. `subject` (may be NULL) is put before the detail. */
int log_status(dt_status status, const char *subject);
int log_exit_code(dt_status status);
/* The same of a file that the command reads: what cannot be opened is bad input. */
int log_unread(dt_status status);
/* What was printed must have gone somewhere before anything is called done. */
int log_flush(void);
static inline int log_out_of_memory(void) {
  log_fail(TOOL_FAILED, "out of memory");
  return TOOL_FAILED;
}
void log_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
