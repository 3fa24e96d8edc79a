/* The layer's own computation against one big GEMM of the BLAS library: the same flops, the same threads, the same run.
 */
#include "moe_support.h"

#include <draintile/build.h>
#include <string.h>

#include "core/statistics.h"

enum { REPEATS = 7, ATTEMPTS = 18, ROWS_PER_EXPERT = 512, EXPERTS = 8 };

typedef struct pace {
  layer *layer;
  dt_moe_config config;
  double ratio; /* of the medians of alternating repeats */
  double bar;
} pace;

static int run_pace(dt_comm *comm, void *argument) {
  pace *p = argument;
  layer *l = p->layer;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &p->config, &l->weights[0], &moe) == DT_OK);
  double flops = 6.0 * (double)l->shape.hidden * (double)l->shape.intermediate * EXPERTS * ROWS_PER_EXPERT;
  int32_t threads = p->config.workers, side = (int32_t)cbrt(flops / 2 / threads);
  double layer_rates[REPEATS], gemm_rates[REPEATS], mean;
  dt_moe_stats stats;
  EXPECT(dt_moe_forward(moe, &l->input[0], l->output[0], &stats) == DT_OK);   /* touches the pages */
  for (int attempt = 0; attempt < ATTEMPTS && p->ratio < p->bar; attempt++) { /* others may use the machine */
    for (int i = 0; i < REPEATS; i++) {
      EXPECT(dt_moe_forward(moe, &l->input[0], l->output[0], &stats) == DT_OK);
      EXPECT(dt_sgemm_rate(threads, side, 1, &gemm_rates[i], &mean) == DT_OK);
      layer_rates[i] = flops / stats.compute_s;
    }
    double layer_rate = dt_median(layer_rates, REPEATS), gemm_rate = dt_median(gemm_rates, REPEATS);
    p->ratio = layer_rate / gemm_rate;
    fprintf(stderr, "%s, %d workers: %.1f GFLOP/s; one sgemm of side %d a thread: %.1f GFLOP/s; ratio %.3f\n",
            dt_dtype_name(p->config.dtype), threads, layer_rate * 1e-9, side, gemm_rate * 1e-9, p->ratio);
  }
  dt_moe_destroy(moe);
  return 0;
}

/* OpenBLAS packs the weights for each tile of 128 rows. Its AVX-512 kernels multiply 1.9 times as fast as the AVX2 ones
 * but pack no faster, so that packing weighs more: measured 0.82 to 0.88 (docs/cpu.md), not the 0.9 of the others. */
static double bar_of_kernels(void) {
  static const char *const avx512[] = {"SkylakeX", "Cooperlake", "Sapphirerapids"};
  dt_build build;
  dt_build_info(&build);
  for (size_t i = 0; i < sizeof avx512 / sizeof *avx512; i++)
    if (strcmp(build.blas_core, avx512[i]) == 0) return 0.75;
  return 0.9;
}

static void measure(dt_dtype dtype, int32_t workers) {
  layer_shape shape = {.ranks = 1,
                       .experts_per_rank = EXPERTS,
                       .top_k = 1,
                       .hidden = 1024,
                       .intermediate = 1024,
                       .dtype = dtype,
                       .weight_dtype = dtype,
                       .tokens = {EXPERTS * ROWS_PER_EXPERT},
                       .seed = 1};
  layer l;
  layer_weights(&l, &shape);
  layer_tokens(&l, shape.tokens, 2);
  for (int64_t t = 0; t < shape.tokens[0]; t++) ((int32_t *)l.input[0].ids)[t] = (int32_t)(t % EXPERTS);
  pace p = {.layer = &l, .config = layer_config(&shape), .bar = bar_of_kernels()};
  p.config.schedule = DT_SCHEDULE_SERIAL;
  p.config.tile_m = 128;
  p.config.tile_n = 0;
  p.config.workers = workers;
  assert_int_equal(run_ranks(0, 1, NULL, run_pace, &p), 0);
  assert_true(p.ratio >= p.bar);
  layer_destroy(&l);
}

static void test_f32(void **state) {
  (void)state;
  measure(DT_DTYPE_F32, 1);
}

static void test_bf16(void **state) {
  (void)state;
  measure(DT_DTYPE_BF16, 1);
}

static void test_two_workers(void **state) {
  (void)state;
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) skip();
  measure(DT_DTYPE_F32, 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_f32), cmocka_unit_test(test_bf16),
                                     cmocka_unit_test(test_two_workers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
