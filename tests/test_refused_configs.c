/* What the CPU layers, the fabric and the routers refuse: the field, its value and what is allowed; nothing is made. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/attention.h>
#include <draintile/comm.h>
#include <draintile/moe.h>
#include <draintile/moe_bench.h>

#include "comm_ranks.h"

static void starts_with(const char *want) {
  if (strncmp(dt_error_detail(), want, strlen(want)) != 0) fail_msg("%s; expected %s", dt_error_detail(), want);
}

typedef struct layer {
  dt_comm *comm;
  dt_expert experts[2];
  dt_moe_config config;
  dt_moe_weights weights;
} layer;

static dt_matrix matrix_of(int64_t rows, int64_t cols) {
  static const float zeros[16 * 8];
  return (dt_matrix){.data = zeros, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

static int open_layer(void **state) {
  static layer l;
  l = (layer){0};
  for (int e = 0; e < 2; e++)
    l.experts[e] = (dt_expert){.gate = matrix_of(8, 16), .up = matrix_of(8, 16), .down = matrix_of(16, 8)};
  dt_moe_config_init(&l.config);
  l.config.top_k = 2;
  l.config.max_tokens = 8;
  l.weights = (dt_moe_weights){.hidden = 16, .intermediate = 8, .experts_per_rank = 2, .experts = l.experts};
  *state = &l;
  return dt_comm_create_local(1, NULL, &l.comm);
}

static int close_layer(void **state) {
  dt_comm_destroy(((layer *)*state)->comm);
  return 0;
}

static void moe_refused(const layer *l, const char *detail) {
  dt_moe *moe = (dt_moe *)&moe, *untouched = moe;
  assert_int_equal(dt_moe_create(l->comm, &l->config, &l->weights, &moe), DT_ERR_ARGUMENT);
  starts_with(detail);
  assert_ptr_equal(moe, untouched);
}

static void moe_fields(void **state) {
  const layer good = *(layer *)*state;
  layer bad;
#define REFUSE(field, value, detail) (bad = good, bad.field = (value), moe_refused(&bad, detail))
  REFUSE(config.size, 8, "size: 8; must be ");
  REFUSE(config.dtype, DT_DTYPE_I64, "dtype: ");
  REFUSE(weights.hidden, 0, "hidden: 0; allowed: 1 to ");
  REFUSE(weights.hidden, INT64_MAX, "hidden: 9223372036854775807; allowed: 1 to ");
  REFUSE(weights.intermediate, 0, "intermediate: 0; allowed: 1 to ");
  REFUSE(weights.shared_intermediate, -1, "shared_intermediate: -1; allowed: 0 to ");
  REFUSE(weights.experts_per_rank, 0, "experts_per_rank: 0; allowed: 1 or more");
  REFUSE(config.top_k, 0, "top_k: 0; allowed: 1 to 2 experts");
  REFUSE(config.top_k, 3, "top_k: 3; allowed: 1 to 2 experts");
  REFUSE(config.max_tokens, -1, "max_tokens: -1; allowed: 0 to ");
  REFUSE(config.max_tokens, INT32_MAX, "max_tokens: 2147483647; allowed: 0 to 1073741823");
  REFUSE(config.max_rows, -1, "max_rows: -1; allowed: 0 to 2147483647");
  REFUSE(config.max_rows, INT64_MAX, "max_rows: 9223372036854775807; allowed: 0 to 2147483647");
  REFUSE(weights.activation, (dt_activation)2, "activation: 2; allowed: 0 to 1");
  REFUSE(weights.shared_intermediate, 4, "shared.gate: 0 x 0, without data; allowed: 4 x 16, its data given");
  REFUSE(config.tile_m, 0, "tile_m: 0; allowed: 1 to 4096");
  REFUSE(config.tile_n, 65537, "tile_n: 65537; allowed: 0 to 65536");
  REFUSE(config.layout, (dt_layout)2, "layout: 2; allowed: packed, aligned");
  REFUSE(config.workers, 1025, "workers: 1025; allowed: 1 to 1024");
  REFUSE(config.consumers, 1025, "consumers: 1025; allowed: 0 to 1024");
  REFUSE(config.schedule, (dt_schedule)6, "schedule: 6; allowed: 0 to 5");
  REFUSE(config.order, (dt_order)3, "order: 3; allowed: 0 to 2, or -1");
  REFUSE(config.segment_bands, -1, "segment_bands: -1; allowed: 0 or more");
  REFUSE(config.raster_bands, -1, "raster_bands: -1; allowed: 0 or more");
  REFUSE(config.lead, -1, "lead: -1; allowed: 0 or more");
  REFUSE(config.wave_experts, -1, "wave_experts: -1; allowed: 0 or more");
  REFUSE(config.group_tasks, -1, "group_tasks: -1; allowed: 0 or more");
  REFUSE(config.delay_max_us, -1, "delay_max_us: -1; allowed: 0 or more");
#undef REFUSE
  assert_int_equal(dt_moe_create(good.comm, &good.config, &good.weights, NULL), DT_ERR_ARGUMENT);
  dt_moe *moe;
  dt_moe_config other = good.config;
  other.schedule = DT_SCHEDULE_SERIAL; /* which needs no consumer */
  other.consumers = 0;
  assert_int_equal(dt_moe_create(good.comm, &other, &good.weights, &moe), DT_OK);
  other.schedule = DT_SCHEDULE_SIGNAL;
  assert_int_equal(dt_moe_set_schedule(moe, &other), DT_ERR_ARGUMENT);
  starts_with("consumers: 0; signal needs at least 1");
  dt_moe_destroy(moe);
}

