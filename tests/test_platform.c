#include <draintile/calibrate.h>
#include <draintile/platform.h>
#include <draintile/simulate.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/random.h"

static char directory[] = "/tmp/dt-platform-XXXXXX";

static const char *in_directory(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  return path;
}

static int make_directory(void **state) {
  (void)state;
  return mkdtemp(directory) ? 0 : -1;
}

static int remove_directory(void **state) {
  (void)state;
  remove(in_directory("a.json"));
  remove(in_directory("bad.json"));
  return rmdir(directory); /* fails if a temporary was left behind */
}

static const dt_platform_device device = {
    .kind = "cuda",
    .name = "NVIDIA H200",
    .driver = "580.159.04",
    .date = "2026-11-30T01:00:00Z",
    .count = 2,
    .clocks_before = {1.98e9, 3.2e9},
};

static dt_platform_constant constant(const char *name, double value, double width) {
  return (dt_platform_constant){
      .name = name, .interval = {value, value - width, value + width}, .n = 20, .method = "median of 20"};
}

static const double t0_samples[] = {0.60e-6, 0.61e-6, 0.59e-6};

static dt_platform *make_platform(void) {
  dt_platform *platform;
  assert_int_equal(dt_platform_create(&device, &platform), DT_OK);
  dt_platform_constant rate = constant("rate_bytes_per_s", 370e9, 2e9);
  dt_platform_constant barrier = constant("barrier_s", 1.0 / 3e5, 1e-7);
  barrier.samples = t0_samples;
  barrier.sample_count = 3;
  assert_int_equal(dt_platform_set_constant(platform, &rate), DT_OK);
  assert_int_equal(dt_platform_set_constant(platform, &barrier), DT_OK);
  dt_platform_point t0[] = {
      {.at = {64, 16384}, .interval = {0.2e-6, 0.1e-6, 0.3e-6}, .n = 20},
      {.at = {64, 32768}, .interval = {0.4e-6, 0.3e-6, 0.5e-6}, .n = 20},
      {.at = {132, 32768}, .interval = {0.6e-6, 0.5e-6, 0.7e-6}, .n = 3, .samples = t0_samples, .sample_count = 3},
  };
  dt_platform_table table = {.name = "t0_s",
                             .pattern = "one-way",
                             .operation = "st.v4",
                             .method = "free-running, large gaps",
                             .argument_count = 2,
                             .arguments = {"producers", "producer_bytes"},
                             .points = t0,
                             .point_count = 3};
  assert_int_equal(dt_platform_add_table(platform, &table), DT_OK);
  dt_platform_point capacity[] = {{.at = {64}, .interval = {1.41e6, 1.3e6, 1.5e6}, .n = 20},
                                  {.at = {132}, .interval = {2.44e6, 2.4e6, 2.5e6}, .n = 20}};
  dt_platform_table capacities = {.name = "capacity_bytes",
                                  .pattern = "one-way",
                                  .method = "drained law",
                                  .argument_count = 1,
                                  .arguments = {"producers"},
                                  .points = capacity,
                                  .point_count = 2};
  assert_int_equal(dt_platform_add_table(platform, &capacities), DT_OK);
  assert_int_equal(dt_platform_add_table(platform, &capacities), DT_ERR_ARGUMENT);
  assert_int_equal(dt_platform_add_table(platform, &table), DT_ERR_ARGUMENT); /* nor the first again */
  assert_int_equal(dt_platform_add_note(platform, "two GPUs, \"NV18\""), DT_OK);
  return platform;
}

static void assert_same(const dt_interval *a, const dt_interval *b) {
  assert_true(a->value == b->value && a->low == b->low && a->high == b->high);
}

