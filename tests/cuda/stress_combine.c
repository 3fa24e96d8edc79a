/* Stress of the combine operator: rounds without a pause, of four small operators in turn (counts of the host, counts
 * on the device that change), all modes in turn, other data in each round, ranks delayed at random; each buffer is
 * poisoned before and compared to its end after its round, on the device. Epochs start so that they pass 2^32 half way.
 *
 *   stress_combine [ROUNDS]     default 100000
 *
 * Before it, two faults that it must see: rows and bands announced before they are stored. Two GPUs; on one, the ranks
 * share it. Exit code 77 without a Hopper GPU.
 */
#include <draintile/combine.h>

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "combine_support.h"
#include "core/error.h"
#include "core/random.h"
#include "cuda/combine_handle.h"
#include "cuda/driver.h"

enum { RANKS = 2, OPERATORS = 4, VARIANTS = 3, EACH_CHECK = 500, CONTROL_ROUNDS = 600, DELAY_NS = 12000 };

typedef struct operator_shape {
  int64_t rows, n, k;
  int32_t experts, consumers, segment_bands;
  dt_layout layout;
  dt_order order;
  int follow; /* counts on the device, another routing for each variant */
} operator_shape;
static const operator_shape shapes[OPERATORS] = {{500, 512, 64, 3, 4, 1, DT_LAYOUT_PACKED, DT_ORDER_REMOTE_FIRST, 0},
                                                 {300, 264, 72, 5, 2, 2, DT_LAYOUT_PACKED, DT_ORDER_PACED, 1},
                                                 {180, 512, 64, 2, 6, 1, DT_LAYOUT_ALIGNED, DT_ORDER_NATURAL, 1},
                                                 /* direct turns tasks (tile_split.h) */
                                                 {500, 256, 768, 3, 4, 1, DT_LAYOUT_PACKED, DT_ORDER_NATURAL, 0}};
/* The controls': one rank has so few multiprocessors that the other is done long before it. */
static const operator_shape control_shape = {1000, 1024, 256, 2, 2, 1, DT_LAYOUT_PACKED, DT_ORDER_NATURAL, 0};

typedef struct operator_data {
  dt_combine *combine;
  int64_t bytes; /* of the buffer */
  uint16_t *b;
  dt_plan *plans[VARIANTS];
  uint16_t *products[VARIANTS];
  uint16_t *a[VARIANTS], *expected[VARIANTS];
  int32_t *counts, *counts_of[VARIANTS]; /* device */
} operator_data;

typedef struct rank_state {
  pthread_t thread;
  int32_t rank, device, sms;
  int64_t rounds;
  dt_combine_fault fault;
  dt_combine_mode control_mode;
  dt_comm *control, *comm;
  cudaStream_t stream, noise;
  operator_data of[OPERATORS];
  unsigned long long *wrong, words_wrong, rounds_done;
  dt_status status;
  char detail[256];
} rank_state;
static rank_state ranks[RANKS];

static const operator_shape *shape_of(const rank_state *r, int index) {
  return r->fault ? &control_shape : &shapes[index];
}
static int operators_of(const rank_state *r) {
  return r->fault ? 1 : OPERATORS;
}

