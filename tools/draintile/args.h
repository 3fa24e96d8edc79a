/* Command lines as data: every subcommand is one row of a table, its options another table. One parser reads, checks
 * and explains all of them. */
#ifndef DRAINTILE_TOOL_ARGS_H
#define DRAINTILE_TOOL_ARGS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "log.h"

typedef enum arg_kind {
  ARG_FLAG,
  ARG_INT,
  ARG_INTS, /* comma-separated integers */
  ARG_NUMBER,
  ARG_SIZE,   /* bytes: 4.25MiB, 1e6 */
  ARG_TIME,   /* seconds: 9us */
  ARG_RATE,   /* bytes per second: 3.7e+11B/s */
  ARG_CHOICE, /* one of choices */
  ARG_LIST,   /* comma-separated choices; "all": those before "auto" */
  ARG_TEXT,   /* a path, taken as it is */
  ARG_OUTPUT, /* a file to write: refused before anything runs where it cannot be */
  ARG_RESULTS /* likewise, or "-": standard output */
} arg_kind;

typedef struct arg_option {
  const char *name; /* without the dashes */
  arg_kind kind;
  const char *value_name;   /* what --help calls the value; NULL for flags and choices */
  const char *default_text; /* parsed like a given value; NULL: the option is unset; arg_required: must be given */
  const char *help;
  double low, high;           /* allowed numbers, both included; low == high: any */
  const char *const *choices; /* NULL-terminated */
} arg_option;

extern const char arg_required[];

/* Rows of an option table: name, value's name, default, ..., help. */
#define OPT_FLAG(n, h)                                                                                                 \
  { .kind = ARG_FLAG, .name = n, .help = h }
#define OPT_INT(n, v, d, lo, hi, h)                                                                                    \
  { .kind = ARG_INT, .name = n, .value_name = v, .default_text = d, .low = lo, .high = hi, .help = h }
#define OPT_INTS(n, v, d, lo, hi, h)                                                                                   \
  { .kind = ARG_INTS, .name = n, .value_name = v, .default_text = d, .low = lo, .high = hi, .help = h }
#define OPT_NUMBER(n, v, d, lo, hi, h)                                                                                 \
  { .kind = ARG_NUMBER, .name = n, .value_name = v, .default_text = d, .low = lo, .high = hi, .help = h }
#define OPT_SIZE(n, d, h)                                                                                              \
  { .kind = ARG_SIZE, .name = n, .value_name = "SIZE", .default_text = d, .help = h }
#define OPT_TIME(n, d, h)                                                                                              \
  { .kind = ARG_TIME, .name = n, .value_name = "TIME", .default_text = d, .help = h }
#define OPT_RATE(n, d, h)                                                                                              \
  { .kind = ARG_RATE, .name = n, .value_name = "RATE", .default_text = d, .help = h }
#define OPT_CHOICE(n, v, d, names, h)                                                                                  \
  { .kind = ARG_CHOICE, .name = n, .value_name = v, .default_text = d, .choices = names, .help = h }
#define OPT_LIST(n, v, d, names, h)                                                                                    \
  { .kind = ARG_LIST, .name = n, .value_name = v, .default_text = d, .choices = names, .help = h }
#define OPT_TEXT(n, v, d, h)                                                                                           \
  { .kind = ARG_TEXT, .name = n, .value_name = v, .default_text = d, .help = h }
#define OPT_RESULTS(n, h)                                                                                              \
  { .kind = ARG_RESULTS, .name = n, .value_name = "FILE", .help = h }
#define OPT_OUTPUT(n, h)                                                                                               \
  { .kind = ARG_OUTPUT, .name = n, .value_name = "FILE", .help = h }

typedef struct tool_args tool_args;

typedef struct tool_command {
  const char *name, *summary;
  const arg_option *options;
  size_t option_count;
  const char *operand;      /* name of the one operand, NULL: none */
  const char *operand_help; /* one line */
  int (*run)(const tool_args *args);
  const struct tool_command *const *subcommands; /* instead of run */
  size_t subcommand_count;
  const char *notes; /* further lines of --help, NULL: none */
} tool_command;

enum { ARGS_VALUES_MAX = 16 };

typedef struct arg_value {
  bool set; /* given, or by default */
  bool given;
  int64_t integer;
  double number;
  const char *text;
  int list[ARGS_VALUES_MAX]; /* indices into choices, or the integers */
  int list_count;
} arg_value;

struct tool_args {
  const tool_command *command;
  const char *title; /* "draintile synth tokens" */
  arg_value *values; /* one an option */
  const char *operand;
};

/* Finds the subcommand in argv[1..], parses its options and runs it. Returns the exit code. */
int args_dispatch(const tool_command *const *commands, size_t count, int argc, char **argv);

/* Values by option name; the name must be in the command's table. */
bool args_set(const tool_args *args, const char *name); /* flags: given */
bool args_given(const tool_args *args, const char *name);
int64_t args_int(const tool_args *args, const char *name);
double args_number(const tool_args *args, const char *name); /* numbers, sizes, times, rates */
const char *args_text(const tool_args *args, const char *name);
int args_choice(const tool_args *args, const char *name);
const arg_value *args_list(const tool_args *args, const char *name);

/* Where the last name of a path leads as a link, also to what is not there yet. */
void args_follow(const char *path, char place[PATH_MAX]);
/* A file that is mounted by itself, as containers do: it cannot be replaced, only written. */
bool args_is_mount(const char *path);
/* A new file (or folder) beside `path`, under a name that only this process writes to: PATH.PID.N.tmp, N from 0, past
 * those that a killed process of the same number left. make returns a descriptor (or 0), or -1 with errno; what it
 * returned for the first name that was free. */
int args_temporary(const char *path, int (*make)(const char *name), char *name, size_t size);
/* For that: an empty file. */
int args_new_file(const char *name);
/* Can the file of an ARG_OUTPUT or ARG_RESULTS be written? A line and an exit code where not. */
int args_check_output(const arg_option *option, const char *path);
/* What is written, --output too, must be different files, and none what another option reads: that file, or one of the
 * model in that folder. */
int args_check_files(const tool_args *args);
void args_print_commands(FILE *out, const tool_command *const *commands, size_t count);
void args_print_help(FILE *out, const char *title, const tool_command *command);
/* The name nearest to `text`, or NULL when none is near. */
const char *args_nearest(const char *text, const char *const *names, size_t count);

#define ARGS_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