static void round_trip(void **state) {
  (void)state;
  dt_platform *a = make_platform(), *b;
  const char *path = in_directory("a.json");
  assert_int_equal(dt_platform_save(a, path), DT_OK);
  if (dt_platform_load(path, &b)) fail_msg("%s", dt_error_detail());
  const dt_platform_device *d = dt_platform_get_device(b);
  assert_string_equal(d->name, device.name);
  assert_string_equal(d->driver, device.driver);
  assert_true(d->clocks_before.sm_hz == 1.98e9 && d->clocks_after.sm_hz == 0.0 && d->count == 2 && !d->throttled);
  assert_int_equal(dt_platform_constant_count(b), 2);
  for (size_t i = 0; i < 2; i++) {
    const dt_platform_constant *x = dt_platform_constant_at(a, i), *y = dt_platform_find_constant(b, x->name);
    assert_same(&x->interval, &y->interval);
    assert_string_equal(x->method, y->method);
    assert_int_equal(x->n, y->n);
    assert_int_equal(x->sample_count, y->sample_count);
    assert_memory_equal(x->samples, y->samples, x->sample_count * sizeof *x->samples);
  }
  assert_int_equal(dt_platform_table_count(b), 2);
  for (size_t i = 0; i < 2; i++) {
    const dt_platform_table *x = dt_platform_table_at(a, i), *y = dt_platform_table_at(b, i);
    assert_string_equal(x->name, y->name);
    assert_string_equal(x->pattern, y->pattern);
    assert_string_equal(x->operation, y->operation);
    assert_string_equal(x->alignment, y->alignment);
    assert_int_equal(x->argument_count, y->argument_count);
    assert_int_equal(x->point_count, y->point_count);
    for (size_t p = 0; p < x->point_count; p++) {
      assert_same(&x->points[p].interval, &y->points[p].interval);
      assert_memory_equal(x->points[p].at, y->points[p].at, (size_t)x->argument_count * sizeof(double));
      assert_int_equal(x->points[p].sample_count, y->points[p].sample_count);
    }
  }
  assert_int_equal(dt_platform_note_count(b), 1);
  assert_string_equal(dt_platform_note_at(b, 0), "two GPUs, \"NV18\"");
  assert_null(dt_platform_constant_at(b, 2));
  dt_platform_destroy(a);
  dt_platform_destroy(b);
}

static char *slurp(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  char *text = malloc(1 << 16);
  *length = fread(text, 1, (1 << 16) - 1, file);
  text[*length] = '\0';
  fclose(file);
  return text;
}