/* Products of all variants, what each rank's buffer must hold, and the operator. */
static dt_status prepare(rank_state *r, int index, uint32_t epoch) {
  const operator_shape *o = shape_of(r, index);
  operator_data *d = &r->of[index];
  const support_shape s = {RANKS, r->rank, o->experts, o->segment_bands, o->n, o->k};
  const size_t width = (size_t)(RANKS * o->experts);
  int32_t *counts[VARIANTS];
  int64_t rows_max = 1, combine_rows_max = 1;
  dt_plan *laid_out[VARIANTS];
  TRY(support_weights(&s, &d->b));
  CUDA(cudaMalloc((void **)&d->counts, width * sizeof **counts));
  for (int v = 0; v < VARIANTS; v++) {
    counts[v] = calloc(RANKS * width, sizeof **counts);
    TRY(dt_combine_route(DT_ROUTER_MODERATE, o->follow ? 7 + (uint64_t)v : 7, RANKS, o->experts, o->rows, counts[v]));
    TRY(support_plan(&s, counts[v], DT_LAYOUT_PACKED, DT_ORDER_NATURAL, &d->plans[v]));
    TRY(support_plan(&s, counts[v], o->layout, o->order, &laid_out[v]));
    TRY(support_product(&s, 1 + (uint64_t)v, d->plans[v], d->b, r->stream, &d->products[v]));
    if (laid_out[v]->rows + 1 > rows_max) rows_max = laid_out[v]->rows + 1;
    if (laid_out[v]->combine_rows + 1 > combine_rows_max) combine_rows_max = laid_out[v]->combine_rows + 1;
    CUDA(cudaMalloc((void **)&d->counts_of[v], width * sizeof **counts));
    CUDA(dt_cuda_write(d->counts_of[v], counts[v] + (size_t)r->rank * width, width * sizeof **counts));
  }
  TRY(dt_comm_barrier(r->comm, "products"));
  for (int v = 0; v < VARIANTS; v++) {
    dt_plan *plans[RANKS];
    uint16_t *products[RANKS];
    for (int32_t e = 0; e < RANKS; e++) {
      plans[e] = ranks[e].of[index].plans[v];
      products[e] = ranks[e].of[index].products[v];
    }
    TRY(support_expect(&s, plans, products, combine_rows_max, &d->expected[v]));
    CUDA(cudaMalloc((void **)&d->a[v], 2 * (size_t)(rows_max * o->k)));
    TRY(support_operand(&s, 1 + (uint64_t)v, laid_out[v], rows_max, d->a[v]));
    dt_plan_destroy(laid_out[v]);
  }
  d->bytes = 2 * combine_rows_max * o->n;
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = o->experts;
  config.n = o->n;
  config.k = o->k;
  config.rows_max = rows_max;
  config.combine_rows_max = combine_rows_max;
  config.consumers = o->consumers;
  config.segment_bands = o->segment_bands;
  config.layout = o->layout;
  config.order = o->order;
  config.sms = r->sms;
  config.timeout_s = 3;
  TRY(dt_combine_create(&config, &d->combine));
  CUDA(support_delay(1000, d->combine->side)); /* its first launch may wait for a peer's on the same GPU */
  if (o->follow) {
    TRY(dt_combine_follow_counts(d->combine, d->counts));
  } else {
    TRY(dt_combine_set_counts(d->combine, counts[0]));
    if (o->k >= 768 && r->sms == 0 && !d->combine->split) return dt_fail(DT_ERR_INTERNAL, "no task is turned");
  }
  TRY(dt_combine_set_epoch(d->combine, epoch));
  dt_combine_set_fault(d->combine, r->fault);
  for (int v = 0; v < VARIANTS; v++) free(counts[v]);
  CUDA(cudaDeviceSynchronize());
  return dt_comm_barrier(r->comm, "made");
}

static void release(rank_state *r, int index) {
  operator_data *d = &r->of[index];
  dt_combine_destroy(d->combine);
  for (int v = 0; v < VARIANTS; v++) {
    dt_plan_destroy(d->plans[v]);
    free(d->products[v]);
    cudaFree(d->a[v]), cudaFree(d->expected[v]), cudaFree(d->counts_of[v]);
  }
  cudaFree(d->b), cudaFree(d->counts);
}

static dt_status queue_round(rank_state *r, dt_random *delays, int64_t round) {
  const int index = (int)(round % operators_of(r)), v = (int)(support_mix((uint64_t)round) % VARIANTS);
  const operator_shape *o = shape_of(r, index);
  operator_data *d = &r->of[index];
  const dt_combine_mode mode = r->fault ? r->control_mode : (dt_combine_mode)(round / OPERATORS % 3);
  const uint64_t dice = dt_random_u64(delays);
  /* One round in four starts late, one in eight with a multiprocessor that is busy for a while. */
  if (dice % 4 == 0) CUDA(support_delay((uint32_t)(dice >> 8) % DELAY_NS, r->stream));
  if (dice % 8 == 1) CUDA(support_delay((uint32_t)(dice >> 8) % DELAY_NS, r->noise));
  if (o->follow)
    CUDA(cudaMemcpyAsync(d->counts, d->counts_of[v], (size_t)(RANKS * o->experts) * sizeof *d->counts,
                         cudaMemcpyDeviceToDevice, r->stream));
  CUDA(support_poison(dt_combine_buffer(d->combine), d->bytes, r->stream));
  /* Consumers in either launch, tiles beside the entry or after it: the ranks need not do the same. */
  dt_combine_set_form(d->combine, (dt_combine_launch)(dice >> 40 & 1), (dt_combine_entry)((dice >> 41 & 3) == 3));
  TRY(dt_combine_run(d->combine, mode, d->a[v], d->b, r->stream));
  CUDA(support_compare(dt_combine_buffer(d->combine), d->expected[v], d->bytes, r->wrong, r->stream));
  return DT_OK;
}

