/* Inputs that broke comparable systems, errors that every rank must see, and what a layer says about itself. */
#include "moe_support.h"

#include <sys/resource.h>

#include "cpu/executor.h"

typedef struct sequence {
  layer *layers; /* one forward each, all with the same experts */
  int count;
  dt_moe_config config;
  int poison; /* NaN in every buffer before each forward */
} sequence;

static void poison_buffers(dt_moe *moe) {
  memset(dt_window_local(moe->dispatch), 0xff, (size_t)moe->memory_rows * moe->row_bytes);
  memset(dt_window_local(moe->combine), 0xff, (size_t)(moe->config.max_tokens * moe->config.top_k) * moe->row_bytes);
  memset(moe->act, 0xff, (size_t)(moe->memory_rows * moe->intermediate) * sizeof(float));
  memset(moe->y, 0xff, (size_t)moe->memory_rows * moe->row_bytes);
}

/* Every forward with serial, then again with every schedule; all on one handle. */
static int run_sequence(dt_comm *comm, void *argument) {
  const sequence *s = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = s->config;
  config.schedule = DT_SCHEDULE_SERIAL;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &s->layers[0].weights[rank], &moe) == DT_OK);
  for (int schedule = DT_SCHEDULE_SERIAL; schedule <= DT_SCHEDULE_ALTERNATE; schedule++) {
    config.schedule = (dt_schedule)schedule;
    EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
    for (int i = 0; i < s->count; i++) {
      layer *l = &s->layers[i];
      unsigned char *output = schedule ? l->output[rank] : l->serial[rank];
      memset(output, 0xff, output_bytes(l, rank));
      if (s->poison) poison_buffers(moe);
      EXPECT(dt_moe_forward(moe, &l->input[rank], output, NULL) == DT_OK);
      EXPECT(relative_error(l, rank, output) <= tolerance(l->shape.dtype));
      EXPECT(memcmp(output, l->serial[rank], output_bytes(l, rank)) == 0);
    }
  }
  dt_moe_destroy(moe);
  return 0;
}

static int run_one(const layer_shape *shape, const dt_moe_config *config, int poison) {
  layer l;
  layer_create(&l, shape);
  sequence s = {.layers = &l, .count = 1, .config = *config, .poison = poison};
  int result = run_ranks(0, shape->ranks, NULL, run_sequence, &s);
  layer_destroy(&l);
  return result;
}

static layer_shape shape_of(int32_t ranks, int32_t experts_per_rank, int32_t top_k, int64_t tokens) {
  layer_shape shape = {.ranks = ranks,
                       .experts_per_rank = experts_per_rank,
                       .top_k = top_k,
                       .hidden = 32,
                       .intermediate = 24,
                       .seed = 1000 + (uint64_t)(ranks * 100 + experts_per_rank)};
  for (int32_t r = 0; r < ranks; r++) shape.tokens[r] = tokens;
  return shape;
}

/* The same input through buffers that just fit and through very large ones. */
static int run_capacity(dt_comm *comm, void *argument) {
  layer *l = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&l->shape);
  int64_t needed[RANKS_MAX] = {0}, most = 0;
  for (int32_t r = 0; r < l->shape.ranks; r++) {
    for (int64_t slot = 0; slot < l->shape.tokens[r] * l->shape.top_k; slot++) {
      int64_t rows = ++needed[l->input[r].ids[slot] / l->shape.experts_per_rank];
      if (rows > most) most = rows;
    }
  }
  const int64_t capacities[] = {most, 200000, 0};
  for (int i = 0; i < 3; i++) {
    config.max_rows = capacities[i];
    config.max_tokens = i == 1 ? 200000 : l->shape.tokens[0];
    config.schedule = DT_SCHEDULE_DIRECT;
    dt_moe *moe = NULL;
    EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
    unsigned char *output = i ? l->output[rank] : l->serial[rank];
    EXPECT(dt_moe_forward(moe, &l->input[rank], output, NULL) == DT_OK);
    EXPECT(memcmp(output, l->serial[rank], output_bytes(l, rank)) == 0);
    EXPECT(relative_error(l, rank, output) <= tolerance(l->shape.dtype));
    dt_moe_destroy(moe);
  }
  /* One row fewer than needed: every rank refuses, says why, and goes on refusing. */
  config.max_rows = most - 1;
  config.max_tokens = l->shape.tokens[0];
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  char capacity[64];
  snprintf(capacity, sizeof(capacity), "capacity (max_rows) is %lld", (long long)most - 1);
  for (int i = 0; i < 2; i++) {
    EXPECT(dt_moe_forward(moe, &l->input[rank], l->output[rank], NULL) == DT_ERR_CAPACITY);
    EXPECT(strstr(dt_error_detail(), "rows: ") && strstr(dt_error_detail(), capacity));
  }
  dt_moe_destroy(moe);
  EXPECT(dt_comm_status(comm) == DT_OK); /* the ranks agreed on it: nobody aborted */
  return 0;
}

