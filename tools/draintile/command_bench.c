/* draintile bench: timings of one operator each. */
#include "commands.h"

static const tool_command *const benches[] = {&command_bench_combine, &command_bench_moe, &command_bench_attention,
                                              &command_bench_residual};

const tool_command command_bench = {
    .name = "bench",
    .summary = "time an operator beside the libraries it competes with: combine, moe, attention; residual: what it "
               "leaves visible",
    .subcommands = benches,
    .subcommand_count = ARGS_COUNT(benches),
};
