/* Traces: slices nest, times are exact microseconds, interrupted writes leave nothing. What other systems got
 * wrong: overlapping slices on one track, times in ns. */
#include <draintile/trace.h>

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static int setup(void **state) {
  (void)state;
  strcpy(path, "/tmp/dt-trace-XXXXXX");
  int descriptor = mkstemp(path);
  if (descriptor < 0) return -1;
  close(descriptor);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  unlink(path);
  return 0;
}

static json_t *load(void) {
  json_error_t error;
  json_t *root = json_load_file(path, 0, &error);
  assert_non_null(root);
  return root;
}

/* The slices of (pid, tid) in file order. */
static size_t slices(json_t *root, int pid, int tid, double *begin, double *end, size_t most) {
  size_t count = 0, i;
  json_t *event;
  json_array_foreach(json_object_get(root, "traceEvents"), i, event) {
    if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0) continue;
    if (json_integer_value(json_object_get(event, "pid")) != pid) continue;
    if (json_integer_value(json_object_get(event, "tid")) != tid) continue;
    assert_true(count < most);
    begin[count] = json_number_value(json_object_get(event, "ts"));
    end[count] = begin[count] + json_number_value(json_object_get(event, "dur"));
    count++;
  }
  return count;
}

static void overlapping_slices_are_cut_to_nest(void **state) {
  (void)state;
  uint64_t day = 40ull * 24 * 3600 * 1000000000ull; /* a long uptime: ns above 2^51 */
  dt_span spans[] = {
      {.begin_ns = day + 5000,
       .end_ns = day + 9001,
       .kind = DT_SPAN_WAIT,
       .track = 0,
       .index = 1,
       .column = 0,
       .peer = -1},
      {.begin_ns = day + 1000,
       .end_ns = day + 8000,
       .kind = DT_SPAN_L1,
       .track = 0,
       .index = 1,
       .column = 0,
       .peer = -1},
      {.begin_ns = day + 9001,
       .end_ns = day + 9002,
       .kind = DT_SPAN_L2,
       .track = 0,
       .index = 1,
       .column = 0,
       .peer = -1},
      {.begin_ns = day + 2000,
       .end_ns = day + 6000,
       .kind = DT_SPAN_LINK,
       .track = 2,
       .index = -1,
       .column = -1,
       .peer = 1},
      {.begin_ns = day + 3000,
       .end_ns = day + 7000,
       .kind = DT_SPAN_LINK,
       .track = 2,
       .index = -1,
       .column = -1,
       .peer = 1},
  };
  dt_trace_rank rank = {.name = "signal", .rank = 0, .workers = 1, .consumers = 1, .spans = spans, .span_count = 5};
  assert_int_equal(dt_trace_write(path, &rank, 1), DT_OK);
  json_t *root = load();
  double begin[8], end[8];
  assert_int_equal(slices(root, 0, 0, begin, end, 8), 3);
  assert_float_equal(begin[0], 0.0, 1e-9);
  assert_float_equal(end[0], 7.0, 1e-9);
  assert_float_equal(begin[1], 4.0, 1e-9);
  assert_float_equal(end[1], 7.0, 1e-9); /* cut from 8.001 */
  assert_float_equal(begin[2], 8.001, 1e-9);
  assert_float_equal(end[2], 8.002, 1e-9);
  assert_int_equal(slices(root, 0, 2, begin, end, 8), 2);
  assert_float_equal(begin[1], end[0], 1e-9); /* one after the other on the link */
  json_decref(root);
}

/* A clock that is read on another processor may run behind by a little. */
static void a_slice_that_ends_before_it_begins_has_no_length(void **state) {
  (void)state;
  dt_span spans[] = {{.begin_ns = 5000, .end_ns = 4990, .kind = DT_SPAN_WAIT, .track = 0},
                     {.begin_ns = 1000, .end_ns = 2000, .kind = DT_SPAN_L1, .track = 0}};
  dt_trace_rank rank = {.name = "signal", .rank = 0, .workers = 1, .spans = spans, .span_count = 2};
  assert_int_equal(dt_trace_write(path, &rank, 1), DT_OK);
  json_t *root = load();
  double begin[4], end[4];
  assert_int_equal(slices(root, 0, 0, begin, end, 4), 2);
  assert_float_equal(begin[1], 4.0, 1e-9);
  assert_float_equal(end[1], 4.0, 1e-9);
  json_decref(root);
}

static void ranks_are_processes_with_named_tracks(void **state) {
  (void)state;
  dt_span span = {
      .begin_ns = 10, .end_ns = 20, .kind = DT_SPAN_SEGMENT, .track = 2, .index = 0, .column = -1, .peer = 1};
  dt_trace_rank ranks[2] = {{.name = "a\"b", .rank = 0, .workers = 2, .consumers = 1, .spans = &span, .span_count = 1},
                            {.name = "x", .rank = 1, .workers = 1, .consumers = 1, .spans = &span, .span_count = 1}};
  assert_int_equal(dt_trace_write(path, ranks, 2), DT_OK);
  json_t *root = load(), *event;
  size_t i, consumers = 0, links = 0, quoted = 0;
  json_array_foreach(json_object_get(root, "traceEvents"), i, event) {
    const char *name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    if (!name) continue;
    consumers += strcmp(name, "consumer 0") == 0;
    links += strcmp(name, "link 0") == 0;
    quoted += strcmp(name, "a\"b rank 0") == 0;
  }
  assert_int_equal(consumers, 1);
  assert_int_equal(links, 1);
  assert_int_equal(quoted, 1);
  json_decref(root);
}