static void test_capacity(void **state) {
  (void)state;
  layer_shape shape = shape_of(2, 3, 2, 50);
  layer l;
  layer_create(&l, &shape);
  assert_int_equal(run_ranks(0, 2, NULL, run_capacity, &l), 0);
  layer_destroy(&l);
}

static int run_too_many_tokens(dt_comm *comm, void *argument) {
  layer *l = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&l->shape);
  config.max_tokens = l->shape.tokens[1] - 1;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  EXPECT(dt_moe_forward(moe, &l->input[rank], l->output[rank], NULL) == DT_ERR_CAPACITY);
  EXPECT(strstr(dt_error_detail(), "tokens: 60 on rank 1"));
  dt_moe_destroy(moe);
  return 0;
}

static void test_too_many_tokens(void **state) {
  (void)state;
  layer_shape shape = shape_of(2, 3, 2, 50);
  shape.tokens[1] = 60;
  layer l;
  layer_create(&l, &shape);
  assert_int_equal(run_ranks(0, 2, NULL, run_too_many_tokens, &l), 0);
  layer_destroy(&l);
}

/* Empty experts between full ones. */
static void test_empty_experts(void **state) {
  (void)state;
  static const int rows[] = {162, 0, 2577, 446, 0, 83};
  layer_shape shape = shape_of(2, 3, 1, (162 + 2577 + 446 + 83) / 2);
  shape.hidden = SANITIZED ? 32 : 2048;
  shape.intermediate = SANITIZED ? 24 : 768;
  shape.check_every = 97;
  layer l;
  layer_weights(&l, &shape);
  layer_tokens(&l, shape.tokens, 5);
  int64_t slot = 0;
  for (int e = 0; e < 6; e++) {
    for (int i = 0; i < rows[e]; i++, slot++) {
      int32_t *ids = (int32_t *)l.input[slot % 2].ids;
      ids[slot / 2] = e;
    }
  }
  layer_expect(&l);
  dt_moe_config config = layer_config(&shape);
  config.tile_m = 128;
  config.tile_n = 0;
  sequence s = {.layers = &l, .count = 1, .config = config};
  assert_int_equal(run_ranks(0, 2, NULL, run_sequence, &s), 0);
  layer_destroy(&l);
}

/* A rank without tokens; everything to one rank; one expert gets everything. */
static void test_one_sided(void **state) {
  (void)state;
  for (int route = ROUTE_RANDOM; route <= ROUTE_ONE_EXPERT; route++) {
    layer_shape shape = shape_of(4, 2, 2, 60);
    shape.route = (routing)route;
    shape.tokens[2] = 0;
    dt_moe_config config = layer_config(&shape);
    assert_int_equal(run_one(&shape, &config, 0), 0);
    for (int32_t r = 0; r < 4; r++) shape.tokens[r] = r == 1 ? 60 : 0;
    assert_int_equal(run_one(&shape, &config, 0), 0);
  }
}

static void test_exact_sizes(void **state) {
  (void)state;
  layer_shape shape = shape_of(2, 4, 2, 128);
  dt_moe_config config = layer_config(&shape);
  config.tile_m = 128;
  assert_int_equal(run_one(&shape, &config, 0), 0);
  shape = shape_of(2, 4, 2, 40);
  config = layer_config(&shape);
  assert_int_equal(config.max_tokens, 40);
  assert_int_equal(run_one(&shape, &config, 0), 0);
  shape = shape_of(2, 128, 2, 0);
  shape.tokens[0] = 3;
  shape.tokens[1] = 2;
  config = layer_config(&shape);
  assert_int_equal(run_one(&shape, &config, 0), 0);
}

