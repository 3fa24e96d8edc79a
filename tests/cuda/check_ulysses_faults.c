/* The Ulysses operator when a rank is not there, ranks as processes, on one GPU or two: a peer that never enters, one
 * that is killed or stopped in a loop of runs, ranks that disagree. Whoever is left names rank 1 within the timeout,
 * keeps the error, and goes on with the GPU; also where rows are held back until the last round. And when another
 * stream holds a multiprocessor. Exit code 77 without a Hopper GPU.
 */
#include <draintile/ulysses.h>

#include "combine_support.h"
#include "cuda/driver.h"
#include "cuda/ulysses.h"
#include "fault_processes.h"

enum { HEAD_DIM = 128 };
static struct { int32_t tokens, heads, holds; /* holds: as of dt_ulysses */ } problem = {1000, 6, -1};
static const double TIMEOUT_S = 1.0;

/* Of this process, which is one rank. */
static dt_ulysses *ulysses;
static uint16_t *inputs[3];

static dt_ulysses_config configure(const rank_process *r) {
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r->rank % r->gpus);
  dt_ulysses_config config;
  dt_ulysses_config_init(&config);
  config.comm = r->comm;
  config.attention.tokens = config.attention.kv_tokens = problem.tokens;
  config.attention.heads = config.attention.kv_heads = problem.heads;
  config.attention.head_dim = HEAD_DIM;
  config.attention.schedule = DT_ATTENTION_PIGGYBACK;
  config.attention.overlap_in = 1;
  config.sms = r->gpus < RANKS ? sms / RANKS : 0;
  config.timeout_s = TIMEOUT_S;
  return config;
}

static int make(rank_process *r) {
  const dt_ulysses_config config = configure(r);
  const size_t bytes = 2 * (size_t)problem.tokens * (size_t)problem.heads * HEAD_DIM;
  EXPECT(dt_ulysses_create(&config, &ulysses) == DT_OK);
  ulysses->holds = problem.holds;
  for (int t = 0; t < 3; t++) {
    EXPECT(cudaMalloc((void **)&inputs[t], bytes) == cudaSuccess);
    EXPECT(cudaMemset(inputs[t], 0x3c, bytes) == cudaSuccess); /* 0.0115, all the same: so is every output */
  }
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  EXPECT(dt_comm_barrier(r->comm, "made") == DT_OK);
  return 0;
}

static dt_status run(rank_process *r) {
  dt_status status = dt_ulysses_run(ulysses, DT_ULYSSES_WHOLE, inputs[0], inputs[1], inputs[2], r->stream);
  return status ? status : dt_ulysses_check(ulysses, r->stream);
}

/* The attention of a rank alone, which needs no peer. */
static int gpu_still_works(rank_process *r) {
  dt_cuda_attention a;
  dt_cuda_attention_init(&a);
  const size_t elements = (size_t)problem.tokens * (size_t)problem.heads * HEAD_DIM;
  uint16_t *out = NULL, *host = malloc(2 * elements);
  void *workspace = NULL;
  size_t bytes = 0;
  EXPECT(cudaMalloc((void **)&out, 2 * elements) == cudaSuccess);
  a.q = inputs[0];
  a.k = inputs[1];
  a.v = inputs[2];
  a.dtype = DT_DTYPE_BF16;
  a.tokens = a.kv_tokens = problem.tokens;
  a.heads = a.kv_heads = problem.heads;
  a.head_dim = HEAD_DIM;
  a.owners_count = 1;
  a.owners[0] = (dt_cuda_attention_owner){.rows = problem.tokens, .out = out, .row_stride = problem.heads * HEAD_DIM};
  EXPECT(dt_cuda_attention_workspace(&a, &bytes) == DT_OK);
  EXPECT(cudaMalloc(&workspace, bytes) == cudaSuccess && dt_cuda_fill(workspace, 0, bytes) == cudaSuccess);
  EXPECT(dt_cuda_attention_forward(&a, workspace, r->stream) == DT_OK);
  EXPECT(dt_cuda_attention_check(workspace, r->stream) == DT_OK);
  EXPECT(cudaMemcpy(host, out, 2 * elements, cudaMemcpyDeviceToHost) == cudaSuccess);
  for (size_t i = 0; i < elements; i++) EXPECT(host[i] == 0x3c3c);
  cudaFree(out), cudaFree(workspace);
  free(host);
  return 0;
}

/* After a failure: it stays, at once; the GPU still works; destroying waits for nobody. */
static int aftermath(rank_process *r, dt_status status, double since_s) {
  const double took_s = now_s() - since_s;
  printf("     after %.2f s %s: %s\n", took_s, dt_status_name(status), dt_error_detail());
  EXPECT(status == DT_ERR_TIMEOUT || status == DT_ERR_PEER);
  EXPECT(strstr(dt_error_detail(), "rank 1") != NULL);
  EXPECT(took_s < TIMEOUT_S + 1.0);
  const double start_s = now_s();
  EXPECT(run(r) == status);
  EXPECT(now_s() - start_s < 0.5);
  const int line = gpu_still_works(r);
  if (line) return line;
  dt_comm_abort(r->comm, status, "a rank is lost");
  dt_ulysses_destroy(ulysses);
  ulysses = NULL;
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  EXPECT(now_s() - start_s < 5.0);
  return 0;
}

static int a_peer_goes_away(rank_process *r) {
  int line = make(r);
  if (line) return line;
  __atomic_store_n(&r->board->running[r->rank], 1, __ATOMIC_SEQ_CST);
  dt_status status = DT_OK;
  int64_t rounds = 0;
  for (; !status; rounds++) status = run(r);
  if (r->rank == 1) return __LINE__; /* it is to be dead by now */
  printf("     %lld rounds\n", (long long)rounds);
  return aftermath(r, status, r->board->acted_s);
}