static dt_status work(rank_state *r) {
  CUDA(cudaSetDevice(r->device));
  CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&r->noise, cudaStreamNonBlocking));
  CUDA(cudaMalloc((void **)&r->wrong, sizeof *r->wrong));
  CUDA(dt_cuda_fill(r->wrong, 0, sizeof *r->wrong));
  const uint32_t epoch = (uint32_t)(0 - (uint64_t)(r->rounds / (2 * operators_of(r))));
  for (int i = 0; i < operators_of(r); i++) TRY(prepare(r, i, epoch));
  dt_random delays = {100 + (uint64_t)r->rank};
  for (int64_t round = 0; round < r->rounds; round++) {
    TRY(queue_round(r, &delays, round));
    if ((round + 1) % EACH_CHECK != 0 && round + 1 != r->rounds) continue;
    for (int i = 0; i < operators_of(r); i++) TRY(dt_combine_check(r->of[i].combine, r->stream));
    CUDA(cudaMemcpy(&r->words_wrong, r->wrong, sizeof r->words_wrong, cudaMemcpyDeviceToHost));
    r->rounds_done = (unsigned long long)round + 1;
    if (r->words_wrong && !r->fault) return DT_OK; /* the peer's wait for this rank expires */
  }
  return dt_comm_barrier(r->comm, "end");
}

static void *run_rank(void *context) {
  rank_state *r = context;
  r->status = dt_comm_create_cuda(r->control, r->device, &r->comm);
  if (!r->status) r->status = work(r);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->comm ? r->comm : r->control, r->status, r->detail);
  }
  cudaDeviceSynchronize();
  for (int i = 0; i < operators_of(r); i++) release(r, i);
  cudaFree(r->wrong);
  if (r->stream) cudaStreamDestroy(r->stream);
  if (r->noise) cudaStreamDestroy(r->noise);
  return NULL;
}

/* Words that were wrong; *good: every rank came to its end without an error. */
static unsigned long long run(int gpus, int64_t rounds, dt_combine_fault fault, dt_combine_mode mode, int *good) {
  dt_comm *controls[RANKS];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 20;
  *good = dt_comm_create_local(RANKS, &config, controls) == DT_OK;
  if (!*good) return 0;
  memset(ranks, 0, sizeof ranks);
  for (int32_t r = 0; r < RANKS; r++) {
    ranks[r] = (rank_state){.rank = r, .device = r % gpus, .control = controls[r]};
    ranks[r].sms = fault && r == 1 ? 4 : gpus < RANKS ? 60 : 0;
    ranks[r].rounds = rounds;
    ranks[r].fault = fault;
    ranks[r].control_mode = mode;
  }
  for (int32_t r = 0; r < RANKS; r++) pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  for (int32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
  unsigned long long words = 0;
  for (int32_t r = 0; r < RANKS; r++) {
    words += ranks[r].words_wrong;
    if (ranks[r].status) {
      printf("rank %d after %llu rounds: %s: %s\n", r, ranks[r].rounds_done, dt_status_name(ranks[r].status),
             ranks[r].detail);
      *good = 0;
    }
    dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  }
  return words;
}

int main(int count, char **arguments) {
  setvbuf(stdout, NULL, _IOLBF, 0); /* what a run that is ended from outside has said stays */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const int64_t rounds = count > 1 ? atoll(arguments[1]) : 100000;
  const int gpus = support_gpus(RANKS);
  if (gpus < 1 || rounds < 1) {
    printf(gpus < 1 ? "skipped: no Hopper GPU\n" : "ROUNDS: at least 1\n");
    return gpus < 1 ? 77 : 2;
  }
  const struct {
    const char *name;
    dt_combine_fault fault;
    dt_combine_mode mode;
  } controls[] = {{"rows announced before they are stored", DT_COMBINE_FAULT_ARRIVED, DT_COMBINE_DIRECT},
                  {"bands announced before they are stored", DT_COMBINE_FAULT_READY, DT_COMBINE_SIGNAL}};
  int good = 1;
  for (int i = 0; i < 2; i++) {
    int clean;
    const unsigned long long words = run(gpus, CONTROL_ROUNDS, controls[i].fault, controls[i].mode, &clean);
    printf("%-4s control: %s: %llu words wrong in %d rounds\n", words && clean ? "ok" : "FAIL", controls[i].name, words,
           CONTROL_ROUNDS);
    good &= words != 0 && clean;
  }
  struct timespec start, end;
  int clean;
  clock_gettime(CLOCK_MONOTONIC, &start);
  const unsigned long long words = run(gpus, rounds, DT_COMBINE_FAULT_NONE, DT_COMBINE_BULK, &clean);
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%-4s %llu of %lld rounds on %d GPUs, epochs past 2^32: %llu words wrong, %.1f s\n",
         words == 0 && clean ? "ok" : "FAIL", ranks[0].rounds_done, (long long)rounds, gpus, words,
         (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
  return !(good && clean && words == 0);
}
