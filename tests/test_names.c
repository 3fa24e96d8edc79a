/* What the library calls its enums' values: every value has a name of its own, and what is no value says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/attention.h>
#include <draintile/model.h>
#include <draintile/plan.h>
#include <draintile/status.h>
#include <draintile/trace.h>
#include <draintile/ulysses_bench.h>
#include <draintile/weights.h>

#include "model/fit.h"
#include "model/probe.h"

/* One function of a value for all of them. */
#define NAME_OF(function, type)                                                                                        \
  static const char *name_of_##function(int value) {                                                                   \
    return function((type)value);                                                                                      \
  }
NAME_OF(dt_attention_schedule_name, dt_attention_schedule)
NAME_OF(dt_answer_name, dt_answer)
NAME_OF(dt_dtype_name, dt_dtype)
NAME_OF(dt_law_name, dt_law)
NAME_OF(dt_layout_name, dt_layout)
NAME_OF(dt_order_name, dt_order)
NAME_OF(dt_phase_name, dt_phase)
NAME_OF(dt_probe_alignment_name, int32_t)
NAME_OF(dt_probe_operation_name, int32_t)
NAME_OF(dt_probe_pattern_name, int32_t)
NAME_OF(dt_regime_name, dt_regime)
NAME_OF(dt_schedule_name, dt_schedule)
NAME_OF(dt_span_kind_name, dt_span_kind)
NAME_OF(dt_status_name, dt_status)
NAME_OF(dt_status_text, dt_status)
NAME_OF(dt_ulysses_method_name, dt_ulysses_method)

static const struct {
  const char *what, *(*name_of)(int value), *first, *last;
  int count, open; /* open: values beyond have no name and must not be asked for */
} tables[] = {
    {"attention schedule", name_of_dt_attention_schedule_name, "serial", "piggyback", 2, 0},
    {"answer", name_of_dt_answer_name, "safe", "undecided", 3, 0},
    {"dtype", name_of_dt_dtype_name, "f32", NULL, 3, 1},
    {"law", name_of_dt_law_name, "max", "burst-capacity", 4, 0},
    {"layout", name_of_dt_layout_name, "packed", "aligned", 2, 0},
    {"order", name_of_dt_order_name, "natural", "paced", 3, 0},
    {"phase", name_of_dt_phase_name, "dispatch", "segment", 6, 0},
    {"alignment", name_of_dt_probe_alignment_name, "free", "alone", 4, 0},
    {"operation", name_of_dt_probe_operation_name, "st.v4", "put", 4, 0},
    {"pattern", name_of_dt_probe_pattern_name, "local", "many-to-one", 5, 0},
    {"regime", name_of_dt_regime_name, "floor", "capacity", 3, 0},
    {"schedule", name_of_dt_schedule_name, "serial", "alternate", 6, 0},
    {"span kind", name_of_dt_span_kind_name, NULL, "publish", DT_SPAN_KINDS, 0},
    {"status", name_of_dt_status_name, "DT_OK", "DT_ERR_INTERNAL", 14, 0},
    {"status text", name_of_dt_status_text, "success", "internal invariant broken", 14, 0},
    {"ulysses method", name_of_dt_ulysses_method_name, "kernel", "whole-graph", DT_ULYSSES_METHODS, 0},
};

static void every_value_has_its_own(void **state) {
  (void)state;
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
    for (int i = 0; i < tables[t].count; i++) {
      const char *name = tables[t].name_of(i);
      if (!name || !*name) fail_msg("%s %d has no name", tables[t].what, i);
      for (int j = 0; j < i; j++)
        if (strcmp(name, tables[t].name_of(j)) == 0) fail_msg("%s %d and %d: %s", tables[t].what, j, i, name);
    }
    if (tables[t].first) assert_string_equal(tables[t].name_of(0), tables[t].first);
    if (tables[t].last) assert_string_equal(tables[t].name_of(tables[t].count - 1), tables[t].last);
  }
}

static void no_value_says_so(void **state) {
  (void)state;
  static const int none[] = {-1, 1000, INT32_MAX, INT32_MIN};
  for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
    for (size_t i = 0; !tables[t].open && i <= sizeof none / sizeof *none; i++) {
      const int value = i ? none[i - 1] : tables[t].count;
      const char *name = tables[t].name_of(value);
      if (!strstr(name, "unknown") && !strstr(name, "UNKNOWN")) fail_msg("%s %d: %s", tables[t].what, value, name);
    }
}

/* A type has a size as long as it has a name, but for blocks; what is no type has neither. */
static void types_have_sizes(void **state) {
  (void)state;
  int32_t types = 0;
  while (strcmp(dt_dtype_name((dt_dtype)types), "unknown") != 0) {
    assert_int_equal(dt_dtype_bytes((dt_dtype)types) == 0, types == DT_DTYPE_MXFP4);
    types++;
  }
  assert_int_equal(types, DT_DTYPE_F64 + 1);
  assert_int_equal(dt_dtype_bytes((dt_dtype)types), 0);
  assert_int_equal(dt_dtype_bytes((dt_dtype)-1), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_value_has_its_own),
      cmocka_unit_test(no_value_says_so),
      cmocka_unit_test(types_have_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
