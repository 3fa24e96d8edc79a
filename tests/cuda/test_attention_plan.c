/* The attention kernel's schedule, without a GPU: pieces of cut tiles cover every KV block once, within what the
 * kernel's arrays, counters and scratch memory hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/random.h"
#include "cuda/attention.h"

/* All rows to one owner, as many keys as rows. */
static dt_cuda_attention plain(int64_t tokens, int32_t head_dim, int32_t heads) {
  dt_cuda_attention a;
  memset(&a, 0, sizeof a);
  a.dtype = DT_DTYPE_BF16;
  a.tokens = a.kv_tokens = tokens;
  a.head_dim = head_dim;
  a.heads = a.kv_heads = heads;
  a.owners_count = 1;
  a.owners[0].rows = tokens;
  return a;
}

static dt_cuda_attention problem(dt_random *random, int32_t head_dim, int32_t heads) {
  dt_cuda_attention a = plain(0, head_dim, heads);
  a.tokens = 1 + (int64_t)dt_random_below(random, dt_random_below(random, 2) ? 3000 : 30000);
  a.kv_tokens = dt_random_below(random, 3) ? a.tokens : 1 + (int64_t)dt_random_below(random, 20000);
  a.owners_count = 1 + (int32_t)dt_random_below(random, 4);
  for (int32_t i = 0; i < a.owners_count; i++) {
    dt_cuda_attention_owner *owner = &a.owners[i];
    owner->first = a.tokens * i / a.owners_count;
    owner->rows = a.tokens * (i + 1) / a.owners_count - owner->first;
    owner->row_stride = (int64_t)heads * head_dim;
    owner->remote = i % 2;
  }
  return a;
}

/* The blocks of a piece, as the kernel's CTAs have them; whole tiles, blocks 0. */
static void cover(const dt_attention_kernel *kernel, int32_t blocks, uint8_t *covered, int32_t tile, int32_t first,
                  int32_t count) {
  assert_in_range(tile, 0, kernel->groups[0].tiles + kernel->groups[1].tiles - 1);
  for (int32_t b = 0; b < count; b++) covered[tile * blocks + first + b]++;
}

/* Every block of every tile is some CTA's, once. */
static void check_covered(const dt_attention_kernel *kernel, int32_t blocks, int32_t ctas) {
  const int32_t tiles = kernel->groups[0].tiles + kernel->groups[1].tiles, whole = tiles - kernel->cut_tiles;
  uint8_t *covered = calloc((size_t)tiles, (size_t)blocks);
  assert_non_null(covered);
  for (int32_t c = 0; c < ctas; c++) {
    for (int32_t n = 0; n < kernel->shares[c].whole; n++) {
      const int32_t index = kernel->round[n] + kernel->shares[c].place;
      assert_in_range(index, 0, whole - 1);
      cover(kernel, blocks, covered, index < kernel->cut_from ? index : index + kernel->cut_tiles, 0, blocks);
    }
    for (int32_t n = 0; n < DT_ATTENTION_PIECES; n++) {
      const dt_attention_piece *p = &kernel->pieces[c][n];
      if (p->blocks == 0) continue;
      assert_in_range(p->tile, 0, kernel->cut_tiles - 1);
      assert_true(p->block_first + p->blocks <= blocks);
      cover(kernel, blocks, covered, kernel->cut_from + p->tile, p->block_first, p->blocks);
    }
  }
  for (size_t i = 0; i < (size_t)tiles * (size_t)blocks; i++) assert_int_equal(covered[i], 1);
  free(covered);
}