static void write_text(const char *text, size_t length) {
  FILE *file = fopen(in_directory("bad.json"), "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(text, 1, length, file), length);
  fclose(file);
}

static void assert_load_refused(const char *text, size_t length, const char *field) {
  write_text(text, length);
  dt_platform *platform = NULL;
  assert_int_equal(dt_platform_load(in_directory("bad.json"), &platform), DT_ERR_INPUT);
  assert_null(platform);
  if (!strstr(dt_error_detail(), field)) fail_msg("wanted %s: %s", field, dt_error_detail());
}

/* The saved file with the first `from` replaced. */
static void assert_change_refused(const char *from, const char *to, const char *field) {
  dt_platform *platform = make_platform();
  assert_int_equal(dt_platform_save(platform, in_directory("a.json")), DT_OK);
  dt_platform_destroy(platform);
  size_t length;
  char *text = slurp(in_directory("a.json"), &length), *at = strstr(text, from);
  if (!at) fail_msg("%s is not in the file", from);
  char *changed = malloc(length + strlen(to) + 1);
  int written = sprintf(changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
  assert_load_refused(changed, (size_t)written, field);
  free(changed);
  free(text);
}

static void bad_files_name_the_field(void **state) {
  (void)state;
  assert_change_refused("\"draintile-platform\"", "\"draintile-probe\"", "schema: \"draintile-probe\"");
  assert_change_refused("\"version\": 1", "\"version\": 2", "version: 2");
  assert_change_refused("\"version\": 1", "\"version\": 1.0", "version");
  assert_change_refused("\"version\": 1,", "", "version: missing");
  assert_change_refused("\"kind\": \"cuda\"", "\"kind\": \"tpu\"", "device.kind");
  assert_change_refused("\"driver\"", "\"drivers\"", "device.driver: missing");
  assert_change_refused("\"count\": 2", "\"count\": 9007199254740993", "device.count");
  assert_change_refused("\"count\": 2", "\"count\": 0", "device.count");
  assert_change_refused("2026-11-30T", "30.11.2026 ", "device.date");
  assert_change_refused("\"sm_hz\": 1980000000.0", "\"sm_hz\": \"x\"", "device.clocks_before.sm_hz");
  assert_change_refused("\"value\": 370000000000.0", "\"value\": NaN", "constants.rate_bytes_per_s.value");
  assert_change_refused("\"value\": 370000000000.0", "\"value\": 1e999", "constants.rate_bytes_per_s.value");
  assert_change_refused("\"value\": 370000000000.0", "\"value\": null", "constants.rate_bytes_per_s.value");
  assert_change_refused("\"value\": 370000000000.0", "\"value\": 9007199254740993", "constants.rate_bytes_per_s.value");
  assert_change_refused("\"value\": 370000000000.0,", "", "constants.rate_bytes_per_s.value: missing");
  assert_change_refused("\"value\": 370000000000.0", "\"value\": 390000000000.0", "constants.rate_bytes_per_s.value");
  assert_change_refused("\"unit\": \"bytes_per_s\"", "\"unit\": \"GB/s\"", "constants.rate_bytes_per_s.unit");
  assert_change_refused("\"rate_bytes_per_s\"", "\"rate_gb_per_min\"", "constants.rate_gb_per_min");
  assert_change_refused("\"rate_bytes_per_s\"", "\"Rate_s\"", "constants.Rate_s");
  assert_change_refused("\"method\": \"median of 20\"", "\"method\": \"\"", "constants.rate_bytes_per_s.method");
  assert_change_refused("\"n\": 20", "\"n\": 0", "constants.rate_bytes_per_s.n");
  assert_change_refused("\"n\": 20,", "", "n");
  assert_change_refused("\"barrier_s\"", "\"rate_bytes_per_s\"", "duplicate");
  assert_change_refused("\"producers\": 64.0", "\"producers\": 64.5", "points[0].producers");
  assert_change_refused("\"producers\": 64.0", "\"producer\": 64.0", "points[0].at.producers: missing");
  assert_change_refused("\"producer_bytes\": 32768.0", "\"producer_bytes\": 16384.0", "points[1]");
  assert_change_refused("\"points\"", "\"point\"", "tables[0] (t0_s).points");
  assert_change_refused("\"constants\"", "\"constant\"", "constants: missing");
  assert_change_refused("\"tables\"", "\"table\"", "tables: missing");
  assert_change_refused("\"schema\"", "\"notes\": \"x\", \"schema\"", "notes");
  assert_change_refused("2026-11-30T", "2026-13-30T", "device.date");
  assert_change_refused("2026-11-30T", "2026-00-30T", "device.date");
  assert_change_refused("2026-11-30T", "2026-11-32T", "device.date");
  assert_change_refused("2026-11-30T", "2026-11-00T", "device.date");
  assert_load_refused("", 0, "(top)");
  assert_load_refused("[]", 2, "schema");
  assert_load_refused("{\"schema\":\"draintile-platform\"}", 31, "version: missing");
  dt_platform *platform = NULL;
  assert_int_equal(dt_platform_load(in_directory("none.json"), &platform), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), "none.json"));
  assert_int_equal(dt_platform_load(directory, &platform), DT_ERR_IO);
}

/* Whatever is cut off, the file is refused with a place in it. */
static void truncated_anywhere(void **state) {
  (void)state;
  dt_platform *platform = make_platform();
  assert_int_equal(dt_platform_save(platform, in_directory("a.json")), DT_OK);
  dt_platform_destroy(platform);
  size_t length;
  char *text = slurp(in_directory("a.json"), &length);
  for (size_t cut = 0; cut + 2 < length; cut += 7) assert_load_refused(text, cut, "bad.json: ");
  const char *low = strstr(text, "368000000000");
  assert_non_null(low);
  assert_load_refused(text, (size_t)(low - text), "constants.rate_bytes_per_s.low");
  free(text);
}

/* Bytes changed at random: refused or read, never a crash (run with the address sanitizer), never NaN. */
static void damaged_anywhere(void **state) {
  (void)state;
  dt_random random = {31};
  dt_platform *platform = make_platform();
  assert_int_equal(dt_platform_save(platform, in_directory("a.json")), DT_OK);
  dt_platform_destroy(platform);
  size_t length, read = 0;
  char *text = slurp(in_directory("a.json"), &length), *changed = malloc(length);
  static const char alphabet[] = "0123456789-+.eE\"{}[]:,\\nutrue \x01\xff";
  for (int round = 0; round < 4000; round++) {
    memcpy(changed, text, length);
    int changes = 1 + (int)dt_random_below(&random, 3);
    for (int i = 0; i < changes; i++)
      changed[dt_random_below(&random, length)] = alphabet[dt_random_below(&random, sizeof alphabet - 1)];
    write_text(changed, length);
    platform = NULL;
    dt_status status = dt_platform_load(in_directory("bad.json"), &platform);
    if (status) {
      assert_int_equal(status, DT_ERR_INPUT);
      assert_null(platform);
      continue;
    }
    read++;
    for (size_t i = 0; i < dt_platform_constant_count(platform); i++)
      assert_int_equal(dt_platform_constant_check(dt_platform_constant_at(platform, i)), DT_OK);
    dt_platform_destroy(platform);
  }
  assert_true(read > 100 && read < 3900); /* both happen */
  free(changed);
  free(text);
}

