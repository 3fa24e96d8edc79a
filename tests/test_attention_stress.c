/* Random attention with random delays in workers and consumers: what is not ordered by a counter breaks here. Before
 * every forward the buffers are filled with NaN, so that a row read too early cannot pass for the right one. Then ranks
 * that die, disagree or ask for what cannot be. */
#include "attention_support.h"

#include "cpu/attention.h"

typedef struct stress {
  problem *problem;
  int forwards;
  int expect_corruption;
  int *corrupted; /* ranks that saw a wrong row; shared */
} stress;

/* Only between this rank's forwards: peers write here only after it has entered the next one. */
static void poison(dt_attention *a) {
  memset(dt_window_local(a->arrivals), 0xff, dt_window_bytes(a->arrivals, a->rank));
  memset(dt_window_local(a->output), 0xff, dt_window_bytes(a->output, a->rank));
  memset(a->kept, 0xff, a->kept_bytes);
}

static int run_stress(dt_comm *comm, void *argument) {
  const stress *s = argument;
  problem *p = s->problem;
  int32_t rank = dt_comm_rank(comm);
  dt_attention_config config = p->config;
  config.schedule = DT_ATTENTION_SERIAL;
  config.delay_seed = 0;
  config.publish_early = 0;
  dt_attention_input input = make_input(p, rank);
  dt_attention *attention = NULL;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_OK);
  poison(attention);
  EXPECT(dt_attention_forward(attention, &input, NULL) == DT_OK);
  place_output(p, attention, rank, p->serial);
  EXPECT(dt_attention_set_schedule(attention, &p->config) == DT_OK);
  for (int i = 0; i < s->forwards; i++) {
    poison(attention);
    EXPECT(dt_attention_forward(attention, &input, NULL) == DT_OK);
    place_output(p, attention, rank, p->output);
    int same = !rows_differ(p, rank, p->serial, p->output);
    if (!same && s->corrupted) __atomic_fetch_add(s->corrupted, 1, __ATOMIC_RELAXED);
    EXPECT(same || s->expect_corruption);
  }
  dt_attention_destroy(attention);
  free_input(&input);
  return 0;
}

static problem random_problem(dt_random *random) {
  static const dt_dtype types[] = {DT_DTYPE_F32, DT_DTYPE_F32, DT_DTYPE_BF16, DT_DTYPE_F16};
  int32_t kv_heads = 1 + (int32_t)dt_random_below(random, 4), group = 1 + (int32_t)dt_random_below(random, 3);
  int32_t heads = kv_heads * group, most = heads < 4 ? heads : 4;
  problem p =
      make_problem(1 + (int32_t)dt_random_below(random, (uint64_t)most), (int64_t)dt_random_below(random, 90),
                   (int64_t)dt_random_below(random, 90), heads, kv_heads, 1 + (int32_t)dt_random_below(random, 24),
                   types[dt_random_below(random, 4)], dt_random_u64(random) >> 20);
  int64_t shorter = p.config.tokens < p.config.kv_tokens ? p.config.tokens : p.config.kv_tokens;
  if (dt_random_below(random, 2)) p.config.text_tokens = (int64_t)dt_random_below(random, (uint64_t)shorter + 1);
  p.config.text = (dt_attention_text)dt_random_below(random, 2);
  p.config.causal = (int32_t)dt_random_below(random, 2);
  p.config.schedule = (dt_attention_schedule)(dt_random_below(random, 4) > 0);
  p.config.overlap_in = dt_random_below(random, 4) > 0;
  p.config.tile_rows = 1 + (int32_t)dt_random_below(random, 40);
  p.config.own_lag = (int32_t)dt_random_below(random, 5);
  p.config.workers = 1 + (int32_t)dt_random_below(random, 3);
  p.config.consumers = (int32_t)dt_random_below(random, 3);
  p.config.delay_seed = dt_random_u64(random) | 1;
  p.config.delay_max_us = 100;
  return p;
}

