/* Attention over a sequence that two processes share, on GPUs: each has a Hopper GPU (or turns on the only one), holds
 * half of the rows and gets its half of the output. The way in, the attention and the way out are one call on the
 * caller's stream; a replay of it from a CUDA graph must give the bits of the serial schedule, and both what float64
 * gives. The launcher's part, an all-gather, is a socket between the two.
 *
 *     cc -std=c11 ulysses_cuda.c $(pkg-config --cflags --libs draintile) -I/usr/local/cuda/include \
 *        -L/usr/local/cuda/lib64 -lcudart -lm
 *
 * Exits with 77 where there is no such GPU.
 */
#define _POSIX_C_SOURCE 200809L
#include <draintile/draintile.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, TOKENS = 4096, HEADS = 8, KV_HEADS = 4, HEAD_DIM = 128, CHECKED_ROWS = 8, REPLAYS = 3, SKIPPED = 77 };
enum { ROW = HEADS * HEAD_DIM, KV_ROW = KV_HEADS * HEAD_DIM };
static const double TOLERANCE = 8e-3; /* of a row's norm */

/* What a launcher, MPI or torch would supply: every rank's bytes, in rank order. */
typedef struct meeting {
  int rank, socket;
} meeting;

static int all_of(ssize_t (*move)(int, void *, size_t), int socket, char *bytes, size_t count) {
  while (count) {
    const ssize_t moved = move(socket, bytes, count);
    if (moved <= 0) return -1;
    bytes += moved, count -= (size_t)moved;
  }
  return 0;
}

static ssize_t put(int socket, void *bytes, size_t count) {
  return send(socket, bytes, count, MSG_NOSIGNAL);
}

static int allgather(void *context, const void *own, void *all, size_t bytes) {
  const meeting *m = context;
  char *mine = (char *)all + (size_t)m->rank * bytes, *other = (char *)all + (size_t)(1 - m->rank) * bytes;
  memcpy(mine, own, bytes);
  return all_of(put, m->socket, mine, bytes) || all_of(read, m->socket, other, bytes);
}

static uint16_t q[TOKENS * ROW], k[TOKENS * KV_ROW], v[TOKENS * KV_ROW]; /* bf16, the whole sequence */
static uint16_t serial[TOKENS * ROW], replayed[TOKENS * ROW];            /* of which a rank fills its rows */

/* The same in both processes. */
static void fill(uint16_t *values, int count, uint32_t state) {
  for (int i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    const float value = (float)(state >> 8) / 8388608.0f - 1.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    values[i] = (uint16_t)(bits >> 16);
  }
}

static dt_status cuda(cudaError_t error, const char *what) {
  if (error == cudaSuccess) return DT_OK;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

typedef struct rank {
  dt_ulysses *ulysses;
  dt_ulysses_config config;
  cudaStream_t stream;
  void *q, *k, *v; /* device: this rank's rows, the caller's; read until a run has ended on the stream */
  dt_attention_rows out;
} rank;

/* The rows that this rank holds: one run, of an image; text rows would be another. */
static dt_status upload(rank *r, int number, int kv, const uint16_t *whole, size_t row, void **device) {
  dt_attention_rows in[2];
  dt_status status = dt_attention_rows_in(&r->config.attention, RANKS, number, kv, in);
  const size_t bytes = (size_t)in[1].rows * row * sizeof *whole;
  if (!status) status = cuda(cudaMalloc(device, bytes), "cudaMalloc");
  if (status) return status;
  return cuda(cudaMemcpyAsync(*device, whole + (size_t)in[1].first * row, bytes, cudaMemcpyDefault, r->stream), "in");
}

static dt_status run(rank *r) {
  return dt_ulysses_run(r->ulysses, DT_ULYSSES_WHOLE, r->q, r->k, r->v, r->stream);
}

/* Kernels queued behind a run may read its output at once. The host waits here, and learns only here what a kernel met,
 * such as a peer that does not come. */
static dt_status fetch(rank *r, uint16_t *to) {
  const size_t bytes = (size_t)r->out.rows * ROW * sizeof *to;
  dt_status status = dt_ulysses_check(r->ulysses, r->stream);
  return status ? status : cuda(cudaMemcpy(to, dt_ulysses_output(r->ulysses), bytes, cudaMemcpyDefault), "output");
}

/* Every rank replays as often as the others. */
static dt_status replay(rank *r) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  const size_t bytes = (size_t)r->out.rows * ROW * sizeof *replayed;
  dt_status status = cuda(cudaMemsetAsync(dt_ulysses_output(r->ulysses), 0xff, bytes, r->stream), "poison");
  if (!status) status = cuda(cudaStreamSynchronize(r->stream), "poison");
  if (!status) status = dt_comm_barrier(r->config.comm, "poison"); /* peers store to this memory */
  if (!status) status = cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal), "capture");
  if (!status) {
    status = run(r);
    const dt_status ended = cuda(cudaStreamEndCapture(r->stream, &graph), "capture");
    if (!status) status = ended;
  }
  if (!status) status = cuda(cudaGraphInstantiate(&exec, graph, 0), "graph");
  for (int i = 0; i < REPLAYS && !status; i++) status = cuda(cudaGraphLaunch(exec, r->stream), "graph");
  if (!status) status = fetch(r, replayed);
  if (exec) cudaGraphExecDestroy(exec);
  if (graph) cudaGraphDestroy(graph);
  return status;
}

