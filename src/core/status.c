#include <draintile/status.h>
#include <draintile/version.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "error.h"

static _Thread_local char detail[1024];

const char *dt_status_name(dt_status status) {
  switch (status) {
#define DT_STATUS_NAME(name, value, text)                                                                              \
  case name:                                                                                                           \
    return #name;
    DT_STATUS_TABLE(DT_STATUS_NAME)
#undef DT_STATUS_NAME
  }
  return "DT_ERR_UNKNOWN";
}

const char *dt_status_text(dt_status status) {
  switch (status) {
#define DT_STATUS_TEXT(name, value, text)                                                                              \
  case name:                                                                                                           \
    return text;
    DT_STATUS_TABLE(DT_STATUS_TEXT)
#undef DT_STATUS_TEXT
  }
  return "unknown status";
}

const char *dt_error_detail(void) {
  return detail;
}

/* What a message repeats, a path above all, may be longer than the message: its middle is left out, since the start
 * names the field and the end what is allowed. Nor may it break the line or speak to a terminal. */
void dt_set_detail(const char *format, ...) {
  static const char gap[] = " ... ";
  char text[8 * sizeof detail]; /* an argument may be the old detail */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  for (char *at = text; *at; at++)
    if ((unsigned char)*at < ' ' || *at == 0x7f) *at = '?';
  const size_t length = strlen(text), half = (sizeof detail - sizeof gap) / 2;
  if (length < sizeof detail)
    memcpy(detail, text, length + 1);
  else
    snprintf(detail, sizeof detail, "%.*s%s%s", (int)half, text, gap, text + length - half);
}

const char *dt_version(void) {
  return DT_VERSION_STRING;
}
