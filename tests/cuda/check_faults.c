/* The combine operator when something is wrong, ranks as processes on two GPUs: a peer that is killed or stopped, ranks
 * that disagree, counts that do not fit, a multiprocessor that another stream keeps busy; and an operand and buffer of
 * more than 2^31 elements. Exit code 77 without two Hopper GPUs.
 */
#include <draintile/combine.h>

#include "combine_support.h"
#include "cuda/driver.h"
#include "fault_processes.h"

enum { EXPERTS = 3, ROWS = 600, N = 512, K = 128 };
static const double TIMEOUT_S = 1.0;

/* An operator with everything that a run needs. */
typedef struct fixture {
  support_shape shape;
  int32_t counts[RANKS * RANKS * EXPERTS];
  dt_plan *plan;
  dt_combine *combine;
  uint16_t *a, *b, *product;
} fixture;

static dt_status fixture_plan(fixture *f, int32_t rank) {
  memset(f, 0, sizeof *f);
  f->shape = (support_shape){RANKS, rank, EXPERTS, 1, N, K};
  TRY(dt_combine_route(DT_ROUTER_MODERATE, 5, RANKS, EXPERTS, ROWS, f->counts));
  return support_plan(&f->shape, f->counts, DT_LAYOUT_PACKED, DT_ORDER_NATURAL, &f->plan);
}

static dt_combine_config fixture_config(const fixture *f, dt_comm *comm) {
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = comm;
  config.experts_per_rank = EXPERTS;
  config.n = N;
  config.k = K;
  config.rows_max = f->plan->rows;
  config.combine_rows_max = f->plan->combine_rows;
  config.timeout_s = TIMEOUT_S;
  return config;
}

static dt_status fixture_make(fixture *f, const rank_process *r) {
  TRY(fixture_plan(f, r->rank));
  TRY(support_weights(&f->shape, &f->b));
  CUDA(cudaMalloc((void **)&f->a, 2 * (size_t)(f->plan->rows * K)));
  TRY(support_operand(&f->shape, 0, f->plan, f->plan->rows, f->a));
  TRY(support_product(&f->shape, 0, f->plan, f->b, r->stream, &f->product));
  const dt_combine_config config = fixture_config(f, r->comm);
  TRY(dt_combine_create(&config, &f->combine));
  TRY(dt_combine_set_counts(f->combine, f->counts));
  return dt_comm_barrier(r->comm, "made");
}

static dt_status run(const rank_process *r, fixture *f, dt_combine_mode mode) {
  TRY(dt_combine_run(f->combine, mode, f->a, f->b, r->stream));
  return dt_combine_check(f->combine, r->stream);
}

/* Rank 1 is killed or stopped in a loop of runs: direct's tiles wait for it beside the entry, or signal's consumers do.
 */
static int a_peer_goes_away(rank_process *r, dt_combine_mode mode) {
  fixture f;
  EXPECT(fixture_make(&f, r) == DT_OK);
  __atomic_store_n(&r->board->running[r->rank], 1, __ATOMIC_SEQ_CST);
  dt_status status = DT_OK;
  int64_t rounds = 0;
  for (; !status; rounds++) status = run(r, &f, mode);
  if (r->rank == 1) return __LINE__; /* it is to be dead by now */
  const double took_s = now_s() - r->board->acted_s;
  printf("     %lld rounds, then after %.2f s %s: %s\n", (long long)rounds, took_s, dt_status_name(status),
         dt_error_detail());
  EXPECT(status == DT_ERR_TIMEOUT || status == DT_ERR_PEER);
  EXPECT(strstr(dt_error_detail(), "rank 1") != NULL);
  EXPECT(took_s < TIMEOUT_S + 1.0);
  const double start_s = now_s();
  EXPECT(run(r, &f, DT_COMBINE_SIGNAL) == status); /* at once: the error stays */
  EXPECT(now_s() - start_s < 0.5);
  uint16_t *again = NULL; /* the GPU still works */
  EXPECT(support_product(&f.shape, 0, f.plan, f.b, r->stream, &again) == DT_OK);
  EXPECT(memcmp(again, f.product, 2 * (size_t)(f.plan->rows * N)) == 0);
  dt_combine_destroy(f.combine);
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  EXPECT(now_s() - start_s < 5.0);
  return 0;
}

static int a_peer_of_direct(rank_process *r) {
  return a_peer_goes_away(r, DT_COMBINE_DIRECT);
}
static int a_peer_of_signal(rank_process *r) {
  return a_peer_goes_away(r, DT_COMBINE_SIGNAL);
}

