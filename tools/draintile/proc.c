#include "proc.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
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

typedef struct group_files {
  const char *controller, *mount, *limit, *usage, *inactive, *active;
} group_files;

/* Control groups of version 2, and of version 1. */
static const group_files group_versions[] = {
    {"", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", "active_file"},
    {"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
     "total_active_file"}};

/* The number in a file, or behind `key` in one of its lines; INFINITY: no such file, key or number ("max"). */
static double read_number(const char *folder, const char *name, const char *key) {
  char path[PATH_MAX], line[256];
  snprintf(path, sizeof(path), "%s/%s", folder, name);
  FILE *file = fopen(path, "r");
  const size_t length = strlen(key);
  double number = INFINITY;
  while (file && isinf(number) && fgets(line, sizeof(line), file))
    if (strncmp(line, key, length) == 0 && isdigit((unsigned char)line[length + (length > 0)]))
      number = strtod(line + length, NULL);
  if (file) fclose(file);
  return number;
}

/* Files that are only cached make room. */
static double left_in_group(const group_files *files, const char *folder) {
  const double limit = read_number(folder, files->limit, ""), used = read_number(folder, files->usage, "");
  const double inactive = read_number(folder, "memory.stat", files->inactive);
  const double active = read_number(folder, "memory.stat", files->active);
  if (isinf(limit) || isinf(used)) return INFINITY;
  const double cached = (isinf(inactive) ? 0 : inactive) + (isinf(active) ? 0 : active);
  return fmax(0, limit - fmax(0, used - cached));
}

/* The least of a group and those around it. In a container the names of its host lead nowhere, but the top is there. */
static double left_in_groups(const group_files *files, const char *group) {
  char folder[PATH_MAX];
  const size_t mount = strlen(files->mount);
  double least = INFINITY;
  if (snprintf(folder, sizeof(folder), "%s%s", files->mount, group) >= (int)sizeof(folder)) return INFINITY;
  for (;;) {
    least = fmin(least, left_in_group(files, folder));
    if (strlen(folder) <= mount) return least;
    *strrchr(folder, '/') = 0;
  }
}

/* Lines of /proc/self/cgroup: "4:cpu,memory:/name", of version 2 "0::/name". */
static double left_by_groups(void) {
  char line[PATH_MAX];
  double least = INFINITY;
  FILE *file = fopen("/proc/self/cgroup", "r");
  while (file && fgets(line, sizeof(line), file)) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *controllers++ = *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    for (size_t i = 0; i < sizeof(group_versions) / sizeof(*group_versions); i++) {
      const group_files *files = &group_versions[i];
      const bool is_this = *files->controller ? strstr(controllers, files->controller) != NULL : !*controllers;
      if (is_this && *group == '/') least = fmin(least, left_in_groups(files, group));
    }
  }
  if (file) fclose(file);
  return least;
}

double proc_memory_available(void) {
  const double machine = proc_memory_bytes("MemAvailable"), groups = left_by_groups();
  if (isinf(groups)) return machine;
  return fmax(1, machine > 0 ? fmin(machine, groups) : groups); /* a full group is not an unknown one */
}

int proc_memory_check(const char *subject, double bytes) {
  const double available = proc_memory_available();
  char needed[32], free[32];
  if (available == 0 || bytes <= available) return TOOL_OK;
  return log_fail(TOOL_FAILED, "%s: would fill about %s of memory; %s are available", subject,
                  dt_format_bytes(bytes, needed, sizeof(needed)), dt_format_bytes(available, free, sizeof(free)));
}
