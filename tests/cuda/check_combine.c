/* Checks the combine operator: every mode in every order and both layouts, with counts of the host and counts on the
 * device, on shapes from one row up, with tails, empty experts and ranks without rows, bit by bit against a grouped
 * GEMM of each rank (packed, natural) whose rows the host puts where the plan says. Buffers are poisoned to their end,
 * the working memory holds another product's rows, padded rows hold NaN. Then captured runs with changing counts,
 * rounds without a pause between them, several ranks on a GPU, a rank that does not come, and a few rows where there is
 * room for many.
 *
 *   check_combine [NUMBER|capacity]     the one problem to run
 *
 * Two GPUs; on one, all ranks share it. Exit code 77 without a Hopper GPU.
 */
#include <draintile/combine.h>
#include <draintile/plan.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "combine_support.h"
#include "core/random.h"
#include "cuda/combine_handle.h"
#include "cuda/combine_tables.h"
#include "cuda/driver.h"

enum { RANKS_MAX = 8, SETS = 2, GUARD = 2, ROUNDS = 40, REPLAYS = 5, REDUCED = 48, TOP_K = 5 };

/* How the counts come. */
typedef enum filling {
  ROUTED = 0,
  BARE = 1,       /* as routed, but the last rank's experts get no rows */
  SILENT = 2,     /* rank 1 has no tokens, all go to rank 0's experts */
  ONE_EXPERT = 3, /* one expert gets everything */
  UNEVEN = 4,     /* rows of each expert 162, 0, 2577, 446, 0, 83 */
  FEW = 5         /* 5 tokens, top 2 */
} filling;

typedef struct problem {
  int32_t ranks;
  int64_t rows, n, k;
  int32_t experts;
  dt_combine_router router;
  filling filling;
  int32_t consumers, segment_bands, brief; /* brief: two of the six variants */
} problem;
static const problem problems[] = {{2, 2, 256, 64, 1, DT_ROUTER_BALANCED, ROUTED, 2, 1, 0},
                                   {2, 2, 8, 8, 2, DT_ROUTER_CROSSED, ROUTED, 2, 1, 0},
                                   {2, 300, 264, 72, 3, DT_ROUTER_MODERATE, ROUTED, 4, 1, 0},
                                   {2, 1000, 1000, 200, 7, DT_ROUTER_STRESS, BARE, 2, 2, 0},
                                   {2, 2000, 2056, 136, 16, DT_ROUTER_MODERATE, ROUTED, 8, 1, 0},
                                   {2, 4096, 2048, 256, 4, DT_ROUTER_BALANCED, ROUTED, 16, 2, 0},
                                   {2, 4096, 2048, 768, 64, DT_ROUTER_STRESS, ROUTED, 24, 1, 1},
                                   {2, 8192, 8192, 512, 8, DT_ROUTER_CROSSED, ROUTED, 16, 1, 1},
                                   /* of docs/testing.md: 5, 6, 8, 9 */
                                   {2, 1634, 2048, 768, 6, DT_ROUTER_BALANCED, UNEVEN, 8, 1, 0},
                                   {2, 700, 512, 128, 4, DT_ROUTER_BALANCED, SILENT, 4, 1, 0},
                                   {2, 700, 512, 128, 4, DT_ROUTER_BALANCED, ONE_EXPERT, 4, 3, 0},
                                   {2, 128, 512, 128, 8, DT_ROUTER_BALANCED, ROUTED, 4, 1, 1},
                                   {2, 40, 512, 128, 8, DT_ROUTER_BALANCED, ROUTED, 4, 1, 1},
                                   {2, 10, 512, 128, 128, DT_ROUTER_BALANCED, FEW, 4, 1, 1},
                                   {2, 3000, 256, 64, 256, DT_ROUTER_MODERATE, ROUTED, 8, 1, 0},
                                   {2, 1200, 384, 96, 33, DT_ROUTER_MODERATE, ROUTED, 8, 1, 0},
                                   /* turned tasks: direct with the host's counts */
                                   {2, 3000, 2056, 776, 12, DT_ROUTER_MODERATE, ROUTED, 8, 1, 0},
                                   {2, 2560, 1000, 1024, 10, DT_ROUTER_STRESS, ROUTED, 4, 1, 0},
                                   {2, 1500, 512, 768, 8, DT_ROUTER_MODERATE, SILENT, 4, 1, 0},
                                   {1, 2000, 520, 800, 9, DT_ROUTER_MODERATE, ROUTED, 4, 1, 0},
                                   /* several ranks on a GPU */
                                   {1, 900, 512, 128, 5, DT_ROUTER_BALANCED, ROUTED, 4, 1, 0},
                                   {3, 900, 520, 136, 5, DT_ROUTER_MODERATE, ROUTED, 4, 1, 0},
                                   {8, 1200, 512, 128, 4, DT_ROUTER_MODERATE, ROUTED, 2, 1, 0},
                                   {4, 1500, 1024, 192, 6, DT_ROUTER_STRESS, ROUTED, 4, 2, 0}};
