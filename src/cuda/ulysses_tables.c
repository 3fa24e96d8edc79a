#include "ulysses_tables.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* The items in the order in which they are wanted, each with its block; NULL arrays: to count. */
typedef struct builder {
  const dt_ulysses_layout *layout;
  int32_t rank, box;
  dt_ulysses_item *items;
  int32_t *block_of;
  int32_t count;
  int32_t next, first_block, last_block; /* the next item's block, and the ones it goes round */
  int32_t group;                         /* first item of this peer and head */
  const dt_ulysses_needs *needs;
  int32_t early;
} builder;

int32_t dt_ulysses_box_rows(int32_t head_dim) {
  return DT_ULYSSES_STAGE_BYTES / (2 * head_dim);
}

int32_t dt_ulysses_by_owner(const dt_ulysses_layout *u) {
  return !u->causal && !u->text_replicated;
}

int64_t dt_ulysses_place(const dt_ulysses_layout *u, int32_t rank, int32_t tensor, int32_t owner, int part) {
  const int64_t tokens = tensor ? u->kv_tokens : u->tokens;
  const dt_ulysses_rows run = dt_ulysses_owned(u, tokens, owner, part);
  if (!dt_ulysses_by_owner(u)) return run.first;
  int64_t before = 0;
  for (int32_t r = (rank + 1) % u->ranks; r != owner; r = (r + 1) % u->ranks)
    before += dt_ulysses_owned_rows(u, tokens, r);
  return before + run.local;
}

int64_t dt_ulysses_late_rows(const dt_ulysses_layout *u, int32_t rank) {
  return dt_ulysses_by_owner(u) ? u->kv_tokens - dt_ulysses_owned_rows(u, u->kv_tokens, rank) : u->kv_tokens;
}

int32_t dt_ulysses_may_carry(const dt_ulysses_layout *u) {
  if (u->head_dim > 128 || u->tokens == 0 || u->kv_tokens == 0) return 0;
  /* Items of k and v for a head: those of each of two tensors, and a box more for each part. */
  const int64_t most = (DT_ULYSSES_UNITS / 2 - DT_ULYSSES_PARTS) * (int64_t)dt_ulysses_box_rows(u->head_dim);
  return u->tokens <= most && u->kv_tokens <= most;
}

void dt_ulysses_table_destroy(dt_ulysses_table *table) {
  free(table->items), free(table->first);
  *table = (dt_ulysses_table){0};
}

static void add(builder *b, dt_ulysses_item item) {
  if (b->next < b->first_block || b->next >= b->last_block) b->next = b->first_block;
  if (b->items) {
    b->items[b->count] = item;
    b->block_of[b->count] = b->next;
  }
  b->count++;
  b->next++;
}

/* Rows of one tensor (0: q, 1: k, 2: v) and one head to `peer`: the boxes that hold the first `rows` of them. */
static void add_rows(builder *b, int32_t peer, int32_t tensor, int32_t from_head, int32_t to_head, int64_t rows) {
  const dt_ulysses_layout *u = b->layout;
  const int64_t tokens = tensor ? u->kv_tokens : u->tokens;
  for (int32_t part = 0; part < DT_ULYSSES_PARTS; part++) {
    const dt_ulysses_rows run = dt_ulysses_sent(u, tokens, b->rank, peer, part);
    for (int64_t at = 0; at < run.rows && rows > 0; at += b->box) {
      add(b, (dt_ulysses_item){.from = (int16_t)tensor,
                               .to = (int16_t)dt_ulysses_map_in(peer, part, tensor),
                               .rank = (int16_t)peer,
                               .from_head = from_head,
                               .from_row = (int32_t)(run.local + at),
                               .to_head = to_head,
                               .to_row = (int32_t)at});
      rows -= run.rows - at < b->box ? run.rows - at : b->box;
    }
  }
}

static void add_tensor(builder *b, int32_t peer, int32_t tensor, int32_t from_head, int32_t to_head) {
  add_rows(b, peer, tensor, from_head, to_head, INT64_MAX);
}

/* The last item of each block in the group says that the block is done with it; together they say DT_ULYSSES_UNITS. A
 * group of no rows says so too. */
static void close_group(builder *b, int32_t peer, int32_t head) {
  if (b->count == b->group) add(b, (dt_ulysses_item){.from = -1, .rank = (int16_t)peer});
  uint32_t said = 0;
  for (int32_t i = b->count - 1; b->items && i >= b->group; i--) {
    int later = 0;
    for (int32_t j = i + 1; j < b->count && !later; j++) later = b->block_of[j] == b->block_of[i];
    if (later) break; /* blocks go round: all before have a later one too */
    b->items[i].word = (int16_t)head;
    b->items[i].weight = 1;
    said++;
  }
  if (b->items) b->items[b->count - 1].weight += DT_ULYSSES_UNITS - said;
  b->group = b->count;
}

