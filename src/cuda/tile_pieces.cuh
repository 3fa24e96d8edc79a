/* Stores of slabs in which rows of two owners may meet (tile_split.h). Whole warps. */
#ifndef DT_CUDA_TILE_PIECES_CUH
#define DT_CUDA_TILE_PIECES_CUH

#include "cuda/pipeline.cuh"
#include "cuda/tile_split.h"

/* The pieces (tile_split.h) of a slab of 16 rows, from what dt_row_target said of each. */
DT_DEVICE uint64_t dt_slab_pieces(uint64_t target, int32_t rows) {
  const int32_t lane = (int32_t)(threadIdx.x % 32), last = min(rows, 16);
  const uint64_t first = __shfl_sync(0xffffffffu, target, 0);
  const uint32_t others = __ballot_sync(0xffffffffu, lane < last && target >> 32 != first >> 32);
  const int32_t meet = others ? __ffs((int32_t)others) - 1 : last;
  const uint64_t second = __shfl_sync(0xffffffffu, target, meet & 31);
  if (lane == 0) return dt_piece(first, 0, 0, meet, DT_SPLIT_SLAB);
  return lane == 1 && meet < last ? dt_piece(second, meet, 4 * meet, last - meet, DT_SPLIT_SLAB) : 0;
}

/* 48 rows of a turned tile into a slab that two owners' rows may share (tile_split.h). */
template <int Chunk> DT_DEVICE void dt_fill_split(const uint32_t (&packed)[64], uint64_t piece, uint32_t slabs) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  const uint32_t second = __shfl_sync(0xffffffffu, (uint32_t)(piece >> 32), 1);
  const int32_t begin = (int32_t)second < 0 ? dt_piece_begin((uint64_t)second << 32) : (int32_t)DT_SPLIT_TURNED_SLAB;
  const uint32_t to = slabs + Chunk % 2 * DT_SLAB_BYTES + lane / 8 % 2 * 16;
#pragma unroll
  for (int32_t j = 0; j < 3; j++) {
    const uint32_t *p = packed + 12 * Chunk + 4 * j;
    dt_store_transposed(to + 32 * (uint32_t)dt_turned_place(16 * j + lane / 16 * 8 + lane % 8, begin), p[0], p[1], p[2],
                        p[3]);
  }
}
/* Sends this lane's piece of a slab out. */
DT_DEVICE void dt_send_piece(const dt_tile_gemm &gemm, uint64_t piece, int32_t column, uint32_t slab) {
  if ((int64_t)piece >= 0) return;
  dt_tensor_store_3d(&gemm.owners[dt_piece_view(piece) & (DT_TILE_OWNERS - 1)], column, dt_piece_inside(piece),
                     (int32_t)piece, slab + 32 * (uint32_t)dt_piece_at(piece));
}

#endif