/* A matrix that is not the layer's would be read past its end. */
static void moe_matrices(void **state) {
  const layer good = *(layer *)*state;
  dt_expert bad[2];
  layer l = good;
  l.weights.experts = bad;
#define REFUSE(field, value, detail)                                                                                   \
  (memcpy(bad, good.experts, sizeof bad), bad[1].field = (value), moe_refused(&l, "experts[1]." detail))
  REFUSE(gate.data, NULL, "gate: 8 x 16, without data; allowed: 8 x 16, its data given");
  REFUSE(gate.rows, 7, "gate: 7 x 16; allowed: 8 x 16");
  REFUSE(up.cols, 17, "up: 8 x 17; allowed: 8 x 16");
  REFUSE(down, matrix_of(8, 16), "down: 8 x 16; allowed: 16 x 8");
  REFUSE(down.dtype, DT_DTYPE_I64, "down: type i64; allowed: f32, bf16, f16, f8_e4m3, mxfp4");
  REFUSE(down.dtype, (dt_dtype)99, "down: type ");
  REFUSE(up.dtype, DT_DTYPE_MXFP4, "up: mxfp4, 16 columns, scales missing; allowed: a multiple of 32");
#undef REFUSE
  memcpy(bad, good.experts, sizeof bad);
  bad[0].gate.dtype = DT_DTYPE_F8_E4M3;
  bad[0].gate.scales = bad;
  moe_refused(&l, "experts[0].gate: scales for blocks of 0 x 0; allowed: 1 or more each");
}

/* Rows of all ranks times a width that passes 2^64 by little: said, not wrapped round to a small buffer. */
static int create_beyond_memory(dt_comm *comm, void *argument) {
  (void)argument;
  const int64_t wide = 3 << 26;
  const dt_expert expert = {.gate = matrix_of(wide, 1), .up = matrix_of(wide, 1), .down = matrix_of(1, wide)};
  const dt_moe_weights weights = {.hidden = 1, .intermediate = wide, .experts_per_rank = 1, .experts = &expert};
  dt_moe_config config;
  dt_moe_config_init(&config);
  config.top_k = 1;
  config.max_tokens = 1431655766; /* 16 ranks * this * wide * 4 bytes: 2^64 + 2^33 */
  dt_moe *moe;
  const dt_status status = dt_moe_create(comm, &config, &weights, &moe);
  EXPECT(status == DT_ERR_MEMORY || status == DT_ERR_PEER); /* of whoever comes second */
  return 0;
}

