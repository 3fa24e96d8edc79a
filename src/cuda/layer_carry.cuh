/* Pieces of the dispatch by one warp that idles beside the tiles: rows go through shared memory by the bulk copy
 * engine, a part at a time, some on their way in, one or two on their way out. So the warp issues two instructions for
 * 4 KB, where loads and stores would be 16 that take time from the tensor cores, and as many rows are under way as
 * there is room for, not as registers hold.
 *
 * `Rows` says where a piece's rows are, a lane a row: begin(piece) asks, found(asked) is the address, NULL if it is not
 * there yet, await(piece) waits for it (NULL: gave up). What is asked for is the next piece's, so that nobody waits for
 * the answers.
 */
#ifndef DT_CUDA_LAYER_CARRY_CUH
#define DT_CUDA_LAYER_CARRY_CUH

#include "cuda/layer_expand.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/spans.cuh"

#define DT_DEVICE_MEMBER __device__ __forceinline__

enum {
  DT_CARRY_PART_BYTES = DT_CONSUMER_WARPS * DT_SLAB_BYTES / DT_CARRY_PARTS,
  DT_CARRY_AHEAD = 2, /* on their way in at most, as many on their way out */
  DT_CARRY_BEHIND = 4 /* a piece is told of so many parts later, or when there are no more */
};

/* Of the first lane. done: rows, band and peer of a piece that is on its way out, from bit 0, 9 and 6; 0: none. */
typedef struct dt_carry {
  uint32_t shared;
  uint32_t loaded, sent, done, done_at; /* parts; done_at: sent behind its last */
} dt_carry;

DT_DEVICE uint32_t dt_carry_piece(const dt_layer_piece &piece) {
  return (uint32_t)piece.band << 9 | (uint32_t)piece.peer << 6 | (uint32_t)piece.rows;
}
DT_DEVICE void dt_carry_tell(const dt_tile_layer &layer, dt_carry &carry) {
  const uint32_t done = carry.done;
  carry.done = 0;
  dt_dispatch_done(layer, (int32_t)(done >> 6 & 7), (int32_t)(done >> 9), done & 63);
}

/* The oldest part that is on its way in goes out when it is there. */
DT_DEVICE void dt_carry_send(const dt_tile_layer &layer, dt_carry &carry) {
  const uint32_t part = carry.sent % DT_CARRY_PARTS, place_at = carry.shared + DT_SHARED_PLACES + 16 * part;
  const uint32_t barrier = carry.shared + DT_SHARED_PLACES + 16 * DT_CARRY_PARTS + 8 * part;
  dt_wait<true>(layer.gemm, carry.shared, barrier, carry.sent / DT_CARRY_PARTS & 1, DT_TILE_ERROR_COPY);
  const uint4 place = dt_load_shared(place_at);
  dt_bulk_store((void *)((uint64_t)place.y << 32 | place.x),
                carry.shared + DT_SHARED_CARRY + part * DT_CARRY_PART_BYTES, place.z);
  dt_bulk_commit();
  carry.sent++;
  if (carry.done != 0) {
    if (carry.sent - carry.done_at == DT_CARRY_BEHIND) {
      dt_bulk_wait<DT_CARRY_BEHIND>();
      dt_carry_tell(layer, carry);
    } else if (place.w != 0) {
      dt_bulk_wait<1>();
      dt_carry_tell(layer, carry);
    }
  }
  if (place.w != 0) carry.done = place.w, carry.done_at = carry.sent;
}
/* All that is on its way is there, and told of. */
DT_DEVICE void dt_carry_drain(const dt_tile_layer &layer, dt_carry &carry) {
  while (carry.sent != carry.loaded) dt_carry_send(layer, carry);
  dt_bulk_wait_all();
  if (carry.done != 0) dt_carry_tell(layer, carry);
}

