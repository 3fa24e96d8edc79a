/* The device plan on a GPU: first equal to the host's in every entry for random routings, then timed as a CUDA graph.
 *
 *   device_plan FILE.json [--plans N] [--sweep]
 *
 * A replay is the whole of it for one rank: two kernels from top-k ids to combine rows, one from the count matrix to
 * the plan; the exchange between them is apart: other ranks' counts are in the matrix already. Exit code 77 without a
 * Hopper GPU.
 */
#include <draintile/plan.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/device_plan_support.h"
#include "core/random.h"
#include "core/statistics.h"
#include "cuda/plan.h"
#include "cuda_must.h"

enum { SAMPLES = 200, CHAIN = 20, WARM_UP = 20, INPUTS = 4 };
static const double LIMIT_S = 12e-6;

static cudaStream_t stream;
static dt_random randomness = {20261130};

static void *device_memory(size_t bytes) {
  void *memory;
  cuda_must(cudaMalloc(&memory, bytes + 256), "cudaMalloc");
  cuda_must(cudaMemset(memory, 0xa5, bytes + 256), "cudaMemset");
  return memory;
}

static int32_t below(int64_t bound) {
  return (int32_t)dt_random_below(&randomness, (uint64_t)bound);
}

/* Ids of all ranks, and the count matrix. `hot` in 16 picks one of three experts; drop in 4 is dropped. */
typedef struct routing {
  int32_t ranks, experts, top_k, width;
  int64_t *tokens;
  int32_t **ids, *counts, *row_of_slot, *slot_of_row;
} routing;

static routing routing_new(int32_t ranks, int32_t experts, int32_t top_k, int64_t tokens, int ragged, int hot,
                           int drop) {
  routing r = {ranks, experts, top_k, ranks * experts, NULL, NULL, NULL, NULL, NULL};
  size_t most = (size_t)(tokens * top_k) + 1;
  r.tokens = malloc((size_t)ranks * sizeof *r.tokens);
  r.ids = malloc((size_t)ranks * sizeof *r.ids);
  r.counts = malloc((size_t)ranks * (size_t)r.width * sizeof *r.counts);
  r.row_of_slot = malloc(most * sizeof(int32_t));
  r.slot_of_row = malloc(most * sizeof(int32_t));
  int32_t first = below(r.width);
  for (int32_t s = 0; s < ranks; s++) {
    r.tokens[s] = ragged ? below(tokens + 1) : tokens;
    r.ids[s] = malloc(most * sizeof(int32_t));
    for (int64_t i = 0; i < r.tokens[s] * top_k; i++) {
      int32_t id = below(16) < hot ? (first + (hot == 16 ? 0 : below(3))) % r.width : below(r.width);
      r.ids[s][i] = below(4) < drop ? -1 : id;
    }
    must(dt_slots(r.ids[s], r.tokens[s], top_k, r.width, &r.counts[s * r.width], r.row_of_slot, r.slot_of_row),
         "dt_slots");
  }
  return r;
}

static void routing_free(routing *r) {
  for (int32_t s = 0; s < r->ranks; s++) free(r->ids[s]);
  free(r->tokens);
  free(r->ids);
  free(r->counts);
  free(r->row_of_slot);
  free(r->slot_of_row);
}

/* One rank's buffers on the device, for any input within the capacities. */
typedef struct subject {
  dt_device_slots slots;
  dt_device_plan plan;
  int32_t *matrix, *ids;
  int64_t *tokens;
  unsigned char *arrays; /* all of the plan's, one behind another */
  size_t offset[DEVICE_PLAN_ARRAYS + 1];
} subject;