/* Pieces that are merged: all before whole tiles, each with a slab. */
static void check_merged(const dt_attention_kernel *kernel, int32_t groups, int32_t ctas) {
  uint8_t *pieces = calloc((size_t)kernel->cut_tiles, 1);
  uint8_t slabs[DT_ATTENTION_PIECES * DT_ATTENTION_CTAS_MAX] = {0};
  assert_non_null(pieces);
  for (int32_t c = 0; c < DT_ATTENTION_CTAS_MAX; c++) {
    int32_t before = 0;
    for (int32_t n = 0; n < DT_ATTENTION_PIECES; n++) {
      const dt_attention_piece *p = &kernel->pieces[c][n];
      if (p->blocks == 0) continue;
      before++;
      assert_in_range(c, 0, ctas - 1);
      assert_true(p->piece < p->pieces && p->pieces > 1 && p->pieces <= DT_ATTENTION_TILE_PIECES);
      assert_true(p->scratch + p->piece < DT_ATTENTION_PIECES * DT_ATTENTION_CTAS_MAX);
      assert_int_equal(slabs[p->scratch + p->piece]++, 0);
      assert_true((p->merge + 1) * groups <= 3 * DT_ATTENTION_CTAS_MAX);
      pieces[p->tile]++;
    }
    assert_int_equal(kernel->shares[c].before, before);
    assert_int_equal(kernel->shares[c].after, 0);
  }
  for (int32_t c = 0; c < DT_ATTENTION_CTAS_MAX; c++)
    for (int32_t n = 0; n < DT_ATTENTION_PIECES; n++)
      if (kernel->pieces[c][n].blocks > 0)
        assert_int_equal(kernel->pieces[c][n].pieces, pieces[kernel->pieces[c][n].tile]);
  free(pieces);
}

/* Tiles cut in two: the part with the last blocks is left off by the CTA before the one that goes on with it, which has
 * no more than a tile and some blocks else; all have about the same number of blocks. */
static void check_resumed(const dt_attention_kernel *kernel, int32_t blocks, int32_t ctas) {
  const int64_t total = (int64_t)(kernel->groups[0].tiles + kernel->groups[1].tiles) * blocks;
  int32_t cuts = 0;
  int64_t most = 0;
  for (int32_t c = 0; c < ctas; c++) {
    const dt_attention_piece *head = &kernel->pieces[c][0], *tail = &kernel->pieces[c][1];
    assert_int_equal(kernel->shares[c].before, head->blocks > 0);
    assert_int_equal(kernel->shares[c].after, tail->blocks > 0);
    if (tail->blocks > 0) {
      const dt_attention_piece *left = &kernel->pieces[c - 1][0];
      assert_true(c > 0 && left->blocks > 0);
      assert_int_equal(tail->tile, left->tile);
      assert_int_equal(tail->scratch, left->scratch);
      assert_int_equal(tail->block_first, 0);
      assert_int_equal(left->block_first, tail->blocks);
      assert_true(blocks < 6 || (tail->blocks >= 3 && left->blocks >= 3)); /* shorter ones would not pay */
    }
    if (head->blocks > 0) {
      assert_int_equal(head->block_first + head->blocks, blocks);
      assert_int_equal(head->scratch, cuts);
      assert_int_equal(head->tile, cuts++);
      assert_true(c + 1 < ctas && kernel->pieces[c + 1][1].tile == head->tile && kernel->pieces[c + 1][1].blocks > 0);
    }
    const int64_t own = (int64_t)kernel->shares[c].whole * blocks + head->blocks + tail->blocks;
    if (own > most) most = own;
  }
  assert_true(most <= total / ctas + 10); /* what begins and ends of items are worth */
  assert_int_equal(cuts, kernel->cut_tiles);
  assert_true(cuts <= DT_ATTENTION_CTAS_MAX);
  /* Of two CTAs with as many whole tiles, the one with the longer second piece has the earlier last tile. */
  for (int32_t c = 0; c < ctas; c++)
    for (int32_t d = 0; d < ctas; d++)
      if (kernel->shares[c].whole == kernel->shares[d].whole &&
          kernel->pieces[c][1].blocks > kernel->pieces[d][1].blocks)
        assert_true(kernel->shares[c].place < kernel->shares[d].place);
}

