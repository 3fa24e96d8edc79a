/* Ulysses attention whose all-to-alls hide behind the attention itself.
 *
 *     dt_attention_create(comm, &config, &attention);
 *     dt_attention_forward(attention, &input, &stats);    any number of times
 *     dt_attention_output(attention)                      this rank's rows of the result, until its next forward
 *     dt_attention_destroy(attention);
 *
 * Outside, tokens are sharded: rank r holds some rows of all heads. Inside, heads are: rank r attends with some heads
 * over all rows. One all-to-all brings the rows of q, k, v to the ranks of their heads, another brings the outputs back
 * (DeepSpeed-Ulysses, arXiv 2309.14509). `piggyback` stores each tile of the output to the rank that owns its rows as
 * soon as it is computed, so that it drains behind the next tile (X-Stage, arXiv 2607.23264, its second application).
 * Every schedule gives the same bits. docs/attention.md defines rows, heads and masks.
 */
#ifndef DRAINTILE_ATTENTION_H
#define DRAINTILE_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/comm.h>
#include <draintile/status.h>
#include <draintile/trace.h>
#include <draintile/weights.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct dt_attention dt_attention;

typedef enum dt_attention_schedule {
  DT_ATTENTION_SERIAL = 0,   /* all-to-all in, attention, all-to-all out, with barriers between */
  DT_ATTENTION_PIGGYBACK = 1 /* output tiles stored to their owners by the worker that computed them */
} dt_attention_schedule;
const char *dt_attention_schedule_name(dt_attention_schedule schedule); /* "serial", "piggyback" */

/* Where the text of a joint text and image sequence lies; it is always first in the sequence. Outputs of text rows are
 * sharded in both cases, so that each is computed and moved once. */
typedef enum dt_attention_text {
  DT_ATTENTION_TEXT_SHARDED = 0,   /* each rank holds its block of the text, then its block of the image */
  DT_ATTENTION_TEXT_REPLICATED = 1 /* each rank holds all of the text, then its block of the image */
} dt_attention_text;

/* Ranks must agree on every field but workers, consumers and the testing ones. */
typedef struct dt_attention_config {
  size_t size;               /* sizeof, set by dt_attention_config_init */
  dt_dtype dtype;            /* of q, k, v, the output and everything exchanged: F32, BF16 or F16 */
  int64_t tokens, kv_tokens; /* S, S_kv: of the whole sequence */
  int32_t heads, kv_heads;   /* H at least the ranks; H_kv a divisor of H: query head h uses key head h*H_kv/H */
  int32_t head_dim;          /* D */
  int64_t text_tokens;       /* of both S and S_kv; 0: no text apart */
  dt_attention_text text;
  int32_t causal; /* 1: row i of q sees rows up to i + S_kv - S of k (aligned at the last row) */
  float scale;    /* of the scores; NaN, as initialized: 1/sqrt(D) */
  dt_attention_schedule schedule;
  int32_t overlap_in;  /* piggyback: 1, as initialized: the first heads compute while later ones arrive */
  int32_t tile_rows;   /* rows of q in a tile, at most */
  int32_t own_lag;     /* heads by which the tiles of own rows of a head follow its remote ones; 0, as initialized */
  int32_t workers;     /* threads of this rank that compute */
  int32_t consumers;   /* threads of this rank that carry q, k, v; 0: the workers do it first */
  uint64_t delay_seed; /* testing: nonzero injects random delays in every thread */
  int32_t delay_max_us;
  int32_t publish_early; /* testing only, a negative control: counters before stores */
} dt_attention_config;
void dt_attention_config_init(dt_attention_config *config);

/* Collective. comm is borrowed until dt_attention_destroy. DT_ERR_ARGUMENT, DT_ERR_MISMATCH (every rank, naming the
 * field), DT_ERR_MEMORY, DT_ERR_SYSTEM (no thread), and what the fabric returns. Sets *attention only on success. */
dt_status dt_attention_create(dt_comm *comm, const dt_attention_config *config, dt_attention **attention);
void dt_attention_destroy(dt_attention *attention); /* collective, unless a forward failed; NULL allowed */

/* Collective: for the following forwards. Only schedule, overlap_in and the testing fields of config are read.
 * DT_ERR_ARGUMENT, DT_ERR_MISMATCH: the old schedule stays. */
dt_status dt_attention_set_schedule(dt_attention *attention, const dt_attention_config *config);

/* Consecutive rows of the whole sequence that one rank holds; text and image are one run each. */
typedef struct dt_attention_rows {
  int64_t first, rows; /* of the sequence */
  int64_t local;       /* place of the first one among the rank's own rows */
} dt_attention_rows;
/* The rows of q (S) or of k and v (S_kv) that `rank` passes in, and the rows of the output that it gets: two runs,
 * text and image, either of which may be empty. config as for dt_attention_create. DT_ERR_ARGUMENT. */
dt_status dt_attention_rows_in(const dt_attention_config *config, int32_t ranks, int32_t rank, int kv,
                               dt_attention_rows runs[2]);
dt_status dt_attention_rows_out(const dt_attention_config *config, int32_t ranks, int32_t rank,
                                dt_attention_rows runs[2]);
/* The query heads that `rank` computes, and the key and value heads that these need. A key head that two ranks need is
 * sent to both. DT_ERR_ARGUMENT. */
dt_status dt_attention_heads(const dt_attention_config *config, int32_t ranks, int32_t rank, int32_t *first,
                             int32_t *count, int32_t *kv_first, int32_t *kv_count);

/* This rank's rows, text run then image run: q [rows][H][D], k and v [rows][H_kv][D]. */
typedef struct dt_attention_input {
  const void *q, *k, *v;
} dt_attention_input;

/* Seconds, on this rank; stage times of `serial` lie between barriers, so they cover the slowest rank. */
typedef struct dt_attention_stats {
  double total_s;                /* input ready to output complete, entry barrier included */
  double in_s, compute_s, out_s; /* serial only, else 0 */
  int64_t tiles;
  uint64_t bytes_sent; /* off this rank */
} dt_attention_stats;

/* Collective; stats may be NULL. DT_ERR_ARGUMENT (this rank's input), DT_ERR_TIMEOUT, DT_ERR_PEER, DT_ERR_MEMORY. An
 * error is sticky across ranks: later forwards return it too. */
dt_status dt_attention_forward(dt_attention *attention, const dt_attention_input *input, dt_attention_stats *stats);
/* [rows][H][D] of dtype, the runs of dt_attention_rows_out one after the other. */
const void *dt_attention_output(const dt_attention *attention);

/* The spans of the last forward on this rank, always recorded. Valid until the next forward. */
void dt_attention_spans(const dt_attention *attention, const dt_span **spans, size_t *count);

/* Rows [first, first + rows) of the result in float64: out[rows][H][D] from the whole q [S][H][D] and k, v
 * [S_kv][H_kv][D]. For checks. DT_ERR_ARGUMENT, DT_ERR_MEMORY. */
dt_status dt_attention_reference(const dt_attention_config *config, const void *q, const void *k, const void *v,
                                 int64_t first, int64_t rows, double *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
