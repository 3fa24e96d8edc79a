/* Checks the spans of the combine's direct mode on GPUs: its rows are bulk's to the bit, every tile has one span and
 * one of its stores a warpgroup, and their bytes are those of the rows that cross. Ranks are threads, on one GPU or
 * two. Exit code 77 without a Hopper GPU.
 */
#include <draintile/combine.h>

#include <pthread.h>
#include <string.h>

#include "combine_support.h"
#include "cuda/combine_handle.h"

enum { RANKS = 2 };

typedef struct problem {
  int64_t rows, n, k;
  int32_t experts;
  dt_combine_router router;
  dt_combine_entry entry;
} problem;
static const problem problems[] = {{300, 264, 72, 3, DT_ROUTER_MODERATE, DT_COMBINE_ENTRY_BESIDE},
                                   {4096, 2048, 768, 16, DT_ROUTER_CROSSED, DT_COMBINE_ENTRY_BESIDE},
                                   {4096, 1024, 256, 8, DT_ROUTER_BALANCED, DT_COMBINE_ENTRY_BEFORE},
                                   {8192, 8192, 512, 8, DT_ROUTER_STRESS, DT_COMBINE_ENTRY_BESIDE}};

typedef struct rank {
  pthread_t thread;
  int32_t rank, device, sms;
  const problem *problem;
  const int32_t *counts;
  int64_t rows, combine_rows, sent_rows;
  dt_comm *control, *comm;
  dt_status status;
} rank;

static dt_status wrong(const rank *r, const char *what, long long seen, long long expected) {
  printf("FAIL rank %d: %s: %lld; %lld expected\n", r->rank, what, seen, expected);
  return DT_ERR_INTERNAL;
}

static dt_status make(const rank *r, int timestamps, dt_combine **combine) {
  dt_combine_config config;
  dt_combine_config_init(&config);
  config.comm = r->comm;
  config.experts_per_rank = r->problem->experts;
  config.n = r->problem->n;
  config.k = r->problem->k;
  config.rows_max = r->rows + 1;
  config.combine_rows_max = r->combine_rows + 1;
  config.entry = r->problem->entry;
  config.sms = r->sms;
  config.timestamps = timestamps;
  config.timeout_s = 2;
  TRY(dt_combine_create(&config, combine));
  return dt_combine_set_counts(*combine, r->counts);
}