/* 512 experts; 33 local experts with the batch size changing each call. */
static void test_many_experts(void **state) {
  (void)state;
  layer_shape shape = shape_of(4, 128, 8, 70);
  shape.hidden = shape.intermediate = 16;
  dt_moe_config config = layer_config(&shape);
  assert_int_equal(run_one(&shape, &config, 0), 0);

  enum { CALLS = 6 };
  static const int64_t batches[CALLS] = {1, 90, 0, 17, 64, 33};
  shape = shape_of(2, 33, 4, 90);
  layer layers[CALLS];
  layer_create(&layers[0], &shape);
  config = layer_config(&shape);
  for (int i = 1; i < CALLS; i++) {
    layers[i] = layers[0];
    int64_t tokens[2] = {batches[i], batches[CALLS - 1 - i]};
    layer_tokens(&layers[i], tokens, 50 + (uint64_t)i);
    layer_expect(&layers[i]);
  }
  sequence s = {.layers = layers, .count = CALLS, .config = config};
  assert_int_equal(run_ranks(0, 2, NULL, run_sequence, &s), 0);
  for (int i = 1; i < CALLS; i++) layer_free_tokens(&layers[i]);
  layer_destroy(&layers[0]);
}

/* What lies in rows that nobody sent must not reach a result, padded rows included. */
static void test_unused_rows(void **state) {
  (void)state;
  for (int layout = 0; layout < 2; layout++) {
    for (int type = DT_DTYPE_F32; type <= DT_DTYPE_F16; type++) {
      layer_shape shape = shape_of(3, 2, 2, 45);
      shape.dtype = (dt_dtype)type;
      dt_moe_config config = layer_config(&shape);
      config.tile_m = 32;
      config.layout = (dt_layout)layout;
      config.max_rows = 1000;
      assert_int_equal(run_one(&shape, &config, 1), 0);
    }
  }
}

/* Every counter has its sector, in both banks; the places of a kind do not reach into the next. */
static int run_counters(dt_comm *comm, void *argument) {
  layer *l = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&l->shape);
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  const int64_t sizes[DT_COUNTER_KINDS] = {moe->max_bands,  moe->max_bands, moe->max_bands,
                                           moe->max_blocks, moe->ranks,     1};
  size_t next = 0;
  for (moe->epoch = 0; moe->epoch < 2; moe->epoch++) {
    for (int kind = 0; kind < DT_COUNTER_KINDS; kind++) {
      for (int64_t i = 0; i < sizes[kind]; i++) {
        EXPECT(dt_bank_offset(moe, (dt_counter_kind)kind, i) == next);
        next += sizeof(dt_counter);
      }
    }
  }
  EXPECT(sizeof(dt_counter) == 64 && next == dt_window_bytes(moe->counters, rank));
  moe->epoch = 0;
  dt_moe_destroy(moe);
  return 0;
}

static void test_counter_sectors(void **state) {
  (void)state;
  layer_shape shape = shape_of(3, 2, 2, 45);
  layer l;
  layer_create(&l, &shape);
  assert_int_equal(run_ranks(0, 3, NULL, run_counters, &l), 0);
  layer_destroy(&l);
}

typedef struct disagreement {
  layer *layer;
  const char *field;
  void (*change)(dt_moe_config *config, dt_moe_weights *weights);
} disagreement;

static void change_top_k(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->top_k = 1;
}
static void change_tile_m(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->tile_m = 64;
}
static void change_tile_n(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->tile_n = 64;
}
static void change_schedule(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->schedule = DT_SCHEDULE_WAVE;
}
static void change_dtype(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->dtype = DT_DTYPE_BF16;
}
static void change_tokens(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->max_tokens = 1000;
}
static void change_layout(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->layout = DT_LAYOUT_ALIGNED;
}
static void change_order(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->order = DT_ORDER_NATURAL;
}
static void change_workers(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->workers = 0;
}
static void change_consumers(dt_moe_config *c, dt_moe_weights *w) {
  (void)w, c->consumers = 0;
}
static void change_hidden(dt_moe_config *c, dt_moe_weights *w) {
  (void)c, w->hidden = 64;
}
static void change_intermediate(dt_moe_config *c, dt_moe_weights *w) {
  (void)c, w->intermediate = 8;
}
static void change_experts(dt_moe_config *c, dt_moe_weights *w) {
  (void)c, w->experts_per_rank = 1;
}

static int run_disagreement(dt_comm *comm, void *argument) {
  const disagreement *d = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&d->layer->shape);
  dt_moe_weights weights = d->layer->weights[rank];
  if (rank == 1) d->change(&config, &weights);
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &weights, &moe) == DT_ERR_MISMATCH);
  EXPECT(moe == NULL && strstr(dt_error_detail(), d->field));
  return 0;
}

