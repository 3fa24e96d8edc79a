#include "json.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <draintile/platform.h>

#include "args.h"
#include "interrupt.h"
#include "log.h"

#define EXACT_IN_DOUBLE ((int64_t)1 << 53)

json_t *json_results(const char *schema) {
  return json_pack("{s:s, s:i}", "schema", schema, "version", 1);
}

json_t *json_now(void) {
  char date[32];
  const time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  return json_string(date);
}

json_t *json_text(const char *text) {
  json_t *string = json_string(text);
  char *copy = string ? NULL : strdup(text);
  if (!copy) return string;
  for (char *at = copy; *at; at++)
    if ((unsigned char)*at >= 0x80) *at = '?';
  string = json_string(copy);
  free(copy);
  return string;
}

json_t *json_figure(double value) {
  return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_whole(int64_t value) {
  if (value >= -EXACT_IN_DOUBLE && value <= EXACT_IN_DOUBLE) return json_integer(value);
  return json_sprintf("%lld", (long long)value);
}

json_t *json_whole_unsigned(uint64_t value) {
  if (value <= (uint64_t)EXACT_IN_DOUBLE) return json_integer((json_int_t)value);
  return json_sprintf("%llu", (unsigned long long)value);
}

json_t *json_figures(const double *values, size_t count) {
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) json_array_append_new(array, json_figure(values[i]));
  return array;
}

json_t *json_named_figures(const char *const *names, const double *values, size_t count) {
  json_t *object = json_object();
  for (size_t i = 0; i < count; i++) json_object_set_new(object, names[i], json_figure(values[i]));
  return object;
}

json_t *json_wholes(const int64_t *values, size_t count) {
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) json_array_append_new(array, json_whole(values[i]));
  return array;
}

json_t *json_wholes32(const int32_t *values, size_t count) {
  json_t *array = json_array();
  for (size_t i = 0; i < count; i++) json_array_append_new(array, json_integer(values[i]));
  return array;
}

typedef struct bounded_file {
  FILE *stream;
  size_t left; /* bytes that may still be read */
  bool too_long;
} bounded_file;

static size_t read_some(void *buffer, size_t size, void *opaque) {
  bounded_file *file = opaque;
  file->too_long = size > file->left;
  if (file->too_long) return (size_t)-1;
  const size_t got = fread(buffer, 1, size, file->stream);
  file->left -= got;
  return got || !ferror(file->stream) ? got : (size_t)-1;
}

int json_read(const char *path, json_t **out) {
  bounded_file file = {.stream = fopen(path, "re"), .left = DT_TEXT_MAX_BYTES};
  if (!file.stream) return log_fail(TOOL_USAGE, "%s: cannot be opened: %s", path, strerror(errno));
  json_error_t error;
  int code = TOOL_OK;
  errno = 0;
  json_t *root = json_load_callback(read_some, &file, JSON_REJECT_DUPLICATES, &error);
  if (!root && file.too_long)
    code = log_fail(TOOL_USAGE, "%s: more than %d bytes; allowed: a text file", path, DT_TEXT_MAX_BYTES);
  else if (!root && ferror(file.stream))
    code = log_fail(TOOL_USAGE, "%s: cannot be read: %s", path, strerror(errno));
  else if (!root && (errno == ENOMEM || !error.text[0])) /* jansson blames the text, or says nothing */
    code = log_fail(TOOL_FAILED, "%s: no memory to read it", path);
  else if (!root)
    code = log_fail(TOOL_USAGE, "%s: line %d: %s", path, error.line, error.text);
  fclose(file.stream);
  *out = root;
  return code;
}

static int write_stream(const json_t *root, FILE *file, const char *name, const char *option) {
  int failed = json_dumpf(root, file, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) != 0;
  failed |= fputc('\n', file) == EOF;
  failed |= fflush(file) != 0;
  return failed ? log_fail(TOOL_FAILED, "--%s: %s: %s", option, name, strerror(errno)) : TOOL_OK;
}

static int write_in_place(const json_t *root, const char *path, const char *option) {
  FILE *file = fopen(path, "w");
  if (!file) return log_fail(TOOL_FAILED, "--%s: %s: %s", option, path, strerror(errno));
  int code = write_stream(root, file, path, option);
  if (fclose(file) != 0 && code == TOOL_OK) code = log_fail(TOOL_FAILED, "--%s: %s: %s", option, path, strerror(errno));
  return code;
}

/* name: the path, or what it leads to as a link, which stays. */
static int write_beside(const json_t *root, const char *path, const char *name, const char *option) {
  char temporary[PATH_MAX + 40];
  const int descriptor = args_temporary(name, args_new_file, temporary, sizeof(temporary));
  if (descriptor < 0) return log_fail(TOOL_FAILED, "--%s: %s: %s", option, path, strerror(errno));
  FILE *file = fdopen(descriptor, "w");
  if (!file) {
    close(descriptor);
    unlink(temporary);
    return log_out_of_memory();
  }
  int code = write_stream(root, file, path, option);
  int failed = code == TOOL_OK && fsync(fileno(file)) != 0;
  failed |= fclose(file) != 0;
  if (code == TOOL_OK && (failed || rename(temporary, name) != 0))
    code = log_fail(TOOL_FAILED, "--%s: %s: %s", option, path, strerror(errno));
  if (code != TOOL_OK) unlink(temporary);
  return code;
}

/* What would end the process waits meanwhile: no half file stays behind. */
static int write_and_rename(const json_t *root, const char *path, const char *option) {
  sigset_t before;
  char place[PATH_MAX];
  args_follow(path, place);
  interrupt_hold(&before);
  const int code = write_beside(root, path, place, option);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return code;
}

bool json_is_stdout(const char *path) {
  struct stat named, printed;
  if (!path) return false;
  if (strcmp(path, "-") == 0) return true;
  return stat(path, &named) == 0 && fstat(STDOUT_FILENO, &printed) == 0 && named.st_dev == printed.st_dev &&
         named.st_ino == printed.st_ino;
}

bool json_is_replaced(const char *path) {
  struct stat found;
  return path && !json_is_stdout(path) && (stat(path, &found) != 0 || S_ISREG(found.st_mode)) && !args_is_mount(path);
}

int json_write_as(json_t *root, const char *path, const char *option) {
  int code;
  if (!root)
    code = log_out_of_memory();
  else if (json_is_stdout(path))
    code = write_stream(root, stdout, "standard output", option);
  else if (json_is_replaced(path))
    code = write_and_rename(root, path, option);
  else
    code = write_in_place(root, path, option);
  json_decref(root);
  return code;
}

int json_write(json_t *root, const char *path) {
  return json_write_as(root, path, "json");
}