static void provenance(void **state) {
  (void)state;
  dt_platform_constant good = constant("t0_s", 1e-6, 1e-7), bad;
  assert_int_equal(dt_platform_constant_check(&good), DT_OK);
#define REFUSED(change, field)                                                                                         \
  do {                                                                                                                 \
    bad = good;                                                                                                        \
    change;                                                                                                            \
    assert_int_equal(dt_platform_constant_check(&bad), DT_ERR_ARGUMENT);                                               \
    if (!strstr(dt_error_detail(), field)) fail_msg("%s: %s", field, dt_error_detail());                               \
  } while (0)
  REFUSED(bad.name = NULL, "name");
  REFUSED(bad.name = "t0", "t0");
  REFUSED(bad.name = "t0_us", "t0_us");
  REFUSED(bad.name = "_s", "_s");
  REFUSED(bad.interval.value = NAN, "t0_s.value");
  REFUSED(bad.interval.low = -INFINITY, "t0_s.low");
  REFUSED(bad.interval.high = 0.5e-6, "t0_s.value");
  REFUSED(bad.n = 0, "t0_s.n");
  REFUSED(bad.n = (INT64_C(1) << 53) + 1, "t0_s.n");
  REFUSED(bad.method = NULL, "t0_s.method");
  REFUSED(bad.method = "", "t0_s.method");
  REFUSED(bad.sample_count = 3, "t0_s.samples");
  const double samples[] = {1.0, NAN};
  REFUSED((bad.samples = samples, bad.sample_count = 2), "t0_s.samples[1]");
#undef REFUSED
  dt_platform *platform;
  dt_platform_device nameless = device;
  nameless.name = "";
  assert_int_equal(dt_platform_create(&nameless, &platform), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "device.name"));
}

static void setting_again_replaces(void **state) {
  (void)state;
  dt_platform *platform = make_platform();
  dt_platform_constant rate = constant("rate_bytes_per_s", 100e9, 1e9);
  assert_int_equal(dt_platform_set_constant(platform, &rate), DT_OK);
  assert_int_equal(dt_platform_constant_count(platform), 2);
  dt_interval interval;
  assert_int_equal(dt_platform_lookup(platform, "rate_bytes_per_s", &interval), DT_OK);
  assert_true(interval.value == 100e9);
  assert_int_equal(dt_platform_lookup(platform, "flag_s", &interval), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "flag_s"));
  dt_platform_destroy(platform);
}

