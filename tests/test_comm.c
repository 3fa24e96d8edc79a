/* Fabrics `local` and `shm` without pacing: data, counters, barriers, all-gather, agreement. */
#include "comm_ranks.h"

enum { THREADS = 2, ROUNDS = 400, AREA = 4096 };

static uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ x >> 16;
}

/* Stress: every thread of every rank sends to the same thread of every rank, round after round, into one area that is
 * written again only after the receiver said so. A byte that is late or wrong fails the checksum of its row. */
typedef struct stress_thread {
  dt_comm *comm;
  dt_window *window;
  int32_t thread;
  int result;
} stress_thread;

static size_t area_of(const dt_comm *comm, int32_t source, int32_t thread) {
  (void)comm;
  return ((size_t)source * THREADS + (size_t)thread) * AREA;
}

static size_t counter_of(const dt_comm *comm, int32_t kind, int32_t source, int32_t thread) {
  size_t ranks = (size_t)dt_comm_ranks(comm);
  size_t at = ((size_t)kind * ranks + (size_t)source) * THREADS + (size_t)thread;
  return ranks * THREADS * AREA + at * sizeof(dt_counter);
}

static uint32_t row_words(uint32_t source, uint32_t to, uint32_t thread, uint32_t round) {
  return 1 + mix(source * 7919 + to * 104729 + thread * 31 + round) % (AREA / 8);
}

static int send_round(stress_thread *self, int32_t to, uint32_t round, uint32_t *words) {
  dt_comm *comm = self->comm;
  int32_t me = dt_comm_rank(comm);
  dt_wait wait = {.phase = "stress", .counter = "free areas of rank", .index = to, .peer = to};
  EXPECT(!dt_comm_wait(comm, self->window, counter_of(comm, 1, to, self->thread), round, &wait));
  uint32_t count = row_words((uint32_t)me, (uint32_t)to, (uint32_t)self->thread, round);
  for (uint32_t i = 0; i < count; i++) words[i] = mix(round * 977 + (uint32_t)me * 13 + (uint32_t)self->thread + i * 3);
  dt_put put = {.window = self->window,
                .peer = to,
                .offset = area_of(comm, me, self->thread),
                .src = words,
                .row_bytes = count * sizeof *words,
                .rows = 1};
  uint64_t visible = 1;
  EXPECT(!dt_comm_put(comm, &put, &visible) && visible == 0);
  EXPECT(!dt_comm_signal(comm, self->window, to, counter_of(comm, 0, me, self->thread), 1, visible));
  return 0;
}

static int receive_round(stress_thread *self, int32_t from, uint32_t round) {
  dt_comm *comm = self->comm;
  int32_t me = dt_comm_rank(comm);
  dt_wait wait = {.phase = "stress", .counter = "rows of rank", .index = from, .peer = from};
  EXPECT(!dt_comm_wait(comm, self->window, counter_of(comm, 0, from, self->thread), round + 1, &wait));
  const unsigned char *own = dt_window_local(self->window);
  const uint32_t *words = (const uint32_t *)(own + area_of(comm, from, self->thread));
  uint32_t count = row_words((uint32_t)from, (uint32_t)me, (uint32_t)self->thread, round);
  for (uint32_t i = 0; i < count; i++) {
    EXPECT(words[i] == mix(round * 977 + (uint32_t)from * 13 + (uint32_t)self->thread + i * 3));
  }
  EXPECT(!dt_comm_signal(comm, self->window, from, counter_of(comm, 1, me, self->thread), 1, 0));
  return 0;
}

static void *stress_main(void *argument) {
  stress_thread *self = argument;
  int32_t ranks = dt_comm_ranks(self->comm), me = dt_comm_rank(self->comm);
  uint32_t words[AREA / 4];
  for (uint32_t round = 0; round < ROUNDS && !self->result; round++) {
    for (int32_t i = 0; i < ranks && !self->result; i++)
      self->result = send_round(self, (me + i) % ranks, round, words);
    for (int32_t i = 0; i < ranks && !self->result; i++) self->result = receive_round(self, (me + i) % ranks, round);
  }
  return NULL;
}

