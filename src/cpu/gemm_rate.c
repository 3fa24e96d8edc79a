#include <cblas.h>
#include <pthread.h>
#include <stdlib.h>

#include <draintile/reference.h>

#include "comm/clock.h"
#include "core/error.h"
#include "core/random.h"
#include "cpu/blas_memory.h"

enum { SIDE_MIN = 64, SIDE_MAX = 8192, THREADS_MAX = 1024 };

typedef struct gemm_thread {
  pthread_t thread;
  float *a, *b, *c; /* [side][side] */
  int32_t side;
  int started;
} gemm_thread;

static void *multiply(void *argument) {
  gemm_thread *one = argument;
  blasint side = one->side;
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, side, side, side, 1, one->a, side, one->b, side, 0, one->c,
              side);
  return NULL;
}

static int reserve(gemm_thread *one, int32_t side, uint64_t seed) {
  dt_random random = {seed};
  size_t count = (size_t)side * (size_t)side;
  one->side = side;
  one->a = malloc(count * sizeof(float));
  one->b = malloc(count * sizeof(float));
  one->c = malloc(count * sizeof(float));
  if (!one->a || !one->b || !one->c) return 0;
  for (size_t i = 0; i < count; i++) { /* all-zero data would flatter the rate */
    one->a[i] = (float)dt_random_unit(&random) - 0.5f;
    one->b[i] = (float)dt_random_unit(&random) - 0.5f;
  }
  return 1;
}

/* Seconds of one multiplication by all threads at once; 0 when a thread could not be started. */
static double one_repeat(gemm_thread *threads, int32_t count) {
  uint64_t begin_ns = dt_now_ns();
  int failed = 0;
  for (int32_t i = 1; i < count; i++) {
    threads[i].started = pthread_create(&threads[i].thread, NULL, multiply, &threads[i]) == 0;
    failed |= !threads[i].started;
  }
  multiply(&threads[0]);
  for (int32_t i = 1; i < count; i++)
    if (threads[i].started) pthread_join(threads[i].thread, NULL);
  return failed ? 0 : (double)(dt_now_ns() - begin_ns) * 1e-9;
}

dt_status dt_sgemm_rate(int32_t threads, int32_t side, int32_t repeats, double *best_flop_per_s,
                        double *mean_flop_per_s) {
  if (threads < 1 || threads > THREADS_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "threads: %d; allowed: 1 to %d", threads, THREADS_MAX);
  if (side < SIDE_MIN || side > SIDE_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "side: %d; allowed: %d to %d", side, SIDE_MIN, SIDE_MAX);
  if (repeats < 1) return dt_fail(DT_ERR_ARGUMENT, "repeats: %d; allowed: 1 or more", repeats);
  if (blas_ensure(threads)) return dt_fail(DT_ERR_MEMORY, "threads: %d: no memory for their BLAS buffers", threads);
  gemm_thread *all = calloc((size_t)threads, sizeof(*all));
  if (!all) return dt_fail(DT_ERR_MEMORY, "threads: %d: no memory", threads);
  int ready = 1;
  for (int32_t i = 0; ready && i < threads; i++) ready = reserve(&all[i], side, (uint64_t)i + 1);
  dt_status status = ready ? DT_OK : dt_fail(DT_ERR_MEMORY, "threads: %d: no memory for their matrices", threads);
  double best_s = 0, all_s = 0;
  for (int32_t i = 0; status == DT_OK && i <= repeats; i++) { /* the first one warms up */
    double seconds = one_repeat(all, threads);
    if (seconds <= 0) status = dt_fail(DT_ERR_SYSTEM, "threads: %d could not be started", threads);
    if (i > 0 && (best_s == 0 || seconds < best_s)) best_s = seconds;
    if (i > 0) all_s += seconds;
  }
  for (int32_t i = 0; i < threads; i++) {
    free(all[i].a);
    free(all[i].b);
    free(all[i].c);
  }
  free(all);
  if (status != DT_OK) return status;
  double flops = 2.0 * threads * side * side * side;
  *best_flop_per_s = flops / best_s;
  *mean_flop_per_s = flops * repeats / all_s;
  return DT_OK;
}
