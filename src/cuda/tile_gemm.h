/* What host and device share of the tile engine: the task table and the kernel's parameters. */
#ifndef DT_CUDA_TILE_GEMM_H
#define DT_CUDA_TILE_GEMM_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  DT_TILE_OWNERS = 8,
  DT_TILE_M = 128, /* rows of a band */
  DT_TILE_N = 256, /* columns of a tile */
  DT_TILE_K = 64,  /* depth of a stage: one 128-byte row of bf16 */
  DT_TILE_CLUSTER = 2
};

/* Turned tasks (tile_table.h): rows of two bands, in steps of 16, beyond which a pair costs little more. Their views
 * are among the owners', of which there is one: of the output, then of A for each of those numbers of rows. */
enum {
  DT_TURNED_MIN = 144,
  DT_TURNED_MAX = 224,
  DT_TURNED_OUT = 1,
  DT_TURNED_VIEWS = 2 /* to DT_TILE_OWNERS */
};

typedef enum dt_tile_flag {
  DT_TILE_SHARES_ROWS = 1,  /* one band at two columns */
  DT_TILE_NARROW = 2,       /* 128 columns instead of 256 */
  DT_TILE_TURNED = 4,       /* two bands at once, by 128 columns a CTA: see tile_table.h */
  DT_TILE_AMONG_TURNED = 8, /* some task of the table is turned */
  DT_TILE_MEET_SHIFT = 8    /* turned, of two owners: from this bit on the rows before those of the second */
} dt_tile_flag;

/* What one ticket hands to a cluster of two CTAs: a tile each. Either two bands of an expert at one column (the CTAs
 * share B), or one band at two columns (they share A), or turned: two bands at the halves of a column (they share A).
 * 32 bytes, two 16-byte words. */
typedef struct dt_tile_task {
  int32_t row[2];     /* first row of each CTA's band */
  uint16_t rows[2];   /* valid rows, to 128, turned to DT_TURNED_MAX; 0: of a cut task */
  uint16_t column[2]; /* in halves of a tile */
  int32_t expert;     /* -1: no more tasks */
  int32_t flags;      /* of dt_tile_flag */
  uint32_t ticket;    /* set when drawn: rises from task to task of a cluster */
  int32_t band;       /* of CTA 0, among all experts' bands; CTA 1's is the next unless they share rows */
} dt_tile_task;

/* Start of the workspace; the table follows at DT_TILE_TABLE_OFFSET. */
typedef struct dt_tile_header {
  uint32_t next, count; /* tickets drawn, tasks */
  uint32_t error;       /* sticky: a dt_tile_error, 0: none */
  uint32_t rows;        /* of all experts */
} dt_tile_header;
enum { DT_TILE_TABLE_OFFSET = 128 };

typedef enum dt_tile_error {
  DT_TILE_OK = 0,
  DT_TILE_ERROR_ROWS = 1,     /* counts negative, or their sum above the capacity */
  DT_TILE_ERROR_FULL = 2,     /* a consumer's wait for a stage expired */
  DT_TILE_ERROR_EMPTY = 3,    /* the loader's wait for a free stage expired */
  DT_TILE_ERROR_TICKET = 4,   /* a wait for a ticket expired */
  DT_TILE_ERROR_SLOT = 5,     /* the ticket warp's wait for a free slot expired */
  DT_TILE_ERROR_SEQUENCE = 6, /* a ticket did not rise: a slot was overwritten too early */
  DT_TILE_ERROR_DONE = 7,     /* the release warp's wait for a tile's stores expired */
  DT_TILE_ERROR_COPY = 8      /* of a layer: a row's way into shared memory took too long */
} dt_tile_error;

/* A ragged view lets a box end anywhere. It has a dimension more than the matrix, of the box's height h, with the same
 * stride as the rows: element (z, y) is row z + y - h. A box of h rows that starts at (row + h - skip, skip) holds the
 * h - skip rows from `row` on; its other rows lie outside the view, so they load as zeros and are not stored. */
typedef struct dt_tile_gemm {
  CUtensorMap a;                      /* ragged view of [rows][K], boxes of 64 rows by 64 columns */
  CUtensorMap b;                      /* [experts][N][K], boxes of 128 rows by 64 columns */
  CUtensorMap owners[DT_TILE_OWNERS]; /* ragged views of each owner's [rows][N], boxes of 16 rows by 64 columns */
  dt_tile_header *header;
  const dt_tile_task *tasks;
  uint8_t *owner_rows[DT_TILE_OWNERS]; /* row r of an owner is at owner_rows + r*row_bytes */
  const uint64_t *row_target;          /* NULL: row r goes to row r of owner 0. Or for each row owner << 32 | its row */
  int64_t row_bytes;
  uint32_t owners_count;     /* rows of other owners go nowhere. Where tasks may be turned it is 1; the next view is
                                of owner 0's rows too, in boxes of 64 rows by 16 columns, the others plain ones of A,
                                in boxes of 72, 80, ... 112 rows by 64 columns */
  uint32_t *ready;           /* NULL, or a counter a band: each tile adds its valid rows, once for each half of its
                                  columns, when they are stored */
  uint32_t timeout_us;       /* of any wait inside the kernel */
  int32_t columns, k_blocks; /* N; K in stages */
  int32_t tensor_stores;     /* 1: whole 16-row slabs leave through the copy engine */
} dt_tile_gemm;

typedef struct dt_tile_table {
  dt_tile_header *header;
  dt_tile_task *tasks;
  const int32_t *counts;                         /* [experts] rows of each expert, on the device */
  int32_t experts, rows_capacity, column_tiles;  /* column_tiles: of N */
  int32_t raster_bands, clusters, whole_columns; /* whole_columns: N is a multiple of 256 */
  int32_t mixes, turns;                          /* natural order: experts may be mixed, tasks turned */
  int32_t split;                                 /* turned tasks' rows may be two owners' (tile_split.h) */
  int32_t k, link_k;                             /* of dt_cuda_gemm */
} dt_tile_table;

/* Experts that fit the table kernel's shared memory. */
enum { DT_TILE_EXPERTS_MAX = 4000 };

cudaError_t dt_tile_gemm_launch(const dt_tile_gemm *gemm, int ctas, cudaStream_t stream);
/* The same where tasks may be turned: all rows leave through the copy engine, to owner 0. */
cudaError_t dt_tile_turned_launch(const dt_tile_gemm *gemm, int ctas, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
