#include "cpu/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/error.h"

void dt_moe_config_init(dt_moe_config *config) {
  *config = (dt_moe_config){.size = sizeof(*config),
                            .dtype = DT_DTYPE_F32,
                            .workers = 1,
                            .consumers = 1,
                            .schedule = DT_SCHEDULE_SIGNAL,
                            .layout = DT_LAYOUT_PACKED,
                            .order = (dt_order)-1,
                            .tile_m = 128};
}

/* Unreserved anonymous pages: a buffer is sized for the worst routing and pays only for the rows that come. */
void *dt_pages_alloc(size_t bytes) {
  void *pages =
      mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pages == MAP_FAILED ? NULL : pages;
}

void dt_pages_free(void *pages, size_t bytes) {
  if (pages) munmap(pages, bytes ? bytes : 1);
}

static int64_t bits_of(float value) {
  int32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static dt_status agree_on_layer(dt_comm *comm, const dt_moe_config *config, const dt_moe_weights *weights) {
  const dt_agree_field fields[] = {
      {"hidden", weights->hidden},
      {"intermediate", weights->intermediate},
      {"experts_per_rank", weights->experts_per_rank},
      {"activation", (int64_t)weights->activation},
      {"activation_alpha", bits_of(weights->activation_alpha)},
      {"activation_limit", bits_of(weights->activation_limit)},
      {"shared_intermediate", weights->shared_intermediate},
      {"dtype", (int64_t)config->dtype},
      {"top_k", config->top_k},
      {"max_tokens", config->max_tokens},
      {"max_rows", config->max_rows},
      {"schedule", (int64_t)config->schedule},
      {"layout", (int64_t)config->layout},
      {"order", (int64_t)(int32_t)config->order},
      {"tile_m", config->tile_m},
      {"tile_n", config->tile_n},
      {"segment_bands", config->segment_bands},
      {"raster_bands", config->raster_bands},
      {"lead", config->lead},
      {"wave_experts", config->wave_experts},
      {"group_tasks", config->group_tasks},
      /* these may differ, but all ranks must accept their own */
      {"workers (at least 1)", config->workers >= 1},
      {"consumers (at least 1 for signal, else 0)",
       config->consumers >= (config->schedule == DT_SCHEDULE_SIGNAL ? 1 : 0)},
      {"experts (matrices of the layer's sizes)", dt_check_weights(weights) == DT_OK},
  };
  return dt_comm_agree(comm, fields, sizeof(fields) / sizeof(fields[0]));
}

static dt_status check_schedule(const dt_moe_config *config) {
  if ((unsigned)config->schedule > DT_SCHEDULE_ALTERNATE)
    return dt_fail(DT_ERR_ARGUMENT, "schedule: %d; allowed: 0 to %d", (int)config->schedule, DT_SCHEDULE_ALTERNATE);
  if ((int32_t)config->order < -1 || (int32_t)config->order > (int32_t)DT_ORDER_PACED)
    return dt_fail(DT_ERR_ARGUMENT, "order: %d; allowed: 0 to %d, or -1 for the schedule's", (int)config->order,
                   DT_ORDER_PACED);
  const struct {
    const char *name;
    int32_t value;
  } fields[] = {{"segment_bands", config->segment_bands},
                {"raster_bands", config->raster_bands},
                {"lead", config->lead},
                {"wave_experts", config->wave_experts},
                {"group_tasks", config->group_tasks},
                {"delay_max_us", config->delay_max_us}};
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
    if (fields[i].value < 0)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %d; allowed: 0 or more", fields[i].name, fields[i].value);
  }
  if (config->schedule == DT_SCHEDULE_SIGNAL && config->consumers < 1)
    return dt_fail(DT_ERR_ARGUMENT, "consumers: %d; signal needs at least 1", config->consumers);
  return DT_OK;
}

