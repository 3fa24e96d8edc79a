/* Attention over a sequence that two processes share: each holds half of the rows and gets its half of the output,
 * which it compares with float64. The launcher's part, an all-gather, is a socket between the two.
 *
 *     cc -std=c11 attention_processes.c $(pkg-config --cflags --libs draintile)
 */
#define _POSIX_C_SOURCE 200809L
#include <draintile/draintile.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, TOKENS = 256, HEADS = 4, HEAD_DIM = 32, ROW = HEADS * HEAD_DIM };

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

/* The whole sequence, the same in both processes. */
static void fill(float *values, uint32_t seed) {
  for (int i = 0; i < TOKENS * ROW; i++) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static dt_status run(dt_comm *comm, const float *q, const float *k, const float *v, double *error) {
  dt_attention_config config;
  dt_attention_config_init(&config);
  config.dtype = DT_DTYPE_F32;
  config.tokens = config.kv_tokens = TOKENS;
  config.heads = config.kv_heads = HEADS;
  config.head_dim = HEAD_DIM;
  config.schedule = DT_ATTENTION_PIGGYBACK;
  dt_attention_rows runs[2]; /* text and image; all is image here, and q, k and v are split alike */
  dt_status status = dt_attention_rows_in(&config, RANKS, dt_comm_rank(comm), 0, runs);
  dt_attention *attention = NULL;
  if (!status) status = dt_attention_create(comm, &config, &attention);
  if (status) return status;
  const size_t first = (size_t)runs[1].first * ROW;
  const dt_attention_input input = {.q = q + first, .k = k + first, .v = v + first};
  status = dt_attention_forward(attention, &input, NULL);
  if (!status) status = dt_attention_rows_out(&config, RANKS, dt_comm_rank(comm), runs);
  static double reference[TOKENS * ROW];
  if (!status) status = dt_attention_reference(&config, q, k, v, runs[1].first, runs[1].rows, reference);
  const float *output = dt_attention_output(attention);
  for (int64_t i = 0; !status && i < runs[1].rows * ROW; i++) {
    const double difference = fabs((double)output[i] - reference[i]);
    if (!(difference <= *error)) *error = isnan(difference) ? INFINITY : difference;
  }
  dt_attention_destroy(attention);
  return status;
}

static int rank_main(int rank, int socket) {
  static float q[TOKENS * ROW], k[TOKENS * ROW], v[TOKENS * ROW];
  fill(q, 1), fill(k, 2), fill(v, 3);
  meeting m = {rank, socket};
  dt_comm *comm = NULL;
  double error = 0;
  dt_status status = dt_comm_create_shm(rank, RANKS, allgather, &m, NULL, &comm);
  if (!status) status = run(comm, q, k, v, &error);
  if (status)
    fprintf(stderr, "rank %d: %s: %s\n", rank, dt_status_text(status), dt_error_detail());
  else
    printf("rank %d: largest error %.1e\n", rank, error);
  dt_comm_destroy(comm);
  return status ? 3 : error > 1e-5;
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
  if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) code = 3;
  return code;
}
