/* The Ulysses operator's tables and refusals, which need no GPU. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <draintile/ulysses.h>
#include <draintile/ulysses_bench.h>

#include "cuda/attention.h"
#include "cuda/ulysses_tables.h"

typedef struct layout_case {
  int32_t ranks, heads, kv_heads, head_dim;
  int64_t tokens, kv_tokens, text_tokens;
  int32_t replicated, senders, blocks;
} layout_case;
static const layout_case cases[] = {
    {1, 1, 1, 64, 1, 1, 0, 0, 1, 1},           {2, 5, 5, 128, 301, 301, 0, 0, 2, 7},
    {2, 28, 7, 128, 640, 640, 0, 0, 8, 132},   {4, 30, 30, 64, 777, 777, 0, 0, 3, 33},
    {8, 12, 12, 128, 1024, 1000, 0, 0, 4, 16}, {3, 7, 1, 64, 515, 700, 0, 0, 8, 44},
    {2, 4, 4, 256, 4222, 4222, 126, 0, 8, 66}, {3, 6, 3, 64, 1400, 1400, 333, 1, 8, 40},
    {2, 2, 2, 64, 70, 70, 70, 1, 1, 2},        {2, 2, 2, 64, 200, 0, 0, 0, 8, 132},
    {8, 8, 8, 64, 5, 5, 0, 0, 2, 8},
};

static dt_ulysses_layout layout_of(const layout_case *c) {
  dt_ulysses_layout u = {.ranks = c->ranks,
                         .heads = c->heads,
                         .kv_heads = c->kv_heads,
                         .head_dim = c->head_dim,
                         .tokens = c->tokens,
                         .kv_tokens = c->kv_tokens,
                         .text_tokens = c->text_tokens,
                         .text_replicated = c->replicated,
                         .tile_rows = 128};
  assert_int_equal(dt_ulysses_init(&u), 0);
  return u;
}

static int64_t held_rows(const dt_ulysses_layout *u, int64_t tokens, int32_t rank) {
  return dt_ulysses_held(u, tokens, rank, DT_ULYSSES_TEXT).rows +
         dt_ulysses_held(u, tokens, rank, DT_ULYSSES_IMAGE).rows;
}

/* The sequence's row that lies at a place among the rows that a rank holds. */
static int64_t sequence_row(const dt_ulysses_layout *u, int64_t tokens, int32_t rank, int64_t local) {
  const dt_ulysses_rows text = dt_ulysses_held(u, tokens, rank, DT_ULYSSES_TEXT);
  const dt_ulysses_rows image = dt_ulysses_held(u, tokens, rank, DT_ULYSSES_IMAGE);
  return local < text.rows ? text.first + local : image.first + local - image.local;
}

/* What arrived, by destination: sources[rank][tensor][row][head] counts stores; words[source][rank][head]. */
typedef struct arrivals {
  const dt_ulysses_layout *u;
  int32_t *stores[DT_ULYSSES_RANKS_MAX][3];
} arrivals;

static int32_t heads_at(const dt_ulysses_layout *u, int32_t rank, int tensor) {
  return tensor ? dt_ulysses_kv_count(u, rank) : dt_ulysses_head_count(u, rank);
}

static void copy_item(arrivals *a, int32_t source, const dt_ulysses_item *item) {
  const dt_ulysses_layout *u = a->u;
  const int tensor = item->from, part = item->to / 3 % 2, to = item->to / 6;
  const int64_t tokens = tensor ? u->kv_tokens : u->tokens;
  const dt_ulysses_rows run = dt_ulysses_sent(u, tokens, source, to, part);
  assert_int_equal(item->rank, to);
  assert_int_equal(item->to % 3, tensor);
  const int32_t first = tensor ? dt_ulysses_kv_first(u, to) : u->head_first[to];
  assert_int_equal(item->from_head, first + item->to_head);
  for (int32_t i = 0; i < dt_ulysses_box_rows(u->head_dim); i++) {
    if (item->to_row + i >= run.rows) break; /* the map ends there */
    assert_true(item->from_row + i < held_rows(u, tokens, source));
    const int64_t row = run.first + item->to_row + i;
    assert_int_equal(sequence_row(u, tokens, source, item->from_row + i), row);
    a->stores[to][tensor][row * heads_at(u, to, tensor) + item->to_head]++;
  }
}