static void moe_sizes(void **state) {
  (void)state;
  assert_int_equal(run_local(16, NULL, create_beyond_memory, NULL, NULL), 0);
}

/* A rank without tokens passes nothing; what else is wrong with an input ends the layer, and the error stays. */
static void moe_inputs(void **state) {
  (void)state;
  static const struct {
    int64_t tokens;
    dt_status status;
    const char *detail;
  } cases[] = {{0, DT_OK, ""},
               {1, DT_ERR_ARGUMENT, "hidden, ids, weights, output: must be given for 1 tokens"},
               {-1, DT_ERR_ARGUMENT, "tokens: -1; allowed: 0 or more"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    layer *l = NULL;
    assert_int_equal(open_layer((void **)&l), DT_OK);
    dt_moe *moe = NULL;
    assert_int_equal(dt_moe_create(l->comm, &l->config, &l->weights, &moe), DT_OK);
    const dt_moe_input input = {.tokens = cases[i].tokens}, nothing = {.tokens = 0};
    assert_int_equal(dt_moe_forward(moe, &input, NULL, NULL), cases[i].status);
    if (cases[i].status) starts_with(cases[i].detail);
    assert_int_equal(dt_moe_forward(moe, &nothing, NULL, NULL), cases[i].status);
    dt_moe_destroy(moe);
    dt_comm_destroy(l->comm);
  }
}

/* A rank without a consumer is refused in the agreement already: on all ranks. */
static void moe_agreement(void **state) {
  layer *l = *state;
  dt_moe *moe = NULL;
  l->config.consumers = 0;
  assert_int_not_equal(dt_moe_create(l->comm, &l->config, &l->weights, &moe), DT_OK);
  l->config.consumers = 1;
  l->weights.experts = NULL;
  assert_int_not_equal(dt_moe_create(l->comm, &l->config, &l->weights, &moe), DT_OK);
  assert_null(moe);
}

static void comm_fields(void **state) {
  (void)state;
  dt_comm_config good, bad;
  dt_comm *endpoint = NULL;
  dt_comm_config_init(&good);
#define REFUSE(field, value, detail)                                                                                   \
  (bad = good, bad.field = (value), assert_int_equal(dt_comm_create_local(1, &bad, &endpoint), DT_ERR_ARGUMENT),       \
   assert_null(endpoint), starts_with(detail))
  REFUSE(size, 8, "config.size: 8; ");
  REFUSE(link_bytes_per_s, -1, "link_bytes_per_s: -1; finite and >= 0");
  REFUSE(link_bytes_per_s, NAN, "link_bytes_per_s: ");
  REFUSE(link_bytes_per_s, INFINITY, "link_bytes_per_s: inf; ");
  REFUSE(link_bytes_per_s, 1e9, "link_capacity_bytes: 0; > 0 when ");
  REFUSE(link_capacity_bytes, -1, "link_capacity_bytes: -1; ");
  REFUSE(link_latency_s, -1, "link_latency_s: -1; ");
  REFUSE(entry_timeout_s, NAN, "entry_timeout_s: ");
  REFUSE(timeout_s, 0, "timeout_s: 0; finite and > 0");
  REFUSE(timeout_s, INFINITY, "timeout_s: inf; ");
#undef REFUSE
  for (int32_t ranks = 0; ranks <= 65; ranks += 65) {
    assert_int_equal(dt_comm_create_local(ranks, NULL, &endpoint), DT_ERR_ARGUMENT);
    starts_with(ranks ? "ranks: 65; 1 to 64" : "ranks: 0; 1 to 64");
  }
}

static void attention_fields(void **state) {
  dt_comm *comm = ((layer *)*state)->comm;
  dt_attention_config good, bad;
  dt_attention_config_init(&good);
  good.tokens = good.kv_tokens = 4;
  good.heads = good.kv_heads = 2;
  good.head_dim = 8;
  dt_attention *attention = NULL;
#define REFUSE(field, value, detail)                                                                                   \
  (bad = good, bad.field = (value), assert_int_equal(dt_attention_create(comm, &bad, &attention), DT_ERR_ARGUMENT),    \
   assert_null(attention), starts_with(detail))
  REFUSE(size, 8, "size: 8; must be ");
  REFUSE(dtype, DT_DTYPE_I64, "dtype: ");
  REFUSE(text, (dt_attention_text)2, "text: 2; allowed: ");
  REFUSE(causal, 2, "causal: 2; allowed: 0, 1");
  REFUSE(scale, INFINITY, "scale: infinite; ");
  REFUSE(workers, 0, "workers: 0; allowed: 1 to 1024");
  REFUSE(consumers, 1025, "consumers: 1025; allowed: 0 to 1024");
  REFUSE(schedule, (dt_attention_schedule)2, "schedule: 2; ");
  REFUSE(kv_heads, 3, "kv_heads: 3; ");
#undef REFUSE
  assert_int_equal(dt_attention_create(comm, &good, &attention), DT_OK);
  dt_attention_destroy(attention);

  static const float zeros[4 * 2 * 8];
  double out[1] = {77};
  static const int64_t rows[][2] = {{5, 0}, {1, INT64_MAX}, {INT64_MAX, 1}, {-1, 1}, {0, -1}, {0, 5}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    assert_int_equal(dt_attention_reference(&good, zeros, zeros, zeros, rows[i][0], rows[i][1], out), DT_ERR_ARGUMENT);
    starts_with("rows: ");
  }
  bad = good;
  bad.dtype = DT_DTYPE_I64;
  assert_int_equal(dt_attention_reference(&bad, zeros, zeros, zeros, 0, 1, out), DT_ERR_ARGUMENT);
  starts_with("dtype: ");
  assert_true(out[0] == 77);
}

static void router_arguments(void **state) {
  (void)state;
  static const struct {
    int32_t router, ranks, experts, top_k;
    int64_t tokens;
    const char *detail;
  } cases[] = {
      {0, 0, 8, 2, 4, "ranks: 0; 1 to 64 allowed"},
      {0, 65, 65, 2, 4, "ranks: 65; 1 to 64 allowed"},
      {0, 2, 7, 2, 4, "experts: 7; a multiple of the 2 ranks up to 2^20"},
      {0, 2, 0, 2, 4, "experts: 0; a multiple of the 2 ranks up to 2^20"},
      {0, 2, INT32_MAX - 1, 2, 4, "experts: 2147483646; a multiple of the 2 ranks up to 2^20"},
      {0, 2, 8, 9, 4, "top_k: 9; 1 to 8 allowed"},
      {DT_MOE_ROUTER_CROSSED, 2, 8, 5, 4, "top_k: 5; 1 to 4 allowed"},
      {0, 2, 8, 2, -1, "tokens: -1; 0 to 2^24 allowed"},
      {0, 2, 8, 2, (1 << 24) + 1, "tokens: 16777217; 0 to 2^24 allowed"},
      {3, 2, 8, 2, 4, "router: 3; 0 to 2 allowed"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    int32_t ids[1] = {77};
    float weights[1] = {77};
    assert_int_equal(dt_moe_route((dt_moe_router)cases[i].router, 1, cases[i].ranks, cases[i].experts, cases[i].top_k,
                                  cases[i].tokens, ids, weights),
                     DT_ERR_ARGUMENT);
    assert_string_equal(dt_error_detail(), cases[i].detail);
    assert_int_equal(ids[0], 77);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(moe_fields, open_layer, close_layer),
      cmocka_unit_test_setup_teardown(moe_matrices, open_layer, close_layer),
      cmocka_unit_test(moe_sizes),
      cmocka_unit_test_setup_teardown(moe_agreement, open_layer, close_layer),
      cmocka_unit_test(moe_inputs),
      cmocka_unit_test(comm_fields),
      cmocka_unit_test_setup_teardown(attention_fields, open_layer, close_layer),
      cmocka_unit_test(router_arguments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
