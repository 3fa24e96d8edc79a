/* What /proc says about this machine. */
#ifndef DRAINTILE_TOOL_PROC_H
#define DRAINTILE_TOOL_PROC_H

#include <stdbool.h>
#include <stddef.h>

/* The text after "key :" in a file of such lines, trimmed; false when there is none. */
bool proc_line(const char *path, const char *key, char *out, size_t size);
/* Bytes of /proc/meminfo's "MemTotal" or "MemAvailable"; 0: unknown. */
double proc_memory_bytes(const char *key);
/* Can `bytes` be filled for `subject`? Memory is promised freely and taken back by killing, so ask first. Exit code. */
int proc_memory_check(const char *subject, double bytes);

#endif
