/* The MoE layer's handle, and what its files do for each other. */
#ifndef DT_CUDA_MOE_HANDLE_H
#define DT_CUDA_MOE_HANDLE_H

#include <draintile/cuda_moe.h>

#include "comm/fabric.h"
#include "moe_plan.h"
#include "moe_spans.h"
#include "recorder.h"
#include "tile_layer.h"

enum {
  DT_CUDA_MOE_SHARED_MAX = 200 * 1024, /* bytes of shared memory that the plan's kernels may take */
  DT_CUDA_MOE_SLOTS_BLOCKS = 128       /* at most, that count slots */
};

/* A launch whose parameters, the plan, have some of a forward's input. */
typedef struct dt_cuda_moe_node {
  cudaGraphNode_t node;
  struct cudaKernelNodeParams params;
} dt_cuda_moe_node;

/* A forward's launches, as one. */
typedef struct dt_cuda_moe_graph {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  int recording;
  dt_cuda_moe_node count, table;
  dt_moe_plan plan;        /* that the nodes have */
  dt_cuda_moe_input input; /* likewise */
  int torn;                /* one of them may have another: the last input was refused */
} dt_cuda_moe_graph;

struct dt_cuda_moe {
  dt_cuda_moe_config config;
  dt_cuda_moe_weights weights;
  int device, sms;
  int consumers; /* multiprocessors of them that put, beside the tiles: signal's, else 0 */
  int dedups;    /* it was created with dedup, and may do without */
  int forwards;  /* there is a plan that parts may use */
  int64_t combine_rows;
  dt_window *rows, *buffer, *control;
  dt_window *tokens; /* of other ranks, with dedup; NULL: one rank */
  void *memory;      /* of everything below that is not in a window */
  size_t memory_bytes, control_bytes;
  uint8_t *act;
  dt_layer_state *seen; /* pinned: while a copy to other memory waits, so do other threads' copies */
  dt_moe_plan plan;
  dt_tile_layer layer;
  CUtensorMap buffers[DT_LAYER_RANKS], staging; /* combine buffers; expert rows, for stores */
  dt_cuda_moe_graph graph;
  dt_recorder *recorder; /* config.timestamps: else NULL */
  uint32_t marked;       /* bits of dt_cuda_moe_mark_at: of the last forward */
  dt_span *spans;        /* [span_count] of the last forward */
  size_t span_count, span_capacity;
};

/* moe_config.c: what ranks may ask for, each with the field's name if not; that all ask for the same; what a schedule
 * is to the plan. */
dt_status dt_cuda_moe_check_config(const dt_cuda_moe_config *config);
dt_status dt_cuda_moe_check_weights(const dt_cuda_moe_weights *weights);
dt_status dt_cuda_moe_agree(const dt_cuda_moe_config *config);
void dt_cuda_moe_fill_schedule(dt_cuda_moe *moe);
/* Whether a schedule leaves its tiles some of the multiprocessors that this rank has, and its plan fits. */
dt_status dt_cuda_moe_check_fits(const dt_cuda_moe *moe, const dt_cuda_moe_config *config);

/* moe_memory.c: everything the layer holds, by the sizes of its plan. What was made is in the handle, after an error
 * too. */
dt_status dt_cuda_moe_make_memory(dt_cuda_moe *moe);
dt_status dt_cuda_moe_make_windows(dt_cuda_moe *moe);
void dt_cuda_moe_free_windows(dt_cuda_moe *moe);
void dt_cuda_moe_free_memory(dt_cuda_moe *moe);
/* Where the control window has the counts, the arrivals and the rows' sources. */
size_t dt_cuda_moe_counts_offset(const dt_moe_plan *plan);
size_t dt_cuda_moe_arrivals_offset(const dt_moe_plan *plan);
size_t dt_cuda_moe_sources_offset(const dt_moe_plan *plan);

/* moe.c: one launch after the other; what of the plan a forward's input is. */
dt_status dt_cuda_moe_queue(dt_cuda_moe *moe, const dt_cuda_moe_input *input, cudaStream_t stream);
int dt_cuda_moe_send_sms(const dt_cuda_moe *moe); /* with dedup, of the dispatch kernel */
void dt_cuda_moe_take_input(dt_moe_plan *plan, const dt_cuda_moe_input *input);

/* moe_check.c: waits for `stream` and copies the state. */
dt_status dt_cuda_moe_read_state(dt_cuda_moe *moe, cudaStream_t stream, dt_layer_state *state);

/* moe_graph.c: makes a graph of the schedule's launches, in place of an earlier one; notes the launch that was just
 * recorded; launches the graph with an input. */
dt_status dt_cuda_moe_graph_make(dt_cuda_moe *moe);
dt_status dt_cuda_moe_graph_note(dt_cuda_moe_node *node, cudaStream_t stream);
dt_status dt_cuda_moe_graph_launch(dt_cuda_moe *moe, const dt_cuda_moe_input *input, cudaStream_t stream);
void dt_cuda_moe_graph_free(dt_cuda_moe *moe);

#endif
