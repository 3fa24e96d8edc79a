#include "args.h"

#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 28, HELP_WIDTH = 100, NAME_MAX_BYTES = 48 };

static void print_wrapped(FILE *out, const char *text, int column) {
  int at = column;
  while (*text) {
    size_t word = strcspn(text, " ");
    if (at > column && at + 1 + (int)word > HELP_WIDTH) {
      fprintf(out, "\n%*s", column, "");
      at = column;
    }
    at += fprintf(out, "%s%.*s", at > column ? " " : "", (int)word, text);
    text += word;
    while (*text == ' ') text++;
  }
  fputc('\n', out);
}

static void print_entry(FILE *out, const char *left, const char *text) {
  int written = fprintf(out, "  %s", left);
  if (written >= HELP_COLUMN) {
    fputc('\n', out);
    written = 0;
  }
  fprintf(out, "%*s", HELP_COLUMN - written, "");
  print_wrapped(out, text, HELP_COLUMN);
}

static void print_option(FILE *out, const arg_option *option) {
  char left[512], text[1024];
  int used = snprintf(left, sizeof(left), "--%s", option->name);
  if (option->kind != ARG_FLAG && option->value_name)
    snprintf(left + used, sizeof(left) - (size_t)used, " %s", option->value_name);
  used = snprintf(text, sizeof(text), "%s", option->help);
  if (option->choices) {
    used += snprintf(text + used, sizeof(text) - (size_t)used, ": ");
    for (size_t i = 0; option->choices[i]; i++)
      used += snprintf(text + used, sizeof(text) - (size_t)used, "%s%s", i ? ", " : "", option->choices[i]);
  }
  if (option->default_text == arg_required)
    snprintf(text + used, sizeof(text) - (size_t)used, " (required)");
  else if (option->default_text)
    snprintf(text + used, sizeof(text) - (size_t)used, " (default %s)", option->default_text);
  print_entry(out, left, text);
}

void args_print_commands(FILE *out, const tool_command *const *commands, size_t count) {
  for (size_t i = 0; i < count; i++) print_entry(out, commands[i]->name, commands[i]->summary);
}

void args_print_help(FILE *out, const char *title, const tool_command *command) {
  if (command->subcommands) {
    fprintf(out, "Usage: %s WHAT [options]\n\n", title);
    print_wrapped(out, command->summary, 0);
    fprintf(out, "\nWHAT is one of:\n");
    args_print_commands(out, command->subcommands, command->subcommand_count);
    fprintf(out, "\n%s WHAT --help lists the options of each.\n", title);
    return;
  }
  fprintf(out, "Usage: %s [options]%s%s\n\n", title, command->operand ? " " : "",
          command->operand ? command->operand : "");
  print_wrapped(out, command->summary, 0);
  fprintf(out, "\nOptions:\n");
  if (command->operand) print_entry(out, command->operand, command->operand_help);
  for (size_t i = 0; i < command->option_count; i++) print_option(out, &command->options[i]);
  print_entry(out, "--help", "print this and exit");
  if (command->notes) fprintf(out, "\n%s\n", command->notes);
}

static size_t distance(const char *a, const char *b) {
  size_t length = strlen(b), row[NAME_MAX_BYTES + 1];
  if (length > NAME_MAX_BYTES) return SIZE_MAX;
  for (size_t j = 0; j <= length; j++) row[j] = j;
  for (size_t i = 0; a[i]; i++) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < length; j++) {
      size_t change = diagonal + (a[i] != b[j]), step = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
      diagonal = row[j + 1];
      row[j + 1] = change < step ? change : step;
    }
  }
  return row[length];
}

const char *args_nearest(const char *text, const char *const *names, size_t count) {
  const char *best = NULL;
  size_t best_distance = strlen(text) / 2 + 1;
  for (size_t i = 0; i < count; i++) {
    size_t d = distance(text, names[i]);
    if (d < best_distance) {
      best_distance = d;
      best = names[i];
    }
  }
  return best;
}
