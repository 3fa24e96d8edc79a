/* The MoE layer's graph where the CUDA runtime refuses to change a node: later launches have one input, not parts of
 * two. The runtime's two functions are replaced by ones that note what they are given. Needs no GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/moe_handle.h"

/* What a node has; node 0: count, 1: table. */
static struct {
  dt_moe_plan plan;
  unsigned blocks;
} nodes[2];
static int refused; /* of the next changes: a bit each, the first lowest */
static int changes, launches;

cudaError_t __wrap_cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct cudaKernelNodeParams *params);
cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream);

cudaError_t __wrap_cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                    const struct cudaKernelNodeParams *params) {
  (void)exec;
  const int refuse = refused & 1;
  refused >>= 1;
  changes++;
  if (refuse) return cudaErrorInvalidValue;
  const size_t n = (uintptr_t)node - 1;
  assert_in_range(n, 0, 1);
  memcpy(&nodes[n].plan, params->kernelParams[0], sizeof nodes[n].plan);
  nodes[n].blocks = params->gridDim.x;
  return cudaSuccess;
}

cudaError_t __wrap_cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  (void)exec;
  (void)stream;
  launches++;
  return cudaSuccess;
}

enum { BLOCKS = 40 }; /* of the table's kernel, that do not place slots */

/* As a graph just made has it: without tokens. */
static void made(dt_cuda_moe *m) {
  memset(m, 0, sizeof *m);
  memset(nodes, 0, sizeof nodes);
  refused = changes = launches = 0;
  dt_cuda_moe_graph *g = &m->graph;
  g->exec = (cudaGraphExec_t)m; /* never looked into */
  g->count.node = (cudaGraphNode_t)(uintptr_t)1;
  g->table.node = (cudaGraphNode_t)(uintptr_t)2;
  g->plan.slot.warps = 8;
  g->plan.slot.top_k = 4;
  dt_cuda_moe_take_input(&g->plan, &g->input);
  nodes[0].plan = nodes[1].plan = g->plan;
  nodes[0].blocks = g->count.params.gridDim.x = (unsigned)g->plan.slot.blocks;
  nodes[1].blocks = g->table.params.gridDim.x = (unsigned)g->plan.slot.blocks + BLOCKS;
}

static dt_cuda_moe_input input_of(const uint8_t *memory, int64_t tokens) {
  return (dt_cuda_moe_input){.tokens = tokens,
                             .hidden = memory,
                             .ids = (const void *)(memory + 8),
                             .weights = (const void *)(memory + 16),
                             .output = (void *)(uintptr_t)(memory + 24)};
}

static void check_has(const dt_cuda_moe_input *input, int32_t slot_blocks) {
  assert_ptr_equal(nodes[0].plan.input.hidden, input->hidden);
  assert_ptr_equal(nodes[0].plan.input.weights, input->weights);
  assert_ptr_equal(nodes[0].plan.input.output, input->output);
  for (int n = 0; n < 2; n++) {
    assert_ptr_equal(nodes[n].plan.slot.ids, input->ids);
    assert_int_equal(nodes[n].plan.slot.tokens_capacity, input->tokens);
    assert_int_equal(nodes[n].plan.slot.blocks, slot_blocks);
  }
  assert_int_equal(nodes[0].blocks, slot_blocks);
  assert_int_equal(nodes[1].blocks, slot_blocks + BLOCKS);
}

/* Nodes are changed only as far as the input differs; 256 lanes a block, 4 slots a token. */
static void test_changes(void **state) {
  (void)state;
  static const uint8_t memory[64];
  static dt_cuda_moe m;
  made(&m);
  dt_cuda_moe_input in = input_of(memory, 640);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(dt_cuda_moe_graph_launch(&m, &in, NULL), DT_OK);
    check_has(&in, 10);
    assert_int_equal(changes, 2); /* the same again: none */
  }
  const dt_cuda_moe_input other = input_of(memory + 32, 64);
  for (int field = 0; field < 5; field++) {
    if (field == 0) in.hidden = other.hidden;
    if (field == 1) in.weights = other.weights;
    if (field == 2) in.output = other.output;
    if (field == 3) in.ids = other.ids;
    if (field == 4) in.tokens = other.tokens;
    changes = 0;
    assert_int_equal(dt_cuda_moe_graph_launch(&m, &in, NULL), DT_OK);
    check_has(&in, field < 4 ? 10 : 1);
    assert_int_equal(changes, field < 3 ? 1 : 2);
  }
  assert_int_equal(launches, 7);
}

/* Whichever change is refused: nothing is launched, and whatever comes next, the input before it, the same again or
 * another, both nodes have it. */
static void test_refused(void **state) {
  (void)state;
  static const uint8_t memory[4][64];
  static dt_cuda_moe m;
  for (int which = 0; which < 2; which++)
    for (int moved = 0; moved < 2; moved++) /* only the hidden states lie elsewhere: one node changes */
      for (int next = 0; next < 3; next++) {
        const dt_cuda_moe_input before = input_of(memory[0], 640), other = input_of(memory[2], 6400);
        dt_cuda_moe_input in = input_of(memory[1], 64);
        if (moved) {
          if (which == 1) continue;
          in = before;
          in.hidden = memory[3];
        }
        made(&m);
        assert_int_equal(dt_cuda_moe_graph_launch(&m, &before, NULL), DT_OK);
        refused = 1 << which;
        assert_int_equal(dt_cuda_moe_graph_launch(&m, &in, NULL), DT_ERR_DEVICE);
        assert_int_equal(refused, 0);
        assert_int_equal(launches, 1);
        const dt_cuda_moe_input *then = next == 0 ? &before : next == 1 ? &in : &other;
        assert_int_equal(dt_cuda_moe_graph_launch(&m, then, NULL), DT_OK);
        check_has(then, next == 2 ? 100 : next == 0 || moved ? 10 : 1);
        assert_int_equal(launches, 2);
        changes = 0;
        assert_int_equal(dt_cuda_moe_graph_launch(&m, then, NULL), DT_OK);
        assert_int_equal(changes, 0);
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_changes), cmocka_unit_test(test_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