static int stress_body(dt_comm *comm, void *argument) {
  (void)argument;
  size_t ranks = (size_t)dt_comm_ranks(comm);
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, ranks * THREADS * (AREA + 2 * sizeof(dt_counter)), &window));
  EXPECT((uintptr_t)dt_window_local(window) % 64 == 0);
  stress_thread state[THREADS];
  pthread_t threads[THREADS];
  for (int32_t t = 0; t < THREADS; t++) {
    state[t] = (stress_thread){.comm = comm, .window = window, .thread = t};
    EXPECT(!pthread_create(&threads[t], NULL, stress_main, &state[t]));
  }
  for (int32_t t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
  for (int32_t t = 0; t < THREADS; t++) {
    if (state[t].result) return state[t].result;
  }
  uint64_t sent[RANKS_MAX], expected[RANKS_MAX] = {0};
  dt_comm_bytes_sent(comm, sent);
  for (int32_t p = 0; p < (int32_t)ranks; p++) {
    for (uint32_t i = 0; i < ROUNDS * THREADS && p != dt_comm_rank(comm); i++) {
      expected[p] += 4 * row_words((uint32_t)dt_comm_rank(comm), (uint32_t)p, i % THREADS, i / THREADS);
    }
    EXPECT(sent[p] == expected[p]);
  }
  dt_comm_free(comm, window);
  EXPECT(!dt_comm_status(comm));
  return 0;
}

static void test_stress(void **state) {
  (void)state;
  const int32_t ranks[] = {1, 2, 3, 4, 8};
  for (int shm = 0; shm < 2; shm++) {
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
      assert_int_equal(run_ranks(shm, ranks[i], NULL, stress_body, NULL), 0);
    }
  }
}

/* Pieces of different sizes, an empty one, strided and indexed rows, and everything out of bounds refused. */
static int rows_body(dt_comm *comm, void *argument) {
  (void)argument;
  int32_t me = dt_comm_rank(comm), ranks = dt_comm_ranks(comm), to = (me + 1) % ranks;
  dt_window *window = NULL, *uneven = NULL;
  EXPECT(!dt_comm_alloc(comm, (size_t)me * 1000, &uneven));
  for (int32_t p = 0; p < ranks; p++) EXPECT(dt_window_bytes(uneven, p) == (size_t)p * 1000);
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  float rows[6][5];
  for (int i = 0; i < 30; i++) rows[i / 5][i % 5] = (float)(100 * me + i);
  const int32_t index[] = {5, 0, 3};
  dt_put put = {.window = window,
                .peer = to,
                .offset = 128,
                .dst_stride = 32,
                .src = rows,
                .src_stride = sizeof rows[0],
                .src_index = index,
                .row_bytes = 12,
                .rows = 3};
  EXPECT(!dt_comm_put(comm, &put, NULL));
  EXPECT(!dt_comm_barrier(comm, "rows"));
  const unsigned char *own = dt_window_local(window);
  int32_t from = (me + ranks - 1) % ranks;
  for (int i = 0; i < 3; i++) {
    const float *row = (const float *)(own + 128 + 32 * i);
    for (int j = 0; j < 3; j++) EXPECT(row[j] == (float)(100 * from + 5 * index[i] + j));
    for (int j = 3; j < 8; j++) EXPECT(row[j] == 0.0f);
  }
  dt_put bad = put;
  bad.offset = 4096 - 64 - 11;
  EXPECT(dt_comm_put(comm, &bad, NULL) == DT_ERR_ARGUMENT);
  bad.offset = 4096 - 64 - 12;
  EXPECT(!dt_comm_put(comm, &bad, NULL));
  bad.offset = SIZE_MAX - 8;
  EXPECT(dt_comm_put(comm, &bad, NULL) == DT_ERR_ARGUMENT);
  bad = put;
  bad.dst_stride = SIZE_MAX / 2;
  EXPECT(dt_comm_put(comm, &bad, NULL) == DT_ERR_ARGUMENT);
  bad.dst_stride = bad.row_bytes - 1; /* rows would overlap */
  EXPECT(dt_comm_put(comm, &bad, NULL) == DT_ERR_ARGUMENT && strstr(dt_error_detail(), "dst_stride"));
  bad = put;
  bad.peer = ranks;
  EXPECT(dt_comm_put(comm, &bad, NULL) == DT_ERR_ARGUMENT && strstr(dt_error_detail(), "peer"));
  EXPECT(dt_comm_signal(comm, window, me, 32, 1, 0) == DT_ERR_ARGUMENT);
  EXPECT(dt_comm_signal(comm, window, me, 4096, 1, 0) == DT_ERR_ARGUMENT);
  EXPECT(dt_comm_wait(comm, uneven, 1000 * (size_t)me, 0, NULL) == DT_ERR_ARGUMENT);
  put.rows = 0;
  EXPECT(!dt_comm_put(comm, &put, NULL));
  EXPECT(!dt_comm_barrier(comm, "end"));
  return 0; /* the windows are released by dt_comm_destroy */
}

