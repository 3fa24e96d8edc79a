/* Two Ulysses operators on one communicator, ranks as threads, on one GPU or two: in turns on one stream, both in one
 * graph, one replayed while the other is captured, schedules and parts changed without a pause, ten thousand replays,
 * one destroyed while the other runs, a third in its place. One is short, the other holds rows back. Whatever went
 * before, a run's rows are those of its serial schedule, in every word. Exit code 77 without a Hopper GPU.
 *
 *   check_ulysses_pair [RANKS [REPLAYS]]      2 to 4, and 10,000, unless given
 */
#include <draintile/ulysses.h>

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "combine_support.h"
#include "core/error.h"
#include "cuda/driver.h"
#include "cuda/ulysses.h"

enum { RANKS_MAX = 4, OPERATORS = 2, ROUNDS = 200, FORMS = 3 };

typedef struct problem {
  int64_t tokens, kv_tokens, text;
  int32_t heads, kv_heads, head_dim, holds;
} problem;
static const problem problems[OPERATORS] = {{301, 301, 0, 6, 3, 128, -1}, {1300, 1300, 61, 83, 83, 128, 1}};

typedef struct rank {
  pthread_t thread;
  int32_t rank, ranks, devices, replays;
  dt_comm *control, *comm;
  cudaStream_t stream, other;
  dt_ulysses *ulysses[OPERATORS];
  uint16_t *inputs[OPERATORS][3], *expected[OPERATORS]; /* device */
  int64_t bytes[OPERATORS];
  unsigned long long *wrong;
  dt_status status;
  char detail[256];
} rank;

static dt_ulysses_config configure(const rank *r, int which, int form) {
  const problem *p = &problems[which];
  const int sharing = (r->ranks - r->rank % r->devices + r->devices - 1) / r->devices;
  int sms = 0;
  dt_ulysses_config config;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r->rank % r->devices);
  dt_ulysses_config_init(&config);
  config.comm = r->comm;
  config.sms = sms / sharing;
  config.timeout_s = 5;
  config.attention.dtype = DT_DTYPE_BF16;
  config.attention.tokens = p->tokens;
  config.attention.kv_tokens = p->kv_tokens;
  config.attention.text_tokens = p->text;
  config.attention.heads = p->heads;
  config.attention.kv_heads = p->kv_heads;
  config.attention.head_dim = p->head_dim;
  config.attention.schedule = form == 0 ? DT_ATTENTION_SERIAL : DT_ATTENTION_PIGGYBACK;
  config.attention.overlap_in = form == 2;
  return config;
}

static dt_status set_form(rank *r, int which, int form) {
  const dt_ulysses_config config = configure(r, which, form);
  return dt_ulysses_set_schedule(r->ulysses[which], &config);
}

static dt_status run(rank *r, int which, dt_ulysses_part part, cudaStream_t stream) {
  uint16_t *const *in = r->inputs[which];
  return dt_ulysses_run(r->ulysses[which], part, in[0], in[1], in[2], stream);
}

/* The last run's rows, against those of the first serial one. */
static dt_status compare(rank *r, int which, cudaStream_t stream, const char *what) {
  unsigned long long wrong = 0;
  TRY(dt_ulysses_check(r->ulysses[which], stream));
  CUDA(support_compare(dt_ulysses_output(r->ulysses[which]), r->expected[which], r->bytes[which], r->wrong, stream));
  CUDA(cudaMemcpyAsync(&wrong, r->wrong, sizeof wrong, cudaMemcpyDeviceToHost, stream));
  CUDA(cudaStreamSynchronize(stream));
  if (wrong)
    return dt_fail(DT_ERR_INTERNAL, "operator %d, %s: %llu words differ", which, what, (unsigned long long)wrong);
  return dt_comm_barrier(r->comm, what);
}
static dt_status compare_both(rank *r, const char *what) {
  TRY(compare(r, 0, r->stream, what));
  return compare(r, 1, r->stream, what);
}

static dt_status poison_both(rank *r) {
  for (int which = 0; which < OPERATORS; which++)
    CUDA(support_poison(dt_ulysses_output(r->ulysses[which]), r->bytes[which], r->stream));
  CUDA(cudaStreamSynchronize(r->stream));
  return dt_comm_barrier(r->comm, "poison");
}

static dt_status make_inputs(rank *r, int which) {
  for (int t = 0; t < 3; t++) {
    const dt_ulysses_config config = configure(r, which, 0);
    dt_attention_rows runs[2];
    TRY(dt_attention_rows_in(&config.attention, r->ranks, r->rank, t > 0, runs));
    const int64_t elements = (runs[0].rows + runs[1].rows) * (t ? problems[which].kv_heads : problems[which].heads) *
                             problems[which].head_dim;
    uint16_t *host = malloc(2 * (size_t)elements);
    if (!host) return dt_fail(DT_ERR_MEMORY, "inputs: %lld elements", (long long)elements);
    support_fill(host, elements, (uint64_t)(7 * r->rank + 3 * which + t));
    CUDA(cudaMalloc((void **)&r->inputs[which][t], 2 * (size_t)elements));
    CUDA(dt_cuda_write(r->inputs[which][t], host, 2 * (size_t)elements));
    free(host);
  }
  return DT_OK;
}