static int run_schedule_disagreement(dt_comm *comm, void *argument) {
  layer *l = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&l->shape);
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  config.lead = rank == 2 ? 3 : 1;
  EXPECT(dt_moe_set_schedule(moe, &config) == DT_ERR_MISMATCH);
  EXPECT(strstr(dt_error_detail(), "lead"));
  config.lead = 1; /* and the layer still works */
  EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
  EXPECT(dt_moe_forward(moe, &l->input[rank], l->output[rank], NULL) == DT_OK);
  EXPECT(relative_error(l, rank, l->output[rank]) <= tolerance(l->shape.dtype));
  dt_moe_destroy(moe);
  return 0;
}

static void test_disagreement(void **state) {
  (void)state;
  layer_shape shape = shape_of(3, 2, 2, 20);
  layer l;
  layer_create(&l, &shape);
  const disagreement cases[] = {
      {&l, "top_k", change_top_k},
      {&l, "tile_m", change_tile_m},
      {&l, "tile_n", change_tile_n},
      {&l, "schedule", change_schedule},
      {&l, "dtype", change_dtype},
      {&l, "max_tokens", change_tokens},
      {&l, "layout", change_layout},
      {&l, "order", change_order},
      {&l, "workers", change_workers},
      {&l, "consumers", change_consumers},
      {&l, "hidden", change_hidden},
      {&l, "intermediate", change_intermediate},
      {&l, "experts_per_rank", change_experts},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
    assert_int_equal(run_ranks(0, 3, NULL, run_disagreement, (void *)&cases[i]), 0);
  assert_int_equal(run_ranks(1, 3, NULL, run_disagreement, (void *)&cases[0]), 0);
  assert_int_equal(run_ranks(0, 3, NULL, run_schedule_disagreement, &l), 0);
  layer_destroy(&l);
}

/* Several consumers, small segments in flight in any order. */
static void test_many_segments(void **state) {
  (void)state;
  layer_shape shape = shape_of(2, 2, 2, 100);
  dt_moe_config config = layer_config(&shape);
  config.tile_m = 8;
  config.consumers = 3;
  config.workers = 2;
  config.segment_bands = 1;
  config.delay_seed = 3;
  config.delay_max_us = 100;
  assert_int_equal(run_one(&shape, &config, 1), 0);
}

/* Bad values that all ranks share. */
static int run_bad_config(dt_comm *comm, void *argument) {
  layer *l = argument;
  const struct {
    const char *field;
    size_t offset;
    int32_t value;
  } cases[] = {
      {"top_k", offsetof(dt_moe_config, top_k), 7},          {"top_k", offsetof(dt_moe_config, top_k), 0},
      {"tile_m", offsetof(dt_moe_config, tile_m), 0},        {"workers", offsetof(dt_moe_config, workers), 0},
      {"lead", offsetof(dt_moe_config, lead), -1},           {"schedule", offsetof(dt_moe_config, schedule), 9},
      {"consumers", offsetof(dt_moe_config, consumers), -1}, {"dtype", offsetof(dt_moe_config, dtype), 5},
      {"layout", offsetof(dt_moe_config, layout), 2},        {"order", offsetof(dt_moe_config, order), 3}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    dt_moe_config config = layer_config(&l->shape);
    memcpy((unsigned char *)&config + cases[i].offset, &cases[i].value, sizeof(int32_t));
    dt_moe *moe = NULL;
    EXPECT(dt_moe_create(comm, &config, &l->weights[dt_comm_rank(comm)], &moe) == DT_ERR_ARGUMENT);
    EXPECT(moe == NULL && strncmp(dt_error_detail(), cases[i].field, strlen(cases[i].field)) == 0);
  }
  return 0;
}

/* An id out of range on one rank: that rank names it, the others name the rank, and all go on refusing. */
static int run_bad_id(dt_comm *comm, void *argument) {
  layer *l = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&l->shape);
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  dt_status expected = rank == 1 ? DT_ERR_INPUT : DT_ERR_PEER;
  for (int i = 0; i < 2; i++) {
    EXPECT(dt_moe_forward(moe, &l->input[rank], l->output[rank], NULL) == expected);
    EXPECT(strstr(dt_error_detail(), "99"));
  }
  dt_moe_destroy(moe);
  return 0;
}

