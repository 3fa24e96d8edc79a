/* The CPU executor's inside: one dt_moe a rank, whose threads run the plan's table.
 *
 *   create.c   configuration, agreement, buffers           layer.c    counts exchange, plan, stages, statistics
 *   pool.c     the threads and their jobs                  tasks.c    what a worker does: L1, L2, shared, reduce
 *   carry.c    what moves rows: dispatch, segments, bulk   panels.c   weights and rows as float32, kept while reused
 *   spans.c    the trace                                   kernels.c  loops
 *   forward.c  stages, failures: attention's as well       weights.c  what the experts' matrices must be
 *   tickets.c  tiles that are computed by one call
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
  DT_A_PANELS = DT_BAND_PANELS,
  DT_ROW_GROUP = 12 /* rows that a kernel of BLAS may take together, at most: tickets.c */
};

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
  float *a_rows;               /* [group + a_count*tile_m + group][H]: bands kept between the columns of a unit */
  int32_t a_band[DT_A_PANELS]; /* -1: none */
  int32_t a_count, a_next;
  dt_b_panel b[3];   /* gate, up, down */
  float *gate, *up;  /* [rows of a call][tile_n]; L2 has its tile in `up` */
  float *turned;     /* [tile_n][tile_m] */
  void *rounded;     /* [tile_m][tile_n] of dtype */
  float *shared_act; /* [block][I_s] */
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
  float *act;                                        /* [memory_rows][I] */
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
  int64_t *tickets;     /* [ticket_count + 1]: first task of each, and the number of tasks */
  int64_t ticket_count, ticket_capacity;
  dt_span *spans; /* of the last layer, all threads */
  size_t span_count, span_capacity;

  /* the pool */
  int32_t thread_count, blas_buffers;
  dt_thread *threads;
  dt_team *team;
  int32_t call_bands; /* of tiles in one call of BLAS, at most */
  int32_t row_group;  /* such calls begin and end at multiples of it */
  int64_t task_end, ticket_end;
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

/* tickets.c */
dt_status dt_calls_choose(dt_moe *moe);                    /* call_bands */
dt_status dt_tickets_build(dt_moe *moe);                   /* from the plan */
int64_t dt_ticket_at(const dt_moe *moe, int64_t position); /* the first one that begins there or later */
static inline int64_t dt_call_rows(int64_t rows, int32_t group) {
  return (rows + group - 1) / group * group;
}

/* tasks.c */
dt_status dt_tasks_run(dt_thread *thread); /* draws tickets up to ticket_end */
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
/* Whether that wait would return at once: then what is before the signals may be read without it. */
bool dt_bank_reached(const dt_thread *thread, dt_counter_kind kind, int64_t index, uint32_t target);

/* panels.c */
int32_t dt_panels_kept(int32_t tile_m, int64_t hidden); /* bands; a unit of more would be read again every column */
dt_status dt_panels_create(dt_thread *thread);
void dt_panels_destroy(dt_thread *thread);
void dt_panels_reset(dt_thread *thread); /* the rows of the last layer are stale */
/* Rows of `count` bands that follow each other in memory. */
const float *dt_panel_a(dt_thread *thread, const dt_task *const *tasks, int32_t count, int64_t *stride);
const float *dt_panel_b(dt_thread *thread, int slot, const dt_matrix *matrix, int64_t first, int64_t count,
                        int64_t *stride);

/* spans.c */
dt_status dt_spans_reserve(dt_moe *moe); /* room for everything the plan can make any thread record */
dt_span *dt_span_add(dt_thread *thread, dt_span_kind kind, uint64_t begin_ns, uint64_t end_ns);
/* All threads' spans after `own` ones, in moe->spans. */
dt_status dt_spans_gather(dt_moe *moe, const dt_span *own, size_t own_count);

#endif