/* An operator, and what its serial schedule makes; ranks that share a GPU begin one after the other
 * (docs/notes/ulysses.md). */
static dt_status make(rank *r, int which) {
  static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
  const dt_ulysses_config config = configure(r, which, 0);
  TRY(dt_ulysses_create(&config, &r->ulysses[which]));
  r->ulysses[which]->holds = problems[which].holds;
  r->bytes[which] = (int64_t)dt_window_bytes(r->ulysses[which]->output, r->rank);
  const int first = !r->expected[which];
  if (first) {
    TRY(make_inputs(r, which));
    CUDA(cudaMalloc((void **)&r->expected[which], (size_t)r->bytes[which]));
  }
  TRY(dt_comm_barrier(r->comm, "made"));
  pthread_mutex_lock(&turn);
  const dt_status status = run(r, which, DT_ULYSSES_IN, r->stream);
  pthread_mutex_unlock(&turn);
  TRY(status);
  TRY(dt_ulysses_check(r->ulysses[which], r->stream));
  CUDA(support_poison(dt_ulysses_output(r->ulysses[which]), r->bytes[which], r->stream));
  CUDA(cudaStreamSynchronize(r->stream));
  TRY(dt_comm_barrier(r->comm, "poison"));
  TRY(run(r, which, DT_ULYSSES_WHOLE, r->stream));
  if (!first) return compare(r, which, r->stream, "made again");
  TRY(dt_ulysses_check(r->ulysses[which], r->stream));
  CUDA(dt_cuda_write(r->expected[which], dt_ulysses_output(r->ulysses[which]), (size_t)r->bytes[which]));
  return dt_comm_barrier(r->comm, "serial");
}

/* No host between the runs: neither waits for the other's ranks, nor takes its words for its own. */
static dt_status in_turns(rank *r) {
  TRY(poison_both(r));
  for (int i = 0; i < ROUNDS; i++) {
    if (i % 7 == 0) TRY(set_form(r, i % 2, i / 7 % FORMS));
    TRY(run(r, i % 2, DT_ULYSSES_WHOLE, r->stream));
  }
  return compare_both(r, "in turns");
}

/* Every part in any order, but for output rows only of what was brought whole. */
static dt_status parts_at_random(rank *r) {
  uint64_t random = 41;
  for (int i = 0; i < ROUNDS; i++) {
    random = support_mix(random);
    if (random % 5 == 0) TRY(set_form(r, (int)(random >> 8 & 1), (int)(random >> 16) % FORMS));
    TRY(run(r, (int)(random >> 32 & 1), (dt_ulysses_part)(random >> 40 & 3), r->stream));
  }
  TRY(dt_ulysses_check(r->ulysses[0], r->stream));
  TRY(dt_comm_barrier(r->comm, "parts"));
  TRY(poison_both(r));
  for (int which = 0; which < OPERATORS; which++) TRY(run(r, which, DT_ULYSSES_WHOLE, r->stream));
  TRY(compare_both(r, "parts at random"));
  TRY(poison_both(r));
  for (int which = 0; which < OPERATORS; which++) {
    TRY(run(r, which, DT_ULYSSES_IN, r->stream));
    TRY(run(r, which, DT_ULYSSES_FUSED, r->stream));
  }
  return compare_both(r, "in, then fused");
}

