/* The MoE layer: a forward as one launch of a graph. Issuing five or six kernels costs the host 3 to 5 us each, a graph
 * of them 2 to 4 in all; a node whose parameters change costs 2 more, so only the two first ones' do: later kernels
 * find the input in the state (docs/notes/moe.md).
 */
#include <string.h>

#include "core/error.h"
#include "driver.h"
#include "moe_handle.h"

/* The node of the launch that `stream` recorded last. */
static cudaError_t last_node(cudaStream_t stream, cudaGraphNode_t *node) {
  enum cudaStreamCaptureStatus capturing;
  const cudaGraphNode_t *last = NULL;
  const cudaGraphEdgeData *edges = NULL;
  size_t count = 0;
#if CUDART_VERSION >= 13000
  const cudaError_t error = cudaStreamGetCaptureInfo(stream, &capturing, NULL, NULL, &last, &edges, &count);
#else
  const cudaError_t error = cudaStreamGetCaptureInfo_v3(stream, &capturing, NULL, NULL, &last, &edges, &count);
#endif
  if (error == cudaSuccess && count != 1) return cudaErrorUnknown; /* launches of one stream form a chain */
  if (error == cudaSuccess) *node = last[0];
  return error;
}

dt_status dt_cuda_moe_graph_note(dt_cuda_moe_node *n, cudaStream_t stream) {
  cudaError_t error = last_node(stream, &n->node);
  if (error == cudaSuccess) error = cudaGraphKernelNodeGetParams(n->node, &n->params);
  n->params.kernelParams = NULL; /* the graph's own copy */
  return dt_cuda_check(error, "graph");
}

/* *lost: another thread waited for the whole device meanwhile, which ends every capture on it. Relaxed: what other
 * threads allocate is none of the graph's. */
static dt_status record(dt_cuda_moe *m, cudaStream_t stream, int *lost) {
  dt_cuda_moe_graph *g = &m->graph;
  dt_status status = dt_cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "graph");
  *lost = 0;
  if (status) return status;
  g->recording = 1;
  status = dt_cuda_moe_queue(m, &g->input, stream); /* without tokens */
  g->recording = 0;
  g->plan = m->plan;
  const cudaError_t ended = cudaStreamEndCapture(stream, &g->graph);
  *lost = ended == cudaErrorStreamCaptureInvalidated;
  return status ? status : dt_cuda_check(ended, "graph");
}

dt_status dt_cuda_moe_graph_make(dt_cuda_moe *m) {
  enum { TRIES = 100 };
  dt_cuda_moe_graph *g = &m->graph;
  cudaStream_t stream;
  int lost = 1;
  dt_cuda_moe_graph_free(m);
  if (m->recorder) return DT_OK;
  dt_status status = dt_cuda_check(cudaSetDevice(m->device), "cudaSetDevice");
  if (!status) status = dt_cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "graph");
  if (status) return status;
  for (int i = 0; i < TRIES && lost; i++) {
    if (i > 0) {
      dt_cuda_moe_graph_free(m);
      cudaGetLastError(); /* or a later launch would seem to have failed */
    }
    status = record(m, stream, &lost);
  }
  if (!status) status = dt_cuda_check(cudaGraphInstantiate(&g->exec, g->graph, 0), "graph");
  if (!status) status = dt_cuda_check(cudaGraphUpload(g->exec, stream), "graph");
  if (!status) status = dt_cuda_check(cudaStreamSynchronize(stream), "graph");
  cudaStreamDestroy(stream);
  if (status) dt_cuda_moe_graph_free(m);
  return status;
}

void dt_cuda_moe_graph_free(dt_cuda_moe *m) {
  dt_cuda_moe_graph *g = &m->graph;
  if (g->exec) cudaGraphExecDestroy(g->exec);
  if (g->graph) cudaGraphDestroy(g->graph);
  *g = (dt_cuda_moe_graph){0};
}

/* Launches under way keep the parameters that they were queued with. */
static cudaError_t give(dt_cuda_moe_graph *g, dt_cuda_moe_node *n) {
  void *arguments[] = {&g->plan};
  n->params.kernelParams = arguments;
  const cudaError_t error = cudaGraphExecKernelNodeSetParams(g->exec, n->node, &n->params);
  n->params.kernelParams = NULL;
  return error;
}

/* Counting has all of the input; of the table kernel's blocks, those that place slots have ids and tokens. Where one of
 * the two did not get it, both get the next. */
static cudaError_t give_input(dt_cuda_moe_graph *g, const dt_cuda_moe_input *input) {
  const dt_cuda_moe_input had = g->input;
  const int routing = g->torn || input->tokens != had.tokens || input->ids != had.ids;
  if (!routing && input->hidden == had.hidden && input->weights == had.weights && input->output == had.output)
    return cudaSuccess;
  const int32_t before = g->plan.slot.blocks;
  dt_cuda_moe_take_input(&g->plan, input);
  g->input = *input;
  const unsigned more = (unsigned)(g->plan.slot.blocks - before);
  g->count.params.gridDim.x += more;
  g->table.params.gridDim.x += more;
  cudaError_t error = give(g, &g->count);
  if (error == cudaSuccess && routing) error = give(g, &g->table);
  g->torn = error != cudaSuccess;
  return error;
}

dt_status dt_cuda_moe_graph_launch(dt_cuda_moe *m, const dt_cuda_moe_input *input, cudaStream_t stream) {
  dt_cuda_moe_graph *g = &m->graph;
  if (!g->exec) return dt_fail(DT_ERR_ARGUMENT, "schedule: the last dt_cuda_moe_set_schedule failed");
  cudaError_t error = give_input(g, input);
  if (error == cudaSuccess) error = cudaGraphLaunch(g->exec, stream);
  return dt_cuda_check(error, "forward");
}
