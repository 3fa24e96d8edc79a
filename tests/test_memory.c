/* The n-th allocation fails, for every n: whoever asked gets DT_ERR_MEMORY and nothing else breaks; ranks beside it may
 * get DT_ERR_PEER. That nothing leaks is the address sanitizer's to say. Linked with --wrap (tests/CMakeLists.txt);
 * jansson's allocations go through its own hook. */
#include <errno.h>
#include <stdatomic.h>

#include <jansson.h>

#include <draintile/attention.h>
#include <draintile/checkpoint.h>
#include <draintile/platform.h>
#include <draintile/simulate.h>

#include "comm_ranks.h"
#include "folder.h"
#include "moe_support.h"

enum { RANKS = 2, STATUSES = 64 };

static atomic_long asked, failing = -1;
static atomic_int counting, failed, seen;
static dt_status statuses[STATUSES];

static int fails(void) {
  if (!atomic_load(&counting) || atomic_fetch_add(&asked, 1) != atomic_load(&failing)) return 0;
  atomic_store(&failed, 1);
  errno = ENOMEM;
  return 1;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
char *__real_strdup(const char *text);
#pragma GCC visibility push(default) /* the libraries refer to them as well */
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
#pragma GCC visibility pop

void *__wrap_malloc(size_t bytes) {
  return fails() ? NULL : __real_malloc(bytes);
}
void *__wrap_calloc(size_t count, size_t bytes) {
  return fails() ? NULL : __real_calloc(count, bytes);
}
void *__wrap_realloc(void *old, size_t bytes) {
  return fails() ? NULL : __real_realloc(old, bytes);
}
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return fails() ? NULL : __real_aligned_alloc(alignment, bytes);
}
char *__wrap_strdup(const char *text) {
  return fails() ? NULL : __real_strdup(text);
}

static dt_status note(dt_status status) {
  const int at = atomic_fetch_add(&seen, 1);
  if (at < STATUSES) statuses[at] = status;
  return status;
}

/* Runs it until no allocation is left to fail; with lost, text that jansson drops may pass for another text. */
static void sweep(void (*run)(void *), void *argument, int lost) {
  long tries = 0;
  for (atomic_store(&failed, 1); atomic_load(&failed); tries++) {
    atomic_store(&asked, 0), atomic_store(&failing, tries);
    atomic_store(&failed, 0), atomic_store(&seen, 0);
    run(argument);
    atomic_store(&counting, 0);
    const int count = atomic_load(&seen);
    int memory = 0, other = 0;
    assert_in_range(count, 1, STATUSES);
    for (int i = 0; i < count; i++) {
      memory += statuses[i] == DT_ERR_MEMORY;
      other += statuses[i] != DT_ERR_MEMORY && statuses[i] != DT_OK && statuses[i] != DT_ERR_PEER;
      if (lost) other = 0;
    }
    if (other || (atomic_load(&failed) && !memory && !lost))
      fail_msg("allocation %ld: %d statuses, the last %s: %s", tries, count, dt_status_name(statuses[count - 1]),
               dt_error_detail());
    if (!atomic_load(&failed))
      for (int i = 0; i < count; i++) assert_int_equal(statuses[i], DT_OK);
  }
  assert_true(tries > 5);
}

/* ---- Ranks are threads of a local fabric ---- */

typedef struct job {
  layer layer;
  dt_attention_config attention;
  void (*body)(struct job *job, dt_comm *comm);
} job;

typedef struct seat {
  job *job;
  dt_comm *comm;
} seat;

static void *rank_of(void *argument) {
  seat *s = argument;
  s->job->body(s->job, s->comm);
  return NULL;
}

static void run_job(void *argument) {
  job *j = argument;
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.timeout_s = config.entry_timeout_s = 20;
  dt_comm *comms[RANKS];
  atomic_store(&counting, 1);
  if (note(dt_comm_create_local(RANKS, &config, comms))) return;
  seat seats[RANKS];
  pthread_t threads[RANKS];
  for (int r = 0; r < RANKS; r++) {
    seats[r] = (seat){j, comms[r]};
    if (pthread_create(&threads[r], NULL, rank_of, &seats[r])) abort();
  }
  for (int r = 0; r < RANKS; r++) pthread_join(threads[r], NULL);
  for (int r = 0; r < RANKS; r++) dt_comm_destroy(comms[r]);
}