/* Runs of one operator, or of both, as a graph. */
static dt_status capture(rank *r, int first, int last, cudaStream_t stream, cudaGraphExec_t *exec) {
  cudaGraph_t graph;
  dt_status status = DT_OK;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int which = first; which <= last && !status; which++) status = run(r, which, DT_ULYSSES_WHOLE, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  TRY(status);
  CUDA(cudaGraphInstantiate(exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  return DT_OK;
}

/* The short one's graph is replayed while that of both is captured on another stream, and launched there behind it. */
static dt_status in_graphs(rank *r) {
  cudaGraphExec_t one, both;
  cudaEvent_t replayed;
  CUDA(cudaEventCreateWithFlags(&replayed, cudaEventDisableTiming));
  for (int which = 0; which < OPERATORS; which++) TRY(set_form(r, which, 2));
  TRY(capture(r, 0, 0, r->stream, &one));
  CUDA(cudaGraphUpload(one, r->stream));
  CUDA(cudaStreamSynchronize(r->stream));
  TRY(poison_both(r)); /* all ranks have made theirs: that may wait for a GPU that they share */
  for (int i = 0; i < ROUNDS; i++) CUDA(cudaGraphLaunch(one, r->stream));
  CUDA(cudaEventRecord(replayed, r->stream));
  TRY(capture(r, 0, 1, r->other, &both));
  CUDA(cudaEventSynchronize(replayed));
  TRY(compare(r, 0, r->stream, "replays beside a capture"));
  CUDA(cudaGraphUpload(both, r->other));
  CUDA(cudaStreamSynchronize(r->other));
  TRY(poison_both(r));
  for (int i = 0; i < ROUNDS; i++) CUDA(cudaGraphLaunch(both, r->other));
  TRY(compare(r, 1, r->other, "both in one graph"));
  TRY(compare(r, 0, r->other, "both in one graph"));
  TRY(poison_both(r));
  for (int i = 0; i < r->replays; i++) {
    CUDA(cudaGraphLaunch(one, r->stream));
    if (i % 500 == 499) TRY(dt_ulysses_check(r->ulysses[0], r->stream));
  }
  TRY(compare(r, 0, r->stream, "replays"));
  TRY(run(r, 1, DT_ULYSSES_WHOLE, r->stream)); /* behind so many runs of the other, and poison */
  TRY(compare(r, 1, r->stream, "replays of the other"));
  cudaGraphExecDestroy(one), cudaGraphExecDestroy(both), cudaEventDestroy(replayed);
  return DT_OK;
}

/* The short one goes while runs of the other are in flight, and comes again. */
static dt_status one_goes(rank *r) {
  TRY(poison_both(r));
  for (int i = 0; i < 50; i++) TRY(run(r, 1, DT_ULYSSES_WHOLE, r->stream));
  dt_ulysses_destroy(r->ulysses[0]);
  r->ulysses[0] = NULL;
  TRY(dt_comm_barrier(r->comm, "destroyed")); /* freeing memory waits for a GPU that ranks share */
  for (int i = 0; i < 50; i++) TRY(run(r, 1, DT_ULYSSES_WHOLE, r->stream));
  TRY(compare(r, 1, r->stream, "the other destroyed"));
  TRY(make(r, 0));
  return in_turns(r);
}

static dt_status work(rank *r) {
  CUDA(cudaSetDevice(r->rank % r->devices));
  CUDA(cudaMalloc((void **)&r->wrong, sizeof *r->wrong));
  CUDA(dt_cuda_fill(r->wrong, 0, sizeof *r->wrong));
  for (int which = 0; which < OPERATORS; which++) TRY(make(r, which));
  TRY(in_turns(r));
  TRY(parts_at_random(r));
  TRY(in_graphs(r));
  return one_goes(r);
}

static void *run_rank(void *context) {
  rank *r = context;
  r->status = dt_comm_create_cuda(r->control, r->rank % r->devices, &r->comm);
  if (!r->status) r->status = work(r);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->comm ? r->comm : r->control, r->status, r->detail);
  }
  cudaDeviceSynchronize();
  for (int which = 0; which < OPERATORS && !r->status; which++) dt_ulysses_destroy(r->ulysses[which]);
  return NULL;
}

static cudaStream_t streams[RANKS_MAX][2];

/* Before there are threads: of streams made at the same time two might share a hardware queue. */
static int make_streams(int devices) {
  for (int r = 0; r < RANKS_MAX; r++)
    for (int i = 0; i < 2; i++)
      if (cudaSetDevice(r % devices) || cudaStreamCreateWithFlags(&streams[r][i], cudaStreamNonBlocking) ||
          cudaStreamSynchronize(streams[r][i]))
        return 0;
  return 1;
}

static int check(int ranks, int devices, int replays) {
  static rank all[RANKS_MAX];
  dt_comm *controls[RANKS_MAX];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 30;
  if (dt_comm_create_local(ranks, &config, controls) != DT_OK) return printf("FAIL %s\n", dt_error_detail()), 0;
  for (int32_t r = 0; r < ranks; r++) {
    all[r] = (rank){.rank = r,
                    .ranks = ranks,
                    .devices = devices,
                    .replays = replays,
                    .control = controls[r],
                    .stream = streams[r][0],
                    .other = streams[r][1]};
    pthread_create(&all[r].thread, NULL, run_rank, &all[r]);
  }
  int good = 1;
  for (int32_t r = 0; r < ranks; r++) pthread_join(all[r].thread, NULL);
  for (int32_t r = 0; r < ranks; r++) {
    if (all[r].status) printf("FAIL rank %d: %s: %s\n", r, dt_status_name(all[r].status), all[r].detail);
    good &= all[r].status == DT_OK;
    dt_comm_destroy(all[r].comm ? all[r].comm : all[r].control);
  }
  printf("%-4s two operators, %d ranks on %d GPUs, %d replays\n", good ? "ok" : "FAIL", ranks, devices, replays);
  fflush(stdout);
  return good;
}

int main(int argc, char **argv) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* ranks that share a GPU: a queue for each stream */
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const int devices = support_gpus(2), only = argc > 1 ? atoi(argv[1]) : 0, replays = argc > 2 ? atoi(argv[2]) : 10000;
  if (devices < 1) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  if (only && (only < 2 || only > RANKS_MAX)) return printf("FAIL ranks: %d; 2 to %d\n", only, RANKS_MAX), 1;
  if (!make_streams(devices)) return printf("FAIL streams\n"), 1;
  int good = 1;
  for (int ranks = 2; ranks <= RANKS_MAX; ranks++)
    if (!only || ranks == only) good &= check(ranks, devices, ranks == 2 ? replays : replays / 10);
  return !good;
}
