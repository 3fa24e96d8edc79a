/* What host and device share of the spans of a launch: what each role of the engine did, in cycles of its
 * multiprocessor's clock, and what ties those clocks to the device's timer.
 *
 * Two more instances of the engine write them (spans_layer.cu, spans_combine.cu); in the others nothing of this exists.
 * Every role has room of its own, so nothing is shared on the way: no atomics, no waits. docs/spans.md.
 */
#ifndef DT_CUDA_SPANS_H
#define DT_CUDA_SPANS_H

#include "cuda/tile_layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Who writes: two warpgroups of consumers, and the warps beside them. */
typedef enum dt_stamp_role {
  DT_STAMP_CONSUMER = 0, /* and 1 */
  DT_STAMP_LOADER = 2,
  DT_STAMP_RELEASE = 3,
  DT_STAMP_COPIES = 4, /* and 5 */
  DT_STAMP_ROLES = 6
} dt_stamp_role;

typedef enum dt_stamp_kind {
  DT_STAMP_TILE = 1,    /* a warpgroup's main loop; middle: the first operands were there; and its stores */
  DT_STAMP_LOAD = 2,    /* a tile's loads; middle: its rows or act are there */
  DT_STAMP_PUBLISH = 3, /* fence and add, behind the wait for a tile's stores */
  DT_STAMP_PIECE = 4,   /* a piece of the dispatch */
  DT_STAMP_PASS = 5,    /* once a CTA: the rows of other ranks published, behind the last tile */
  DT_STAMP_PUT = 6      /* signal: a piece that a consumer puts, until all of it is on its way in */
} dt_stamp_kind;

/* Times are the lower half of the multiprocessor's cycle counter: launches are shorter than its 2 s. */
typedef struct dt_stamp {
  uint32_t kind, task; /* task: the ticket, or the piece */
  int32_t band;        /* -1: none */
  uint32_t shape;      /* of dt_tile; a piece's rows */
  uint32_t begin, middle, end;
  uint32_t stores;                    /* of a tile, 1: it has */
  uint32_t first, issued, done, fill; /* the first store; the last one issued; all known to be done */
} dt_stamp;

/* In shared memory, only in the instances that write stamps. */
enum { DT_STAMP_STATE = 128 };
#ifdef DT_STAMPED
enum { DT_STAMP_BYTES = DT_STAMP_ROLES * DT_STAMP_STATE };
#else
enum { DT_STAMP_BYTES = 0 };
#endif

/* A CTA's clock, read with the device's timer when it starts and when it ends, and how many records each role made:
 * those beyond the capacity are lost. */
typedef struct dt_stamp_cta {
  uint64_t begin_ns, end_ns;
  uint32_t begin_clock, end_clock;
  uint32_t sm, count[DT_STAMP_ROLES];
} dt_stamp_cta;

typedef struct dt_stamps {
  dt_stamp *records; /* [ctas][DT_STAMP_ROLES][capacity] */
  dt_stamp_cta *ctas;
  uint32_t capacity;
} dt_stamps;

/* What the layer's stamped instance is launched with; the plain parameters first, where the engine looks for them. */
typedef struct dt_stamped_layer {
  dt_tile_layer layer;
  dt_stamps stamps;
} dt_stamped_layer;

/* Host memory that both sides see: the host asks, the device answers with its timer. */
enum { DT_CLOCK_ROUNDS = 24 };
typedef struct dt_clock_words {
  uint32_t asked, fill_0[15];
  uint32_t answered, fill_1[13];
  uint64_t answer_ns;
  uint64_t step_ns; /* the smallest step of the timer that was seen */
} dt_clock_words;

cudaError_t dt_mark_launch(uint64_t *mark, int early, cudaStream_t stream); /* early: programmatic */
cudaError_t dt_clock_answer_launch(dt_clock_words *words, cudaStream_t stream);
cudaError_t dt_stamped_layer_launch(const dt_stamped_layer *layer, int ctas, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