static subject subject_new(const dt_plan_config *config, int32_t top_k, int64_t tokens, int64_t rows) {
  subject s;
  size_t bytes, sizes[DEVICE_PLAN_ARRAYS];
  void *at[DEVICE_PLAN_ARRAYS];
  int32_t width = config->ranks * config->experts_per_rank;
  memset(&s, 0, sizeof s);
  s.matrix = device_memory((size_t)config->ranks * (size_t)width * sizeof(int32_t));
  s.ids = device_memory((size_t)(tokens * top_k) * sizeof(int32_t));
  s.tokens = device_memory(sizeof *s.tokens);
  s.slots = (dt_device_slots){.ids = s.ids, .tokens = s.tokens, .tokens_capacity = tokens, .top_k = top_k};
  s.slots.experts = width;
  s.slots.counts = device_memory((size_t)width * sizeof(int32_t));
  cuda_must(cudaMemset(s.slots.counts, 0, (size_t)width * sizeof(int32_t)), "cudaMemset");
  s.slots.row_of_slot = device_memory((size_t)(tokens * top_k) * sizeof(int32_t));
  s.slots.slot_of_row = device_memory((size_t)(tokens * top_k) * sizeof(int32_t));
  must(dt_device_slots_prepare(&s.slots, &bytes), "dt_device_slots_prepare");
  s.slots.histograms = device_memory(2 * bytes); /* room for the sweep */
  s.plan.config = *config;
  s.plan.capacity = dt_plan_capacity_of(config, rows, tokens * top_k);
  s.plan.counts = s.matrix;
  device_plan_array_bytes(&s.plan.capacity, sizes);
  for (int i = 0; i < DEVICE_PLAN_ARRAYS; i++) s.offset[i + 1] = (s.offset[i] + sizes[i] + 255) & ~(size_t)255;
  s.arrays = device_memory(s.offset[DEVICE_PLAN_ARRAYS] + sizeof(dt_device_plan_sizes) + sizeof(uint32_t));
  for (int i = 0; i < DEVICE_PLAN_ARRAYS; i++) at[i] = s.arrays + s.offset[i];
  device_plan_point(&s.plan.arrays, at);
  s.plan.sizes = (dt_device_plan_sizes *)(s.arrays + s.offset[DEVICE_PLAN_ARRAYS]);
  s.plan.error = s.slots.error = (uint32_t *)(s.plan.sizes + 1);
  cuda_must(cudaMemset(s.plan.error, 0, sizeof(uint32_t)), "cudaMemset");
  must(dt_device_plan_prepare(&s.plan, &bytes), "dt_device_plan_prepare");
  if (bytes) s.plan.workspace = device_memory(bytes);
  return s;
}

static void subject_free(subject *s) {
  void *blocks[] = {s->matrix,           s->ids,          s->tokens, s->slots.row_of_slot, s->slots.slot_of_row,
                    s->slots.histograms, s->slots.counts, s->arrays, s->plan.workspace};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) cuda_must(cudaFree(blocks[i]), "cudaFree");
}

