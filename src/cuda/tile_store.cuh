/* The tile engine's deferred stores: a finished tile leaves in steps, during the next tile's main loop
 * (docs/engine.md). */
#ifndef DT_CUDA_TILE_STORE_CUH
#define DT_CUDA_TILE_STORE_CUH

#include "cuda/tile_slab.cuh"

/* A tile's stores in five steps: each sends out the slab that the step before filled, then fills the other one, so that
 * none waits for its own writes to shared memory. Every warp has two slabs of its own; warps never meet here. */
template <int Stores>
DT_DEVICE void dt_store_step(const dt_tile_gemm &gemm, dt_pending &pending, uint32_t shared, uint32_t slabs) {
  const uint32_t lane = threadIdx.x % 32, step = pending.step;
  const bool turned = Stores >= DT_STORES_TURNED && dt_is_turned<Stores>(pending);
  dt_stamp_send(shared, step == 1u);
  if (step > 0) {
    const uint32_t chunk = step - 1, slab = slabs + chunk % 2 * DT_SLAB_BYTES;
    if constexpr (Stores == DT_STORES_SPLIT) {
      dt_fence_async_shared();
      __syncwarp();
      if (lane < 2) {
        dt_send_piece(gemm, pending.to, pending.column & ~1, slab);
        dt_bulk_commit();
        dt_bulk_wait_read<1>(); /* the other slab has been read */
      }
      if (turned)
        pending.to = __shfl_down_sync(0xffffffffu, pending.to, 2); /* the next slab's pieces */
      else
        pending.column += 64;
    } else if (Stores != DT_STORES_ANY || (int64_t)pending.to < 0) {
      dt_fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        if (turned)
          dt_send_turned(gemm, pending, chunk, slab);
        else
          dt_send_slab(&gemm.owners[dt_slab_owner(pending)], pending, chunk, slab);
        dt_bulk_commit();
        dt_bulk_wait_read<1>(); /* the other slab has been read */
      }
    } else {
      if (gemm.tensor_stores && lane == 0) dt_bulk_wait_read<0>(); /* slabs before it may have been the engine's */
      __syncwarp();
      dt_store_rows(gemm, pending, chunk, slab);
    }
    __syncwarp();
  }
  if (turned && Stores == DT_STORES_SPLIT) {
    switch (step) {
    case 0:
      dt_fill_split<0>(pending.packed, pending.to, slabs);
      break;
    case 1:
      dt_fill_split<1>(pending.packed, pending.to, slabs);
      break;
    case 2:
      dt_fill_split<2>(pending.packed, pending.to, slabs);
      break;
    case 3:
      dt_fill_split<3>(pending.packed, pending.to, slabs);
      break;
    }
  } else if (turned) {
    switch (step) {
    case 0:
      dt_fill_turned<0>(pending.packed, slabs);
      break;
    case 1:
      dt_fill_turned<1>(pending.packed, slabs);
      break;
    case 2:
      dt_fill_turned<2>(pending.packed, slabs);
      break;
    case 3:
      dt_fill_turned<3>(pending.packed, slabs);
      break;
    }
  } else {
    switch (step) {
    case 0:
      dt_fill_slab<0, 2>(pending.packed, slabs);
      break;
    case 1:
      dt_fill_slab<1, 2>(pending.packed, slabs);
      break;
    case 2:
      dt_fill_slab<2, 2>(pending.packed, slabs);
      break;
    case 3:
      dt_fill_slab<3, 2>(pending.packed, slabs);
      break;
    }
  }
  /* A narrow tile has two slabs' columns: what is put into the next slab stays there. A turned one takes all steps,
   * also where it has no rows for the last slab: its third slab must have been read before the next tile fills it. */
  pending.step = step == 2 && (pending.column & 1) ? DT_STORE_STEPS : step + 1;
  dt_stamp_sent(shared, pending.step == DT_STORE_STEPS);
}

/* The same of a layer, whose warps have one slab each, because rows on their way take the rest of the room
 * (layer_carry.cuh): a step fills it or sends it out. L1 has two slabs' columns and fills a quarter of one a step,
 * since the activation takes time, in which this warp feeds no tensor core: its steps 4 and 9 send, of L2 every second.
 */
DT_DEVICE void dt_store_step_layer(const dt_tile_layer &layer, dt_pending &pending, uint32_t shared, uint32_t slab) {
  const uint32_t lane = threadIdx.x % 32, step = pending.step;
  const bool act = pending.column & 1, sends = act ? step % 5 == 4 : step % 2 == 1;
  dt_stamp_send(shared, step == (act ? 4u : 1u));
  if (sends) {
    const uint32_t chunk = act ? step / 5 : step / 2;
    if ((int64_t)pending.to < 0) {
      dt_fence_async_shared();
      __syncwarp();
      if (lane == 0) {
        dt_send_slab(act ? &layer.act : &layer.gemm.owners[dt_slab_owner(pending)], pending, chunk, slab);
        dt_bulk_commit();
      }
    } else {
      __syncwarp();
      dt_store_rows(layer.gemm, pending, chunk, slab);
      __syncwarp();
    }
  } else {
    if (act ? step == 5 : step > 0) {
      if (lane == 0) dt_bulk_wait_read<0>(); /* the slab has been read */
      __syncwarp();
    }
    if (act) {
      switch (step) {
      case 0:
        dt_fill_act<0>(layer, pending, slab);
        break;
      case 1:
        dt_fill_act<1>(layer, pending, slab);
        break;
      case 2:
        dt_fill_act<2>(layer, pending, slab);
        break;
      case 3:
        dt_fill_act<3>(layer, pending, slab);
        break;
      case 5:
        dt_fill_act<4>(layer, pending, slab);
        break;
      case 6:
        dt_fill_act<5>(layer, pending, slab);
        break;
      case 7:
        dt_fill_act<6>(layer, pending, slab);
        break;
      case 8:
        dt_fill_act<7>(layer, pending, slab);
        break;
      }
    } else {
      switch (step) {
      case 0:
        dt_fill_slab<0, 1>(pending.packed, slab);
        break;
      case 2:
        dt_fill_slab<1, 1>(pending.packed, slab);
        break;
      case 4:
        dt_fill_slab<2, 1>(pending.packed, slab);
        break;
      case 6:
        dt_fill_slab<3, 1>(pending.packed, slab);
        break;
      }
    }
  }
  pending.step = !act && step + 1 == DT_STORE_STEPS_L2 ? DT_STORE_STEPS_L1 : step + 1;
  dt_stamp_sent(shared, pending.step == DT_STORE_STEPS_L1);
}

template <bool Layer, int Stores>
DT_DEVICE void dt_store_next(const dt_tile_gemm &gemm, dt_pending &pending, uint32_t shared, uint32_t slabs) {
  if constexpr (Layer)
    dt_store_step_layer(dt_layer_of(gemm), pending, shared, slabs);
  else
    dt_store_step<Stores>(gemm, pending, shared, slabs);
}

#endif