static dt_status check_config(const dt_moe_config *config, const dt_moe_weights *weights, int32_t ranks) {
  if (config->dtype != DT_DTYPE_F32 && config->dtype != DT_DTYPE_BF16 && config->dtype != DT_DTYPE_F16)
    return dt_fail(DT_ERR_ARGUMENT, "dtype: %d; allowed: f32, bf16, f16", (int)config->dtype);
  if (weights->hidden < 1 || weights->hidden > INT32_MAX / 8)
    return dt_fail(DT_ERR_ARGUMENT, "hidden: %lld; allowed: 1 to %d", (long long)weights->hidden, INT32_MAX / 8);
  if (weights->intermediate < 1 || weights->intermediate > INT32_MAX / 8)
    return dt_fail(DT_ERR_ARGUMENT, "intermediate: %lld; allowed: 1 to %d", (long long)weights->intermediate,
                   INT32_MAX / 8);
  if (weights->shared_intermediate < 0 || weights->shared_intermediate > INT32_MAX / 8)
    return dt_fail(DT_ERR_ARGUMENT, "shared_intermediate: %lld; allowed: 0 to %d",
                   (long long)weights->shared_intermediate, INT32_MAX / 8);
  dt_status status = dt_check_weights(weights);
  if (status) return status;
  if (weights->experts_per_rank > INT32_MAX / ranks)
    return dt_fail(DT_ERR_ARGUMENT, "experts_per_rank: %d; allowed: 1 to %d", weights->experts_per_rank,
                   INT32_MAX / ranks);
  int64_t experts = (int64_t)weights->experts_per_rank * ranks;
  if (config->top_k < 1 || config->top_k > experts)
    return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; allowed: 1 to %lld experts", config->top_k, (long long)experts);
  if (config->max_tokens < 0 || config->max_tokens > INT32_MAX / config->top_k)
    return dt_fail(DT_ERR_ARGUMENT, "max_tokens: %lld; allowed: 0 to %d", (long long)config->max_tokens,
                   INT32_MAX / config->top_k);
  if (config->max_rows < 0 || config->max_rows > INT32_MAX)
    return dt_fail(DT_ERR_ARGUMENT, "max_rows: %lld; allowed: 0 to %d", (long long)config->max_rows, INT32_MAX);
  if (config->tile_m < 1 || config->tile_m > 4096)
    return dt_fail(DT_ERR_ARGUMENT, "tile_m: %d; allowed: 1 to 4096", config->tile_m);
  if (config->tile_n < 0 || config->tile_n > 65536)
    return dt_fail(DT_ERR_ARGUMENT, "tile_n: %d; allowed: 0 to 65536", config->tile_n);
  if (config->layout != DT_LAYOUT_PACKED && config->layout != DT_LAYOUT_ALIGNED)
    return dt_fail(DT_ERR_ARGUMENT, "layout: %d; allowed: packed, aligned", (int)config->layout);
  if (config->workers < 1 || config->workers > 1024)
    return dt_fail(DT_ERR_ARGUMENT, "workers: %d; allowed: 1 to 1024", config->workers);
  if (config->consumers < 0 || config->consumers > 1024)
    return dt_fail(DT_ERR_ARGUMENT, "consumers: %d; allowed: 0 to 1024", config->consumers);
  return check_schedule(config);
}

/* Wide enough that a call's fixed cost disappears (measured: from 128 columns on), narrow enough that a widened panel
 * stays in a core's cache: docs/cpu.md. */
static int32_t choose_tile_n(const dt_moe_weights *weights) {
  int64_t widest = weights->hidden > weights->intermediate ? weights->hidden : weights->intermediate;
  int64_t n = (512 * 1024 / widest) / 64 * 64;
  if (n < 128) n = 128;
  if (n > 512) n = 512;
  return (int32_t)(n < widest ? n : widest);
}

static void resolve_schedule(dt_moe_config *config, int64_t hidden) {
  if ((int32_t)config->order < 0) config->order = dt_schedule_default_order(config->schedule);
  if (!config->segment_bands) config->segment_bands = 1;
  if (!config->raster_bands) config->raster_bands = dt_panels_kept(config->tile_m, hidden);
  if (!config->lead) config->lead = 1;
  /* In waves of workers: 6 for wave, 2 for what interleaves. */
  if (!config->group_tasks) config->group_tasks = config->workers * (config->schedule == DT_SCHEDULE_WAVE ? 6 : 2);
}

static void place_counters(dt_moe *moe) {
  const int64_t sizes[DT_COUNTER_KINDS] = {
      [DT_COUNTER_ARRIVAL] = moe->max_bands, [DT_COUNTER_TILES_1] = moe->max_bands,
      [DT_COUNTER_TILES_2] = moe->max_bands, [DT_COUNTER_SHARED] = moe->max_blocks,
      [DT_COUNTER_COMBINE] = moe->ranks,     [DT_COUNTER_TILES_2_ALL] = 1,
  };
  size_t offset = 0;
  for (int kind = 0; kind < DT_COUNTER_KINDS; kind++) {
    moe->counter_base[kind] = offset;
    offset += (size_t)sizes[kind] * sizeof(dt_counter);
  }
  moe->bank_bytes = offset;
}

size_t dt_bank_offset(const dt_moe *moe, dt_counter_kind kind, int64_t index) {
  return (moe->epoch & 1) * moe->bank_bytes + moe->counter_base[kind] + (size_t)index * sizeof(dt_counter);
}

