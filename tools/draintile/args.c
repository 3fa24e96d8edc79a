#include "args.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <draintile/units.h>

#include "log.h"

const char arg_required[] = "";

enum { NAMES_MAX = 64 };

static size_t find_option(const tool_args *args, const char *name) {
  for (size_t i = 0; i < args->command->option_count; i++)
    if (strcmp(args->command->options[i].name, name) == 0) return i;
  return SIZE_MAX;
}

static const arg_value *value_of(const tool_args *args, const char *name) {
  size_t i = find_option(args, name);
  assert(i != SIZE_MAX);
  return &args->values[i];
}

bool args_set(const tool_args *args, const char *name) {
  return value_of(args, name)->set;
}

bool args_given(const tool_args *args, const char *name) {
  return value_of(args, name)->given;
}

int64_t args_int(const tool_args *args, const char *name) {
  return value_of(args, name)->integer;
}

double args_number(const tool_args *args, const char *name) {
  return value_of(args, name)->number;
}

const char *args_text(const tool_args *args, const char *name) {
  return value_of(args, name)->text;
}

int args_choice(const tool_args *args, const char *name) {
  const arg_value *value = value_of(args, name);
  return value->list_count ? value->list[0] : -1;
}

const arg_value *args_list(const tool_args *args, const char *name) {
  return value_of(args, name);
}

static int bad_value(const arg_option *option, const char *text, const char *allowed) {
  return log_fail(TOOL_USAGE, "--%s: \"%s\"; allowed: %s", option->name, text, allowed);
}

static int check_range(const arg_option *option, const char *text, double number) {
  if (option->low == option->high || (number >= option->low && number <= option->high)) return TOOL_OK;
  char allowed[128];
  if (isinf(option->high))
    snprintf(allowed, sizeof(allowed), "at least %.15g", option->low);
  else
    snprintf(allowed, sizeof(allowed), "%.15g to %.15g", option->low, option->high);
  return bad_value(option, text, allowed);
}

static int parse_int(const arg_option *option, const char *text, arg_value *value) {
  char *end;
  errno = 0;
  long long integer = strtoll(text, &end, 10);
  if (end == text || *end || errno) return bad_value(option, text, "an integer");
  value->integer = integer;
  value->number = (double)integer;
  return check_range(option, text, value->number);
}

static int parse_ints(const arg_option *option, const char *text, arg_value *value) {
  value->list_count = 0;
  for (const char *at = text;; at++) {
    char *end;
    errno = 0;
    const long integer = strtol(at, &end, 10);
    if (end == at || (*end && *end != ',') || errno || integer < -INT32_MAX || integer > INT32_MAX)
      return bad_value(option, text, "integers with commas between them");
    int code = check_range(option, text, (double)integer);
    if (code) return code;
    if (value->list_count == ARGS_VALUES_MAX) return bad_value(option, text, "up to 16 values");
    value->list[value->list_count++] = (int)integer;
    at = end;
    if (!*at) return TOOL_OK;
  }
}

static int parse_number(const arg_option *option, const char *text, arg_value *value) {
  char name[64];
  snprintf(name, sizeof(name), "--%s", option->name);
  dt_status status = DT_OK;
  if (option->kind == ARG_SIZE) {
    status = dt_parse_bytes(name, text, &value->number);
  } else if (option->kind == ARG_TIME) {
    status = dt_parse_seconds(name, text, &value->number);
  } else if (option->kind == ARG_RATE) {
    status = dt_parse_bytes_per_s(name, text, &value->number);
  } else {
    char *end;
    value->number = strtod(text, &end);
    if (end == text || *end || !isfinite(value->number)) return bad_value(option, text, "a number");
  }
  if (status) return log_status(status, NULL);
  return check_range(option, text, value->number);
}

static int choice_of(const arg_option *option, const char *text, size_t length) {
  for (int i = 0; option->choices[i]; i++)
    if (strlen(option->choices[i]) == length && strncmp(option->choices[i], text, length) == 0) return i;
  return -1;
}

static int bad_choice(const arg_option *option, const char *text) {
  char allowed[512];
  int used = 0;
  for (size_t i = 0; option->choices[i] && used < (int)sizeof(allowed); i++)
    used += snprintf(allowed + used, sizeof(allowed) - (size_t)used, "%s%s", i ? ", " : "", option->choices[i]);
  if (option->kind == ARG_LIST && used < (int)sizeof(allowed))
    snprintf(allowed + used, sizeof(allowed) - (size_t)used, ", all");
  return bad_value(option, text, allowed);
}

static void add_choice(arg_value *value, int choice) {
  for (int i = 0; i < value->list_count; i++)
    if (value->list[i] == choice) return;
  if (value->list_count < ARGS_VALUES_MAX) value->list[value->list_count++] = choice;
}

static int parse_choices(const arg_option *option, const char *text, arg_value *value) {
  value->list_count = 0;
  for (const char *at = text;; at++) {
    size_t length = option->kind == ARG_LIST ? strcspn(at, ",") : strlen(at);
    int choice = choice_of(option, at, length);
    if (choice >= 0)
      add_choice(value, choice);
    else if (option->kind == ARG_LIST && length == 3 && strncmp(at, "all", 3) == 0)
      for (int i = 0; option->choices[i] && strcmp(option->choices[i], "auto") != 0; i++) add_choice(value, i);
    else
      return bad_choice(option, text);
    at += length;
    if (!*at) return TOOL_OK;
  }
}

