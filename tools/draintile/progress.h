/* A bar on stderr, when that is a terminal and the work takes longer than a moment. */
#ifndef DRAINTILE_TOOL_PROGRESS_H
#define DRAINTILE_TOOL_PROGRESS_H

typedef struct tool_progress {
  const char *what;
  double total, done, started_s, shown_s;
  int terminal;
} tool_progress;

void progress_start(tool_progress *progress, const char *what, double total);
/* `done` of the total in all. */
void progress_reach(tool_progress *progress, double done);
void progress_add(tool_progress *progress, double amount);
/* Clears the line. */
void progress_end(tool_progress *progress);

#endif
