/* Libraries that are loaded at run time, where they are there: NVML, cuBLAS, NCCL. */
#ifndef DT_CUDA_LIBRARIES_H
#define DT_CUDA_LIBRARIES_H

#include <cuda_runtime_api.h>
#include <stddef.h>

/* The first of `names` that can be opened. `functions` is a structure of `count` function pointers, in the order of
 * `symbols`. 0: there is no such library, or it lacks one of them. It stays loaded. */
int dt_library_load(const char *const *names, size_t name_count, const char *const *symbols, size_t count,
                    void *functions);

/* NCCL's host calls that have kept their signatures over its releases; they return 0. Types as in nccl.h, which need
 * not be installed. */
typedef struct dt_nccl {
  int (*init_all)(void **comms, int devices, const int *list);
  int (*destroy)(void *comm);
  int (*group_start)(void);
  int (*group_end)(void);
  int (*send)(const void *, size_t, int type, int peer, void *comm, cudaStream_t);
  int (*receive)(void *, size_t, int type, int peer, void *comm, cudaStream_t);
  int (*version)(int *);
} dt_nccl;
/* 0: libnccl was not found. */
int dt_nccl_load(dt_nccl *nccl);

#endif
