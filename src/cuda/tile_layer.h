/* What host and device share of the MoE layer: the words that ranks exchange, a rank's state, and the parameters of the
 * tile engine when it runs a layer.
 */
#ifndef DT_CUDA_TILE_LAYER_H
#define DT_CUDA_TILE_LAYER_H

#include "cuda/tile_gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_LAYER_RANKS = 8, DT_LAYER_ACT = DT_TILE_OWNERS, DT_LAYER_TOP_K = 32 };

/* Which GEMM a task belongs to: from bit 8 of its flags. */
typedef enum dt_task_phase { DT_TASK_L2 = 0, DT_TASK_L1 = 1 } dt_task_phase;
enum { DT_TASK_PHASE_SHIFT = 8 };

/* Consecutive rows that one rank copies to another: source rows [from, from + rows) to [to, to + rows) there. Dispatch:
 * tokens of the combine rows `from`, all in `band` of the peer; with dedup rows of this rank's own band, whose sources
 * are words [from, from + rows). Put: expert rows, to the peer's combine rows, once `bands` bands from `band` on, of
 * band_rows rows each, are stored: those of the segment that it is a part of. */
typedef struct dt_layer_piece {
  int32_t from, to, rows, peer, band, bands, band_rows, fill;
} dt_layer_piece;

/* What one rank tells another, in the other's control window. One writer, a sector a word. */
typedef struct dt_layer_slot {
  uint32_t counted; /* epoch whose counts are there: the reader may write the writer's memory */
  uint32_t fill_0[7];
  uint32_t sent; /* epoch whose rows are all in the reader's combine buffer */
  uint32_t fill_1[7];
  uint32_t failed; /* not 0: the writer gave up */
  uint32_t fill_2[15];
} dt_layer_slot;

typedef enum dt_layer_error {
  DT_LAYER_OK = 0,
  DT_LAYER_ERROR_INPUT = 1,    /* an id out of range */
  DT_LAYER_ERROR_CAPACITY = 2, /* index: the rank with too many rows; seen: how many */
  DT_LAYER_ERROR_COUNTS = 3,   /* a peer's counts did not come */
  DT_LAYER_ERROR_ARRIVAL = 4,  /* rows of a band did not arrive */
  DT_LAYER_ERROR_ACT = 5,      /* a band's L1 tiles were not finished */
  DT_LAYER_ERROR_SENT = 6,     /* a rank's rows did not arrive */
  DT_LAYER_ERROR_PEER = 7,     /* index gave up */
  DT_LAYER_ERROR_PLAN = 8,     /* the table did not come */
  DT_LAYER_ERROR_STORED = 9,   /* a band's L2 tiles were not stored */
  DT_LAYER_ERROR_COPY = 10,    /* a consumer's copy did not end; index: which */
  DT_LAYER_ERROR_PIPE = 16     /* + a dt_tile_error: a wait inside the engine expired */
} dt_layer_error;

/* What a forward works on. */
typedef struct dt_layer_input {
  const uint8_t *hidden; /* [tokens][hidden] */
  const float *weights;  /* [tokens][top_k] */
  uint8_t *output;       /* [tokens][hidden] */
  int64_t tokens;
} dt_layer_input;

/* Device memory of this rank. The first error stays. */
typedef struct dt_layer_state {
  uint32_t epoch; /* of the last counts published */
  uint32_t error; /* of dt_layer_error */
  int32_t index;
  uint32_t expected, seen;
  uint32_t counted; /* blocks of the counting kernel that are through */
  uint32_t passed,
      passed_target;         /* what covers rows of other ranks: CTA tiles and one, blocks that put, or consumers */
  uint32_t next_task, tasks; /* tickets drawn; L1 and L2 tasks */
  uint32_t fill_0[5];
  int32_t early_tokens;                    /* dedup: of this rank's first, that other ranks have already */
  uint32_t next_piece, pieces, head, puts; /* dispatch: taken, all, those of the dispatch kernel; pieces to put */
  uint32_t slot_error;                     /* of dt_device_plan_error */
  uint32_t next_head;                      /* dedup: pieces that the dispatch kernel has taken */
  uint32_t planned;                        /* epoch whose table is there, where tiles run beside the dispatch kernel */
  uint32_t placed;                         /* blocks that have placed their slots; 0 when counts are published */
  int64_t rows, sent_rows, received_rows, dispatch_rows; /* dispatch_rows: of this rank's tokens to other ranks */
  dt_layer_input input; /* written with the counts, so that no later kernel's parameters change from call to call */
  const int32_t *ids;   /* dedup: [tokens][top_k], input */
} dt_layer_state;

