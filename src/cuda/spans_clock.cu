/* The device's timer beside the launches of a layer, and against the host's clock. */
#include "cuda/launch.cuh"
#include "cuda/spans.h"
#include "cuda/words.cuh"

/* When the launch before it has ended. */
__global__ void __launch_bounds__(32) dt_mark_kernel(uint64_t *mark) {
  dt_grid_launch();
  dt_grid_wait();
  if (threadIdx.x == 0) *mark = dt_time_ns();
}

/* Answers the host's words with the timer. Bounded: a word that is late ends it. */
__global__ void __launch_bounds__(32) dt_clock_answer_kernel(dt_clock_words *words) {
  if (threadIdx.x != 0) return;
  for (uint32_t i = 1; i <= DT_CLOCK_ROUNDS; i++) {
    const uint64_t start = dt_time_ns();
    while (dt_acquire_sys(&words->asked) < i)
      if (dt_time_ns() - start > 50000000) return;
    words->answer_ns = dt_time_ns();
    dt_release_sys(&words->answered, i);
  }
  uint64_t step = ~0ull, last = dt_time_ns();
  for (uint32_t i = 0; i < 4096; i++) {
    const uint64_t now = dt_time_ns();
    if (now != last && now - last < step) step = now - last;
    last = now;
  }
  words->step_ns = step;
}

extern "C" cudaError_t dt_mark_launch(uint64_t *mark, int early, cudaStream_t stream) {
  return dt_launch_early((const void *)dt_mark_kernel, &mark, 1, 32, 0, early, stream);
}

extern "C" cudaError_t dt_clock_answer_launch(dt_clock_words *words, cudaStream_t stream) {
  dt_clock_answer_kernel<<<1, 32, 0, stream>>>(words);
  return cudaGetLastError();
}
