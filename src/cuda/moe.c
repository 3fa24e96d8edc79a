/* The MoE layer: launches. */
#include <stdint.h>

#include "core/error.h"
#include "driver.h"
#include "moe_handle.h"
#include "plan/layer_defaults.h"

enum { TABLE_BLOCKS = 64, EARLY_SEND_BLOCKS = 32 };

static dt_status check_input(const dt_cuda_moe *m, const dt_cuda_moe_input *in) {
  if (in->tokens < 0 || in->tokens > m->config.max_tokens)
    return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 to %lld allowed", (long long)in->tokens,
                   (long long)m->config.max_tokens);
  const struct {
    const char *name;
    const void *pointer;
  } fields[] = {{"hidden", in->hidden}, {"ids", in->ids}, {"weights", in->weights}, {"output", in->output}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (in->tokens > 0 && (fields[i].pointer == NULL || (uintptr_t)fields[i].pointer % 16 != 0))
      return dt_fail(DT_ERR_ARGUMENT, "%s: %p; device memory aligned to 16 allowed", fields[i].name, fields[i].pointer);
  return DT_OK;
}

void dt_cuda_moe_take_input(dt_moe_plan *plan, const dt_cuda_moe_input *in) {
  dt_device_slots *slot = &plan->slot;
  slot->ids = in->ids;
  slot->tokens_capacity = in->tokens;
  const int64_t lanes = (int64_t)slot->warps * DT_WARP, blocks = (in->tokens * slot->top_k + lanes - 1) / lanes;
  slot->blocks = (int32_t)(blocks < 1 ? 1 : blocks > DT_CUDA_MOE_SLOTS_BLOCKS ? DT_CUDA_MOE_SLOTS_BLOCKS : blocks);
  plan->input = (dt_layer_input){in->hidden, in->weights, in->output, in->tokens};
}

/* Of a launch that takes the plan and was just queued: its error, or, while a graph is made, a note of it. */
static dt_status planned(dt_cuda_moe *m, cudaError_t error, const char *what, dt_cuda_moe_node *node,
                         cudaStream_t stream) {
  const dt_status status = dt_cuda_check(error, what);
  return status || !m->graph.recording ? status : dt_cuda_moe_graph_note(node, stream);
}

/* Whether the whole dispatch comes before the tiles, and all puts behind them: serial. */
static int in_turn(const dt_cuda_moe *m) {
  return m->plan.staged && !m->consumers;
}

/* L1 and L2; m->layer.waits, signals: as part of a forward. staged: rows of other ranks stay here, for the consumers if
 * there are any. local: all do, in the own combine buffer. */
static dt_status launch_tiles(dt_cuda_moe *m, int staged, int local, cudaStream_t stream) {
  dt_tile_layer layer = m->layer;
  const int32_t rank = m->plan.rank;
  layer.signals = layer.signals && !staged && !local;
  layer.waits = layer.waits && !local;
  layer.consumers = layer.waits ? m->consumers : 0;
  layer.stored = layer.consumers ? m->plan.stored : NULL;
  layer.band_places = m->plan.order == DT_ORDER_PACED ? m->plan.band_places : NULL;
  layer.beside = layer.dedup && layer.waits && !in_turn(m) && !layer.crowded;
  /* What a rank computes may be more rows than it has slots; 16 rows are stored from each row below. */
  layer.local_rows = !local ? 0 : m->combine_rows > 16 ? (int32_t)m->combine_rows - 15 : 1;
  if (staged) {
    layer.gemm.owners_count = 2;
    layer.gemm.owners[0] = m->buffers[rank];
    layer.gemm.owner_rows[0] = layer.buffers[rank];
    layer.gemm.owners[1] = m->staging;
    layer.gemm.owner_rows[1] = layer.rows_of[rank];
  } else {
    layer.gemm.owners_count = (uint32_t)m->plan.ranks;
    for (int32_t r = 0; r < m->plan.ranks; r++) {
      layer.gemm.owners[r] = m->buffers[r];
      layer.gemm.owner_rows[r] = layer.buffers[r];
    }
  }
  const int ctas = m->sms / DT_TILE_CLUSTER * DT_TILE_CLUSTER;
  if (m->recorder) {
    const dt_stamped_layer stamped = {.layer = layer, .stamps = m->recorder->stamps};
    return dt_cuda_check(dt_stamped_layer_launch(&stamped, ctas, stream), "tiles");
  }
  if (layer.dedup) return dt_cuda_check(dt_tile_layer_dedup_launch(&layer, ctas, stream), "tiles");
  return dt_cuda_check(dt_tile_layer_launch(&layer, ctas, stream), "tiles");
}

/* Blocks that dispatch while the table is made. Where ranks share a device, nothing waits beside it. */
static int32_t early_blocks(const dt_moe_plan *p, int head) {
  const size_t shared = sizeof(int32_t) * dt_moe_scratch_words(p->ranks, p->experts, p->order) + dt_moe_early_bytes(p);
  if (p->crowded || shared > DT_CUDA_MOE_SHARED_MAX) return 0;
  return p->dedup ? EARLY_SEND_BLOCKS : head > 0 ? 0 : DT_LAYER_EARLY_PIECES;
}

static dt_status launch_plan(dt_cuda_moe *m, int head, cudaStream_t stream) {
  m->plan.head = head;
  m->plan.early_blocks = early_blocks(&m->plan, head);
  m->plan.early_share = DT_LAYER_EARLY_SHARE;
  m->plan.tiles_only = 0;
  dt_cuda_moe_graph *g = &m->graph;
  const dt_status status = planned(m, dt_moe_count_launch(&m->plan, stream), "counts", &g->count, stream);
  if (status) return status;
  return planned(m, dt_moe_table_launch(&m->plan, TABLE_BLOCKS, stream), "table", &g->table, stream);
}

