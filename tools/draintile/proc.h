/* This machine: what /proc says of it, what the driver of its GPUs is told. */
#ifndef DRAINTILE_TOOL_PROC_H
#define DRAINTILE_TOOL_PROC_H

#include <stdbool.h>
#include <stddef.h>

/* The text after "key :" in a file of such lines, trimmed; false when there is none. */
bool proc_line(const char *path, const char *key, char *out, size_t size);
/* Bytes of /proc/meminfo's "MemTotal", or another; 0: unknown. */
double proc_memory_bytes(const char *key);
/* Bytes that may still be filled: of the machine's memory, or of what control groups leave of it, as containers have
 * them. 0: unknown. */
double proc_memory_available(void);
/* Can `bytes` be filled for `subject`? Memory is promised freely and taken back by killing, so ask first. Exit code. */
int proc_memory_check(const char *subject, double bytes);

/* Ranks that are threads may share a GPU: each of their streams gets a hardware queue, so that none waits behind
 * another's. Before the driver is spoken to. */
void proc_gpu_queues(void);

#endif
