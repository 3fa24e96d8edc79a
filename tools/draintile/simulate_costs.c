/* Costs of `simulate`: from a platform file, from a run's results, from rates; the later ones replace the earlier. */
#include <math.h>
#include <string.h>

#include <draintile/platform.h>
#include <draintile/weights.h>

#include "commands.h"
#include "costs_file.h"
#include "log.h"
#include "simulate.h"

typedef struct costs_reading {
  const tool_args *args;
  const counts_matrix *counts;
  simulate_costs *costs;
  double gemm_flop_per_s, memory_bytes_per_s; /* of a worker, by the platform's tables; 0: not there */
} costs_reading;

/* The device's rates, shared evenly by its workers: grouped products at the rows, experts and shape of this layer. */
static void read_device_rates(costs_reading *reading, const dt_platform *platform) {
  const dt_platform_table *table = dt_platform_find_table(platform, "gemm_flop_per_s", NULL, NULL, NULL);
  double workers = (double)args_int(reading->args, "workers"), slots = 0, at[DT_PLATFORM_ARGUMENTS];
  dt_interval rate;
  for (size_t i = 0; i < (size_t)reading->counts->ranks * (size_t)reading->counts->experts; i++)
    slots += reading->counts->values[i];
  const double question[] = {slots / reading->counts->ranks, 2.0 * (double)args_int(reading->args, "intermediate"),
                             (double)args_int(reading->args, "hidden"),
                             (double)reading->counts->experts / reading->counts->ranks};
  static const char *const names[] = {"rows", "n", "k", "experts"};
  int known = 0;
  for (int32_t a = 0; table && a < table->argument_count; a++)
    for (size_t i = 0; i < ARGS_COUNT(names); i++)
      if (strcmp(table->arguments[a], names[i]) == 0) at[a] = question[i], known++;
  if (table && known == table->argument_count && !dt_platform_interpolate(table, at, &rate, NULL))
    reading->gemm_flop_per_s = rate.value / workers;
  if (!dt_platform_lookup(platform, "memory_bytes_per_s", &rate)) reading->memory_bytes_per_s = rate.value / workers;
}

/* A layer on GPUs has tiles, rates and a link of its own. */
static const char *const cpu_only[] = {"memory-rate",  "copy-rate",     "link-rate",     "link-capacity",
                                       "link-latency", "receiver-rate", "cores",         "tile-m",
                                       "tile-n",       "layout",        "reduce-tokens", "trace"};

/* Where a GPU's layer allows less than the CPU's. */
static int check_gpu_options(const tool_args *args) {
  const long long workers = args_int(args, "workers"), consumers = args_int(args, "consumers");
  const long long raster_bands = args_int(args, "raster-bands");
  if (workers < 2)
    return log_fail(TOOL_USAGE, "--workers: %lld; allowed: 2 or more with a GPU's platform file, its multiprocessors",
                    workers);
  if (args_given(args, "consumers") && (consumers % 2 || consumers > workers - 2))
    return log_fail(TOOL_USAGE, "--consumers: %lld; allowed: an even number up to %lld, two fewer than --workers",
                    consumers, workers - 2);
  if (args_given(args, "raster-bands") && raster_bands % 2)
    return log_fail(TOOL_USAGE, "--raster-bands: %lld; allowed: an even number with a GPU's platform file",
                    raster_bands);
  for (size_t i = 0; i < ARGS_COUNT(cpu_only); i++)
    if (args_given(args, cpu_only[i]))
      return log_fail(TOOL_USAGE, "--%s: \"%s\"; allowed: without a platform of GPUs", cpu_only[i],
                      args_text(args, cpu_only[i]));
  if (args_choice(args, "dtype") != DT_DTYPE_BF16)
    return log_fail(TOOL_USAGE, "--dtype: \"%s\"; allowed: bf16 with a platform of GPUs",
                    float_dtype_names[args_choice(args, "dtype")]);
  return TOOL_OK;
}

/* A fit of a small layer may give a tile's time to its weights alone. */
static int no_tiles(const dt_sim_costs *costs) {
  return costs->l1_base_s + costs->l1_row_s + costs->l1_panel_s <= 0;
}

