/* Fabric `cuda`: ranks as threads and as processes, both ways of sharing memory. Skipped without a GPU or CUDA parts.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <draintile/comm.h>

#ifndef DT_WITH_CUDA

static void test_refused(void **state) {
  (void)state;
  dt_comm *control = NULL, *comm = NULL;
  assert_int_equal(dt_comm_create_local(1, NULL, &control), DT_OK);
  assert_int_equal(dt_comm_create_cuda(control, 0, &comm), DT_ERR_UNSUPPORTED);
  assert_non_null(strstr(dt_error_detail(), "cuda"));
  dt_comm_destroy(control);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

#include "cuda/driver.h"
#include "cuda/fabric.h"

enum { RANKS = 2, BYTES = 1 << 20, SKIPPED = 77 };

static int device_of(int32_t rank) {
  return rank % dt_cuda_device_count();
}

#define CHECK(condition)                                                                                               \
  do {                                                                                                                 \
    if (!(condition)) return __LINE__;                                                                                 \
  } while (0)

/* One rank's part: puts a pattern into the peer's piece, signals, waits for its own, looks. 0, or a line number. */
static int exchange(dt_comm *control, int32_t rank, int sharing) {
  dt_comm *comm = NULL;
  CHECK(dt_cuda_fabric_create(control, device_of(rank), (dt_cuda_sharing)sharing, &comm) == DT_OK);
  CHECK(strcmp(dt_comm_fabric(comm), "cuda") == 0);
  int line = 0;
  for (int32_t round = 1; round <= 3 && !line; round++) {
    dt_window *window = NULL;
    unsigned char *send = malloc(BYTES), *seen = malloc(2 * BYTES);
    CHECK(send && seen);
    for (size_t i = 0; i < BYTES; i++) send[i] = (unsigned char)(i * 7 + (size_t)(rank + round) * 31);
    CHECK(dt_comm_alloc(comm, 2 * BYTES + (size_t)rank * 4096, &window) == DT_OK);
    CHECK(dt_window_bytes(window, 1) == 2 * BYTES + 4096);
    int32_t peer = 1 - rank;
    dt_put put = {.window = window,
                  .peer = peer,
                  .offset = 4096,
                  .dst_stride = 2048,
                  .src = send,
                  .src_stride = 1024,
                  .row_bytes = 1024,
                  .rows = 512};
    CHECK(dt_comm_put(comm, &put, NULL) == DT_OK);
    CHECK(dt_comm_signal(comm, window, peer, 64, 5, 0) == DT_OK);
    CHECK(dt_comm_signal(comm, window, peer, 64, 2, 0) == DT_OK);
    dt_wait wait = {.phase = "test", .counter = "rows", .index = 1, .peer = peer};
    CHECK(dt_comm_wait(comm, window, 64, 7, &wait) == DT_OK);
    CHECK(cudaMemcpy(seen, dt_window_local(window), 2 * BYTES, cudaMemcpyDeviceToHost) == cudaSuccess);
    for (size_t row = 0; row < 512; row++)
      for (size_t i = 0; i < 2048; i++) {
        unsigned char expected =
            i < 1024 ? (unsigned char)((row * 1024 + i) * 7 + (size_t)(peer + round) * 31) : 0; /* gaps stay zero */
        if (4096 + row * 2048 + i < 2 * BYTES && seen[4096 + row * 2048 + i] != expected) line = __LINE__;
      }
    CHECK(dt_comm_barrier(comm, "test") == DT_OK);
    dt_comm_free(comm, window);
    free(send), free(seen);
  }
  dt_comm_destroy(comm);
  return line;
}

typedef struct thread_call {
  dt_comm *control;
  int32_t rank, sharing, line;
} thread_call;

static void *run_thread(void *argument) {
  thread_call *call = argument;
  call->line = exchange(call->control, call->rank, call->sharing);
  return NULL;
}

/* 0, SKIPPED or a line number. Runs in a child: a parent that used CUDA could not fork ranks later. */
static int threads(int sharing) {
  if (dt_cuda_device_count() == 0) return SKIPPED;
  dt_comm *controls[RANKS];
  CHECK(dt_comm_create_local(RANKS, NULL, controls) == DT_OK);
  pthread_t ids[RANKS];
  thread_call calls[RANKS];
  for (int32_t r = 0; r < RANKS; r++) {
    calls[r] = (thread_call){.control = controls[r], .rank = r, .sharing = sharing};
    CHECK(pthread_create(&ids[r], NULL, run_thread, &calls[r]) == 0);
  }
  for (int32_t r = 0; r < RANKS; r++) pthread_join(ids[r], NULL);
  return calls[0].line ? calls[0].line : calls[1].line;
}

typedef struct gather_board {
  pthread_barrier_t barrier;
  unsigned char data[RANKS * 65536];
} gather_board;

typedef struct gather_context {
  gather_board *board;
  int32_t rank;
} gather_context;

static int gather(void *context, const void *send, void *receive, size_t bytes) {
  gather_context *c = context;
  if (bytes > 65536) return 1;
  memcpy(c->board->data + (size_t)c->rank * bytes, send, bytes);
  pthread_barrier_wait(&c->board->barrier);
  memcpy(receive, c->board->data, RANKS * bytes);
  pthread_barrier_wait(&c->board->barrier);
  return 0;
}

static int process_rank(gather_board *board, int32_t rank, int sharing) {
  if (dt_cuda_device_count() == 0) return SKIPPED;
  gather_context context = {board, rank};
  dt_comm *control = NULL;
  CHECK(dt_comm_create_shm(rank, RANKS, gather, &context, NULL, &control) == DT_OK);
  return exchange(control, rank, sharing);
}

static int wait_for(pid_t child) {
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

static void report(int result) {
  if (result == SKIPPED) skip();
  if (result) fail_msg("failed, line %d (modulo 256)", result);
}

static void test_threads(void **state) {
  int sharing = *(int *)*state;
  pid_t child = fork();
  if (child == 0) _exit(threads(sharing));
  report(wait_for(child));
}

static void test_processes(void **state) {
  int sharing = *(int *)*state;
  gather_board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(board, MAP_FAILED);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board->barrier, &shared, RANKS);
  pid_t children[RANKS];
  for (int32_t r = 0; r < RANKS; r++) {
    children[r] = fork();
    if (children[r] == 0) _exit(process_rank(board, r, sharing));
  }
  int results[RANKS];
  for (int32_t r = 0; r < RANKS; r++) results[r] = wait_for(children[r]);
  munmap(board, sizeof *board);
  report(results[0] ? results[0] : results[1]);
}

int main(void) {
  static int cumem = DT_CUDA_SHARE_CUMEM, ipc = DT_CUDA_SHARE_IPC;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_prestate(test_threads, &cumem),
      cmocka_unit_test_prestate(test_threads, &ipc),
      cmocka_unit_test_prestate(test_processes, &cumem),
      cmocka_unit_test_prestate(test_processes, &ipc),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