static int parse_value(const arg_option *option, const char *text, arg_value *value) {
  value->set = true;
  value->text = text;
  switch (option->kind) {
  case ARG_FLAG:
    return TOOL_OK;
  case ARG_INT:
    return parse_int(option, text, value);
  case ARG_INTS:
    return parse_ints(option, text, value);
  case ARG_CHOICE:
  case ARG_LIST:
    return parse_choices(option, text, value);
  case ARG_TEXT:
  case ARG_OUTPUT:
  case ARG_RESULTS:
    return *text ? TOOL_OK : bad_value(option, text, "a path");
  default:
    return parse_number(option, text, value);
  }
}

static int unknown_option(const tool_args *args, const char *name, size_t length) {
  char given[64];
  snprintf(given, sizeof(given), "%.*s", (int)(length < 60 ? length : 60), name);
  const char *names[NAMES_MAX];
  size_t count = 0;
  for (size_t i = 0; i < args->command->option_count && count < NAMES_MAX; i++)
    names[count++] = args->command->options[i].name;
  const char *nearest = args_nearest(given, names, count);
  if (nearest) return log_fail(TOOL_USAGE, "--%s: no such option; did you mean --%s?", given, nearest);
  return log_fail(TOOL_USAGE, "--%s: no such option; %s --help lists them", given, args->title);
}

/* One "--name value", "--name=value" or "--flag" at argv[*at]. */
static int parse_option(tool_args *args, int argc, char **argv, int *at) {
  const char *name = argv[*at] + 2, *text = strchr(name, '=');
  size_t length = text ? (size_t)(text - name) : strlen(name);
  for (size_t i = 0; i < args->command->option_count; i++) {
    const arg_option *option = &args->command->options[i];
    if (strlen(option->name) != length || strncmp(option->name, name, length) != 0) continue;
    if (option->kind == ARG_FLAG) {
      if (text) return log_fail(TOOL_USAGE, "--%s: takes no value", option->name);
      text = "";
    } else if (text) {
      text++;
    } else if (*at + 1 < argc) {
      text = argv[++*at];
    } else {
      return log_fail(TOOL_USAGE, "--%s: needs a value", option->name);
    }
    args->values[i].given = true;
    return parse_value(option, text, &args->values[i]);
  }
  return unknown_option(args, name, length);
}

static int parse(tool_args *args, int argc, char **argv) {
  const tool_command *command = args->command;
  for (size_t i = 0; i < command->option_count; i++) {
    const char *text = command->options[i].default_text;
    int code = text && text != arg_required ? parse_value(&command->options[i], text, &args->values[i]) : TOOL_OK;
    if (code) return code;
  }
  for (int at = 0; at < argc; at++) {
    if (strncmp(argv[at], "--", 2) == 0 && argv[at][2]) {
      int code = parse_option(args, argc, argv, &at);
      if (code) return code;
    } else if (argv[at][0] == '-' && argv[at][1]) {
      return log_fail(TOOL_USAGE, "%s: options are long; %s --help lists them", argv[at], args->title);
    } else if (!command->operand || args->operand) {
      return log_fail(TOOL_USAGE, "'%s': %s", argv[at],
                      command->operand ? "one operand is allowed" : "no operand is allowed here");
    } else {
      args->operand = argv[at];
    }
  }
  for (size_t i = 0; i < command->option_count; i++)
    if (command->options[i].default_text == arg_required && !args->values[i].set)
      return log_fail(TOOL_USAGE, "--%s: required", command->options[i].name);
  if (command->operand && !args->operand) return log_fail(TOOL_USAGE, "%s: required", command->operand);
  for (size_t i = 0; i < command->option_count; i++)
    if (args->values[i].set && command->options[i].kind >= ARG_OUTPUT) {
      int code = args_check_output(&command->options[i], args->values[i].text);
      if (code) return code;
    }
  return args_check_files(args);
}

static const tool_command *find_command(const tool_command *const *commands, size_t count, const char *name,
                                        const char *title) {
  const char *names[NAMES_MAX];
  for (size_t i = 0; i < count; i++) {
    if (strcmp(commands[i]->name, name) == 0) return commands[i];
    if (i < NAMES_MAX) names[i] = commands[i]->name;
  }
  const char *nearest = args_nearest(name, names, count < NAMES_MAX ? count : NAMES_MAX);
  if (nearest)
    log_fail(TOOL_USAGE, "'%s': no such command; did you mean '%s'?", name, nearest);
  else
    log_fail(TOOL_USAGE, "'%s': no such command; %s --help lists them", name, title);
  return NULL;
}

static bool wants_help(int argc, char **argv) {
  for (int i = 0; i < argc; i++)
    if (strcmp(argv[i], "--help") == 0) return true;
  return false;
}

int args_dispatch(const tool_command *const *commands, size_t count, int argc, char **argv) {
  char title[128] = "draintile";
  log_set_title(title);
  int at = 1;
  const tool_command *command = NULL;
  do {
    if (at >= argc) return log_fail(TOOL_USAGE, "which command? %s --help lists them", title);
    command = find_command(commands, count, argv[at], title);
    if (!command) return TOOL_USAGE;
    size_t used = strlen(title);
    snprintf(title + used, sizeof(title) - used, " %s", argv[at++]);
    if (command->subcommands && at < argc && strcmp(argv[at], "--help") == 0) break;
    commands = command->subcommands;
    count = command->subcommand_count;
  } while (commands);
  if (wants_help(argc - at, argv + at)) {
    args_print_help(stdout, title, command);
    return TOOL_OK;
  }
  tool_args args = {.command = command, .title = title};
  args.values = calloc(command->option_count + 1, sizeof(*args.values));
  if (!args.values) return log_out_of_memory();
  int code = parse(&args, argc - at, argv + at);
  if (code == TOOL_OK) code = command->run(&args);
  free(args.values);
  return code;
}