typedef struct dt_tile_layer {
  dt_tile_gemm gemm; /* of L2: a is act, b is down, owners are combine buffers; first, so that the engine sees it */
  CUtensorMap x;     /* ragged view of the expert rows [rows][hidden], boxes of 64 rows */
  CUtensorMap gate, up;
  CUtensorMap act; /* ragged view for stores, boxes of 16 rows */
  int32_t l1_columns, l1_k_blocks;
  uint32_t l1_tiles; /* across L1's output: what a row of a finished band has added to its counter */
  int32_t biases;    /* 1: some of them is not NULL */
  const float *gate_bias, *up_bias, *down_bias;
  float limit, alpha, add; /* act = min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, limit) + add) */
  int32_t signals;         /* 1: tiles count towards `passed` */
  int32_t waits;           /* 0: for no peer and no arrival */
  int32_t crowded;         /* 1: other ranks on this device; see layer_copy.cu */
  int32_t local_rows; /* not 0: L2's rows go to the first local_rows rows of owner `rank`, whatever row_target says */
  int32_t rank, ranks, top_k, bands_max;
  dt_layer_state *state;
  dt_layer_slot *slots;                     /* own, [ranks] by writer */
  dt_layer_slot *peer_slot[DT_LAYER_RANKS]; /* this rank's slot at each peer */
  uint32_t *arrivals[DT_LAYER_RANKS];       /* [2][bands_max] of each rank: rows arrived, by parity of the epoch */
  uint8_t *rows_of[DT_LAYER_RANKS];         /* each rank's expert rows */
  uint8_t *buffers[DT_LAYER_RANKS];         /* each rank's combine buffer */
  uint32_t *act_ready;                      /* [bands_max] */
  uint32_t *stored; /* signal: [bands_max], what L2's tiles of a band have stored: rows, a tile of its l2_tiles at a
                       time; NULL: nobody waits for it */
  const int32_t *band_places; /* signal in paced order: the counter of each band; NULL: they are in natural order */
  uint32_t l2_tiles;          /* across the output */
  int32_t consumers;          /* so many of the CTAs, the last */
  const dt_layer_piece *pieces, *puts;
  const int32_t *slot_of_row, *row_of_slot;
  int32_t beside; /* 1: tiles start while the kernel before them dispatches */
  /* dedup: a token crosses once, into the staging rows of the rank that wants it, which copies it to its expert rows.
   */
  int32_t dedup;
  int32_t experts, staged_rows;     /* experts: per rank; staged_rows: (ranks - 1)*tokens_max */
  int64_t tokens_max;               /* token t of the k-th rank after this one is staging row k*tokens_max + t */
  uint8_t *staging[DT_LAYER_RANKS]; /* each rank's */
  /* [2][bands_max*DT_TILE_M] of each rank, by parity of the epoch: where the row of a band comes from. 0: it is not
   * there yet; i + 1: staging row i, or from staged_rows on own token i - staged_rows. Clear before its epoch. */
  uint32_t *sources[DT_LAYER_RANKS];
  const int32_t *source_base; /* see dt_moe_source_base */
} dt_tile_layer;

cudaError_t dt_tile_layer_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream);
cudaError_t dt_tile_layer_dedup_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream);
/* layer_send.cu: with dedup all tokens to other ranks, and the first pieces. */
cudaError_t dt_layer_send_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream);
/* layer_copy.cu: the first pieces of dispatch (state's head); all puts, whose last block tells the peers if
 * layer->signals; and the reduction, which waits for every rank's rows if layer->waits. */
cudaError_t dt_layer_dispatch_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream);
cudaError_t dt_layer_put_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream);
cudaError_t dt_layer_reduce_launch(const dt_tile_layer *layer, int ctas, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