static void add_head(builder *b, int32_t peer, int32_t head) {
  const dt_ulysses_layout *u = b->layout;
  const int32_t kv = dt_ulysses_kv_of(u, peer, head);
  const int first_use = head == 0 || dt_ulysses_kv_of(u, peer, head - 1) != kv;
  if (first_use) {
    const int32_t from = dt_ulysses_kv_first(u, peer) + kv;
    add_tensor(b, peer, 1, from, kv);
    add_tensor(b, peer, 2, from, kv);
  }
  add_tensor(b, peer, 0, u->head_first[peer] + head, head);
  /* A block may have sent rows of k or v for an earlier head and have none of this one: all blocks speak. */
  for (int32_t i = b->first_block; !first_use && i < b->last_block; i++)
    add(b, (dt_ulysses_item){.from = -1, .rank = (int16_t)peer});
  close_group(b, peer, head);
}

typedef void fill_in(builder *b, const dt_ulysses_shares *shares);

/* The first head of `peer` that uses the same k and v: the blocks that bring these must speak for all that do. */
static int32_t first_of_group(const dt_ulysses_layout *u, int32_t peer, int32_t head) {
  const int32_t kv = dt_ulysses_kv_of(u, peer, head);
  while (head > 0 && dt_ulysses_kv_of(u, peer, head - 1) == kv) head--;
  return head;
}

static void fill_way_in(builder *b, const dt_ulysses_shares *shares) {
  const dt_ulysses_layout *u = b->layout;
  int32_t most = 0, next[2] = {0, 0};
  for (int32_t r = 0; r < u->ranks; r++)
    if (dt_ulysses_head_count(u, r) > most) most = dt_ulysses_head_count(u, r);
  for (int32_t head = 0; head < most; head++)
    for (int32_t i = 0; i < u->ranks; i++) {
      const int32_t peer = (b->rank + i) % u->ranks;
      if (head >= dt_ulysses_head_count(u, peer)) continue;
      const int32_t fast = first_of_group(u, peer, head) < shares->fast;
      const int32_t others = fast && i == 0 && shares->fast_senders < shares->blocks;
      b->next = next[others];
      b->first_block = others ? shares->fast_senders : 0;
      b->last_block = !fast ? shares->senders : i == 0 ? shares->blocks : shares->fast_senders;
      add_head(b, peer, head);
      next[others] = b->next;
    }
}

/* Heads of `peer` from `head` on that use the same k and v. */
static int32_t group_size(const dt_ulysses_layout *u, int32_t peer, int32_t head) {
  int32_t end = head + 1;
  while (end < dt_ulysses_head_count(u, peer) && dt_ulysses_kv_of(u, peer, end) == dt_ulysses_kv_of(u, peer, head))
    end++;
  return end - head;
}

/* Items [from, count) say that they are done to `words` heads from `head` on. */
static void set_words(builder *b, int32_t from, int32_t head, int32_t words) {
  for (int32_t i = from; b->items && i < b->count; i++) {
    b->items[i].word = (int16_t)head;
    b->items[i].words = (uint32_t)words;
    b->items[i].weight = 1;
  }
}

/* What was added from `from` on says so to `words` words from `word` on: together DT_ULYSSES_UNITS. */
static void close_words(builder *b, int32_t peer, int32_t from, int32_t word, int32_t words) {
  if (b->count == from) add(b, (dt_ulysses_item){.from = -1, .rank = (int16_t)peer});
  set_words(b, from, word, words);
  if (b->items) b->items[b->count - 1].weight += (uint32_t)(DT_ULYSSES_UNITS - (b->count - from));
}

/* Of its own rows a rank brings those that boxes share with others' rows: the rest is read where it lies. */
static void add_carried(builder *b, int32_t peer, int32_t tensor, int32_t from_head, int32_t to_head) {
  const int shared = peer == b->rank && dt_ulysses_by_owner(b->layout);
  add_rows(b, peer, tensor, from_head, to_head, shared ? DT_ULYSSES_SHARED_ROWS : INT64_MAX);
}

static void carry_q(builder *b, int32_t head) {
  const dt_ulysses_layout *u = b->layout;
  for (int32_t i = 1; i <= u->ranks; i++) {
    const int32_t peer = (b->rank + i) % u->ranks, from = b->count;
    if (head >= dt_ulysses_head_count(u, peer)) continue;
    add_carried(b, peer, 0, u->head_first[peer] + head, head);
    close_words(b, peer, from, head, 1);
  }
}

static void carry_kv(builder *b, int32_t head) {
  const dt_ulysses_layout *u = b->layout;
  for (int32_t i = 1; i <= u->ranks; i++) {
    const int32_t peer = (b->rank + i) % u->ranks, heads = dt_ulysses_head_count(u, peer), from = b->count;
    if (head >= heads || first_of_group(u, peer, head) != head) continue;
    const int32_t kv = dt_ulysses_kv_of(u, peer, head);
    add_carried(b, peer, 1, dt_ulysses_kv_first(u, peer) + kv, kv);
    add_carried(b, peer, 2, dt_ulysses_kv_first(u, peer) + kv, kv);
    close_words(b, peer, from, heads + head, group_size(u, peer, head));
  }
}

