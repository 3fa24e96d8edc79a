/* Makes the serial OpenBLAS safe to call from several threads. Each of its calls borrows a packing buffer from a table
 * that Debian's serial build guards with no lock, so that two threads could get the same buffer (seen: wrong products
 * with two workers in one process). The linker sends the calls here: ld --wrap on the static library. */
#include <pthread.h>

void *__real_blas_memory_alloc(int position);
void __real_blas_memory_free(void *buffer);
void *__wrap_blas_memory_alloc(int position);
void __wrap_blas_memory_free(void *buffer);

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

void *__wrap_blas_memory_alloc(int position) {
  pthread_mutex_lock(&table_lock);
  void *buffer = __real_blas_memory_alloc(position);
  pthread_mutex_unlock(&table_lock);
  return buffer;
}

void __wrap_blas_memory_free(void *buffer) {
  pthread_mutex_lock(&table_lock);
  __real_blas_memory_free(buffer);
  pthread_mutex_unlock(&table_lock);
}
