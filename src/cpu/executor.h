/* The CPU executor's inside: one dt_moe a rank, whose threads run the plan's table.
 *
 *   create.c   configuration, agreement, buffers           layer.c    counts exchange, plan, stages, statistics
 *   pool.c     the threads and their jobs                  tasks.c    what a worker does: L1, L2, shared, reduce
 *   carry.c    what moves rows: dispatch, segments, bulk   panels.c   weights and rows as float32, kept while reused
 *   spans.c    the trace                                   kernels.c  loops
 *   forward.c  stages, failures: attention's as well       weights.c  what the experts' matrices must be
 *
 * Happens-before edges (the counters are dt_comm_signal, a release, and dt_comm_wait, an acquire):
 *   put of dispatch rows   -> arrival[band] at the peer      -> L1 of the band (of its remote rows)
 *   act rows of an L1 tile -> tiles_1[band]                  -> L2 of the band
 *   Y rows of an L2 tile   -> tiles_2[band]                  -> the segments that the band's rows are in (signal)
 *   own combine rows of L2 -> tiles_2_all                    -> reduction
 *   put of combine rows    -> combine[sender] at the owner   -> reduction
 *   shared-expert rows     -> shared[block]                  -> reduction of the block
 *   reset of bank n+1      -> counts(n+1) at every peer      -> their signals into bank n+1
 */
#ifndef DT_CPU_EXECUTOR_H
#define DT_CPU_EXECUTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <draintile/moe.h>
#include <draintile/simulate.h>

#include "comm/clock.h"
#include "comm/fabric.h"
#include "core/random.h"
#include "cpu/forward.h"
#include "cpu/team.h"

typedef enum dt_job {
  DT_JOB_LAYER,    /* the whole table, overlapped */
  DT_JOB_DISPATCH, /* the stages of serial */
  DT_JOB_COMPUTE,
  DT_JOB_COMBINE,
  DT_JOB_REDUCE
} dt_job;

/* The counters of one bank, by kind; their places are the same on every rank. */
typedef enum dt_counter_kind {
  DT_COUNTER_ARRIVAL,     /* by band: rows that the peers' dispatch has brought */
  DT_COUNTER_TILES_1,     /* by band: L1 tiles done */
  DT_COUNTER_TILES_2,     /* by band: L2 tiles done */
  DT_COUNTER_SHARED,      /* by token block */
  DT_COUNTER_COMBINE,     /* by sender: its threads that have stored their last row here */
  DT_COUNTER_TILES_2_ALL, /* one */
  DT_COUNTER_KINDS
} dt_counter_kind;

/* What a rank tells every other before a layer, followed by its counts. One sector, one writer. */
typedef struct dt_counts_header {
  uint64_t epoch;
  int64_t tokens;
  int32_t producers; /* threads that will signal combine[this rank] */
  int32_t reserved[3];
} dt_counts_header;

enum {
  DT_BLOCK_TOKENS = 64, /* of a reduction or shared-expert task, at most */
  DT_A_PANELS = DT_BAND_PANELS
};

/* The float32 rows of one band, kept between the columns of a unit. */
typedef struct dt_a_panel {
  int32_t band; /* -1: none */
  float *rows;
} dt_a_panel;

/* The widened weight rows of one tile. */
typedef struct dt_b_panel {
  const dt_matrix *matrix; /* NULL: none */
  int64_t first, count;
  float *rows;
} dt_b_panel;

typedef struct dt_thread {
  struct dt_moe *moe;
  int32_t track; /* of the trace: workers, then consumers */
  bool consumer;
  dt_random delays;
  uint64_t *peer_stamp; /* [ranks]: latest visibility of this thread's combine puts */
  bool *peer_told;      /* [ranks]: combine counter signalled in this layer */
  bool *peer_used;      /* [ranks]: scratch of a reduction task */
  dt_span *spans;
  size_t span_count, span_capacity;
  /* workers only */
  dt_a_panel a[DT_A_PANELS];
  int32_t a_count, a_next;
  dt_b_panel b[3];   /* gate, up, down */
  float *gate, *up;  /* [tile_n][tile_m]; L2: its tile, and the same in rows */
  void *rounded;     /* [tile_m][tile_n] of dtype */
  float *shared_act; /* [I_s][block] */
  float *row_block;  /* [block][H]: shared experts' input, and the reduction's sums */
} dt_thread;

