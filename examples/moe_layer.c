/* One MoE layer over two ranks of this process: random weights, every token to two experts; tile-level signaling, which
 * must give the bits of the serial schedule.
 *
 *     cc -std=c11 moe_layer.c $(pkg-config --cflags --libs draintile) -pthread
 */
#include <draintile/draintile.h>

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, EXPERTS_PER_RANK = 4, HIDDEN = 256, INTERMEDIATE = 128, TOKENS = 512, TOP_K = 2 };

typedef struct rank_state {
  dt_comm *comm;
  dt_status status;
  dt_moe_stats stats, serial;
  int equal;
} rank_state;

static float *random_values(size_t count, unsigned seed) {
  float *values = malloc(count * sizeof *values);
  uint32_t state = seed * 2654435761u + 1u;
  for (size_t i = 0; values && i < count; i++) {
    state = state * 1664525u + 1013904223u;
    values[i] = ((float)(state >> 8) / 8388608.0f - 1.0f) * 0.1f;
  }
  return values;
}

/* [rows][cols] float32 in row-major order: the weights stay where they are. */
static dt_matrix matrix_of(const float *data, int64_t rows, int64_t cols) {
  return (dt_matrix){
      .data = data, .dtype = DT_DTYPE_F32, .rows = rows, .cols = cols, .row_stride = cols, .col_stride = 1};
}

static dt_status run(rank_state *state, const dt_moe_weights *weights, const dt_moe_input *input, float *output,
                     float *expected) {
  dt_moe_config config;
  dt_moe_config_init(&config);
  config.dtype = DT_DTYPE_F32;
  config.top_k = TOP_K;
  config.max_tokens = TOKENS;
  config.schedule = DT_SCHEDULE_SERIAL;
  dt_moe *moe;
  dt_status status = dt_moe_create(state->comm, &config, weights, &moe);
  if (status != DT_OK) return status;
  status = dt_moe_forward(moe, input, expected, &state->serial);
  config.schedule = DT_SCHEDULE_SIGNAL;
  if (status == DT_OK) status = dt_moe_set_schedule(moe, &config);
  if (status == DT_OK) status = dt_moe_forward(moe, input, output, &state->stats);
  dt_moe_destroy(moe);
  return status;
}

static void *rank_main(void *argument) {
  rank_state *state = argument;
  int32_t rank = dt_comm_rank(state->comm);
  const size_t matrix = (size_t)HIDDEN * INTERMEDIATE;
  float *data = random_values(3 * matrix * EXPERTS_PER_RANK, 1 + (unsigned)rank);
  float *hidden = random_values((size_t)TOKENS * HIDDEN, 100 + (unsigned)rank);
  float *output = malloc((size_t)TOKENS * HIDDEN * sizeof *output);
  float *expected = malloc((size_t)TOKENS * HIDDEN * sizeof *expected);
  if (!data || !hidden || !output || !expected) exit(3);

  dt_expert experts[EXPERTS_PER_RANK] = {0};
  for (int e = 0; e < EXPERTS_PER_RANK; e++) {
    const float *at = data + 3 * matrix * (size_t)e;
    experts[e].gate = matrix_of(at, INTERMEDIATE, HIDDEN);
    experts[e].up = matrix_of(at + matrix, INTERMEDIATE, HIDDEN);
    experts[e].down = matrix_of(at + 2 * matrix, HIDDEN, INTERMEDIATE);
  }
  dt_moe_weights weights = {
      .hidden = HIDDEN, .intermediate = INTERMEDIATE, .experts_per_rank = EXPERTS_PER_RANK, .experts = experts};

  static int32_t ids[RANKS][TOKENS * TOP_K];
  static float shares[RANKS][TOKENS * TOP_K];
  for (int i = 0; i < TOKENS * TOP_K; i++) {
    ids[rank][i] = (i * 5 + i / TOP_K) % (RANKS * EXPERTS_PER_RANK); /* a router's choice */
    shares[rank][i] = 0.5f;
  }
  dt_moe_input input = {.tokens = TOKENS, .hidden = hidden, .ids = ids[rank], .weights = shares[rank]};

  state->status = run(state, &weights, &input, output, expected);
  if (state->status == DT_OK)
    state->equal = memcmp(output, expected, (size_t)TOKENS * HIDDEN * sizeof *output) == 0;
  else
    fprintf(stderr, "rank %d: %s: %s\n", rank, dt_status_text(state->status), dt_error_detail());
  free(data);
  free(hidden);
  free(output);
  free(expected);
  return NULL;
}

int main(void) {
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.link_bytes_per_s = 200e6; /* paced, to have something to hide */
  config.link_capacity_bytes = 256 << 10;
  dt_comm *endpoints[RANKS];
  if (dt_comm_create_local(RANKS, &config, endpoints) != DT_OK) {
    fprintf(stderr, "%s\n", dt_error_detail());
    return 3;
  }
  rank_state ranks[RANKS] = {0};
  pthread_t threads[RANKS];
  for (int r = 0; r < RANKS; r++) {
    ranks[r].comm = endpoints[r];
    if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0) return 3;
  }
  int failed = 0, differ = 0;
  for (int r = 0; r < RANKS; r++) {
    pthread_join(threads[r], NULL);
    failed |= ranks[r].status != DT_OK;
    differ |= !ranks[r].equal;
    if (!failed)
      printf("rank %d: %lld rows, %llu bytes sent, serial %.2f ms, signal %.2f ms, %s\n", r,
             (long long)ranks[r].stats.rows, (unsigned long long)ranks[r].stats.bytes_sent,
             ranks[r].serial.total_s * 1e3, ranks[r].stats.total_s * 1e3,
             ranks[r].equal ? "equal to the bit" : "DIFFERENT");
  }
  for (int r = 0; r < RANKS; r++) dt_comm_destroy(endpoints[r]);
  return failed ? 3 : differ;
}
