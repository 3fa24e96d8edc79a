/* Aligned tables on stdout. */
#ifndef DRAINTILE_TOOL_TABLE_H
#define DRAINTILE_TOOL_TABLE_H

#include <stddef.h>
#include <stdio.h>

typedef struct tool_table tool_table;

/* Column names separated by '|'; a name that starts with '<' is left-aligned. */
tool_table *table_create(const char *columns);
/* The next cell of the current row; rows end by themselves. What is not finite is printed as "-". */
void table_cell(tool_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_time(tool_table *table, double seconds);
void table_size(tool_table *table, double bytes);
void table_rate(tool_table *table, double bytes_per_s);
void table_ratio(tool_table *table, double ratio);
/* Prints and frees. */
void table_print(tool_table *table, FILE *out);

#endif