static void test_rows(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 3, NULL, rows_body, NULL), 0);
}

/* Counters as unsigned numbers across 2^31, up to 2^32 - 1. */
static int large_counter_body(dt_comm *comm, void *argument) {
  (void)argument;
  int32_t me = dt_comm_rank(comm), to = 1 - me;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 256, &window));
  dt_wait wait = {.phase = "large", .counter = "count", .index = 0, .peer = to};
  EXPECT(!dt_comm_signal(comm, window, to, 64, 0x7ffffff0U, 0));
  EXPECT(!dt_comm_wait(comm, window, 64, 0x7ffffff0U, &wait));
  EXPECT(!dt_comm_barrier(comm, "half"));
  for (int i = 0; i < 32; i++) {
    EXPECT(!dt_comm_signal(comm, window, to, 64, 1, 0));
    EXPECT(!dt_comm_wait(comm, window, 64, 0x7ffffff1U + (uint32_t)i, &wait));
  }
  EXPECT(!dt_comm_signal(comm, window, to, 64, 0x7fffffefU, 0));
  EXPECT(!dt_comm_wait(comm, window, 64, 0xffffffffU, &wait));
  return 0;
}

static void test_large_counters(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 2, NULL, large_counter_body, NULL), 0);
}

/* All ranks add to one counter at once; no add may be lost. */
enum { ADDS = 20000 };
static int writers_body(dt_comm *comm, void *argument) {
  (void)argument;
  int32_t ranks = dt_comm_ranks(comm);
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 128, &window));
  for (int i = 0; i < ADDS; i++) EXPECT(!dt_comm_signal(comm, window, 0, 64 * (size_t)(i & 1), 1, 0));
  if (dt_comm_rank(comm) == 0) {
    dt_wait wait = {.phase = "writers", .counter = "adds", .index = -1, .peer = -1};
    for (size_t i = 0; i < 2; i++) {
      EXPECT(!dt_comm_wait(comm, window, 64 * i, (uint32_t)ranks * ADDS / 2, &wait));
      EXPECT(((dt_counter *)dt_window_local(window))[i].value == (uint32_t)ranks * ADDS / 2);
    }
  }
  EXPECT(!dt_comm_barrier(comm, "end"));
  return 0;
}

static void test_two_writers(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 2, NULL, writers_body, NULL), 0);
  assert_int_equal(run_ranks(1, 4, NULL, writers_body, NULL), 0);
}

/* A transfer in chunks, sent by two threads of the sender, several in flight. With one cumulative counter
 * the receiver would take chunk 0 as there when the counter says "one chunk", though it may be chunk 1 that arrived.
 * The fabric's answer: a counter costs 64 bytes of a window, so each chunk has its own, and a signal's release covers
 * only what its own thread put before it. Where one counter is used for all, only its full count means anything. */
enum { CHUNKS = 16, CHUNK_WORDS = 2048, TRANSFERS = 40 };
typedef struct chunk_sender {
  dt_comm *comm;
  dt_window *window;
  int first, result;
} chunk_sender;