static void test_random_attention(void **state) {
  (void)state;
  int runs = SANITIZED && !getenv("DT_LONG") ? 100 : 500;
  for (int i = 0; i < runs; i++) {
    dt_random random = {(uint64_t)i * 1000 + 11};
    problem p = random_problem(&random);
    problem_create(&p);
    stress s = {.problem = &p, .forwards = 2};
    int result = run_ranks(0, p.ranks, NULL, run_stress, &s);
    double error = relative_error(&p, p.serial);
    /* few values a token: the values that it averages may nearly cancel */
    if (result || !(error <= 20 * tolerance(p.config.dtype))) fprintf(stderr, "run %d: error %g\n", i, error);
    assert_int_equal(result, 0);
    assert_true(error <= 20 * tolerance(p.config.dtype));
    problem_destroy(&p);
  }
}

/* Flags of one forward must never count for the next, however far a rank lags. */
static void test_many_forwards(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++)
    for (int overlap = 0; overlap < 2; overlap++) {
      problem p = make_problem(3, 40, 40, 5, 5, 8, DT_DTYPE_F32, 900);
      p.config.overlap_in = overlap;
      p.config.delay_seed = 77;
      p.config.delay_max_us = 300;
      problem_create(&p);
      stress s = {.problem = &p, .forwards = SANITIZED ? 10 : 40};
      assert_int_equal(run_ranks(shm, 3, NULL, run_stress, &s), 0);
      problem_destroy(&p);
    }
}

/* Negative control: with the counters published before the stores, the same test must see wrong rows. */
static void test_early_counters_corrupt(void **state) {
  (void)state;
#if defined(__SANITIZE_THREAD__)
  skip(); /* it is a data race by intent */
#endif
  int *corrupted = shared_pages(sizeof(*corrupted));
  for (uint64_t attempt = 0; attempt < 20 && !*corrupted; attempt++) {
    problem p = make_problem(2, 80, 80, 4, 4, 16, DT_DTYPE_F32, 950 + attempt);
    p.config.workers = 2;
    p.config.delay_seed = 5 + attempt;
    p.config.delay_max_us = 500;
    p.config.publish_early = 1;
    problem_create(&p);
    stress s = {.problem = &p, .forwards = 3, .corrupted = corrupted, .expect_corruption = 1};
    assert_int_equal(run_ranks(0, 2, NULL, run_stress, &s), 0);
    problem_destroy(&p);
  }
  assert_true(*corrupted > 0);
  munmap(corrupted, sizeof(*corrupted));
}

typedef struct victim {
  problem *problem;
  int32_t rank;
  int forward; /* before which it dies */
  int64_t delay_us;
} victim;

static void *die_later(void *argument) {
  const victim *v = argument;
  sleep_s((double)v->delay_us * 1e-6);
  raise(SIGKILL);
  return NULL;
}

/* Whoever is left gets an error that says who is gone, at once and ever after. */
static int run_until_death(dt_comm *comm, void *argument) {
  victim *v = argument;
  problem *p = v->problem;
  int32_t rank = dt_comm_rank(comm);
  dt_attention_input input = make_input(p, rank);
  dt_attention *attention = NULL;
  EXPECT(dt_attention_create(comm, &p->config, &attention) == DT_OK);
  double begin = now_s();
  dt_status status = DT_OK;
  for (int i = 0; !status && now_s() < begin + 20; i++) {
    pthread_t thread;
    if (rank == v->rank && i == v->forward && pthread_create(&thread, NULL, die_later, v)) abort();
    status = dt_attention_forward(attention, &input, NULL);
  }
  EXPECT(status == DT_ERR_PEER);
  EXPECT(strstr(dt_error_detail(), "rank 1"));
  EXPECT(now_s() < begin + 10);
  EXPECT(dt_attention_forward(attention, &input, NULL) == DT_ERR_PEER);
  dt_attention_destroy(attention);
  free_input(&input);
  return 0;
}

static void test_killed_rank(void **state) {
  (void)state;
  for (int64_t delay_us = 0; delay_us < 4000; delay_us += 700)
    for (int schedule = 0; schedule < 2; schedule++) {
      problem p = make_problem(3, 200, 200, 6, 6, 16, DT_DTYPE_F32, 970);
      p.config.schedule = (dt_attention_schedule)schedule;
      p.check_every = 1000;
      problem_create(&p);
      victim v = {.problem = &p, .rank = 1, .forward = 2, .delay_us = delay_us};
      int results[RANKS_MAX];
      run_shm(3, NULL, run_until_death, &v, results);
      assert_int_equal(results[0], 0);
      assert_int_equal(results[1], 128 + SIGKILL);
      assert_int_equal(results[2], 0);
      problem_destroy(&p);
    }
}