static void size_layer(dt_moe *moe) {
  const dt_moe_config *config = &moe->config;
  int64_t per_rank = moe->weights->experts_per_rank;
  int64_t fan_out = config->top_k < per_rank ? config->top_k : per_rank;
  moe->max_rows = config->max_rows ? config->max_rows : moe->ranks * config->max_tokens * fan_out;
  if (moe->max_rows > INT32_MAX) moe->max_rows = INT32_MAX; /* no plan has more */
  moe->memory_rows = moe->max_rows;
  if (config->layout == DT_LAYOUT_ALIGNED) moe->memory_rows += per_rank * moe->ranks * (config->tile_m - 1);
  moe->max_bands = moe->memory_rows / config->tile_m + per_rank + 1;
  moe->max_blocks = (config->max_tokens + DT_BLOCK_TOKENS - 1) / DT_BLOCK_TOKENS;
  /* Each rank's counts and header lie in whole sectors of their own; the counter that announces them follows. */
  size_t counts_bytes = sizeof(dt_counts_header) + (size_t)moe->experts * sizeof(int32_t);
  moe->slot_bytes = (counts_bytes + 63) / 64 * 64 + sizeof(dt_counter);
  place_counters(moe);
}

/* Of so many rows; where the product overflows, more than there are addresses, which whoever allocates will say. */
static size_t rows_bytes(int64_t rows, size_t row_bytes) {
  size_t bytes;
  return __builtin_mul_overflow((size_t)rows, row_bytes, &bytes) || bytes > SIZE_MAX / 4 ? SIZE_MAX / 4 : bytes;
}

static size_t act_bytes(const dt_moe *moe) {
  return rows_bytes(moe->memory_rows, (size_t)moe->intermediate * sizeof(float));
}

static size_t y_bytes(const dt_moe *moe) {
  return rows_bytes(moe->memory_rows, moe->row_bytes);
}

static size_t shared_bytes(const dt_moe *moe) {
  return rows_bytes(moe->config.max_tokens, (size_t)moe->hidden * sizeof(float));
}

static dt_status allocate_local(dt_moe *moe) {
  size_t slots = (size_t)(moe->config.max_tokens * moe->config.top_k) * sizeof(int32_t);
  moe->act = dt_pages_alloc(act_bytes(moe));
  moe->y = dt_pages_alloc(y_bytes(moe));
  moe->shared_out = dt_pages_alloc(shared_bytes(moe));
  moe->row_of_slot = dt_pages_alloc(slots);
  moe->slot_of_row = dt_pages_alloc(slots);
  moe->token_of_row = dt_pages_alloc(slots);
  moe->counts = calloc((size_t)moe->ranks * moe->experts, sizeof(int32_t));
  moe->headers = calloc((size_t)moe->ranks, sizeof(*moe->headers));
  moe->last_task = calloc((size_t)moe->ranks, sizeof(*moe->last_task));
  moe->message = calloc(1, moe->slot_bytes);
  if (!moe->act || !moe->y || !moe->shared_out || !moe->row_of_slot || !moe->slot_of_row || !moe->token_of_row ||
      !moe->counts || !moe->headers || !moe->last_task || !moe->message)
    return dt_fail(DT_ERR_MEMORY, "max_rows: %lld rows of %lld intermediate values do not fit in the address space",
                   (long long)moe->memory_rows, (long long)moe->intermediate);
  return dt_pool_create(moe);
}

static void release_local(dt_moe *moe) {
  size_t slots = (size_t)(moe->config.max_tokens * moe->config.top_k) * sizeof(int32_t);
  dt_pool_destroy(moe);
  dt_pages_free(moe->act, act_bytes(moe));
  dt_pages_free(moe->y, y_bytes(moe));
  dt_pages_free(moe->shared_out, shared_bytes(moe));
  dt_pages_free(moe->row_of_slot, slots);
  dt_pages_free(moe->slot_of_row, slots);
  dt_pages_free(moe->token_of_row, slots);
  dt_plan_destroy(moe->plan);
  free(moe->counts);
  free(moe->headers);
  free(moe->last_task);
  free(moe->message);
  free(moe->spans);
  dt_failure_destroy(&moe->failure);
  free(moe);
}

static void free_windows(dt_moe *moe) {
  dt_window *windows[] = {moe->counts_window, moe->counters, moe->combine, moe->dispatch};
  for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
    if (windows[i]) dt_comm_free(moe->comm, windows[i]);
  }
}

