/* Which file of a model folder holds which tensor. */
#ifndef DT_IO_SHARDS_H
#define DT_IO_SHARDS_H

#include <draintile/checkpoint.h>

typedef struct dt_shard {
  char *file;           /* name inside the folder */
  dt_tensor_file *open; /* NULL until a tensor of it is asked for */
} dt_shard;

typedef struct dt_shard_entry {
  char *tensor;
  size_t shard;
} dt_shard_entry;

typedef struct dt_shards {
  dt_shard *shards; /* by file */
  size_t shard_count;
  dt_shard_entry *entries; /* by tensor; empty for a single file */
  size_t entry_count;
} dt_shards;

/* model.safetensors.index.json: {"weight_map": {tensor: file}}. `path` is for messages. */
dt_status dt_shards_parse(const char *path, const char *text, size_t bytes, dt_shards *shards);
/* A folder without an index: one file. */
dt_status dt_shards_single(const char *file, dt_shards *shards);
void dt_shards_free(dt_shards *shards);

/* The shard that lists the tensor; NULL: none does. A single file is the shard of every name. */
dt_shard *dt_shards_find(const dt_shards *shards, const char *tensor);

#endif
