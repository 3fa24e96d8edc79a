/* What host and device share of the attention kernel: its parameters and work items. See docs/attention_cuda.md. */
#ifndef DT_CUDA_ATTENTION_KERNEL_H
#define DT_CUDA_ATTENTION_KERNEL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include <draintile/cuda_attention.h>

#include "plan/pure.h"
#include "ulysses_meet.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DT_ATTENTION_CTAS_MAX = 192,
  DT_ATTENTION_PIECES = 2, /* of a CTA */
  DT_ATTENTION_ROUNDS_MAX = 72,
  DT_ATTENTION_TILE_PIECES = 8 /* of a tile: a word of 32 bits counts them in 8 and has a bit for each */
};

/* A run of rows as the kernel takes it. Its tiles are those that start in it: where the next run lies behind it, the
 * last of them may end there, and the next run's tiles start behind that. tiles_end counts the tiles of its group up to
 * and with this run's, one head. */
typedef struct dt_attention_run {
  uint8_t *out; /* of the run's first row, head 0 */
  int64_t row_bytes;
  int32_t first, rows, tiles_end, tiles;
  int32_t start, end; /* of the first tile; of the runs that lie one behind the other */
  int32_t away;       /* memory of another device */
} dt_attention_run;

/* Runs whose tiles go before those of the next group: remote ones, then local ones. */
typedef struct dt_attention_group {
  int32_t tiles;          /* of all heads */
  int32_t tiles_per_head; /* of all its runs */
  int32_t runs_begin, runs_end;
  int32_t lead_from, lead; /* of a head: tiles that come before the others of their section, the first or the last */
} dt_attention_group;

/* Part of a tile: some of its KV blocks. Either `pieces` of them, in as many CTAs, are merged through scratch memory,
 * or there are two (`resumes`), and the second goes on from where the first left off. */
typedef struct dt_attention_piece {
  int32_t tile;                 /* counted from the first cut one */
  uint16_t block_first, blocks; /* 0 blocks: no piece */
  uint16_t merge;               /* number of the cut tile */
  uint16_t scratch;             /* slab of the tile's first piece */
  uint8_t piece, pieces;
} dt_attention_piece;

/* A CTA's whole tiles, its place among the CTAs of a round; pieces before whole tiles, and behind them. */
typedef struct dt_attention_share {
  uint8_t whole, place, before, after;
} dt_attention_share;

/* A CTA's first item, so that its loads need not wait for code that finds it out, fetched from memory. */
typedef struct dt_attention_first {
  int32_t row, block;
  uint16_t head, kv_head, blocks;
  uint8_t rows, run, masked;
  int8_t merge;
} dt_attention_first;

/* What an item of a CTA's work is, beside the number of a piece to be merged. */
enum { DT_ATTENTION_WHOLE = -1, DT_ATTENTION_SUSPENDED = DT_ATTENTION_PIECES, DT_ATTENTION_RESUMED };

/* Start of the workspace; all zero before and after every launch but for the error. */
typedef struct dt_attention_header {
  uint32_t next, done;        /* tickets drawn (causal); CTAs that drew their last */
  uint32_t stored;            /* warpgroups whose rows are all stored */
  uint32_t error, error_head; /* sticky: a dt_attention_error, 0: none */
  uint32_t merges[3 * DT_ATTENTION_CTAS_MAX];
} dt_attention_header;
enum { DT_ATTENTION_SCRATCH_OFFSET = 4096 };

typedef enum dt_attention_error {
  DT_ATTENTION_OK = 0,
  DT_ATTENTION_ERROR_Q = 1,
  DT_ATTENTION_ERROR_K = 2,
  DT_ATTENTION_ERROR_V = 3,
  DT_ATTENTION_ERROR_FREE_Q = 4,
  DT_ATTENTION_ERROR_FREE_K = 5,
  DT_ATTENTION_ERROR_FREE_V = 6,
  DT_ATTENTION_ERROR_ARRIVED = 7,
  DT_ATTENTION_ERROR_STOPPED = 8, /* by another kernel: what this one waits for will not come */
  DT_ATTENTION_ERROR_CARRY = 9,
  DT_ATTENTION_ERROR_FREE_SENT = 10,
  DT_ATTENTION_ERROR_RESUME = 11
} dt_attention_error;

/* Rows of one head that a CTA carries from a local tensor to a rank, by the copy engine. 32 bytes. */
typedef struct dt_attention_carried {
  int16_t from, to; /* maps */
  int16_t rank;     /* where they go */
  int16_t word;     /* the first of `words` there that get `weight` once the rows are there */
  int32_t from_head, from_row, to_head, to_row;
  uint32_t weight, words;
} dt_attention_carried;

/* What the attention's CTAs carry beside it. They draw items in order, so that all are carried by whichever CTAs are
 * resident. */