/* A row, part by part; last: of its piece, which is `piece`. */
DT_DEVICE void dt_carry_row(const dt_tile_layer &layer, dt_carry &carry, uint8_t *to, const uint8_t *from, bool last,
                            uint32_t piece) {
  const uint32_t row_bytes = (uint32_t)layer.gemm.row_bytes;
#pragma unroll 1
  for (uint32_t at = 0; at < row_bytes; at += DT_CARRY_PART_BYTES) {
    if (carry.loaded - carry.sent == DT_CARRY_AHEAD) dt_carry_send(layer, carry);
    /* The room's last part has been read: so many groups have been committed since. */
    dt_bulk_wait_read<DT_CARRY_PARTS - DT_CARRY_AHEAD>();
    const uint32_t part = carry.loaded % DT_CARRY_PARTS, size = min(row_bytes - at, (uint32_t)DT_CARRY_PART_BYTES);
    const uint32_t barrier = carry.shared + DT_SHARED_PLACES + 16 * DT_CARRY_PARTS + 8 * part;
    const uint64_t place = (uint64_t)(to + at);
    dt_store_shared(carry.shared + DT_SHARED_PLACES + 16 * part,
                    make_uint4((uint32_t)place, (uint32_t)(place >> 32), size,
                               last && at + DT_CARRY_PART_BYTES >= row_bytes ? piece : 0));
    dt_barrier_expect(barrier, size);
    dt_bulk_load(carry.shared + DT_SHARED_CARRY + part * DT_CARRY_PART_BYTES, from + at, size, barrier);
    carry.loaded++;
  }
}

/* Pieces until there are no more, by a whole warp. */
template <class Rows> DT_DEVICE void dt_carry_pieces(const dt_tile_layer &layer, uint32_t shared, const Rows &rows) {
  const uint32_t lane = threadIdx.x % 32, pieces = layer.state->pieces;
  const int64_t row_bytes = layer.gemm.row_bytes;
  dt_carry carry = {shared, 0, 0, 0, 0};
  if (lane == 0) {
    for (uint32_t i = 0; i < DT_CARRY_PARTS; i++)
      dt_barrier_init(shared + DT_SHARED_PLACES + 16 * DT_CARRY_PARTS + 8 * i, 1);
    dt_barrier_init_fence();
  }
  uint32_t taken = 0;
  if (lane == 0) taken = atomicAdd(&layer.state->next_piece, 1u);
  taken = __shfl_sync(0xffffffffu, taken, 0);
  const uint8_t *mine = NULL;
  if (taken < pieces) mine = rows.found(rows.begin(layer.pieces[taken]));
  while (taken < pieces && !dt_layer_failed(layer)) {
    const dt_layer_piece *piece = layer.pieces + taken;
    const int32_t count = piece->rows;
    if (__any_sync(0xffffffffu, (int32_t)lane < count && mine == NULL)) {
      if (lane == 0) dt_carry_drain(layer, carry); /* others may wait for what was copied */
      __syncwarp();
      mine = rows.await(*piece);
      if (__any_sync(0xffffffffu, (int32_t)lane < count && mine == NULL)) break;
    }
    dt_fence_async_global(); /* the rows are read by the copy engine */
    __syncwarp();
    dt_stamp_piece(shared, taken, piece->band, count);
    uint8_t *to = layer.rows_of[piece->peer] + (int64_t)piece->to * row_bytes;
    const uint32_t told = dt_carry_piece(*piece);
    uint32_t next = 0, asked = 0;
    const uint8_t *found = NULL;
#pragma unroll 1
    for (int32_t i = 0; i < count; i++, to += row_bytes) {
      if (i == 0 && lane == 0) next = atomicAdd(&layer.state->next_piece, 1u);
      if (i == count / 4) {
        next = __shfl_sync(0xffffffffu, next, 0);
        if (next < pieces) asked = rows.begin(layer.pieces[next]);
      }
      if (i == count * 3 / 4 && next < pieces) found = rows.found(asked);
      const uint8_t *from = (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)mine, i);
      if (lane == 0) dt_carry_row(layer, carry, to, from, i + 1 == count, told);
      __syncwarp();
    }
    dt_stamp_end(shared);
    taken = next;
    mine = found;
  }
  if (lane == 0) dt_carry_drain(layer, carry);
}

#endif