/* Rank 1 has made everything, and never runs. */
static int a_peer_stays_away(rank_process *r) {
  int line = make(r);
  if (line) return line;
  if (r->rank == 1) {
    sleep_s(TIMEOUT_S + 1.5);
    return 0;
  }
  const double start_s = now_s();
  const dt_status status = run(r);
  EXPECT(status == DT_ERR_TIMEOUT && strstr(dt_error_detail(), "entry of rank 1") != NULL);
  return aftermath(r, status, start_s);
}

/* Case 14. */
static int ranks_disagree(rank_process *r) {
  static const char *const fields[] = {"heads", "tokens", "causal", "senders"};
  for (int i = 0; i < 4; i++) {
    dt_ulysses_config config = configure(r);
    if (r->rank == 1 && i == 0) config.attention.heads = config.attention.kv_heads = problem.heads + 2;
    if (r->rank == 1 && i == 1) config.attention.tokens++;
    if (r->rank == 1 && i == 2) config.attention.causal = 1;
    if (r->rank == 1 && i == 3) config.senders = 4;
    dt_ulysses *made = NULL;
    EXPECT(dt_ulysses_create(&config, &made) == DT_ERR_MISMATCH);
    EXPECT(strstr(dt_error_detail(), fields[i]) != NULL && made == NULL);
    if (r->rank == 0) printf("     %s\n", dt_error_detail());
  }
  return 0;
}

/* Case 1: less than the whole GPU is there, with the way in beside the attention, before it, and serial; the bits are
 * those of a run with all of it. Where both ranks share one GPU each has half of it, so that nothing lacks. */
static int a_multiprocessor_is_busy(rank_process *r) {
  static const struct {
    dt_attention_schedule schedule;
    int32_t overlap_in;
  } forms[] = {{DT_ATTENTION_PIGGYBACK, 1}, {DT_ATTENTION_PIGGYBACK, 0}, {DT_ATTENTION_SERIAL, 0}};
  const int64_t elements = (int64_t)problem.tokens * problem.heads * HEAD_DIM, bytes = 2 * elements / RANKS;
  uint32_t *end = NULL;
  unsigned long long *wrong = NULL, words = 0;
  void *first = NULL;
  cudaStream_t other = NULL;
  uint16_t *host = malloc(2 * (size_t)elements);
  int line = make(r);
  if (line) return line;
  for (int t = 0; t < 3; t++) {
    support_fill(host, elements, (uint64_t)(7 + 3 * r->rank + t));
    EXPECT(dt_cuda_write(inputs[t], host, 2 * (size_t)elements) == cudaSuccess);
  }
  free(host);
  EXPECT(cudaHostAlloc((void **)&end, sizeof *end, cudaHostAllocMapped) == cudaSuccess);
  EXPECT(cudaMalloc((void **)&wrong, sizeof *wrong) == cudaSuccess && cudaMalloc(&first, (size_t)bytes) == cudaSuccess);
  EXPECT(dt_cuda_fill(wrong, 0, sizeof *wrong) == cudaSuccess);
  EXPECT(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
  EXPECT(run(r) == DT_OK);
  EXPECT(dt_cuda_write(first, dt_ulysses_output(ulysses), (size_t)bytes) == cudaSuccess);
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  *(volatile uint32_t *)end = 0;
  EXPECT(support_hold(end, 10.0, other) == cudaSuccess);
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    dt_ulysses_config config = configure(r);
    config.attention.schedule = forms[i].schedule;
    config.attention.overlap_in = forms[i].overlap_in;
    EXPECT(dt_ulysses_set_schedule(ulysses, &config) == DT_OK);
    EXPECT(support_poison(dt_ulysses_output(ulysses), bytes, r->stream) == cudaSuccess);
    const dt_status status = run(r);
    if (status) printf("     form %d: %s\n", (int)i, dt_error_detail());
    EXPECT(status == DT_OK);
    EXPECT(support_compare(dt_ulysses_output(ulysses), first, bytes, wrong, r->stream) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(r->stream) == cudaSuccess);
  }
  EXPECT(cudaStreamQuery(other) == cudaErrorNotReady); /* it was held all the time */
  *(volatile uint32_t *)end = 1;
  EXPECT(cudaStreamSynchronize(other) == cudaSuccess);
  EXPECT(cudaMemcpy(&words, wrong, sizeof words, cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT(words == 0);
  cudaStreamDestroy(other), cudaFreeHost(end), cudaFree(wrong), cudaFree(first);
  EXPECT(dt_comm_barrier(r->comm, "end") == DT_OK);
  return 0;
}

static void release(void) {
  if (ulysses) dt_ulysses_destroy(ulysses);
}

int main(void) {
  const int gpus = count_gpus();
  if (gpus < 1) {
    printf("skipped: no Hopper GPU\n");
    return SKIPPED;
  }
  printf("%d GPUs\n", gpus);
  int good = check_processes("ranks that disagree", gpus, ranks_disagree, release, 0);
  good &= check_processes("a multiprocessor that another stream holds", gpus, a_multiprocessor_is_busy, release, 0);
  good &= check_processes("a peer that stays away", gpus, a_peer_stays_away, release, 0);
  good &= check_processes("a peer that is killed", gpus, a_peer_goes_away, release, SIGKILL);
  good &= check_processes("a peer that is stopped", gpus, a_peer_goes_away, release, SIGSTOP);
  problem.tokens = 1500;
  problem.heads = 80;
  problem.holds = 1;
  good &= check_processes("killed where rows are held back", gpus, a_peer_goes_away, release, SIGKILL);
  good &= check_processes("stopped where rows are held back", gpus, a_peer_goes_away, release, SIGSTOP);
  return !good;
}
