/* Packing buffers of the BLAS library, which waits for ever where it cannot have one: 128 MiB of address space each,
 * of which a call touches what it needs. These are no functions of this library (dt_*): they lie where its calls do. */
#ifndef DT_CPU_BLAS_MEMORY_H
#define DT_CPU_BLAS_MEMORY_H

#include <stdint.h>

/* Makes sure that `threads` more threads can call the library at once; 0, or -1 where the memory is not to be had.
 * Ended by blas_release. */
int blas_reserve(int32_t threads);
void blas_release(int32_t threads);
/* That `threads` threads can, all of this process counted: for calls while those that reserved do nothing. 0 or -1. */
int blas_ensure(int32_t threads);

#endif