/* A block that has said that it is done with a head must not have anything of it left. */
static void check_words(const dt_ulysses_layout *u, int32_t source, const dt_ulysses_table *table) {
  for (int32_t to = 0; to < u->ranks; to++)
    for (int32_t head = 0; head < dt_ulysses_head_count(u, to); head++) {
      uint32_t said = 0;
      for (int32_t block = 0; block < table->blocks; block++) {
        int needs = 0, done = 0;
        for (int32_t i = table->first[block]; i < table->first[block + 1]; i++) {
          const dt_ulysses_item *item = &table->items[i];
          if (item->rank != to) continue;
          const int of_head = item->from == 0 && item->to_head == head;
          const int of_kv = item->from > 0 && item->to_head == dt_ulysses_kv_of(u, to, head);
          if (of_head || of_kv) {
            needs = 1;
            assert_int_equal(done, 0);
          }
          if (item->weight == 0 || item->word != head) continue;
          assert_int_equal(done, 0);
          done = 1;
          said += item->weight;
        }
        assert_true(done || !needs);
      }
      assert_int_equal(said, DT_ULYSSES_UNITS);
    }
  (void)source;
}

static void test_way_in(void **state) {
  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    for (int beside = 0; beside < 3; beside++) { /* 2: the first heads by all */
      const dt_ulysses_layout u = layout_of(&cases[c]);
      const int32_t blocks = cases[c].blocks, senders = beside ? cases[c].senders : blocks;
      const int32_t quick = beside == 2 ? (blocks + 1) / 2 : senders;
      arrivals a = {.u = &u};
      for (int32_t r = 0; r < u.ranks; r++)
        for (int t = 0; t < 3; t++)
          a.stores[r][t] = calloc((size_t)((t ? u.kv_tokens : u.tokens) * heads_at(&u, r, t)) + 1, sizeof(int32_t));
      for (int32_t source = 0; source < u.ranks; source++) {
        dt_ulysses_table table;
        const dt_ulysses_shares shares = {blocks, senders, quick, beside == 2 ? 2 : 0};
        assert_int_equal(dt_ulysses_table_in(&u, source, &shares, &table), 0);
        assert_int_equal(table.first[blocks], table.count);
        for (int32_t block = 0; block < blocks; block++)
          for (int32_t i = table.first[block]; i < table.first[block + 1]; i++) {
            const dt_ulysses_item *item = &table.items[i];
            if (item->from >= 0) copy_item(&a, source, item);
            const int fast = beside == 2 && (item->weight ? item->word : item->to_head) < 2;
            if (!fast && u.heads == u.kv_heads) assert_true(block < senders);
            if (item->rank != source) assert_true(block < (quick > senders ? quick : senders));
          }
        check_words(&u, source, &table);
        dt_ulysses_table_destroy(&table);
      }
      for (int32_t r = 0; r < u.ranks; r++)
        for (int t = 0; t < 3; t++) {
          const int64_t count = (t ? u.kv_tokens : u.tokens) * heads_at(&u, r, t);
          for (int64_t i = 0; i < count; i++) assert_int_equal(a.stores[r][t][i], 1);
          free(a.stores[r][t]);
        }
    }
}

/* Words of a rank: its heads', then their late ones. Every one gets DT_ULYSSES_UNITS from every source, and never
 * before its last row is stored if items are done in order: q to the former, k and v to the latter. */
static void check_carried(arrivals *a, int32_t source, const dt_ulysses_table *table) {
  const dt_ulysses_layout *u = a->u;
  uint32_t *said = calloc(2 * (size_t)(u->ranks * u->heads), sizeof *said);
  for (int32_t i = 0; i < table->count; i++) {
    const dt_ulysses_item *item = &table->items[i];
    const int32_t heads = dt_ulysses_head_count(u, item->rank);
    if (item->from >= 0) copy_item(a, source, item);
    assert_true(item->weight > 0 && item->words > 0);
    for (uint32_t w = 0; w < item->words; w++) {
      const int32_t word = item->word + (int32_t)w, late = word >= heads, head = word - late * heads;
      assert_true(head < heads);
      uint32_t *sum = &said[2 * item->rank * u->heads + word];
      assert_true(*sum < DT_ULYSSES_UNITS); /* not complete before this item */
      *sum += item->weight;
      if (item->from > 0) assert_int_equal(dt_ulysses_kv_of(u, item->rank, head), item->to_head);
      if (item->from >= 0) assert_int_equal(late, item->from > 0);
      if (item->from == 0) assert_int_equal(word, item->to_head);
    }
  }
  for (int32_t r = 0; r < u->ranks; r++)
    for (int32_t word = 0; word < 2 * dt_ulysses_head_count(u, r); word++)
      assert_int_equal(said[2 * r * u->heads + word], DT_ULYSSES_UNITS);
  free(said);
}

