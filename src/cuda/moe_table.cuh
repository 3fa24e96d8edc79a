/* What makes a layer's table on the device: of one kernel without dedup, of one with it (DT_MOE_DEDUPS). */
#ifndef DT_CUDA_MOE_TABLE_CUH
#define DT_CUDA_MOE_TABLE_CUH

#include "cuda/launch.cuh"
#include "cuda/layer_early.cuh"
#include "cuda/layer_words.cuh"
#include "cuda/moe_places.h"

enum { DT_TABLE_THREADS = 512 };

DT_DEVICE dt_team dt_team_here(int32_t block, int32_t blocks) {
  const dt_team team = {(int32_t)(threadIdx.x / DT_WARP), (int32_t)(blockDim.x / DT_WARP), block, blocks};
  return team;
}

DT_DEVICE int32_t *dt_counts_of(const dt_moe_plan &p, int32_t *window, uint32_t epoch, int32_t rank) {
  return window + ((int64_t)(epoch & 1) * p.ranks + rank) * p.ranks * p.experts;
}

/* Until every rank's counts of this epoch are here. Whole block. Acquire: pairs with dt_publish_counts. False: somebody
 * gave up. */
DT_DEVICE bool dt_await_counts(const dt_moe_plan &p, uint32_t epoch) {
  bool good = true;
  if ((int32_t)threadIdx.x < p.ranks) {
    const uint32_t start = dt_time_us();
    while (good && (int32_t)(dt_acquire_sys(&p.slots[threadIdx.x].counted) - epoch) < 0) {
      const uint32_t waited = dt_time_us() - start;
      if (waited > p.timeout_us)
        dt_layer_fail(p, DT_LAYER_ERROR_COUNTS, (int32_t)threadIdx.x, epoch,
                      dt_load_volatile(&p.slots[threadIdx.x].counted));
      else if (waited > 20)
        dt_layer_watch_peers(p);
      good = !dt_layer_failed(p);
    }
  } else if (threadIdx.x == blockDim.x - 1) {
    good = !dt_layer_failed(p);
  }
  return __syncthreads_and(good);
}

/* What the engine and the copies start from; one thread of all. */
DT_DEVICE void dt_write_state(const dt_moe_plan &p, const dt_moe_scratch &s) {
  const int32_t experts = p.experts, g = p.ranks * experts;
  dt_layer_state *state = p.state;
  for (int32_t r = 0; r < p.ranks; r++) {
    const int32_t rows = s.first_row[r * (experts + 1) + experts];
    if (rows > p.rows_max) return dt_layer_fail(p, DT_LAYER_ERROR_CAPACITY, r, (uint32_t)p.rows_max, (uint32_t)rows);
  }
  const uint32_t l2 = (uint32_t)dt_moe_l2_tasks(&p, &s);
  state->next_task = 0;
  state->tasks = (uint32_t)dt_moe_l1_tasks(&p, &s) + l2;
  state->passed = 0;
  state->passed_target = p.staged ? (uint32_t)p.put_blocks : DT_TILE_CLUSTER * l2 + 1;
  const int32_t pieces = s.piece[DT_MOE_DEDUPS(&p) ? experts : g];
  state->pieces = (uint32_t)pieces;
  state->head = (uint32_t)(((int64_t)pieces * p.head + 1023) / 1024);
  if (!DT_MOE_DEDUPS(&p) && p.head == 0) state->head = (uint32_t)dt_moe_early_pieces(&p, pieces);
  state->next_piece = p.tiles_only ? state->pieces : state->head;
  state->puts = (uint32_t)s.put[g];
  const int32_t first = dt_moe_combine_row(&p, &s, p.rank, p.rank * experts);
  const int64_t own = dt_moe_combine_row(&p, &s, p.rank, (p.rank + 1) * experts) - first;
  state->rows = s.first_row[p.rank * (experts + 1) + experts];
  state->sent_rows = state->rows - own;
  state->received_rows = dt_moe_combine_row(&p, &s, p.rank, g) - own;
  state->dispatch_rows = state->received_rows;
  if (DT_MOE_DEDUPS(&p)) {
    state->next_head = 0;
    state->early_tokens = dt_moe_early_tokens(&p, &s, (int32_t)state->input.tokens);
    state->ids = p.slot.ids;
    state->dispatch_rows = 0; /* counted as they are sent */
  }
}

DT_DEVICE void dt_write_table(const dt_moe_plan &p, const dt_moe_scratch &s, int32_t block, int32_t blocks) {
  const int32_t thread = block * DT_TABLE_THREADS + (int32_t)threadIdx.x, threads = blocks * DT_TABLE_THREADS;
  const int32_t g = p.ranks * p.experts;
  const int32_t l1 = dt_moe_l1_tasks(&p, &s), tiles = l1 + dt_moe_l2_tasks(&p, &s);
  if (s.first_row[p.rank * (p.experts + 1) + p.experts] > p.rows_max) return;
  for (int32_t i = thread; i < tiles; i += threads) {
    int32_t place;
    const dt_tile_task task = dt_moe_task(&p, &s, i < l1, i < l1 ? i : i - l1, &place);
    uint4 *to = (uint4 *)(p.tasks + place);
    to[0] = ((const uint4 *)&task)[0];
    to[1] = ((const uint4 *)&task)[1];
  }
  const int32_t bands = s.first_band[p.rank * (p.experts + 1) + p.experts];
  for (int32_t i = thread; i < bands; i += threads) p.act_ready[i] = p.stored[i] = 0;
  if (p.tiles_only) return;
  if (p.order == DT_ORDER_PACED && p.staged)
    for (int32_t i = thread; i < bands; i += threads) p.band_places[i] = dt_moe_band_place(&p, &s, i);
  uint32_t *next_bank = p.arrivals[p.rank] + (int64_t)((p.state->epoch & 1) ^ 1) * p.bands_max;
  for (int32_t i = thread; i < p.bands_max; i += threads) next_bank[i] = 0;
  if (DT_MOE_DEDUPS(&p)) {
    const int32_t words = p.bands_max * (DT_TILE_M / 4); /* of 16 bytes */
    uint4 *next_sources = (uint4 *)p.sources + (int64_t)((p.state->epoch & 1) ^ 1) * words;
    for (int32_t i = thread; i < words; i += threads) next_sources[i] = make_uint4(0, 0, 0, 0);
    for (int32_t i = thread; i < g; i += threads) p.source_base[i] = dt_moe_source_base(&p, &s, i);
  }
  for (int32_t i = thread; i < s.piece[DT_MOE_DEDUPS(&p) ? p.experts : g]; i += threads)
    p.pieces[i] = dt_moe_piece(&p, &s, i);
  for (int32_t i = thread; i < s.put[g]; i += threads) p.puts[i] = dt_moe_put(&p, &s, i);
  for (int32_t i = thread; i < s.owner_row[g]; i += threads) p.row_target[i] = dt_moe_row_target(&p, &s, i);
}

