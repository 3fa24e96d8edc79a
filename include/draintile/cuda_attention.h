/* Attention forward on a Hopper GPU: the kernel alone, on one rank's heads and the whole sequence.
 *
 * out[i][h] = sum over j of softmax_j(scale * q[i][h] . k[j][h']) * v[j][h'], h' = h*kv_heads/heads. bf16 or fp16 in
 * and out, float32 scores, softmax and accumulate. Output rows go where `owners` says: this device or peers' memory.
 */
#ifndef DRAINTILE_CUDA_ATTENTION_H
#define DRAINTILE_CUDA_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>
#include <draintile/weights.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define DT_CUDA_ATTENTION_OWNERS_MAX 16  /* runs of output rows: two (text, image) for each of 8 ranks */
#define DT_CUDA_ATTENTION_HEADS_MAX 1024 /* and so many kv_heads */

/* Rows [first, first + rows) of the sequence go to [rows][row_stride] at `out` (element 0 of this rank's first head),
 * head h at + h*head_dim. Memory of this device or mapped memory of another. Not causal: where a run follows
 * the one before it in the sequence, a tile may go over from one to the other. */
typedef struct dt_cuda_attention_owner {
  int64_t first, rows;
  void *out;
  int64_t row_stride; /* elements between rows; a multiple of 8 */
  int32_t remote;     /* 1: its tiles come before those of runs with 0 */
  int32_t away;       /* 1: another device's memory */
} dt_cuda_attention_owner;

/* Device pointers, 16-byte aligned; strides in elements, multiples of 8. */
typedef struct dt_cuda_attention {
  size_t size;                         /* sizeof, set by dt_cuda_attention_init */
  const void *q, *k, *v;               /* [tokens][heads][head_dim]; [kv_tokens][kv_heads][head_dim] twice */
  int64_t q_row_stride, kv_row_stride; /* 0: heads*head_dim, kv_heads*head_dim */
  dt_dtype dtype;                      /* DT_DTYPE_BF16 or DT_DTYPE_F16 */
  int64_t tokens, kv_tokens;
  int32_t heads, kv_heads;   /* kv_heads divides heads, unless head_to_kv says otherwise */
  const int32_t *head_to_kv; /* host, [heads], copied; NULL: h*kv_heads/heads */
  int32_t head_dim;          /* 64, 128 or 256 */
  int32_t causal;            /* 1: row i sees rows up to i + kv_tokens - tokens of k */
  float scale;               /* NaN, as initialized: 1/sqrt(head_dim) */
  dt_cuda_attention_owner owners[DT_CUDA_ATTENTION_OWNERS_MAX];
  int32_t owners_count;    /* the runs must cover [0, tokens) */
  const uint32_t *arrived; /* NULL, or [heads]: a head's tiles wait (acquire, system scope) until its word, */
  uint32_t arrived_target; /* compared by difference, has reached the target */
  const uint32_t *arrived_target_from; /* NULL, or device memory that holds the target instead (graph replays) */
  int32_t arrived_gates_stores;        /* 1: operands are there; head 0's word is waited for before rows are stored */
  /* Not causal, head_dim 64 and 128. Of lead_heads heads at a time, 1 if that is 0, the tiles that begin in the first
   * lead_rows rows come before the others, head by head; below 0: those that begin in the last -lead_rows rows; 0: each
   * head's in order. */
  int64_t lead_rows;
  int32_t lead_heads;
  int32_t paced;    /* 1: rows of runs that are away are stored as the link takes them, by a kernel in which dt_ulysses
                       enters; as if 0 by others, with head_dim 256, causal, and where there are so few keys that a tile
                       is over before the rows of the one before */
  int32_t sms;      /* multiprocessors to use; 0: all */
  double timeout_s; /* of a wait inside the kernel, below 4,000; 0: 10 */
} dt_cuda_attention;
void dt_cuda_attention_init(dt_cuda_attention *attention);

/* *bytes: device memory, 128-byte aligned, that one call in flight needs; zero it once before its first use.
 * DT_ERR_ARGUMENT names the field. */
dt_status dt_cuda_attention_workspace(const dt_cuda_attention *attention, size_t *bytes);
/* Queues the kernel on `stream` (a cudaStream_t) of the current device; may be captured. When it has ended, all its
 * stores, to peers too, are performed; visibility to a peer needs a release after it. With `arrived` it may begin while
 * the launch before it on the stream still runs: two of this function in a row then need a workspace each.
 * DT_ERR_ARGUMENT names the field; DT_ERR_UNSUPPORTED: not a Hopper GPU. */
dt_status dt_cuda_attention_forward(const dt_cuda_attention *attention, void *workspace, void *stream);
/* Waits for `stream`; DT_OK, DT_ERR_TIMEOUT (the detail names the wait), DT_ERR_PEER (another kernel ended it, since
 * what it waited for will not come) or DT_ERR_INTERNAL. */
dt_status dt_cuda_attention_check(const void *workspace, void *stream);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