/* A rank's own rows are read where they lie, but for the boxes of the first ones. */
static int is_brought(const dt_ulysses_layout *u, int32_t rank, int tensor, int64_t row) {
  if (!dt_ulysses_by_owner(u)) return 1;
  const int32_t box = dt_ulysses_box_rows(u->head_dim);
  int64_t rows = DT_ULYSSES_SHARED_ROWS; /* to be brought */
  for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
    const dt_ulysses_rows own = dt_ulysses_owned(u, tensor ? u->kv_tokens : u->tokens, rank, part);
    if (row >= own.first && row < own.first + own.rows) return (row - own.first) / box * box < rows;
    rows -= own.rows;
  }
  return 1;
}

/* The attention of one rank over a layout whose rows lie by owners: its own rows first or last. */
static dt_cuda_attention attention_of(const dt_ulysses_layout *u, int32_t rank, int own_first, int together) {
  dt_cuda_attention a;
  dt_cuda_attention_init(&a);
  a.dtype = DT_DTYPE_BF16;
  a.tokens = u->tokens;
  a.kv_tokens = u->kv_tokens;
  a.heads = dt_ulysses_head_count(u, rank);
  a.kv_heads = dt_ulysses_kv_count(u, rank);
  a.head_dim = u->head_dim;
  const int64_t own = dt_ulysses_owned_rows(u, u->tokens, rank);
  a.lead_rows = own_first ? -own : u->tokens - own;
  a.lead_heads = together ? a.heads : 0;
  for (int32_t i = 1; i <= u->ranks; i++) {
    const int32_t owner = (rank + i) % u->ranks;
    a.owners[a.owners_count++] =
        (dt_cuda_attention_owner){.first = dt_ulysses_place(u, rank, 0, owner, DT_ULYSSES_TEXT),
                                  .rows = dt_ulysses_owned_rows(u, u->tokens, owner),
                                  .remote = 1};
  }
  return a;
}

/* Every tile of every head once; those that lead before the others of their section. */
static void check_order(const dt_cuda_attention *a, const dt_attention_kernel *kernel) {
  const dt_attention_group *g = &kernel->groups[0];
  uint8_t *seen = calloc((size_t)g->tiles + 1, 1);
  int32_t section = 0, led = 1;
  assert_in_range(kernel->head_section, 1, a->heads);
  for (int32_t i = 0; i < g->tiles; i++) {
    int32_t head, tile;
    dt_attention_place(kernel, 0, i, 1, &head, &tile);
    assert_in_range(head, 0, a->heads - 1);
    assert_in_range(tile, 0, g->tiles_per_head - 1);
    assert_int_equal(seen[head * g->tiles_per_head + tile]++, 0);
    const int leads = tile >= g->lead_from && tile < g->lead_from + g->lead;
    if (head / kernel->head_section != section) {
      section++;
      led = 1;
      assert_int_equal(head / kernel->head_section, section);
    }
    assert_true(led || !leads);
    led = leads;
  }
  free(seen);
}

/* Where no tile is cut: the first round of tiles that needs q of a head, where not all of it is here, or k and v of any
 * head that shares them; those only once the own rows are through. */
static double needed_in(const dt_ulysses_layout *u, int32_t rank, const dt_attention_kernel *kernel, int32_t ctas,
                        const dt_ulysses_need *need) {
  const int64_t own = u->tokens - dt_ulysses_owned_rows(u, u->tokens, rank), tile_rows = 192;
  const double own_kv = u->kv_tokens ? 1 - (double)dt_ulysses_late_rows(u, rank) / (double)u->kv_tokens : 0;
  for (int32_t i = 0; i < kernel->groups[0].tiles; i++) {
    int32_t head, tile, run = kernel->groups[0].runs_begin;
    dt_attention_place(kernel, 0, i, !u->causal, &head, &tile);
    while (kernel->runs[run].tiles_end <= tile) run++;
    const dt_attention_run *r = &kernel->runs[run];
    if (need->kv) {
      if (dt_ulysses_kv_of(u, rank, head) == dt_ulysses_kv_of(u, rank, need->head)) return i / ctas + own_kv;
    } else if (head == need->head && r->start + (tile - r->tiles_end + r->tiles) * tile_rows < own) {
      return i / ctas;
    }
  }
  return DBL_MAX;
}

