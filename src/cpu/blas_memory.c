/* Makes the serial OpenBLAS safe to call from several threads. Each of its calls borrows a packing buffer from a table
 * that Debian's serial build guards with no lock, so that two threads could get the same buffer (seen: wrong products
 * with two workers in one process). The linker sends the calls here: ld --wrap on the static library.
 * The table keeps every buffer it ever made, and making one spins until the memory is there (seen under ulimit -v): so
 * they are made ahead, after asking for the same memory in a way that can fail. */
#include "blas_memory.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

void *__real_blas_memory_alloc(int position);
void __real_blas_memory_free(void *buffer);
void *__wrap_blas_memory_alloc(int position);
void __wrap_blas_memory_free(void *buffer);

#define EXPORTED __attribute__((visibility("default")))
static const size_t buffer_bytes = ((size_t)128 << 20) + (64 << 10); /* BUFFER_SIZE, and its alignment */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t held, made, reserved; /* buffers: with threads now, in the table, promised */

static void *borrow(int position) {
  held++;
  if (made < held) made = held;
  return __real_blas_memory_alloc(position);
}

static void give_back(void *buffer) {
  __real_blas_memory_free(buffer);
  held--;
}

void *__wrap_blas_memory_alloc(int position) {
  pthread_mutex_lock(&table_lock);
  void *buffer = borrow(position);
  pthread_mutex_unlock(&table_lock);
  return buffer;
}

void __wrap_blas_memory_free(void *buffer) {
  pthread_mutex_lock(&table_lock);
  give_back(buffer);
  pthread_mutex_unlock(&table_lock);
}

/* A table of `count` buffers: those that no thread holds are borrowed at once, so that missing ones are made. */
static int make(int64_t count) {
  if (count <= made) return 0;
  const size_t missing = (size_t)(count - made) * buffer_bytes;
  void *room = mmap(NULL, missing, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return -1;
  munmap(room, missing);
  const int64_t free_count = count - held;
  void **buffers = malloc((size_t)free_count * sizeof(*buffers));
  if (!buffers) return -1;
  for (int64_t i = 0; i < free_count; i++) buffers[i] = borrow(0);
  for (int64_t i = 0; i < free_count; i++) give_back(buffers[i]);
  free(buffers);
  return 0;
}

EXPORTED int blas_reserve(int32_t threads) {
  pthread_mutex_lock(&table_lock);
  const int failed = make(reserved + threads);
  if (!failed) reserved += threads;
  pthread_mutex_unlock(&table_lock);
  return failed;
}

EXPORTED void blas_release(int32_t threads) {
  pthread_mutex_lock(&table_lock);
  reserved -= threads;
  pthread_mutex_unlock(&table_lock);
}

EXPORTED int blas_ensure(int32_t threads) {
  pthread_mutex_lock(&table_lock);
  const int failed = make(threads);
  pthread_mutex_unlock(&table_lock);
  return failed;
}