/* Of case 4: its rows where there is room for them alone, and for 200,000, which is more than 2^31 bytes. */
static const problem few_rows = {2, 32, 8192, 128, 4, DT_ROUTER_MODERATE, ROUTED, 4, 1, 0};
enum { MANY_ROWS = 200000 };
/* What is done with a problem. */
typedef enum trial { VARIANTS = 0, ABSENT = 1, CAPACITIES = 2 } trial;
/* A mode, where its consumers are, when its tiles begin. */
typedef struct form {
  const char *name;
  dt_combine_mode mode;
  dt_combine_launch launch;
  dt_combine_entry entry;
} form;
static const form forms[] = {
    {"bulk", DT_COMBINE_BULK, DT_COMBINE_LAUNCH_ONE, DT_COMBINE_ENTRY_BESIDE},
    {"signal, one launch", DT_COMBINE_SIGNAL, DT_COMBINE_LAUNCH_ONE, DT_COMBINE_ENTRY_BESIDE},
    {"signal, two launches", DT_COMBINE_SIGNAL, DT_COMBINE_LAUNCH_TWO, DT_COMBINE_ENTRY_BESIDE},
    {"signal, one launch, entry before", DT_COMBINE_SIGNAL, DT_COMBINE_LAUNCH_ONE, DT_COMBINE_ENTRY_BEFORE},
    {"direct", DT_COMBINE_DIRECT, DT_COMBINE_LAUNCH_ONE, DT_COMBINE_ENTRY_BESIDE},
    {"direct, entry before", DT_COMBINE_DIRECT, DT_COMBINE_LAUNCH_ONE, DT_COMBINE_ENTRY_BEFORE}};
enum { FORMS = sizeof forms / sizeof *forms };

typedef struct rank {
  pthread_t thread;
  int32_t rank, device, sms;
  dt_comm *control, *comm;
  const problem *problem;
  support_shape shape;
  const int32_t *counts[SETS];
  trial part; /* ABSENT: rank 1 makes the operator, then stays away */
  /* Of each set of counts */
  dt_plan *plan[SETS];      /* packed, natural */
  uint16_t *product[SETS];  /* host, packed */
  uint16_t *expected[SETS]; /* device: [combine_rows_max][n], poison where no row belongs */
  uint16_t *a[SETS];        /* device, in the variant's layout */
  uint16_t *b;
  int64_t rows_max, combine_rows_max;
  unsigned long long *wrong; /* device */
  cudaStream_t stream;
  dt_combine *combine;
  dt_layout layout;
  dt_order order;
  char where[64]; /* what was found wrong first */
  unsigned long long words_wrong;
  int checks;
  int turned; /* variants in which direct turned tasks */
  dt_status status;
  char detail[256];
} rank;
static rank ranks[RANKS_MAX];
static int turned_anywhere;

static int64_t bytes_of(const rank *r, int64_t rows) {
  return 2 * rows * r->problem->n;
}

static dt_status wrong(rank *r, const char *what, unsigned long long words) {
  if (r->words_wrong == 0) snprintf(r->where, sizeof r->where, "%s", what);
  r->words_wrong += words ? words : 1;
  return DT_OK;
}

static dt_status run_form(rank *r, const form *f, const uint16_t *a) {
  dt_combine_set_form(r->combine, f->launch, f->entry);
  return dt_combine_run(r->combine, f->mode, a, r->b, r->stream);
}

