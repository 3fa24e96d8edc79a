/* The inside of attention on the CPU: one dt_attention a rank, whose threads run the tables of plan/ulysses.h.
 *
 *   attention_config.c   agreement, checks, layout             attention_create.c   tables, buffers, threads
 *   attention_run.c      stages, waits, statistics, spans      attention_carry.c    what moves rows, and the counters
 *   attention_tile.c     one tile: scores, softmax, output     attention_reference.c   float64
 *
 * Happens-before edges (the counters are dt_comm_signal, a release, and dt_comm_wait, an acquire):
 *   put of q, or of k and v, of a head -> arrival[head] at the peer -> the tiles of the head
 *   put of an output tile              -> done[sender] at the owner -> the end of forward
 *   reset of bank n+1, after the entry barrier of n -> the entry barrier of n+1 -> the peers' signals into bank n+1
 *   a caller's reads of output n       -> the entry barrier of n+1 -> the peers' puts into the output
 */
#ifndef DT_CPU_ATTENTION_H
#define DT_CPU_ATTENTION_H

#include <stdatomic.h>
#include <stdbool.h>

#include <draintile/attention.h>

#include "comm/clock.h"
#include "comm/fabric.h"
#include "core/random.h"
#include "cpu/forward.h"
#include "cpu/team.h"
#include "plan/ulysses.h"

enum { DT_KV_BLOCK = 512 }; /* rows of k and v that a tile takes at a time: scores and both blocks fit a core's cache */

typedef enum dt_attention_job {
  DT_ATTENTION_JOB_IN,
  DT_ATTENTION_JOB_TILES, /* stored straight to their owners, or kept for the way out, as the schedule says */
  DT_ATTENTION_JOB_BOTH,  /* IN and TILES at once */
  DT_ATTENTION_JOB_OUT
} dt_attention_job;

typedef struct dt_attention_thread {
  dt_attention *attention;
  int32_t track; /* of the trace: workers, then consumers */
  bool consumer;
  dt_random delays;
  uint64_t peer_stamp[DT_MAX_RANKS]; /* latest visibility of this thread's output puts */
  bool peer_told[DT_MAX_RANKS];      /* done signalled in this forward */
  dt_span *spans;
  size_t span_count;
  /* workers only */
  float *q, *scores, *o; /* [tile_rows][D], [tile_rows][DT_KV_BLOCK], [tile_rows][D] */
  float *k, *v;          /* [DT_KV_BLOCK][D], when the type must be widened */
  float *top, *sum;      /* [tile_rows]: running maximum and sum of the softmax */
  void *rounded;         /* [tile_rows][D] of dtype */
} dt_attention_thread;

/* Alone in its cache line: every thread draws from it. */
typedef struct dt_ticket {
  _Alignas(64) atomic_int_fast64_t next;
} dt_ticket;

struct dt_attention {
  dt_ticket sends_drawn, tiles_drawn; /* of sends (or, on the way out, of its messages), of tiles */
  dt_comm *comm;
  dt_attention_config config;
  dt_ulysses_layout layout;
  int32_t ranks, rank;
  size_t element;                      /* bytes of dtype */
  int32_t heads, head_first, kv_heads; /* this rank's */

  dt_ulysses_send *sends;
  dt_ulysses_tile *tiles;
  int64_t send_count, tile_count, out_count; /* out: (head, remote owner) pairs */
  int64_t last_tile[DT_MAX_RANKS];           /* last one that the rank owns; -1: none */
  int32_t workers[DT_MAX_RANKS], consumers[DT_MAX_RANKS];

  dt_window *arrivals, *output, *counters;
  size_t bank_bytes;
  unsigned char *kept; /* [heads][S][D]: serial's remote output rows */
  size_t kept_bytes;
  int64_t piece_rows;         /* of one put of the way in */
  double backlog_limit_bytes; /* a piece is put when the link's backlog is at most this; 0: none */

  uint64_t epoch;
  const dt_attention_input *input;
  dt_team *team;
  int32_t thread_count, blas_buffers;
  dt_attention_thread *threads;
  size_t span_room; /* of each thread */
  dt_span *spans;   /* of the last forward, all threads */
  size_t span_count;
  dt_failure failure;
};

/* attention_config.c */
dt_status dt_attention_agree(dt_comm *comm, const dt_attention_config *config);
dt_status dt_attention_check_schedule(const dt_attention_config *config);
/* DT_ERR_ARGUMENT for what no layout can be made of. */
dt_status dt_attention_layout(const dt_attention_config *config, int32_t ranks, dt_ulysses_layout *u);

/* attention_carry.c */
/* Offset of a counter in the current bank: of `sender`'s finished stores here, or of what arrives on `rank`. */
size_t dt_attention_done_at(const dt_attention *a, int32_t sender);
size_t dt_attention_arrival_at(const dt_attention *a, int32_t rank, int kv, int32_t head);
void dt_attention_delay(dt_attention_thread *thread); /* testing: a random pause, when asked for */
dt_span *dt_attention_span(dt_attention_thread *thread, dt_span_kind kind, uint64_t begin_ns, uint64_t end_ns);
dt_status dt_attention_await(dt_attention_thread *thread, int kv, int32_t head);
dt_status dt_attention_put(dt_attention_thread *thread, const dt_put *put, dt_span_kind kind, int64_t index,
                           int32_t column, uint64_t *visible_ns);
dt_status dt_attention_run_sends(dt_attention_thread *thread);
dt_status dt_attention_run_out(dt_attention_thread *thread);
/* Signals done to every peer whose last tile lies before `position`. */
dt_status dt_attention_tell(dt_attention_thread *thread, int64_t position);

/* attention_tile.c */
dt_status dt_attention_run_tiles(dt_attention_thread *thread);

/* attention_run.c */
void dt_attention_work(void *attention, int32_t thread, int job); /* a dt_team_fn */
dt_status dt_attention_failure_status(dt_attention *a);           /* the recorded failure, its detail set */

#endif