static void subject_load(const subject *s, const routing *r) {
  int32_t rank = s->plan.config.rank;
  size_t slots = (size_t)(r->tokens[rank] * r->top_k) * sizeof(int32_t), row = (size_t)r->width * sizeof(int32_t);
  cuda_must(cudaMemcpy(s->matrix, r->counts, row * (size_t)r->ranks, cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda_must(cudaMemcpy(s->ids, r->ids[rank], slots, cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda_must(cudaMemcpy(s->tokens, &r->tokens[rank], sizeof *s->tokens, cudaMemcpyHostToDevice), "cudaMemcpy");
  cuda_must(cudaMemset(s->arrays, 0xa5, s->offset[DEVICE_PLAN_ARRAYS]), "cudaMemset");
}

/* Both launches, and in between the counts are compared (there is no exchange: the matrix has them). Returns whether
 * they are right. */
static int launch_and_compare(const subject *s, const routing *r) {
  size_t bytes = (size_t)r->width * sizeof(int32_t);
  int32_t *counts = malloc(bytes);
  must(dt_device_slots_launch(&s->slots, stream), "dt_device_slots_launch");
  cuda_must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  cuda_must(cudaMemcpy(counts, s->slots.counts, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  int right = memcmp(counts, &r->counts[s->plan.config.rank * r->width], bytes) == 0;
  must(dt_device_plan_launch(&s->plan, &s->slots, 1, stream), "dt_device_plan_launch");
  cuda_must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  free(counts);
  return right;
}

/* The first thing that differs from the host's, or NULL. */
static const char *subject_difference(const subject *s, routing *r) {
  int32_t rank = s->plan.config.rank;
  size_t slots = (size_t)(r->tokens[rank] * r->top_k), bytes = s->offset[DEVICE_PLAN_ARRAYS] + 256;
  int32_t *own = malloc((size_t)r->width * sizeof *own), *row = malloc((slots + 1) * sizeof *row);
  int32_t *slot = malloc((slots + 1) * sizeof *slot);
  unsigned char *arrays = malloc(bytes);
  const char *difference = NULL;
  void *at[DEVICE_PLAN_ARRAYS];
  dt_build_arrays found;
  dt_plan *plan;
  must(dt_plan_create(&s->plan.config, r->counts, &plan), "dt_plan_create");
  must(dt_slots(r->ids[rank], r->tokens[rank], r->top_k, r->width, &r->counts[rank * r->width], r->row_of_slot,
                r->slot_of_row),
       "dt_slots");
  cuda_must(cudaMemcpy(own, s->slots.counts, (size_t)r->width * sizeof *own, cudaMemcpyDeviceToHost), "cudaMemcpy");
  cuda_must(cudaMemcpy(row, s->slots.row_of_slot, slots * sizeof *row, cudaMemcpyDeviceToHost), "cudaMemcpy");
  cuda_must(cudaMemcpy(slot, s->slots.slot_of_row, slots * sizeof *slot, cudaMemcpyDeviceToHost), "cudaMemcpy");
  cuda_must(cudaMemcpy(arrays, s->arrays, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  for (int i = 0; i < DEVICE_PLAN_ARRAYS; i++) at[i] = arrays + s->offset[i];
  device_plan_point(&found, at);
  const dt_device_plan_sizes *sizes = (const dt_device_plan_sizes *)(arrays + s->offset[DEVICE_PLAN_ARRAYS]);
  uint32_t error;
  memcpy(&error, sizes + 1, sizeof error);
  if (error != DT_DEVICE_PLAN_OK) {
    difference = "error word";
  } else if (own[below(r->width)] != 0) {
    difference = "counts, not cleared";
  } else if (memcmp(row, r->row_of_slot, slots * sizeof *row) != 0) {
    difference = "row_of_slot";
  } else if (memcmp(slot, r->slot_of_row, (size_t)plan->combine_rows * sizeof *slot) != 0) {
    difference = "slot_of_row";
  } else {
    difference = device_plan_difference(plan, sizes, &found);
  }
  dt_plan_destroy(plan);
  free(own);
  free(row);
  free(slot);
  free(arrays);
  return difference;
}

static int64_t rows_for(const routing *r, int32_t rank) {
  int64_t rows = 0;
  for (int32_t s = 0; s < r->ranks; s++) {
    for (int32_t e = 0; e < r->experts; e++) rows += r->counts[s * r->width + rank * r->experts + e];
  }
  return rows;
}

static dt_plan_config config_random(const routing *r, int32_t turn) {
  static const int32_t tiles[] = {1, 2, 3, 7, 8, 16, 64, 128, 192};
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = r->ranks;
  config.experts_per_rank = r->experts;
  config.rank = below(r->ranks);
  config.tile_m = tiles[below(sizeof tiles / sizeof *tiles)];
  config.layout = (dt_layout)(turn % 2);
  config.order = (dt_order)(turn / 2 % 3);
  config.schedule = (dt_schedule)(turn / 6 % 6);
  config.segment_bands = 1 + below(4);
  config.columns_1 = below(6);
  config.columns_2 = 1 + below(5);
  config.raster_bands = 1 + below(5);
  config.lead = 1 + below(6);
  config.wave_experts = below(4);
  config.group_tasks = 1 + below(below(4) ? 40 : 2000);
  config.dispatch = below(4) > 0;
  config.shared_blocks = below(4);
  config.reduce_blocks = below(4);
  return config;
}

/* Random plans of every layout, order and schedule; with `large`, summaries go to device memory. Returns how many
 * differ. */
static int check(int plans, int *large) {
  int failed = 0;
  for (int turn = 0; turn < plans; turn++) {
    int many = turn % 100 == 99; /* 64 ranks: the summary does not fit into shared memory */
    int32_t ranks = many ? 64 : 1 + below(16), experts = many ? 16 : 1 + below(turn % 3 ? 8 : 64);
    routing r = routing_new(ranks, experts, 1 + below(8), many ? 20 : 300, 1, turn % 5 ? 0 : below(17),
                            turn % 3 ? 0 : below(5));
    dt_plan_config config = config_random(&r, turn);
    subject s = subject_new(&config, r.top_k, r.tokens[config.rank] + below(3), rows_for(&r, config.rank));
    *large += s.plan.workspace != NULL;
    subject_load(&s, &r);
    const char *difference = launch_and_compare(&s, &r) ? NULL : "counts";
    if (!difference) difference = subject_difference(&s, &r);
    if (difference && failed++ < 10) {
      printf("plan %d: %s differs: ranks %d, experts %d, rank %d, tile_m %d, layout %d, order %d, schedule %d\n", turn,
             difference, ranks, experts, config.rank, config.tile_m, config.layout, config.order, config.schedule);
    }
    subject_free(&s);
    routing_free(&r);
  }
  return failed;
}

static void launch(const subject *s, int slots, int plan) {
  if (slots) must(dt_device_slots_launch(&s->slots, stream), "dt_device_slots_launch");
  if (plan) must(dt_device_plan_launch(&s->plan, slots ? &s->slots : NULL, slots, stream), "dt_device_plan_launch");
}

static cudaGraphExec_t capture(const subject *s, int slots, int plan, int times) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cuda_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
  for (int i = 0; i < times; i++) launch(s, slots, plan);
  cuda_must(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cuda_must(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  cuda_must(cudaGraphDestroy(graph), "cudaGraphDestroy");
  return exec;
}

/* Replays with an event on each side, inputs in turn; without graphs both launches of `live`. */
static double time_graphs(const cudaGraphExec_t *graphs, int count, int times, const subject *live, double *samples) {
  cudaEvent_t before, after;
  cuda_must(cudaEventCreate(&before), "cudaEventCreate");
  cuda_must(cudaEventCreate(&after), "cudaEventCreate");
  for (int i = -WARM_UP; i < SAMPLES; i++) {
    float ms;
    cuda_must(cudaEventRecord(before, stream), "cudaEventRecord");
    if (graphs)
      cuda_must(cudaGraphLaunch(graphs[(i + WARM_UP) % count], stream), "cudaGraphLaunch");
    else
      launch(live, 1, 1);
    cuda_must(cudaEventRecord(after, stream), "cudaEventRecord");
    cuda_must(cudaEventSynchronize(after), "cudaEventSynchronize");
    cuda_must(cudaEventElapsedTime(&ms, before, after), "cudaEventElapsedTime");
    if (i >= 0) samples[i] = ms * 1e-3 / times;
  }
  cuda_must(cudaEventDestroy(before), "cudaEventDestroy");
  cuda_must(cudaEventDestroy(after), "cudaEventDestroy");
  return dt_median(samples, SAMPLES);
}

/* 65,536 slots a rank, 256 experts, 8 ranks, the columns of a layer with hidden size 7168 and intermediate 2048. */
static dt_plan_config config_timed(int layout, int order, int schedule) {
  dt_plan_config config;
  dt_plan_config_init(&config);
  config.ranks = 8;
  config.experts_per_rank = 32;
  config.rank = 3;
  config.layout = (dt_layout)layout;
  config.order = (dt_order)order;
  config.schedule = (dt_schedule)schedule;
  config.columns_1 = 16;
  config.columns_2 = 28;
  config.group_tasks = 264;
  config.dispatch = 1;
  config.reduce_blocks = 64;
  return config;
}

static void write_samples(FILE *out, const double *samples) {
  fprintf(out, "\"samples_s\": [");
  for (int i = 0; i < SAMPLES; i++) fprintf(out, "%s%.4g", i ? ", " : "", samples[i]);
  fprintf(out, "]");
}

typedef struct worst {
  double replay_s, chain_s, uniform_s; /* uniform_s: replays of uniform routing; hot experts may all be this rank's */
} worst;

/* Until the clocks have risen. */
static void warm_up(void) {
  dt_plan_config config = config_timed(DT_LAYOUT_PACKED, DT_ORDER_PACED, DT_SCHEDULE_DIRECT);
  routing r = routing_new(8, 32, 8, 8192, 0, 0, 0);
  subject s = subject_new(&config, 8, 8192, rows_for(&r, config.rank));
  double samples[SAMPLES];
  subject_load(&s, &r);
  cudaGraphExec_t graph = capture(&s, 1, 1, CHAIN);
  for (int i = 0; i < 10; i++) time_graphs(&graph, 1, CHAIN, NULL, samples);
  cuda_must(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
  subject_free(&s);
  routing_free(&r);
}

/* One configuration: replays of the whole, of counting and of the plan alone, a graph of CHAIN wholes, and launches
 * without a graph; a check of what the replays left behind. */
static int time_config(FILE *out, const dt_plan_config *config, int hot, int first, worst *w) {
  subject s[INPUTS];
  routing r[INPUTS];
  double samples[SAMPLES], other[SAMPLES], part[2], chain;
  cudaGraphExec_t graphs[INPUTS];
  int failed = 0;
  for (int i = 0; i < INPUTS; i++) {
    r[i] = routing_new(config->ranks, config->experts_per_rank, 8, 8192, 0, hot, 0);
    s[i] = subject_new(config, 8, 8192, rows_for(&r[i], config->rank));
    subject_load(&s[i], &r[i]);
  }
  for (int i = 0; i < INPUTS; i++) graphs[i] = capture(&s[i], 1, 1, 1);
  double replay = time_graphs(graphs, INPUTS, 1, NULL, samples);
  for (int i = 0; i < INPUTS; i++) {
    const char *difference = subject_difference(&s[i], &r[i]);
    if (difference) printf("after replays: %s differs\n", difference);
    failed += difference != NULL;
  }
  for (int half = 0; half < 2; half++) {
    cudaGraphExec_t one = capture(&s[0], half == 0, half == 1, 1);
    part[half] = time_graphs(&one, 1, 1, NULL, other);
    cuda_must(cudaGraphExecDestroy(one), "cudaGraphExecDestroy");
  }
  cudaGraphExec_t many = capture(&s[0], 1, 1, CHAIN);
  chain = time_graphs(&many, 1, CHAIN, NULL, other);
  double live = time_graphs(NULL, 0, 1, &s[0], other);
  cuda_must(cudaGraphExecDestroy(many), "cudaGraphExecDestroy");
  dt_device_plan_sizes sizes;
  cuda_must(cudaMemcpy(&sizes, s[0].plan.sizes, sizeof sizes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  printf("%-8s %-12s %-10s %-8s %8.2f %8.2f %8.2f %8.2f %8.2f   %6.2f   %lld tasks\n", dt_layout_name(config->layout),
         dt_order_name(config->order), dt_schedule_name(config->schedule), hot ? "hot" : "uniform", replay * 1e6,
         part[0] * 1e6, part[1] * 1e6, chain * 1e6, live * 1e6, replay / LIMIT_S, (long long)sizes.task_count);
  fprintf(out,
          "%s\n  {\"layout\": \"%s\", \"order\": \"%s\", \"schedule\": \"%s\", \"routing\": \"%s\", \"tasks\": %lld, "
          "\"bands\": %d, \"rows\": %lld, \"replay_s\": %.4g, \"count_replay_s\": %.4g, \"plan_replay_s\": %.4g, "
          "\"chain_s\": %.4g, \"live_s\": %.4g, \"limit_s\": %.4g, ",
          first ? "" : ",", dt_layout_name(config->layout), dt_order_name(config->order),
          dt_schedule_name(config->schedule), hot ? "hot" : "uniform", (long long)sizes.task_count, sizes.band_count,
          (long long)sizes.rows, replay, part[0], part[1], chain, live, LIMIT_S);
  write_samples(out, samples);
  fprintf(out, "}");
  if (replay > w->replay_s) w->replay_s = replay;
  if (!hot && replay > w->uniform_s) w->uniform_s = replay;
  if (chain > w->chain_s) w->chain_s = chain;
  for (int i = 0; i < INPUTS; i++) {
    cuda_must(cudaGraphExecDestroy(graphs[i]), "cudaGraphExecDestroy");
    subject_free(&s[i]);
    routing_free(&r[i]);
  }
  return failed;
}

/* Launch shapes: blocks and warps of slots and plan, each half alone. */
static void sweep(void) {
  dt_plan_config config = config_timed(DT_LAYOUT_PACKED, DT_ORDER_REMOTE_FIRST, DT_SCHEDULE_INTERLEAVE);
  routing r = routing_new(8, 32, 8, 8192, 0, 0, 0);
  subject s = subject_new(&config, 8, 8192, rows_for(&r, config.rank));
  double samples[SAMPLES];
  subject_load(&s, &r);
  static const int32_t blocks[] = {8, 16, 32, 48, 64, 96, 128}, warps[] = {8, 16, 32};
  for (int half = 0; half < 2; half++) {
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
      for (size_t j = 0; j < sizeof warps / sizeof *warps; j++) {
        s.slots.blocks = s.plan.blocks = blocks[i];
        s.slots.warps = s.plan.warps = warps[j];
        if (half == 1 && warps[j] > 16) continue; /* the kernel's bound */
        cudaGraphExec_t graph = capture(&s, half == 0, half == 1, 1);
        printf("%s: %3d blocks of %2d warps: %.2f us\n", half ? "plan" : "slots", blocks[i], warps[j],
               time_graphs(&graph, 1, 1, NULL, samples) * 1e6);
        cuda_must(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
      }
    }
  }
  subject_free(&s);
  routing_free(&r);
}

static void write_machine(FILE *out, int argc, char **argv) {
  struct cudaDeviceProp device;
  int driver, runtime;
  cuda_must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  cuda_must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  cuda_must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  fprintf(out, "{\"schema\": \"draintile-device-plan\", \"version\": 1,\n \"command\": \"");
  for (int i = 0; i < argc; i++) fprintf(out, "%s%s", i ? " " : "device_plan", i ? argv[i] : "");
  fprintf(out,
          "\",\n \"machine\": {\"gpu\": \"%s\", \"multiprocessors\": %d, \"cuda_driver\": %d, \"cuda_runtime\": %d},\n",
          device.name, device.multiProcessorCount, driver, runtime);
  fprintf(out, " \"ranks\": 8, \"experts\": 256, \"slots\": 65536, \"chain\": %d, \"samples\": %d,\n", CHAIN, SAMPLES);
}

int main(int argc, char **argv) {
  int plans = 3600, with_sweep = 0, large = 0, devices, major;
  if (argc < 2) {
    fprintf(stderr, "usage: device_plan FILE.json [--plans N] [--sweep]\n");
    return 2;
  }
  for (int i = 2; i < argc; i++) {
    if (strcmp(argv[i], "--sweep") == 0) with_sweep = 1;
    if (strcmp(argv[i], "--plans") == 0 && i + 1 < argc) plans = atoi(argv[++i]);
  }
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1 ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess || major != 9) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  cuda_must(cudaStreamCreate(&stream), "cudaStreamCreate");
  FILE *out = fopen(argv[1], "w");
  if (!out) {
    perror(argv[1]);
    return 3;
  }
  write_machine(out, argc, argv);
  int failed = check(plans, &large);
  printf("%d plans checked on the device, %d of them with the summary in device memory: %d differ\n", plans, large,
         failed);
  fflush(stdout);
  warm_up();
  if (with_sweep) sweep();
  worst w = {0, 0, 0};
  int first = 1;
  printf("layout   order        schedule   routing    replay    count     plan  chained     live   of limit (us)\n");
  fprintf(out, " \"runs\": [");
  for (int turn = 0; turn < 36; turn++) {
    dt_plan_config config = config_timed(turn % 2, turn / 2 % 3, turn / 6);
    for (int hot = 0; hot <= 12; hot += 12) {
      if (hot && turn % 5) continue; /* three experts take 12 of 16 slots */
      failed += time_config(out, &config, hot, first, &w);
      first = 0;
    }
  }
  fprintf(out,
          "],\n \"summary\": {\"plans_checked\": %d, \"plans_different\": %d, \"replay_max_s\": %.4g, "
          "\"replay_max_uniform_s\": %.4g, \"chain_max_s\": %.4g, \"limit_s\": %.4g, \"over_limit\": %.3f, "
          "\"over_limit_uniform\": %.3f}}\n",
          plans, failed, w.replay_s, w.uniform_s, w.chain_s, LIMIT_S, w.replay_s / LIMIT_S, w.uniform_s / LIMIT_S);
  if (fclose(out) != 0) return 3;
  printf("slowest: replay %.2f us, chained %.2f us; limit %.0f us\n", w.replay_s * 1e6, w.chain_s * 1e6, LIMIT_S * 1e6);
  return failed ? 1 : 0;
}
