/* The attention kernel's schedule where tiles are cut over KV: whose pieces and whole tiles are which. Pure. */
#include <string.h>

#include "cuda/attention.h"

/* Who has a whole tile in a round: CTAs with many of them first, and of those with the same number those whose second
 * piece is longest, so that in the last round rows which leave, others' before own ones, have it to hide behind. */
static void plan_rounds(int32_t ctas, dt_attention_kernel *kernel) {
  int32_t order[DT_ATTENTION_CTAS_MAX];
  for (int32_t c = 0; c < ctas; c++) {
    int32_t place = c;
    for (; place > 0; place--) {
      const int32_t other = order[place - 1], more = kernel->shares[c].whole - kernel->shares[other].whole;
      if (more < 0 || (more == 0 && kernel->pieces[c][1].blocks <= kernel->pieces[other][1].blocks)) break;
      order[place] = other;
    }
    order[place] = c;
  }
  for (int32_t i = 0; i < ctas; i++) kernel->shares[order[i]].place = (uint8_t)i;
  for (int32_t n = 0, index = 0, left = ctas; n < DT_ATTENTION_ROUNDS_MAX; n++) {
    kernel->round[n] = index;
    while (left > 0 && kernel->shares[order[left - 1]].whole <= n) left--;
    index += left;
  }
}

/* What an item is worth beside its blocks, in tenths of a block: its beginning and end, during which nothing is
 * multiplied; measured. */
typedef struct item_cost {
  int32_t whole, head, tail;
} item_cost;
static const item_cost COST_64 = {9, 16, 21}, COST_128 = {23, 27, 38};
enum { TENTHS = 10, RESUME_GAIN_PER_MILLE = 18, RESUME_BLOCKS_MIN = 3 };

/* A CTA's share: the second piece of the tile that the CTA before has the first piece of, whole tiles, a first piece.
 */
typedef struct dealt {
  int32_t tail, whole, head;
} dealt;

/* Deals all tiles in order, so that no CTA has more than `budget`; what is lost by rounding is the next one's. False:
 * it is not enough. */
static int deal_shares(int32_t tiles, int32_t blocks, int32_t ctas, int32_t budget, const item_cost *cost,
                       dealt *shares) {
  int32_t taken = 0, rest = 0; /* blocks of the tile that is being dealt; tenths */
  for (int32_t c = 0; c < ctas; c++) {
    dealt *s = &shares[c];
    *s = (dealt){0};
    int32_t left = budget + rest;
    rest = 0;
    if (taken > 0) {
      s->tail = blocks - taken;
      left -= TENTHS * s->tail + cost->tail;
      taken = 0;
      tiles--;
    }
    s->whole = left / (TENTHS * blocks + cost->whole);
    if (left < 0) s->whole = 0;
    if (s->whole > tiles) s->whole = tiles;
    tiles -= s->whole;
    left -= s->whole * (TENTHS * blocks + cost->whole) + cost->head;
    if (tiles == 0 || left < TENTHS * RESUME_BLOCKS_MIN) continue;
    s->head = left / TENTHS < blocks - RESUME_BLOCKS_MIN ? left / TENTHS : blocks - RESUME_BLOCKS_MIN;
    if (s->head == left / TENTHS) rest = left % TENTHS;
    taken = s->head;
  }
  return tiles == 0;
}

/* Every CTA gets the same work, contiguous in the order of tiles, at least a tile's; a tile that lies over a border is
 * cut there: its last blocks, which come first in a tile that is not cut, are the first piece. False: that would not
 * pay, or not work out. */
static int plan_resumed(int32_t tiles, int32_t blocks, int32_t ctas, const item_cost *cost,
                        dt_attention_kernel *kernel) {
  dealt shares[DT_ATTENTION_CTAS_MAX];
  const int32_t rounds = (tiles + ctas - 1) / ctas;
  if (rounds >= DT_ATTENTION_ROUNDS_MAX || blocks > UINT16_MAX) return 0;
  const int32_t whole = TENTHS * blocks + cost->whole, uncut = rounds * whole;
  int32_t low = (int32_t)((int64_t)tiles * TENTHS * blocks / ctas);
  int32_t high = low + rounds * cost->whole + cost->head + cost->tail + 2 * TENTHS * RESUME_BLOCKS_MIN;
  if (high > uncut) high = uncut;
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    if (deal_shares(tiles, blocks, ctas, middle, cost, shares))
      high = middle;
    else
      low = middle + 1;
  }
  if ((int64_t)(uncut - high) * 1000 < (int64_t)uncut * RESUME_GAIN_PER_MILLE) return 0;
  if (!deal_shares(tiles, blocks, ctas, high, cost, shares)) return 0;
  int32_t cuts = 0;
  for (int32_t c = 0; c < ctas; c++) {
    const dealt *s = &shares[c];
    if (s->tail > 0)
      kernel->pieces[c][1] = (dt_attention_piece){.tile = cuts - 1,
                                                  .blocks = (uint16_t)s->tail,
                                                  .merge = (uint16_t)(cuts - 1),
                                                  .scratch = (uint16_t)(cuts - 1),
                                                  .piece = 1,
                                                  .pieces = 2};
    if (s->head > 0)
      kernel->pieces[c][0] = (dt_attention_piece){.tile = cuts,
                                                  .block_first = (uint16_t)(blocks - s->head),
                                                  .blocks = (uint16_t)s->head,
                                                  .merge = (uint16_t)cuts,
                                                  .scratch = (uint16_t)cuts,
                                                  .pieces = 2};
    cuts += s->head > 0;
    kernel->shares[c] = (dt_attention_share){
        .whole = (uint8_t)s->whole, .before = (uint8_t)(s->head > 0), .after = (uint8_t)(s->tail > 0)};
  }
  if (cuts == 0) return 0;
  kernel->resumes = 1;
  kernel->cut_tiles = cuts;
  plan_rounds(ctas, kernel);
  return 1;
}