/* The tickets have cache lines of their own. NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
struct dt_moe {
  dt_comm *comm;
  dt_moe_config config; /* as resolved: no zeros left that mean a default */
  const dt_moe_weights *weights;
  int32_t ranks, rank, experts; /* experts: of all ranks */
  int64_t hidden, intermediate;
  size_t element; /* bytes of dtype */
  size_t row_bytes;
  int64_t max_rows, memory_rows, max_bands, max_blocks;

  dt_window *dispatch, *combine, *counters, *counts_window;
  size_t counter_base[DT_COUNTER_KINDS], bank_bytes; /* offsets inside a bank */
  size_t slot_bytes;                                 /* of one source's counts */
  float *act;                                        /* [I][rows] of each band, at band.row * I */
  unsigned char *y;                                  /* [memory_rows][H] dtype: signal and serial */
  float *shared_out;                                 /* [max_tokens][H] */
  int32_t *row_of_slot, *slot_of_row, *token_of_row; /* [max_tokens*top_k] */
  int32_t *counts;                                   /* [ranks][experts] */
  dt_counts_header *headers;                         /* [ranks] */
  unsigned char *message;                            /* [slot_bytes]: header and counts as sent */

  /* the layer in flight, or the last one */
  uint64_t epoch;
  int32_t bank_bands[2], bank_blocks[2]; /* counters used by the last layer of each parity */
  bool unsettled;                        /* combine counters of `epoch` may still be arriving */
  dt_plan *plan;
  const dt_moe_input *input;
  void *output;
  int64_t *last_task; /* [ranks]: last L2 task, or segment of segment_order, with rows for the peer; -1: none */
  double dispatch_backlog_bytes; /* a piece of dispatch is put when the link's backlog is at most this */
  int64_t dispatch_piece_rows;
  int64_t reduce_first; /* first R task */
  dt_span *spans;       /* of the last layer, all threads */
  size_t span_count, span_capacity;

  /* the pool */
  int32_t thread_count, blas_buffers;
  dt_thread *threads;
  dt_team *team;
  int64_t task_end;
  _Alignas(64) atomic_int_fast64_t ticket;       /* of workers */
  _Alignas(64) atomic_int_fast64_t carry_ticket; /* D tasks, or groups of serial's combine */
  _Alignas(64) atomic_int_fast64_t segment_ticket;
  dt_failure failure;
};

/* create.c */
void *dt_pages_alloc(size_t bytes); /* zero-filled; takes memory only where touched; NULL when out of memory */
void dt_pages_free(void *pages, size_t bytes);
size_t dt_bank_offset(const dt_moe *moe, dt_counter_kind kind, int64_t index);

/* weights.c */
dt_status dt_check_weights(const dt_moe_weights *weights); /* DT_ERR_ARGUMENT names the matrix */

/* pool.c */
dt_status dt_pool_create(dt_moe *moe);
void dt_pool_destroy(dt_moe *moe);
/* Runs `job` on every thread and returns when all are done; the error of the first that failed. */
dt_status dt_pool_run(dt_moe *moe, dt_job job);
/* Records the first failure, so that every thread stops; _fail also tells the peers. */
dt_status dt_layer_refuse(dt_moe *moe, dt_status status, const char *detail);
dt_status dt_layer_fail(dt_moe *moe, dt_status status, const char *detail);
dt_status dt_layer_error(dt_moe *moe); /* sets the recorded detail, returns the recorded status */
void dt_delay(dt_thread *thread);      /* testing: a random pause, when asked for */

/* tasks.c */
dt_status dt_tasks_run(dt_thread *thread); /* draws tickets up to task_end */
bool dt_schedule_stores_direct(dt_schedule schedule);

/* carry.c */
dt_status dt_dispatch_one(dt_thread *thread, int32_t index);
dt_status dt_dispatch_run(dt_thread *thread);
dt_status dt_segments_run(dt_thread *thread);
dt_status dt_bulk_run(dt_thread *thread);
/* A put to another rank, with its spans. */
dt_status dt_carry_put(dt_thread *thread, const dt_put *put, dt_span_kind kind, int32_t index, int32_t column,
                       uint64_t *visible_ns);
/* Signals the combine counter of every peer whose last task lies before `position`. */
dt_status dt_tell_peers(dt_thread *thread, int64_t position);
/* Counters of this rank in the current bank. */
dt_status dt_bank_add(dt_thread *thread, dt_counter_kind kind, int64_t index, uint32_t value);
dt_status dt_bank_wait(dt_thread *thread, dt_counter_kind kind, int64_t index, uint32_t target, int32_t peer);

/* panels.c */
int32_t dt_panels_kept(int32_t tile_m, int64_t hidden); /* bands; a unit of more would be read again every column */
dt_status dt_panels_create(dt_thread *thread);
void dt_panels_destroy(dt_thread *thread);
void dt_panels_reset(dt_thread *thread); /* the rows of the last layer are stale */
const float *dt_panel_a(dt_thread *thread, const dt_band *band, int32_t index, int64_t *stride);
const float *dt_panel_b(dt_thread *thread, int slot, const dt_matrix *matrix, int64_t first, int64_t count,
                        int64_t *stride);

/* spans.c */
dt_status dt_spans_reserve(dt_moe *moe); /* room for everything the plan can make any thread record */
dt_span *dt_span_add(dt_thread *thread, dt_span_kind kind, uint64_t begin_ns, uint64_t end_ns);
/* All threads' spans after `own` ones, in moe->spans. */
dt_status dt_spans_gather(dt_moe *moe, const dt_span *own, size_t own_count);

#endif
