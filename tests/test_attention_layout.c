/* The layout of Ulysses attention: rows, heads, messages and tiles, of the cases that broke other systems and of random
 * shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "plan/ulysses.h"

static dt_ulysses_layout make(int32_t ranks, int32_t heads, int32_t kv_heads, int64_t tokens, int64_t kv_tokens) {
  dt_ulysses_layout u = {.ranks = ranks,
                         .heads = heads,
                         .kv_heads = kv_heads,
                         .head_dim = 4,
                         .tokens = tokens,
                         .kv_tokens = kv_tokens,
                         .tile_rows = 128};
  assert_int_equal(dt_ulysses_init(&u), DT_OK);
  return u;
}

static void expect_heads(const dt_ulysses_layout *u, const int32_t *counts, int32_t kv_total) {
  int32_t kv = 0;
  for (int32_t r = 0; r < u->ranks; r++) {
    assert_int_equal(dt_ulysses_head_count(u, r), counts[r]);
    kv += dt_ulysses_kv_count(u, r);
  }
  assert_int_equal(kv, kv_total);
}

/* 30 heads on 4 ranks and the like, and a shape where larger shares first would tear two groups. */
static void test_uneven_heads(void **state) {
  (void)state;
  dt_ulysses_layout u = make(4, 30, 30, 1, 1);
  expect_heads(&u, (int32_t[]){8, 8, 7, 7}, 30);
  u = make(8, 12, 12, 1, 1);
  expect_heads(&u, (int32_t[]){2, 2, 2, 2, 1, 1, 1, 1}, 12);
  u = make(2, 28, 7, 1, 1);
  expect_heads(&u, (int32_t[]){14, 14}, 8); /* key head 3 is needed by both */
  assert_int_equal(dt_ulysses_kv_first(&u, 1), 3);
  u = make(8, 12, 1, 1, 1);
  expect_heads(&u, (int32_t[]){2, 2, 2, 2, 1, 1, 1, 1}, 8);
  u = make(3, 10, 5, 1, 1); /* whoever has 4, one group is torn */
  expect_heads(&u, (int32_t[]){4, 3, 3}, 6);
  u = make(3, 11, 1, 1, 1);
  expect_heads(&u, (int32_t[]){4, 4, 3}, 3);
  u = make(4, 18, 6, 1, 1); /* 5, 5, 4, 4 would tear three groups */
  expect_heads(&u, (int32_t[]){5, 4, 5, 4}, 8);
}

/* The fewest key heads over every way to give out the larger shares. */
static int32_t fewest_kv(const dt_ulysses_layout *u) {
  int32_t base = u->heads / u->ranks, extra = u->heads % u->ranks, best = INT32_MAX, group = u->heads / u->kv_heads;
  for (uint32_t choice = 0; choice < 1u << u->ranks; choice++) {
    if (__builtin_popcount(choice) != extra) continue;
    int32_t first = 0, kv = 0;
    for (int32_t r = 0; r < u->ranks; r++) {
      int32_t count = base + (int32_t)(choice >> r & 1);
      for (int32_t g = 0; g < u->kv_heads; g++) kv += g * group < first + count && (g + 1) * group > first;
      first += count;
    }
    if (kv < best) best = kv;
  }
  return best;
}

static void test_heads_are_best(void **state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 8; ranks++)
    for (int32_t kv_heads = 1; kv_heads <= 12; kv_heads++)
      for (int32_t group = 1; group <= 7; group++) {
        if (kv_heads * group < ranks) continue;
        dt_ulysses_layout u = make(ranks, kv_heads * group, kv_heads, 1, 1);
        int32_t kv = 0;
        assert_int_equal(u.head_first[0], 0);
        assert_int_equal(u.head_first[ranks], u.heads);
        for (int32_t r = 0; r < ranks; r++) {
          int32_t count = dt_ulysses_head_count(&u, r);
          assert_true(count == u.heads / ranks || count == (u.heads + ranks - 1) / ranks);
          kv += dt_ulysses_kv_count(&u, r);
        }
        assert_int_equal(kv, fewest_kv(&u));
      }
}

