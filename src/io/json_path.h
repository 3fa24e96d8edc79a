/* Where in a JSON text a parser stopped, as a reader names it: "constants.t0_s.low", "tables[2].points[0].n". */
#ifndef DT_IO_JSON_PATH_H
#define DT_IO_JSON_PATH_H

#include <stddef.h>

/* The path of keys around byte `position` of a text that may be broken there; "(top)" outside of any. */
void dt_json_path(const char *text, size_t length, size_t position, char *out, size_t size);

#endif
