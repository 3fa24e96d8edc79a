/* The same for calls of the CUDA runtime. */
#ifndef DT_BENCH_CUDA_MUST_H
#define DT_BENCH_CUDA_MUST_H

#include <cuda_runtime_api.h>

#include "must.h"

static inline void cuda_must(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(3);
}

#endif
