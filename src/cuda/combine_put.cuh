/* Rows from this device's memory to a peer's through shared memory, by the bulk copy engine: one thread keeps pieces on
 * their way in and others on their way out. */
#ifndef DT_CUDA_COMBINE_PUT_CUH
#define DT_CUDA_COMBINE_PUT_CUH

#include "cuda/ptx.cuh"
#include "cuda/words.cuh"

enum {
  DT_PUT_STAGES = 6,
  DT_PUT_AHEAD = 3, /* of the stages, on their way in at most; the others may be on their way out */
  DT_PUT_PIECE_BYTES = 32768,
  DT_PUT_BARRIERS = DT_PUT_STAGES * DT_PUT_PIECE_BYTES,
  DT_PUT_PLACES = DT_PUT_BARRIERS + 64, /* 16 bytes a stage: where its piece goes, and how many bytes */
  DT_PUT_SHARED_BYTES = DT_PUT_PLACES + 16 * DT_PUT_STAGES
};

typedef struct dt_put {
  uint32_t shared;
  uint32_t loaded, sent; /* pieces */
  uint32_t timeout_us;   /* of a piece's way in */
  bool expired;
} dt_put;

DT_DEVICE void dt_put_init(uint32_t shared) {
  for (uint32_t s = 0; s < DT_PUT_STAGES; s++) dt_barrier_init(shared + DT_PUT_BARRIERS + 8 * s, 1);
  dt_barrier_init_fence();
}

/* The oldest piece that is on its way in goes out as soon as it is there. */
DT_DEVICE void dt_put_send(dt_put &put) {
  const uint32_t stage = put.sent % DT_PUT_STAGES, start = dt_time_us();
  while (!dt_barrier_try(put.shared + DT_PUT_BARRIERS + 8 * stage, put.sent / DT_PUT_STAGES & 1) && !put.expired)
    put.expired = dt_time_us() - start > put.timeout_us;
  put.sent++;
  if (put.expired) return;
  const uint4 place = dt_load_shared(put.shared + DT_PUT_PLACES + 16 * stage);
  dt_bulk_store((void *)((uint64_t)place.y << 32 | place.x), put.shared + stage * DT_PUT_PIECE_BYTES, place.z);
  dt_bulk_commit();
}

DT_DEVICE void dt_put_drain(dt_put &put) {
  while (put.sent != put.loaded) dt_put_send(put);
}

/* bytes: a multiple of 16, as are the addresses. */
DT_DEVICE void dt_put_rows(dt_put &put, uint8_t *to, const uint8_t *from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += DT_PUT_PIECE_BYTES) {
    if (put.loaded - put.sent == DT_PUT_AHEAD) dt_put_send(put);
    /* The stage's last piece has been read: so many groups have been committed since. */
    dt_bulk_wait_read<DT_PUT_STAGES - DT_PUT_AHEAD>();
    const uint32_t stage = put.loaded % DT_PUT_STAGES, barrier = put.shared + DT_PUT_BARRIERS + 8 * stage;
    const uint32_t size = (uint32_t)min(bytes - at, (int64_t)DT_PUT_PIECE_BYTES);
    const uint64_t place = (uint64_t)(to + at);
    dt_store_shared(put.shared + DT_PUT_PLACES + 16 * stage,
                    make_uint4((uint32_t)place, (uint32_t)(place >> 32), size, 0));
    dt_barrier_expect(barrier, size);
    dt_bulk_load(put.shared + stage * DT_PUT_PIECE_BYTES, from + at, size, barrier);
    put.loaded++;
  }
}

/* Of a consumer: chunks index, index + step, ... before `count`, in order; with WaitReady each when its bands are
 * stored. One thread; returns when all it loaded is on its way out. `Owner` has overloads of what is called here: a
 * chunk, whether its bands are stored, the wait for them, its dt_put_rows, whether anybody failed. */
template <bool WaitReady, class Owner>
DT_DEVICE void dt_put_chunks(dt_put &put, const Owner &owner, int32_t index, int32_t step, int32_t count) {
  int32_t known_band = -1, known_bands = 0; /* waited for before */
  for (int32_t i = index; i < count && !put.expired && !dt_chunks_failed(owner); i += step) {
    const auto chunk = dt_chunk_at(owner, i);
    if (WaitReady && (chunk.first_band != known_band || chunk.bands != known_bands)) {
      known_band = chunk.first_band;
      known_bands = chunk.bands;
      if (!dt_chunk_ready(owner, chunk)) {
        dt_put_drain(put);
        dt_chunk_await(owner, chunk);
        if (dt_chunks_failed(owner)) break;
      }
      dt_fence_async_global();
    }
    dt_chunk_put(owner, put, chunk);
  }
  dt_put_drain(put);
}

#endif
