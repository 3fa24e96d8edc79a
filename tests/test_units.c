#include <draintile/units.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

typedef dt_status (*parse_fn)(const char *name, const char *text, double *value);

static void assert_parses(parse_fn parse, const char *text, double want) {
  double got = -1.0;
  if (parse("--x", text, &got)) fail_msg("%s: %s", text, dt_error_detail());
  if (got != want) fail_msg("%s: %.17g, expected %.17g", text, got, want);
}

static void assert_refused(parse_fn parse, const char *text, const char *allowed) {
  double got = -1.0;
  assert_int_equal(parse("--x", text, &got), DT_ERR_ARGUMENT);
  assert_true(got == -1.0);
  assert_int_equal(strncmp(dt_error_detail(), "--x: ", 5), 0);
  if (!strstr(dt_error_detail(), allowed)) fail_msg("%s: %s", text ? text : "NULL", dt_error_detail());
}

static void bytes(void **state) {
  (void)state;
  assert_parses(dt_parse_bytes, "4.25MiB", 4.25 * 1048576);
  assert_parses(dt_parse_bytes, "0", 0);
  assert_parses(dt_parse_bytes, "12345678", 12345678);
  assert_parses(dt_parse_bytes, "1e6", 1e6);
  assert_parses(dt_parse_bytes, "1e6B", 1e6);
  assert_parses(dt_parse_bytes, "3kB", 3000);
  assert_parses(dt_parse_bytes, "3KB", 3000);
  assert_parses(dt_parse_bytes, "32 KiB", 32768);
  assert_parses(dt_parse_bytes, ".5GB", 5e8);
  assert_parses(dt_parse_bytes, "2.GiB", 2147483648.0);
  assert_parses(dt_parse_bytes, "1TiB", 1099511627776.0);
  static const char *const bad[] = {"",      " ",  "-1",   "+1",  "nan",  "inf", "0x10",  "1e400", "9us", "1GB/s",
                                    "1MiBx", "1 ", "1  B", "MiB", "1mib", "1e",  "1,5MB", NULL,    "1b",  "1.2.3"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_refused(dt_parse_bytes, bad[i], "MiB");
}

static void seconds(void **state) {
  (void)state;
  assert_parses(dt_parse_seconds, "9us", 9e-6);
  assert_parses(dt_parse_seconds, "0.76us", 0.76e-6);
  assert_parses(dt_parse_seconds, "20", 20);
  assert_parses(dt_parse_seconds, "20s", 20);
  assert_parses(dt_parse_seconds, "1.5ms", 1.5e-3);
  assert_parses(dt_parse_seconds, "7 ns", 7e-9);
  assert_parses(dt_parse_seconds, "7ps", 7e-12);
  assert_parses(dt_parse_seconds, "2min", 120);
  assert_parses(dt_parse_seconds, "1h", 3600);
  assert_refused(dt_parse_seconds, "4MiB", "ms, us");
  assert_refused(dt_parse_seconds, "4GB/s", "ms, us");
  assert_refused(dt_parse_seconds, "1sec", "ms, us");
  assert_refused(dt_parse_seconds, "-1us", "ms, us");
}

static void rates(void **state) {
  (void)state;
  assert_parses(dt_parse_bytes_per_s, "717GB/s", 717e9);
  assert_parses(dt_parse_bytes_per_s, "3.7e+11B/s", 3.7e11);
  assert_parses(dt_parse_bytes_per_s, "3.7E11", 3.7e11);
  assert_parses(dt_parse_bytes_per_s, "1.5 GiB/s", 1.5 * 1073741824.0);
  assert_refused(dt_parse_bytes_per_s, "717GB", "per second");
  assert_refused(dt_parse_bytes_per_s, "717Gb/s", "per second");
  assert_refused(dt_parse_bytes_per_s, "9us", "per second");
  assert_refused(dt_parse_bytes_per_s, "717GB/", "per second");
}

static void formats(void **state) {
  (void)state;
  char out[32];
  assert_string_equal(dt_format_bytes(4.25 * 1048576, out, sizeof out), "4.25 MiB");
  assert_string_equal(dt_format_bytes(0, out, sizeof out), "0 B");
  assert_string_equal(dt_format_bytes(1023, out, sizeof out), "1023 B");
  assert_string_equal(dt_format_bytes(5e15, out, sizeof out), "4547 TiB");
  assert_string_equal(dt_format_seconds(9e-6, out, sizeof out), "9 us");
  assert_string_equal(dt_format_seconds(0.0123456, out, sizeof out), "12.35 ms");
  assert_string_equal(dt_format_seconds(0, out, sizeof out), "0 s");
  assert_string_equal(dt_format_seconds(-2e-3, out, sizeof out), "-2 ms");
  assert_string_equal(dt_format_seconds(1e-11, out, sizeof out), "0.01 ns");
  assert_string_equal(dt_format_bytes_per_s(717e9, out, sizeof out), "717 GB/s");
  char small[4];
  assert_string_equal(dt_format_bytes_per_s(717e9, small, sizeof small), "717");
}

/* What is printed can be read back. */
static void formats_parse_back(void **state) {
  (void)state;
  char out[32];
  double value = 1e-9;
  for (int step = 0; step < 42; step++, value *= 3.7) {
    double got;
    assert_int_equal(dt_parse_seconds("s", dt_format_seconds(value, out, sizeof out), &got), DT_OK);
    assert_true(fabs(got - value) <= 6e-4 * value);
    if (value < 1.0) continue;
    assert_int_equal(dt_parse_bytes("b", dt_format_bytes(value, out, sizeof out), &got), DT_OK);
    assert_true(fabs(got - value) <= 6e-4 * value);
    assert_int_equal(dt_parse_bytes_per_s("r", dt_format_bytes_per_s(value, out, sizeof out), &got), DT_OK);
    assert_true(fabs(got - value) <= 6e-4 * value);
  }
}

/* Whatever a double holds: the unit is there, and 32 bytes are enough. */
static void formats_of_any_size(void **state) {
  (void)state;
  char out[32];
  assert_string_equal(dt_format_seconds(1e14, out, sizeof out), "100000000000000 s");
  assert_string_equal(dt_format_seconds(1e300, out, sizeof out), "1e+300 s");
  assert_string_equal(dt_format_seconds(-1.7976931348623157e308, out, sizeof out), "-1.798e+308 s");
  assert_string_equal(dt_format_bytes(1e300, out, sizeof out), "9.095e+287 TiB");
  assert_string_equal(dt_format_bytes_per_s(1e300, out, sizeof out), "1e+288 TB/s");
  assert_string_equal(dt_format_seconds(5e-324, out, sizeof out), "4.941e-315 ns");
}

/* The longest number that is read, and one digit more. */
static void long_numbers(void **state) {
  (void)state;
  char text[72];
  double value = 0;
  memset(text, '0', sizeof text);
  memcpy(text + 63, "7us", 4);
  assert_int_equal(dt_parse_seconds("gap", text, &value), DT_OK);
  assert_true(value == 7e-6);
  memcpy(text + 63, "07us", 5);
  assert_int_equal(dt_parse_seconds("gap", text, &value), DT_ERR_ARGUMENT);
}

/* Of what a message repeats nothing breaks its line or speaks to a terminal; an endless text leaves the rest to read.
 */
static void details(void **state) {
  (void)state;
  double value = 0;
  assert_int_equal(dt_parse_seconds("gap", "a\nb\033[2J\r\x7f\xc3\xa4", &value), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(), "gap: \"a?b?[2J??\xc3\xa4\"; allowed: a number >= 0, alone or with s, ms, us, "
                                         "ns, ps, min or h");
  char text[5000];
  memset(text, '\n', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  assert_int_equal(dt_parse_bytes("size", text, &value), DT_ERR_ARGUMENT);
  assert_int_equal(strlen(dt_error_detail()), 1023);
  assert_null(strchr(dt_error_detail(), '\n'));
  assert_ptr_equal(strstr(dt_error_detail(), "size: \"???"), dt_error_detail());
  assert_non_null(strstr(dt_error_detail(), "???\"; allowed: a number"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes),
      cmocka_unit_test(seconds),
      cmocka_unit_test(rates),
      cmocka_unit_test(formats),
      cmocka_unit_test(formats_parse_back),
      cmocka_unit_test(formats_of_any_size),
      cmocka_unit_test(long_numbers),
      cmocka_unit_test(details),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