enum { DT_ATTENTION_CARRY_BYTES = 16384, DT_ATTENTION_CARRY_STAGES = 2, DT_ATTENTION_CARRY_EVERY = 2 };
enum { DT_ATTENTION_HELD_ROWS = 32 };
typedef struct dt_attention_carry {
  CUtensorMap from[3];
  const CUtensorMap *to; /* device memory */
  const dt_attention_carried *items;
  int32_t count;
  int32_t early; /* items [early, count) are paced: each so much after the one before */
  uint32_t interval_ns;
  uint32_t *ticket;                        /* the next item; 0 before the launch */
  const uint32_t *gate, *gate_target;      /* nothing is stored before the one, by difference, is at the other */
  uint32_t *arrived[DT_ULYSSES_RANKS_MAX]; /* words at each rank */
  const uint32_t *late;                    /* own words, [heads]: rows of k and v below late_rows have come */
  int32_t late_rows;
  /* 1: rows of q from own_q on, and of k and v from late_rows on, lie here, with strides of their own, and are read
   * here, but by boxes that begin before. Element 0 of the first such row, this rank's first head. */
  int32_t reads_own;
  const void *own[3];
  int64_t own_stride[3];
  int32_t own_q;
  /* 1: the first CTA enters, behind the kernel before; the last one, but at head_dim 256, tells the peers that their
   * rows are there. 0: the ranks have met, or will, without it, and others leave. */
  int32_t enters;
  dt_ulysses_params meet;
  void *held; /* memory for rows that are away, until the last rounds; NULL: they leave as they come */
  size_t held_bytes;
  int32_t holds; /* -1: whether they wait is chosen by length; 0: they do not; 1: they do, and no tile is cut (tests) */
} dt_attention_carry;

typedef struct dt_attention_kernel {
  CUtensorMap q, k, v;             /* [tokens][heads][D], boxes of 64 columns by the rows of a warpgroup or a block */
  CUtensorMap own_q, own_k, own_v; /* the same, where boxes that start at own_q_row or own_kv_row or behind are read */
  dt_attention_run runs[DT_CUDA_ATTENTION_OWNERS_MAX + 1]; /* the last: read for rows that do not exist */
  dt_attention_group groups[2];
  dt_attention_header *header;
  float *scratch;
  const uint32_t *arrived, *arrived_target_from;
  uint32_t arrived_target;
  int32_t own_q_row, own_kv_row; /* INT32_MAX: there are none */
  int32_t own_q_rows;            /* so many from own_q_row on */
  int32_t arrived_gates_stores;  /* waited for before the first store, not before a head's first load */
  int32_t paced; /* rows of runs that are away go by the sending warp, so many at a time, but for a CTA's last tile */
  uint32_t paced_ns; /* from the beginning of so many to that of the next */
  uint32_t timeout_us;
  int32_t heads, kv_heads, kv_tokens;
  int32_t causal_offset;       /* causal: row i sees columns below i + causal_offset + 1 */
  int32_t cut_from, cut_tiles; /* of the order, so many from the first on are cut into pieces */
  int32_t resumes;             /* 1: in two, one before its CTA's whole tiles, one behind. 0: all of them before */
  int32_t tile_first;          /* 1: but for one whole tile, which every CTA has before its pieces */
  int32_t head_section;        /* heads whose tiles take turns */
  int32_t mapped;              /* head_to_kv holds */
  float scale_log2;            /* scale * log2(e) */
  dt_attention_carry carry;
  uint16_t head_to_kv[DT_CUDA_ATTENTION_HEADS_MAX];
  /* Where tiles are cut: number of the first whole tile of each round, the cut ones not counted. */
  int32_t round[DT_ATTENTION_ROUNDS_MAX];
  dt_attention_share shares[DT_ATTENTION_CTAS_MAX];
  dt_attention_first first[DT_ATTENTION_CTAS_MAX];
  dt_attention_piece pieces[DT_ATTENTION_CTAS_MAX][DT_ATTENTION_PIECES];
  /* Rows that wait for the last rounds: DT_ATTENTION_HELD_ROWS at a time, each with its destination behind it. */
  uint8_t *held;
  int32_t held_most;  /* pieces of so many rows that a CTA has room for; 0: no row waits */
  int32_t drain_from; /* a CTA sends them when the tile behind its next one would be this one, or a later one */
  uint32_t drain_ns;  /* from the beginning of a piece to that of the next */
} dt_attention_kernel;

/* Which head and which of its group's tiles is number `index` of group `group`: sections of heads; in a section the
 * tiles that lead, head by head, then the others. Where none lead, causal or head_dim 256: tiles, and in them heads. */