/* What a CTA has first is what the order says. */
static void check_first(const dt_attention_shape *shape, int32_t blocks, int32_t ctas, dt_attention_kernel *kernel) {
  kernel->kv_tokens = blocks * shape->block - 1;
  kernel->kv_heads = kernel->heads;
  dt_attention_plan_first(shape, ctas, kernel);
  for (int32_t c = 0; c < ctas; c++) {
    const dt_attention_share *share = &kernel->shares[c];
    const dt_attention_piece *head = &kernel->pieces[c][0], *tail = &kernel->pieces[c][1];
    const dt_attention_first *first = &kernel->first[c];
    int32_t index = kernel->round[0] + share->place, from = 0, end = blocks, merge = DT_ATTENTION_WHOLE;
    if (index >= kernel->cut_from) index += kernel->cut_tiles;
    if (share->before > 0 && (!kernel->tile_first || share->whole == 0)) {
      index = kernel->cut_from + head->tile, from = head->block_first, end = from + head->blocks;
      merge = kernel->resumes ? DT_ATTENTION_SUSPENDED : 0;
    } else if (share->whole == 0 && share->after > 0) {
      index = kernel->cut_from + tail->tile, end = tail->blocks, merge = DT_ATTENTION_RESUMED;
    } else if (share->whole == 0) {
      assert_int_equal(first->blocks, 0);
      continue;
    }
    const int32_t group = index >= kernel->groups[0].tiles;
    int32_t which, tile;
    dt_attention_place(kernel, group, index - group * kernel->groups[0].tiles, shape->head_dim <= 128, &which, &tile);
    const dt_attention_run *run = &kernel->runs[first->run];
    assert_in_range(first->run, kernel->groups[group].runs_begin, kernel->groups[group].runs_end - 1);
    assert_in_range(tile, run->tiles_end - run->tiles, run->tiles_end - 1);
    assert_int_equal(first->row, run->start + (tile - run->tiles_end + run->tiles) * 64 * shape->groups);
    assert_true(first->rows > 0 && first->row + first->rows <= run->end);
    assert_true(first->rows == 64 * shape->groups || first->row + first->rows == run->end);
    assert_int_equal(first->head, which);
    assert_int_equal(first->kv_head, which);
    assert_int_equal(first->merge, merge);
    assert_int_equal(first->blocks, end - from);
    assert_int_equal(first->block, end - 1);
    assert_int_equal(first->masked, end == blocks);
  }
}

/* Every block once too as the kernel goes through a CTA's work: from the first item, by which it counts the others. */
static void check_walk(const dt_attention_kernel *kernel, int32_t blocks, int32_t ctas) {
  const int32_t tiles = kernel->groups[0].tiles + kernel->groups[1].tiles;
  uint8_t *covered = calloc((size_t)tiles, (size_t)blocks);
  assert_non_null(covered);
  for (int32_t c = 0; c < ctas; c++) {
    const dt_attention_share *share = &kernel->shares[c];
    int32_t next = kernel->first[c].merge == DT_ATTENTION_WHOLE;
    for (int32_t sequence = 0; kernel->first[c].blocks > 0; sequence++) {
      const int32_t whole = sequence == 0 ? 0 : next, behind = sequence - whole;
      const dt_attention_piece *piece = NULL;
      if (sequence > 0 || next == 0) {
        if (behind < share->before)
          piece = &kernel->pieces[c][behind];
        else if (whole >= share->whole && behind < share->before + share->after)
          piece = &kernel->pieces[c][1];
      }
      if (!piece && whole >= share->whole) break;
      const int32_t index = kernel->round[whole] + share->place;
      if (piece)
        cover(kernel, blocks, covered, kernel->cut_from + piece->tile, piece->block_first, piece->blocks);
      else
        cover(kernel, blocks, covered, index < kernel->cut_from ? index : index + kernel->cut_tiles, 0, blocks);
      next += sequence > 0 && !piece;
    }
  }
  for (size_t i = 0; i < (size_t)tiles * (size_t)blocks; i++) assert_int_equal(covered[i], 1);
  free(covered);
}

static void test_pieces(void **state) {
  (void)state;
  static const int32_t ctas[] = {1, 2, 7, 66, 100, 130, 132, 192};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  dt_random random = {5};
  int cut = 0, resumed = 0, first = 0;
  for (int32_t head_dim = 64; head_dim <= 256; head_dim *= 2)
    for (int32_t heads = 1; heads <= 60; heads++)
      for (size_t i = 0; i < sizeof ctas / sizeof ctas[0]; i++) {
        const dt_cuda_attention a = problem(&random, head_dim, heads);
        const dt_attention_shape shape = dt_attention_shape_of(&a);
        const int32_t blocks = (int32_t)((a.kv_tokens + shape.block - 1) / shape.block);
        dt_attention_plan(&a, &shape, -1, ctas[i], kernel);
        if (kernel->cut_tiles == 0) continue;
        cut++;
        check_covered(kernel, blocks, ctas[i]);
        check_first(&shape, blocks, ctas[i], kernel);
        check_walk(kernel, blocks, ctas[i]);
        if (!kernel->resumes) {
          assert_true(kernel->cut_tiles < ctas[i]);
          check_merged(kernel, shape.groups, ctas[i]);
          continue;
        }
        resumed++;
        check_resumed(kernel, blocks, ctas[i]);
        first += kernel->tile_first;
        dt_attention_plan_alone(kernel);
        assert_int_equal(kernel->tile_first, 0);
        assert_int_equal(kernel->cut_from + kernel->cut_tiles, kernel->groups[0].tiles + kernel->groups[1].tiles);
        check_covered(kernel, blocks, ctas[i]);
        check_first(&shape, blocks, ctas[i], kernel);
        check_walk(kernel, blocks, ctas[i]);
      }
  assert_true(cut - resumed > 100 && resumed > 100 && first > 50 && first < resumed);
  free(kernel);
}

