/* draintile bench moe: the MoE layer of published models on GPUs, every schedule in turns, over lists of settings. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <draintile/cuda_memory.h>

#include "bench_moe.h"
#include "commands.h"
#include "json.h"
#include "log.h"
#include "rank_options.h"

typedef struct moe_bench_job {
  const tool_args *args;
  dt_moe_bench_config config;
  device_machine machine;
  json_t *rows;
  int32_t sms;
  char device[256];
  int predict, quiet; /* no GPU: prices alone */
} moe_bench_job;

static json_t *results(const moe_bench_job *job) {
  json_t *root = json_results("draintile-bench-moe");
  json_object_set_new(root, "device", job->predict ? json_null() : json_text(job->device));
  json_object_set_new(root, "date", json_now());
  json_object_set_new(root, "ranks", json_integer(job->config.ranks));
  json_object_set_new(root, "repeat", json_integer(job->config.repeat));
  json_object_set_new(root, "seed", json_whole((int64_t)job->config.seed));
  json_object_set_new(root, "constants", device_machine_json(&job->machine));
  json_object_set(root, "rows", job->rows);
  return root;
}

/* Without a row there is nothing: what an earlier run wrote stays. */
static int write_results(const moe_bench_job *job) {
  const char *path = args_text(job->args, "json");
  return path && json_array_size(job->rows) ? json_write(results(job), path) : TOOL_OK;
}

static int run_row(moe_bench_job *job, dt_moe_bench *bench, const bench_moe_row *row) {
  bench_moe_methods methods;
  dt_moe_bench_result result = {.method_count = 0};
  int code = bench_moe_methods_make(job->args, row, job->sms, &methods);
  if (code == TOOL_OK && job->predict) code = bench_moe_price(row, &job->machine, job->sms, job->config.seed, &methods);
  if (code) return code;
  if (!job->predict) {
    const dt_moe_bench_row asked = {
        .router = row->router, .tokens = row->tokens, .methods = methods.list, .method_count = methods.count};
    const dt_status status = dt_moe_bench_run(bench, &asked, &result);
    if (status) return log_status(status, row->shape->name);
    memcpy(job->device, result.device, sizeof job->device);
  }
  const dt_moe_bench_result *seen = job->predict ? NULL : &result;
  const device_limit limit =
      seen ? bench_moe_limit(row, &job->machine, seen, bench_moe_part(&methods, seen, DT_CUDA_MOE_COMPUTE))
           : device_limit_of(&job->machine, NAN, NAN, NAN);
  if (!job->quiet) bench_moe_print(row, &methods, seen, &limit);
  json_array_append_new(job->rows,
                        bench_moe_json(row, &methods, seen, &limit, job->config.repeat, job->config.max_tokens));
  if (seen) code = bench_moe_judge(row, &methods, seen);
  dt_moe_bench_result_free(&result);
  return code;
}

/* A failed check does not end the run; what cannot run does. */
static int run_model(moe_bench_job *job, const dt_moe_shape *shape) {
  const arg_value *routers = args_list(job->args, "router"), *tokens = args_list(job->args, "tokens");
  dt_moe_bench *bench = NULL;
  int worst = TOOL_OK;
  job->config.shape = *shape;
  if (!job->predict) {
    const dt_status status = dt_moe_bench_open(&job->config, &bench);
    if (status) return log_status(status, shape->name);
  }
  for (int r = 0; r < routers->list_count && worst <= TOOL_CHECK_FAILED; r++)
    for (int t = 0; t < tokens->list_count && worst <= TOOL_CHECK_FAILED; t++) {
      const bench_moe_row row = {.shape = shape,
                                 .router = (dt_moe_router)routers->list[r],
                                 .tokens = tokens->list[t],
                                 .ranks = job->config.ranks};
      const int code = run_row(job, bench, &row);
      if (code > worst) worst = code;
    }
  dt_moe_bench_close(bench);
  return worst;
}

/* After every model where a file can be replaced, so that a run that is cut short leaves what it has. */
static int run_models(moe_bench_job *job, const arg_value *models) {
  const bool replaced = json_is_replaced(args_text(job->args, "json"));
  int worst = TOOL_OK;
  for (int i = 0; i < models->list_count && worst <= TOOL_CHECK_FAILED; i++) {
    const int code = run_model(job, dt_moe_shape_at(models->list[i]));
    if (code > worst) worst = code;
    const bool last = i + 1 == models->list_count || worst > TOOL_CHECK_FAILED;
    const int written = last || replaced ? write_results(job) : TOOL_OK;
    if (written > worst) worst = written;
  }
  return worst;
}

