/* The tokens file of `moe`: hidden_states [T, H] and, optionally, topk_ids and topk_weights [T, k]. */
#ifndef DRAINTILE_TOOL_MOE_INPUT_H
#define DRAINTILE_TOOL_MOE_INPUT_H

#include <stdbool.h>
#include <stdint.h>

#include <draintile/checkpoint.h>

typedef struct moe_input {
  dt_tensor_file *file;
  const char *path;
  int64_t tokens, hidden;
  dt_dtype dtype;
  const void *data;     /* [tokens][hidden] */
  int32_t top_k;        /* of the file; 0: the router decides */
  const int64_t *ids;   /* [tokens][top_k] or NULL */
  const float *weights; /* [tokens][top_k] or NULL */
  int repeats;          /* some token names an expert more than once */
} moe_input;

/* Opens and checks everything: shapes, types, every value; on_host: that the ranks' rows fit into this machine's
 * memory. Returns an exit code, having said what is wrong. */
int moe_input_open(const char *path, const dt_checkpoint_info *info, bool on_host, moe_input *input);
void moe_input_close(moe_input *input);

#endif
