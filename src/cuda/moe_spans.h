/* What moe_spans.c does for the layer's other files. Without config.timestamps all of it is nothing. */
#ifndef DT_CUDA_MOE_SPANS_H
#define DT_CUDA_MOE_SPANS_H

#include <draintile/cuda_moe.h>

#include <cuda_runtime_api.h>

/* Between the launches of a forward. */
typedef enum dt_cuda_moe_mark_at {
  DT_MARK_BEGIN = 0,
  DT_MARK_PLANNED,
  DT_MARK_DISPATCHED,
  DT_MARK_TILED,
  DT_MARK_PUT,
  DT_MARK_REDUCED
} dt_cuda_moe_mark_at;

dt_status dt_cuda_moe_make_recorder(dt_cuda_moe *moe);
void dt_cuda_moe_free_recorder(dt_cuda_moe *moe);
/* Notes when what was queued so far has ended. The begin forgets the marks of earlier forwards. */
dt_status dt_cuda_moe_mark(dt_cuda_moe *moe, dt_cuda_moe_mark_at at, cudaStream_t stream);

#endif
