/* The Ulysses operator when a rank is not there, ranks as processes, on one GPU or two: a peer that never enters, one
 * that is killed or stopped in a loop of runs, ranks that disagree. Whoever is left names rank 1 within the timeout,
 * keeps the error, and goes on with the GPU. The parent never touches CUDA. Exit code 77 without a Hopper GPU.
 */
#include <draintile/ulysses.h>

#include "../comm_ranks.h"
#include "cuda/ulysses.h"
#include "support_gpus.h"

enum { RANKS = 2, TOKENS = 1000, HEADS = 6, HEAD_DIM = 128 };
static const double TIMEOUT_S = 1.0;

typedef struct board {
  int32_t running[RANKS];
  double acted_s; /* when the parent killed or stopped rank 1 */
} board;

typedef struct rank_process {
  int32_t rank, gpus;
  dt_comm *comm;
  board *board;
  cudaStream_t stream;
  dt_ulysses *ulysses;
  uint16_t *inputs[3];
} rank_process;

static dt_ulysses_config configure(const rank_process *r) {
  int sms = 0;
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, r->rank % r->gpus);
  dt_ulysses_config config;
  dt_ulysses_config_init(&config);
  config.comm = r->comm;
  config.attention.tokens = config.attention.kv_tokens = TOKENS;
  config.attention.heads = config.attention.kv_heads = HEADS;
  config.attention.head_dim = HEAD_DIM;
  config.attention.schedule = DT_ATTENTION_PIGGYBACK;
  config.attention.overlap_in = 1;
  config.sms = r->gpus < RANKS ? sms / RANKS : 0;
  config.timeout_s = TIMEOUT_S;
  return config;
}

static int make(rank_process *r) {
  const dt_ulysses_config config = configure(r);
  const size_t bytes = 2 * (size_t)TOKENS * HEADS * HEAD_DIM;
  EXPECT(dt_ulysses_create(&config, &r->ulysses) == DT_OK);
  for (int t = 0; t < 3; t++) {
    EXPECT(cudaMalloc((void **)&r->inputs[t], bytes) == cudaSuccess);
    EXPECT(cudaMemset(r->inputs[t], 0x3c, bytes) == cudaSuccess); /* 0.0115, all the same: so is every output */
  }
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  EXPECT(dt_comm_barrier(r->comm, "made") == DT_OK);
  return 0;
}

static dt_status run(rank_process *r) {
  dt_status status = dt_ulysses_run(r->ulysses, DT_ULYSSES_WHOLE, r->inputs[0], r->inputs[1], r->inputs[2], r->stream);
  return status ? status : dt_ulysses_check(r->ulysses, r->stream);
}

/* The attention of a rank alone, which needs no peer. */
static int gpu_still_works(rank_process *r) {
  dt_cuda_attention a;
  dt_cuda_attention_init(&a);
  const size_t elements = (size_t)TOKENS * HEADS * HEAD_DIM;
  uint16_t *out = NULL, *host = malloc(2 * elements);
  void *workspace = NULL;
  size_t bytes = 0;
  EXPECT(cudaMalloc((void **)&out, 2 * elements) == cudaSuccess);
  a.q = r->inputs[0];
  a.k = r->inputs[1];
  a.v = r->inputs[2];
  a.dtype = DT_DTYPE_BF16;
  a.tokens = a.kv_tokens = TOKENS;
  a.heads = a.kv_heads = HEADS;
  a.head_dim = HEAD_DIM;
  a.owners_count = 1;
  a.owners[0] = (dt_cuda_attention_owner){.rows = TOKENS, .out = out, .row_stride = HEADS * HEAD_DIM};
  EXPECT(dt_cuda_attention_workspace(&a, &bytes) == DT_OK);
  EXPECT(cudaMalloc(&workspace, bytes) == cudaSuccess && cudaMemset(workspace, 0, bytes) == cudaSuccess);
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
  dt_ulysses_destroy(r->ulysses);
  r->ulysses = NULL;
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
  static const char *const fields[] = {"heads", "tokens", "causal"};
  for (int i = 0; i < 3; i++) {
    dt_ulysses_config config = configure(r);
    if (r->rank == 1 && i == 0) config.attention.heads = config.attention.kv_heads = HEADS + 2;
    if (r->rank == 1 && i == 1) config.attention.tokens++;
    if (r->rank == 1 && i == 2) config.attention.causal = 1;
    dt_ulysses *ulysses = NULL;
    EXPECT(dt_ulysses_create(&config, &ulysses) == DT_ERR_MISMATCH);
    EXPECT(strstr(dt_error_detail(), fields[i]) != NULL && ulysses == NULL);
    if (r->rank == 0) printf("     %s\n", dt_error_detail());
  }
  return 0;
}

