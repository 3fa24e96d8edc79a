/* Every subcommand: one row in main.c's table, one file here. */
#ifndef DRAINTILE_TOOL_COMMANDS_H
#define DRAINTILE_TOOL_COMMANDS_H

#include "args.h"

extern const tool_command command_info, command_model, command_plan, command_moe, command_simulate, command_synth;
extern const tool_command command_synth_checkpoint, command_calibrate, command_attention;
extern const tool_command command_bench, command_bench_combine, command_bench_moe, command_bench_attention;
extern const tool_command command_bench_residual;

/* Names of the library's enums, NULL-terminated, in their order: for ARG_CHOICE and ARG_LIST. */
extern const char *const layout_names[];
extern const char *const order_names[];
extern const char *const schedule_names[];      /* the six of the library */
extern const char *const schedule_auto_names[]; /* and "auto" */
extern const char *const float_dtype_names[];   /* f32, bf16, f16: the values of dt_dtype in that order */
enum { SCHEDULES = 6, SCHEDULE_AUTO = SCHEDULES };

/* Options that several commands share. */
#define OPTION_DTYPE OPT_CHOICE("dtype", "TYPE", "bf16", float_dtype_names, "element type")
#define OPTION_SEED OPT_INT("seed", "S", "0", 0, 9007199254740992.0, "the same seed gives the same data")
#define OPTION_JSON OPT_RESULTS("json", "write the results as JSON (-: standard output)")

#endif