static void check_times(const dt_ulysses_layout *u, int32_t rank, const dt_attention_kernel *kernel,
                        const dt_ulysses_needs *needs, int32_t ctas) {
  double before = 0;
  for (int32_t i = 0; i < needs->count; i++) {
    const double at = needed_in(u, rank, kernel, ctas, &needs->needs[i]);
    assert_true(at >= before);
    assert_int_equal(at < 1, i < needs->early);
    before = at;
  }
}

/* The order of what comes in: nothing twice, and what the first tiles need is early. */
static void check_needs(const dt_ulysses_layout *u, int32_t rank, const dt_attention_kernel *kernel,
                        const dt_ulysses_needs *needs, int32_t ctas) {
  int32_t *place = calloc(2 * (size_t)u->heads + 2, sizeof *place);
  assert_int_equal(needs->count, 2 * dt_ulysses_head_count(u, rank));
  assert_in_range(needs->early, 0, needs->count);
  for (int32_t i = 0; i < needs->count; i++) {
    int32_t *at = &place[2 * needs->needs[i].head + needs->needs[i].kv];
    assert_int_equal(*at, 0);
    *at = i + 1;
  }
  /* The first whole tile of every CTA: what it needs is early. */
  for (int32_t i = 0; i < kernel->groups[0].tiles - kernel->cut_tiles && i < ctas; i++) {
    int32_t head, tile;
    dt_attention_place(kernel, 0, i < kernel->cut_from ? i : i + kernel->cut_tiles, 1, &head, &tile);
    if (dt_ulysses_late_rows(u, rank) > 0) assert_true(place[2 * head + 1] <= needs->early);
  }
  free(place);
}

static void test_order(void **state) {
  (void)state;
  int checked = 0, cut = 0;
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    for (int way = 0; way < 4; way++) {
      const dt_ulysses_layout u = layout_of(&cases[c]);
      if (!dt_ulysses_by_owner(&u) || u.head_dim > 128) continue;
      for (int32_t rank = 0; rank < u.ranks; rank++) {
        const dt_cuda_attention a = attention_of(&u, rank, way & 1, way & 2);
        const dt_attention_shape shape = dt_attention_shape_of(&a);
        const int32_t ctas = cases[c].blocks;
        dt_ulysses_needs needs;
        dt_attention_plan(&a, &shape, -1, ctas, kernel);
        check_order(&a, kernel);
        assert_int_equal(dt_ulysses_order(&u, rank, kernel, 64 * shape.groups, ctas, &needs), DT_OK);
        check_needs(&u, rank, kernel, &needs, ctas);
        if (kernel->cut_tiles == 0) check_times(&u, rank, kernel, &needs, ctas);
        dt_ulysses_needs_destroy(&needs);
        checked++;
        cut += kernel->cut_tiles > 0;
      }
    }
  assert_true(checked > 50 && cut > 5 && checked - cut > 30);
  free(kernel);
}

