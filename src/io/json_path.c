#include "json_path.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"

enum { DEPTH = 16, KEY = 64 };

typedef struct level {
  int is_array, expects_key;
  size_t index;
  char key[KEY];
} level;

/* Past the string that starts at text[at] == '"'; its first bytes go to key. */
static size_t skip_string(const char *text, size_t end, size_t at, char *key) {
  size_t used = 0;
  for (at++; at < end && text[at] != '"'; at++) {
    if (text[at] == '\\' && at + 1 < end) at++;
    if (key && used + 1 < KEY) key[used++] = text[at];
  }
  if (key) key[used] = '\0';
  return at < end ? at + 1 : end;
}

static void append(char *out, size_t size, const char *text) {
  size_t used = strlen(out);
  snprintf(out + used, size - used, "%s", text);
}

json_t *dt_json_parse(const char *path, const char *text, size_t bytes, json_error_t *error, dt_status *status) {
  errno = 0;
  json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, error);
  *status = DT_OK;
  if (root) return root;
  const int memory = errno == ENOMEM || !error->text[0]; /* jansson blames the text, or says nothing */
  *status = memory ? dt_fail(DT_ERR_MEMORY, "%s: no memory to read it", path) : DT_ERR_INPUT;
  return NULL;
}

void dt_json_path(const char *text, size_t length, size_t position, char *out, size_t size) {
  level stack[DEPTH] = {{0}};
  int depth = -1; /* of the innermost open value; levels beyond DEPTH are counted, not kept */
  size_t end = position < length ? position : length;
  for (size_t at = 0; at < end;) {
    level *top = depth >= 0 && depth < DEPTH ? &stack[depth] : NULL;
    char c = text[at];
    if (c == '"') {
      int is_key = top && !top->is_array && top->expects_key;
      if (is_key) top->expects_key = 0;
      at = skip_string(text, end, at, is_key ? top->key : NULL);
      continue;
    }
    if (c == '{' || c == '[') {
      if (++depth < DEPTH) stack[depth] = (level){.is_array = c == '[', .expects_key = c == '{'};
    } else if ((c == '}' || c == ']') && depth >= 0) {
      depth--;
    } else if (c == ',' && top) {
      top->index++;
      top->expects_key = !top->is_array;
    }
    at++;
  }
  out[0] = '\0';
  for (int i = 0; i <= depth && i < DEPTH; i++) {
    char part[KEY + 32];
    if (stack[i].is_array) {
      snprintf(part, sizeof part, "[%zu]", stack[i].index);
    } else {
      snprintf(part, sizeof part, "%s%s", i && stack[i].key[0] ? "." : "", stack[i].key);
    }
    append(out, size, part);
  }
  if (!out[0]) snprintf(out, size, "(top)");
}