static void test_bad_arguments(void **state) {
  (void)state;
  layer_shape shape = shape_of(2, 2, 2, 20);
  layer l;
  layer_create(&l, &shape);
  assert_int_equal(run_ranks(0, 2, NULL, run_bad_config, &l), 0);
  ((int32_t *)l.input[1].ids)[7] = 99;
  assert_int_equal(run_ranks(0, 2, NULL, run_bad_id, &l), 0);
  layer_destroy(&l);
}

static int by_begin(const void *a, const void *b) {
  const dt_span *x = a, *y = b;
  if (x->track != y->track) return x->track < y->track ? -1 : 1;
  if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
  return x->end_ns > y->end_ns ? -1 : x->end_ns < y->end_ns;
}

/* One span a task, and the spans of a track nest. */
static int check_spans(const dt_moe *moe, const dt_moe_stats *stats, int32_t threads) {
  const dt_span *recorded;
  size_t count;
  dt_moe_spans(moe, &recorded, &count);
  dt_span *spans = malloc(count * sizeof(*spans));
  memcpy(spans, recorded, count * sizeof(*spans));
  qsort(spans, count, sizeof(*spans), by_begin);
  int64_t tiles = 0, blocks = 0, rows_1 = 0, moved = 0;
  uint64_t open[16];
  int depth = 0;
  for (size_t i = 0; i < count; i++) {
    const dt_span *s = &spans[i];
    EXPECT(s->end_ns >= s->begin_ns && s->track >= 0 && s->track <= threads);
    if (i == 0 || s->track != spans[i - 1].track) depth = 0;
    while (depth > 0 && open[depth - 1] <= s->begin_ns) depth--;
    EXPECT(depth == 0 || s->end_ns <= open[depth - 1]);
    EXPECT(depth < 16);
    open[depth++] = s->end_ns;
    tiles += s->kind == DT_SPAN_L1 || s->kind == DT_SPAN_L2;
    blocks += s->kind == DT_SPAN_REDUCE;
    rows_1 += s->kind == DT_SPAN_L1 && s->column == 0 ? s->rows : 0;
    if (s->kind != DT_SPAN_LINK) moved += s->bytes;
  }
  free(spans);
  const dt_plan *plan = dt_moe_plan(moe);
  EXPECT(tiles == stats->tiles && blocks == plan->config.reduce_blocks);
  EXPECT(rows_1 == stats->rows - stats->padded_rows);
  EXPECT(stats->bytes_sent >= (uint64_t)moved && stats->bytes_sent - (uint64_t)moved < 4096); /* the counts */
  return 0;
}

static int run_statistics(dt_comm *comm, void *argument) {
  layer *l = argument;
  int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&l->shape);
  config.schedule = DT_SCHEDULE_SERIAL;
  config.workers = 2;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l->weights[rank], &moe) == DT_OK);
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    config.schedule = (dt_schedule)s;
    EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
    dt_moe_stats stats;
    EXPECT(dt_moe_forward(moe, &l->input[rank], l->output[rank], &stats) == DT_OK);
    if (check_spans(moe, &stats, config.workers + config.consumers)) return __LINE__;
    double stages = stats.dispatch_s + stats.compute_s + stats.combine_s + stats.reduce_s;
    EXPECT(stats.plan_s > 0 && stats.plan_s + stages <= stats.total_s);
    EXPECT(s == DT_SCHEDULE_SERIAL ? stages > 0.5 * (stats.total_s - stats.plan_s) : stages == 0);
    int64_t remote = 0;
    for (int32_t p = 0; p < l->shape.ranks; p++) {
      for (int64_t slot = 0; slot < l->shape.tokens[p] * l->shape.top_k; slot++) {
        int owner = l->input[p].ids[slot] / l->shape.experts_per_rank;
        remote += (p == rank) != (owner == rank); /* sent there by dispatch, or back by combine */
      }
    }
    uint64_t rows_bytes = (uint64_t)remote * (uint64_t)l->shape.hidden * sizeof(float);
    EXPECT(stats.bytes_sent >= rows_bytes && stats.bytes_sent < rows_bytes + 4096);
  }
  dt_moe_destroy(moe);
  return 0;
}