static void *send_chunks(void *argument) {
  chunk_sender *self = argument;
  uint32_t *words = malloc(CHUNK_WORDS * sizeof *words);
  dt_wait wait = {.phase = "chunks", .counter = "transfers taken", .index = -1, .peer = 1};
  for (uint32_t transfer = 0; transfer < TRANSFERS && !self->result; transfer++) {
    self->result = dt_comm_wait(self->comm, self->window, CHUNKS * sizeof(dt_counter), transfer, &wait);
    /* thread 0 sends the even chunks backwards, thread 1 the odd ones: out of order on purpose */
    for (int i = 0; i < CHUNKS / 2 && !self->result; i++) {
      int chunk = self->first ? 2 * i + 1 : CHUNKS - 2 - 2 * i;
      for (uint32_t w = 0; w < CHUNK_WORDS; w++) words[w] = mix(transfer * 131071 + (uint32_t)chunk * CHUNK_WORDS + w);
      dt_put put = {.window = self->window,
                    .peer = 1,
                    .offset = 4096 + (size_t)chunk * CHUNK_WORDS * 4,
                    .src = words,
                    .row_bytes = CHUNK_WORDS * 4,
                    .rows = 1};
      uint64_t visible = 0;
      self->result = dt_comm_put(self->comm, &put, &visible);
      if (!self->result) {
        self->result = dt_comm_signal(self->comm, self->window, 1, (size_t)chunk * sizeof(dt_counter), 1, visible);
      }
    }
  }
  free(words);
  return NULL;
}

static int take_chunks(dt_comm *comm, dt_window *window) {
  const unsigned char *own = dt_window_local(window);
  for (uint32_t transfer = 0; transfer < TRANSFERS; transfer++) {
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
      dt_wait wait = {.phase = "chunks", .counter = "arrival of chunk", .index = chunk, .peer = 0};
      EXPECT(!dt_comm_wait(comm, window, (size_t)chunk * sizeof(dt_counter), transfer + 1, &wait));
      const uint32_t *words = (const uint32_t *)(own + 4096 + (size_t)chunk * CHUNK_WORDS * 4);
      for (uint32_t w = 0; w < CHUNK_WORDS; w++) {
        EXPECT(words[w] == mix(transfer * 131071 + (uint32_t)chunk * CHUNK_WORDS + w));
      }
    }
    EXPECT(!dt_comm_signal(comm, window, 0, CHUNKS * sizeof(dt_counter), 1, 0));
  }
  return 0;
}

static int chunks_body(dt_comm *comm, void *argument) {
  (void)argument;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 4096 + (size_t)CHUNKS * CHUNK_WORDS * 4, &window));
  if (dt_comm_rank(comm) == 1) return take_chunks(comm, window);
  chunk_sender senders[2] = {{comm, window, 0, 0}, {comm, window, 1, 0}};
  pthread_t threads[2];
  for (int t = 0; t < 2; t++) EXPECT(!pthread_create(&threads[t], NULL, send_chunks, &senders[t]));
  for (int t = 0; t < 2; t++) pthread_join(threads[t], NULL);
  EXPECT(!senders[0].result && !senders[1].result);
  return 0;
}

static void test_chunks(void **state) {
  (void)state;
  dt_comm_config config;
  dt_comm_config_init(&config);
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 2, &config, chunks_body, NULL), 0);
  config.link_bytes_per_s = 2e9;
  config.link_capacity_bytes = 3 * CHUNK_WORDS * 4;
  config.link_latency_s = 20e-6;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 2, &config, chunks_body, NULL), 0);
}

/* Sizes around the chunk of the in-band all-gather, and barriers in a row with random delays. */
static int gather_body(dt_comm *comm, void *argument) {
  (void)argument;
  const size_t sizes[] = {1, 8, 32767, 32768, 32769, 100000};
  int32_t me = dt_comm_rank(comm), ranks = dt_comm_ranks(comm);
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    unsigned char *send = malloc(sizes[s]), *receive = malloc(sizes[s] * (size_t)ranks);
    for (size_t i = 0; i < sizes[s]; i++) send[i] = (unsigned char)mix((uint32_t)(i + 7 * s) + (uint32_t)me * 999983);
    EXPECT(!dt_comm_allgather(comm, send, receive, sizes[s]));
    for (int32_t p = 0; p < ranks; p++) {
      for (size_t i = 0; i < sizes[s]; i++) {
        EXPECT(receive[(size_t)p * sizes[s] + i] == (unsigned char)mix((uint32_t)(i + 7 * s) + (uint32_t)p * 999983));
      }
    }
    free(send);
    free(receive);
  }
  return 0;
}