/* A round that wastes much is cut, one that wastes little is not, nor is anything if the caller says so. */
static void test_when(void **state) {
  (void)state;
  enum { ROUNDS = 16 * 132 };
  static const struct {
    int64_t tokens;
    int32_t head_dim, heads, cut, cuts;
  } cases[] = {{4608, 128, 12, -1, 120},
               {4608, 128, 12, 0, 0},
               {16896, 128, 24, -1, 0},
               {4608, 128, 3, -1, 72},
               {1680, 128, 12, -1, 0},
               {192 * (ROUNDS - 25), 128, 1, -1, 0}, /* 1.2 % to be had */
               {192 * (ROUNDS - 60), 128, 1, -1, 120},
               {128 * 125, 256, 1, -1, 0}, /* 5 % of a round idle; then 16 */
               {128 * 111, 256, 1, -1, 111}};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const dt_cuda_attention a = plain(cases[i].tokens, cases[i].head_dim, cases[i].heads);
    const dt_attention_shape shape = dt_attention_shape_of(&a);
    dt_attention_plan(&a, &shape, cases[i].cut, 132, kernel);
    assert_int_equal(kernel->cut_tiles, cases[i].cuts);
  }
  free(kernel);
}

/* Causal: longest tiles first, of as many heads in turn as have their k and v in 24 MB, if those have tiles enough; no
 * tile is cut. */
static void test_causal(void **state) {
  (void)state;
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  dt_cuda_attention a = plain(4608, 128, 24);
  a.causal = 1;
  a.kv_heads = 12; /* 4 * 4608 * 128 bytes each */
  a.owners_count = 3;
  for (int32_t i = 0; i < 3; i++) a.owners[i] = (dt_cuda_attention_owner){.first = 1536 * i, .rows = 1536};
  const dt_attention_shape shape = dt_attention_shape_of(&a);
  dt_attention_plan(&a, &shape, -1, 132, kernel);
  for (int32_t i = 0; i < 3; i++) assert_int_equal(kernel->runs[i].first, 1536 * (2 - i));
  assert_int_equal(kernel->head_section, 24);
  assert_int_equal(kernel->cut_tiles, 0);
  a.heads = 48, a.kv_heads = 24;
  dt_attention_plan(&a, &shape, -1, 132, kernel);
  assert_int_equal(kernel->head_section, 2 * 12); /* 10 would fit: two sections, no third of 4 */
  static const uint32_t words[48];
  a.tokens = a.kv_tokens = a.owners[0].rows = 32768; /* 16 MB of each k and v; 171 tiles */
  a.owners_count = 1;
  dt_attention_plan(&a, &shape, -1, 132, kernel);
  assert_int_equal(kernel->head_section, 4); /* 396 tiles are three heads', and two share their k and v */
  a.arrived = words;
  dt_attention_plan(&a, &shape, -1, 132, kernel);
  assert_int_equal(kernel->head_section, 2);
  a.arrived = NULL;
  a.heads = 3, a.kv_heads = 24; /* mapped: more heads of k and v than of q */
  dt_attention_plan(&a, &shape, -1, 132, kernel);
  assert_int_equal(kernel->head_section, 3);
  free(kernel);
}

/* Blocks of the causal tile at place `index` of the order; one run. */
static int32_t causal_blocks(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int32_t tokens,
                             int32_t index) {
  int32_t head, tile;
  dt_attention_place(kernel, 1, index, 0, &head, &tile);
  const int32_t last = kernel->groups[1].tiles_per_head - 1 - tile, rows = 64 * shape->groups;
  const int32_t seen = (last + 1) * rows < tokens ? (last + 1) * rows : tokens;
  return (seen + shape->block - 1) / shape->block;
}

