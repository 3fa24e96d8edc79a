#include "proc.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/units.h>

#include "log.h"

bool proc_line(const char *path, const char *key, char *out, size_t size) {
  FILE *file = fopen(path, "r");
  char line[512];
  bool found = false;
  while (file && !found && fgets(line, sizeof(line), file)) {
    size_t length = strlen(key);
    if (strncmp(line, key, length) != 0) continue;
    char *value = strchr(line + length, ':');
    if (!value) continue;
    value++;
    while (isspace((unsigned char)*value)) value++;
    value[strcspn(value, "\n")] = 0;
    snprintf(out, size, "%s", value);
    found = true;
  }
  if (file) fclose(file);
  return found;
}

void proc_gpu_queues(void) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

double proc_memory_bytes(const char *key) {
  char text[64];
  return proc_line("/proc/meminfo", key, text, sizeof(text)) ? strtod(text, NULL) * 1024 : 0;
}

int proc_memory_check(const char *subject, double bytes) {
  const double available = proc_memory_bytes("MemAvailable");
  char needed[32], free[32];
  if (available == 0 || bytes <= available) return TOOL_OK;
  return log_fail(TOOL_FAILED, "%s: would fill about %s of memory; %s are available", subject,
                  dt_format_bytes(bytes, needed, sizeof(needed)), dt_format_bytes(available, free, sizeof(free)));
}
