/* Slots to rows, and tokens to ranks. */
#include "test_plan_support.h"

static void known_answer(void **state) {
  (void)state;
  const int32_t ids[] = {2, 0, -1, 2, 0, 0, 3, 2};
  int32_t counts[5], row_of_slot[8], slot_of_row[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  const int32_t counts_expected[] = {3, 0, 3, 1, 0}, rows_expected[] = {3, 0, -1, 4, 1, 2, 6, 5};
  const int32_t slots_expected[] = {1, 4, 5, 0, 3, 7, 6, 9};
  assert_int_equal(dt_slots(ids, 4, 2, 5, counts, row_of_slot, slot_of_row), DT_OK);
  assert_memory_equal(counts, counts_expected, sizeof counts);
  assert_memory_equal(row_of_slot, rows_expected, sizeof row_of_slot);
  assert_memory_equal(slot_of_row, slots_expected, sizeof slot_of_row);
}

static void no_tokens(void **state) {
  (void)state;
  int32_t counts[3] = {7, 7, 7}, unused = 5;
  assert_int_equal(dt_slots(NULL, 0, 8, 3, counts, &unused, &unused), DT_OK);
  for (int i = 0; i < 3; i++) assert_int_equal(counts[i], 0);
  assert_int_equal(unused, 5);
}

static void fails(dt_status expected, const char *detail, const int32_t *ids, int64_t tokens, int32_t top_k,
                  int32_t experts) {
  int32_t counts[8] = {7, 7, 7, 7, 7, 7, 7, 7}, rows[8] = {7}, slots[8] = {7};
  assert_int_equal(dt_slots(ids, tokens, top_k, experts, counts, rows, slots), expected);
  assert_string_equal(dt_error_detail(), detail);
  assert_true(counts[0] == 7 && rows[0] == 7 && slots[0] == 7);
}

/* Nothing is written unless every id is in range. */
static void bad_input(void **state) {
  (void)state;
  const int32_t high[] = {0, 1, 2, 4}, low[] = {0, -2, 1, 9}, lowest[] = {INT32_MIN}, highest[] = {INT32_MAX};
  fails(DT_ERR_INPUT, "ids: token 1, choice 1: 4; -1 or 0 to 3", high, 2, 2, 4);
  fails(DT_ERR_INPUT, "ids: token 0, choice 1: -2; -1 or 0 to 3", low, 2, 2, 4);
  fails(DT_ERR_INPUT, "ids: token 0, choice 0: -2147483648; -1 or 0 to 3", lowest, 1, 1, 4);
  fails(DT_ERR_INPUT, "ids: token 0, choice 0: 2147483647; -1 or 0 to 3", highest, 1, 1, 4);
  fails(DT_ERR_ARGUMENT, "top_k: 0; at least 1", high, 2, 0, 4);
  fails(DT_ERR_ARGUMENT, "experts: 0; at least 1", high, 2, 2, 0);
  fails(DT_ERR_ARGUMENT, "tokens: -1; 0 to 1073741823 with top_k 2 (a slot index has 31 bits)", high, -1, 2, 4);
  fails(DT_ERR_ARGUMENT, "tokens: 268435456; 0 to 268435455 with top_k 8 (a slot index has 31 bits)", high, 268435456,
        8, 4);
}

/* An input that broke other systems: 200,000 tokens, top-8. */
static void many_tokens(void **state) {
  (void)state;
  dt_random random = {8};
  routing r = routing_new(2, 60, 8);
  for (int32_t s = 0; s < 2; s++) {
    routing_tokens(&r, s, 200000);
    for (int64_t i = 0; i < 1600000; i++) r.ids[s][i] = random_in(&random, 0, 119);
  }
  routing_place(&r);
  for (int32_t s = 0; s < 2; s++) {
    int64_t sum = 0;
    for (int32_t g = 0; g < 120; g++) sum += r.counts[s * 120 + g];
    assert_int_equal(sum, 1600000);
    for (int32_t i = 0; i < 1600000; i++) assert_int_equal(r.slot_of_row[s][r.row_of_slot[s][i]], i);
  }
  routing_free(&r);
}

static void token_blocks(void **state) {
  (void)state;
  static const int64_t tokens[] = {0, 1, 7, 8, 9, 56700, 57826, INT64_C(1) << 40};
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
    for (int32_t ranks = 1; ranks <= 16; ranks++) {
      int64_t next = 0, previous = INT64_MAX, largest = 0, smallest = INT64_MAX;
      for (int32_t r = 0; r < ranks; r++) {
        int64_t first, count;
        dt_token_block(tokens[i], ranks, r, &first, &count);
        assert_true(first == next && count <= previous);
        next += count;
        previous = smallest = count;
        if (r == 0) largest = count;
      }
      assert_true(next == tokens[i] && largest - smallest <= 1);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(known_answer), cmocka_unit_test(no_tokens),
                                     cmocka_unit_test(bad_input), cmocka_unit_test(many_tokens),
                                     cmocka_unit_test(token_blocks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