/* Queues one run into a poisoned buffer and its comparison. */
static dt_status queue(rank *r, const form *f, const uint16_t *a, const uint16_t *expected) {
  const int64_t bytes = bytes_of(r, r->combine_rows_max);
  CUDA(support_poison(dt_combine_buffer(r->combine), bytes, r->stream));
  TRY(run_form(r, f, a));
  CUDA(support_compare(dt_combine_buffer(r->combine), expected, bytes, r->wrong, r->stream));
  return DT_OK;
}

static dt_status settle(rank *r, const char *what) {
  unsigned long long words = 0;
  dt_combine_state state;
  TRY(dt_combine_check(r->combine, r->stream));
  /* A run that counts from what the last one left closes too early, or never. */
  CUDA(cudaMemcpy(&state, r->combine->state, sizeof state, cudaMemcpyDeviceToHost));
  if (state.done != 0) wrong(r, "not at rest", state.done);
  CUDA(cudaMemcpy(&words, r->wrong, sizeof words, cudaMemcpyDeviceToHost));
  CUDA(cudaMemset(r->wrong, 0, sizeof words));
  CUDA(cudaDeviceSynchronize());
  r->checks++;
  if (words) wrong(r, what, words);
  return dt_comm_barrier(r->comm, what); /* nothing runs while a rank that shares the GPU allocates */
}

/* After a run that must fail: only what it left in the buffer. */
static dt_status settle_untouched(rank *r, const char *what) {
  unsigned long long words = 0;
  CUDA(cudaStreamSynchronize(r->stream));
  CUDA(cudaMemcpy(&words, r->wrong, sizeof words, cudaMemcpyDeviceToHost));
  if (words) wrong(r, what, words);
  return dt_comm_barrier(r->comm, what);
}

static dt_status all_forms(rank *r, int set, const char *what) {
  for (int i = 0; i < FORMS; i++) {
    char text[64];
    snprintf(text, sizeof text, "%s, set %d, %s", what, set, forms[i].name);
    TRY(dt_combine_run_gemm(r->combine, i % 2, r->a[set] + r->problem->k, r->b, r->stream)); /* into the staging */
    TRY(queue(r, &forms[i], r->a[set], r->expected[set]));
    TRY(settle(r, text));
  }
  return DT_OK;
}

static dt_status same(rank *r, const char *what, const void *device, const void *host, size_t bytes) {
  void *copy = malloc(bytes + 1);
  const cudaError_t error = cudaMemcpy(copy, device, bytes, cudaMemcpyDeviceToHost);
  if (error == cudaSuccess && memcmp(copy, host, bytes) != 0) wrong(r, what, 1);
  free(copy);
  return support_cuda(error, what);
}

/* The tables that the last run made on the device (direct, then `staged` of a bulk run before it) are the host's. */
static dt_status same_tables(rank *r, int set) {
  const dt_combine_device_tables *t = &r->combine->params.tables;
  dt_plan *plan = NULL;
  dt_combine_tables tables;
  TRY(support_plan(&r->shape, r->counts[set], r->layout, r->order, &plan));
  TRY(dt_combine_tables_create(plan, 2 * r->problem->n, &tables));
  const dt_combine_sizes sizes = {.bands = plan->band_count, .chunks = tables.chunk_count};
  const size_t experts = (size_t)r->problem->experts, bands = (size_t)plan->band_count, rows = (size_t)plan->rows;
  TRY(same(r, "table sizes", t->sizes, &sizes, sizeof sizes));
  TRY(same(r, "table expert rows", t->active, tables.expert_rows, experts * sizeof *t->active));
  TRY(same(r, "table remote rows", t->remote_rows, tables.remote_rows, experts * sizeof *t->remote_rows));
  TRY(same(r, "table band rows", t->band_rows, tables.band_rows, bands * sizeof *t->band_rows));
  TRY(same(r, "table band slots", t->band_slot, tables.band_slot, bands * sizeof *t->band_slot));
  TRY(same(r, "table staged", t->staged, tables.staged, rows * sizeof *t->staged));
  TRY(same(r, "table direct", t->direct, tables.direct, rows * sizeof *t->direct));
  TRY(same(r, "table chunks", t->chunks, tables.chunks, (size_t)tables.chunk_count * sizeof *t->chunks));
  dt_combine_tables_destroy(&tables);
  dt_plan_destroy(plan);
  return dt_comm_barrier(r->comm, "tables");
}

