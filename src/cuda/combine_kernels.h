/* What host and device share of the combine operator's own kernels. */
#ifndef DT_CUDA_COMBINE_KERNELS_H
#define DT_CUDA_COMBINE_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_COMBINE_RANKS = 8, DT_COMBINE_THREADS = 64, DT_COMBINE_CHUNK_BYTES = 131072 };

/* What one rank tells another, in the other's control window: one writer, a sector a word. Epochs are compared by
 * their difference, so that they may pass 2^32. */
typedef struct dt_combine_slot {
  uint32_t entered; /* epoch whose stores the reader's buffer is open for */
  uint32_t fill_0[7];
  uint32_t arrived; /* epoch whose rows are all in the reader's buffer */
  uint32_t fill_1[7];
  uint32_t failed; /* not 0: the writer gave up, for good */
  uint32_t fill_2[15];
} dt_combine_slot;

typedef enum dt_combine_error {
  DT_COMBINE_ERROR_NONE = 0,
  DT_COMBINE_ERROR_ENTRY = 1,   /* a peer did not enter */
  DT_COMBINE_ERROR_READY = 2,   /* a band did not become ready */
  DT_COMBINE_ERROR_ARRIVAL = 3, /* a peer's rows did not arrive */
  DT_COMBINE_ERROR_PEER = 4,    /* a peer gave up */
  DT_COMBINE_ERROR_GEMM = 5,    /* the GEMM's workspace says why */
  DT_COMBINE_ERROR_PLAN = 6,    /* seen: a dt_device_plan_error */
  DT_COMBINE_ERROR_BUFFER = 7,  /* index: a rank whose buffer holds `expected` rows, not `seen` */
  DT_COMBINE_ERROR_COPY = 8     /* a consumer's copy did not end; index: which */
} dt_combine_error;

/* This rank's state, device memory. The first error stays. */
typedef struct dt_combine_state {
  uint32_t epoch, done; /* done: consumers, or clusters of tiles, of this epoch that have sent all they had */
  uint32_t opened;      /* the epoch that the peers were told of last */
  uint32_t error;       /* of dt_combine_error */
  int32_t index;        /* the rank or band waited for */
  uint32_t expected, seen;
} dt_combine_state;

/* A piece of a segment: consecutive rows to one owner, ready when its bands are. 32 bytes. */
typedef struct dt_combine_chunk {
  int32_t row, rows; /* in the staging buffer */
  int32_t owner, first_band;
  int64_t dst_row;
  int32_t bands, fill;
} dt_combine_chunk;

/* Owners of `staged`: where the GEMM puts rows that another rank owns. */
enum { DT_COMBINE_OWN = 0, DT_COMBINE_STAGING = 1 };
/* The target of a padded row: no owner has this number. */
#define DT_COMBINE_NOWHERE UINT64_MAX

typedef struct dt_combine_sizes {
  int32_t bands, chunks;
} dt_combine_sizes;

/* The plan as the kernels need it: made on the host (combine_tables.c) or on the device (combine_plan.cu). */
typedef struct dt_combine_device_tables {
  dt_combine_sizes *sizes;
  int32_t *counts;           /* [experts] memory rows of each; only by the host */
  int32_t *active;           /* [experts] what the GEMM reads: counts, or 0 after an error */
  int32_t *remote_rows;      /* [experts] those of other ranks, padding included */
  int32_t *band_rows;        /* [bands] rows that the GEMM multiplies */
  int32_t *band_slot;        /* [bands] place of its counter in `ready` */
  uint64_t *staged, *direct; /* [rows], owner << 32 | row: own rows to the buffer and others' to the staging; all rows
                                to their owners' buffers */
  dt_combine_chunk *chunks;  /* in segment order */
} dt_combine_device_tables;

/* Makes a fault, for tests that must see it. */
typedef enum dt_combine_fault {
  DT_COMBINE_FAULT_NONE = 0,
  DT_COMBINE_FAULT_ARRIVED = 1, /* publishes the arrival of rows before they are stored */
  DT_COMBINE_FAULT_READY = 2    /* bands count as ready before they are stored */
} dt_combine_fault;

typedef struct dt_combine_params {
  int32_t rank, ranks, experts, fault;
  int32_t meets;                   /* 1: the entry waits for every peer; 0: whoever stores to a peer does */
  int32_t opens;                   /* 1: no kernel before this one has opened the run's epoch */
  uint32_t timeout_us, band_parts; /* band_parts: what a row adds to its band's counter, 2 * ceil(n / 256) */
  int64_t row_bytes;
  dt_combine_state *state;
  const uint32_t *gemm_error;                   /* in the GEMM's workspace */
  dt_combine_slot *slots;                       /* own, [ranks] by writer */
  dt_combine_slot *peer_slot[DT_COMBINE_RANKS]; /* this rank's slot at each peer */
  const int32_t *own_counts;                    /* NULL: the plan is the host's. Else [ranks*experts], this rank's */
  int32_t *matrix[DT_COMBINE_RANKS];            /* [ranks][ranks*experts] at every rank: one writer a row */
  uint8_t *buffers[DT_COMBINE_RANKS];           /* combine buffers */
  int64_t buffer_rows[DT_COMBINE_RANKS];
  const uint8_t *staging;
  uint32_t *ready; /* [bands] */
  dt_combine_device_tables tables;
} dt_combine_params;

/* Opens the epoch: clears the counters, tells every peer (with own_counts: also those); with `meets` waits for every
 * peer. */
cudaError_t dt_combine_enter_launch(const dt_combine_params *params, cudaStream_t stream);
/* Nothing, shaped as a consumer. A stream's first launch may wait for kernels under way, also for one that waits, on
 * the same device, for this rank's consumers. */
cudaError_t dt_combine_warm_launch(cudaStream_t stream);
/* `ctas` (even) put all chunks, waiting for their bands if wait_ready; the last to end closes the epoch. */
cudaError_t dt_combine_send_launch(const dt_combine_params *params, int ctas, int wait_ready, cudaStream_t stream);
/* Closes the epoch after kernels before it on the stream stored to the peers. */
cudaError_t dt_combine_leave_launch(const dt_combine_params *params, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
