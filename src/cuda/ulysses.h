/* The Ulysses operator: what its files and its tests share. */
#ifndef DT_CUDA_ULYSSES_H
#define DT_CUDA_ULYSSES_H

#include <draintile/cuda_attention.h>
#include <draintile/trace.h>
#include <draintile/ulysses.h>

#include "plan/ulysses.h"
#include "ulysses_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Pinned: while a copy to other memory waits for its stream, other threads' copies of that kind wait for it. */
typedef struct dt_ulysses_pinned {
  uint64_t clock_ns;
  dt_ulysses_state state;
} dt_ulysses_pinned;

/* A table of what to copy, on the device. */
typedef struct dt_ulysses_moves {
  dt_ulysses_item *items;
  int32_t *first;
  int32_t blocks, count;
} dt_ulysses_moves;

struct dt_ulysses {
  dt_ulysses_config config;
  dt_ulysses_layout layout;
  int device, sms, senders;
  int carries;         /* beside the attention its own CTAs bring the way in */
  dt_window *arrivals; /* q [S][heads][D], k, v [S_kv][kv heads][D] of this rank's heads */
  dt_window *output;   /* [rows][H][D] */
  dt_window *control;  /* slots, then a word a head */
  dt_ulysses_state *state;
  uint32_t *gate;
  uint8_t *kept; /* [S][heads][D]: outputs that stay; or rows that wait to be sent */
  size_t kept_bytes;
  int32_t holds; /* as dt_attention_carry; -1 */
  void *workspace;
  size_t workspace_bytes, device_bytes;
  dt_ulysses_moves in_few, in_all, out; /* few: blocks that have multiprocessors of their own beside the attention */
  dt_ulysses_moves carried;
  int32_t carried_early; /* of its items; the others are paced, one each carried_ns */
  uint32_t carried_ns;
  CUtensorMap *carried_to;           /* device: move_in.to */
  dt_ulysses_move move_in, move_out; /* maps and parameters; items are set at the launch */
  dt_cuda_attention attention;       /* what all parts share */
  int32_t *head_to_kv;
  dt_ulysses_pinned *pinned;
  dt_span spans[4];
};

/* Rows of the attention's tiles. */
int32_t dt_ulysses_tile_rows(const dt_ulysses *ulysses);
/* Elements from the start of this rank's arrivals to a tensor (0: q, 1: k, 2: v). */
int64_t dt_ulysses_tensor_at(const dt_ulysses_layout *layout, int32_t rank, int32_t tensor);
/* Zeroed, and counted in device_bytes; `what` names it in an error. */
dt_status dt_ulysses_device_memory(dt_ulysses *ulysses, void **pointer, size_t bytes, const char *what);

/* ---- What is moved (ulysses_moves.c) ---- */

/* A map of [rows][heads][head_dim] elements of 2 bytes at `memory`, in boxes of one head; of a tensor without rows none
 * is made, nor read. */
dt_status dt_ulysses_make_map(const dt_ulysses *ulysses, CUtensorMap *map, void *memory, int64_t rows, int32_t heads);
/* Maps of the peers' windows and of the kept rows; those of the way in on the device too, where the attention's launch
 * has no room for them; tables of the ways in and out. */
dt_status dt_ulysses_make_maps(dt_ulysses *ulysses);
dt_status dt_ulysses_upload_maps(dt_ulysses *ulysses);
dt_status dt_ulysses_make_tables(dt_ulysses *ulysses);

/* ---- The attention's description (ulysses_attention.c) ---- */

/* What all parts share: rows of this rank's heads to their owners. */
dt_status dt_ulysses_describe_attention(dt_ulysses *ulysses);
/* Runs of output rows by owner: [S][heads][D] that stays here, or each owner's output. `kept`: rows of others stay,
 * their tiles in the same order. */
void dt_ulysses_set_owners(const dt_ulysses *ulysses, dt_cuda_attention *attention, int kept);
/* All rows stay. */
void dt_ulysses_set_one_owner(const dt_ulysses *ulysses, dt_cuda_attention *attention);

#ifdef __cplusplus
}
#endif
#endif