/* Captured once, replayed with operand and expectation, and counts if they are the device's, of either set. */
static dt_status captured(rank *r, int32_t *counts, int64_t a_bytes) {
  const size_t width = (size_t)(r->problem->ranks * r->problem->experts) * sizeof *counts;
  const size_t bytes = (size_t)bytes_of(r, r->combine_rows_max);
  uint16_t *a = NULL, *expected = NULL;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t replay = NULL;
  CUDA(cudaMalloc((void **)&a, (size_t)a_bytes));
  CUDA(cudaMalloc((void **)&expected, bytes));
  CUDA(cudaDeviceSynchronize());
  TRY(dt_comm_barrier(r->comm, "before capture")); /* no rank may synchronize a device that another captures on */
  CUDA(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
  dt_status status = DT_OK;
  for (int i = 0; i < FORMS && !status; i++) status = queue(r, &forms[i], a, expected);
  CUDA(cudaStreamEndCapture(r->stream, &graph));
  TRY(dt_comm_barrier(r->comm, "capture"));
  TRY(status);
  CUDA(cudaGraphInstantiate(&replay, graph, 0));
  CUDA(cudaGraphUpload(replay, r->stream));
  CUDA(cudaStreamSynchronize(r->stream));
  TRY(dt_comm_barrier(r->comm, "captured"));
  for (int i = 0; i < REPLAYS; i++) {
    const int set = counts ? i % SETS : 0;
    if (counts)
      CUDA(cudaMemcpyAsync(counts, r->counts[set] + (size_t)r->rank * width / sizeof *counts, width,
                           cudaMemcpyHostToDevice, r->stream));
    CUDA(cudaMemcpyAsync(a, r->a[set], (size_t)a_bytes, cudaMemcpyDeviceToDevice, r->stream));
    CUDA(cudaMemcpyAsync(expected, r->expected[set], bytes, cudaMemcpyDeviceToDevice, r->stream));
    CUDA(cudaGraphLaunch(replay, r->stream));
  }
  TRY(settle(r, counts ? "graph" : "graph, host counts"));
  cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
  cudaFree(a), cudaFree(expected);
  return DT_OK;
}

/* The reduction against the same sums on the host. */
static dt_status reduced(rank *r, int set) {
  const int64_t n = r->problem->n, rows = r->plan[set]->combine_rows;
  if (rows == 0) return dt_comm_barrier(r->comm, "reduced");
  const size_t slots = REDUCED * TOP_K, bytes = (size_t)bytes_of(r, REDUCED);
  float *weights = malloc(slots * sizeof *weights), *device_weights = NULL;
  int32_t *row_of_slot = malloc(slots * sizeof *row_of_slot), *device_rows = NULL;
  uint16_t *out = malloc(bytes), *buffer = malloc((size_t)bytes_of(r, rows)), *device_out = NULL;
  dt_random random = {3};
  for (size_t i = 0; i < slots; i++) {
    weights[i] = (float)dt_random_unit(&random);
    row_of_slot[i] = dt_random_below(&random, 8) == 0 ? -1 : (int32_t)dt_random_below(&random, (uint64_t)rows);
  }
  CUDA(cudaMalloc((void **)&device_weights, slots * sizeof *weights));
  CUDA(cudaMalloc((void **)&device_rows, slots * sizeof *row_of_slot));
  CUDA(cudaMalloc((void **)&device_out, bytes));
  CUDA(dt_cuda_write(device_weights, weights, slots * sizeof *weights));
  CUDA(dt_cuda_write(device_rows, row_of_slot, slots * sizeof *row_of_slot));
  TRY(dt_combine_reduce(r->combine, device_weights, device_rows, REDUCED, TOP_K, device_out, r->stream));
  CUDA(cudaStreamSynchronize(r->stream));
  CUDA(cudaMemcpy(out, device_out, bytes, cudaMemcpyDeviceToHost));
  CUDA(cudaMemcpy(buffer, dt_combine_buffer(r->combine), (size_t)bytes_of(r, rows), cudaMemcpyDeviceToHost));
  unsigned long long differ = 0;
  for (int64_t t = 0; t < REDUCED; t++)
    for (int64_t c = 0; c < n; c++) {
      float sum = 0;
      for (int j = 0; j < TOP_K; j++) {
        const int32_t row = row_of_slot[t * TOP_K + j];
        if (row < 0) continue;
        const uint32_t bits = (uint32_t)buffer[row * n + c] << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        sum = fmaf(weights[t * TOP_K + j], x, sum);
      }
      uint32_t bits;
      memcpy(&bits, &sum, sizeof bits);
      bits += 0x7fff + (bits >> 16 & 1); /* to nearest, ties to even: no NaN here */
      differ += out[t * n + c] != (uint16_t)(bits >> 16);
    }
  if (differ) wrong(r, "reduction", differ);
  cudaFree(device_weights), cudaFree(device_rows), cudaFree(device_out);
  free(weights), free(row_of_slot), free(out), free(buffer);
  return dt_comm_barrier(r->comm, "reduced");
}

static dt_status run_variant(rank *r, int32_t *counts) {
  const problem *p = r->problem;
  const size_t width = (size_t)(p->ranks * p->experts) * sizeof *counts;
  TRY(dt_combine_set_counts(r->combine, r->counts[0]));
  TRY(dt_comm_barrier(r->comm, "counts set"));
  r->turned += r->combine->split;
  TRY(all_forms(r, 0, "host counts"));
  TRY(reduced(r, 0));
  /* No host between the rounds: each must not overtake the peer's reading of the round before. */
  for (int i = 0; i < ROUNDS; i++) TRY(run_form(r, &forms[i % FORMS], r->a[0]));
  TRY(queue(r, &forms[1], r->a[0], r->expected[0]));
  TRY(settle(r, "rounds"));
  TRY(captured(r, NULL, 2 * r->rows_max * p->k));
  TRY(dt_combine_follow_counts(r->combine, counts));
  for (int set = SETS - 1; set >= 0; set--) {
    const int32_t *own = r->counts[set] + (size_t)r->rank * width / sizeof *counts;
    CUDA(dt_cuda_write(counts, own, width));
    TRY(dt_comm_barrier(r->comm, "device counts"));
    TRY(all_forms(r, set, "device counts"));
    TRY(same_tables(r, set));
  }
  TRY(captured(r, counts, 2 * r->rows_max * p->k));
  TRY(dt_combine_set_counts(r->combine, r->counts[1]));
  TRY(dt_comm_barrier(r->comm, "counts set"));
  TRY(queue(r, &forms[FORMS - 2], r->a[1], r->expected[1]));
  return settle(r, "host counts again");
}

static dt_status make(rank *r) {
  const problem *p = r->problem;
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = p->experts;
  config.n = p->n;
  config.k = p->k;
  config.rows_max = r->rows_max;
  config.combine_rows_max = r->combine_rows_max;
  config.consumers = p->consumers;
  config.segment_bands = p->segment_bands;
  config.layout = r->layout;
  config.order = r->order;
  config.sms = r->sms;
  config.timeout_s = r->part == ABSENT ? 0.2 : 5;
  TRY(dt_combine_create(&config, &r->combine));
  CUDA(support_delay(1000, r->combine->side)); /* its first launch may wait for a peer's on the same GPU */
  CUDA(cudaDeviceSynchronize());
  return DT_OK;
}

static dt_status variant(rank *r, dt_layout layout, dt_order order) {
  int32_t *counts = NULL;
  dt_plan *plan[SETS];
  r->layout = layout;
  r->order = order;
  r->rows_max = 0;
  for (int set = 0; set < SETS; set++) {
    TRY(support_plan(&r->shape, r->counts[set], layout, order, &plan[set]));
    if (plan[set]->rows + 1 > r->rows_max) r->rows_max = plan[set]->rows + 1;
  }
  for (int set = 0; set < SETS; set++) {
    CUDA(cudaMalloc((void **)&r->a[set], 2 * (size_t)((r->rows_max + 1) * r->problem->k)));
    TRY(support_operand(&r->shape, 0, plan[set], r->rows_max, r->a[set]));
    dt_plan_destroy(plan[set]);
  }
  CUDA(cudaMalloc((void **)&counts, (size_t)(r->problem->ranks * r->problem->experts) * sizeof *counts));
  TRY(make(r));
  const dt_status status = run_variant(r, counts);
  if (status) return status;
  dt_combine_destroy(r->combine);
  r->combine = NULL;
  for (int set = 0; set < SETS; set++) cudaFree(r->a[set]);
  cudaFree(counts);
  return dt_comm_barrier(r->comm, "variant");
}

static dt_status prepare(rank *r) {
  CUDA(cudaSetDevice(r->device));
  CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
  CUDA(cudaMalloc((void **)&r->wrong, sizeof *r->wrong));
  CUDA(dt_cuda_fill(r->wrong, 0, sizeof *r->wrong));
  TRY(support_weights(&r->shape, &r->b));
  for (int set = 0; set < SETS; set++) {
    TRY(support_plan(&r->shape, r->counts[set], DT_LAYOUT_PACKED, DT_ORDER_NATURAL, &r->plan[set]));
    if (r->plan[set]->combine_rows + GUARD > r->combine_rows_max)
      r->combine_rows_max = r->plan[set]->combine_rows + GUARD;
    TRY(support_product(&r->shape, 0, r->plan[set], r->b, r->stream, &r->product[set]));
  }
  TRY(dt_comm_barrier(r->comm, "products"));
  for (int set = 0; set < SETS; set++) {
    dt_plan *plans[RANKS_MAX];
    uint16_t *products[RANKS_MAX];
    for (int32_t e = 0; e < r->problem->ranks; e++) {
      plans[e] = ranks[e].plan[set];
      products[e] = ranks[e].product[set];
    }
    TRY(support_expect(&r->shape, plans, products, r->combine_rows_max, &r->expected[set]));
  }
  return dt_comm_barrier(r->comm, "expected");
}

/* Rank 1 makes the operator and does not run: rank 0 says so in time, in every form, and has stored nothing there. */
static dt_status stay_away(rank *r) {
  uint16_t *poison = NULL;
  const int64_t bytes = bytes_of(r, r->combine_rows_max);
  r->rows_max = r->plan[0]->rows + 1;
  CUDA(cudaMalloc((void **)&r->a[0], 2 * (size_t)(r->rows_max * r->problem->k)));
  CUDA(cudaMalloc((void **)&poison, (size_t)bytes));
  CUDA(support_poison(poison, bytes, r->stream));
  for (int i = 0; i < FORMS; i++) {
    TRY(make(r));
    TRY(dt_combine_set_counts(r->combine, r->counts[0]));
    CUDA(support_poison(dt_combine_buffer(r->combine), bytes, r->stream));
    CUDA(cudaStreamSynchronize(r->stream));
    TRY(dt_comm_barrier(r->comm, "made"));
    dt_status status = DT_OK;
    if (r->rank == 0) {
      TRY(run_form(r, &forms[i], r->a[0]));
      status = dt_combine_check(r->combine, r->stream);
      snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
      if (status != DT_ERR_TIMEOUT || strstr(r->detail, "entry of rank 1") == NULL) wrong(r, forms[i].name, 1);
      r->checks++;
    }
    TRY(dt_comm_barrier(r->comm, "given up"));
    if (r->rank != 0) CUDA(support_compare(dt_combine_buffer(r->combine), poison, bytes, r->wrong, r->stream));
    TRY(settle_untouched(r, forms[i].name));
    dt_combine_destroy(r->combine);
    r->combine = NULL;
  }
  cudaFree(poison);
  return DT_OK;
}

/* Case 4: an operator with room for `rows` rows, of which the first that a run may write are compared. */
static dt_status in_room_for(rank *r, int64_t rows, int32_t *counts) {
  const size_t width = (size_t)(r->problem->ranks * r->problem->experts);
  const int64_t compared = r->combine_rows_max;
  r->rows_max = r->combine_rows_max = rows;
  for (int set = 0; set < SETS; set++) {
    CUDA(cudaMalloc((void **)&r->a[set], 2 * (size_t)((rows + 1) * r->problem->k)));
    TRY(support_operand(&r->shape, 0, r->plan[set], rows, r->a[set]));
  }
  TRY(make(r));
  r->combine_rows_max = compared;
  TRY(dt_combine_set_counts(r->combine, r->counts[0]));
  TRY(dt_comm_barrier(r->comm, "counts set"));
  TRY(all_forms(r, 0, rows == MANY_ROWS ? "room for many" : "room for all"));
  TRY(dt_combine_follow_counts(r->combine, counts));
  for (int set = SETS - 1; set >= 0; set--) {
    CUDA(dt_cuda_write(counts, r->counts[set] + (size_t)r->rank * width, width * sizeof *counts));
    TRY(dt_comm_barrier(r->comm, "device counts"));
    TRY(all_forms(r, set, rows == MANY_ROWS ? "room for many, device" : "room for all, device"));
  }
  TRY(dt_comm_barrier(r->comm, "room"));
  dt_combine_destroy(r->combine);
  r->combine = NULL;
  for (int set = 0; set < SETS; set++) cudaFree(r->a[set]);
  return dt_comm_barrier(r->comm, "room");
}

static dt_status capacities(rank *r) {
  const size_t width = (size_t)(r->problem->ranks * r->problem->experts);
  int32_t *counts = NULL;
  int64_t all = r->combine_rows_max;
  for (int set = 0; set < SETS; set++)
    if (r->plan[set]->rows + 1 > all) all = r->plan[set]->rows + 1;
  CUDA(cudaMalloc((void **)&counts, width * sizeof *counts));
  TRY(in_room_for(r, all, counts));
  TRY(in_room_for(r, MANY_ROWS, counts));
  cudaFree(counts);
  return DT_OK;
}

static dt_status work(rank *r) {
  TRY(prepare(r));
  if (r->part == ABSENT) return stay_away(r);
  if (r->part == CAPACITIES) return capacities(r);
  for (int layout = 0; layout <= DT_LAYOUT_ALIGNED; layout++)
    for (int order = 0; order <= DT_ORDER_PACED; order++)
      if (!r->problem->brief || (layout == 0) == (order == DT_ORDER_PACED))
        TRY(variant(r, (dt_layout)layout, (dt_order)order));
  return DT_OK;
}

static void *run_rank(void *context) {
  rank *r = context;
  r->status = dt_comm_create_cuda(r->control, r->device, &r->comm);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->control, r->status, r->detail);
    return NULL;
  }
  r->status = work(r);
  if (r->status) snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
  if (r->status) dt_comm_abort(r->comm, r->status, r->detail);
  cudaDeviceSynchronize();
  dt_combine_destroy(r->combine);
  for (int set = 0; set < SETS; set++) cudaFree(r->expected[set]);
  cudaFree(r->b), cudaFree(r->wrong);
  if (r->stream) cudaStreamDestroy(r->stream);
  return NULL;
}