static void interpolation(void **state) {
  (void)state;
  dt_platform *platform = make_platform();
  const dt_platform_table *table = dt_platform_find_table(platform, "t0_s", NULL, "st.v4", NULL);
  assert_non_null(table);
  assert_null(dt_platform_find_table(platform, "t0_s", "both-ways", NULL, NULL));
  assert_null(dt_platform_find_table(platform, "t0_s", "one-w", NULL, NULL)); /* whole labels only */
  assert_null(dt_platform_find_table(platform, "t0_s", NULL, "st.v", NULL));
  static const struct {
    double at[2], want;
    int inside;
  } cases[] = {
      {{64, 16384}, 0.2e-6, 1}, {{64, 24576}, 0.3e-6, 1},  {{132, 32768}, 0.6e-6, 1}, {{98, 32768}, 0.5e-6, 1},
      {{64, 1e6}, 0.4e-6, 0},   {{148, 32768}, 0.6e-6, 0}, {{1, 1}, 0.2e-6, 0},       {{132, 16384}, 0.6e-6, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    dt_interval interval;
    int inside = -1;
    assert_int_equal(dt_platform_interpolate(table, cases[i].at, &interval, &inside), DT_OK);
    assert_true(fabs(interval.value - cases[i].want) < 1e-15);
    assert_true(fabs(interval.high - interval.value - 0.1e-6) < 1e-15);
    assert_int_equal(inside, cases[i].inside);
  }
  double bad[] = {NAN, 1};
  dt_interval interval;
  assert_int_equal(dt_platform_interpolate(table, bad, &interval, NULL), DT_ERR_ARGUMENT);
  dt_platform_destroy(platform);
}

/* A low end one bit below the value, which rounding would carry above it. */
static void interpolation_keeps_order(void **state) {
  (void)state;
  dt_platform_point points[] = {{.at = {1}, .interval = {0.98, nextafter(0.98, 0), 0.98}},
                                {.at = {2}, .interval = {6.1, 6.1, 6.1}}};
  const dt_platform_table table = {
      .name = "flag_s", .argument_count = 1, .arguments = {"producers"}, .points = points, .point_count = 2};
  const double at[] = {1.5};
  dt_interval interval;
  assert_true(points[0].interval.low + 0.5 * (6.1 - points[0].interval.low) > 0.98 + 0.5 * (6.1 - 0.98));
  assert_int_equal(dt_platform_interpolate(&table, at, &interval, NULL), DT_OK);
  assert_true(interval.low == interval.value && interval.value <= interval.high);
}

static void burst_model(void **state) {
  (void)state;
  dt_platform *platform = make_platform();
  dt_platform_question question = {132, 32768, "one-way", NULL, NULL};
  dt_burst_model_interval model;
  dt_platform_source sources[3];
  if (dt_platform_burst_model(platform, &question, &model, sources)) fail_msg("%s", dt_error_detail());
  assert_true(model.t0_s.value == 0.6e-6 && model.capacity_bytes.value == 2.44e6);
  assert_true(model.rate_bytes_per_s.value == 370e9 && model.rate_bytes_per_s.low == 368e9);
  assert_string_equal(sources[0].table->name, "t0_s");
  assert_string_equal(sources[1].constant->name, "rate_bytes_per_s");
  assert_null(sources[1].table);
  question.pattern = "both-ways";
  assert_int_equal(dt_platform_burst_model(platform, &question, &model, NULL), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "t0_s"));
  /* Nor does a constant of the same name answer for a pattern that the table was not measured with. */
  dt_platform_constant t0 = {.name = "t0_s", .interval = {1e-6, 1e-6, 1e-6}, .n = 20, .method = "test"};
  assert_int_equal(dt_platform_set_constant(platform, &t0), DT_OK);
  assert_int_equal(dt_platform_burst_model(platform, &question, &model, NULL), DT_ERR_INPUT);
  assert_non_null(strstr(dt_error_detail(), "t0_s"));
  question.producers = 0;
  assert_int_equal(dt_platform_burst_model(platform, &question, &model, NULL), DT_ERR_ARGUMENT);
  dt_platform_destroy(platform);
}

