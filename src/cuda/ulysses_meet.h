/* How the ranks of the Ulysses operator meet: the words that they tell each other, and a rank's state. */
#ifndef DT_CUDA_ULYSSES_MEET_H
#define DT_CUDA_ULYSSES_MEET_H

#include <stdint.h>

enum { DT_ULYSSES_RANKS_MAX = 8 };

/* What one rank tells another, in the other's control window: one writer, a sector a word. Epochs are compared by
 * their difference, so that they may pass 2^32. */
typedef struct dt_ulysses_slot {
  uint32_t entered; /* epoch for which the writer's windows are open */
  uint32_t fill_0[7];
  uint32_t left; /* epoch whose output rows are all with the reader */
  uint32_t fill_1[7];
  uint32_t failed; /* not 0: the writer gave up, for good */
  uint32_t fill_2[15];
} dt_ulysses_slot;

/* When the last run was where, nanoseconds of the GPU's global timer. */
typedef struct dt_ulysses_times {
  uint64_t in_first, in_last; /* the way in begins; its last block ends */
  uint64_t ready;             /* the attention may begin: the ranks have met, or all heads have arrived */
  uint64_t out_first;         /* serial: the way out begins */
  uint64_t stored, left;      /* all rows are stored; every rank's rows are here */
} dt_ulysses_times;

/* This rank's state, device memory. The first error stays. */
typedef struct dt_ulysses_state {
  uint32_t epoch;  /* of the last run that ended */
  uint32_t target; /* of the heads' words in the next run with a way in */
  uint32_t next;   /* epoch + 1, what the gate of this run will hold */
  uint32_t sent;   /* blocks of the way in that are done */
  uint32_t ticket; /* items of the way in that the attention's CTAs have drawn */
  uint32_t error;  /* of dt_ulysses_error */
  int32_t index;   /* the rank, block or head waited for */
  uint32_t expected, seen;
  dt_ulysses_times times;
} dt_ulysses_state;

typedef struct dt_ulysses_params {
  int32_t rank, ranks, heads; /* heads of this rank */
  uint32_t timeout_us;
  dt_ulysses_state *state;
  uint32_t *attention_error;                        /* in the attention's workspace; written to stop it */
  dt_ulysses_slot *slots;                           /* own, [ranks] by writer */
  dt_ulysses_slot *peer_slot[DT_ULYSSES_RANKS_MAX]; /* this rank's slot at each peer */
  uint32_t *arrived[DT_ULYSSES_RANKS_MAX];          /* the heads' words at each rank */
  uint32_t *late[DT_ULYSSES_RANKS_MAX];             /* and those of its k and v */
  uint32_t *gate;                                   /* [heads]: epoch of the last run whose ranks have met */
} dt_ulysses_params;

#endif
