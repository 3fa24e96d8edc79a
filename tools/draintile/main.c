/* draintile: the command over the public API of libdraintile. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <draintile/version.h>

#include "args.h"
#include "commands.h"
#include "log.h"

/* A new subcommand is one file and one row here. */
static const tool_command *const commands[] = {
    &command_info,     &command_model,     &command_plan,  &command_moe,   &command_attention,
    &command_simulate, &command_calibrate, &command_synth, &command_bench,
};

static void print_overview(FILE *out) {
  fprintf(out,
          "Usage: draintile COMMAND [options]\n\n"
          "Runs, plans and predicts expert-parallel MoE layers and sequence-parallel attention whose all-to-alls hide\n"
          "behind the kernels that feed them.\n\n"
          "Commands:\n");
  args_print_commands(out, commands, ARGS_COUNT(commands));
  fprintf(out, "\ndraintile COMMAND --help lists the options of each; draintile --version prints the version.\n"
               "Tables go to standard output, messages to standard error.\n"
               "Exit status: 0 success, 1 a check failed, 2 usage or bad input, 3 failure at run time,\n"
               "77 skipped (no such device).\n");
}

/* A file that is opened where a standard stream was closed would get what is printed there. Nothing can be written to
 * what is put in its place. */
static void occupy_closed_streams(void) {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
    if (fcntl(descriptor, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) return;
}

int main(int argc, char **argv) {
  occupy_closed_streams();
  if (argc < 2) {
    print_overview(stderr);
    return TOOL_USAGE;
  }
  signal(SIGXFSZ, SIG_IGN); /* a file over the limit is an error of the write, not the end of the process */
  int code = TOOL_OK;
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "help") == 0)
    print_overview(stdout);
  else if (strcmp(argv[1], "--version") == 0)
    printf("draintile %s\n", dt_version());
  else
    code = args_dispatch(commands, ARGS_COUNT(commands), argc, argv);
  log_set_title("draintile");
  return code == TOOL_OK ? log_flush() : code;
}
