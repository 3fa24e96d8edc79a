/* Attention over ranks is right, and piggyback gives serial's bits: ranks, types, masks, lengths, heads, text. */
#include "attention_support.h"

/* Serial, then piggyback with and without the overlapped way in, twice each: the second run finds used buffers. */
static int run_schedules(dt_comm *comm, void *argument) {
  problem *p = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_attention_config config = p->config;
  config.schedule = DT_ATTENTION_SERIAL;
  dt_attention_input input = make_input(p, rank);
  dt_attention *attention = NULL;
  dt_attention_stats stats;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_OK);
  EXPECT(dt_attention_forward(attention, &input, &stats) == DT_OK);
  EXPECT(stats.total_s > 0 && stats.in_s + stats.compute_s + stats.out_s <= stats.total_s);
  uint64_t sent = stats.bytes_sent;
  place_output(p, attention, rank, p->serial);
  config.schedule = DT_ATTENTION_PIGGYBACK;
  for (int i = 0; i < 4; i++) {
    config.overlap_in = i % 2;
    EXPECT(dt_attention_set_schedule(attention, &config) == DT_OK);
    EXPECT(dt_attention_forward(attention, &input, &stats) == DT_OK);
    EXPECT(stats.bytes_sent == sent);
    place_output(p, attention, rank, p->output);
    EXPECT(!rows_differ(p, rank, p->serial, p->output));
  }
  dt_attention_destroy(attention);
  free_input(&input);
  return 0;
}

static void check_problem(int shm, problem *p, const dt_comm_config *link) {
  problem_create(p);
  int result = run_ranks(shm, p->ranks, link, run_schedules, p);
  double error = relative_error(p, p->serial);
  int64_t wrong = 0;
  for (int64_t row = 0; row < p->config.tokens; row++) wrong += p->written[row] != 5; /* once a forward */
  problem_destroy(p);
  if (result || wrong || !(error <= tolerance(p->config.dtype)))
    fprintf(stderr, "seed %llu: result %d, rows lost or doubled %lld, error %g\n", (unsigned long long)p->seed, result,
            (long long)wrong, error);
  assert_int_equal(result, 0);
  assert_int_equal(wrong, 0);
  assert_true(error <= tolerance(p->config.dtype));
}

static void test_ranks_types_masks(void **state) {
  (void)state;
  static const int32_t ranks[] = {1, 2, 3, 4, 8};
  static const int64_t lengths[][2] = {{67, 67}, {40, 90}, {90, 40}, {5, 130}};
  static const dt_dtype types[] = {DT_DTYPE_F32, DT_DTYPE_BF16, DT_DTYPE_F16};
  uint64_t seed = 0;
  for (size_t r = 0; r < 5; r++)
    for (size_t l = 0; l < 4; l++)
      for (int causal = 0; causal < 2; causal++)
        for (int shm = 0; shm < 2; shm++) {
          seed++;
          problem p =
              make_problem(ranks[r], lengths[l][0], lengths[l][1], 8, seed % 3 ? 8 : 2, 24, types[seed % 3], seed);
          p.config.causal = causal;
          p.config.workers = 1 + (int32_t)(seed % 2);
          p.config.consumers = (int32_t)(seed % 3);
          check_problem(shm, &p, NULL);
        }
}

/* Several blocks of keys a tile, one of them short. */
static void test_blocks_of_keys(void **state) {
  (void)state;
  for (int causal = 0; causal < 2; causal++) {
    problem p = make_problem(2, 300, 1300, 4, 2, 32, causal ? DT_DTYPE_BF16 : DT_DTYPE_F32, 60 + (uint64_t)causal);
    p.config.causal = causal;
    p.check_every = 7;
    check_problem(0, &p, NULL);
  }
}

