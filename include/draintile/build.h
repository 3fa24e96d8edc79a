/* What this build of the library is made of, and what this machine allows it. */
#ifndef DRAINTILE_BUILD_H
#define DRAINTILE_BUILD_H

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct dt_build {
  const char *compiler;  /* "gcc 12.2.0" */
  const char *blas;      /* "OpenBLAS 0.3.21 ..." */
  const char *blas_core; /* the kernels that OpenBLAS chose for this processor: "SkylakeX" */
  int cuda;              /* 1: the CUDA parts are built */
} dt_build;

/* Static strings. */
void dt_build_info(dt_build *build);

/* Processors that this process may run on (its affinity mask), >= 1. */
int dt_build_processors(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