static void moe_body(job *j, dt_comm *comm) {
  const int32_t rank = dt_comm_rank(comm);
  dt_moe_config config = layer_config(&j->layer.shape);
  config.tile_m = 16, config.workers = 2, config.schedule = DT_SCHEDULE_SIGNAL;
  dt_moe *moe = NULL;
  if (note(dt_moe_create(comm, &config, &j->layer.weights[rank], &moe))) {
    if (moe) note(DT_ERR_INTERNAL); /* is set on success only */
    return;
  }
  note(dt_moe_forward(moe, &j->layer.input[rank], j->layer.output[rank], NULL));
  config.schedule = DT_SCHEDULE_INTERLEAVE;
  note(dt_moe_set_schedule(moe, &config));
  note(dt_moe_forward(moe, &j->layer.input[rank], j->layer.output[rank], NULL));
  dt_moe_destroy(moe);
}

static void layers(void **state) {
  (void)state;
  job j = {.body = moe_body};
  const layer_shape shape = {.ranks = RANKS,
                             .experts_per_rank = 2,
                             .top_k = 2,
                             .hidden = 32,
                             .intermediate = 16,
                             .shared_intermediate = 16,
                             .tokens = {40, 30},
                             .seed = 1};
  layer_create(&j.layer, &shape);
  sweep(run_job, &j, 0);
  layer_destroy(&j.layer);
}

static void attention_body(job *j, dt_comm *comm) {
  static const float zeros[24 * 4 * 8];
  const dt_attention_input input = {zeros, zeros, zeros};
  dt_attention *attention = NULL;
  if (note(dt_attention_create(comm, &j->attention, &attention))) {
    if (attention) note(DT_ERR_INTERNAL);
    return;
  }
  note(dt_attention_forward(attention, &input, NULL));
  dt_attention_config serial = j->attention;
  serial.schedule = DT_ATTENTION_SERIAL;
  note(dt_attention_set_schedule(attention, &serial));
  note(dt_attention_forward(attention, &input, NULL));
  dt_attention_destroy(attention);
}

static void attention(void **state) {
  (void)state;
  job j = {.body = attention_body};
  dt_attention_config_init(&j.attention);
  j.attention.dtype = DT_DTYPE_F32;
  j.attention.tokens = j.attention.kv_tokens = 24;
  j.attention.heads = 4, j.attention.kv_heads = 2, j.attention.head_dim = 8;
  j.attention.tile_rows = 4, j.attention.workers = 2;
  j.attention.schedule = DT_ATTENTION_PIGGYBACK;
  sweep(run_job, &j, 0);
}

/* ---- The simulator: prices, a fit to a run of its own ---- */

static const int32_t counts[] = {15, 0, 30, 15, 7, 20, 33, 20};
static const int64_t tokens[] = {30, 40};

static dt_sim_config sim_config(dt_schedule schedule) {
  dt_sim_config config;
  dt_sim_config_init(&config);
  config.plan.ranks = RANKS, config.plan.experts_per_rank = 2;
  config.plan.columns_1 = config.plan.columns_2 = 2;
  config.plan.dispatch = config.plan.reduce_blocks = 1;
  config.plan.segment_bands = config.plan.raster_bands = config.plan.lead = config.plan.group_tasks = 1;
  config.plan.schedule = schedule;
  config.workers = 2, config.consumers = 1;
  config.row_in_bytes = config.row_out_bytes = 128;
  config.reduce_tokens = 16;
  config.tokens = tokens;
  return config;
}

static void simulate(void *argument) {
  dt_sim_costs costs = *(const dt_sim_costs *)argument;
  dt_sim_config config = sim_config(DT_SCHEDULE_SERIAL);
  dt_sim_result result = {0};
  dt_trace_rank *traces = NULL;
  dt_plan *plans[RANKS] = {NULL};
  char path[64];
  snprintf(path, sizeof path, "%s/trace", folder);
  atomic_store(&counting, 1);
  dt_schedule chosen;
  note(dt_schedule_auto(&config, &costs, counts, &chosen, NULL));
  dt_status status = note(dt_simulate(&config, &costs, counts, &result, &traces));
  for (int32_t r = 0; r < RANKS && status == DT_OK; r++) {
    dt_plan_config one = config.plan;
    one.rank = r;
    one.reduce_blocks = (int32_t)((tokens[r] + 15) / 16);
    status = note(dt_plan_create(&one, counts, &plans[r]));
    if (status == DT_OK) status = note(dt_plan_check(plans[r], counts));
  }
  if (status == DT_OK) note(dt_sim_fit(&config, traces, (const dt_plan *const *)plans, RANKS, &costs));
  dt_store_activity activity;
  if (status == DT_OK) note(dt_trace_stores(traces[0].spans, traces[0].span_count, 0, 1e-5, &activity));
  if (traces) note(dt_trace_write(path, traces, RANKS));
  for (int r = 0; r < RANKS; r++) dt_plan_destroy(plans[r]);
  dt_sim_traces_free(traces, RANKS);
}