static dt_status allocate_windows(dt_moe *moe) {
  const size_t combine_bytes = rows_bytes(moe->config.max_tokens * moe->config.top_k, moe->row_bytes);
  dt_status status = dt_comm_alloc(moe->comm, y_bytes(moe) + 64, &moe->dispatch);
  if (!status) status = dt_comm_alloc(moe->comm, combine_bytes + 64, &moe->combine);
  if (!status) status = dt_comm_alloc(moe->comm, 2 * moe->bank_bytes, &moe->counters);
  if (!status) status = dt_comm_alloc(moe->comm, 2 * (size_t)moe->ranks * moe->slot_bytes, &moe->counts_window);
  return status;
}

dt_status dt_moe_create(dt_comm *comm, const dt_moe_config *config, const dt_moe_weights *weights, dt_moe **out) {
  if (!comm || !config || !weights || !out)
    return dt_fail(DT_ERR_ARGUMENT, "comm, config, weights, moe: must be given");
  if (config->size != sizeof(*config))
    return dt_fail(DT_ERR_ARGUMENT, "size: %zu; must be %zu, set by dt_moe_config_init", config->size, sizeof(*config));
  /* Agreement comes before any other check, so that what only one rank got wrong is an error on all of them. */
  dt_status status = agree_on_layer(comm, config, weights);
  if (status) return status;
  status = check_config(config, weights, dt_comm_ranks(comm));
  if (status) return status;

  dt_moe *moe = aligned_alloc(_Alignof(dt_moe), sizeof(*moe));
  if (!moe) {
    status = dt_fail(DT_ERR_MEMORY, "moe: out of memory");
    dt_comm_abort(comm, status, dt_error_detail());
    return status;
  }
  memset(moe, 0, sizeof(*moe));
  dt_failure_init(&moe->failure);
  moe->comm = comm;
  moe->config = *config;
  moe->weights = weights;
  moe->ranks = dt_comm_ranks(comm);
  moe->rank = dt_comm_rank(comm);
  moe->experts = weights->experts_per_rank * moe->ranks;
  moe->hidden = weights->hidden;
  moe->intermediate = weights->intermediate;
  moe->element = dt_dtype_bytes(config->dtype);
  moe->row_bytes = (size_t)moe->hidden * moe->element;
  if (!moe->config.tile_n) moe->config.tile_n = choose_tile_n(weights);
  resolve_schedule(&moe->config, moe->hidden);
  size_layer(moe);
  status = allocate_windows(moe);
  if (!status) {
    status = allocate_local(moe);
    if (status) dt_comm_abort(comm, status, dt_error_detail());
  }
  if (status) {
    char detail[sizeof(moe->failure.detail)];
    snprintf(detail, sizeof(detail), "%s", dt_error_detail());
    free_windows(moe);
    release_local(moe);
    return dt_fail(status, "%s", detail);
  }
  *out = moe;
  return DT_OK;
}

void dt_moe_destroy(dt_moe *moe) {
  if (!moe) return;
  /* A peer may still be signalling the end of its last layer here: nobody's windows go before all have arrived. */
  if (!dt_comm_status(moe->comm)) dt_comm_barrier(moe->comm, "destroy");
  free_windows(moe);
  release_local(moe);
}

dt_status dt_moe_set_schedule(dt_moe *moe, const dt_moe_config *config) {
  if (!moe || !config) return dt_fail(DT_ERR_ARGUMENT, "moe, config: must be given");
  dt_status status = dt_layer_error(moe);
  if (status) return status;
  const dt_agree_field fields[] = {
      {"schedule", (int64_t)config->schedule},
      {"order", (int64_t)(int32_t)config->order},
      {"segment_bands", config->segment_bands},
      {"raster_bands", config->raster_bands},
      {"lead", config->lead},
      {"wave_experts", config->wave_experts},
      {"group_tasks", config->group_tasks},
      {"consumers (at least 1 for signal)", config->schedule != DT_SCHEDULE_SIGNAL || moe->config.consumers >= 1},
  };
  status = dt_comm_agree(moe->comm, fields, sizeof(fields) / sizeof(fields[0]));
  if (status) return status;
  dt_moe_config next = moe->config;
  next.schedule = config->schedule;
  next.order = config->order;
  next.segment_bands = config->segment_bands;
  next.raster_bands = config->raster_bands;
  next.lead = config->lead;
  next.wave_experts = config->wave_experts;
  next.group_tasks = config->group_tasks;
  next.delay_seed = config->delay_seed;
  next.delay_max_us = config->delay_max_us;
  next.publish_early = config->publish_early;
  status = check_schedule(&next);
  if (status) return status;
  resolve_schedule(&next, moe->hidden);
  moe->config = next;
  return DT_OK;
}