static int read_platform(costs_reading *reading, const char *path) {
  const tool_args *args = reading->args;
  simulate_costs *costs = reading->costs;
  dt_platform *platform;
  int32_t found = 0;
  dt_status status = dt_platform_load(path, &platform);
  if (status) return log_unread(status);
  status = dt_sim_costs_from_platform(platform, &costs->tasks, &found);
  costs->gpu = !args_set(args, "gemm-rate") && !args_set(args, "costs") &&
               strcmp(dt_platform_get_device(platform)->kind, "cuda") == 0 &&
               dt_platform_find_table(platform, "tile_s", NULL, NULL, NULL) != NULL;
  const int code = !status && costs->gpu ? check_gpu_options(args) : TOOL_OK;
  if (code == TOOL_OK && !status && costs->gpu)
    status = dt_layer_costs_from_platform(platform, args_int(args, "hidden"), args_int(args, "intermediate"),
                                          (int32_t)args_int(args, "workers"), &costs->layer);
  if (code == TOOL_OK && !status && !costs->gpu && no_tiles(&costs->tasks)) read_device_rates(reading, platform);
  dt_platform_destroy(platform);
  if (code) return code;
  if (status) return log_status(status, path);
  if (found || costs->gpu) return TOOL_OK;
  return log_fail(TOOL_USAGE, "%s: no constant named sim_*; allowed: a platform that has some", path);
}

/* Costs of a tile from rates: a GEMM's, the memory's (weights of a tile, once a panel), a copy's. */
static void from_rates(costs_reading *reading) {
  const tool_args *args = reading->args;
  const double hidden = (double)args_int(args, "hidden"), intermediate = (double)args_int(args, "intermediate");
  const double tile_n = (double)args_int(args, "tile-n");
  double width_1 = fmin(tile_n, intermediate), width_2 = fmin(tile_n, hidden);
  double element = (double)dt_dtype_bytes((dt_dtype)args_choice(args, "dtype"));
  dt_sim_costs *costs = &reading->costs->tasks;
  double gemm = args_set(args, "gemm-rate") ? args_number(args, "gemm-rate") : reading->gemm_flop_per_s;
  double memory = args_set(args, "memory-rate") ? args_number(args, "memory-rate") : reading->memory_bytes_per_s;
  if (gemm > 0) {
    costs->l1_row_s = 4 * hidden * width_1 / gemm;
    costs->l2_row_s = 2 * intermediate * width_2 / gemm;
  }
  if (memory > 0) {
    costs->l1_panel_s = 2 * hidden * width_1 * element / memory;
    costs->l2_panel_s = intermediate * width_2 * element / memory;
  }
  if (args_set(args, "copy-rate"))
    costs->copy_s_per_byte = costs->local_copy_s_per_byte = 1 / args_number(args, "copy-rate");
  if (args_set(args, "link-rate")) costs->link_bytes_per_s = args_number(args, "link-rate");
  if (args_set(args, "link-capacity")) costs->link_capacity_bytes = args_number(args, "link-capacity");
  if (args_set(args, "link-latency")) costs->link_latency_s = args_number(args, "link-latency");
  if (args_set(args, "receiver-rate")) costs->receiver_bytes_per_s = args_number(args, "receiver-rate");
  if (args_set(args, "cores")) costs->cores = args_number(args, "cores");
}

int simulate_costs_read(const tool_args *args, const counts_matrix *counts, simulate_costs *costs) {
  static const char *const rates[] = {"gemm-rate", "memory-rate", "copy-rate", "link-rate"};
  costs_reading reading = {.args = args, .counts = counts, .costs = costs};
  for (size_t i = 0; i < ARGS_COUNT(rates); i++)
    if (args_set(args, rates[i]) && args_number(args, rates[i]) <= 0)
      return log_fail(TOOL_USAGE, "--%s: \"%s\"; allowed: more than 0", rates[i], args_text(args, rates[i]));
  if (!args_set(args, "platform") && !args_set(args, "costs") && !args_set(args, "gemm-rate"))
    return log_fail(TOOL_USAGE, "--costs: required; allowed: a file, or --platform or --gemm-rate in its place");
  dt_sim_costs_init(&costs->tasks);
  int code = TOOL_OK;
  if (args_set(args, "platform")) code = read_platform(&reading, args_text(args, "platform"));
  if (code == TOOL_OK && args_set(args, "costs")) {
    code = costs_read(args_text(args, "costs"), &costs->tasks);
    reading.gemm_flop_per_s = reading.memory_bytes_per_s = 0;
  }
  if (code) return code;
  const int known = costs->gpu || !no_tiles(&costs->tasks); /* the platform may know the link alone, rates the memory */
  from_rates(&reading);
  if (!known && costs->tasks.l1_row_s <= 0)
    return log_fail(TOOL_USAGE,
                    "l1_row_s: 0; allowed: more than 0, by --gemm-rate, --costs or the platform's sim_l1_row_s");
  /* As the executors: dispatch keeps to a share of the buffer, so that direct stores, which would stall a worker, find
   * room. */
  costs->tasks.dispatch_backlog_bytes = costs->tasks.link_capacity_bytes * DT_DISPATCH_LINK_SHARE;
  return TOOL_OK;
}