/* Pieces that are merged: cuts the tiles that do not fill a round, the first of the order, in CTAs one after the other.
 * Only where the round would waste more than merging costs. */
enum { CUT_WASTE_PERCENT = 10, CUT_BLOCKS_MIN = 4, CUT_SNAP = 2, CUT_WHOLE_FROM = 3 };

/* Where worker c's piece ends, counted from the first tile's first block, if no piece has parts of two tiles: a CTA
 * with two pieces pays twice for writing and merging, more than a piece of a fifth of a tile is longer than one of a
 * sixth. */
static int64_t piece_end(int32_t c, int32_t workers, int32_t rest, int32_t blocks) {
  const int32_t tile = (int32_t)(((int64_t)c * rest + rest - 1) / workers);
  const int32_t first = (int32_t)((int64_t)tile * workers / rest),
                end = (int32_t)((int64_t)(tile + 1) * workers / rest);
  return (int64_t)tile * blocks + (int64_t)blocks * (c + 1 - first) / (end - first);
}

/* Blocks that a piece is worth of writing and merging; measured at head_dim 128, where O is twice as large as at 64. */
enum { PIECE_COST = 6, PIECE_COST_64 = 3 };

/* Where each worker's pieces end, if none may have more than `budget` blocks, its pieces' cost among them; a cut near a
 * tile's edge goes there, by which it may have CUT_SNAP more. False: that is not enough for all. */
static int deal(int32_t workers, int32_t rest, int32_t blocks, int32_t budget, int32_t cost, int64_t *ends) {
  const int64_t total = (int64_t)rest * blocks;
  int64_t from = 0;
  for (int32_t c = 0; c < workers; c++) {
    int64_t left = budget;
    for (int32_t n = 0; n < DT_ATTENTION_PIECES && from < total && left - cost > CUT_SNAP; n++) {
      const int64_t in_tile = blocks - from % blocks;
      const int64_t take = left - cost + CUT_SNAP < in_tile ? left - cost : in_tile;
      from += take;
      left -= take + cost;
      if (take < in_tile) break;
    }
    ends[c] = from;
  }
  return from >= total;
}

static void plan_pieces(int32_t tiles, int32_t blocks, int32_t ctas, int32_t cost, dt_attention_kernel *kernel) {
  const int32_t rounds = tiles / ctas, rest = tiles % ctas;
  if (rest == 0 || rounds >= DT_ATTENTION_ROUNDS_MAX || blocks > UINT16_MAX) return;
  if ((ctas - rest) * 100 < CUT_WASTE_PERCENT * ctas * (rounds + 1)) return;
  const int64_t total = (int64_t)rest * blocks;
  const int32_t most = (DT_ATTENTION_TILE_PIECES - 2) * rest; /* a tile's first and last piece may be parts */
  const int32_t workers = ctas < most ? ctas : most;
  if (total / workers < CUT_BLOCKS_MIN) return;
  int32_t slabs = 0, tile_slab = 0, piece = 0;
  int64_t from = 0;
  const int32_t whole = workers / rest >= CUT_WHOLE_FROM; /* then CTAs have a piece of one tile each */
  int64_t ends[DT_ATTENTION_CTAS_MAX];
  int32_t budget = (int32_t)(total / workers) + cost;
  while (!whole && !deal(workers, rest, blocks, budget, cost, ends)) budget++;
  for (int32_t c = 0; c < workers; c++) {
    const int64_t to = whole ? piece_end(c, workers, rest, blocks) : ends[c];
    for (int32_t n = 0; from < to; n++) {
      const int64_t tile = from / blocks, edge = (tile + 1) * blocks, end = to < edge ? to : edge;
      if (from % blocks == 0) {
        tile_slab = slabs;
        piece = 0;
      }
      kernel->pieces[c][n] = (dt_attention_piece){.tile = (int32_t)tile,
                                                  .block_first = (uint16_t)(from % blocks),
                                                  .blocks = (uint16_t)(end - from),
                                                  .merge = (uint16_t)tile,
                                                  .scratch = (uint16_t)tile_slab,
                                                  .piece = (uint8_t)piece++};
      slabs++;
      from = end;
      kernel->shares[c].before++;
    }
  }
  kernel->cut_tiles = rest;
  for (int32_t c = 0; c < ctas; c++) kernel->shares[c].whole = (uint8_t)rounds;
  plan_rounds(ctas, kernel);
  /* How many each tile has is known only now: its last piece's number and one. */
  int32_t most_pieces = 0;
  for (int32_t c = workers - 1, pieces = 0, tile = -1; c >= 0; c--)
    for (int32_t n = DT_ATTENTION_PIECES - 1; n >= 0; n--) {
      dt_attention_piece *p = &kernel->pieces[c][n];
      if (p->blocks == 0) continue;
      if (p->tile != tile) {
        tile = p->tile;
        pieces = p->piece + 1;
      }
      p->pieces = (uint8_t)pieces;
      if (pieces > most_pieces) most_pieces = pieces;
    }
  /* A CTA for each tile, then: nothing is cut. The kernel would take such a piece for one of its whole tiles. */
  if (most_pieces == 1) dt_attention_plan_uncut(kernel);
}

