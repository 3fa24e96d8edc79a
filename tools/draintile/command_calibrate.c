/* draintile calibrate: measures this machine into a platform file, or verifies one. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calibrate_report.h"
#include "commands.h"
#include "log.h"
#include "progress.h"
#include "rank_options.h"
#include "ranks.h"

enum { DEVICE_CPU = 0, DEVICE_CUDA = 1 };

static const double latency_most_s = 0.01;

typedef struct calibrate_job {
  const tool_args *args;
  dt_calibrate_config config;
  dt_comm_config comm;
  dt_platform *verified; /* the file to verify; NULL: a calibration */
  int32_t ranks;
  const char *output;
  rank_link *link; /* of this process's rank; NULL: not a rank process */
  int *code;       /* rank processes: memory shared with the parent, where rank 0 leaves the exit code */
} calibrate_job;

static void show_progress(void *context, double done, double total) {
  tool_progress *progress = context;
  if (progress->total == 0) progress_start(progress, "calibrate", total);
  progress_add(progress, done - progress->done);
}

/* The command that made a file, for the file: every option that was given and bears on the figures. */
static void describe(const calibrate_job *job, char *text, size_t size) {
  static const char *const names[] = {"ranks",         "producers",    "seed",  "link-rate",
                                      "link-capacity", "link-latency", "verify"};
  int cpu = args_choice(job->args, "device") == DEVICE_CPU;
  size_t used = (size_t)snprintf(text, size, "draintile calibrate --device %s%s", cpu ? "cpu" : "cuda",
                                 job->config.quick ? " --quick" : "");
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && used < size; i++)
    if (args_given(job->args, names[i]))
      used += (size_t)snprintf(text + used, size - used, " --%s %s", names[i], args_text(job->args, names[i]));
}

/* Before minutes of measuring, not after: can the file be written? */
static int check_output(const calibrate_job *job) {
  const char *path = job->output;
  const arg_option option = {.kind = ARG_RESULTS, .name = "output"};
  if (!path || (job->verified && strcmp(path, "-") == 0)) return TOOL_OK;
  if (strcmp(path, "-") == 0) return log_fail(TOOL_USAGE, "--output: \"-\"; allowed: a file, or with --verify -");
  struct stat there;
  if (!job->verified && stat(path, &there) == 0 && !S_ISREG(there.st_mode))
    return log_fail(TOOL_USAGE, "--output: %s; allowed: a new or regular file", path);
  return args_check_output(&option, path);
}

/* The library's last failure, said by this process or, in a rank, left to the parent: one line either way. Samples
 * that fix no constant are what this machine gave, nothing that the user put in; a platform file to verify is. */
static int failed(const calibrate_job *job, dt_status status) {
  const char *detail = dt_error_detail();
  if (!*detail) detail = dt_status_text(status);
  int code = status == DT_ERR_INPUT && !job->verified ? TOOL_FAILED : log_exit_code(status);
  if (!job->link) return log_fail(code, "%s", detail);
  job->link->account->secondary = status == DT_ERR_PEER;
  return rank_link_fail(job->link, code, "%s", detail);
}

/* Calibrates or verifies and reports, on the rank that holds the results. */
static int measure(calibrate_job *job) {
  dt_platform *platform = NULL;
  dt_verification *verification = NULL;
  tool_progress progress = {.total = 0};
  job->config.progress = show_progress;
  job->config.progress_context = &progress;
  dt_status status =
      job->verified ? dt_verify(&job->config, job->verified, &verification) : dt_calibrate(&job->config, &platform);
  if (progress.total > 0) progress_end(&progress);
  if (status) return failed(job, status);
  int code = TOOL_OK;
  char command[512];
  describe(job, command, sizeof(command));
  if (verification) {
    if (job->output) code = report_write(verification, job->verified, command, job->output);
    if (!job->output || strcmp(job->output, "-") != 0) report_verification(stdout, verification);
    if (code == TOOL_OK && !verification->pass) code = TOOL_CHECK_FAILED;
  } else if (platform) {
    status = dt_platform_add_note(platform, command);
    if (!status) status = dt_platform_save(platform, job->output);
    code = status ? failed(job, status) : TOOL_OK;
    if (code == TOOL_OK) report_platform(stdout, platform);
  }
  dt_verification_destroy(verification);
  dt_platform_destroy(platform);
  return code;
}

/* One rank of the CPU fabric, in its process; rank 0 reports. What it has said of its report, or of a check, is no
 * failure of the rank, of which the parent would speak again. */
static int run_rank(rank_link *link, void *context) {
  calibrate_job *job = context;
  job->link = link;
  dt_status status =
      dt_comm_create_shm(link->rank, link->ranks, rank_link_allgather, link, &job->comm, &job->config.comm);
  if (status) return failed(job, status);
  int code = measure(job);
  if (link->rank == 0 && code <= TOOL_CHECK_FAILED && log_flush() != TOOL_OK) code = TOOL_FAILED;
  if (link->rank == 0) *job->code = code;
  dt_comm_destroy(job->config.comm);
  return link->account->detail[0] ? code : TOOL_OK;
}

