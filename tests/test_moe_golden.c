/* The layers of every family against what transformers computes, at 1, 2 and 4 ranks and with every schedule. */
#include "moe_support.h"

#include <jansson.h>

#include <draintile/checkpoint.h>

#define DT_GOLDEN DT_TEST_DATA "/../golden"

typedef struct golden {
  const char *name, *folder;
  int32_t layer;
  const dt_tensor *hidden, *expected;
  double tolerance;
  unsigned char *serial, *output; /* [tokens][hidden] of the exchange type, shared by the ranks */
} golden;

static double worst_error(const golden *g, int64_t first, int64_t count) {
  int64_t hidden = g->hidden->shape[1];
  size_t element = dt_dtype_bytes(g->hidden->dtype);
  float *wide = malloc((size_t)hidden * sizeof(float));
  double worst = 0;
  for (int64_t t = first; t < first + count; t++) {
    const float *expected = (const float *)g->expected->data + t * hidden;
    dt_widen_row(g->hidden->dtype, g->output + (size_t)(t * hidden) * element, hidden, wide);
    double error = 0, norm = 0;
    for (int64_t h = 0; h < hidden; h++) {
      error += pow((double)wide[h] - expected[h], 2);
      norm += pow(expected[h], 2);
    }
    double relative = sqrt(error / norm);
    if (!(relative <= worst)) worst = isnan(relative) ? INFINITY : relative;
  }
  free(wide);
  return worst;
}

static int run_golden(dt_comm *comm, void *argument) {
  const golden *g = argument;
  int32_t rank = dt_comm_rank(comm), ranks = dt_comm_ranks(comm);
  dt_checkpoint *checkpoint = NULL;
  dt_layer *own = NULL;
  EXPECT(dt_checkpoint_open(g->folder, &checkpoint) == DT_OK);
  EXPECT(dt_checkpoint_layer(checkpoint, g->layer, rank, ranks, &own) == DT_OK);
  int64_t first, count, hidden = g->hidden->shape[1];
  dt_token_block(g->hidden->shape[0], ranks, rank, &first, &count);
  size_t row = (size_t)hidden * dt_dtype_bytes(g->hidden->dtype), at = (size_t)first * row;
  int32_t k = own->router.top_k;
  int32_t *ids = malloc((size_t)(count * k + 1) * sizeof(*ids));
  float *weights = malloc((size_t)(count * k + 1) * sizeof(*weights));
  const unsigned char *rows = (const unsigned char *)g->hidden->data + at;
  EXPECT(dt_router_run(&own->router, g->hidden->dtype, rows, count, ids, weights) == DT_OK);

  dt_moe_config config;
  dt_moe_config_init(&config);
  config.dtype = g->hidden->dtype;
  config.top_k = k;
  config.max_tokens = (g->hidden->shape[0] + ranks - 1) / ranks;
  config.tile_m = 16;
  config.tile_n = 24;
  config.schedule = DT_SCHEDULE_SERIAL;
  dt_moe *moe = NULL;
  EXPECT(dt_moe_create(comm, &config, &own->weights, &moe) == DT_OK);
  dt_moe_input input = {.tokens = count, .hidden = rows, .ids = ids, .weights = weights};
  for (int s = DT_SCHEDULE_SERIAL; s <= DT_SCHEDULE_ALTERNATE; s++) {
    config.schedule = (dt_schedule)s;
    EXPECT(dt_moe_set_schedule(moe, &config) == DT_OK);
    memset(g->output + at, 0xff, (size_t)count * row);
    EXPECT(dt_moe_forward(moe, &input, g->output + at, NULL) == DT_OK);
    EXPECT(worst_error(g, first, count) <= g->tolerance);
    if (s == DT_SCHEDULE_SERIAL) memcpy(g->serial + at, g->output + at, (size_t)count * row);
    EXPECT(memcmp(g->serial + at, g->output + at, (size_t)count * row) == 0);
  }
  dt_moe_destroy(moe);
  free(ids);
  free(weights);
  dt_layer_free(own);
  dt_checkpoint_close(checkpoint);
  return 0;
}

static const char *path_of(const char *folder, const char *file) {
  static char paths[4][1024];
  static int turn;
  turn = (turn + 1) % 4;
  snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", folder, file);
  return paths[turn];
}

static void run_case(const json_t *entry) {
  golden g = {.name = json_string_value(json_object_get(entry, "name")),
              .layer = (int32_t)json_integer_value(json_object_get(entry, "layer")),
              .tolerance = json_number_value(json_object_get(entry, "tolerance"))};
  char folder[1024];
  snprintf(folder, sizeof(folder), "%s/%s", DT_GOLDEN, json_string_value(json_object_get(entry, "checkpoint")));
  g.folder = folder;
  dt_tensor_file *input, *expected;
  dt_tensor hidden, output;
  assert_int_equal(dt_tensor_file_open(path_of(DT_GOLDEN, json_string_value(json_object_get(entry, "input"))), &input),
                   DT_OK);
  assert_int_equal(
      dt_tensor_file_open(path_of(DT_GOLDEN, json_string_value(json_object_get(entry, "expected"))), &expected), DT_OK);
  assert_int_equal(dt_tensor_file_get(input, "hidden_states", &hidden), DT_OK);
  assert_int_equal(dt_tensor_file_get(expected, "output", &output), DT_OK);
  assert_true(g.tolerance > 0 && output.dtype == DT_DTYPE_F32 && output.shape[0] == hidden.shape[0]);
  g.hidden = &hidden;
  g.expected = &output;
  size_t bytes = (size_t)(hidden.shape[0] * hidden.shape[1]) * dt_dtype_bytes(hidden.dtype);
  g.serial = shared_pages(bytes);
  g.output = shared_pages(bytes);
  for (int32_t ranks = 1; ranks <= 4; ranks *= 2) {
    int result = run_ranks(0, ranks, NULL, run_golden, &g);
    if (result) fprintf(stderr, "case %s, %d ranks\n", g.name, ranks);
    assert_int_equal(result, 0);
  }
  munmap(g.serial, bytes ? bytes : 1);
  munmap(g.output, bytes ? bytes : 1);
  dt_tensor_file_close(input);
  dt_tensor_file_close(expected);
}

static void test_families(void **state) {
  (void)state;
  json_t *cases = json_load_file(DT_GOLDEN "/cases.json", 0, NULL);
  assert_true(json_is_array(cases) && json_array_size(cases) > 0);
  size_t i;
  json_t *entry;
  json_array_foreach(cases, i, entry) run_case(entry);
  json_decref(cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_families)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