/* Of the dispatch's pieces, what its kernel copies, in 1024ths. Warps beside the tiles copy the rest. Measured:
 * docs/notes/moe.md. */
static int head_of(const dt_cuda_moe *m) {
  if (in_turn(m)) return 1024;
  return m->config.head < 0 ? 0 : m->config.head > 0 ? m->config.head : m->config.dedup ? DT_LAYER_HEAD_DEDUP : 0;
}

/* Where ranks share a device, kernels that wait may not fill it. */
static int most_send_sms(const dt_cuda_moe *m) {
  const int all = m->sms / DT_TILE_CLUSTER * DT_TILE_CLUSTER;
  return m->layer.crowded ? (all + 2) / 4 * 2 : all;
}

int dt_cuda_moe_send_sms(const dt_cuda_moe *m) {
  const int most = most_send_sms(m), given = m->config.send_sms ? m->config.send_sms : DT_LAYER_SEND_SMS;
  const int wanted = in_turn(m) ? most : given;
  return wanted < most ? wanted : most;
}

/* whole: before anything else, on all multiprocessors. */
static dt_status launch_dispatch(dt_cuda_moe *m, int whole, cudaStream_t stream) {
  if (!m->layer.dedup) return dt_cuda_check(dt_layer_dispatch_launch(&m->layer, m->sms, stream), "dispatch");
  return dt_cuda_check(dt_layer_send_launch(&m->layer, whole ? most_send_sms(m) : dt_cuda_moe_send_sms(m), stream),
                       "dispatch");
}

dt_status dt_cuda_moe_queue(dt_cuda_moe *m, const dt_cuda_moe_input *input, cudaStream_t stream) {
  dt_tile_layer *layer = &m->layer;
  dt_cuda_moe_take_input(&m->plan, input);
  layer->waits = layer->signals = 1;
  const int head = head_of(m);
  dt_status status = dt_cuda_moe_mark(m, DT_MARK_BEGIN, stream);
  if (!status) status = launch_plan(m, head, stream);
  if (!status) status = dt_cuda_moe_mark(m, DT_MARK_PLANNED, stream);
  if (!status && (head > 0 || layer->dedup)) status = launch_dispatch(m, in_turn(m), stream);
  if (!status) status = dt_cuda_moe_mark(m, DT_MARK_DISPATCHED, stream);
  if (!status) status = launch_tiles(m, m->plan.staged, 0, stream);
  if (!status) status = dt_cuda_moe_mark(m, DT_MARK_TILED, stream);
  if (!status && in_turn(m)) {
    status = dt_cuda_check(dt_layer_put_launch(layer, m->plan.put_blocks, stream), "put");
    if (!status) status = dt_cuda_moe_mark(m, DT_MARK_PUT, stream);
  }
  if (!status) status = dt_cuda_check(dt_layer_reduce_launch(layer, m->sms, stream), "reduction");
  return status ? status : dt_cuda_moe_mark(m, DT_MARK_REDUCED, stream);
}

/* Asking is quicker than setting, and threads seldom change. */
static dt_status use_device(const dt_cuda_moe *m) {
  int now;
  if (cudaGetDevice(&now) == cudaSuccess && now == m->device) return DT_OK;
  return dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
}

dt_status dt_cuda_moe_forward(dt_cuda_moe *m, const dt_cuda_moe_input *input, void *stream) {
  enum cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  dt_status status = check_input(m, input);
  if (!status) status = use_device(m);
  if (!status) status = dt_cuda_check(cudaStreamIsCapturing(stream, &capturing), "stream");
  if (status) return status;
  /* A graph cannot be launched into a stream that records one; with timestamps none is made. */
  const int record = capturing != cudaStreamCaptureStatusNone || m->recorder;
  status = record ? dt_cuda_moe_queue(m, input, stream) : dt_cuda_moe_graph_launch(m, input, stream);
  if (!status) m->forwards = 1;
  return status;
}

dt_status dt_cuda_moe_run_part(dt_cuda_moe *m, dt_cuda_moe_part part, const dt_cuda_moe_input *input, void *stream) {
  dt_status status = check_input(m, input);
  if (!status && !m->forwards) status = dt_fail(DT_ERR_ARGUMENT, "part: %d; only after a forward", (int)part);
  if (!status) status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  if (status) return status;
  dt_cuda_moe_take_input(&m->plan, input);
  m->layer.waits = m->layer.signals = 0;
  m->marked = 0;
  switch (part) {
  case DT_CUDA_MOE_COMPUTE:
  case DT_CUDA_MOE_IN_PLACE:
    m->plan.tiles_only = 1;
    status = dt_cuda_check(dt_moe_table_launch(&m->plan, TABLE_BLOCKS, stream), "table");
    if (status) return status;
    return part == DT_CUDA_MOE_COMPUTE ? launch_tiles(m, 0, 1, stream) : launch_tiles(m, m->plan.staged, 0, stream);
  case DT_CUDA_MOE_DISPATCH:
    status = launch_plan(m, 1024, stream);
    return status ? status : launch_dispatch(m, 1, stream);
  case DT_CUDA_MOE_COMBINE:
    return dt_cuda_check(dt_layer_put_launch(&m->layer, m->sms, stream), "put");
  case DT_CUDA_MOE_REDUCE:
    return dt_cuda_check(dt_layer_reduce_launch(&m->layer, m->sms, stream), "reduction");
  default:
    return dt_fail(DT_ERR_ARGUMENT, "part: %d; compute, dispatch, combine, reduce or in place allowed", (int)part);
  }
}
