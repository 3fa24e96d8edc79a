/* What host and device share of the attention kernel: its parameters and work items. See docs/attention_cuda.md. */
#ifndef DT_CUDA_ATTENTION_KERNEL_H
#define DT_CUDA_ATTENTION_KERNEL_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#include <draintile/cuda_attention.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DT_ATTENTION_HEADS_MAX = 1024,
  DT_ATTENTION_CTAS_MAX = 192,
  DT_ATTENTION_PIECES = 2 /* of a CTA */
};

/* A run of rows as the kernel takes it. Its tiles are those that start in it: where the next run lies behind it, the
 * last of them may end there, and the next run's tiles start behind that. tiles_end counts the tiles of its group up to
 * and with this run's, one head. */
typedef struct dt_attention_run {
  uint8_t *out; /* of the run's first row, head 0 */
  int64_t row_bytes;
  int32_t first, rows, tiles_end, tiles;
  int32_t start, end; /* of the first tile; of the runs that lie one behind the other */
} dt_attention_run;

/* Runs whose tiles go before those of the next group: remote ones, then local ones. */
typedef struct dt_attention_group {
  int32_t tiles;          /* of all heads */
  int32_t tiles_per_head; /* of all its runs */
  int32_t runs_begin, runs_end;
} dt_attention_group;

/* Part of a tile: some of its KV blocks. `pieces` of them, in as many CTAs, are merged through scratch memory. */
typedef struct dt_attention_piece {
  int32_t tile;                 /* in the kernel's order */
  uint16_t block_first, blocks; /* 0 blocks: no piece */
  uint16_t merge;               /* number of the cut tile */
  uint16_t scratch;             /* slab of the tile's first piece */
  uint8_t piece, pieces;
} dt_attention_piece;

/* Start of the workspace; all zero before and after every launch but for the error. */
typedef struct dt_attention_header {
  uint32_t next, done;        /* tickets drawn (causal); CTAs that drew their last */
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
  DT_ATTENTION_ERROR_CARRY = 9
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
enum { DT_ATTENTION_CARRY_BYTES = 16384, DT_ATTENTION_CARRY_STAGES = 2, DT_ATTENTION_CARRY_RANKS = 8 };
typedef struct dt_attention_carry {
  CUtensorMap from[3];
  const CUtensorMap *to; /* device memory */
  const dt_attention_carried *items;
  int32_t count;
  uint32_t *ticket;                            /* the next item; 0 before the launch */
  const uint32_t *gate, *gate_target;          /* nothing is stored before the one, by difference, is at the other */
  uint32_t *arrived[DT_ATTENTION_CARRY_RANKS]; /* words at each rank */
} dt_attention_carry;

typedef struct dt_attention_kernel {
  CUtensorMap q, k, v; /* [tokens][heads][D], boxes of 64 columns by the rows of a warpgroup or a block */
  dt_attention_run runs[DT_CUDA_ATTENTION_OWNERS_MAX + 1]; /* the last: read for rows that do not exist */
  dt_attention_group groups[2];
  dt_attention_header *header;
  float *scratch;
  const uint32_t *arrived, *arrived_target_from;
  uint32_t arrived_target;
  int32_t arrived_gates_stores; /* waited for before the first store, not before a head's first load */
  uint32_t timeout_us;
  int32_t heads, kv_heads, kv_tokens;
  int32_t causal_offset; /* causal: row i sees columns below i + causal_offset + 1 */
  int32_t cut_tiles;     /* the first so many of the order are cut into pieces, which come before all else */
  int32_t head_section;  /* heads whose tiles take turns */
  int32_t mapped;        /* head_to_kv holds */
  float scale_log2;      /* scale * log2(e) */
  dt_attention_carry carry;
  uint16_t head_to_kv[DT_ATTENTION_HEADS_MAX];
  dt_attention_piece pieces[DT_ATTENTION_CTAS_MAX][DT_ATTENTION_PIECES];
} dt_attention_kernel;

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

/* Fills the schedule of `kernel` (runs, groups, pieces, head_section) for CTAs `ctas`. Pure. */
void dt_attention_plan(const dt_cuda_attention *attention, const dt_attention_shape *shape, int32_t cut, int32_t ctas,
                       dt_attention_kernel *kernel);
dt_attention_shape dt_attention_shape_of(const dt_cuda_attention *attention);

/* Also carries, unless `carry` is NULL; head_dim 64 or 128. */
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