static void test_uneven_heads(void **state) {
  (void)state;
  static const struct {
    int32_t ranks, heads, kv_heads;
  } cases[] = {{4, 30, 30}, {8, 12, 12}, {2, 28, 7}, {8, 12, 1}, {3, 7, 1}, {4, 18, 6}, {5, 5, 5}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
    for (int shm = 0; shm < 2; shm++) {
      problem p = make_problem(cases[i].ranks, 45, 45, cases[i].heads, cases[i].kv_heads, 16,
                               shm ? DT_DTYPE_BF16 : DT_DTYPE_F32, 100 + i);
      check_problem(shm, &p, NULL);
    }
}

/* Every one of the tokens comes back, none twice, with its own values. */
static void test_uneven_lengths(void **state) {
  (void)state;
  static const int64_t lengths[] = {56700, 57826};
  for (size_t i = 0; i < 2; i++) {
    problem p = make_problem(8, lengths[i], 9, 8, 8, 4, DT_DTYPE_F32, 120 + i);
    p.config.tile_rows = 128;
    check_problem(0, &p, NULL);
  }
  problem few = make_problem(8, 3, 2, 8, 8, 4, DT_DTYPE_F32, 130);
  check_problem(0, &few, NULL);
}

static void test_text_and_image(void **state) {
  (void)state;
  for (int text = 0; text < 2; text++)
    for (int32_t ranks = 1; ranks <= 4; ranks++)
      for (int causal = 0; causal < 2; causal++) {
        problem p = make_problem(ranks, 83, 83, 6, 3, 16, text ? DT_DTYPE_F32 : DT_DTYPE_BF16,
                                 140 + (uint64_t)(text * 10 + ranks));
        p.config.text_tokens = 13;
        p.config.text = (dt_attention_text)text;
        p.config.causal = causal;
        check_problem(ranks % 2, &p, NULL);
      }
  problem all = make_problem(3, 20, 20, 3, 3, 8, DT_DTYPE_F32, 160); /* nothing but text */
  all.config.text_tokens = 20;
  all.config.text = DT_ATTENTION_TEXT_REPLICATED;
  check_problem(0, &all, NULL);
  for (int text = 0; text < 2; text++) {
    problem p = make_problem(2, 4096 + 126, 4096 + 126, 2, 2, 16, DT_DTYPE_BF16, 170 + (uint64_t)text);
    p.config.text_tokens = 126;
    p.config.text = (dt_attention_text)text;
    p.config.tile_rows = 128;
    p.check_every = SANITIZED ? 331 : 41;
    check_problem(0, &p, NULL);
  }
}

static void test_tiles(void **state) {
  (void)state;
  static const struct {
    int64_t tokens;
    int32_t tile_rows;
  } cases[] = {{1024, 192}, {1000, 192}, {333, 64}, {65, 128}, {127, 1}};
  for (size_t i = 0; i < 5; i++) {
    problem p = make_problem(2, cases[i].tokens, 70, 2, 2, 16, DT_DTYPE_F32, 200 + i);
    p.config.tile_rows = cases[i].tile_rows;
    check_problem(0, &p, NULL);
  }
}

/* A row that sees no key is zero, to the bit. */
static void test_fully_masked(void **state) {
  (void)state;
  problem p = make_problem(2, 50, 20, 4, 4, 16, DT_DTYPE_F32, 220);
  p.config.causal = 1; /* the first 30 rows come before all keys */
  problem_create(&p);
  assert_int_equal(run_ranks(0, 2, NULL, run_schedules, &p), 0);
  for (size_t i = 0; i < 30 * token_bytes(&p); i++) assert_int_equal(p.output[i], 0);
  assert_true(relative_error(&p, p.output) <= 1e-5);
  problem_destroy(&p);
  problem none = make_problem(2, 50, 0, 4, 4, 16, DT_DTYPE_BF16, 221);
  check_problem(0, &none, NULL);

  float row[40], top = -INFINITY, sum = 0;
  for (int i = 0; i < 40; i++) row[i] = -INFINITY;
  assert_true(dt_softmax_row(row, 40, 40, &top, &sum) == 1.0f);
  assert_true(sum == 0);
  for (int i = 0; i < 40; i++) assert_true(row[i] == 0);
  row[3] = 5;
  row[20] = -INFINITY;
  assert_true(isfinite(dt_softmax_row(row, 40, 40, &top, &sum)));
  assert_true(top == 5 && sum > 0 && row[3] == 1 && row[20] < 1e-37f);
}

/* A key without weight has none, however large its value; scores that are no numbers are not taken for masked ones. */
static void test_ends_of_softmax(void **state) {
  (void)state;
  float top = -INFINITY, sum = 0, pair[2] = {0, -100}, bad[3] = {NAN, NAN, NAN};
  assert_true(dt_softmax_row(pair, 2, 2, &top, &sum) == 0);
  assert_true(pair[0] == 1 && pair[1] == 0 && sum == 1);
  assert_true(dt_softmax_row((float[]){200}, 1, 1, &top, &sum) == 0);
  top = -INFINITY;
  sum = 0;
  dt_softmax_row(bad, 3, 3, &top, &sum);
  assert_true(isnan(bad[0]) && isnan(bad[2]) && isnan(sum));
}

/* Scores beyond float32, above or below: no numbers come out, not zeros. */
static void test_scores_beyond(void **state) {
  (void)state;
  problem p = make_problem(2, 40, 1, 2, 2, 8, DT_DTYPE_F32, 245);
  p.amplitude = 1e10;
  p.config.scale = 1e30f;
  problem_create(&p);
  run_ranks(0, 2, NULL, run_schedules, &p);
  const float *y = (const float *)(const void *)p.serial;
  for (size_t i = 0; i < 40 * token_values(&p); i++) assert_true(isnan(y[i]));
  problem_destroy(&p);
}

/* Logits of hundreds stay within the tolerance, and of ten thousands finite. */
static void test_large_logits(void **state) {
  (void)state;
  for (int type = DT_DTYPE_BF16; type <= (int)DT_DTYPE_F16; type++) {
    problem p = make_problem(2, 60, 60, 2, 2, 64, (dt_dtype)type, 240);
    p.config.scale = 100 / 8.0f;
    check_problem(0, &p, NULL);
    problem large = make_problem(2, 60, 60, 2, 2, 64, (dt_dtype)type, 241);
    large.amplitude = 100;
    problem_create(&large);
    assert_int_equal(run_ranks(0, 2, NULL, run_schedules, &large), 0);
    double values[64];
    for (int64_t row = 0; row < 60; row++)
      for (int32_t head = 0; head < 2; head++) {
        row_of(&large, large.output, 2, head, row, values);
        for (int d = 0; d < 64; d++) assert_true(isfinite(values[d]));
      }
    assert_true(relative_error(&large, large.output) < 0.1); /* float32 holds logits of 1e5 to about 1e-2 */
    problem_destroy(&large);
  }
}

static void test_scale(void **state) {
  (void)state;
  static const float scales[] = {0, 0.3f, -1};
  for (int i = 0; i < 3; i++) {
    problem p = make_problem(2, 30, 30, 2, 1, 8, DT_DTYPE_F32, 260 + (uint64_t)i);
    p.config.scale = scales[i];
    check_problem(0, &p, NULL);
  }
}

static void test_paced_link(void **state) {
  (void)state;
  dt_comm_config link;
  dt_comm_config_init(&link);
  link.link_bytes_per_s = 20e6;
  link.link_capacity_bytes = 4096;
  link.link_latency_s = 50e-6;
  for (int shm = 0; shm < 2; shm++)
    for (int32_t consumers = 0; consumers < 2; consumers++) {
      problem p = make_problem(2, 100, 100, 4, 2, 16, DT_DTYPE_F32, 280);
      p.config.consumers = consumers;
      check_problem(shm, &p, &link);
    }
}

/* Rows are used when the link has brought them: the way in, then the way out, each a latency after it was put. */
static const double LATENCY_S = 20e-3;

static int run_latency(dt_comm *comm, void *argument) {
  const problem *p = argument;
  dt_attention_config config = p->config;
  dt_attention_input input = make_input(p, dt_comm_rank(comm));
  dt_attention *attention = NULL;
  EXPECT(dt_attention_create(comm, &config, &attention) == DT_OK);
  for (int i = 0; i < 3; i++) {
    dt_attention_stats stats;
    config.schedule = i == 0 ? DT_ATTENTION_SERIAL : DT_ATTENTION_PIGGYBACK;
    config.overlap_in = i == 2;
    EXPECT(dt_attention_set_schedule(attention, &config) == DT_OK);
    EXPECT(dt_attention_forward(attention, &input, &stats) == DT_OK);
    EXPECT(stats.total_s >= 2 * LATENCY_S);
  }
  dt_attention_destroy(attention);
  free_input(&input);
  return 0;
}

static void test_latency(void **state) {
  (void)state;
  dt_comm_config link;
  dt_comm_config_init(&link);
  link.link_bytes_per_s = 1e9;
  link.link_capacity_bytes = 1e6;
  link.link_latency_s = LATENCY_S;
  problem p = make_problem(2, 60, 60, 4, 2, 16, DT_DTYPE_F32, 281);
  problem_create(&p);
  assert_int_equal(run_ranks(0, 2, &link, run_latency, &p), 0);
  problem_destroy(&p);
}

/* The library's float64 reference against the definition. */
static void test_reference(void **state) {
  (void)state;
  for (int i = 0; i < 6; i++) {
    problem p = make_problem(1, i % 2 ? 77 : 40, i == 5 ? 0 : 60, 6, i % 3 + 1, 16, DT_DTYPE_BF16, 300 + (uint64_t)i);
    p.config.causal = i & 1;
    problem_create(&p);
    int64_t first = 3, rows = p.config.tokens - 5;
    size_t values = (size_t)rows * token_values(&p);
    double *out = malloc(values * sizeof(double));
    assert_int_equal(dt_attention_reference(&p.config, p.q, p.k, p.v, first, rows, out), DT_OK);
    for (size_t j = 0; j < values; j++)
      assert_true(fabs(out[j] - p.expected[(size_t)first * token_values(&p) + j]) <= 1e-12);
    assert_int_equal(dt_attention_reference(&p.config, p.q, p.k, p.v, 0, p.config.tokens + 1, out), DT_ERR_ARGUMENT);
    free(out);
    problem_destroy(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks_types_masks),
      cmocka_unit_test(test_blocks_of_keys),
      cmocka_unit_test(test_uneven_heads),
      cmocka_unit_test(test_uneven_lengths),
      cmocka_unit_test(test_text_and_image),
      cmocka_unit_test(test_tiles),
      cmocka_unit_test(test_fully_masked),
      cmocka_unit_test(test_ends_of_softmax),
      cmocka_unit_test(test_scores_beyond),
      cmocka_unit_test(test_large_logits),
      cmocka_unit_test(test_scale),
      cmocka_unit_test(test_paced_link),
      cmocka_unit_test(test_latency),
      cmocka_unit_test(test_reference),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