/* Names that are no UTF-8, or stop being it where they are cut: the file stays JSON. */
static void names_are_utf8(void **state) {
  (void)state;
  char two_bytes[400] = "", cut[400] = "x";
  for (size_t i = 0; i < 99; i++) strcat(two_bytes, "\u00e9"), strcat(cut, "\u00e9");
  const char *const names[] = {"a\xff\n", "\u00e9t\u00e9", two_bytes, cut};
  const char *const starts[] = {"a?\n rank 0", "\u00e9t\u00e9 rank 0", "", "x"};
  dt_span span = {.begin_ns = 10, .end_ns = 20, .kind = DT_SPAN_L1};
  for (size_t n = 0; n < 4; n++) {
    dt_trace_rank rank = {.name = names[n], .workers = 1, .spans = &span, .span_count = 1};
    assert_int_equal(dt_trace_write(path, &rank, 1), DT_OK);
    json_t *root = load();
    const json_t *first = json_array_get(json_object_get(root, "traceEvents"), 0);
    const char *name = json_string_value(json_object_get(json_object_get(first, "args"), "name"));
    assert_non_null(name);
    assert_int_equal(strncmp(name, starts[n], strlen(starts[n])), 0);
    json_decref(root);
  }
}

static void gpu_tracks_are_roles_of_multiprocessors(void **state) {
  (void)state;
  dt_span spans[] = {
      {.begin_ns = 10, .end_ns = 20, .kind = DT_SPAN_STALL, .track = dt_device_track(131, DT_ROLE_CONSUMER + 1)},
      {.begin_ns = 10, .end_ns = 20, .kind = DT_SPAN_PUBLISH, .track = dt_device_track(0, DT_ROLE_RELEASE)},
      {.begin_ns = 10, .end_ns = 20, .kind = DT_SPAN_PLAN, .track = 0},
      {.begin_ns = 10, .end_ns = 20, .kind = DT_SPAN_PLAN, .track = -5}}; /* none of a multiprocessor */
  dt_trace_rank rank = {.name = "wave", .device = 1, .spans = spans, .span_count = 4};
  assert_int_equal(dt_trace_write(path, &rank, 1), DT_OK);
  json_t *root = load(), *event;
  size_t i, named = 0;
  json_array_foreach(json_object_get(root, "traceEvents"), i, event) {
    const char *name = json_string_value(json_object_get(json_object_get(event, "args"), "name"));
    const char *kind = json_string_value(json_object_get(event, "name"));
    if (name)
      named +=
          strcmp(name, "SM 131 consumer 1") == 0 || strcmp(name, "SM 0 release") == 0 || strcmp(name, "kernels") == 0;
    else
      named += strcmp(kind, "stall") == 0 || strcmp(kind, "publish") == 0 || strcmp(kind, "plan") == 0;
  }
  assert_int_equal(named, 8);
  json_decref(root);
}

/* Two multiprocessors. On the first both warpgroups store a tile, the second later, and then another tile; on the other
 * one tile overlaps the first, and a tile that stays on the rank. */
static void bursts_are_tiles_of_a_multiprocessor(void **state) {
  (void)state;
  const int32_t a = dt_device_track(4, DT_ROLE_STORES), b = dt_device_track(9, DT_ROLE_STORES);
  dt_span spans[] = {
      {.begin_ns = 1000, .end_ns = 3000, .kind = DT_SPAN_STORE, .track = a, .index = 7, .column = 1, .bytes = 100},
      {.begin_ns = 2000, .end_ns = 5000, .kind = DT_SPAN_STORE, .track = a + 1, .index = 7, .column = 1, .bytes = 50},
      {.begin_ns = 9000, .end_ns = 11000, .kind = DT_SPAN_STORE, .track = a, .index = 7, .column = 2, .bytes = 100},
      {.begin_ns = 2000, .end_ns = 4000, .kind = DT_SPAN_STORE, .track = b, .index = 7, .column = 1, .bytes = 100},
      {.begin_ns = 9000, .end_ns = 10000, .kind = DT_SPAN_STORE, .track = b, .index = 8, .column = 0},
      {.begin_ns = 0, .end_ns = 99000, .kind = DT_SPAN_L2, .track = a, .index = 7, .column = 1}};
  const size_t count = sizeof spans / sizeof *spans;
  dt_store_activity stores;
  assert_int_equal(dt_trace_stores(spans, count, 1, 1.5e-6, &stores), DT_OK);
  assert_int_equal(stores.bursts, 3);
  assert_int_equal(stores.bytes, 350);
  assert_float_equal(stores.active_max, 2, 0);
  assert_float_equal(stores.active_mean, (4.0 + 2.0 + 2.0) / 10.0, 1e-9); /* of 1 to 11 us: 4 and 2 us, and 2 us */
  assert_float_equal(stores.span_median_s, 2e-6, 1e-15);
  assert_float_equal(stores.span_mean_s, 8e-6 / 3, 1e-15);
  assert_true(stores.k_act > 1.8 && stores.k_act <= 2); /* two begin within the window, once */
  assert_int_equal(dt_trace_stores(spans, count, 0, 0.5e-6, &stores), DT_OK);
  assert_int_equal(stores.bursts, 4);
  assert_float_equal(stores.active_mean, 9.0 / 10.0, 1e-9);
  assert_int_equal(dt_trace_stores(spans + 5, 1, 0, 1e-6, &stores), DT_OK);
  assert_int_equal(stores.bursts, 0);
  assert_float_equal(stores.k_act, 0, 0);
}