static void test_carried(void **state) {
  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
    for (size_t s = 0; s < 4; s++) {
      const dt_ulysses_layout u = layout_of(&cases[c]);
      arrivals a = {.u = &u};
      for (int32_t r = 0; r < u.ranks; r++)
        for (int t = 0; t < 3; t++)
          a.stores[r][t] = calloc((size_t)((t ? u.kv_tokens : u.tokens) * heads_at(&u, r, t)) + 1, sizeof(int32_t));
      for (int32_t source = 0; source < u.ranks; source++) {
        dt_ulysses_table table;
        /* In order, backwards, k and v first, by turns from the middle. */
        const int32_t heads = dt_ulysses_head_count(&u, source);
        dt_ulysses_need *list = calloc(2 * (size_t)heads, sizeof *list);
        for (int32_t i = 0; i < 2 * heads; i++) {
          const int32_t at = s == 1 ? 2 * heads - 1 - i : s == 3 ? (i + heads) % (2 * heads) : i;
          list[i] = s == 2 ? (dt_ulysses_need){i % heads, i < heads} : (dt_ulysses_need){at / 2, at % 2};
        }
        const dt_ulysses_needs needs = {list, 2 * heads, (int32_t)s * heads / 2};
        assert_int_equal(dt_ulysses_table_carried(&u, source, &needs, &table), 0);
        free(list);
        assert_int_equal(table.first[1], table.count);
        assert_in_range(table.early, 0, table.count);
        if (s == 0) assert_int_equal(table.early, 0);
        check_carried(&a, source, &table);
        dt_ulysses_table_destroy(&table);
      }
      for (int32_t r = 0; r < u.ranks; r++)
        for (int t = 0; t < 3; t++) {
          const int64_t count = (t ? u.kv_tokens : u.tokens) * heads_at(&u, r, t);
          const int64_t heads = heads_at(&u, r, t);
          for (int64_t i = 0; i < count; i++) assert_int_equal(a.stores[r][t][i], is_brought(&u, r, t, i / heads));
          free(a.stores[r][t]);
        }
    }
}

static void test_may_carry(void **state) {
  (void)state;
  dt_ulysses_layout u = {.ranks = 2, .heads = 2, .kv_heads = 2, .head_dim = 64, .tokens = 1, .kv_tokens = 1};
  assert_true(dt_ulysses_may_carry(&u));
  u.kv_tokens = 0;
  assert_false(dt_ulysses_may_carry(&u));
  u.kv_tokens = 1;
  u.head_dim = 256;
  assert_false(dt_ulysses_may_carry(&u));
  for (u.head_dim = 64; u.head_dim <= 128; u.head_dim *= 2) {
    const int64_t most = ((1 << 19) - 2) * (int64_t)(8192 / u.head_dim); /* two tensors: 2^20 items */
    u.kv_tokens = most;
    assert_true(dt_ulysses_may_carry(&u));
    u.kv_tokens = most + 1;
    assert_false(dt_ulysses_may_carry(&u));
  }
}

static void test_way_out(void **state) {
  (void)state;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    const dt_ulysses_layout u = layout_of(&cases[c]);
    for (int32_t rank = 0; rank < u.ranks; rank++) {
      const int32_t heads = dt_ulysses_head_count(&u, rank);
      int32_t *stores = calloc((size_t)(u.tokens * heads) + 1, sizeof *stores);
      dt_ulysses_table table;
      assert_int_equal(dt_ulysses_table_out(&u, rank, cases[c].blocks, &table), 0);
      for (int32_t i = 0; i < table.count; i++) {
        const dt_ulysses_item *item = &table.items[i];
        const int32_t owner = item->to / 2, part = item->to % 2;
        const dt_ulysses_rows run = dt_ulysses_owned(&u, u.tokens, owner, part);
        assert_int_equal(item->weight, 0);
        assert_int_equal(item->rank, owner);
        assert_int_equal(item->to_head, u.head_first[rank] + item->from_head);
        const int64_t place = dt_ulysses_place(&u, rank, 0, owner, part);
        for (int32_t j = 0; j < dt_ulysses_box_rows(u.head_dim) && item->to_row + j < run.rows; j++) {
          assert_int_equal(item->from_row + j, place + item->to_row + j);
          stores[(item->from_row + j) * heads + item->from_head]++;
        }
      }
      for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
        const dt_ulysses_rows own = dt_ulysses_owned(&u, u.tokens, rank, part);
        const int64_t place = dt_ulysses_place(&u, rank, 0, rank, part);
        for (int64_t i = place * heads; i < (place + own.rows) * heads; i++) stores[i]++;
      }
      for (int64_t i = 0; i < u.tokens * heads; i++) assert_int_equal(stores[i], 1);
      dt_ulysses_table_destroy(&table);
      free(stores);
    }
  }
}

/* Tiles of a head as the kernel takes them from the runs: every row once, in at most two runs, and no short tile but at
 * the end of runs that lie one behind the other. */
