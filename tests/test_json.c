/* Results as JSON: no NaN, no integer that a double would round, and whole files or none. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <math.h>

#include <cmocka.h>

#include "../tools/draintile/json.c"

#include "../tools/draintile/args_output.c"
#include "../tools/draintile/interrupt.c"
#include "../tools/draintile/log.c"

static void test_figures(void **state) {
  (void)state;
  const double values[] = {1.5, NAN, INFINITY, -INFINITY, 0.1};
  json_t *array = json_figures(values, 5);
  char *text = json_dumps(array, JSON_COMPACT | JSON_REAL_PRECISION(17));
  assert_string_equal(text, "[1.5,null,null,null,0.10000000000000001]");
  free(text);
  json_decref(array);
}

static void test_wholes(void **state) {
  (void)state;
  const int64_t values[] = {(int64_t)1 << 53, ((int64_t)1 << 53) + 1, -((int64_t)1 << 53), -((int64_t)1 << 53) - 1};
  json_t *array = json_wholes(values, 4);
  json_array_append_new(array, json_whole_unsigned((uint64_t)1 << 53));
  json_array_append_new(array, json_whole_unsigned(UINT64_MAX));
  char *text = json_dumps(array, JSON_COMPACT);
  assert_string_equal(text, "[9007199254740992,\"9007199254740993\",-9007199254740992,\"-9007199254740993\","
                            "9007199254740992,\"18446744073709551615\"]");
  free(text);
  json_decref(array);
}

static void test_text(void **state) {
  (void)state;
  json_t *text = json_text("a\xff\x80z");
  assert_string_equal(json_string_value(text), "a??z");
  json_decref(text);
  text = json_text("\xc3\xa4");
  assert_string_equal(json_string_value(text), "\xc3\xa4");
  json_decref(text);
}

static json_t *long_array(void) {
  json_t *array = json_array();
  for (int i = 0; i < 10000; i++) json_array_append_new(array, json_integer(i));
  return array;
}

/* A write that fails half way leaves the file that was there, and nothing else. */
static void test_interrupted(void **state) {
  (void)state;
  char folder[] = "/tmp/draintile-json-XXXXXX", path[64], line[16] = "";
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/results.json", folder);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs("precious", file);
  fclose(file);
  struct rlimit before, small;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  small = before;
  small.rlim_cur = 4096;
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  int code = json_write(long_array(), path);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(code, TOOL_FAILED);
  file = fopen(path, "r");
  assert_non_null(file);
  assert_non_null(fgets(line, sizeof line, file));
  fclose(file);
  assert_string_equal(line, "precious");
  assert_int_equal(json_write(long_array(), path), TOOL_OK);
  json_t *read = json_load_file(path, 0, NULL);
  assert_int_equal(json_array_size(read), 10000);
  json_decref(read);
  unlink(path);
  assert_int_equal(rmdir(folder), 0); /* no temporary file is left */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_figures),
      cmocka_unit_test(test_wholes),
      cmocka_unit_test(test_text),
      cmocka_unit_test(test_interrupted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
