#include "rank_options.h"

#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <draintile/build.h>
#include <draintile/cuda_memory.h>

#include "log.h"

const char *const device_names[] = {"cpu", "cuda", NULL};
const char *const switch_names[] = {"off", "on", NULL};

static int32_t count_gpus(void) {
  int status;
  const pid_t pid = fork();
  if (pid == 0) {
    const int32_t gpus = dt_cuda_devices();
    _exit(gpus < 255 ? gpus : 255);
  }
  if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 0;
  return WEXITSTATUS(status);
}

int rank_options_device(const tool_args *args, int32_t *gpus) {
  if (gpus) *gpus = 0;
  if (args_choice(args, "device") == 0) return TOOL_OK;
  dt_build build;
  dt_build_info(&build);
  struct stat status;
  if (!build.cuda) return log_fail(TOOL_SKIPPED, "--device: %s: the CUDA parts are not in this build", device_names[1]);
  if (stat("/dev/nvidia0", &status) != 0)
    return log_fail(TOOL_SKIPPED, "--device: %s: no such device here", device_names[1]);
  if (gpus) *gpus = count_gpus();
  if (gpus && *gpus > 0) return TOOL_OK;
  if (gpus) return log_fail(TOOL_SKIPPED, "--device: %s: the driver shows no GPU", device_names[1]);
  return log_fail(TOOL_SKIPPED, "--device: %s: rank processes of this command run on the CPU", device_names[1]);
}

int rank_options_link(const tool_args *args, dt_comm_config *comm) {
  dt_comm_config_init(comm);
  if (args_set(args, "link-rate")) {
    comm->link_bytes_per_s = args_number(args, "link-rate");
    comm->link_capacity_bytes = args_number(args, "link-capacity");
    comm->link_latency_s = args_number(args, "link-latency");
    if (comm->link_bytes_per_s <= 0)
      return log_fail(TOOL_USAGE, "--link-rate: \"%s\"; allowed: more than 0", args_text(args, "link-rate"));
    if (comm->link_capacity_bytes <= 0)
      return log_fail(TOOL_USAGE, "--link-capacity: \"%s\"; allowed: more than 0", args_text(args, "link-capacity"));
  } else if (args_given(args, "link-capacity") || args_given(args, "link-latency")) {
    return log_fail(TOOL_USAGE, "--link-rate: required with --link-capacity and --link-latency");
  }
  return TOOL_OK;
}

int rank_options_timeouts(const tool_args *args, dt_comm_config *comm) {
  if (args_set(args, "timeout")) {
    comm->timeout_s = args_number(args, "timeout");
    comm->entry_timeout_s = comm->timeout_s;
    if (comm->timeout_s <= 0)
      return log_fail(TOOL_USAGE, "--timeout: \"%s\"; allowed: more than 0", args_text(args, "timeout"));
  }
  if (args_set(args, "entry-timeout")) comm->entry_timeout_s = args_number(args, "entry-timeout");
  return TOOL_OK;
}

int rank_options_waits(const tool_args *args, dt_comm_config *comm) {
  int code = rank_options_timeouts(args, comm);
  if (code) return code;
  if (args_number(args, "delay") > 1)
    return log_fail(TOOL_USAGE, "--delay: \"%s\"; allowed: 0 to 1s", args_text(args, "delay"));
  return TOOL_OK;
}

void rank_options_delay(const tool_args *args, int32_t *delay_max_us, uint64_t *delay_seed) {
  *delay_max_us = (int32_t)(args_number(args, "delay") * 1e6);
  *delay_seed = *delay_max_us ? (uint64_t)args_int(args, "delay-seed") + 1 : 0;
}
