/* {"counts": [[...W*E...] x W]}: slots of each source rank for each global expert. */
#ifndef DRAINTILE_TOOL_COUNTS_FILE_H
#define DRAINTILE_TOOL_COUNTS_FILE_H

#include <stdint.h>

typedef struct counts_matrix {
  int32_t ranks, experts;
  int32_t *values; /* [ranks][experts], freed by the caller */
} counts_matrix;

/* Returns an exit code, having said what is wrong. */
int counts_read(const char *path, counts_matrix *counts);

#endif