/* What no link can have is the file's fault, not the question's. */
static void impossible_links(void **state) {
  (void)state;
  static const struct {
    const char *name;
    dt_interval interval;
    const char *detail;
  } rows[] = {{"rate_bytes_per_s", {1e9, 0.0, 2e9}, "rate_bytes_per_s: low 0; a rate above 0 is allowed"},
              {"rate_bytes_per_s", {-1e9, -2e9, 2e9}, "rate_bytes_per_s: low -2e+09; a rate above 0 is allowed"},
              {"t0_s", {1e-6, -1e-6, 2e-6}, "t0_s: low -1e-06; 0 or more is allowed"},
              {"capacity_bytes", {1e6, -1.0, 2e6}, "capacity_bytes: low -1; 0 or more is allowed"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    dt_platform *platform;
    assert_int_equal(dt_platform_create(&device, &platform), DT_OK);
    const dt_platform_constant good[] = {constant("rate_bytes_per_s", 370e9, 2e9), constant("t0_s", 1e-6, 0),
                                         constant("capacity_bytes", 1e6, 0), constant("attention_kv_tile_s", 1e-6, 0)};
    for (size_t g = 0; g < sizeof good / sizeof *good; g++)
      assert_int_equal(dt_platform_set_constant(platform, &good[g]), DT_OK);
    dt_platform_constant bad = constant(rows[i].name, 0, 0);
    bad.interval = rows[i].interval;
    assert_int_equal(dt_platform_set_constant(platform, &bad), DT_OK);
    const dt_platform_question question = {.producers = 4, .producer_bytes = 1e6};
    dt_burst_model_interval model;
    dt_interval issue;
    dt_piggyback_answer answer;
    const dt_piggyback_question asked = {.tokens = 4096,
                                         .heads = 4,
                                         .head_dim = 128,
                                         .ranks = 2,
                                         .producers = 132,
                                         .tile_rows = 128,
                                         .kv_tile = 128,
                                         .floor_s = 1e-6};
    assert_int_equal(dt_platform_burst_model(platform, &question, &model, NULL), DT_ERR_INPUT);
    assert_string_equal(dt_error_detail(), rows[i].detail);
    assert_int_equal(dt_platform_issue(platform, NULL, NULL, "free", 4, 1e6, 0, &issue), DT_ERR_INPUT);
    assert_string_equal(dt_error_detail(), rows[i].detail);
    assert_int_equal(dt_sim_piggyback(platform, &asked, &answer), DT_ERR_INPUT);
    assert_string_equal(dt_error_detail(), rows[i].detail);
    dt_platform_destroy(platform);
  }
}

static void simulator_costs(void **state) {
  (void)state;
  dt_platform *platform = make_platform();
  dt_sim_costs costs, read;
  dt_sim_costs_init(&costs);
  dt_sim_costs_init(&read);
  costs.l1_row_s = 1.5e-6;
  costs.cores = 2.5;
  costs.cache_panels = 7;
  read.barrier_s = 9;
  int32_t found = -1;
  assert_int_equal(dt_sim_costs_from_platform(platform, &read, &found), DT_OK);
  assert_int_equal(found, 0);
  assert_true(read.barrier_s == 9);
  size_t before = dt_platform_constant_count(platform);
  assert_int_equal(dt_sim_costs_to_platform(&costs, 5, "test", platform), DT_OK);
  assert_int_equal(dt_sim_costs_from_platform(platform, &read, &found), DT_OK);
  assert_int_equal(found, dt_platform_constant_count(platform) - before);             /* all that was written is read */
  assert_int_equal(found, (sizeof costs - 2 * sizeof(int32_t)) / sizeof(double) + 2); /* every field */
  assert_true(read.l1_row_s == 1.5e-6 && read.cores == 2.5 && read.cache_panels == 7 &&
              read.band_panels == DT_BAND_PANELS && read.barrier_s == 0);
  costs.l2_base_s = NAN;
  assert_int_equal(dt_sim_costs_to_platform(&costs, 5, "test", platform), DT_ERR_ARGUMENT);
  dt_platform_destroy(platform);
}

/* An unwritable place is an error that names it, and leaves nothing behind. */
static void save_fails_whole(void **state) {
  (void)state;
  dt_platform *platform = make_platform();
  assert_int_equal(dt_platform_save(platform, "/nonexistent/a.json"), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), "/nonexistent/a.json"));
  assert_int_equal(dt_platform_save(platform, "/dev/full"), DT_ERR_IO);
  struct stat full;
  assert_int_equal(stat("/dev/full", &full), 0);
  assert_true(S_ISCHR(full.st_mode));
  assert_int_equal(dt_platform_save(platform, directory), DT_ERR_IO);
  dt_platform_device latin = device;
  dt_platform *other;
  latin.name = "\xe9";
  assert_int_equal(dt_platform_create(&latin, &other), DT_OK);
  assert_int_equal(dt_platform_save(other, in_directory("bad.json")), DT_ERR_ARGUMENT);
  dt_platform_destroy(other);
  dt_platform_destroy(platform);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(round_trip),         cmocka_unit_test(bad_files_name_the_field),
      cmocka_unit_test(truncated_anywhere), cmocka_unit_test(damaged_anywhere),
      cmocka_unit_test(provenance),         cmocka_unit_test(setting_again_replaces),
      cmocka_unit_test(interpolation),      cmocka_unit_test(interpolation_keeps_order),
      cmocka_unit_test(burst_model),        cmocka_unit_test(simulator_costs),
      cmocka_unit_test(impossible_links),   cmocka_unit_test(save_fails_whole),
  };
  return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