static void test_uneven_rows(void **state) {
  (void)state;
  dt_ulysses_layout u = make(8, 8, 8, 56700, 56700);
  for (int32_t r = 0; r < 8; r++) assert_int_equal(dt_ulysses_owned_rows(&u, u.tokens, r), r < 4 ? 7088 : 7087);
  u = make(8, 8, 8, 57826, 57826);
  for (int32_t r = 0; r < 8; r++) assert_int_equal(dt_ulysses_owned_rows(&u, u.tokens, r), r < 2 ? 7229 : 7228);

  u = make(2, 2, 2, 4222, 4222);
  u.text_tokens = 126;
  dt_ulysses_rows run = dt_ulysses_held(&u, u.tokens, 1, DT_ULYSSES_TEXT); /* T1 */
  assert_true(run.first == 63 && run.rows == 63 && run.local == 0);
  run = dt_ulysses_held(&u, u.tokens, 1, DT_ULYSSES_IMAGE); /* I1 */
  assert_true(run.first == 126 + 2048 && run.rows == 2048 && run.local == 63);
  u.text_replicated = 1;
  run = dt_ulysses_held(&u, u.tokens, 1, DT_ULYSSES_TEXT);
  assert_true(run.first == 0 && run.rows == 126 && run.local == 0);
  run = dt_ulysses_held(&u, u.tokens, 1, DT_ULYSSES_IMAGE);
  assert_true(run.first == 126 + 2048 && run.rows == 2048 && run.local == 126);
  run = dt_ulysses_owned(&u, u.tokens, 1, DT_ULYSSES_IMAGE);
  assert_true(run.first == 126 + 2048 && run.rows == 2048 && run.local == 63);
  assert_int_equal(dt_ulysses_sent_rows(&u, u.tokens, 1, 0), 2048);
  assert_int_equal(dt_ulysses_sent_rows(&u, u.tokens, 1, 1), 126 + 2048);
}

static dt_ulysses_layout random_shape(dt_random *random) {
  int32_t group = 1 + (int32_t)dt_random_below(random, 5), kv_heads = 1 + (int32_t)dt_random_below(random, 8);
  int32_t heads = group * kv_heads, most = heads < 8 ? heads : 8;
  dt_ulysses_layout u = make(1 + (int32_t)dt_random_below(random, (uint64_t)most), heads, kv_heads,
                             (int64_t)dt_random_below(random, 300), (int64_t)dt_random_below(random, 300));
  int64_t shorter = u.tokens < u.kv_tokens ? u.tokens : u.kv_tokens;
  if (dt_random_below(random, 2)) u.text_tokens = (int64_t)dt_random_below(random, (uint64_t)shorter + 1);
  u.text_replicated = (int32_t)dt_random_below(random, 2);
  u.tile_rows = 1 + (int32_t)dt_random_below(random, 200);
  u.own_lag = (int32_t)(dt_random_below(random, 4) * dt_random_below(random, 20));
  assert_int_equal(dt_ulysses_init(&u), DT_OK);
  return u;
}

/* Every element of a rank's arrivals is written by exactly one message. */
static void check_messages(const dt_ulysses_layout *u, int32_t rank) {
  int64_t elements = dt_ulysses_arrivals(u, rank);
  unsigned char *seen = calloc((size_t)elements + 1, 1);
  for (int32_t source = 0; source < u->ranks; source++) {
    int64_t count = dt_ulysses_sends(u, source, NULL);
    dt_ulysses_send *sends = calloc((size_t)count + 1, sizeof(*sends));
    assert_int_equal(dt_ulysses_sends(u, source, sends), count);
    for (int64_t i = 0; i < count; i++) {
      if (sends[i].peer != rank) continue;
      int64_t tokens = sends[i].kv ? u->kv_tokens : u->tokens;
      for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
        dt_ulysses_rows run = dt_ulysses_sent(u, tokens, source, rank, part);
        for (int tensor = 0; tensor <= sends[i].kv; tensor++)
          for (int64_t e = 0; e < run.rows * u->head_dim; e++) {
            int64_t at = sends[i].kv ? dt_ulysses_kv_at(u, rank, tensor, sends[i].head, run.first)
                                     : dt_ulysses_q_at(u, sends[i].head, run.first);
            assert_true(at + e < elements);
            seen[at + e]++;
          }
      }
    }
    free(sends);
  }
  for (int64_t e = 0; e < elements; e++) assert_int_equal(seen[e], 1);
  free(seen);
}

/* Keys before the queries that use them, so that in order of heads nothing waits for a later one; of a head, peers from
 * this rank on, so that not all ranks send to the same one. */
static void check_send_order(const dt_ulysses_layout *u, int32_t rank) {
  int64_t count = dt_ulysses_sends(u, rank, NULL), turn = -1;
  dt_ulysses_send *sends = calloc((size_t)count + 1, sizeof(*sends));
  dt_ulysses_sends(u, rank, sends);
  for (int32_t peer = 0; peer < u->ranks; peer++) {
    int32_t head = -1, kv = -1;
    for (int64_t i = 0; i < count; i++) {
      if (sends[i].peer != peer) continue;
      int32_t *last = sends[i].kv ? &kv : &head;
      assert_int_equal(sends[i].head, *last + 1);
      *last = sends[i].head;
      if (!sends[i].kv && dt_ulysses_sent_rows(u, u->kv_tokens, rank, peer))
        assert_int_equal(kv, dt_ulysses_kv_of(u, peer, head));
    }
  }
  for (int64_t i = 0; i < count; i++) {
    if (sends[i].kv) continue;
    int64_t next = (int64_t)sends[i].head * u->ranks + (sends[i].peer - rank + u->ranks) % u->ranks;
    assert_true(next > turn);
    turn = next;
  }
  free(sends);
}

