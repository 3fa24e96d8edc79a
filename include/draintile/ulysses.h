/* Ulysses attention on Hopper GPUs: the way in, attention and the way out, as one call on a stream.
 *
 *     dt_ulysses_create(&config, &ulysses);              collective
 *     dt_ulysses_run(ulysses, part, q, k, v, stream);    every rank, same order
 *     dt_ulysses_check(ulysses, stream);
 *     ... dt_ulysses_output(ulysses) holds this rank's rows ...
 *     dt_ulysses_destroy(ulysses);                       collective
 *
 * Rows, heads, text and masks as draintile/attention.h defines them; its dt_attention_config says what is computed
 * (workers, consumers, tile_rows, own_lag and the testing fields are not read). Every schedule gives the same bits.
 */
#ifndef DRAINTILE_ULYSSES_H
#define DRAINTILE_ULYSSES_H

#include <stddef.h>

#include <draintile/attention.h>
#include <draintile/comm.h>
#include <draintile/status.h>
#include <draintile/trace.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define DT_ULYSSES_HEADS_MAX 4096 /* of all ranks; a rank has at most DT_CUDA_ATTENTION_HEADS_MAX */

typedef struct dt_ulysses_config {
  size_t size;                   /* sizeof, set by dt_ulysses_config_init */
  dt_comm *comm;                 /* fabric `cuda`, of 1 to 8 ranks; outlives the operator */
  dt_attention_config attention; /* dtype BF16 or F16, head_dim 64, 128 or 256 */
  int32_t sms;                   /* multiprocessors that this rank uses; 0: all */
  int32_t senders;               /* of these, those set aside to send q, k, v while the attention computes; 0: none, its
                                    own CTAs do (head_dim 256: chosen). On every rank, or on none */
  int32_t direct_stores; /* 1: output rows go to other ranks straight from registers; 0: by way of shared memory,
                            as the link takes them, while the next tile is computed (as if 1 where
                            dt_cuda_attention's paced is as if 0: head_dim 256, causal, few keys, and without
                            overlap_in or with senders) */
  double timeout_s;      /* of any wait on the device, below 4,000; 0: 10 */
} dt_ulysses_config;
void dt_ulysses_config_init(dt_ulysses_config *config);

typedef struct dt_ulysses dt_ulysses;

/* Parts of a run; together they are the whole way. */
typedef enum dt_ulysses_part {
  DT_ULYSSES_WHOLE = 0,     /* in, attention, out, by config.attention.schedule and overlap_in */
  DT_ULYSSES_ATTENTION = 1, /* the kernel alone, on what the last DT_ULYSSES_IN or serial run brought in (beside the
                               attention own rows are not moved); output rows stay here */
  DT_ULYSSES_FUSED = 2,     /* attention and the way out, to remote completion */
  DT_ULYSSES_IN = 3         /* the way in, until all heads have arrived */
} dt_ulysses_part;

/* Collective. Allocates windows on the fabric and memory on its device, which the operator owns. DT_ERR_ARGUMENT names
 * the field; DT_ERR_UNSUPPORTED: built without CUDA, or not a Hopper GPU; DT_ERR_MEMORY; DT_ERR_MISMATCH: the ranks'
 * configurations differ. */
dt_status dt_ulysses_create(const dt_ulysses_config *config, dt_ulysses **ulysses);
/* Collective; NULL allowed. No run may be in flight on any rank. */
void dt_ulysses_destroy(dt_ulysses *ulysses);
/* Collective, between runs: only schedule and overlap_in of config->attention are read. Multiprocessors for senders are
 * set aside by what dt_ulysses_create was told, in all runs, so that all give the same bits. */
dt_status dt_ulysses_set_schedule(dt_ulysses *ulysses, const dt_ulysses_config *config);
/* q [rows][H][D], k and v [rows][H_kv][D] of this rank, device memory, 16-byte aligned. No host synchronization, no
 * allocation; may be captured in a CUDA graph. DT_ERR_ARGUMENT names what is wrong; errors of the device and of other
 * ranks come from dt_ulysses_check. */
dt_status dt_ulysses_run(dt_ulysses *ulysses, dt_ulysses_part part, const void *q, const void *k, const void *v,
                         void *stream);
/* Waits for `stream`. DT_OK; DT_ERR_TIMEOUT (names the phase and the rank waited for); DT_ERR_PEER. Sticky. */
dt_status dt_ulysses_check(dt_ulysses *ulysses, void *stream);
/* This rank's rows of the output, device memory [rows][H][D], until its next run. */
void *dt_ulysses_output(dt_ulysses *ulysses);
/* Bytes of device memory that this rank's operator holds, windows included. */
size_t dt_ulysses_device_bytes(const dt_ulysses *ulysses);
/* Tiles of this rank in a run, those cut over keys once. */
int64_t dt_ulysses_tile_count(const dt_ulysses *ulysses);
/* Waits for `stream`. The last whole run, kernel by kernel: the way in (dispatch), the attention from when its ranks
 * had met or all heads had arrived, serial's way out (segment), and waiting for the peers' rows (barrier). The GPU's
 * timer is brought to CLOCK_MONOTONIC by readings, to about 10 us. Valid until the next call. */
dt_status dt_ulysses_spans(dt_ulysses *ulysses, void *stream, const dt_span **spans, size_t *count);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
