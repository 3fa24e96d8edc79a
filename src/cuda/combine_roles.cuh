/* The combine operator's roles, whichever kernel runs them: waiting for the peers' entry, consumers that put segments,
 * closing the epoch. Every wait is bounded; whoever gives up says so to its peers and publishes no arrival. Pairs of
 * the memory order are named at both ends. */
#ifndef DT_CUDA_COMBINE_ROLES_CUH
#define DT_CUDA_COMBINE_ROLES_CUH

#include "cuda/combine_device.cuh"
#include "cuda/combine_put.cuh"

/* Until `peer` has put `epoch` into a word of its slot. Acquire: pairs with dt_release_sys of the peer. */
DT_DEVICE void dt_combine_await(const dt_combine_params &p, int32_t peer, const uint32_t *word, uint32_t epoch,
                                uint32_t error) {
  const uint32_t start = dt_time_us();
  for (;;) {
    const bool gave_up = dt_acquire_sys(&p.slots[peer].failed) != 0; /* what it published before comes first */
    const uint32_t seen = dt_acquire_sys(word);
    if ((int32_t)(seen - epoch) >= 0) return;
    if (gave_up) return dt_combine_fail(p, DT_COMBINE_ERROR_PEER, peer, epoch, seen);
    if (dt_combine_failed(p)) return;
    if (dt_time_us() - start > p.timeout_us) return dt_combine_fail(p, error, peer, epoch, seen);
  }
}

/* Of this run. */
DT_DEVICE uint32_t dt_combine_epoch(const dt_combine_params &p) {
  return p.state->epoch + (uint32_t)p.opens;
}

/* Tells a peer that this rank's buffer is open for the rows of `epoch`. Release: what the stream did with the buffer
 * before is done, as are the caller's stores (its counts). */
DT_DEVICE void dt_combine_announce(const dt_combine_params &p, int32_t peer, uint32_t epoch) {
  if (peer >= p.ranks || peer == p.rank) return;
  if (dt_combine_failed(p)) return dt_release_sys(&p.peer_slot[peer]->failed, 1);
  dt_release_sys(&p.peer_slot[peer]->entered, epoch);
  if (p.fault == DT_COMBINE_FAULT_ARRIVED) dt_release_sys(&p.peer_slot[peer]->arrived, epoch);
}

/* Thread `peer` waits until that peer's buffer is open for this epoch's rows; the others return at once. The caller's
 * barrier passes it on. */
DT_DEVICE void dt_combine_await_entry(const dt_combine_params &p, int32_t peer) {
  if (peer < p.ranks && peer != p.rank)
    dt_combine_await(p, peer, &p.slots[peer].entered, dt_combine_epoch(p), DT_COMBINE_ERROR_ENTRY);
}

/* Publishes this rank's rows, waits for the others'. Whole warp, after one of its threads has acquired whatever this
 * rank stored and a barrier has passed that on. */
DT_DEVICE void dt_combine_close(const dt_combine_params &p) {
  const int32_t peer = (int32_t)(threadIdx.x % 32);
  const uint32_t epoch = dt_combine_epoch(p);
  if (peer == 0 && *p.gemm_error != 0) dt_combine_fail(p, DT_COMBINE_ERROR_GEMM, -1, 0, *p.gemm_error);
  __syncwarp();
  if (peer < p.ranks && peer != p.rank) {
    if (dt_combine_failed(p)) {
      dt_release_sys(&p.peer_slot[peer]->failed, 1);
    } else {
      dt_release_sys(&p.peer_slot[peer]->arrived, epoch);
      dt_combine_await(p, peer, &p.slots[peer].arrived, epoch, DT_COMBINE_ERROR_ARRIVAL);
    }
  }
  __syncwarp();
  if (peer == 0) {
    p.state->done = 0; /* a run that opens its own epoch finds it so */
    if (p.opens) p.state->epoch = epoch;
  }
}

/* Until all tiles of the chunk's bands are stored. One thread. Acquire: pairs with the GEMM's release of each tile. */
DT_DEVICE void dt_chunk_await(const dt_combine_params &p, const dt_combine_chunk &chunk) {
  const uint32_t start = dt_time_us();
  for (int32_t band = chunk.first_band; band < chunk.first_band + chunk.bands; band++) {
    const uint32_t target = (uint32_t)p.tables.band_rows[band] * p.band_parts;
    const uint32_t *counter = p.ready + p.tables.band_slot[band];
    for (;;) {
      const uint32_t seen = dt_acquire_gpu(counter);
      if (seen >= target || dt_combine_failed(p)) break;
      if (dt_time_us() - start > p.timeout_us) return dt_combine_fail(p, DT_COMBINE_ERROR_READY, band, target, seen);
    }
  }
}

/* Whether they are already. */
DT_DEVICE bool dt_chunk_ready(const dt_combine_params &p, const dt_combine_chunk &chunk) {
  for (int32_t band = chunk.first_band; band < chunk.first_band + chunk.bands; band++)
    if (dt_acquire_gpu(p.ready + p.tables.band_slot[band]) < (uint32_t)p.tables.band_rows[band] * p.band_parts)
      return false;
  return true;
}

/* For dt_put_chunks. */
DT_DEVICE bool dt_chunks_failed(const dt_combine_params &p) {
  return dt_combine_failed(p);
}
DT_DEVICE dt_combine_chunk dt_chunk_at(const dt_combine_params &p, int32_t i) {
  return p.tables.chunks[i];
}
DT_DEVICE void dt_chunk_put(const dt_combine_params &p, dt_put &put, const dt_combine_chunk &chunk) {
  dt_put_rows(put, p.buffers[chunk.owner] + chunk.dst_row * p.row_bytes, p.staging + (int64_t)chunk.row * p.row_bytes,
              chunk.rows * p.row_bytes);
}

/* Consumer `index` of `consumers`: chunks go round them in order. The last to end closes the epoch. Whole block; one
 * thread does the work. shared: DT_PUT_SHARED_BYTES, 128-byte aligned. */
template <bool WaitReady>
DT_DEVICE void dt_combine_consume(const dt_combine_params &p, int32_t index, int32_t consumers, uint32_t shared) {
  __shared__ bool last;
  dt_combine_await_entry(p, (int32_t)threadIdx.x);
  if (threadIdx.x == 0) dt_put_init(shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    const int32_t chunks = p.tables.sizes->chunks;
    dt_put put = {shared, 0, 0, p.timeout_us, false};
    dt_fence_async_global(); /* what the kernels before wrote is read through the asynchronous proxy */
    dt_put_chunks<WaitReady>(put, p, index, consumers, chunks);
    dt_bulk_wait_all();
    if (put.expired) dt_combine_fail(p, DT_COMBINE_ERROR_COPY, index, put.loaded, put.sent);
    /* This block's stores to all peers, before the block that closes sees the count. */
    dt_fence_sys();
    last = dt_add_acq_rel(&p.state->done, 1) == (uint32_t)consumers - 1;
  }
  __syncthreads();
  if (last && threadIdx.x < 32) dt_combine_close(p);
}

#endif