/* Every row of every head in one tile, whose destination is the rank that owns all of its rows. */
static void check_tiles(const dt_ulysses_layout *u, int32_t rank) {
  int64_t count = dt_ulysses_tiles(u, rank, NULL);
  int32_t remote_head = 0, own_head = 0;
  int32_t heads = dt_ulysses_head_count(u, rank);
  dt_ulysses_tile *tiles = calloc((size_t)count + 1, sizeof(*tiles));
  unsigned char *seen = calloc((size_t)(heads * u->tokens) + 1, 1);
  int64_t own_last[40], remote_last[40]; /* tiles of each head; -1: none */
  for (int32_t head = 0; head < heads; head++) own_last[head] = remote_last[head] = -1;
  assert_int_equal(dt_ulysses_tiles(u, rank, tiles), count);
  for (int64_t i = 0; i < count; i++) {
    const dt_ulysses_tile *tile = &tiles[i];
    assert_in_range(tile->rows, 1, u->tile_rows);
    assert_in_range(tile->head, 0, heads - 1);
    int32_t *last = tile->owner == rank ? &own_head : &remote_head;
    assert_true(tile->head >= *last); /* head by head */
    *last = tile->head;
    if (tile->owner == rank)
      own_last[tile->head] = i;
    else
      remote_last[tile->head] = i;
    int inside = 0;
    for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
      dt_ulysses_rows run = dt_ulysses_owned(u, u->tokens, tile->owner, part);
      if (tile->row < run.first || tile->row + tile->rows > run.first + run.rows) continue;
      inside += tile->local - run.local == tile->row - run.first;
    }
    assert_int_equal(inside, 1);
    for (int32_t r = 0; r < tile->rows; r++) seen[tile->head * u->tokens + tile->row + r]++;
  }
  for (int64_t i = 0; i < heads * u->tokens; i++) assert_int_equal(seen[i], 1);
  /* Before the own tiles of a head come the remote ones of the heads up to own_lag further, and no others. */
  for (int32_t head = 0; head < heads; head++)
    for (int32_t other = 0; other < heads; other++) {
      if (own_last[head] < 0 || remote_last[other] < 0) continue;
      assert_int_equal(remote_last[other] < own_last[head], other <= head + u->own_lag);
    }
  free(seen);
  free(tiles);
}

static void test_random_shapes(void **state) {
  (void)state;
  for (int i = 0; i < 200; i++) {
    dt_random random = {(uint64_t)i * 977 + 5};
    dt_ulysses_layout u = random_shape(&random);
    int64_t rows = 0;
    for (int32_t r = 0; r < u.ranks; r++) {
      rows += dt_ulysses_owned_rows(&u, u.tokens, r);
      check_messages(&u, r);
      check_send_order(&u, r);
      check_tiles(&u, r);
    }
    assert_int_equal(rows, u.tokens);
  }
}

static void test_causal(void **state) {
  (void)state;
  dt_ulysses_layout u = make(1, 1, 1, 5, 3);
  assert_int_equal(dt_ulysses_visible(&u, 0), 3);
  u.causal = 1;
  static const int64_t longer_q[] = {0, 0, 1, 2, 3};
  for (int i = 0; i < 5; i++) assert_int_equal(dt_ulysses_visible(&u, i), longer_q[i]);
  u.tokens = 2;
  assert_int_equal(dt_ulysses_visible(&u, 0), 2);
  assert_int_equal(dt_ulysses_visible(&u, 1), 3);
}

static void expect_refused(dt_ulysses_layout u, const char *detail) {
  assert_int_equal(dt_ulysses_init(&u), DT_ERR_ARGUMENT);
  assert_string_equal(dt_error_detail(), detail);
}

static void test_refusals(void **state) {
  (void)state;
  const dt_ulysses_layout good = make(4, 8, 2, 10, 20);
  dt_ulysses_layout u = good;
  u.heads = 3;
  expect_refused(u, "heads: 3; allowed: 4, the ranks, to 65536");
  u = good;
  u.kv_heads = 3;
  expect_refused(u, "kv_heads: 3; allowed: a divisor of the 8 heads");
  u.kv_heads = 0;
  expect_refused(u, "kv_heads: 0; allowed: a divisor of the 8 heads");
  u = good;
  u.head_dim = 0;
  expect_refused(u, "head_dim: 0; allowed: 1 to 4096");
  u = good;
  u.text_tokens = 11;
  expect_refused(u, "text_tokens: 11; allowed: 0 to 10");
  u = good;
  u.tokens = -1;
  expect_refused(u, "tokens: -1; allowed: 0 to 2147483647");
  u = good;
  u.tile_rows = 0;
  expect_refused(u, "tile_rows: 0; allowed: 1 to 4096");
  u = good;
  u.ranks = 65;
  expect_refused(u, "ranks: 65; allowed: 1 to 64");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_uneven_heads),  cmocka_unit_test(test_heads_are_best), cmocka_unit_test(test_uneven_rows),
      cmocka_unit_test(test_random_shapes), cmocka_unit_test(test_causal),         cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