/* counts[source][expert]: one of the fillings that are not routed. */
static void fill_counts(const problem *p, int set, int32_t *counts) {
  static const int32_t uneven[] = {162, 0, 2577, 446, 0, 83};
  const int32_t width = p->ranks * p->experts;
  for (int32_t s = 0; s < p->ranks; s++)
    for (int32_t g = 0; g < width; g++) {
      int32_t *at = &counts[s * width + g];
      const int32_t e = g % p->experts, home = g / p->experts;
      if (p->filling == BARE && home == p->ranks - 1) *at = 0;
      if (p->filling == SILENT) *at = s == 1 || home != 0 ? 0 : (int32_t)p->rows / (e + 1 + set);
      if (p->filling == ONE_EXPERT) *at = g == set ? (int32_t)p->rows : 0;
      if (p->filling == UNEVEN) {
        const int32_t rows = uneven[set ? 5 - e : e];
        *at = s == 0 ? rows / 3 : rows - rows / 3;
      }
      if (p->filling == FEW) *at = s == set && g % 27 == 5; /* 10 of 256 */
    }
}

static int check(const problem *p, int gpus, trial part) {
  const int32_t width = p->ranks * p->experts;
  int32_t *counts[SETS];
  dt_comm *controls[RANKS_MAX];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 20;
  for (int set = 0; set < SETS; set++) {
    counts[set] = calloc((size_t)(p->ranks * width), sizeof **counts);
    if (dt_combine_route(p->router, 11 + (uint64_t)set, p->ranks, p->experts, (p->rows / (1 + set) + 1) / 2 * 2,
                         counts[set])) {
      printf("FAIL %s\n", dt_error_detail());
      return 0;
    }
    fill_counts(p, set, counts[set]);
  }
  if (dt_comm_create_local(p->ranks, &config, controls) != DT_OK) return 0;
  memset(ranks, 0, sizeof ranks);
  const int32_t together = (p->ranks + gpus - 1) / gpus;
  for (int32_t r = 0; r < p->ranks; r++) {
    int sms = 0;
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r % gpus);
    ranks[r] = (rank){.rank = r,
                      .device = r % gpus,
                      .sms = together > 1           ? sms / together / 2 * 2
                             : r == 0 && p->k < 768 ? 78
                                                    : 0,
                      .control = controls[r],
                      .problem = p,
                      .shape = {.ranks = p->ranks,
                                .rank = r,
                                .experts = p->experts,
                                .segment_bands = p->segment_bands,
                                .n = p->n,
                                .k = p->k},
                      .counts = {counts[0], counts[1]},
                      .part = part};
  }
  for (int32_t r = 0; r < p->ranks; r++) pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  for (int32_t r = 0; r < p->ranks; r++) pthread_join(ranks[r].thread, NULL);
  int good = 1, checks = 0, turned = 0;
  if (part == ABSENT) {
    good = ranks[0].checks == FORMS;
    printf("%-4s a rank that stays away: %d forms; %s\n", good ? "ok" : "FAIL", ranks[0].checks, ranks[0].detail);
  }
  for (int32_t r = 0; r < p->ranks; r++) {
    checks += ranks[r].checks;
    turned += ranks[r].turned;
    turned_anywhere |= ranks[r].turned;
    if (ranks[r].status == DT_OK && ranks[r].words_wrong == 0) continue;
    printf("FAIL rank %d, layout %d order %d: %s: %s; %llu wrong, first: %s\n", r, (int)ranks[r].layout,
           (int)ranks[r].order, dt_status_name(ranks[r].status), ranks[r].detail, ranks[r].words_wrong, ranks[r].where);
    good = 0;
  }
  if (part != ABSENT)
    printf("%-4s %sranks %d on %d GPUs, rows %lld n %lld k %lld experts %d router %d filling %d: %d checks, %d with "
           "turned tasks\n",
           good ? "ok" : "FAIL", part == CAPACITIES ? "room for the rows and for 200,000: " : "", p->ranks,
           gpus < p->ranks ? gpus : p->ranks, (long long)p->rows, (long long)p->n, (long long)p->k, p->experts,
           (int)p->router, (int)p->filling, checks, turned);
  fflush(stdout);
  for (int32_t r = 0; r < p->ranks; r++) {
    for (int set = 0; set < SETS; set++) {
      free(ranks[r].product[set]);
      dt_plan_destroy(ranks[r].plan[set]);
    }
    dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  }
  for (int set = 0; set < SETS; set++) free(counts[set]);
  return good;
}

int main(int count, char **arguments) {
  /* Ranks that share a GPU wait for one another: a hardware queue for each of their streams. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  enum { PROBLEMS = sizeof problems / sizeof *problems };
  const int gpus = support_gpus(2);
  if (gpus < 1) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  if (count > 1 && strcmp(arguments[1], "capacity") == 0) return !check(&few_rows, gpus, CAPACITIES);
  if (count > 1) return !check(&problems[atoi(arguments[1]) % PROBLEMS], gpus, VARIANTS);
  int good = 1;
  for (size_t i = 0; i < PROBLEMS && good; i++) good &= check(&problems[i], gpus, VARIANTS);
  if (good && !turned_anywhere) good = 0, printf("FAIL no problem has turned tasks\n");
  if (good && gpus > 1) good &= check(&problems[PROBLEMS - 1], 1, VARIANTS); /* four on one GPU */
  if (good) good &= check(&problems[3], gpus, ABSENT);
  return !(good && check(&few_rows, gpus, CAPACITIES));
}