typedef int (*process_body)(rank_process *r);

static int run_process(int32_t rank, int32_t gpus, meeting *m, board *shared, process_body body) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  meeting_seat seat = {m, rank};
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 20;
  dt_comm *control = NULL;
  rank_process r = {.rank = rank, .gpus = gpus, .board = shared};
  EXPECT(dt_comm_create_shm(rank, RANKS, meet_all, &seat, &config, &control) == DT_OK);
  EXPECT(dt_comm_create_cuda(control, rank % gpus, &r.comm) == DT_OK);
  EXPECT(cudaSetDevice(rank % gpus) == cudaSuccess);
  EXPECT(cudaStreamCreateWithFlags(&r.stream, cudaStreamNonBlocking) == cudaSuccess);
  const int line = body(&r);
  if (line) dt_comm_abort(r.comm, DT_ERR_INTERNAL, "a check failed");
  if (r.ulysses) dt_ulysses_destroy(r.ulysses);
  dt_comm_destroy(r.comm);
  fflush(stdout);
  return line != 0;
}

/* action: SIGKILL or SIGSTOP for rank 1 while it runs; 0: none. */
static int check(const char *name, int32_t gpus, process_body body, int action) {
  meeting *m = new_meeting(RANKS);
  board *shared = shared_pages(sizeof *shared);
  pid_t pids[RANKS];
  int codes[RANKS] = {-1, -1};
  const double start_s = now_s();
  fflush(stdout);
  for (int32_t rank = 0; rank < RANKS; rank++) {
    pids[rank] = fork();
    if (pids[rank] == 0) _exit(run_process(rank, gpus, m, shared, body));
  }
  while (action && now_s() - start_s < 20 &&
         (__atomic_load_n(&shared->running[0], __ATOMIC_SEQ_CST) == 0 ||
          __atomic_load_n(&shared->running[1], __ATOMIC_SEQ_CST) == 0))
    sleep_s(0.001);
  if (action) {
    sleep_s(0.1);
    shared->acted_s = now_s();
    kill(pids[1], action);
  }
  for (int32_t rank = 0; rank < RANKS; rank++) {
    int code = 0;
    if (rank == 1 && action) kill(pids[1], SIGKILL);
    while (waitpid(pids[rank], &code, WNOHANG) == 0) {
      if (now_s() - start_s > 30) kill(pids[rank], SIGKILL);
      sleep_s(0.001);
    }
    codes[rank] = WIFEXITED(code) ? WEXITSTATUS(code) : -1;
  }
  const int good = codes[0] == 0 && (action || codes[1] == 0);
  printf("%-4s %s (%.1f s)\n", good ? "ok" : "FAIL", name, now_s() - start_s);
  fflush(stdout);
  munmap(m, sizeof *m), munmap(shared, sizeof *shared);
  return good;
}

int main(void) {
  int gpus = 0;
  const pid_t probe = fork(); /* this process must not have a CUDA context: its children would inherit it */
  if (probe == 0) _exit(support_gpus(RANKS));
  if (waitpid(probe, &gpus, 0) != probe || !WIFEXITED(gpus) || WEXITSTATUS(gpus) < 1) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  gpus = WEXITSTATUS(gpus);
  printf("%d GPUs\n", gpus);
  int good = check("ranks that disagree", gpus, ranks_disagree, 0);
  good &= check("a peer that stays away", gpus, a_peer_stays_away, 0);
  good &= check("a peer that is killed", gpus, a_peer_goes_away, SIGKILL);
  good &= check("a peer that is stopped", gpus, a_peer_goes_away, SIGSTOP);
  return !good;
}
