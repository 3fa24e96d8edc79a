#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "clock.h"

enum { BAR_CELLS = 30 };
static const double quiet_s = 1.0, refresh_s = 0.1;

void progress_start(tool_progress *progress, const char *what, double total) {
  progress->what = what;
  progress->total = total;
  progress->done = 0;
  progress->started_s = now_s();
  progress->shown_s = 0;
  progress->terminal = isatty(STDERR_FILENO);
}

void progress_add(tool_progress *progress, double amount) {
  progress_reach(progress, progress->done + amount);
}

void progress_reach(tool_progress *progress, double done) {
  progress->done = done;
  if (!progress->terminal || progress->total <= 0) return;
  double now = now_s();
  if (now - progress->started_s < quiet_s || now - progress->shown_s < refresh_s) return;
  progress->shown_s = now;
  double share = progress->done / progress->total;
  if (share > 1) share = 1;
  int filled = (int)(share * BAR_CELLS);
  char bar[BAR_CELLS + 1];
  for (int i = 0; i < BAR_CELLS; i++) bar[i] = i < filled ? '#' : '.';
  bar[BAR_CELLS] = 0;
  double left_s = share > 0 ? (now - progress->started_s) * (1 - share) / share : 0;
  fprintf(stderr, "\r[%s] %3.0f %%  %.0f s left  %.40s\033[K", bar, 100 * share, left_s, progress->what);
  fflush(stderr);
}

void progress_end(tool_progress *progress) {
  if (progress->terminal && progress->shown_s > 0) fprintf(stderr, "\r\033[K");
  progress->shown_s = 0;
}
