#include "log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "args.h"

static const char *line_title = "draintile";

void log_set_title(const char *title) {
  line_title = title;
}

enum { LINE_HALF = 1000 };

static void print_line(const char *format, va_list list) {
  char line[2 * LINE_HALF + 8], *whole = NULL;
  va_list again;
  va_copy(again, list);
  const int length = vsnprintf(line, sizeof(line), format, list);
  if (length >= (int)sizeof(line) && vasprintf(&whole, format, again) >= 0) {
    /* Of an endless argument the middle is left out: the end says what is allowed. */
    snprintf(line, sizeof(line), "%.*s ... %s", LINE_HALF, whole, whole + length - LINE_HALF);
    free(whole);
  }
  va_end(again);
  /* What a file or an argument holds must neither break the line nor reach a terminal. */
  for (char *at = line; *at; at++)
    if ((unsigned char)*at < ' ' || *at == 0x7f) *at = ' ';
  fprintf(stderr, "%s: %s\n", line_title, line);
}

int log_fail(int code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  print_line(format, list);
  va_end(list);
  return code;
}

void log_note(const char *format, ...) {
  va_list list;
  va_start(list, format);
  print_line(format, list);
  va_end(list);
}

int log_flush(void) {
  return fflush(stdout) == 0 && !ferror(stdout) ? TOOL_OK : log_fail(TOOL_FAILED, "standard output: write failed");
}

int log_exit_code(dt_status status) {
  switch (status) {
  case DT_OK:
    return TOOL_OK;
  case DT_ERR_ARGUMENT:
  case DT_ERR_INPUT:
  case DT_ERR_UNSUPPORTED:
    return TOOL_USAGE;
  case DT_ERR_NO_DEVICE:
    return TOOL_SKIPPED;
  default:
    return TOOL_FAILED;
  }
}

int log_unread(dt_status status) {
  return log_status(status == DT_ERR_MEMORY ? status : DT_ERR_INPUT, NULL);
}

int log_status(dt_status status, const char *subject) {
  const char *detail = dt_error_detail();
  if (!*detail) detail = dt_status_text(status);
  return log_fail(log_exit_code(status), "%s%s%s", subject ? subject : "", subject ? ": " : "", detail);
}