/* Case 14. */
static int ranks_disagree(rank_process *r) {
  fixture f;
  EXPECT(fixture_plan(&f, r->rank) == DT_OK);
  static const char *const fields[] = {"experts_per_rank", "n", "k"};
  for (int i = 0; i < 3; i++) {
    dt_combine_config config = fixture_config(&f, r->comm);
    if (r->rank == 1 && i == 0) config.experts_per_rank++;
    if (r->rank == 1 && i == 1) config.n += 8;
    if (r->rank == 1 && i == 2) config.k += 8;
    dt_combine *combine = NULL;
    EXPECT(dt_combine_create(&config, &combine) == DT_ERR_MISMATCH);
    EXPECT(strstr(dt_error_detail(), fields[i]) != NULL && combine == NULL);
    if (r->rank == 0) printf("     %s\n", dt_error_detail());
  }
  return 0;
}

/* Counts on the device that do not fit, each in an operator of its own since errors stay. */
static int counts_do_not_fit(rank_process *r) {
  const struct {
    int32_t source, expert, count;
    dt_status status[RANKS];
  } cases[] = {{1, 0, 3 * ROWS, {DT_ERR_CAPACITY, DT_ERR_CAPACITY}}, /* more than rank 1's buffer holds */
               {1, 2, -1, {DT_ERR_INPUT, DT_ERR_INPUT}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    fixture f;
    EXPECT(fixture_make(&f, r) == DT_OK);
    int32_t *own = &f.counts[r->rank * RANKS * EXPERTS], *counts = NULL;
    if (r->rank == cases[i].source) own[cases[i].expert] = cases[i].count;
    EXPECT(cudaMalloc((void **)&counts, RANKS * EXPERTS * sizeof *counts) == cudaSuccess);
    EXPECT(dt_cuda_write(counts, own, RANKS * EXPERTS * sizeof *counts) == cudaSuccess);
    EXPECT(dt_combine_follow_counts(f.combine, counts) == DT_OK);
    const dt_status status = run(r, &f, DT_COMBINE_SIGNAL);
    if (r->rank == 0) printf("     %s: %s\n", dt_status_name(status), dt_error_detail());
    /* A rank may hear of its peer's failure before it has seen its own. */
    EXPECT(status == cases[i].status[r->rank] || status == DT_ERR_PEER);
    EXPECT(dt_comm_barrier(r->comm, "refused") == DT_OK);
    dt_combine_destroy(f.combine);
    cudaFree(counts);
  }
  return 0;
}

/* Case 1: less than the whole GPU is there, in every mode. */
static int a_multiprocessor_is_busy(rank_process *r) {
  fixture f;
  uint32_t *end = NULL;
  unsigned long long *wrong = NULL, words = 0;
  void *first = NULL;
  cudaStream_t other = NULL;
  EXPECT(fixture_make(&f, r) == DT_OK);
  const int64_t bytes = 2 * f.plan->combine_rows * N;
  EXPECT(cudaHostAlloc((void **)&end, sizeof *end, cudaHostAllocMapped) == cudaSuccess);
  EXPECT(cudaMalloc((void **)&wrong, sizeof *wrong) == cudaSuccess && cudaMalloc(&first, (size_t)bytes) == cudaSuccess);
  EXPECT(dt_cuda_fill(wrong, 0, sizeof *wrong) == cudaSuccess);
  EXPECT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
  EXPECT(run(r, &f, DT_COMBINE_BULK) == DT_OK);
  EXPECT(dt_cuda_write(first, dt_combine_buffer(f.combine), (size_t)bytes) == cudaSuccess);
  *(volatile uint32_t *)end = 0;
  EXPECT(support_hold(end, 10.0, other) == cudaSuccess);
  for (int mode = 0; mode < 3; mode++) {
    EXPECT(support_poison(dt_combine_buffer(f.combine), bytes, r->stream) == cudaSuccess);
    EXPECT(run(r, &f, (dt_combine_mode)mode) == DT_OK);
    EXPECT(support_compare(dt_combine_buffer(f.combine), first, bytes, wrong, r->stream) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(r->stream) == cudaSuccess);
  }
  EXPECT(cudaStreamQuery(other) == cudaErrorNotReady); /* it was held all the time */
  *(volatile uint32_t *)end = 1;
  EXPECT(cudaStreamSynchronize(other) == cudaSuccess);
  EXPECT(cudaMemcpy(&words, wrong, sizeof words, cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT(words == 0);
  EXPECT(dt_comm_barrier(r->comm, "end") == DT_OK);
  dt_combine_destroy(f.combine);
  return 0;
}

/* Case 10: every row belongs to the peer, more than 2^31 elements of output; small integers, so that sums are exact. */
enum { LARGE_ROWS = 66000, LARGE_N = 32768, LARGE_K = 8 };
static int integer_at(int64_t i, int64_t j, int salt) {
  return (int)((i * (5 + salt) + j * 3 + i / 1021) % 5) - 2;
}
static uint16_t *integers(int64_t rows, int salt) {
  static const uint16_t bf16[] = {0xc000, 0xbf80, 0, 0x3f80, 0x4000}; /* -2 to 2 */
  uint16_t *host = malloc(2 * (size_t)(rows * LARGE_K)), *device = NULL;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < LARGE_K; j++) host[i * LARGE_K + j] = bf16[integer_at(i, j, salt) + 2];
  if (cudaMalloc((void **)&device, 2 * (size_t)(rows * LARGE_K)) != cudaSuccess ||
      dt_cuda_write(device, host, 2 * (size_t)(rows * LARGE_K)) != cudaSuccess)
    device = NULL;
  free(host);
  return device;
}
static int64_t wrong_in_row(const uint16_t *out, int64_t row) {
  int64_t wrong = 0;
  for (int64_t c = 0; c < LARGE_N; c++) {
    int sum = 0;
    for (int64_t j = 0; j < LARGE_K; j++) sum += integer_at(row, j, 0) * integer_at(c, j, 2);
    const uint32_t bits = (uint32_t)out[c] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    wrong += value != (float)sum;
  }
  return wrong;
}
static int more_than_2_31_elements(rank_process *r) {
  const int32_t counts[RANKS * RANKS] = {0, LARGE_ROWS, LARGE_ROWS, 0};
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = 1;
  config.n = LARGE_N;
  config.k = LARGE_K;
  config.rows_max = config.combine_rows_max = LARGE_ROWS;
  dt_combine *combine = NULL;
  EXPECT(dt_combine_create(&config, &combine) == DT_OK);
  EXPECT(dt_combine_set_counts(combine, counts) == DT_OK);
  uint16_t *a = integers(LARGE_ROWS, 0), *b = integers(LARGE_N, 2), *row = malloc(2 * LARGE_N);
  const uint16_t *buffer = dt_combine_buffer(combine);
  EXPECT(a != NULL && b != NULL);
  for (int mode = DT_COMBINE_SIGNAL; mode <= DT_COMBINE_DIRECT; mode++) {
    EXPECT(support_poison(dt_combine_buffer(combine), (int64_t)2 * LARGE_ROWS * LARGE_N, r->stream) == cudaSuccess);
    EXPECT(dt_combine_run(combine, (dt_combine_mode)mode, a, b, r->stream) == DT_OK);
    EXPECT(dt_combine_check(combine, r->stream) == DT_OK);
    for (int i = 0; i <= 60; i++) {
      const int64_t at = i == 60 ? 65536 : (int64_t)(LARGE_ROWS - 1) * i / 59; /* 65536: element 2^31 */
      EXPECT(cudaMemcpy(row, buffer + at * LARGE_N, 2 * LARGE_N, cudaMemcpyDeviceToHost) == cudaSuccess);
      EXPECT(wrong_in_row(row, at) == 0);
    }
    EXPECT(dt_comm_barrier(r->comm, "mode") == DT_OK);
  }
  dt_combine_destroy(combine);
  return 0;
}

int main(void) {
  if (count_gpus() < RANKS) {
    printf("skipped: no two Hopper GPUs with peer access\n");
    return SKIPPED;
  }
  static const struct {
    const char *name;
    process_body body;
    int action;
  } checks[] = {
      {"ranks that disagree", ranks_disagree, 0},
      {"counts that do not fit", counts_do_not_fit, 0},
      {"a multiprocessor that another stream holds", a_multiprocessor_is_busy, 0},
      {"a peer that is killed, direct", a_peer_of_direct, SIGKILL},
      {"a peer that is killed, signal", a_peer_of_signal, SIGKILL},
      {"a peer that is stopped, direct", a_peer_of_direct, SIGSTOP},
      {"a peer that is stopped, signal", a_peer_of_signal, SIGSTOP},
      {"more than 2^31 elements", more_than_2_31_elements, 0},
  };
  int good = 1;
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
    good &= check_processes(checks[i].name, RANKS, checks[i].body, NULL, checks[i].action);
  return !good;
}