DT_DEVICE void dt_place_slots(const dt_moe_plan &p, int32_t block, int32_t *memory) {
  const dt_team team = dt_team_here(block, p.slot.blocks);
  const dt_slots_scratch scratch = dt_slots_scratch_at(&p.slot, memory, team.block, 0);
  dt_place_clear(&p.slot, &scratch, &team);
  dt_grid_wait();
  if (dt_layer_failed(p)) return;
  __syncthreads();
  dt_place_sum(&p.slot, dt_counts_of(p, p.counts, p.state->epoch, p.rank), &scratch, &team);
  __syncthreads();
  dt_place_rows(&p.slot, &scratch, &team);
  if (!DT_MOE_DEDUPS(&p) && p.early_blocks > 0) dt_tell_placed(p);
}

/* The first blocks write the table, the next place this rank's slots, the others dispatch meanwhile. */
DT_DEVICE void dt_make_table(const dt_moe_plan &p, int32_t *memory) {
  const int32_t places = p.tiles_only ? 0 : p.slot.blocks, early = p.tiles_only ? 0 : p.early_blocks;
  const int32_t blocks = (int32_t)gridDim.x - places - early, block = (int32_t)blockIdx.x;
  const bool dispatches = block >= blocks + places;
  if (block >= blocks && !dispatches) {
    dt_grid_launch();
    return dt_place_slots(p, block - blocks, memory);
  }
  dt_grid_wait();
  const uint32_t epoch = p.state->epoch;
  const dt_team team = dt_team_here(block, blocks);
  const dt_moe_scratch s = dt_moe_scratch_at(&p, memory);
  const bool good =
      p.tiles_only ? !__syncthreads_or(threadIdx.x == 0 && dt_layer_failed(p)) : dt_await_counts(p, epoch);
  dt_grid_launch(); /* not before the ranks have met: what comes next keeps multiprocessors */
  if (!good) return;
  dt_moe_sources(&p, &s, &team, dt_counts_of(p, p.counts, epoch, 0));
#define DT_RUN(phase)                                                                                                  \
  __syncthreads();                                                                                                     \
  phase(&p, &s, &team);
  if (DT_MOE_DEDUPS(&p) && dispatches) {
    __syncthreads();
    return dt_send_early(p, dt_moe_early_tokens(&p, &s, (int32_t)p.state->input.tokens), block - blocks - places,
                         early);
  }
  if (p.order != DT_ORDER_NATURAL) {
    DT_RUN(dt_moe_remotes)
    DT_RUN(dt_moe_sort)
  }
  DT_RUN(dt_moe_sizes)
  DT_RUN(dt_moe_sums)
  if (!DT_MOE_DEDUPS(&p) && dispatches) {
    __syncthreads();
    return dt_dispatch_early(p, s, block - blocks - places, early, dt_early_room(p, memory));
  }
  if (DT_MOE_DEDUPS(&p)) {
    DT_RUN(dt_moe_ahead)
  }
  DT_RUN(dt_moe_group_starts)
  DT_RUN(dt_moe_group_sums)
  DT_RUN(dt_moe_groups)
#undef DT_RUN
  __syncthreads();
  if (block == 0 && threadIdx.x == 0) dt_write_state(p, s);
  dt_write_table(p, s, block, blocks);
}

static cudaError_t dt_launch_plan(const void *kernel, const dt_moe_plan *plan, int blocks, int threads, size_t shared,
                                  cudaStream_t stream) {
  return dt_launch_early(kernel, plan, blocks, threads, shared, !plan->crowded, stream);
}

static cudaError_t dt_prepare_table(const void *kernel, int shared_bytes) {
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

/* The table kernel `kernel`; the plan's counts are on their way. */
static cudaError_t dt_launch_table(const void *kernel, const dt_moe_plan *plan, int blocks, cudaStream_t stream) {
  size_t shared = sizeof(int32_t) * dt_moe_scratch_words(plan->ranks, plan->experts, plan->order);
  if (dt_slots_place_bytes(&plan->slot) > shared) shared = dt_slots_place_bytes(&plan->slot);
  if (!plan->tiles_only) blocks += plan->slot.blocks + plan->early_blocks;
  if (!plan->tiles_only && plan->early_blocks > 0) shared += dt_moe_early_bytes(plan);
  return dt_launch_plan(kernel, plan, blocks, DT_TABLE_THREADS, shared, stream);
}

#endif