static void fill_carried(builder *b, const dt_ulysses_shares *shares) {
  const dt_ulysses_layout *u = b->layout;
  int32_t most = 0;
  b->last_block = shares->blocks;
  for (int32_t r = 0; r < u->ranks; r++)
    if (dt_ulysses_head_count(u, r) > most) most = dt_ulysses_head_count(u, r);
  for (int32_t i = 0; i < b->needs->count; i++) {
    if (i == b->needs->early) b->early = b->count;
    (b->needs->needs[i].kv ? carry_kv : carry_q)(b, b->needs->needs[i].head);
  }
  if (b->needs->early >= b->needs->count) b->early = b->count;
  for (int32_t head = dt_ulysses_head_count(u, b->rank); head < most; head++) carry_q(b, head), carry_kv(b, head);
}

static void fill_way_out(builder *b, const dt_ulysses_shares *shares) {
  const dt_ulysses_layout *u = b->layout;
  b->last_block = shares->blocks;
  for (int32_t head = 0; head < dt_ulysses_head_count(u, b->rank); head++)
    for (int32_t i = 1; i < u->ranks; i++)
      for (int32_t part = 0; part < DT_ULYSSES_PARTS; part++) {
        const int32_t owner = (b->rank + i) % u->ranks;
        const dt_ulysses_rows run = dt_ulysses_owned(u, u->tokens, owner, part);
        const int64_t place = dt_ulysses_place(u, b->rank, 0, owner, part);
        for (int64_t at = 0; at < run.rows; at += b->box)
          add(b, (dt_ulysses_item){.to = (int16_t)dt_ulysses_map_out(owner, part),
                                   .rank = (int16_t)owner,
                                   .from_head = head,
                                   .from_row = (int32_t)(place + at),
                                   .to_head = u->head_first[b->rank] + head,
                                   .to_row = (int32_t)at});
      }
}

/* Stable, by block. */
static void sort(const builder *b, dt_ulysses_table *table) {
  for (int32_t i = 0; i < b->count; i++) table->first[b->block_of[i] + 1]++;
  for (int32_t block = 0; block < table->blocks; block++) table->first[block + 1] += table->first[block];
  for (int32_t i = b->count - 1; i >= 0; i--) table->items[--table->first[b->block_of[i] + 1]] = b->items[i];
  /* first[b + 1] has come down to where block b begins */
  for (int32_t block = 0; block < table->blocks; block++) table->first[block] = table->first[block + 1];
  table->first[table->blocks] = b->count;
}

static dt_status make(const dt_ulysses_layout *layout, int32_t rank, fill_in *fill, const dt_ulysses_shares *shares,
                      const dt_ulysses_needs *needs, dt_ulysses_table *table) {
  const int32_t box = dt_ulysses_box_rows(layout->head_dim);
  builder b = {.layout = layout, .rank = rank, .box = box, .needs = needs};
  fill(&b, shares);
  const size_t count = (size_t)b.count;
  *table = (dt_ulysses_table){.items = calloc(count + 1, sizeof *table->items),
                              .first = calloc((size_t)shares->blocks + 2, sizeof *table->first),
                              .count = b.count,
                              .blocks = shares->blocks,
                              .early = b.early};
  b = (builder){.layout = layout,
                .rank = rank,
                .box = box,
                .needs = needs,
                .items = calloc(count + 1, sizeof *b.items),
                .block_of = calloc(count + 1, sizeof *b.block_of)};
  const int ready = table->items && table->first && b.items && b.block_of;
  if (ready) {
    fill(&b, shares);
    sort(&b, table);
  } else {
    dt_ulysses_table_destroy(table);
  }
  free(b.items), free(b.block_of);
  return ready ? DT_OK : dt_fail(DT_ERR_MEMORY, "table: %zu items", count);
}

dt_status dt_ulysses_table_in(const dt_ulysses_layout *layout, int32_t rank, const dt_ulysses_shares *shares,
                              dt_ulysses_table *table) {
  return make(layout, rank, fill_way_in, shares, NULL, table);
}

dt_status dt_ulysses_table_carried(const dt_ulysses_layout *layout, int32_t rank, const dt_ulysses_needs *needs,
                                   dt_ulysses_table *table) {
  const dt_ulysses_shares one = {.blocks = 1};
  return make(layout, rank, fill_carried, &one, needs, table);
}

dt_status dt_ulysses_table_out(const dt_ulysses_layout *layout, int32_t rank, int32_t blocks, dt_ulysses_table *table) {
  const dt_ulysses_shares all = {.blocks = blocks};
  return make(layout, rank, fill_way_out, &all, NULL, table);
}