static int prepare(moe_bench_job *job) {
  const tool_args *args = job->args;
  const arg_value *tokens = args_list(args, "tokens"), *models = args_list(args, "model");
  const char *json = args_text(args, "json");
  dt_moe_bench_config_init(&job->config);
  job->quiet = json_is_stdout(json);
  job->predict = args_set(args, "predict");
  job->config.ranks = (int32_t)args_int(args, "ranks");
  job->config.repeat = (int32_t)args_int(args, "repeat");
  job->config.warm_up = 3;
  job->config.seed = (uint64_t)args_int(args, "seed");
  job->config.max_tokens = 1;
  for (int i = 0; i < args_list(args, "dedup")->list_count; i++) job->config.dedup |= args_list(args, "dedup")->list[i];
  for (int i = 0; i < tokens->list_count; i++)
    if (tokens->list[i] > job->config.max_tokens) job->config.max_tokens = tokens->list[i];
  for (int i = 0; i < models->list_count; i++) {
    const dt_moe_shape *shape = dt_moe_shape_at(models->list[i]);
    if (shape->experts % job->config.ranks)
      return log_fail(TOOL_USAGE, "--ranks: %d; allowed: a divisor of the %d experts of %s", job->config.ranks,
                      shape->experts, shape->name);
  }
  const int code = device_machine_read(args_text(args, "platform"), &job->machine);
  if (code) return code;
  if (job->predict && !job->machine.platform) return log_fail(TOOL_USAGE, "--platform: required with --predict");
  if (!job->predict && args_given(args, "sms")) return log_fail(TOOL_USAGE, "--predict: required with --sms");
  job->sms = (int32_t)args_int(args, "sms");
  if (job->predict) return TOOL_OK;
  dt_cuda_device info;
  const dt_status status = dt_cuda_device_info(0, &info);
  if (status == DT_ERR_UNSUPPORTED) return log_fail(TOOL_SKIPPED, "no GPU: the CUDA parts are not in this build");
  if (status == DT_ERR_NO_DEVICE)
    return log_fail(TOOL_SKIPPED, "ranks: %d; this machine has no GPU", job->config.ranks);
  if (status) return log_status(status, NULL);
  job->sms = info.sms;
  return TOOL_OK;
}

static int run(const tool_args *args) {
  moe_bench_job job = {.args = args, .rows = json_array()};
  const arg_value *models = args_list(args, "model");
  int worst = job.rows ? prepare(&job) : log_out_of_memory();
  if (worst == TOOL_OK) worst = run_models(&job, models);
  device_machine_release(&job.machine);
  json_decref(job.rows);
  return worst;
}

static const arg_option options[] = {
    OPT_INT("ranks", "W", "2", 1, 8, "GPUs of this machine"),
    OPT_LIST("model", "MODELS", "qwen3-30b", bench_moe_models, "layers of published models"),
    OPT_LIST("router", "ROUTERS", "balanced", bench_moe_routers, "how tokens choose; crossed: all go to the next rank"),
    OPT_INTS("tokens", "LIST", "1024", 1, 1048576, "tokens of every rank, separated by commas"),
    OPT_LIST("schedule", "LIST", "all", bench_moe_schedules,
             "what is timed beside serial and its parts alone; wave-published: two L1 tiles a multiprocessor"),
    OPT_LIST("order", "LIST", "natural", order_names, "orders of bands, of all schedules but serial"),
    OPT_INT("raster-bands", "R", "0", 0, 65536, "bands of a unit at most; 0: the schedule's"),
    OPT_INTS("group-tasks", "LIST", "0", 0, 1000000000, "L1 tasks a group holds at least; 0: the schedule's"),
    OPT_INTS("lead", "LIST", "0", 0, 65536, "groups of L1 ahead of L2 (interleave, alternate); 0: the schedule's"),
    OPT_INTS("consumers", "LIST", "0", 0, 64,
             "signal: multiprocessors that put rows beside the tiles, even; 0: the layer's"),
    OPT_INTS("segment-bands", "LIST", "0", 0, 65536,
             "signal: bands of an owner's rows that travel together; 0: the layer's"),
    OPT_LIST("dedup", "LIST", "off", switch_names,
             "on: a token crosses once to a rank that wants it for several experts"),
    OPT_INTS("head", "LIST", "0", -1, 1024,
             "1024ths of the dispatch's copies that its kernel makes, the tiles' idle warps the rest; 0: the layer's, "
             "-1: none"),
    OPT_INTS("send-sms", "LIST", "0", 0, 1024,
             "multiprocessors of the dispatch kernel, beside the tiles; 0: the layer's"),
    OPT_INTS("ahead", "LIST", "0", -1, 65536,
             "with dedup: waves of tasks without other ranks' rows that come first; 0: the layer's, -1: none"),
    OPT_FLAG("in-place", "also L1 and L2 alone, every row where it belongs, with L2's rows to their owners"),
    OPT_INT("repeat", "N", "20", 1, 10000, "samples of each method, in turns"),
    OPT_TEXT("platform", "FILE", NULL, "platform file: the rates and constants of the limit and of the prices"),
    OPT_FLAG("predict", "price the rows by the simulator and the platform file alone, without a GPU"),
    OPT_INT("sms", "N", "132", 2, 1024, "multiprocessors of a GPU, with --predict"),
    OPTION_SEED,
    OPTION_JSON,
};

const tool_command command_bench_moe = {
    .name = "moe",
    .summary = "the MoE layer of published models on GPUs, every schedule in turns",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
    .notes = "Times are of the slowest rank. Every schedule must equal serial to the bit and sampled tokens a float64\n"
             "reference. Exits with 77 where there are fewer GPUs than ranks.",
};
