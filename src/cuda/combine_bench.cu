/* Device helpers of the benchmarks: operands, evicting the cache, comparisons, a barrier of all ranks. */
#include "cuda/combine_bench.h"
#include "cuda/words.cuh"

enum { DT_BENCH_BLOCKS = 1056, DT_BENCH_THREADS = 512 };

__global__ void dt_bench_fill_kernel(uint16_t *to, int64_t elements, const uint16_t *block, int64_t period,
                                     int64_t offset) {
  const int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < elements; i += step)
    to[i] = block[(i + offset) % period];
}

__global__ void dt_bench_settle_kernel(const uint4 *memory, size_t count, uint32_t *sink) {
  uint32_t sum = 0;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x) {
    const uint4 v = memory[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678u) *sink = sum; /* so that the loads stay */
}

__global__ void dt_bench_compare_kernel(const uint32_t *a, const uint32_t *b, size_t count, unsigned long long *wrong) {
  unsigned long long differ = 0;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
    differ += a[i] != b[i];
  if (differ) atomicAdd(wrong, differ);
}

/* A warp a column: the columns are spread by a hash. The values repeat with their period. */
DT_DEVICE double dt_bench_dot(const uint16_t *block, int64_t period, int64_t a, int64_t b, int64_t k) {
  const int32_t lane = (int32_t)(threadIdx.x % 32);
  int64_t i = (a + lane) % period, j = (b + lane) % period;
  double sum = 0;
  for (int64_t at = lane; at < k; at += 32) {
    sum += (double)dt_low(block[i]) * (double)dt_low(block[j]);
    i = i + 32 < period ? i + 32 : i + 32 - period;
    j = j + 32 < period ? j + 32 : j + 32 - period;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

__global__ void dt_bench_sample_kernel(const uint16_t *buffer, const dt_bench_sample *samples, const uint16_t *block,
                                       int64_t period, int64_t n, int64_t k, uint64_t seed, unsigned long long *worst) {
  __shared__ double error[DT_BENCH_CHECKED_COLUMNS], norm[DT_BENCH_CHECKED_COLUMNS];
  const dt_bench_sample sample = samples[blockIdx.x];
  const int32_t column_index = (int32_t)(threadIdx.x / 32);
  uint64_t hash = (seed + 1) * 0x9e3779b97f4a7c15ull + (blockIdx.x * DT_BENCH_CHECKED_COLUMNS + column_index);
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
  const int64_t column = (int64_t)((hash ^ hash >> 31) % (uint64_t)n);
  const double sum = dt_bench_dot(block, period, sample.a, sample.b + column * k, k);
  const double difference = (double)dt_low(buffer[sample.row * n + column]) - sum;
  if (threadIdx.x % 32 == 0) {
    error[column_index] = difference * difference;
    norm[column_index] = sum * sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double errors = 0, norms = 0;
  for (int i = 0; i < DT_BENCH_CHECKED_COLUMNS; i++) {
    errors += error[i];
    norms += norm[i];
  }
  double relative = sqrt(errors / norms);
  if (!(relative >= 0)) relative = __longlong_as_double(0x7ff8000000000000ll);
  atomicMax(worst, (unsigned long long)__double_as_longlong(relative));
}

typedef struct dt_bench_words {
  uint32_t *at[DT_BENCH_RANKS];
} dt_bench_words;

__global__ void dt_bench_align_kernel(int32_t rank, int32_t ranks, uint32_t round, const uint32_t *own,
                                      const dt_bench_words theirs, uint32_t *expired) {
  const int32_t peer = (int32_t)threadIdx.x;
  if (peer >= ranks || peer == rank) return;
  dt_release_sys(theirs.at[peer], round);
  const uint32_t start = dt_time_us();
  uint32_t seen;
  do {
    seen = dt_acquire_sys(own + peer * DT_BENCH_SLOT_WORDS);
    if (dt_time_us() - start > 5000000u) {
      *expired = 1;
      return;
    }
  } while ((int32_t)(seen - round) < 0);
}

extern "C" cudaError_t dt_bench_fill(uint16_t *to, int64_t elements, const uint16_t *block, int64_t period,
                                     int64_t offset, cudaStream_t stream) {
  dt_bench_fill_kernel<<<DT_BENCH_BLOCKS, DT_BENCH_THREADS, 0, stream>>>(to, elements, block, period, offset);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_bench_settle(const void *memory, size_t bytes, cudaStream_t stream) {
  dt_bench_settle_kernel<<<DT_BENCH_BLOCKS, DT_BENCH_THREADS, 0, stream>>>((const uint4 *)memory, bytes / 16,
                                                                           (uint32_t *)memory);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_bench_compare(const void *a, const void *b, size_t bytes, unsigned long long *wrong,
                                        cudaStream_t stream) {
  dt_bench_compare_kernel<<<DT_BENCH_BLOCKS, DT_BENCH_THREADS, 0, stream>>>((const uint32_t *)a, (const uint32_t *)b,
                                                                            bytes / 4, wrong);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_bench_sample_error(const uint16_t *buffer, const dt_bench_sample *samples, int count,
                                             const uint16_t *block, int64_t period, int64_t n, int64_t k, uint64_t seed,
                                             unsigned long long *worst, cudaStream_t stream) {
  dt_bench_sample_kernel<<<count, 32 * DT_BENCH_CHECKED_COLUMNS, 0, stream>>>(buffer, samples, block, period, n, k,
                                                                              seed, worst);
  return cudaGetLastError();
}

extern "C" cudaError_t dt_bench_align(int32_t rank, int32_t ranks, uint32_t round, const uint32_t *own,
                                      uint32_t *const *theirs, uint32_t *expired, cudaStream_t stream) {
  dt_bench_words words = {};
  for (int32_t r = 0; r < ranks; r++) words.at[r] = theirs[r];
  dt_bench_align_kernel<<<1, 32, 0, stream>>>(rank, ranks, round, own, words, expired);
  return cudaGetLastError();
}
