/* Every schedule gives serial's bits, and serial is right: ranks, bands, layouts, orders, types, parameters. */
#include "moe_support.h"

static const double LATENCY_S = 20e-3;

typedef struct run {
  layer *layer;
  dt_moe_config config;
  int orders; /* try all orders with each schedule */
} run;

/* Serial first, then every schedule, each in turn with the same buffers. */
static int run_schedules(dt_comm *comm, void *argument) {
  const run *r = argument;
  layer *l = r->layer;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = r->config;
  config.schedule = DT_SCHEDULE_SERIAL;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  dt_moe_stats stats;
  EXPECT(dt_moe_forward(moe, &l->input[rank], l->serial[rank], &stats) == DT_OK);
  double error = relative_error(l, rank, l->serial[rank]);
  EXPECT(error <= tolerance(l->shape.dtype));
  const dt_plan *plan = dt_moe_plan(moe);
  EXPECT(stats.total_s > 0 && stats.rows == plan->rows);
  EXPECT(stats.tiles == (int64_t)plan->band_count * (plan->config.columns_1 + plan->config.columns_2));
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    if (s == DT_SCHEDULE_SIGNAL && config.consumers < 1) continue;
    for (int order = r->orders ? DT_ORDER_NATURAL : -1; order <= (r->orders ? (int)DT_ORDER_PACED : -1); order++) {
      config.schedule = (dt_schedule)s;
      config.order = (dt_order)order;
      EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
      memset(l->output[rank], 0xff, output_bytes(l, rank));
      EXPECT(dt_moe_forward(moe, &l->input[rank], l->output[rank], NULL) == DT_OK);
      EXPECT(memcmp(l->serial[rank], l->output[rank], output_bytes(l, rank)) == 0);
      EXPECT(dt_plan_check(dt_moe_plan(moe), dt_moe_counts(moe)) == DT_OK);
    }
  }
  dt_moe_destroy(moe);
  return 0;
}

static int run_case(int shm, const layer_shape *shape, const dt_moe_config *config, int orders) {
  layer l;
  layer_create(&l, shape);
  run r = {.layer = &l, .config = *config, .orders = orders};
  int result = run_ranks(shm, shape->ranks, NULL, run_schedules, &r);
  layer_destroy(&l);
  return result;
}

static layer_shape small_shape(int32_t ranks, uint64_t seed) {
  layer_shape shape = {
      .ranks = ranks, .experts_per_rank = 3, .top_k = 2, .hidden = 40, .intermediate = 24, .seed = seed};
  for (int32_t r = 0; r < ranks; r++) shape.tokens[r] = 30 + (int64_t)((seed * 31 + (uint64_t)r * 17) % 40);
  return shape;
}

static void test_ranks_tiles_layouts_orders(void **state) {
  (void)state;
  static const int32_t ranks[] = {1, 2, 3, 4, 8}, tiles[] = {16, 32, 64, 128};
  static const dt_dtype types[] = {DT_DTYPE_F32, DT_DTYPE_BF16, DT_DTYPE_F16};
  uint64_t seed = 0;
  for (size_t i = 0; i < 5; i++) {
    for (size_t j = 0; j < 4; j++) {
      for (int layout = 0; layout < 2; layout++) {
        seed++;
        layer_shape shape = small_shape(ranks[i], seed);
        shape.dtype = types[seed % 3];
        shape.weight_dtype = types[seed / 3 % 3];
        dt_moe_config config = layer_config(&shape);
        config.tile_m = tiles[j];
        config.layout = (dt_layout)layout;
        config.workers = 1 + (int32_t)(seed % 2);
        assert_int_equal(run_case(0, &shape, &config, 1), 0);
      }
    }
  }
}

static void test_parameters(void **state) {
  (void)state;
  uint64_t seed = 100;
  for (int32_t workers = 1; workers <= 4; workers++) {
    for (int32_t consumers = 0; consumers <= 2; consumers++) {
      for (int32_t raster = 1; raster <= 4; raster += 3) {
        layer_shape shape = small_shape(2, ++seed);
        shape.route = seed % 2 ? ROUTE_DROPS : ROUTE_RANDOM;
        dt_moe_config config = layer_config(&shape);
        config.workers = workers;
        config.consumers = consumers;
        config.raster_bands = raster;
        config.lead = 1 + (int32_t)(seed % 3);
        config.group_tasks = 1 + (int32_t)(seed % 5);
        config.wave_experts = (int32_t)(seed % 3);
        config.segment_bands = 1 + (int32_t)(seed % 2);
        assert_int_equal(run_case(0, &shape, &config, 0), 0);
      }
    }
  }
}

