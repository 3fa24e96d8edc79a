/* A model folder: its configuration, and its tensors wherever they lie. */
#ifndef DT_IO_CHECKPOINT_H
#define DT_IO_CHECKPOINT_H

#include <pthread.h>

#include <draintile/checkpoint.h>

#include "config.h"
#include "shards.h"

struct dt_checkpoint {
  char *folder;
  dt_model_config config;
  dt_shards shards;
  pthread_mutex_t lock; /* over the opening of shards */
};

/* Types a tensor may have, as bits 1 << dt_dtype. */
#define DT_TYPES_FLOAT (1u << DT_DTYPE_F32 | 1u << DT_DTYPE_BF16 | 1u << DT_DTYPE_F16)

/* Whether the folder holds the tensor. Opens the shard that would: an error is that shard's. */
dt_status dt_checkpoint_has(dt_checkpoint *checkpoint, const char *name, int *has);

/* The tensor, of exactly this shape and one of these types. DT_ERR_INPUT names tensor, folder or file, and what was
 * expected. */
dt_status dt_checkpoint_tensor(dt_checkpoint *checkpoint, const char *name, const int64_t *shape, int32_t dims,
                               unsigned types, dt_tensor *tensor);

#endif