static int run_cpu(calibrate_job *job) {
  int code = rank_options_link(job->args, &job->comm);
  if (code == TOOL_OK) code = rank_options_timeouts(job->args, &job->comm);
  if (code) return code;
  if (job->comm.link_latency_s > latency_most_s) /* every one of hundreds of settings waits for it a few times */
    return log_fail(TOOL_USAGE, "--link-latency: \"%s\"; allowed: 0 to 10ms", args_text(job->args, "link-latency"));
  job->ranks = args_set(job->args, "ranks") ? (int32_t)args_int(job->args, "ranks") : 2;
  ranks_config ranks = {.ranks = job->ranks,
                        .timeout_s = job->comm.timeout_s,
                        .entry_timeout_s = job->comm.entry_timeout_s,
                        .context = job,
                        .run = run_rank};
  job->code = mmap(NULL, sizeof(*job->code), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (job->code == MAP_FAILED) return log_fail(TOOL_FAILED, "out of memory");
  fflush(stdout);
  code = ranks_run(&ranks);
  if (code == TOOL_OK) code = *job->code;
  munmap(job->code, sizeof(*job->code));
  return code;
}

/* What only rank processes have a use for. */
static int refuse_cpu_options(const tool_args *args) {
  static const char *const names[] = {"link-rate", "link-capacity", "link-latency",
                                      "timeout",   "entry-timeout", "producers"};
  for (size_t i = 0; i < ARGS_COUNT(names); i++)
    if (args_given(args, names[i]))
      return log_fail(TOOL_USAGE, "--%s: \"%s\"; allowed: with --device cpu", names[i], args_text(args, names[i]));
  return TOOL_OK;
}

static int run_cuda(calibrate_job *job) {
  int code = refuse_cpu_options(job->args);
  if (code) return code;
  job->config.ranks = args_set(job->args, "ranks") ? (int32_t)args_int(job->args, "ranks") : 0;
  return measure(job);
}

static int plot(const calibrate_job *job, const char *path) {
  dt_platform *platform = NULL;
  dt_status status = dt_platform_load(path, &platform);
  if (status) return log_unread(status);
  int code = plot_platform(platform, args_text(job->args, "residuals"), args_text(job->args, "plot"));
  dt_platform_destroy(platform);
  return code;
}

static int run(const tool_args *args) {
  calibrate_job job = {.args = args, .output = args_text(args, "output")};
  const char *from = args_text(args, "from"), *verify = args_text(args, "verify");
  if (from && verify) return log_fail(TOOL_USAGE, "--verify: \"%s\"; allowed: without --from", verify);
  if (from && !args_set(args, "plot")) return log_fail(TOOL_USAGE, "--from: \"%s\"; allowed: with --plot", from);
  if (verify && args_set(args, "plot"))
    return log_fail(TOOL_USAGE, "--plot: \"%s\"; allowed: without --verify, with --from", args_text(args, "plot"));
  if (args_set(args, "residuals") && !args_set(args, "plot"))
    return log_fail(TOOL_USAGE, "--residuals: \"%s\"; allowed: with --plot", args_text(args, "residuals"));
  if (from) return plot(&job, from);
  dt_calibrate_config_init(&job.config);
  job.config.quick = args_set(args, "quick");
  job.config.seed = (uint64_t)args_int(args, "seed");
  job.config.producers = (int32_t)args_int(args, "producers");
  const dt_status loaded = verify ? dt_platform_load(verify, &job.verified) : DT_OK;
  if (loaded) return log_unread(loaded);
  if (!verify && !job.output) job.output = "platform.json";
  int code = check_output(&job);
  if (code == TOOL_OK) code = args_choice(args, "device") == DEVICE_CPU ? run_cpu(&job) : run_cuda(&job);
  if (code == TOOL_OK && args_set(args, "plot")) code = plot(&job, job.output);
  dt_platform_destroy(job.verified);
  return code;
}

static const arg_option options[] = {
    OPT_CHOICE("device", "DEVICE", "cuda", device_names, "cuda: the GPUs; cpu: the fabric between rank processes"),
    OPT_INT("ranks", "W", NULL, 1, 64, "GPUs (all) or rank processes (2)"),
    OPT_FLAG("quick",
             "fewer settings and rounds: on GPUs 20 s at most instead of 120; with cpu minutes if the link is slow "
             "or its capacity large"),
    OPT_TEXT("output", "FILE", NULL, "the platform file (platform.json), or with --verify the results"),
    OPT_TEXT("verify", "FILE", NULL, "measure other settings and compare them with this platform file"),
    OPT_TEXT("plot", "DIR", NULL, "draw pictures with gnuplot, PNG and SVG"),
    OPT_TEXT("from", "FILE", NULL, "draw from this platform file, measure nothing"),
    OPT_TEXT("residuals", "FILE", NULL, "results of --verify, for the picture of residuals"),
    OPTIONS_LINK,
    OPTIONS_TIMEOUTS,
    OPT_INT("producers", "K", "1", 1, 8, "cpu: threads a sender stores with"),
    OPTION_SEED,
};

const tool_command command_calibrate = {
    .name = "calibrate",
    .summary = "measure this machine into a platform file, or verify one",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
    .notes = "Without a GPU, --device cuda exits with 77. Clocks are read, never set.",
};