static void simulator(void **state) {
  (void)state;
  dt_sim_costs costs;
  dt_sim_costs_init(&costs);
  costs.l1_row_s = costs.l2_row_s = 1e-6;
  costs.link_bytes_per_s = 1e8, costs.link_capacity_bytes = 1e4;
  costs.copy_s_per_byte = 1e-10;
  sweep(simulate, &costs, 0);
}

/* ---- Files ---- */

static void *json_malloc(size_t bytes) {
  return fails() ? NULL : __real_malloc(bytes);
}

static void write_tensors(void *argument) {
  const dt_tensor_spec specs[] = {{"a", DT_DTYPE_F32, 2, {4, 8}}, {"b", DT_DTYPE_I64, 1, {3}}};
  static const char zeros[128];
  dt_tensor_writer *writer = NULL;
  dt_tensor_file *file = NULL;
  atomic_store(&counting, 1);
  dt_status status = note(dt_tensor_writer_create(argument, specs, 2, &writer));
  if (status == DT_OK) status = note(dt_tensor_writer_rows(writer, "a", 0, 4, zeros));
  if (status == DT_OK) status = note(dt_tensor_writer_rows(writer, "b", 0, 3, zeros));
  if (status == DT_OK)
    status = note(dt_tensor_writer_commit(writer));
  else
    dt_tensor_writer_discard(writer);
  if (status == DT_OK && note(dt_tensor_file_open(argument, &file)) == DT_OK) dt_tensor_file_close(file);
}

static void platform_file(void *argument) {
  dt_platform *platform = NULL;
  atomic_store(&counting, 1);
  if (note(dt_platform_load(argument, &platform))) return;
  note(dt_platform_save(platform, argument));
  dt_platform_destroy(platform);
}

static void files(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "%s/tensors", folder);
  sweep(write_tensors, path, 0);
  json_set_alloc_funcs(json_malloc, free);
  sweep(write_tensors, path, 1);
  json_set_alloc_funcs(__real_malloc, free);

  const dt_platform_device device = {
      .kind = "cpu", .name = "a", .driver = "none", .date = "2026-11-30T00:00:00Z", .count = 1};
  const double samples[] = {1, 2, 3};
  const dt_platform_constant constant = {"t0_s", {2, 1, 3}, 3, "m", samples, 3};
  const dt_platform_point points[] = {{{1}, {2, 1, 3}, 3, samples, 3}, {{2}, {2, 1, 3}, 3, samples, 3}};
  const dt_platform_table table = {.name = "issue_s",
                                   .pattern = "local",
                                   .method = "m",
                                   .argument_count = 1,
                                   .arguments = {"producers"},
                                   .points = points,
                                   .point_count = 2};
  dt_platform *platform = NULL;
  assert_int_equal(dt_platform_create(&device, &platform), DT_OK);
  assert_int_equal(dt_platform_set_constant(platform, &constant), DT_OK);
  assert_int_equal(dt_platform_add_table(platform, &table), DT_OK);
  assert_int_equal(dt_platform_add_note(platform, "n"), DT_OK);
  snprintf(path, sizeof path, "%s/platform", folder);
  assert_int_equal(dt_platform_save(platform, path), DT_OK);
  dt_platform_destroy(platform);
  sweep(platform_file, path, 0);
}

/* What jansson cannot read for lack of memory is not called malformed. */
static void json_without_memory(void **state) {
  (void)state;
  char path[64];
  snprintf(path, sizeof path, "%s/platform", folder);
  json_set_alloc_funcs(json_malloc, free);
  long n = 0;
  for (int more = 1; more; n++) {
    atomic_store(&asked, 0), atomic_store(&failing, n), atomic_store(&failed, 0);
    dt_platform *platform = NULL;
    atomic_store(&counting, 1);
    const dt_status status = dt_platform_load(path, &platform);
    atomic_store(&counting, 0);
    more = atomic_load(&failed);
    if (status == DT_OK) dt_platform_destroy(platform);
    /* a byte that jansson loses may leave another text: a schema or a field that is none */
    if (status == DT_ERR_INPUT && strstr(dt_error_detail(), "line")) fail_msg("%ld: %s", n, dt_error_detail());
  }
  json_set_alloc_funcs(__real_malloc, free);
  assert_true(n > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(layers), cmocka_unit_test(attention),           cmocka_unit_test(simulator),
      cmocka_unit_test(files),  cmocka_unit_test(json_without_memory),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