static dt_status run(const rank *r, dt_combine *combine, dt_combine_mode mode, const uint16_t *a, const uint16_t *b,
                     cudaStream_t stream, uint16_t *host) {
  const size_t bytes = 2 * (size_t)(r->combine_rows * r->problem->n);
  TRY(dt_comm_barrier(r->comm, "run"));
  for (int i = 0; i < 2; i++) TRY(dt_combine_run(combine, mode, a, b, stream));
  TRY(dt_combine_check(combine, stream));
  CUDA(cudaMemcpyAsync(host, dt_combine_buffer(combine), bytes, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  return dt_comm_barrier(r->comm, "ran");
}

/* Rows times columns of all tiles, counted by warpgroup: each once, so that they are those of the matrix. */
static dt_status check_spans(const rank *r, dt_combine *combine, cudaStream_t stream) {
  const dt_span *spans = NULL;
  size_t count = 0;
  uint64_t lost = 0;
  TRY(dt_combine_spans(combine, stream, &spans, &count, &lost));
  if (lost != 0) return wrong(r, "spans lost", (long long)lost, 0);
  int64_t rows[2] = {0, 0}, bytes = 0, tiles[2] = {0, 0};
  for (size_t i = 0; i < count; i++) {
    const int store = spans[i].kind == DT_SPAN_STORE;
    if (spans[i].begin_ns > spans[i].end_ns) return wrong(r, "length of a span in ns", -1, 0);
    rows[store] += spans[i].rows;
    tiles[store]++;
    if (store) bytes += spans[i].bytes;
  }
  const int64_t columns = (r->problem->n + 255) / 256, most = r->rows * columns;
  /* The last round's tasks may be cut to half the columns, so a row may be counted twice a column of tiles. */
  if (rows[0] < most || rows[0] > 2 * most) return wrong(r, "rows of tiles", rows[0], most);
  if (rows[1] != rows[0]) return wrong(r, "rows of stores", rows[1], rows[0]);
  if (tiles[1] != tiles[0]) return wrong(r, "stores", tiles[1], tiles[0]);
  if (bytes != 2 * r->sent_rows * r->problem->n) return wrong(r, "bytes", bytes, 2 * r->sent_rows * r->problem->n);
  dt_store_activity activity;
  TRY(dt_trace_stores(spans, count, 1, 5e-6, &activity));
  if (activity.bytes != bytes || activity.active_max > combine->recorder->ctas || activity.k_act < 1)
    return wrong(r, "multiprocessors that store", (long long)activity.active_max, combine->recorder->ctas);
  printf("     rank %d: %zu spans, storing at once %.1f, at most %.0f of %d, K_act %.1f, median %.2f us\n", r->rank,
         count, activity.active_mean, activity.active_max, combine->recorder->ctas, activity.k_act,
         1e6 * activity.span_median_s);
  return DT_OK;
}

static dt_status work(rank *r) {
  const problem *p = r->problem;
  const support_shape shape = {
      .ranks = RANKS, .rank = r->rank, .experts = p->experts, .segment_bands = 1, .n = p->n, .k = p->k};
  const size_t bytes = 2 * (size_t)(r->combine_rows * p->n);
  dt_combine *plain = NULL, *stamped = NULL;
  uint16_t *a = NULL, *b = NULL, *expected = malloc(bytes + 2), *seen = malloc(bytes + 2);
  dt_plan *plan = NULL;
  cudaStream_t stream;
  const dt_span *spans;
  size_t count;
  uint64_t lost;
  TRY(dt_comm_create_cuda(r->control, r->device, &r->comm));
  CUDA(cudaSetDevice(r->device));
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  TRY(make(r, 0, &plain));
  TRY(make(r, 1, &stamped));
  TRY(support_plan(&shape, r->counts, DT_LAYOUT_PACKED, DT_ORDER_NATURAL, &plan));
  CUDA(cudaMalloc((void **)&a, 2 * (size_t)((r->rows + 1) * p->k)));
  TRY(support_operand(&shape, 1, plan, r->rows + 1, a));
  TRY(support_weights(&shape, &b));
  TRY(run(r, plain, DT_COMBINE_BULK, a, b, stream, expected));
  TRY(run(r, stamped, DT_COMBINE_DIRECT, a, b, stream, seen));
  if (memcmp(expected, seen, bytes) != 0) return wrong(r, "rows differ from bulk's", 1, 0);
  TRY(check_spans(r, stamped, stream));
  if (dt_combine_spans(plain, stream, &spans, &count, &lost) != DT_ERR_ARGUMENT)
    return wrong(r, "spans without timestamps", 0, DT_ERR_ARGUMENT);
  TRY(dt_comm_barrier(r->comm, "end"));
  dt_combine_destroy(stamped);
  dt_combine_destroy(plain);
  dt_plan_destroy(plan);
  cudaFree(a), cudaFree(b), free(expected), free(seen);
  CUDA(cudaStreamDestroy(stream));
  return DT_OK;
}

static void *run_rank(void *context) {
  rank *r = context;
  r->status = work(r);
  if (!r->status) return NULL;
  printf("     rank %d: %s\n", r->rank, dt_error_detail());
  dt_comm_abort(r->comm ? r->comm : r->control, r->status, "a check failed");
  return NULL;
}

static int check(const problem *p, int gpus) {
  const int32_t experts = p->experts;
  int32_t *counts = calloc((size_t)(RANKS * RANKS * experts), sizeof *counts);
  rank ranks[RANKS];
  dt_comm *controls[RANKS];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 10;
  int sms = 0, good = 1;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
  if (dt_combine_route(p->router, 3, RANKS, experts, p->rows, counts) != DT_OK ||
      dt_comm_create_local(RANKS, &config, controls) != DT_OK) {
    printf("FAIL %s\n", dt_error_detail());
    return 0;
  }
  memset(ranks, 0, sizeof ranks);
  for (int32_t r = 0; r < RANKS; r++) {
    ranks[r] = (rank){.rank = r, .device = r % gpus, .problem = p, .counts = counts, .control = controls[r]};
    if (gpus < RANKS) ranks[r].sms = sms / RANKS / 2 * 2;
    for (int32_t s = 0; s < RANKS; s++)
      for (int32_t e = 0; e < experts; e++) {
        const int32_t here = counts[(s * RANKS + r) * experts + e];
        ranks[r].rows += here;
        if (s != r) ranks[r].sent_rows += here;
        ranks[r].combine_rows += counts[(r * RANKS + s) * experts + e];
      }
  }
  for (int32_t r = 0; r < RANKS; r++) pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  for (int32_t r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
  for (int32_t r = 0; r < RANKS; r++) good &= ranks[r].status == DT_OK;
  printf("%-4s ranks %d on %d GPUs, rows %lld n %lld k %lld experts %d\n", good ? "ok" : "FAIL", RANKS, gpus,
         (long long)p->rows, (long long)p->n, (long long)p->k, experts);
  fflush(stdout);
  for (int32_t r = 0; r < RANKS; r++) dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  free(counts);
  return good;
}

int main(void) {
  const int gpus = support_gpus(RANKS);
  if (gpus < 1) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
    if (!check(&problems[i], gpus)) return 1;
  return 0;
}
