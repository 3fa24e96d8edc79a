/* Random layers with random delays in workers and consumers: what is not ordered by a counter breaks here. Before every
 * overlapped layer the buffers are filled with NaN, so that a row read too early cannot pass for the right one. */
#include "moe_support.h"

#include "cpu/executor.h"

typedef struct stress {
  layer *layer;          /* the tokens of one layer */
  layer *other;          /* the same experts, other tokens */
  dt_moe_config serial;  /* without delays */
  dt_moe_config delayed; /* an overlapped schedule */
  int layers;            /* pairs of overlapped layers */
  int expect_corruption;
  int *corrupted; /* ranks that saw a wrong row; shared */
} stress;

/* Only between this rank's layers: peers write here only after they have its next counts. */
static void poison(dt_moe *moe) {
  size_t rows = (size_t)moe->memory_rows;
  memset(dt_window_local(moe->dispatch), 0xff, rows * moe->row_bytes);
  memset(dt_window_local(moe->combine), 0xff, (size_t)(moe->config.max_tokens * moe->config.top_k) * moe->row_bytes);
  memset(moe->act, 0xff, rows * (size_t)moe->intermediate * sizeof(float));
  memset(moe->y, 0xff, rows * moe->row_bytes);
  memset(moe->shared_out, 0xff, (size_t)(moe->config.max_tokens * moe->hidden) * sizeof(float));
}

static int run_layer(dt_moe *moe, layer *l, int32_t rank, unsigned char *output) {
  poison(moe);
  memset(output, 0xff, output_bytes(l, rank));
  EXPECT(dt_moe_forward(moe, &l->input[rank], output, NULL) == DT_OK);
  return 0;
}

static int run_stress(dt_comm *comm, void *argument) {
  const stress *s = argument;
  int32_t rank = dt_comm_rank(comm);
  layer *pair[2] = {s->layer, s->other};
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &s->serial, &s->layer->weights[rank], &moe) == DT_OK);
  for (int i = 0; i < 2; i++) {
    if (run_layer(moe, pair[i], rank, pair[i]->serial[rank])) return __LINE__;
    /* Few values a row: the choices of a token may nearly cancel. */
    EXPECT(relative_error(pair[i], rank, pair[i]->serial[rank]) <= 20 * tolerance(pair[i]->shape.dtype));
  }
  EXPECT(dt_moe_set_schedule(moe, &s->delayed) == DT_OK);
  for (int i = 0; i < 2 * s->layers; i++) {
    layer *l = pair[i % 2];
    if (run_layer(moe, l, rank, l->output[rank])) return __LINE__;
    int same = memcmp(l->serial[rank], l->output[rank], output_bytes(l, rank)) == 0;
    if (!same && s->corrupted) __atomic_fetch_add(s->corrupted, 1, __ATOMIC_RELAXED);
    EXPECT(same || s->expect_corruption);
  }
  dt_moe_destroy(moe);
  return 0;
}

static layer_shape random_shape(dt_random *random) {
  static const dt_dtype types[] = {DT_DTYPE_F32, DT_DTYPE_F32, DT_DTYPE_BF16, DT_DTYPE_F16};
  layer_shape shape = {.ranks = 1 + (int32_t)dt_random_below(random, 4),
                       .experts_per_rank = 1 + (int32_t)dt_random_below(random, 4),
                       .hidden = 8 + (int64_t)dt_random_below(random, 33),
                       .intermediate = 8 + (int64_t)dt_random_below(random, 33),
                       .dtype = types[dt_random_below(random, 4)],
                       .weight_dtype = types[dt_random_below(random, 4)],
                       .route = (routing)dt_random_below(random, 4),
                       .seed = dt_random_u64(random)};
  int32_t most = shape.experts_per_rank < 3 ? shape.experts_per_rank : 3;
  shape.top_k = 1 + (int32_t)dt_random_below(random, (uint64_t)most);
  if (dt_random_below(random, 4) == 0) shape.shared_intermediate = 1 + (int64_t)dt_random_below(random, 30);
  for (int32_t r = 0; r < shape.ranks; r++)
    shape.tokens[r] = dt_random_below(random, 6) ? (int64_t)dt_random_below(random, 60) : 0;
  return shape;
}