DT_HD static inline void dt_attention_place(const dt_attention_kernel *kernel, int32_t group, int32_t index, int leads,
                                            int32_t *head, int32_t *tile) {
  const dt_attention_group *g = &kernel->groups[group];
  const int32_t per_section = kernel->head_section * g->tiles_per_head, section = index / per_section;
  const int32_t first = section * kernel->head_section, left = kernel->heads - first;
  const int32_t heads = left < kernel->head_section ? left : kernel->head_section;
  int32_t within = index - section * per_section;
  if (!leads) {
    *tile = within / heads;
    *head = first + within % heads;
    return;
  }
  int32_t each = g->lead, from = g->lead_from;
  if (within >= heads * g->lead) {
    within -= heads * g->lead;
    each = g->tiles_per_head - g->lead;
    from = from == 0 ? g->lead : 0;
  }
  *head = first + within / each;
  *tile = from + within % each;
}

/* Whether a box of q that begins at `row` is read by own_q, which begins in front of its memory: only if it has a row.
 * One wholly behind the end of such a map is an illegal address (docs/notes/ulysses.md); by q, whose memory begins with
 * it, it is none. Boxes of k and v all have a row. */
DT_HD static inline int dt_attention_reads_own_q(const dt_attention_kernel *kernel, int32_t row) {
  return (uint32_t)row - (uint32_t)kernel->own_q_row < (uint32_t)kernel->own_q_rows;
}

/* One compiled shape of the kernel. */
typedef struct dt_attention_shape {
  int32_t head_dim, block; /* D; KV rows of a block */
  int32_t groups;          /* consumer warpgroups, 64 rows each */
  int32_t half, causal;    /* fp16; causal */
} dt_attention_shape;

/* What may be chosen; -1: by the library. For benchmarks and tests. */
typedef struct dt_attention_choice {
  int32_t cut; /* 0: no tile is cut over KV */
} dt_attention_choice;
#define DT_ATTENTION_CHOICE_INIT                                                                                       \
  { -1 }

/* Fills the schedule of `kernel` (runs, groups, pieces, head_section), whose carry says whether it enters, for `ctas`
 * CTAs. Pure. */
void dt_attention_plan(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t cut, int32_t ctas,
                       dt_attention_kernel *kernel);
/* Its part where no tile is cut, and where tiles are if that pays. */
void dt_attention_plan_uncut(dt_attention_kernel *kernel);
void dt_attention_plan_cut(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t ctas,
                           dt_attention_kernel *kernel);
/* Where the CTAs carry nothing beside it. Pure. */
void dt_attention_plan_alone(dt_attention_kernel *kernel);
/* Where tiles are cut: every CTA's first item, when all else is filled. Pure. */
void dt_attention_plan_first(const dt_attention_shape *shape, int32_t ctas, dt_attention_kernel *kernel);
/* The sending warp's pace: a tile's rows leave in 0.6 of the time of a tile, so many at a time, a power of two, that
 * this can be, each waited for before the next. Not paced where a tile is too short for that even with 32: the warp
 * would hold up the consumers. Nor causal tiles, whose lengths differ; nor by a kernel that does not enter, whose end
 * would wait for the warp without limit. Pure. */
void dt_attention_plan_pace(const dt_cuda_attention *attention, const dt_attention_shape *shape,
                            dt_attention_kernel *kernel);
/* Whether rows may wait (paced; no tile is cut, nor causal), and the kernel takes so long that its links sleep if they
 * carry nothing meanwhile, which leaves the multiprocessors more power. Behind dt_attention_plan. Pure. */
int dt_attention_outlasts_links(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t ctas,
                                const dt_attention_kernel *kernel);
/* Whether rows that are away wait until the last rounds, as they do there, and when those begin. Behind
 * dt_attention_plan_pace. Pure. */
void dt_attention_plan_hold(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t ctas,
                            dt_attention_kernel *kernel);
/* Which rows `kernel` reads where they lie. Pure. */
void dt_attention_plan_own(const dt_cuda_attention *attention, const dt_attention_carry *carry,
                           dt_attention_kernel *kernel);
dt_attention_shape dt_attention_shape_of(const dt_cuda_attention *attention);
/* About how long a tile takes, ns. */
double dt_attention_tile_ns(const dt_cuda_attention *attention, const dt_attention_shape *shape);

/* Also does what `carry` says, unless it is NULL: enters, at any head_dim; carries, at 64 or 128. */
dt_status dt_attention_forward_carrying(const dt_cuda_attention *attention, const dt_attention_carry *carry,
                                        void *workspace, void *stream);
dt_status dt_attention_forward_chosen(const dt_cuda_attention *attention, const dt_attention_choice *choice,
                                      void *workspace, void *stream);

/* cudaErrorInvalidConfiguration: no such shape. */
cudaError_t dt_attention_launch_d64(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas,
                                    cudaStream_t stream);
cudaError_t dt_attention_launch_d128(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas,
                                     cudaStream_t stream);
cudaError_t dt_attention_launch_d256(const dt_attention_kernel *kernel, const dt_attention_shape *shape, int ctas,
                                     cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