static void test_statistics(void **state) {
  (void)state;
  layer_shape shape = shape_of(3, 2, 2, 150);
  layer l;
  layer_create(&l, &shape);
  dt_comm_config link;
  dt_comm_config_init(&link);
  assert_int_equal(run_ranks(0, 3, &link, run_statistics, &l), 0);
  link.link_bytes_per_s = 30e6;
  link.link_capacity_bytes = 8192;
  assert_int_equal(run_ranks(0, 3, &link, run_statistics, &l), 0);
  layer_destroy(&l);
}

/* Peak memory of a rank's process: its experts, three times its activations, 64 MiB, and 40 MiB a worker. */
static int run_memory(dt_comm *comm, void *argument) {
  const layer_shape *whole = argument;
  int32_t rank = dt_comm_rank(comm);
  layer_shape shape = *whole;
  shape.ranks = 1; /* the other ranks' experts must not be in this process */
  layer l;
  layer_weights(&l, &shape);
  shape = *whole;
  dt_random random = {(uint64_t)rank + 1};
  dt_moe_input input = random_input(&random, &shape, shape.tokens[rank]);
  unsigned char *output = malloc((size_t)(input.tokens * shape.hidden) * dt_dtype_bytes(shape.dtype));
  dt_moe_config config = layer_config(&shape);
  config.max_tokens = 1 << 20; /* far more than come: only touched pages count */
  config.tile_m = 128;
  config.tile_n = 0;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &l.weights[0], &moe) == DT_OK);
  dt_moe_stats stats;
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    config.schedule = (dt_schedule)s;
    EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
    EXPECT(dt_moe_forward(moe, &input, output, &stats) == DT_OK);
  }
  int64_t element = (int64_t)dt_dtype_bytes(shape.dtype), row = shape.hidden * element;
  int64_t experts =
      3 * shape.hidden * shape.intermediate * shape.experts_per_rank * (int64_t)dt_dtype_bytes(shape.weight_dtype);
  /* Input and output; rows received and their results; intermediate; rows returned. */
  int64_t activations = 2 * input.tokens * row + stats.rows * (2 * row + shape.intermediate * (int64_t)sizeof(float)) +
                        input.tokens * shape.top_k * row;
  int64_t allowed = experts + 3 * activations + (64 << 20) + (40 << 20);
  struct rusage usage;
  EXPECT(getrusage(RUSAGE_SELF, &usage) == 0);
  if (rank == 0) {
    fprintf(stderr, "peak %.1f MiB; experts %.1f, activations %.1f: %.1f MiB allowed\n", (double)usage.ru_maxrss / 1024,
            (double)experts / 1048576, (double)activations / 1048576, (double)allowed / 1048576);
  }
  EXPECT((int64_t)usage.ru_maxrss * 1024 <= allowed);
  dt_moe_destroy(moe);
  return 0;
}

/* Widened bands that a worker keeps: as many as fit into 16 MiB, but one, and at most DT_BAND_PANELS. */
static void test_panels_kept(void **state) {
  (void)state;
  assert_int_equal(dt_panels_kept(128, 2048), DT_BAND_PANELS); /* 1 MiB a band */
  assert_int_equal(dt_panels_kept(128, 8192), 4);
  assert_int_equal(dt_panels_kept(128, 8200), 3);
  assert_int_equal(dt_panels_kept(256, 16384), 1);
  assert_int_equal(dt_panels_kept(1024, 16384), 1); /* 64 MiB */
}

static void test_peak_memory(void **state) {
  (void)state;
  if (SANITIZED) skip(); /* shadow memory */
  layer_shape shape = {.ranks = 2,
                       .experts_per_rank = 8,
                       .top_k = 2,
                       .hidden = 1024,
                       .intermediate = 1024,
                       .dtype = DT_DTYPE_BF16,
                       .weight_dtype = DT_DTYPE_BF16,
                       .tokens = {1024, 1024},
                       .seed = 1};
  assert_int_equal(run_ranks(1, 2, NULL, run_memory, &shape), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_capacity),      cmocka_unit_test(test_too_many_tokens),
      cmocka_unit_test(test_empty_experts), cmocka_unit_test(test_one_sided),
      cmocka_unit_test(test_exact_sizes),   cmocka_unit_test(test_many_experts),
      cmocka_unit_test(test_unused_rows),   cmocka_unit_test(test_counter_sectors),
      cmocka_unit_test(test_disagreement),  cmocka_unit_test(test_many_segments),
      cmocka_unit_test(test_bad_arguments), cmocka_unit_test(test_statistics),
      cmocka_unit_test(test_panels_kept),   cmocka_unit_test(test_peak_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
