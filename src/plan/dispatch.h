/* The D tasks of one rank: which of its rows go to which band of which peer, in what order. */
#ifndef DT_PLAN_DISPATCH_H
#define DT_PLAN_DISPATCH_H

#include "layout.h"

/* This rank's group at one expert of one peer, in the peer's row space. */
typedef struct dt_send {
  int64_t row, rows, src_row;
  int64_t offset, first_band; /* of the group within the expert; the expert's first band */
} dt_send;

/* How far the rows for one peer are listed. */
typedef struct dt_send_cursor {
  int64_t done; /* rows of the current expert's group */
  int32_t at;   /* position in the peer's expert order */
} dt_send_cursor;

/* Sends of `rank` to the experts of one peer; experts as dt_rank_measure gives them for the peer. *src_row runs on over
 * the peers, which must therefore come in ascending order. Returns the number of D tasks. */
DT_HD static inline int64_t dt_sends_measure(const dt_shape *shape, int32_t rank, int32_t peer,
                                             const dt_expert_layout *experts, int64_t *src_row, dt_send *sends) {
  int64_t tasks = 0;
  for (int32_t e = 0; e < shape->experts; e++) {
    dt_send *send = &sends[e];
    send->rows = dt_count(shape, rank, peer, e);
    send->src_row = *src_row;
    *src_row += send->rows;
    if (send->rows == 0) continue;
    send->offset = dt_group_offset(shape, peer, e, rank);
    send->first_band = experts[e].first_band;
    send->row = experts[e].row + send->offset;
    tasks += dt_bands_touched(shape, send->offset, send->rows);
  }
  return tasks;
}

/* The next D task for one peer, or 0. The peer takes its bands in the order of its experts; rows of this rank are
 * remote to it, so they lie in its remote bands, which every order takes ascending within an expert. */
DT_HD static inline int dt_send_next(const dt_shape *shape, int32_t peer, const int32_t *expert_order,
                                     const dt_send *sends, dt_send_cursor *cursor, dt_dispatch *out) {
  for (; cursor->at < shape->experts; cursor->at++, cursor->done = 0) {
    const dt_send *send = &sends[expert_order[cursor->at]];
    if (cursor->done == send->rows) continue;
    int64_t offset = send->offset + cursor->done;
    int64_t rows = dt_min64(send->rows - cursor->done, shape->tile_m - offset % shape->tile_m);
    out->peer = peer;
    out->band = (int32_t)(send->first_band + offset / shape->tile_m);
    out->rows = (int32_t)rows;
    out->row = send->row + cursor->done;
    out->src_row = send->src_row + cursor->done;
    cursor->done += rows;
    return 1;
  }
  return 0;
}

/* The rank's own rows, in its own band order: they need no link, so L1 can start on them at once. A band's local part
 * is its last. Returns how many were written. */
DT_HD static inline int64_t dt_dispatch_local(int32_t rank, const int32_t *band_order, int64_t band_count,
                                              const dt_band *bands, const dt_part *parts, dt_dispatch *out) {
  int64_t n = 0;
  for (int64_t i = 0; i < band_count; i++) {
    const dt_band *band = &bands[band_order[i]];
    const dt_part *part = &parts[band->first_part + band->parts - 1];
    if (part->owner != rank) continue;
    out[n].peer = rank;
    out[n].band = band_order[i];
    out[n].rows = part->rows;
    out[n].row = part->row;
    out[n].src_row = part->dst_row;
    n++;
  }
  return n;
}

/* The other ranks' rows, one task a peer in turn from rank + 1 on, so that no peer waits for another's whole share.
 * sends and expert_orders are [ranks][experts], cursors is scratch of [ranks]; count is the number of such tasks. */
DT_HD static inline void dt_dispatch_remote(const dt_shape *shape, int32_t rank, const int32_t *expert_orders,
                                            const dt_send *sends, dt_send_cursor *cursors, int64_t count,
                                            dt_dispatch *out) {
  int64_t n = 0;
  for (int32_t p = 0; p < shape->ranks; p++) cursors[p].done = cursors[p].at = 0;
  while (n < count) {
    for (int32_t i = 1; i < shape->ranks; i++) {
      int32_t peer = (int32_t)(((int64_t)rank + i) % shape->ranks);
      int64_t base = (int64_t)peer * shape->experts;
      if (cursors[peer].at == shape->experts) continue;
      n += dt_send_next(shape, peer, &expert_orders[base], &sends[base], &cursors[peer], &out[n]);
    }
  }
}

#endif
