/* What a configuration means: agreement of the ranks, checks, the layout and its shares. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "cpu/attention.h"

void dt_attention_config_init(dt_attention_config *config) {
  *config = (dt_attention_config){.size = sizeof(*config),
                                  .dtype = DT_DTYPE_F32,
                                  .scale = NAN,
                                  .schedule = DT_ATTENTION_PIGGYBACK,
                                  .overlap_in = 1,
                                  .tile_rows = 128,
                                  .workers = 1,
                                  .consumers = 1};
}

const char *dt_attention_schedule_name(dt_attention_schedule schedule) {
  static const char *const names[] = {"serial", "piggyback"};
  return (unsigned)schedule < 2 ? names[schedule] : "unknown";
}

static int64_t bits_of(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

dt_status dt_attention_agree(dt_comm *comm, const dt_attention_config *config) {
  const dt_agree_field fields[] = {
      {"tokens", config->tokens},
      {"kv_tokens", config->kv_tokens},
      {"heads", config->heads},
      {"kv_heads", config->kv_heads},
      {"head_dim", config->head_dim},
      {"text_tokens", config->text_tokens},
      {"text", (int64_t)config->text},
      {"dtype", (int64_t)config->dtype},
      {"causal", config->causal},
      {"scale (bits)", bits_of(config->scale)},
      {"schedule", (int64_t)config->schedule},
      {"overlap_in", config->overlap_in},
      {"tile_rows", config->tile_rows},
      {"own_lag", config->own_lag},
      /* these may differ, but all ranks must accept their own */
      {"workers (1 to 1024)", config->workers >= 1 && config->workers <= 1024},
      {"consumers (0 to 1024)", config->consumers >= 0 && config->consumers <= 1024},
  };
  return dt_comm_agree(comm, fields, sizeof(fields) / sizeof(fields[0]));
}

dt_status dt_attention_check_schedule(const dt_attention_config *config) {
  if ((unsigned)config->schedule > DT_ATTENTION_PIGGYBACK)
    return dt_fail(DT_ERR_ARGUMENT, "schedule: %d; allowed: 0 (serial), 1 (piggyback)", (int)config->schedule);
  if (config->overlap_in < 0 || config->overlap_in > 1)
    return dt_fail(DT_ERR_ARGUMENT, "overlap_in: %d; allowed: 0, 1", config->overlap_in);
  if (config->delay_max_us < 0)
    return dt_fail(DT_ERR_ARGUMENT, "delay_max_us: %d; allowed: 0 or more", config->delay_max_us);
  return DT_OK;
}

dt_status dt_attention_layout(const dt_attention_config *config, int32_t ranks, dt_ulysses_layout *u) {
  *u = (dt_ulysses_layout){.ranks = ranks,
                           .heads = config->heads,
                           .kv_heads = config->kv_heads,
                           .head_dim = config->head_dim,
                           .tokens = config->tokens,
                           .kv_tokens = config->kv_tokens,
                           .text_tokens = config->text_tokens,
                           .text_replicated = config->text == DT_ATTENTION_TEXT_REPLICATED,
                           .causal = config->causal,
                           .tile_rows = config->tile_rows,
                           .own_lag = config->own_lag};
  if (config->size != sizeof(*config))
    return dt_fail(DT_ERR_ARGUMENT, "size: %zu; must be %zu, set by dt_attention_config_init", config->size,
                   sizeof(*config));
  if (config->dtype != DT_DTYPE_F32 && config->dtype != DT_DTYPE_BF16 && config->dtype != DT_DTYPE_F16)
    return dt_fail(DT_ERR_ARGUMENT, "dtype: %d; allowed: f32, bf16, f16", (int)config->dtype);
  if ((unsigned)config->text > DT_ATTENTION_TEXT_REPLICATED)
    return dt_fail(DT_ERR_ARGUMENT, "text: %d; allowed: 0 (sharded), 1 (replicated)", (int)config->text);
  if (config->causal < 0 || config->causal > 1)
    return dt_fail(DT_ERR_ARGUMENT, "causal: %d; allowed: 0, 1", config->causal);
  if (isinf(config->scale)) return dt_fail(DT_ERR_ARGUMENT, "scale: infinite; allowed: finite values");
  return dt_ulysses_init(u);
}

static dt_status check_rank(int32_t ranks, int32_t rank) {
  if (rank < 0 || rank >= ranks) return dt_fail(DT_ERR_ARGUMENT, "rank: %d; allowed: 0 to %d", rank, ranks - 1);
  return DT_OK;
}

dt_status dt_attention_rows_in(const dt_attention_config *config, int32_t ranks, int32_t rank, int kv,
                               dt_attention_rows runs[2]) {
  dt_ulysses_layout u;
  dt_status status = dt_attention_layout(config, ranks, &u);
  if (!status) status = check_rank(ranks, rank);
  for (int part = 0; !status && part < DT_ULYSSES_PARTS; part++) {
    dt_ulysses_rows run = dt_ulysses_held(&u, kv ? u.kv_tokens : u.tokens, rank, part);
    runs[part] = (dt_attention_rows){.first = run.first, .rows = run.rows, .local = run.local};
  }
  return status;
}

dt_status dt_attention_rows_out(const dt_attention_config *config, int32_t ranks, int32_t rank,
                                dt_attention_rows runs[2]) {
  dt_ulysses_layout u;
  dt_status status = dt_attention_layout(config, ranks, &u);
  if (!status) status = check_rank(ranks, rank);
  for (int part = 0; !status && part < DT_ULYSSES_PARTS; part++) {
    dt_ulysses_rows run = dt_ulysses_owned(&u, u.tokens, rank, part);
    runs[part] = (dt_attention_rows){.first = run.first, .rows = run.rows, .local = run.local};
  }
  return status;
}

dt_status dt_attention_heads(const dt_attention_config *config, int32_t ranks, int32_t rank, int32_t *first,
                             int32_t *count, int32_t *kv_first, int32_t *kv_count) {
  dt_ulysses_layout u;
  dt_status status = dt_attention_layout(config, ranks, &u);
  if (!status) status = check_rank(ranks, rank);
  if (status) return status;
  *first = u.head_first[rank];
  *count = dt_ulysses_head_count(&u, rank);
  *kv_first = dt_ulysses_kv_first(&u, rank);
  *kv_count = dt_ulysses_kv_count(&u, rank);
  return DT_OK;
}