/* A burst that begins as another ends is not beside it. */
static void bursts_that_follow_are_one_at_a_time(void **state) {
  (void)state;
  const dt_span spans[] = {
      {.begin_ns = 1000, .end_ns = 2000, .kind = DT_SPAN_STORE, .track = dt_device_track(4, DT_ROLE_STORES)},
      {.begin_ns = 2000, .end_ns = 3000, .kind = DT_SPAN_STORE, .track = dt_device_track(9, DT_ROLE_STORES)}};
  dt_store_activity stores;
  assert_int_equal(dt_trace_stores(spans, 2, 0, 1e-6, &stores), DT_OK);
  assert_int_equal(stores.bursts, 2);
  assert_float_equal(stores.active_max, 1, 0);
  assert_float_equal(stores.active_mean, 1, 1e-9);
}

static void no_spans_is_valid_json(void **state) {
  (void)state;
  dt_trace_rank rank = {.name = "none", .rank = 0, .workers = 1};
  assert_int_equal(dt_trace_write(path, &rank, 1), DT_OK);
  json_t *root = load();
  assert_int_equal(json_array_size(json_object_get(root, "traceEvents")), 0);
  json_decref(root);
}

static void failed_writes_name_the_path_and_leave_nothing(void **state) {
  (void)state;
  dt_trace_rank rank = {.name = "none", .rank = 0, .workers = 1};
  assert_int_equal(dt_trace_write("/nonexistent/trace.json", &rank, 1), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), "/nonexistent/trace.json"));
}

static void a_full_device_is_reported_and_stays_a_device(void **state) {
  (void)state;
  dt_trace_rank rank = {.name = "none", .rank = 0, .workers = 1};
  struct stat found;
  assert_int_equal(dt_trace_write("/dev/full", &rank, 1), DT_ERR_IO);
  assert_non_null(strstr(dt_error_detail(), "/dev/full"));
  assert_int_equal(dt_trace_write("/dev/null", &rank, 1), DT_OK);
  assert_int_equal(stat("/dev/null", &found), 0);
  assert_true(S_ISCHR(found.st_mode));
}

/* The mask of new files belongs to the whole process: a library must not change it, not for a moment. This one stands
 * before the C library's. */
static int mask_changes;

mode_t umask(mode_t mask) {
  mask_changes++;
  return (mode_t)syscall(SYS_umask, mask);
}

static void the_mask_of_new_files_stays(void **state) {
  (void)state;
  const dt_trace_rank rank = {.name = "x"};
  struct stat file;
  const mode_t before = umask(027);
  mask_changes = 0;
  const dt_status status = dt_trace_write(path, &rank, 1);
  const int changes = mask_changes;
  umask(before);
  assert_int_equal(status, DT_OK);
  assert_int_equal(changes, 0);
  assert_int_equal(stat(path, &file), 0);
  assert_int_equal(file.st_mode & 0777, 0640);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(overlapping_slices_are_cut_to_nest, setup, teardown),
      cmocka_unit_test_setup_teardown(a_slice_that_ends_before_it_begins_has_no_length, setup, teardown),
      cmocka_unit_test_setup_teardown(ranks_are_processes_with_named_tracks, setup, teardown),
      cmocka_unit_test_setup_teardown(names_are_utf8, setup, teardown),
      cmocka_unit_test_setup_teardown(gpu_tracks_are_roles_of_multiprocessors, setup, teardown),
      cmocka_unit_test(bursts_are_tiles_of_a_multiprocessor),
      cmocka_unit_test(bursts_that_follow_are_one_at_a_time),
      cmocka_unit_test_setup_teardown(no_spans_is_valid_json, setup, teardown),
      cmocka_unit_test(failed_writes_name_the_path_and_leave_nothing),
      cmocka_unit_test(a_full_device_is_reported_and_stays_a_device),
      cmocka_unit_test_setup_teardown(the_mask_of_new_files_stays, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