/* Causal tiles dealt in order, each to whoever is through first, end together, but for a few blocks: where a section
 * had too few of them, or the last one fewer than the others, they would not. A tile's begin and end are worth four
 * blocks. */
static void test_balance(void **state) {
  (void)state;
  enum { CTAS = 132, BORDER = 4 };
  static const struct {
    int32_t tokens, head_dim, heads, per_cent; /* that the last one may be behind the mean */
  } cases[] = {{4096, 128, 12, 2},  {8192, 128, 12, 2},  {16384, 128, 12, 2}, {8192, 128, 32, 3}, {8192, 128, 40, 3},
               {32768, 128, 8, 2},  {65536, 128, 20, 2}, {8192, 64, 16, 3},   {8192, 64, 24, 3},  {16384, 64, 8, 4},
               {8192, 256, 8, 2},   {8192, 256, 16, 2},  {16384, 256, 5, 4},  {2048, 128, 24, 3}, {12000, 128, 10, 4},
               {16384, 128, 10, 4}, {8192, 256, 10, 4}};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    dt_cuda_attention a = plain(cases[i].tokens, cases[i].head_dim, cases[i].heads);
    a.causal = 1;
    const dt_attention_shape shape = dt_attention_shape_of(&a);
    dt_attention_plan(&a, &shape, -1, CTAS, kernel);
    int64_t ends[CTAS] = {0}, total = 0, most = 0;
    for (int32_t index = 0; index < kernel->groups[1].tiles; index++) {
      int32_t first = 0;
      for (int32_t c = 1; c < CTAS; c++)
        if (ends[c] < ends[first]) first = c;
      const int32_t worth = causal_blocks(kernel, &shape, cases[i].tokens, index) + BORDER;
      ends[first] += worth;
      total += worth;
      if (ends[first] > most) most = ends[first];
    }
    assert_true((double)most * CTAS <= (1 + 0.01 * cases[i].per_cent) * (double)total);
  }
  free(kernel);
}

/* What of q, k and v is read where it lies: from the first own row on, if there is one. */
static void test_own(void **state) {
  (void)state;
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  dt_attention_carry *carry = calloc(1, sizeof *carry);
  assert_true(kernel && carry);
  const dt_cuda_attention a = plain(1000, 128, 4);
  carry->own_q = 600, carry->late_rows = 500;
  for (int reads = 0; reads < 2; reads++) {
    carry->reads_own = reads;
    dt_attention_plan_own(&a, carry, kernel);
    assert_int_equal(kernel->own_q_row, reads ? 600 : INT32_MAX);
    assert_int_equal(kernel->own_q_rows, reads ? 400 : 0);
    assert_int_equal(kernel->own_kv_row, reads ? 500 : INT32_MAX);
    assert_int_equal(dt_attention_reads_own_q(kernel, 599), 0);
    assert_int_equal(dt_attention_reads_own_q(kernel, 600), reads);
    assert_int_equal(dt_attention_reads_own_q(kernel, 999), reads);
    assert_int_equal(dt_attention_reads_own_q(kernel, 1000), 0);
  }
  carry->own_q = carry->late_rows = 1000; /* none is here */
  dt_attention_plan_own(&a, carry, kernel);
  assert_true(kernel->own_q_row == INT32_MAX && kernel->own_q_rows == 0 && kernel->own_kv_row == INT32_MAX);
  dt_attention_plan_own(&a, NULL, kernel);
  assert_true(kernel->own_q_row == INT32_MAX && kernel->own_q_rows == 0 && kernel->own_kv_row == INT32_MAX);
  free(carry);
  free(kernel);
}

/* A kernel that waits for heads as they come goes on with no tile; one that enters, or waits with its stores only,
 * does. Pieces that are merged are not in the way. */