static dt_moe_config random_config(dt_random *random, const layer_shape *shape) {
  dt_moe_config config = layer_config(shape);
  config.tile_m = 1 + (int32_t)dt_random_below(random, 24);
  config.tile_n = 1 + (int32_t)dt_random_below(random, 24);
  config.layout = (dt_layout)dt_random_below(random, 2);
  config.order = (dt_order)((int)dt_random_below(random, 4) - 1);
  config.workers = 1 + (int32_t)dt_random_below(random, 3);
  config.schedule = (dt_schedule)(1 + dt_random_below(random, 5));
  config.consumers = (int32_t)dt_random_below(random, 3);
  if (config.schedule == DT_SCHEDULE_SIGNAL && config.consumers == 0) config.consumers = 1;
  config.segment_bands = (int32_t)dt_random_below(random, 3);
  config.raster_bands = (int32_t)dt_random_below(random, 5);
  config.lead = (int32_t)dt_random_below(random, 4);
  config.wave_experts = (int32_t)dt_random_below(random, 3);
  config.group_tasks = (int32_t)dt_random_below(random, 6);
  config.delay_seed = dt_random_u64(random) | 1;
  config.delay_max_us = 100;
  return config;
}

/* Two sets of tokens for the experts of one layer. */
static void pair_create(layer *l, layer *other, const layer_shape *shape) {
  layer_create(l, shape);
  *other = *l;
  layer_tokens(other, shape->tokens, shape->seed + 2);
  layer_expect(other);
}

static void pair_destroy(layer *l, layer *other) {
  layer_free_tokens(other);
  layer_destroy(l);
}

static int run_pair(const layer_shape *shape, const dt_moe_config *config, int layers, int *corrupted, int shm) {
  layer l, other;
  pair_create(&l, &other, shape);
  stress s = {.layer = &l, .other = &other, .serial = *config, .delayed = *config, .layers = layers};
  s.serial.schedule = DT_SCHEDULE_SERIAL;
  s.serial.order = (dt_order)-1;
  s.serial.delay_seed = 0;
  s.serial.publish_early = 0;
  s.corrupted = corrupted;
  s.expect_corruption = corrupted != NULL;
  int result = run_ranks(shm, shape->ranks, NULL, run_stress, &s);
  pair_destroy(&l, &other);
  return result;
}

static void test_random_layers(void **state) {
  (void)state;
  int runs = SANITIZED && !getenv("DT_LONG") ? 150 : 1000;
  for (int i = 0; i < runs; i++) {
    dt_random random = {(uint64_t)i * 1000 + 7};
    layer_shape shape = random_shape(&random);
    dt_moe_config config = random_config(&random, &shape);
    int result = run_pair(&shape, &config, 1, NULL, 0);
    if (result) {
      fprintf(stderr, "run %d: %s, ranks %d, workers %d, consumers %d\n", i, dt_schedule_name(config.schedule),
              shape.ranks, config.workers, config.consumers);
    }
    assert_int_equal(result, 0);
  }
}

/* A signal of one layer must never count for the next, however far a rank lags. */
static void test_many_layers(void **state) {
  (void)state;
  for (int s = DT_SCHEDULE_SIGNAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    layer_shape shape = {.ranks = 3,
                         .experts_per_rank = 2,
                         .top_k = 2,
                         .hidden = 16,
                         .intermediate = 16,
                         .route = ROUTE_ONE_EXPERT, /* equal counts in every layer */
                         .tokens = {20, 20, 20},
                         .seed = 900 + (uint64_t)s};
    dt_moe_config config = layer_config(&shape);
    config.schedule = (dt_schedule)s;
    config.delay_seed = 77;
    config.delay_max_us = 400;
    assert_int_equal(run_pair(&shape, &config, SANITIZED ? 10 : 40, NULL, 0), 0);
    assert_int_equal(run_pair(&shape, &config, SANITIZED ? 5 : 20, NULL, 1), 0);
  }
}

/* Negative control: with the counters published before the stores, the same test must see wrong rows. */
static void test_early_counters_corrupt(void **state) {
  (void)state;
#if defined(__SANITIZE_THREAD__)
  skip(); /* it is a data race by intent */
#endif
  int *corrupted = shared_pages(sizeof(*corrupted));
  for (int s = DT_SCHEDULE_SIGNAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    *corrupted = 0;
    for (uint64_t attempt = 0; attempt < 20 && !*corrupted; attempt++) {
      layer_shape shape = {.ranks = 2,
                           .experts_per_rank = 2,
                           .top_k = 2,
                           .hidden = 32,
                           .intermediate = 32,
                           .tokens = {60, 60},
                           .seed = 950 + attempt};
      dt_moe_config config = layer_config(&shape);
      config.schedule = (dt_schedule)s;
      config.workers = 2;
      config.delay_seed = 5 + attempt;
      config.delay_max_us = 500;
      config.publish_early = 1;
      assert_int_equal(run_pair(&shape, &config, 3, corrupted, 0), 0);
    }
    assert_true(*corrupted > 0);
  }
  munmap(corrupted, sizeof(*corrupted));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_layers),
      cmocka_unit_test(test_many_layers),
      cmocka_unit_test(test_early_counters_corrupt),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
