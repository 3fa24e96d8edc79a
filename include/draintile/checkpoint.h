/* Tensors and checkpoints on disk: safetensors files, Hugging Face model folders, routers. docs/checkpoints.md lists
 * the families, their tensor names and what is refused.
 *
 *     dt_checkpoint_open(dir, &checkpoint);
 *     dt_checkpoint_layer(checkpoint, layer, rank, ranks, &own);      own->weights, own->router
 *     dt_router_run(&own->router, DT_DTYPE_BF16, hidden, tokens, ids, weights);
 *     dt_layer_free(own); dt_checkpoint_close(checkpoint);
 *
 * Files are mapped, never read whole: weights are used where they lie, so only the experts of a rank are ever touched.
 * A file that shrinks while it is mapped kills its reader (SIGBUS), as with every mapped file.
 */
#ifndef DRAINTILE_CHECKPOINT_H
#define DRAINTILE_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/status.h>
#include <draintile/weights.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Tensor files (safetensors) ---- */

#define DT_TENSOR_MAX_DIMS 8

typedef struct dt_tensor {
  const char *name; /* belongs to the file */
  dt_dtype dtype;
  int32_t dims; /* 0: a scalar */
  int64_t shape[DT_TENSOR_MAX_DIMS];
  const void *data; /* row-major, in the mapped file, aligned to the element; valid until the file is closed */
  size_t bytes;
} dt_tensor;

typedef struct dt_tensor_file dt_tensor_file;

/* Maps the file and checks its whole header: sizes, types, shapes, and that the tensors cover the data exactly once.
 * DT_ERR_IO (cannot be opened or mapped) and DT_ERR_MEMORY name the path, DT_ERR_INPUT the tensor and the path. */
dt_status dt_tensor_file_open(const char *path, dt_tensor_file **file);
void dt_tensor_file_close(dt_tensor_file *file); /* NULL allowed */
size_t dt_tensor_file_count(const dt_tensor_file *file);
const char *dt_tensor_file_path(const dt_tensor_file *file);
/* Name of tensor `index` (names ascending), or NULL past the end. */
const char *dt_tensor_file_name(const dt_tensor_file *file, size_t index);
int dt_tensor_file_has(const dt_tensor_file *file, const char *name);
/* DT_ERR_INPUT: no such tensor, a type that dt_dtype lacks, or data not aligned to its type. */
dt_status dt_tensor_file_get(const dt_tensor_file *file, const char *name, dt_tensor *tensor);

/* ---- Writing, atomically, by any number of threads and processes ---- */

typedef struct dt_tensor_spec {
  const char *name;
  dt_dtype dtype; /* any but MXFP4 */
  int32_t dims;
  int64_t shape[DT_TENSOR_MAX_DIMS];
} dt_tensor_spec;

typedef struct dt_tensor_writer dt_tensor_writer;

/* Reserves the whole file next to `path`, without a name where the file system can (a crash then leaves nothing), else
 * under a temporary one. `path` appears only at commit. DT_ERR_IO names the path: unwritable, no space left. */
dt_status dt_tensor_writer_create(const char *path, const dt_tensor_spec *tensors, size_t count,
                                  dt_tensor_writer **writer);
/* What another process passes to dt_tensor_writer_join, while the creator lives. A fork needs no join. */
const char *dt_tensor_writer_handle(const dt_tensor_writer *writer);
dt_status dt_tensor_writer_join(const char *handle, dt_tensor_writer **writer);
/* Rows [first, first + rows) of a tensor (the first dimension; a scalar has one row). Any thread or process; ranges are
 * written at most once each. DT_ERR_ARGUMENT: outside the tensor. DT_ERR_IO names path and reason. */
dt_status dt_tensor_writer_rows(const dt_tensor_writer *writer, const char *name, int64_t first, int64_t rows,
                                const void *data);
/* By the creator, once every row is written: flushed to disk, then renamed to its path. Frees the writer, whatever the
 * outcome; after an error `path` is as it was. */
