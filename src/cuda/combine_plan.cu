/* From the device plan to what the combine's kernels read. One block sums up experts, one cuts segments into chunks,
 * the others write row targets; none waits for another. */
#include "cuda/combine_device.cuh"
#include "cuda/combine_plan.h"
#include "cuda/launch.cuh"
#include "cuda/tile_table.h"

enum { DT_TABLES_THREADS = 512, DT_TABLES_WARPS = DT_TABLES_THREADS / 32 };

/* Memory rows of a group or an expert. */
DT_DEVICE int32_t dt_padded(const dt_combine_planned &c, int32_t rows) {
  return c.layout == DT_LAYOUT_ALIGNED ? dt_bands(rows) * DT_TILE_M : rows;
}

/* The plan's error, or a rank with more rows than its buffer: every rank sees the latter. One warp a rank. */
DT_DEVICE void dt_check_counts(const dt_combine_planned &c) {
  const dt_combine_params &p = c.params;
  const int32_t owner = (int32_t)(threadIdx.x / 32), width = p.ranks * p.experts;
  if (threadIdx.x == 0 && *c.error != DT_DEVICE_PLAN_OK)
    dt_combine_fail(p, DT_COMBINE_ERROR_PLAN, -1, 0, *c.error);
  if (owner >= p.ranks) return;
  int64_t rows = 0;
  for (int32_t g = (int32_t)(threadIdx.x % 32); g < width; g += 32) rows += p.matrix[p.rank][owner * width + g];
  for (int i = 16; i > 0; i /= 2) rows += __shfl_xor_sync(0xffffffffu, rows, i);
  if (threadIdx.x % 32 == 0 && rows > p.buffer_rows[owner])
    dt_combine_fail(p, DT_COMBINE_ERROR_BUFFER, owner, (uint32_t)p.buffer_rows[owner],
                    (uint32_t)min(rows, (int64_t)UINT32_MAX));
}

/* Rows of each expert, and the counters' places: the bands' in their order. */
DT_DEVICE void dt_fill_experts(const dt_combine_planned &c) {
  const dt_combine_params &p = c.params;
  const dt_combine_device_tables &t = p.tables;
  dt_check_counts(c);
  __syncthreads();
  const bool failed = dt_combine_failed(p);
  for (int32_t e = (int32_t)threadIdx.x; e < p.experts; e += DT_TABLES_THREADS) {
    int32_t remote = 0, own = 0;
    for (int32_t s = 0; s < p.ranks && !failed; s++) {
      const int32_t rows = p.matrix[p.rank][(s * p.ranks + p.rank) * p.experts + e];
      if (s == p.rank)
        own = rows;
      else
        remote += dt_padded(c, rows);
    }
    t.active[e] = dt_padded(c, remote + own);
    t.remote_rows[e] = remote;
  }
  const int32_t bands = failed ? 0 : c.sizes->band_count;
  if (threadIdx.x == 0) t.sizes->bands = bands;
  for (int32_t at = (int32_t)threadIdx.x; at < bands; at += DT_TABLES_THREADS)
    t.band_slot[c.arrays.band_order[at]] = at;
}

/* Whole block: the sum of `value` over the threads before, and over all. */
DT_DEVICE int32_t dt_scan_block(int32_t value, int32_t *of_warps, int32_t *total) {
  const int32_t lane = (int32_t)(threadIdx.x % 32), warp = (int32_t)(threadIdx.x / 32);
  int32_t until = value;
  for (int i = 1; i < 32; i *= 2) {
    const int32_t other = __shfl_up_sync(0xffffffffu, until, i);
    if (lane >= i) until += other;
  }
  __syncthreads(); /* the last call's sums have been read */
  if (lane == 31) of_warps[warp] = until;
  __syncthreads();
  int32_t before = 0;
  *total = 0;
  for (int32_t w = 0; w < DT_TABLES_WARPS; w++) {
    if (w < warp) before += of_warps[w];
    *total += of_warps[w];
  }
  return before + until - value;
}

DT_DEVICE void dt_fill_chunks(const dt_combine_planned &c) {
  __shared__ int32_t of_warps[DT_TABLES_WARPS];
  const dt_combine_device_tables &t = c.params.tables;
  const int32_t segments = c.sizes->segment_count, most = c.chunk_rows;
  int32_t chunks = 0;
  for (int32_t base = 0; base < segments; base += DT_TABLES_THREADS) {
    const int32_t at = base + (int32_t)threadIdx.x;
    dt_segment segment = {};
    if (at < segments) segment = c.arrays.segments[c.arrays.segment_order[at]];
    const int32_t rows = (int32_t)segment.rows;
    int32_t total;
    dt_combine_chunk *to = t.chunks + chunks + dt_scan_block((rows + most - 1) / most, of_warps, &total);
    for (int32_t row = 0; row < rows; row += most) {
      dt_combine_chunk chunk;
      chunk.row = (int32_t)segment.row + row;
      chunk.rows = min(rows - row, most);
      chunk.owner = segment.owner;
      chunk.first_band = segment.first_band;
      chunk.dst_row = segment.dst_row + row;
      chunk.bands = segment.bands;
      chunk.fill = 0;
      *to++ = chunk;
    }
    chunks += total;
  }
  if (threadIdx.x == 0) t.sizes->chunks = chunks;
}

/* A warp a band. */
DT_DEVICE void dt_fill_targets(const dt_combine_planned &c, int32_t block, int32_t blocks) {
  const dt_combine_params &p = c.params;
  const int32_t lane = (int32_t)(threadIdx.x % 32), warp = (int32_t)(threadIdx.x / 32);
  uint64_t *targets = c.direct ? p.tables.direct : p.tables.staged;
  for (int32_t b = block * DT_TABLES_WARPS + warp; b < c.sizes->band_count; b += blocks * DT_TABLES_WARPS) {
    const dt_band band = c.arrays.bands[b];
    for (int32_t i = 0; i < band.parts; i++) {
      const dt_part part = c.arrays.parts[band.first_part + i];
      const bool staged = !c.direct && part.owner != p.rank;
      const uint64_t owner = (uint64_t)(c.direct ? part.owner : staged ? DT_COMBINE_STAGING : DT_COMBINE_OWN) << 32;
      for (int32_t row = lane; row < part.rows; row += 32)
        targets[part.row + row] = owner | (uint64_t)((staged ? part.row : part.dst_row) + row);
    }
    const int32_t rows = c.layout == DT_LAYOUT_ALIGNED ? (int32_t)DT_TILE_M : band.rows;
    for (int32_t row = band.rows + lane; row < rows; row += 32) targets[band.row + row] = DT_COMBINE_NOWHERE;
    if (lane == 0) p.tables.band_rows[b] = rows;
  }
}

__global__ void __launch_bounds__(DT_TABLES_THREADS)
    dt_combine_tables_kernel(const __grid_constant__ dt_combine_planned c) {
  dt_grid_launch();
  dt_grid_wait(); /* for the plan */
  if (blockIdx.x == 0)
    dt_fill_experts(c);
  else if (blockIdx.x == 1)
    dt_fill_chunks(c);
  else
    dt_fill_targets(c, (int32_t)blockIdx.x - 2, (int32_t)gridDim.x - 2);
}

extern "C" cudaError_t dt_combine_tables_launch(const dt_combine_planned *planned, int ctas, cudaStream_t stream) {
  return dt_launch_early((const void *)dt_combine_tables_kernel, planned, ctas, DT_TABLES_THREADS, 0, 1, stream);
}
