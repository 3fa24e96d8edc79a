#include "plan/ulysses.h"

#include "core/error.h"

/* Key heads that query heads [first, first + count) use. */
static int32_t kv_span(int32_t group, int32_t first, int32_t count) {
  return (first + count - 1) / group - first / group + 1;
}

/* Fills head_first. The fewest key heads over all ranks; of equal choices, larger shares first. The place of a boundary
 * depends only on how many ranks before it have the larger share, so the best choice for the ranks from r on, after e
 * larger shares, is one entry of a table. */
static void choose_heads(dt_ulysses_layout *u) {
  int32_t ranks = u->ranks, base = u->heads / ranks, extra = u->heads % ranks, group = u->heads / u->kv_heads;
  int32_t cost[DT_ULYSSES_RANKS + 1][DT_ULYSSES_RANKS + 1];
  for (int32_t e = 0; e <= extra; e++) cost[ranks][e] = e == extra ? 0 : INT32_MAX;
  for (int32_t r = ranks - 1; r >= 0; r--)
    for (int32_t e = 0; e <= extra; e++) {
      int32_t first = r * base + e, rest = cost[r + 1][e], best = INT32_MAX;
      if (rest < INT32_MAX) best = kv_span(group, first, base) + rest;
      rest = e < extra ? cost[r + 1][e + 1] : INT32_MAX;
      if (rest < INT32_MAX && kv_span(group, first, base + 1) + rest < best)
        best = kv_span(group, first, base + 1) + rest;
      cost[r][e] = best;
    }
  int32_t e = 0;
  u->head_first[0] = 0;
  for (int32_t r = 0; r < ranks; r++) {
    int32_t first = r * base + e, rest = e < extra ? cost[r + 1][e + 1] : INT32_MAX;
    if (rest < INT32_MAX && kv_span(group, first, base + 1) + rest == cost[r][e]) e++;
    u->head_first[r + 1] = (r + 1) * base + e;
  }
}

static dt_status check_rows(const dt_ulysses_layout *u) {
  const struct {
    const char *name;
    int64_t value, most;
  } fields[] = {{"tokens", u->tokens, INT32_MAX},
                {"kv_tokens", u->kv_tokens, INT32_MAX},
                {"text_tokens", u->text_tokens, dt_min64(u->tokens, u->kv_tokens)}};
  for (int i = 0; i < 3; i++)
    if (fields[i].value < 0 || fields[i].value > fields[i].most)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; allowed: 0 to %lld", fields[i].name, (long long)fields[i].value,
                     (long long)fields[i].most);
  if (u->tile_rows < 1 || u->tile_rows > 4096)
    return dt_fail(DT_ERR_ARGUMENT, "tile_rows: %d; allowed: 1 to 4096", u->tile_rows);
  if (u->own_lag < 0 || u->own_lag > 65536)
    return dt_fail(DT_ERR_ARGUMENT, "own_lag: %d; allowed: 0 to 65536", u->own_lag);
  return DT_OK;
}

dt_status dt_ulysses_init(dt_ulysses_layout *u) {
  if (u->ranks < 1 || u->ranks > DT_ULYSSES_RANKS)
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; allowed: 1 to %d", u->ranks, DT_ULYSSES_RANKS);
  if (u->heads < u->ranks || u->heads > 65536)
    return dt_fail(DT_ERR_ARGUMENT, "heads: %d; allowed: %d, the ranks, to 65536", u->heads, u->ranks);
  if (u->kv_heads < 1 || u->heads % u->kv_heads)
    return dt_fail(DT_ERR_ARGUMENT, "kv_heads: %d; allowed: a divisor of the %d heads", u->kv_heads, u->heads);
  if (u->head_dim < 1 || u->head_dim > 4096)
    return dt_fail(DT_ERR_ARGUMENT, "head_dim: %d; allowed: 1 to 4096", u->head_dim);
  dt_status status = check_rows(u);
  if (status) return status;
  choose_heads(u);
  return DT_OK;
}

/* Writes at *count where there is an array, and counts. */
static void add_send(dt_ulysses_send *sends, int64_t *count, int32_t peer, int32_t head, int32_t kv) {
  if (sends) sends[*count] = (dt_ulysses_send){.peer = peer, .head = head, .kv = kv};
  ++*count;
}

int64_t dt_ulysses_sends(const dt_ulysses_layout *u, int32_t rank, dt_ulysses_send *sends) {
  int64_t count = 0;
  int32_t most = dt_ulysses_head_count(u, 0);
  for (int32_t r = 1; r < u->ranks; r++)
    if (dt_ulysses_head_count(u, r) > most) most = dt_ulysses_head_count(u, r);
  for (int32_t head = 0; head < most; head++)
    for (int32_t i = 0; i < u->ranks; i++) {
      int32_t peer = (rank + i) % u->ranks;
      if (head >= dt_ulysses_head_count(u, peer)) continue;
      int32_t kv = dt_ulysses_kv_of(u, peer, head);
      int first_use = head == 0 || dt_ulysses_kv_of(u, peer, head - 1) != kv;
      if (first_use && dt_ulysses_sent_rows(u, u->kv_tokens, rank, peer)) add_send(sends, &count, peer, kv, 1);
      if (dt_ulysses_sent_rows(u, u->tokens, rank, peer)) add_send(sends, &count, peer, head, 0);
    }
  return count;
}

/* The tiles of one head and owner. */
static void add_tiles(const dt_ulysses_layout *u, int32_t head, int32_t owner, dt_ulysses_tile *tiles, int64_t *count) {
  for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
    dt_ulysses_rows run = dt_ulysses_owned(u, u->tokens, owner, part);
    for (int64_t at = 0; at < run.rows; at += u->tile_rows) {
      if (tiles)
        tiles[*count] = (dt_ulysses_tile){.head = head,
                                          .owner = owner,
                                          .row = run.first + at,
                                          .local = run.local + at,
                                          .rows = (int32_t)dt_min64(run.rows - at, u->tile_rows)};
      ++*count;
    }
  }
}

int64_t dt_ulysses_tiles(const dt_ulysses_layout *u, int32_t rank, dt_ulysses_tile *tiles) {
  int64_t count = 0;
  int32_t heads = dt_ulysses_head_count(u, rank);
  for (int64_t step = 0; step < (int64_t)heads + u->own_lag; step++) {
    for (int32_t i = 1; step < heads && i < u->ranks; i++)
      add_tiles(u, (int32_t)step, (rank + i) % u->ranks, tiles, &count);
    if (step >= u->own_lag) add_tiles(u, (int32_t)(step - u->own_lag), rank, tiles, &count);
  }
  return count;
}