static int barrier_body(dt_comm *comm, void *argument) {
  (void)argument;
  int32_t me = dt_comm_rank(comm), ranks = dt_comm_ranks(comm);
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, sizeof(uint32_t) * RANKS_MAX, &window));
  for (uint32_t round = 1; round <= 60; round++) {
    if (mix(round * 17 + (uint32_t)me) % 5 == 0) sleep_s(1e-3 * (mix(round + (uint32_t)me) % 4));
    for (int32_t p = 0; p < ranks; p++) {
      dt_put put = {.window = window, .peer = p, .offset = 4 * (size_t)me, .src = &round, .row_bytes = 4, .rows = 1};
      EXPECT(!dt_comm_put(comm, &put, NULL));
    }
    EXPECT(!dt_comm_barrier(comm, "round"));
    const uint32_t *seen = dt_window_local(window);
    for (int32_t p = 0; p < ranks; p++) EXPECT(seen[p] == round);
    EXPECT(!dt_comm_barrier(comm, "read"));
  }
  return 0;
}

static void test_gather_and_barrier(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) {
    for (int32_t ranks = 1; ranks <= 8; ranks += ranks < 4 ? 1 : 4) {
      assert_int_equal(run_ranks(shm, ranks, NULL, gather_body, NULL), 0);
      assert_int_equal(run_ranks(shm, ranks, NULL, barrier_body, NULL), 0);
    }
  }
}

/* One error on every rank, naming the first field that differs, its values and their ranks. */
static int agree_body(dt_comm *comm, void *argument) {
  (void)argument;
  int32_t me = dt_comm_rank(comm);
  dt_agree_field fields[] = {{"hidden", 64}, {"top_k", me == 2 ? 4 : 2}, {"tile_m", me}};
  EXPECT(!dt_comm_agree(comm, fields, 1));
  EXPECT(dt_comm_agree(comm, fields, 3) == DT_ERR_MISMATCH);
  EXPECT(strcmp(dt_error_detail(), "top_k: 2 on ranks 0, 1, 3; 4 on rank 2; the same on every rank") == 0);
  EXPECT(dt_comm_agree(comm, fields, me == 1 ? 1 : 2) == DT_ERR_MISMATCH);
  EXPECT(strstr(dt_error_detail(), "top_k on ranks 0, 2, 3; none on rank 1"));
  fields[0].name = me == 3 ? "intermediate" : "hidden";
  EXPECT(dt_comm_agree(comm, fields, 2) == DT_ERR_MISMATCH);
  EXPECT(strstr(dt_error_detail(), "field 0") && strstr(dt_error_detail(), "intermediate on rank 3"));
  dt_agree_field big = {"seed", INT64_MIN + me / 4};
  EXPECT(!dt_comm_agree(comm, &big, 1));
  EXPECT(!dt_comm_agree(comm, NULL, 0));
  EXPECT(!dt_comm_status(comm));
  return 0;
}

static void test_agree(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 4, NULL, agree_body, NULL), 0);
}

static void test_arguments(void **state) {
  (void)state;
  dt_comm *endpoints[RANKS_MAX] = {NULL};
  dt_comm_config config;
  assert_int_equal(dt_comm_create_local(0, NULL, endpoints), DT_ERR_ARGUMENT);
  assert_int_equal(dt_comm_create_local(65, NULL, endpoints), DT_ERR_ARGUMENT);
  dt_comm_config_init(&config);
  config.link_bytes_per_s = 1e9;
  assert_int_equal(dt_comm_create_local(2, &config, endpoints), DT_ERR_ARGUMENT);
  assert_non_null(strstr(dt_error_detail(), "link_capacity_bytes"));
  dt_comm_config_init(&config);
  config.timeout_s = -1.0;
  assert_int_equal(dt_comm_create_local(2, &config, endpoints), DT_ERR_ARGUMENT);
  assert_null(endpoints[0]);
  assert_int_equal(dt_comm_create_shm(0, 1, NULL, NULL, NULL, endpoints), DT_ERR_ARGUMENT);
  dt_comm_destroy(NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_arguments),   cmocka_unit_test(test_rows),   cmocka_unit_test(test_large_counters),
      cmocka_unit_test(test_two_writers), cmocka_unit_test(test_agree),  cmocka_unit_test(test_gather_and_barrier),
      cmocka_unit_test(test_chunks),      cmocka_unit_test(test_stress),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