static void test_waiting(void **state) {
  (void)state;
  static const struct {
    int32_t heads, arrived, gates_stores, enters, resumes, tiles;
  } cases[] = {{12, 0, 0, 0, 1, 120}, {12, 1, 0, 0, 0, 0},   {12, 1, 1, 0, 1, 120}, {12, 1, 0, 1, 1, 120},
               {12, 0, 1, 0, 1, 120}, {12, 1, 1, 1, 1, 120}, {3, 0, 0, 0, 0, 72},   {3, 1, 0, 0, 0, 72}};
  static const uint32_t words[12];
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    dt_cuda_attention a = plain(4608, 128, cases[i].heads);
    a.arrived = cases[i].arrived ? words : NULL;
    a.arrived_gates_stores = cases[i].gates_stores;
    kernel->carry.enters = cases[i].enters;
    const dt_attention_shape shape = dt_attention_shape_of(&a);
    dt_attention_plan(&a, &shape, -1, 132, kernel);
    assert_int_equal(kernel->resumes, cases[i].resumes);
    assert_int_equal(kernel->cut_tiles, cases[i].tiles);
    if (cases[i].tiles > 0) continue;
    int32_t whole = 0;
    for (int32_t c = 0; c < 132; c++) whole += kernel->shares[c].whole + kernel->pieces[c][0].blocks;
    assert_int_equal(whole + kernel->tile_first + kernel->cut_from, 0);
  }
  free(kernel);
}

/* Rows of a tile leave within the next one, or not by the sending warp at all. */
static void test_pace(void **state) {
  (void)state;
  static const struct {
    int64_t kv_tokens;
    int32_t head_dim, causal, rows;
  } cases[] = {{4608, 128, 0, 8},  {4222, 128, 0, 8}, {4429, 64, 0, 16}, {32760, 128, 0, 4},
               {16, 64, 0, 0},     {160, 128, 0, 0},  {256, 64, 0, 0},   {1040, 128, 0, 0},
               {1120, 128, 0, 32}, {4608, 128, 1, 0}, {4608, 256, 0, 0}};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    dt_cuda_attention a = plain(4608, cases[i].head_dim, 24);
    a.kv_tokens = cases[i].kv_tokens;
    a.causal = cases[i].causal;
    a.paced = 1;
    const dt_attention_shape shape = dt_attention_shape_of(&a);
    kernel->paced = 77;
    kernel->carry.enters = 1;
    dt_attention_plan_pace(&a, &shape, kernel);
    assert_int_equal(kernel->paced, cases[i].rows);
    if (kernel->paced == 0) continue;
    assert_true(192.0 / kernel->paced * kernel->paced_ns <= 0.61 * dt_attention_tile_ns(&a, &shape));
    kernel->carry.enters = 0;
    dt_attention_plan_pace(&a, &shape, kernel);
    assert_int_equal(kernel->paced, 0);
    kernel->carry.enters = 1;
    a.paced = 0;
    dt_attention_plan_pace(&a, &shape, kernel);
    assert_int_equal(kernel->paced, 0);
  }
  free(kernel);
}

/* Rows wait for the last rounds where the kernel outlasts the links' patience and there is memory; as many as there is
 * room for; and the last rounds are long enough for them. */