static void check_tiles(const int64_t *rows, int32_t count, int causal, int32_t expected) {
  dt_cuda_attention a;
  dt_cuda_attention_init(&a);
  a.dtype = DT_DTYPE_BF16;
  a.heads = a.kv_heads = 3;
  a.head_dim = 128;
  a.causal = causal;
  a.owners_count = count;
  for (int32_t i = 0; i < count; i++) {
    a.owners[i] = (dt_cuda_attention_owner){.first = a.tokens, .rows = rows[i], .remote = 1};
    a.tokens += rows[i];
  }
  a.kv_tokens = a.tokens;
  const dt_attention_shape shape = dt_attention_shape_of(&a);
  const int32_t tile_rows = 64 * shape.groups;
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  dt_attention_plan(&a, &shape, 0, 132, kernel);
  const dt_attention_group *group = &kernel->groups[0];
  int32_t *seen = calloc((size_t)a.tokens + 1, sizeof *seen), before = 0;
  assert_int_equal(group->tiles_per_head, expected);
  assert_int_equal(group->tiles, 3 * expected);
  for (int32_t r = group->runs_begin; r < group->runs_end; r++) {
    const dt_attention_run *run = &kernel->runs[r];
    assert_int_equal(run->tiles_end - run->tiles, before);
    before = run->tiles_end;
    for (int32_t tile = 0; tile < run->tiles; tile++) {
      const int32_t row = run->start + tile * tile_rows, left = run->end - row;
      const int32_t end = row + (left < tile_rows ? left : tile_rows);
      assert_true(row >= run->first && row < run->first + run->rows);
      if (end > run->first + run->rows) { /* goes over */
        assert_true(!causal && r + 1 < group->runs_end);
        assert_int_equal(kernel->runs[r + 1].first, run->first + run->rows);
        assert_true(end <= kernel->runs[r + 1].first + kernel->runs[r + 1].rows);
      }
      for (int32_t i = row; i < end; i++) seen[i]++;
    }
  }
  for (int64_t i = 0; i < a.tokens; i++) assert_int_equal(seen[i], 1);
  free(seen), free(kernel);
}

static void test_tiles(void **state) {
  (void)state;
  const int64_t two[] = {2111, 2111}, short_middle[] = {300, 50, 300}, short_all[] = {5, 4, 4}, one[] = {192};
  const int64_t eight[] = {1000, 1000, 1000, 1000, 999, 999, 999, 999};
  check_tiles(two, 2, 0, 22); /* 2 x 11 where they end at owners, 22 of 4222 rows too */
  check_tiles(two, 2, 1, 22);
  check_tiles(eight, 8, 0, 42); /* 48 where they end at owners */
  check_tiles(eight, 8, 1, 48);
  check_tiles(short_middle, 3, 0, 2 + 2);
  check_tiles(short_middle, 3, 1, 2 + 1 + 2);
  check_tiles(short_all, 3, 0, 2);
  check_tiles(one, 1, 0, 1);
}

/* Boxes of q, and blocks of k and v, as the kernel reads them at `rank`. Every one that own_q, own_k or own_v reads
 * holds a row: these maps begin in front of their memory, where nothing need be mapped. And every one that begins among
 * own rows is read by them: others' boxes alone bring rows. Returns how many boxes of q of a head hold no row. */
static int32_t check_boxes(const dt_ulysses_layout *u, int32_t rank) {
  const dt_cuda_attention a = attention_of(u, rank, 0, 0);
  const int32_t own_q = (int32_t)(u->tokens - dt_ulysses_owned_rows(u, u->tokens, rank));
  const int32_t own_kv = (int32_t)dt_ulysses_late_rows(u, rank);
  const dt_attention_carry carry = {.reads_own = 1, .own_q = own_q, .late_rows = own_kv};
  const dt_attention_shape shape = dt_attention_shape_of(&a);
  dt_attention_kernel *kernel = calloc(1, sizeof *kernel);
  dt_attention_plan(&a, &shape, -1, 132, kernel);
  dt_attention_plan_own(&a, &carry, kernel);
  int32_t empty = 0;
  for (int32_t r = kernel->groups[0].runs_begin; r < kernel->groups[0].runs_end; r++)
    for (int32_t tile = 0; tile < kernel->runs[r].tiles; tile++)
      for (int32_t group = 0; group < shape.groups; group++) {
        const int32_t row = kernel->runs[r].start + 64 * (tile * shape.groups + group);
        assert_int_equal(dt_attention_reads_own_q(kernel, row), row >= own_q && row < u->tokens);
        empty += row >= u->tokens;
      }
  for (int32_t row = 0; row < u->kv_tokens; row += shape.block)
    assert_int_equal(row >= kernel->own_kv_row, row >= own_kv && row < u->kv_tokens);
  free(kernel);
  return empty;
}