static void test_families(void **state) {
  (void)state;
  static const dt_dtype types[] = {DT_DTYPE_F32, DT_DTYPE_BF16, DT_DTYPE_F16};
  for (int i = 0; i < 3; i++) {
    for (int variant = 0; variant < 4; variant++) {
      layer_shape shape = small_shape(2, 200 + (uint64_t)(i * 4 + variant));
      shape.dtype = types[i];
      shape.weight_dtype = types[(i + variant) % 3];
      shape.biases = variant & 1;
      shape.activation = variant & 1 ? DT_ACTIVATION_SWIGLU_CLAMPED : DT_ACTIVATION_SILU;
      shape.shared_intermediate = variant & 2 ? 56 : 0;
      shape.shared_gate = variant == 2;
      shape.tokens[1] = 150; /* several blocks */
      dt_moe_config config = layer_config(&shape);
      config.workers = 2;
      assert_int_equal(run_case(0, &shape, &config, 0), 0);
    }
  }
}

static void test_uneven_ranks(void **state) {
  (void)state;
  for (int route = ROUTE_RANDOM; route <= ROUTE_ONE_EXPERT; route++) {
    for (int empty = 0; empty < 2; empty++) {
      layer_shape shape = small_shape(3, 300 + (uint64_t)route);
      shape.route = (routing)route;
      shape.tokens[0] = empty ? 0 : 1;
      shape.tokens[1] = 90;
      dt_moe_config config = layer_config(&shape);
      assert_int_equal(run_case(0, &shape, &config, 0), 0);
    }
  }
  layer_shape nothing = small_shape(2, 310);
  nothing.tokens[0] = nothing.tokens[1] = 0;
  dt_moe_config config = layer_config(&nothing);
  assert_int_equal(run_case(0, &nothing, &config, 0), 0);
}

static void test_processes(void **state) {
  (void)state;
  for (int32_t ranks = 2; ranks <= 4; ranks++) {
    layer_shape shape = small_shape(ranks, 400 + (uint64_t)ranks);
    shape.dtype = ranks % 2 ? DT_DTYPE_BF16 : DT_DTYPE_F32;
    dt_moe_config config = layer_config(&shape);
    assert_int_equal(run_case(1, &shape, &config, 0), 0);
  }
}

static void test_paced_link(void **state) {
  (void)state;
  layer_shape shape = small_shape(2, 500);
  dt_moe_config config = layer_config(&shape);
  dt_comm_config link;
  dt_comm_config_init(&link);
  link.link_bytes_per_s = 20e6;
  link.link_capacity_bytes = 4096;
  link.link_latency_s = 50e-6;
  for (int shm = 0; shm < 2; shm++) {
    for (int32_t consumers = 0; consumers < 2; consumers++) {
      layer l;
      layer_create(&l, &shape);
      config.consumers = consumers;
      run r = {.layer = &l, .config = config};
      assert_int_equal(run_ranks(shm, 2, &link, run_schedules, &r), 0);
      layer_destroy(&l);
    }
  }
}

/* Rows are used when the link has brought them: counts, dispatch and combine come one after the other, each a latency
 * after it was put, so the rank that begins first takes three of them. One that begins later finds the other's counts
 * under way, or there. */
static int run_latency(dt_comm *comm, void *argument) {
  const run *r = argument;
  const int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = r->config;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &r->layer->weights[rank], &moe) == DT_OK);
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    dt_moe_stats stats;
    double total_s[2];
    config.schedule = (dt_schedule)s;
    EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
    EXPECT(dt_moe_forward(moe, &r->layer->input[rank], r->layer->output[rank], &stats) == DT_OK);
    EXPECT(dt_comm_allgather(comm, &stats.total_s, total_s, sizeof *total_s) == DT_OK);
    EXPECT(total_s[0] >= 3 * LATENCY_S || total_s[1] >= 3 * LATENCY_S);
  }
  dt_moe_destroy(moe);
  return 0;
}

static void test_latency(void **state) {
  (void)state;
  layer_shape shape = small_shape(2, 501);
  layer l;
  layer_create(&l, &shape);
  run r = {.layer = &l, .config = layer_config(&shape)};
  dt_comm_config link;
  dt_comm_config_init(&link);
  link.link_bytes_per_s = 1e9;
  link.link_capacity_bytes = 1e6;
  link.link_latency_s = LATENCY_S;
  assert_int_equal(run_ranks(0, 2, &link, run_latency, &r), 0);
  layer_destroy(&l);
}

/* Groups are in waves of workers: 6 for wave, 2 for what interleaves, which is one group ahead. */
static int run_defaults(dt_comm *comm, void *argument) {
  const run *r = argument;
  dt_moe_config config = r->config;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &r->layer->weights[0], &moe) == DT_OK);
  for (int s = DT_SCHEDULE_WAVE; s <= DT_SCHEDULE_ALTERNATE; s++) {
    config.schedule = (dt_schedule)s;
    EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
    EXPECT(dt_moe_forward(moe, &r->layer->input[0], r->layer->output[0], NULL) == DT_OK);
    const dt_plan_config *plan = &dt_moe_plan(moe)->config;
    EXPECT(plan->group_tasks == config.workers * (s == DT_SCHEDULE_WAVE ? 6 : 2));
    EXPECT(plan->lead == 1 && plan->segment_bands == 1 && plan->wave_experts == 0 && plan->order == DT_ORDER_PACED);
  }
  dt_moe_destroy(moe);
  return 0;
}

