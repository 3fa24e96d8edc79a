/* The MoE layer on GPUs, 200 layers back to back without the host: every layer has a routing, a number of tokens (0 to
 * 8192, another on each rank) and an output of its own, and must equal to the bit what serial gave one layer at a time.
 * Two ranks are threads. Exit code 77 without a Hopper GPU.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/random.h"
#include "moe_layer_support.h"

enum { LAYERS = 200, TOKENS = 8192 };
static const moe_shape shape = {2, 512, 256, 16, 4, TOKENS, 0, 0};

/* All layers of a rank. */
typedef struct layers {
  dt_cuda_moe_input inputs[LAYERS];
  size_t first[LAYERS + 1]; /* of each output, in tokens */
  uint16_t *x, *output;     /* device; x: as many tokens as any layer has */
  int32_t *ids;
  float *weights;
  uint16_t *expected, *seen; /* host */
} layers;

static int64_t tokens_of(int layer, int32_t rank, dt_random *random) {
  static const int64_t edges[] = {0, TOKENS, 1, 127, 128, 129, TOKENS - 1, 0};
  const int64_t any = (int64_t)dt_random_below(random, TOKENS + 1), few = any % 300;
  if ((layer + rank) % 5 == 0) return edges[(layer / 5 + 3 * rank) % 8];
  return layer % 3 ? few : any;
}

static void route(int layer, int64_t tokens, dt_random *random, int32_t *ids, float *weights) {
  const int32_t experts = shape.ranks * shape.experts, k = shape.top_k;
  const int32_t narrow = layer % 4 == 1 ? k : experts; /* at times everybody wants the same few experts */
  const int32_t shift = (int32_t)dt_random_below(random, (uint64_t)experts);
  for (int64_t i = 0; i < tokens; i++) {
    const int32_t start = (int32_t)dt_random_below(random, (uint64_t)narrow);
    for (int32_t c = 0; c < k; c++) {
      const int dropped = layer % 7 == 2 && dt_random_below(random, 4) == 0;
      ids[i * k + c] = dropped ? -1 : (shift + (start + c * (1 + layer % 2 * 2)) % narrow) % experts;
      weights[i * k + c] = (float)(1 + dt_random_below(random, 100)) / 100;
    }
  }
}

static dt_status make_layers(const moe_rank *r, layers *l) {
  dt_status status = DT_OK;
  dt_random random = {(uint64_t)(4711 + r->rank)};
  const size_t h = (size_t)shape.hidden, k = (size_t)shape.top_k;
  l->first[0] = 0;
  for (int i = 0; i < LAYERS; i++)
    l->first[i + 1] = l->first[i] + (size_t)(l->inputs[i].tokens = tokens_of(i, r->rank, &random));
  const size_t all = l->first[LAYERS];
  uint16_t *x = malloc(2 * h * TOKENS);
  int32_t *ids = malloc(4 * k * all);
  float *weights = malloc(4 * k * all);
  l->expected = malloc(2 * h * all);
  l->seen = malloc(2 * h * all);
  moe_fill(x, h * TOKENS, (uint64_t)(99 + r->rank), 0);
  for (int i = 0; i < LAYERS; i++)
    route(i, l->inputs[i].tokens, &random, ids + k * l->first[i], weights + k * l->first[i]);
  l->x = moe_to_device(x, 2 * h * TOKENS, &status);
  l->ids = moe_to_device(ids, 4 * k * all, &status);
  l->weights = moe_to_device(weights, 4 * k * all, &status);
  if (!status) status = moe_cuda(cudaMalloc((void **)&l->output, 2 * h * all + 16), "outputs");
  for (int i = 0; i < LAYERS; i++) {
    l->inputs[i].hidden = l->x;
    l->inputs[i].ids = l->ids + k * l->first[i];
    l->inputs[i].weights = l->weights + k * l->first[i];
    l->inputs[i].output = l->output + h * l->first[i];
  }
  free(x), free(ids), free(weights);
  return status;
}

static void free_layers(layers *l) {
  cudaFree(l->x), cudaFree(l->ids), cudaFree(l->weights), cudaFree(l->output);
  free(l->expected), free(l->seen);
}

/* All layers from a poisoned output; waited for one by one, or only after the last. */
static dt_status run_all(moe_rank *r, dt_cuda_moe *moe, layers *l, int one_by_one, uint16_t *to) {
  const size_t bytes = 2 * (size_t)shape.hidden * l->first[LAYERS];
  dt_status status = moe_cuda(cudaMemsetAsync(l->output, 0xff, bytes, r->stream), "poison");
  for (int i = 0; i < LAYERS && !status; i++) {
    status = dt_cuda_moe_forward(moe, &l->inputs[i], r->stream);
    if (!status && one_by_one) status = dt_cuda_moe_check(moe, r->stream);
  }
  if (!status) status = dt_cuda_moe_check(moe, r->stream);
  return status ? status : moe_cuda(cudaMemcpy(to, l->output, bytes, cudaMemcpyDeviceToHost), "outputs");
}

/* What the first run left out others would leave out as well. */
static dt_status check_written(const moe_rank *r, const layers *l) {
  for (size_t i = 0; i < (size_t)shape.hidden * l->first[LAYERS]; i++)
    if (l->expected[i] == MOE_POISON) return moe_fail(r, "word %zu of all layers was not written", i);
  return DT_OK;
}

static dt_status compare_all(const moe_rank *r, const layers *l, dt_schedule schedule) {
  const size_t h = (size_t)shape.hidden;
  for (int i = 0; i < LAYERS; i++) {
    const size_t from = h * l->first[i], words = h * (size_t)l->inputs[i].tokens;
    if (memcmp(l->expected + from, l->seen + from, 2 * words) != 0)
      return moe_fail(r, "%s, layer %d of %lld tokens differs", dt_schedule_name(schedule), i,
                      (long long)l->inputs[i].tokens);
  }
  return DT_OK;
}

static dt_status work(moe_rank *r, const dt_cuda_moe_config *config, const dt_cuda_moe_weights *weights) {
  static const dt_schedule schedules[] = {DT_SCHEDULE_DIRECT, DT_SCHEDULE_INTERLEAVE, DT_SCHEDULE_SIGNAL,
                                          DT_SCHEDULE_SERIAL};
  dt_cuda_moe_config other = *config;
  dt_cuda_moe *moe = NULL;
  layers l = {0};
  dt_status status = make_layers(r, &l);
  if (!status) status = dt_comm_barrier(r->comm, "layers"); /* what a rank allocates must not meet another's forwards */
  if (!status) status = dt_cuda_moe_create(config, weights, &moe);
  if (!status) status = run_all(r, moe, &l, 1, l.expected);
  if (!status) status = check_written(r, &l);
  for (size_t i = 0; i < sizeof schedules / sizeof *schedules && !status; i++) {
    other.schedule = schedules[i];
    other.order = (dt_order)((i + 1) % 3);
    status = dt_cuda_moe_set_schedule(moe, &other);
    if (!status) status = run_all(r, moe, &l, 0, l.seen);
    if (!status) status = compare_all(r, &l, schedules[i]);
  }
  if (status) moe_give_up(r, status);
  dt_cuda_moe_destroy(moe);
  free_layers(&l);
  return status;
}

int main(void) {
  int sms = 0;
  const int devices = moe_devices(&sms);
  if (devices == 0) {
    printf("skipped: no Hopper GPU\n");
    return MOE_SKIPPED;
  }
  return !moe_check_threads("200 layers", &shape, devices, sms, work);
}