static void test_boxes(void **state) {
  (void)state;
  static const struct {
    layout_case layout;
    int32_t empty; /* boxes without rows */
  } shapes[] = {
      {{2, 24, 24, 128, 4608, 4608, 512, 0, 0, 0}, 0}, /* FLUX.1 */
      {{2, 24, 24, 128, 4222, 4222, 126, 0, 0, 0}, 0}, /* Qwen-Image */
      {{2, 38, 38, 64, 4429, 4429, 333, 0, 0, 0}, 2},  /* SD3.5 */
      {{2, 32, 32, 64, 6144, 6144, 0, 0, 0, 0}, 0},    /* LTX */
      {{2, 30, 30, 128, 4352, 4352, 256, 0, 0, 0}, 1}, /* Z-Image */
      {{4, 30, 30, 64, 777, 777, 0, 0, 0, 0}, 2},
      {{8, 12, 12, 64, 57826, 16, 0, 0, 0, 0}, 2},
      {{2, 5, 5, 128, 301, 301, 0, 0, 0, 0}, 1},
      {{2, 6, 6, 128, 2000, 2000, 100, 0, 0, 0}, 1},
      {{2, 2, 2, 64, 1, 1, 0, 0, 0, 0}, 2},
      {{1, 3, 3, 64, 100, 500, 0, 0, 0, 0}, 1},
  };
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const dt_ulysses_layout u = layout_of(&shapes[i].layout);
    for (int32_t rank = 0; rank < u.ranks; rank++) assert_int_equal(check_boxes(&u, rank), shapes[i].empty);
  }
  for (int64_t tokens = 1; tokens < 1200; tokens += 7)
    for (int32_t ranks = 1; ranks <= 8; ranks++) {
      const layout_case c = {ranks, 8, 8, tokens % 2 ? 64 : 128, tokens, 1 + tokens * 5 % 997, 0, 0, 0, 0};
      const dt_ulysses_layout u = layout_of(&c);
      for (int32_t rank = 0; rank < u.ranks; rank++) check_boxes(&u, rank);
    }
}

static void test_refusals(void **state) {
  (void)state;
  dt_ulysses_config config;
  dt_ulysses *ulysses = NULL;
  dt_ulysses_config_init(&config);
  assert_int_equal(config.size, sizeof config);
  assert_int_equal(dt_ulysses_create(&config, &ulysses), DT_ERR_ARGUMENT); /* no endpoint */
  assert_non_null(strstr(dt_error_detail(), "comm"));
  config.size = 0;
  assert_int_equal(dt_ulysses_create(&config, &ulysses), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "size"));
  dt_comm *comm = NULL;
  dt_comm_config link;
  dt_comm_config_init(&link);
  assert_int_equal(dt_comm_create_local(1, &link, &comm), DT_OK);
  dt_ulysses_config_init(&config);
  config.comm = comm;
  assert_int_equal(dt_ulysses_create(&config, &ulysses), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "fabric cuda"));
  assert_null(ulysses);
  dt_comm_destroy(comm);
}

static void test_bench_names(void **state) {
  (void)state;
  for (int32_t i = 0; i < DT_ULYSSES_SHAPES; i++) {
    assert_non_null(dt_ulysses_shape_at(i)->name);
    for (int32_t j = 0; j < i; j++) assert_string_not_equal(dt_ulysses_shape_at(i)->name, dt_ulysses_shape_at(j)->name);
  }
  assert_null(dt_ulysses_shape_at(DT_ULYSSES_SHAPES));
  assert_string_equal(dt_ulysses_method_name(DT_ULYSSES_METHOD_WHOLE_GRAPH), "whole-graph");
  dt_ulysses_bench_config config;
  dt_ulysses_bench *bench = NULL;
  dt_ulysses_bench_config_init(&config);
  config.ranks = 9;
  assert_int_equal(dt_ulysses_bench_run(&config, &bench), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "ranks"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_way_in),    cmocka_unit_test(test_carried),  cmocka_unit_test(test_order),
      cmocka_unit_test(test_may_carry), cmocka_unit_test(test_way_out),  cmocka_unit_test(test_tiles),
      cmocka_unit_test(test_boxes),     cmocka_unit_test(test_refusals), cmocka_unit_test(test_bench_names)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