static int run_disagreement(dt_comm *comm, void *argument) {
  dt_attention_config config = *(const dt_attention_config *)argument;
  dt_attention *attention = NULL;
  if (dt_comm_rank(comm) == 1) config.heads = 12;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_ERR_MISMATCH);
  EXPECT(strcmp(dt_error_detail(), "heads: 6 on ranks 0, 2; 12 on rank 1; the same on every rank") == 0);
  return 0;
}

static int run_refusals(dt_comm *comm, void *argument) {
  const dt_attention_config *good = argument;
  dt_attention *attention = NULL;
  dt_attention_config config = *good;
  config.heads = 2;
  config.kv_heads = 1;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_ERR_ARGUMENT);
  EXPECT(strcmp(dt_error_detail(), "heads: 2; allowed: 3, the ranks, to 65536") == 0);
  config = *good;
  config.dtype = DT_DTYPE_I64;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_ERR_ARGUMENT);
  config = *good;
  config.scale = INFINITY;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_ERR_ARGUMENT);
  config = *good;
  config.workers = 0;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_ERR_ARGUMENT);
  EXPECT(strcmp(dt_error_detail(), "workers: 0; allowed: 1 to 1024") == 0);
  config = *good;
  config.schedule = (dt_attention_schedule)7;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_ERR_ARGUMENT);
  EXPECT(attention == NULL);
  return 0;
}

static void test_refusals(void **state) {
  (void)state;
  problem p = make_problem(3, 10, 10, 6, 3, 8, DT_DTYPE_F32, 1);
  for (int shm = 0; shm < 2; shm++) {
    assert_int_equal(run_ranks(shm, 3, NULL, run_disagreement, &p.config), 0);
    assert_int_equal(run_ranks(shm, 3, NULL, run_refusals, &p.config), 0);
  }
}

/* Spans of a forward: every tile once, with its store inside; the bytes of all puts are those that left the rank. */
static int run_spans(dt_comm *comm, void *argument) {
  problem *p = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_attention_input input = make_input(p, rank);
  dt_attention *attention = NULL;
  EXPECT(dt_attention_create(comm, &p->config, &attention) == DT_OK);
  for (int schedule = 0; schedule < 2; schedule++) {
    dt_attention_config config = p->config;
    dt_attention_stats stats;
    const dt_span *spans;
    size_t count;
    int64_t tiles = 0, bytes = 0, rows = 0;
    config.schedule = (dt_attention_schedule)schedule;
    EXPECT(dt_attention_set_schedule(attention, &config) == DT_OK);
    EXPECT(dt_attention_forward(attention, &input, &stats) == DT_OK);
    dt_attention_spans(attention, &spans, &count);
    for (size_t i = 0; i < count; i++) {
      EXPECT(spans[i].begin_ns <= spans[i].end_ns);
      tiles += spans[i].kind == DT_SPAN_ATTENTION;
      if (spans[i].kind == DT_SPAN_ATTENTION) rows += spans[i].rows;
      if (spans[i].kind != DT_SPAN_LINK) bytes += spans[i].bytes;
    }
    EXPECT(tiles == stats.tiles && rows == attention->heads * p->config.tokens);
    EXPECT((uint64_t)bytes == stats.bytes_sent);
  }
  dt_attention_destroy(attention);
  free_input(&input);
  return 0;
}

static void test_spans(void **state) {
  (void)state;
  dt_comm_config link;
  dt_comm_config_init(&link);
  link.link_bytes_per_s = 100e6;
  link.link_capacity_bytes = 2048;
  problem p = make_problem(3, 100, 70, 7, 7, 8, DT_DTYPE_BF16, 990);
  p.check_every = 1000;
  problem_create(&p);
  assert_int_equal(run_ranks(0, 3, &link, run_spans, &p), 0);
  assert_int_equal(run_ranks(0, 3, NULL, run_spans, &p), 0);
  problem_destroy(&p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_attention),
      cmocka_unit_test(test_many_forwards),
      cmocka_unit_test(test_early_counters_corrupt),
      cmocka_unit_test(test_killed_rank),
      cmocka_unit_test(test_refusals),
      cmocka_unit_test(test_spans),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