/* A few of the rank's rows against float64. */
static dt_status largest_error(const rank *r, double *worst) {
  double expected[ROW];
  dt_status status = DT_OK;
  for (int64_t c = 0; c < CHECKED_ROWS && !status; c++) {
    const int64_t row = c * (r->out.rows - 1) / (CHECKED_ROWS - 1);
    status = dt_attention_reference(&r->config.attention, q, k, v, r->out.first + row, 1, expected);
    double difference = 0, norm = 0;
    for (int i = 0; i < ROW && !status; i++) {
      const uint32_t bits = (uint32_t)serial[row * ROW + i] << 16;
      float value;
      memcpy(&value, &bits, sizeof value);
      difference += ((double)value - expected[i]) * ((double)value - expected[i]);
      norm += expected[i] * expected[i];
    }
    const double error = sqrt(difference / norm);
    if (!(error <= *worst)) *worst = isnan(error) ? INFINITY : error;
  }
  return status;
}

static dt_status work(rank *r, dt_comm *comm, double *error) {
  dt_ulysses_config_init(&r->config);
  r->config.comm = comm;
  r->config.attention.dtype = DT_DTYPE_BF16;
  r->config.attention.tokens = r->config.attention.kv_tokens = TOKENS;
  r->config.attention.heads = HEADS;
  r->config.attention.kv_heads = KV_HEADS;
  r->config.attention.head_dim = HEAD_DIM;
  r->config.attention.schedule = DT_ATTENTION_SERIAL;
  dt_attention_rows out[2] = {{0}};
  dt_status status = cuda(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking), "stream");
  if (!status) status = dt_attention_rows_out(&r->config.attention, RANKS, dt_comm_rank(comm), out);
  r->out = out[1];
  if (!status) status = upload(r, dt_comm_rank(comm), 0, q, ROW, &r->q);
  if (!status) status = upload(r, dt_comm_rank(comm), 1, k, KV_ROW, &r->k);
  if (!status) status = upload(r, dt_comm_rank(comm), 1, v, KV_ROW, &r->v);
  if (!status) status = cuda(cudaDeviceSynchronize(), "in");
  if (!status) status = dt_ulysses_create(&r->config, &r->ulysses);
  if (!status) status = run(r); /* returns at once */
  if (!status) status = fetch(r, serial);
  r->config.attention.schedule = DT_ATTENTION_PIGGYBACK;
  if (!status) status = dt_ulysses_set_schedule(r->ulysses, &r->config);
  if (!status) status = replay(r);
  return status ? status : largest_error(r, error);
}

static int rank_main(int number, int socket) {
  const int devices = dt_cuda_devices(); /* not before the fork */
  dt_cuda_device info;
  if (devices == 0 || dt_cuda_device_info(0, &info) != DT_OK || info.major != 9) {
    printf("rank %d: no Hopper GPU here: skipped\n", number);
    return SKIPPED;
  }
  fill(q, TOKENS * ROW, 1), fill(k, TOKENS * KV_ROW, 2), fill(v, TOKENS * KV_ROW, 3);
  meeting m = {number, socket};
  dt_comm *control = NULL, *comm = NULL;
  rank r = {0};
  double error = 0;
  dt_status status = dt_comm_create_shm(number, RANKS, allgather, &m, NULL, &control);
  if (!status) status = dt_comm_create_cuda(control, number % devices, &comm); /* takes control over if it succeeds */
  if (!status) status = cuda(cudaSetDevice(number % devices), "cudaSetDevice");
  if (!status) status = work(&r, comm, &error);
  if (status) fprintf(stderr, "rank %d: %s: %s\n", number, dt_status_text(status), dt_error_detail());
  if (status && control) dt_comm_abort(comm ? comm : control, status, dt_error_detail());
  const int equal = memcmp(serial, replayed, sizeof serial) == 0;
  if (!status)
    printf("rank %d, GPU %d: rows %lld to %lld, graph %s serial, largest error of a row %.1e (allowed %.0e)\n", number,
           number % devices, (long long)r.out.first, (long long)(r.out.first + r.out.rows - 1),
           equal ? "equal to the bit to" : "DIFFERS from", error, TOLERANCE);
  dt_ulysses_destroy(r.ulysses);
  cudaFree(r.q), cudaFree(r.k), cudaFree(r.v);
  if (r.stream) cudaStreamDestroy(r.stream);
  dt_comm_destroy(comm ? comm : control);
  return status ? 3 : !equal || !(error <= TOLERANCE);
}

int main(void) {
  int sockets[RANKS];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 3;
  const pid_t child = fork();
  if (child < 0) return 3;
  close(sockets[child == 0 ? 0 : 1]);
  if (child == 0) return rank_main(1, sockets[1]);
  int code = rank_main(0, sockets[0]), ended = 0;
  close(sockets[0]);
  waitpid(child, &ended, 0);
  if (!WIFEXITED(ended)) return 3;
  return code ? code : WEXITSTATUS(ended);
}
