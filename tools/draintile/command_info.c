/* draintile info: what this build and this machine are. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <draintile/build.h>
#include <draintile/version.h>

#include "commands.h"
#include "json.h"
#include "proc.h"
#include "table.h"

enum { DEVICES_MAX = 64, RANKS_MAX = 64 };

typedef struct machine_facts {
  char cpu[128];
  long processors, allowed;
  double memory_bytes, available_bytes;
  char devices[DEVICES_MAX][96];
  size_t device_count;
} machine_facts;

static void find_devices(machine_facts *machine) {
  static const char root[] = "/proc/driver/nvidia/gpus";
  DIR *directory = opendir(root);
  if (!directory) return;
  struct dirent *entry;
  while ((entry = readdir(directory)) && machine->device_count < DEVICES_MAX) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s/information", root, entry->d_name);
    if (entry->d_name[0] != '.' &&
        proc_line(path, "Model", machine->devices[machine->device_count], sizeof(machine->devices[0])))
      machine->device_count++;
  }
  closedir(directory);
}

static void look(machine_facts *machine) {
  memset(machine, 0, sizeof(*machine));
  if (!proc_line("/proc/cpuinfo", "model name", machine->cpu, sizeof(machine->cpu)))
    snprintf(machine->cpu, sizeof(machine->cpu), "unknown");
  machine->processors = sysconf(_SC_NPROCESSORS_ONLN);
  machine->allowed = dt_build_processors();
  machine->memory_bytes = proc_memory_bytes("MemTotal");
  machine->available_bytes = proc_memory_available();
  find_devices(machine);
}

static json_t *to_json(const machine_facts *machine, const dt_build *build) {
  json_t *root = json_results("draintile-info"), *devices = json_array();
  json_object_set_new(root, "library_version", json_string(dt_version()));
  json_object_set_new(root, "compiler", json_string(build->compiler));
  json_object_set_new(root, "cuda", json_boolean(build->cuda));
  json_object_set_new(root, "blas", json_string(build->blas));
  json_object_set_new(root, "blas_core", json_string(build->blas_core));
  json_object_set_new(root, "cpu", json_string(machine->cpu));
  json_object_set_new(root, "processors", json_integer(machine->processors));
  json_object_set_new(root, "processors_allowed", json_integer(machine->allowed));
  json_object_set_new(root, "memory_bytes", json_whole((int64_t)machine->memory_bytes));
  json_object_set_new(root, "memory_available_bytes", json_whole((int64_t)machine->available_bytes));
  for (size_t i = 0; i < machine->device_count; i++) json_array_append_new(devices, json_string(machine->devices[i]));
  json_object_set_new(root, "devices", devices);
  return root;
}

static void row_size(tool_table *table, const char *name, double bytes) {
  table_cell(table, "%s", name);
  table_size(table, bytes);
}

static void row_text(tool_table *table, const char *name, const char *text) {
  table_cell(table, "%s", name);
  table_cell(table, "%s", text);
}

static void print_info(const machine_facts *machine, const dt_build *build) {
  tool_table *table = table_create("<what|<value");
  row_text(table, "version", dt_version());
  row_text(table, "compiler", build->compiler);
  row_text(table, "CUDA parts", build->cuda ? "built" : "left out of this build");
  row_text(table, "BLAS", build->blas);
  row_text(table, "BLAS core", build->blas_core);
  row_text(table, "processor", machine->cpu);
  table_cell(table, "processors");
  table_cell(table, "%ld online, %ld allowed", machine->processors, machine->allowed);
  row_size(table, "memory", machine->memory_bytes);
  row_size(table, "memory available", machine->available_bytes);
  for (size_t i = 0; i < machine->device_count; i++) {
    table_cell(table, "device %zu", i);
    table_cell(table, "%s", machine->devices[i]);
  }
  if (machine->device_count == 0) row_text(table, "devices", "no GPU found");
  row_text(table, "schedules", "serial, signal, direct, wave, interleave, alternate");
  row_text(table, "layouts", "packed, aligned");
  row_text(table, "types exchanged", "f32, bf16, f16");
  table_cell(table, "ranks");
  table_cell(table, "1 to %d on one machine", RANKS_MAX);
  table_print(table, stdout);
}

static int run(const tool_args *args) {
  machine_facts machine;
  look(&machine);
  dt_build build;
  dt_build_info(&build);
  const char *json = args_text(args, "json");
  if (!json_is_stdout(json)) print_info(&machine, &build);
  return json ? json_write(to_json(&machine, &build), json) : TOOL_OK;
}

static const arg_option options[] = {OPTION_JSON};

const tool_command command_info = {
    .name = "info",
    .summary = "print version, build, processor, memory, devices and limits",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
};
