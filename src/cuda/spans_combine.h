/* The combine's direct mode, with stamps: what its instance of the engine is launched with. */
#ifndef DT_CUDA_SPANS_COMBINE_H
#define DT_CUDA_SPANS_COMBINE_H

#include "cuda/spans.h"
#include "cuda/tile_combine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_stamped_combine {
  dt_tile_combine combine; /* first, where the engine looks for it */
  dt_stamps stamps;
} dt_stamped_combine;

cudaError_t dt_stamped_combine_launch(const dt_stamped_combine *combine, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