void dt_attention_plan_uncut(dt_attention_kernel *kernel) {
  kernel->cut_from = kernel->cut_tiles = kernel->resumes = kernel->tile_first = 0;
  memset(kernel->pieces, 0, sizeof kernel->pieces);
  memset(kernel->shares, 0, sizeof kernel->shares);
  memset(kernel->round, 0, sizeof kernel->round);
}

void dt_attention_plan_cut(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t ctas,
                           dt_attention_kernel *kernel) {
  const int32_t tiles = kernel->groups[0].tiles + kernel->groups[1].tiles;
  const int32_t blocks = (int32_t)((attention->kv_tokens + shape->block - 1) / shape->block);
  if (shape->head_dim <= 128 && tiles > ctas) {
    if (!plan_resumed(tiles, blocks, ctas, shape->head_dim == 64 ? &COST_64 : &COST_128, kernel)) return;
  } else {
    plan_pieces(tiles, blocks, ctas, shape->head_dim == 64 ? PIECE_COST_64 : PIECE_COST, kernel);
  }
  kernel->tile_first = kernel->cut_tiles > 0 && tiles >= 2 * ctas;
  if (kernel->resumes && kernel->tile_first) kernel->cut_from = kernel->round[1];
}

void dt_attention_plan_alone(dt_attention_kernel *kernel) {
  kernel->tile_first = 0;
  if (kernel->resumes) kernel->cut_from = kernel->groups[0].tiles + kernel->groups[1].tiles - kernel->cut_tiles;
}

/* Tile `index` of the order: its head, run and rows. */
static void tile_at(const dt_attention_kernel *kernel, int32_t index, int leads, int32_t tile_rows,
                    dt_attention_first *first) {
  const int32_t group = index >= kernel->groups[0].tiles;
  if (group) index -= kernel->groups[0].tiles;
  int32_t head, tile, run = kernel->groups[group].runs_begin;
  dt_attention_place(kernel, group, index, leads, &head, &tile);
  while (run + 1 < kernel->groups[group].runs_end && kernel->runs[run].tiles_end <= tile) run++;
  const dt_attention_run *r = &kernel->runs[run];
  first->head = (uint16_t)head;
  first->run = (uint8_t)run;
  first->row = r->start + (tile - (r->tiles_end - r->tiles)) * tile_rows;
  first->rows = (uint8_t)(r->end - first->row < tile_rows ? r->end - first->row : tile_rows);
}

void dt_attention_plan_first(const dt_attention_shape *shape, int32_t ctas, dt_attention_kernel *kernel) {
  if (kernel->cut_tiles == 0) return;
  const int32_t blocks = (kernel->kv_tokens + shape->block - 1) / shape->block;
  for (int32_t c = 0; c < ctas; c++) {
    const dt_attention_share *share = &kernel->shares[c];
    const int whole = share->whole > 0 && (share->before == 0 || kernel->tile_first);
    const int tail = !whole && share->before == 0;
    const dt_attention_piece *piece = &kernel->pieces[c][tail];
    dt_attention_first *first = &kernel->first[c];
    *first = (dt_attention_first){.merge = DT_ATTENTION_WHOLE};
    if (!whole && piece->blocks == 0) continue; /* nothing to do */
    int32_t index = whole ? share->place : kernel->cut_from + piece->tile;
    if (whole && index >= kernel->cut_from) index += kernel->cut_tiles;
    tile_at(kernel, index, shape->head_dim <= 128, 64 * shape->groups, first);
    first->kv_head = kernel->mapped ? kernel->head_to_kv[first->head]
                                    : (uint16_t)((int64_t)first->head * kernel->kv_heads / kernel->heads);
    const int32_t end = whole ? blocks : piece->block_first + piece->blocks;
    first->block = end - 1;
    first->blocks = (uint16_t)(whole ? blocks : piece->blocks);
    first->masked = (uint8_t)(end == blocks && kernel->kv_tokens % shape->block != 0);
    if (!whole) first->merge = (int8_t)(!kernel->resumes ? 0 : tail ? DT_ATTENTION_RESUMED : DT_ATTENTION_SUSPENDED);
  }
}