static void test_hold(void **state) {
  (void)state;
  static const struct {
    int64_t tokens;
    int32_t head_dim, heads, holds, rooms; /* rooms: memory, in parts of 16 of the output */
    int32_t held, enough;                  /* rows wait; all of them have room */
  } cases[] = {{75600, 128, 20, -1, 16, 1, 1}, {119056, 128, 12, -1, 16, 1, 1}, {75600, 128, 20, 0, 16, 0, 0},
               {75600, 128, 20, -1, 2, 1, 0},  {75600, 128, 20, -1, 0, 0, 0},   {32760, 128, 20, -1, 16, 0, 0},
               {131072, 64, 16, -1, 16, 1, 1}, {2300, 128, 50, 1, 16, 1, 1},    {75600, 256, 20, -1, 16, 0, 0},
               {16896, 128, 24, -1, 16, 0, 0}};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    dt_cuda_attention a = plain(cases[i].tokens, cases[i].head_dim, cases[i].heads);
    a.paced = 1;
    a.owners_count = 2;
    a.owners[0].rows = a.owners[1].first = cases[i].tokens / 2;
    a.owners[0].away = 1;
    a.owners[1].rows = cases[i].tokens - a.owners[1].first;
    const size_t bytes = 2 * (size_t)(cases[i].tokens * cases[i].heads * cases[i].head_dim) / 16;
    kernel->carry = (dt_attention_carry){.enters = 1,
                                         .held = cases[i].rooms ? kernel : NULL,
                                         .held_bytes = bytes * (size_t)cases[i].rooms,
                                         .holds = cases[i].holds};
    const dt_attention_shape shape = dt_attention_shape_of(&a);
    dt_attention_plan(&a, &shape, 0, 132, kernel);
    dt_attention_plan_pace(&a, &shape, kernel);
    dt_attention_plan_hold(&a, &shape, 132, kernel);
    assert_int_equal(kernel->held_most > 0, cases[i].held);
    assert_int_equal(kernel->held != NULL, cases[i].held);
    const int32_t tiles = kernel->groups[0].tiles + kernel->groups[1].tiles;
    if (!cases[i].held) {
      assert_true(kernel->drain_from > tiles);
      continue;
    }
    const double piece = DT_ATTENTION_HELD_ROWS * (2.0 * cases[i].head_dim + 16);
    const double pieces = (double)a.owners[0].rows * cases[i].heads / DT_ATTENTION_HELD_ROWS / 132;
    assert_int_equal(kernel->held_most % (64 * shape.groups / DT_ATTENTION_HELD_ROWS), 0); /* a tile as a whole */
    assert_true(132 * kernel->held_most * piece <= (double)kernel->carry.held_bytes);
    assert_int_equal(kernel->held_most >= pieces, cases[i].enough);
    assert_in_range(kernel->drain_from, 1, tiles);
    if (cases[i].holds == 1) continue;
    const double rounds = (double)(tiles - kernel->drain_from) / 132;
    assert_true(rounds * dt_attention_tile_ns(&a, &shape) >= pieces * kernel->drain_ns);
    assert_true(rounds < 5);
    kernel->cut_tiles = 1;
    dt_attention_plan_hold(&a, &shape, 132, kernel);
    assert_int_equal(kernel->held_most, 0);
    kernel->cut_tiles = 0;
    assert_int_equal(dt_attention_outlasts_links(&a, &shape, 132, kernel), 1);
    kernel->paced = a.paced = 0; /* rows leave at once: links do not sleep, however long it takes */
    assert_int_equal(dt_attention_outlasts_links(&a, &shape, 132, kernel), 0);
    dt_attention_plan_hold(&a, &shape, 132, kernel);
    assert_int_equal(kernel->held_most, 0);
  }
  free(kernel);
}

/* Every tile of every head has one place, whichever lead; also where more heads are to than there are. */
static void test_places(void **state) {
  (void)state;
  static const int32_t lead_heads[] = {INT32_MIN, 0, 1, 3, 7, 20, 1 << 20, INT32_MAX};
  static const int64_t lead_rows[] = {INT64_MIN, -1000, -1, 0, 1, 700, INT64_MAX};
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  assert_non_null(kernel);
  dt_random random = {11};
  for (size_t n = 0; n < 8 * 7 * 6; n++) {
    dt_cuda_attention a = problem(&random, 64 << n % 3, 1 + (int32_t)dt_random_below(&random, 20));
    a.lead_heads = lead_heads[n % 8];
    a.lead_rows = lead_rows[n / 8 % 7];
    const dt_attention_shape shape = dt_attention_shape_of(&a);
    dt_attention_plan(&a, &shape, 0, 132, kernel);
    for (int32_t group = 0; group < 2; group++) {
      const int32_t per_head = kernel->groups[group].tiles_per_head, tiles = kernel->groups[group].tiles;
      uint8_t *seen = calloc((size_t)tiles + 1, 1);
      assert_non_null(seen);
      assert_int_equal(tiles, per_head * a.heads);
      for (int32_t i = 0; i < tiles; i++) {
        int32_t head, tile;
        dt_attention_place(kernel, group, i, a.head_dim <= 128, &head, &tile);
        assert_in_range(head, 0, a.heads - 1);
        assert_in_range(tile, 0, per_head - 1);
        assert_int_equal(seen[head * per_head + tile]++, 0);
      }
      free(seen);
    }
  }
  free(kernel);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces), cmocka_unit_test(test_when),   cmocka_unit_test(test_waiting),
      cmocka_unit_test(test_causal), cmocka_unit_test(test_own),    cmocka_unit_test(test_pace),
      cmocka_unit_test(test_hold),   cmocka_unit_test(test_places), cmocka_unit_test(test_balance)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
