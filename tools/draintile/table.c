#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/units.h>

struct tool_table {
  size_t columns, cells, capacity;
  char **text; /* the header row first */
};

static void append(tool_table *table, const char *text) {
  if (table->cells == table->capacity) {
    size_t capacity = table->capacity ? 2 * table->capacity : 64;
    char **grown = realloc(table->text, capacity * sizeof(*grown));
    if (!grown) return;
    table->text = grown;
    table->capacity = capacity;
  }
  char *copy = strdup(text);
  if (copy) table->text[table->cells++] = copy;
}

tool_table *table_create(const char *columns) {
  tool_table *table = calloc(1, sizeof(*table));
  char *names = strdup(columns), *at = names, *name;
  if (!table || !names) {
    free(names);
    free(table);
    return NULL;
  }
  while ((name = strsep(&at, "|"))) {
    append(table, name);
    table->columns++;
  }
  free(names);
  return table;
}

void table_cell(tool_table *table, const char *format, ...) {
  if (!table) return;
  char text[256];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  append(table, text);
}

static int put_dash(tool_table *table, double value) {
  if (!isfinite(value)) table_cell(table, "-");
  return !isfinite(value);
}

void table_ratio(tool_table *table, double ratio) {
  if (!put_dash(table, ratio)) table_cell(table, "%.3f", ratio);
}

void table_time(tool_table *table, double seconds) {
  char text[32];
  if (!put_dash(table, seconds)) table_cell(table, "%s", dt_format_seconds(seconds, text, sizeof(text)));
}

void table_size(tool_table *table, double bytes) {
  char text[32];
  if (!put_dash(table, bytes)) table_cell(table, "%s", dt_format_bytes(bytes, text, sizeof(text)));
}

void table_rate(tool_table *table, double bytes_per_s) {
  char text[32];
  if (!put_dash(table, bytes_per_s)) table_cell(table, "%s", dt_format_bytes_per_s(bytes_per_s, text, sizeof(text)));
}

void table_print(tool_table *table, FILE *out) {
  if (!table) return;
  size_t columns = table->columns ? table->columns : 1, *width = calloc(columns, sizeof(*width));
  for (size_t i = 0; width && i < table->cells; i++) {
    size_t length = strlen(table->text[i]) - (i < table->columns && table->text[i][0] == '<');
    if (length > width[i % columns]) width[i % columns] = length;
  }
  for (size_t i = 0; width && i < table->cells; i++) {
    size_t column = i % columns;
    int left = table->text[column][0] == '<', last = column + 1 == columns;
    const char *text = table->text[i] + (i < table->columns && left);
    fprintf(out, "%s%*s", column ? "  " : "", left ? (last ? 0 : -(int)width[column]) : (int)width[column], text);
    if (last) fputc('\n', out);
  }
  for (size_t i = 0; i < table->cells; i++) free(table->text[i]);
  free(table->text);
  free(width);
  free(table);
}
