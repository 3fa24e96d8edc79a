/* Pictures that gnuplot draws: into memory, and into files when all are there, so that each is whole or absent. */
#ifndef DRAINTILE_TOOL_PICTURES_H
#define DRAINTILE_TOOL_PICTURES_H

#include <stdio.h>

enum { PICTURES_MAX = 16 };

typedef struct pictures {
  FILE *script;                  /* gnuplot's input */
  int descriptors[PICTURES_MAX]; /* memory, which gnuplot inherits; -1: none */
  const char *names[PICTURES_MAX];
  int count; /* drawn */
} pictures;

/* Starts gnuplot. Returns an exit code; on success pictures_end follows. */
int pictures_begin(pictures *p);
/* The script's commands for one picture: draws `plots` (a plot command without "plot") as PNG and as SVG. name: of the
 * files, a literal. */
void pictures_draw(pictures *p, const char *name, const char *plots);
/* Waits for gnuplot and writes folder/NAME.png and .svg. Returns an exit code. */
int pictures_end(pictures *p, const char *folder);

#endif
