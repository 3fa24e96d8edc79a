/* The parameters of the tile engine when it runs a combine: tiles whose rows wait for the peers' entry, or tiles and
 * consumers as roles of one launch. */
#ifndef DT_CUDA_TILE_COMBINE_H
#define DT_CUDA_TILE_COMBINE_H

#include "cuda/combine_kernels.h"
#include "cuda/tile_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_tile_combine {
  dt_tile_gemm gemm; /* first, so that the engine sees it */
  dt_combine_params combine;
  int32_t tile_ctas; /* CTAs from this one on are consumers */
  int32_t gated;     /* 1: no tile is stored before every peer has entered */
  int32_t closes;    /* 1: the last cluster of tiles closes the epoch */
  int32_t keeps;     /* 1: and leaves the task table for the next run */
} dt_tile_combine;

/* The same where tasks may be turned: one or two ranks, whose rows of an expert are two owners', one after the other.
 */
enum { DT_SPLIT_VIEWS = DT_TILE_OWNERS - DT_TURNED_VIEWS };
typedef struct dt_tile_split {
  dt_tile_combine combine;           /* first, so that the engine sees it */
  CUtensorMap views[DT_SPLIT_VIEWS]; /* of A, as those at DT_TURNED_VIEWS */
} dt_tile_split;
cudaError_t dt_tile_split_launch(const dt_tile_split *split, cudaStream_t stream);

/* `consumers` (even, may be 0) CTAs beside those of the tiles. */
cudaError_t dt_tile_combine_launch(const dt_tile_combine *combine, int consumers, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