dt_status dt_tensor_writer_commit(dt_tensor_writer *writer);
/* The creator's discard removes the file; after a join or in a forked child it only closes. NULL allowed. */
void dt_tensor_writer_discard(dt_tensor_writer *writer);

/* ---- Checkpoints ---- */

typedef struct dt_checkpoint dt_checkpoint;

typedef struct dt_checkpoint_info {
  const char *model_type; /* "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss" */
  int64_t hidden, intermediate;
  int64_t shared_intermediate; /* 0: no shared expert */
  int32_t layers, experts, top_k;
  dt_dtype dtype;         /* of the activations the model was saved for: F32, BF16 or F16 */
  dt_dtype weights_dtype; /* dtype, or F8_E4M3 or MXFP4 where the configuration says that experts are quantized */
} dt_checkpoint_info;

/* `dir` holds config.json and model.safetensors, or model.safetensors.index.json and its shards. Shards are opened when
 * a layer needs them. DT_ERR_IO, or DT_ERR_INPUT naming file, field, value and what is allowed. */
dt_status dt_checkpoint_open(const char *dir, dt_checkpoint **checkpoint);
void dt_checkpoint_close(dt_checkpoint *checkpoint); /* NULL allowed; after its layers are freed */
const dt_checkpoint_info *dt_checkpoint_get_info(const dt_checkpoint *checkpoint);
/* 1: the layer has experts; 0: it is dense, or out of range. */
int dt_checkpoint_layer_is_moe(const dt_checkpoint *checkpoint, int32_t layer);

/* ---- Routers ---- */

typedef enum dt_router_score {
  DT_ROUTER_SOFTMAX = 0,        /* softmax over all experts, then the top k (mixtral, qwen2_moe, qwen3_moe, olmoe) */
  DT_ROUTER_TOPK_SOFTMAX = 1,   /* the top k logits, then softmax over these (gpt_oss) */
  DT_ROUTER_SIGMOID_GROUPS = 2, /* sigmoid; choice by corrected score inside the best groups (deepseek_v3) */
} dt_router_score;

typedef struct dt_router {
  dt_router_score score;
  int64_t hidden;
  int32_t experts, top_k;
  int32_t normalize;           /* weights divided by their sum */
  int32_t groups, group_top_k; /* SIGMOID_GROUPS: groups of experts / groups; the group_top_k best are open */
  float scale;                 /* SIGMOID_GROUPS: routed_scaling_factor */
  const float *weight;         /* [experts][hidden] */
  const float *bias;           /* [experts], added to the logits; NULL: none */
  const float *correction;     /* [experts], added to the scores for the choice alone; NULL: none */
} dt_router;

/* Top-k ids and weights of `tokens` rows hidden[tokens][router->hidden] of dtype F32, BF16 or F16, in float32
 * throughout. ids[tokens][top_k], weights[tokens][top_k]: by descending score, ties by ascending expert. A token's
 * result depends on its row alone. DT_ERR_INPUT names the first token that holds a NaN or an infinity. */
dt_status dt_router_run(const dt_router *router, dt_dtype dtype, const void *hidden, int64_t tokens, int32_t *ids,
                        float *weights);

/* ---- The layer of one rank ---- */

typedef struct dt_layer {
  dt_moe_weights weights; /* experts [rank*E, (rank + 1)*E) and the shared expert */
  dt_router router;       /* over all experts */
  void *memory;           /* what the library allocated for the two */
} dt_layer;

/* Thread-safe. DT_ERR_ARGUMENT: layer out of range, rank outside ranks, experts not divisible by ranks. DT_ERR_INPUT: a
 * dense layer; a tensor that is missing or has another shape or type (names it, the folder and what was expected). */
dt_status dt_checkpoint_layer(dt_checkpoint *checkpoint, int32_t layer, int32_t rank, int32_t ranks, dt_layer **out);
void dt_layer_free(dt_layer *layer); /* NULL allowed; before the checkpoint is closed */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