static void test_defaults(void **state) {
  (void)state;
  layer_shape shape = small_shape(1, 601);
  layer l;
  layer_create(&l, &shape);
  run r = {.layer = &l, .config = layer_config(&shape)};
  r.config.workers = 3;
  assert_int_equal(run_ranks(0, 1, NULL, run_defaults, &r), 0);
  layer_destroy(&l);
}

enum { CHOICES = 3 };

/* The choices' weights are the same for every token. */
static dt_status forward_weighted(dt_moe *moe, const layer *l, const float *weights, float *output) {
  dt_moe_input input = l->input[0];
  float *all = malloc((size_t)(input.tokens * CHOICES) * sizeof(float));
  for (int64_t i = 0; i < input.tokens * CHOICES; i++) all[i] = weights[i % CHOICES];
  input.weights = all;
  dt_status status = dt_moe_forward(moe, &input, output, NULL);
  free(all);
  return status;
}

/* What each choice and the shared expert give is had alone, by weights of 0 and 1; powers of 2 multiply exactly. */
static int run_sums(dt_comm *comm, void *argument) {
  const run *r = argument;
  const layer *l = r->layer;
  const size_t values = (size_t)(l->shape.tokens[0] * l->shape.hidden);
  float *part[CHOICES + 1], *output = malloc(values * sizeof(float));
  const float weights[CHOICES] = {0.5f, 2, 1}, none[CHOICES] = {0};
  dt_moe_weights routed = l->weights[0];
  routed.shared_intermediate = 0;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &r->config, &routed, &moe) == DT_OK);
  for (int k = 0; k < CHOICES; k++) {
    float one[CHOICES] = {0};
    one[k] = 1;
    part[k] = malloc(values * sizeof(float));
    EXPECT(forward_weighted(moe, l, one, part[k]) == DT_OK);
  }
  dt_moe_destroy(moe);
  part[CHOICES] = malloc(values * sizeof(float));
  EXPECT(dt_moe_create(comm, &r->config, &l->weights[0], &moe) == DT_OK);
  EXPECT(forward_weighted(moe, l, none, part[CHOICES]) == DT_OK);
  EXPECT(forward_weighted(moe, l, weights, output) == DT_OK);
  dt_moe_destroy(moe);
  int wrong = 0, told_apart = 0;
  for (size_t i = 0; i < values; i++) {
    float sum = 0, other = part[CHOICES][i];
    for (int k = 0; k < CHOICES; k++) sum += weights[k] * part[k][i];
    for (int k = CHOICES - 1; k >= 0; k--) other += weights[k] * part[k][i];
    sum += part[CHOICES][i];
    wrong += output[i] != sum;
    told_apart += other != sum;
  }
  for (int k = 0; k <= CHOICES; k++) free(part[k]);
  free(output);
  EXPECT(wrong == 0 && told_apart > 100);
  return 0;
}

/* A token's choices are added in ascending order, the shared expert last: to the bit. */
static void test_order_of_sums(void **state) {
  (void)state;
  layer_shape shape = small_shape(1, 701);
  shape.top_k = CHOICES;
  shape.shared_intermediate = 16;
  layer l;
  layer_create(&l, &shape);
  run r = {.layer = &l, .config = layer_config(&shape)};
  assert_int_equal(run_ranks(0, 1, NULL, run_sums, &r), 0);
  layer_destroy(&l);
}

/* As in float64, where a gate of -1000 leaves nothing of any up. */
static void test_closed_gates(void **state) {
  (void)state;
  const float gate[] = {-1000, -1e30f, 1000, NAN}, up[] = {1e6f, 1, 2, 1};
  float out[4];
  for (int a = DT_ACTIVATION_SILU; a <= DT_ACTIVATION_SWIGLU_CLAMPED; a++) {
    const dt_glu glu = {.activation = (dt_activation)a, .alpha = 1.702f, .limit = 7};
    dt_glu_row(&glu, gate, up, 4, out);
    assert_true(out[0] == 0 && out[1] == 0 && isnan(out[3]));
    assert_true(fabsf(out[2] - (a == DT_ACTIVATION_SILU ? 2000 : 21)) < 1e-3f);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks_tiles_layouts_orders),
      cmocka_unit_test(test_parameters),
      cmocka_unit_test(test_families),
      cmocka_unit_test(test_uneven_ranks),
      cmocka_unit_test(test_processes),
      cmocka_unit_test(test_paced_link),
      cmocka_unit_test(test_latency),
      cmocka_unit_test(test_defaults),
      cmocka_unit_test(test_order_of_sums),
      cmocka_unit_test(test_closed_gates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
