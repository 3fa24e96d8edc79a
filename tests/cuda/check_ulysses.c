/* Checks the Ulysses operator, ranks as threads, on one GPU or more: where ranks outnumber GPUs they share them by
 * multiprocessors. Every case: the way in element by element at its destination, from poisoned memory; then serial,
 * piggyback with and without overlap of the way in, replays of a graph and 200 runs without the host between them, all
 * bit by bit, and rows of the output against float64. All operators begin a few runs before their words pass 2^32.
 * Then a rank that does not come. Exit code 77 without a Hopper GPU.
 *
 *   check_ulysses [REPEATS [SHAPES]]      REPEATS: of the last case, 1000 unless given; SHAPES: only the first ones
 */
#include <draintile/attention.h>
#include <draintile/ulysses.h>

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/fabric.h"
#include "core/random.h"
#include "cuda/ulysses.h"
#include "cuda/ulysses_tables.h"
#include "support_gpus.h"
#include "support_guarded.h"

enum {
  RANKS_MAX = 8,
  BACK_TO_BACK = 200,
  REPLAYS = 5,
  CHECKED_WORK = 100000000,
  PERIOD = 1000003 /* of the random values: a prime */
};

typedef struct shape {
  const char *name;
  int32_t ranks;
  int64_t tokens, kv_tokens, text;
  int32_t replicated, heads, kv_heads, head_dim, causal, half;
  float scale, amplitude;
  int32_t held; /* once more with rows that wait for the last round; 2: so asked for where none may */
} shape;
static const shape shapes[] = {
    {"one row", 2, 1, 1, 0, 0, 2, 2, 64, 0, 0, NAN, 1, 0},
    {"tails", 2, 301, 301, 0, 0, 5, 5, 128, 0, 0, NAN, 1, 0},
    {"fp16, D 256", 2, 500, 333, 0, 0, 3, 3, 256, 0, 1, NAN, 1, 0},
    {"30 heads on 4 ranks", 4, 777, 777, 0, 0, 30, 30, 64, 0, 0, NAN, 1, 0},
    {"12 heads on 8 ranks", 8, 1024, 1024, 0, 0, 12, 12, 128, 0, 0, NAN, 1, 0},
    {"28 query, 7 key heads on 2", 2, 640, 640, 0, 0, 28, 7, 128, 0, 0, NAN, 1, 0},
    {"one key head on 3", 3, 515, 700, 0, 0, 7, 1, 64, 0, 0, NAN, 1, 0},
    {"T0 I0 T1 I1", 2, 4222, 4222, 126, 0, 4, 4, 128, 0, 0, NAN, 1, 0},
    {"replicated text", 3, 1400, 1400, 333, 1, 6, 3, 64, 0, 0, NAN, 1, 0},
    {"replicated text alone", 2, 70, 70, 70, 1, 2, 2, 64, 0, 0, NAN, 1, 0},
    {"causal, rows that see nothing", 2, 1100, 900, 0, 0, 4, 2, 128, 1, 0, NAN, 1, 0},
    {"causal, asked to wait", 2, 2100, 2100, 0, 0, 40, 40, 128, 1, 0, NAN, 1, 2},
    {"no keys", 2, 200, 0, 0, 0, 2, 2, 64, 0, 0, NAN, 1, 2},
    {"large logits", 2, 1024, 1024, 0, 0, 4, 4, 128, 0, 0, 1, 8, 0},
    {"tiles that go on elsewhere", 2, 1500, 1500, 100, 0, 80, 80, 128, 0, 0, NAN, 1, 1},
    {"the same, few", 2, 1400, 1400, 0, 0, 38, 38, 64, 0, 1, NAN, 1, 0},
    {"rows that wait", 2, 2500, 2500, 0, 0, 60, 60, 64, 0, 1, NAN, 1, 1},
    {"rows that wait, on 3", 3, 2300, 2300, 90, 0, 100, 100, 128, 0, 0, NAN, 1, 1},
    {"rows that wait, on 4", 4, 1307, 1307, 61, 0, 91, 91, 128, 0, 0, NAN, 1, 1},
    {"rows that wait, on 8", 8, 1307, 1900, 61, 0, 163, 163, 64, 0, 1, NAN, 1, 1},
    {"rows that wait, replicated text", 3, 1700, 1700, 333, 1, 96, 48, 64, 0, 0, NAN, 1, 1},
    {"57,826 tokens on 8", 8, 57826, 57826, 226, 0, 8, 8, 64, 0, 0, NAN, 1, 1},
    {"56,700 tokens on 8, causal", 8, 56700, 56700, 0, 0, 8, 8, 128, 1, 0, NAN, 1, 0},
    {"repeats", 2, 2000, 2000, 100, 0, 6, 6, 128, 0, 0, NAN, 1, 0},
};
enum { REPEATED = sizeof shapes / sizeof *shapes - 1 };
enum { VARIANTS = 3 };
static const char *const variant_names[VARIANTS] = {"serial", "piggyback", "overlapped"};

typedef struct rank {
  pthread_t thread;
  int32_t rank, devices, absent, repeats;
  dt_comm *control, *comm;
  const shape *shape;
  const uint16_t *whole[3]; /* host: q, k, v of the sequence */
  dt_ulysses *ulysses;
  uint16_t *local[3], *other[3]; /* device: this rank's rows, and others' in their place */
  cudaStream_t stream;
  uint16_t *outputs[VARIANTS]; /* host */
  size_t output_bytes;
  int64_t misplaced; /* elements of the way in */
  double error;
  dt_status status;
  char detail[256];
} rank;
static rank ranks[RANKS_MAX];

static dt_status cuda(cudaError_t error) {
  if (error == cudaSuccess) return DT_OK;
  fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  return DT_ERR_DEVICE;
}

static void configure(const shape *s, int variant, dt_attention_config *config) {
  dt_attention_config_init(config);
  config->dtype = s->half ? DT_DTYPE_F16 : DT_DTYPE_BF16;
  config->tokens = s->tokens;
  config->kv_tokens = s->kv_tokens;
  config->heads = s->heads;
  config->kv_heads = s->kv_heads;
  config->head_dim = s->head_dim;
  config->text_tokens = s->text;
  config->text = s->replicated ? DT_ATTENTION_TEXT_REPLICATED : DT_ATTENTION_TEXT_SHARDED;
  config->causal = s->causal;
  config->scale = s->scale;
  config->schedule = variant == 0 ? DT_ATTENTION_SERIAL : DT_ATTENTION_PIGGYBACK;
  config->overlap_in = variant == 2;
}

static size_t token_elements(const shape *s, int tensor) {
  return (size_t)(tensor ? s->kv_heads : s->heads) * (size_t)s->head_dim;
}

/* The rows that this rank passes in, and as many others, with nothing mapped in front: own rows are read by maps that
 * begin there. */
static dt_status make_inputs(rank *r) {
  dt_attention_config config;
  configure(r->shape, 0, &config);
  dt_status status = DT_OK;
  for (int t = 0; t < 3 && !status; t++) {
    dt_attention_rows runs[2];
    const size_t token = 2 * token_elements(r->shape, t);
    status = dt_attention_rows_in(&config, r->shape->ranks, r->rank, t > 0, runs);
    const size_t bytes = (size_t)(runs[0].rows + runs[1].rows) * token + 16;
    if (!status) status = support_guarded((void **)&r->local[t], bytes);
    if (!status) status = support_guarded((void **)&r->other[t], bytes);
    if (!status) status = cuda(cudaMemset(r->other[t], 0x3c, bytes));
    for (int run = 0; run < 2 && !status; run++)
      status = cuda(cudaMemcpy((char *)r->local[t] + (size_t)runs[run].local * token,
                               (const char *)r->whole[t] + (size_t)runs[run].first * token,
                               (size_t)runs[run].rows * token, cudaMemcpyHostToDevice));
  }
  return status;
}

static dt_status run(rank *r, dt_ulysses_part part, uint16_t *const inputs[3]) {
  return dt_ulysses_run(r->ulysses, part, inputs[0], inputs[1], inputs[2], r->stream);
}

/* The words of an operator that has not run yet, as after so many runs that they pass 2^32 a few runs later: epochs and
 * the heads' words alike. */
static dt_status start_late(rank *r) {
  enum { RUNS_LEFT = 60 };
  const dt_ulysses_params *p = &r->ulysses->move_in.params;
  const uint32_t step = (uint32_t)p->ranks * DT_ULYSSES_UNITS;
  const uint32_t epoch = UINT32_MAX - RUNS_LEFT, word = 0u - RUNS_LEFT * step;
  dt_ulysses_state state;
  dt_ulysses_slot slots[RANKS_MAX];
  uint32_t *words = malloc(2 * ((size_t)p->heads + 1) * sizeof *words);
  dt_status status = cuda(cudaMemcpy(&state, p->state, sizeof state, cudaMemcpyDeviceToHost));
  state.epoch = epoch;
  state.next = epoch + 1;
  state.target = word + step;
  memset(slots, 0, sizeof slots);
  for (int32_t s = 0; s < p->ranks; s++) slots[s].entered = slots[s].left = epoch;
  for (int32_t h = 0; h < 2 * p->heads; h++) words[h] = word; /* the late ones lie behind */
  if (!status) status = cuda(cudaMemcpy(p->state, &state, sizeof state, cudaMemcpyHostToDevice));
  if (!status) status = cuda(cudaMemcpy(p->slots, slots, (size_t)p->ranks * sizeof *slots, cudaMemcpyHostToDevice));
  if (!status)
    status = cuda(cudaMemcpy(p->arrived[p->rank], words, 2 * (size_t)p->heads * sizeof *words, cudaMemcpyHostToDevice));
  for (int32_t h = 0; h < p->heads; h++) words[h] = epoch;
  if (!status) status = cuda(cudaMemcpy(p->gate, words, (size_t)p->heads * sizeof *words, cudaMemcpyHostToDevice));
  free(words);
  return status ? status : cuda(cudaDeviceSynchronize());
}

/* A case's first kernels, one rank's after the other's: of those that threads launch at the same time on one GPU now
 * and then one does not begin before the others have ended, which wait for it (docs/notes/ulysses.md). Later ones do.
 */
static dt_status run_first(rank *r) {
  static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&turn);
  const dt_status status = run(r, DT_ULYSSES_IN, r->local);
  pthread_mutex_unlock(&turn);
  return status;
}

/* Every element of this rank's heads where the layout says. */
static dt_status check_way_in(rank *r) {
  const dt_ulysses_layout *l = &r->ulysses->layout;
  const size_t bytes = dt_window_bytes(r->ulysses->arrivals, r->rank), dim = (size_t)l->head_dim;
  dt_status status = cuda(cudaMemset(dt_window_local(r->ulysses->arrivals), 0xff, bytes));
  if (!status) status = cuda(cudaDeviceSynchronize());
  if (!status) status = dt_comm_barrier(r->comm, "poison");
  if (!status) status = run_first(r);
  if (!status) status = dt_ulysses_check(r->ulysses, r->stream);
  uint16_t *arrivals = malloc(bytes + 16);
  if (!status) status = cuda(cudaMemcpy(arrivals, dt_window_local(r->ulysses->arrivals), bytes, cudaMemcpyDefault));
  for (int t = 0; t < 3 && !status; t++) {
    const size_t first = (size_t)(t ? dt_ulysses_kv_first(l, r->rank) : l->head_first[r->rank]);
    const size_t heads = (size_t)(t ? dt_ulysses_kv_count(l, r->rank) : dt_ulysses_head_count(l, r->rank));
    const uint16_t *at = arrivals + dt_ulysses_tensor_at(l, r->rank, t);
    for (int32_t owner = 0; owner < l->ranks; owner++)
      for (int part = 0; part < DT_ULYSSES_PARTS; part++) {
        const dt_ulysses_rows run = dt_ulysses_owned(l, t ? l->kv_tokens : l->tokens, owner, part);
        const size_t place = (size_t)dt_ulysses_place(l, r->rank, t, owner, part);
        for (size_t row = 0; row < (size_t)run.rows; row++)
          for (size_t i = 0; i < heads * dim; i++)
            r->misplaced += at[(place + row) * heads * dim + i] !=
                            r->whole[t][((size_t)run.first + row) * token_elements(r->shape, t) + first * dim + i];
      }
  }
  free(arrivals);
  return status;
}

static dt_status set_variant(rank *r, int variant) {
  dt_ulysses_config config;
  dt_ulysses_config_init(&config);
  configure(r->shape, variant, &config.attention);
  return dt_ulysses_set_schedule(r->ulysses, &config);
}

static dt_status poison(rank *r) {
  dt_status status = cuda(cudaMemsetAsync(dt_ulysses_output(r->ulysses), 0xff, r->output_bytes, r->stream));
  if (!status) status = cuda(cudaStreamSynchronize(r->stream));
  return status ? status : dt_comm_barrier(r->comm, "poison");
}

static dt_status take(rank *r, uint16_t **output) {
  dt_status status = dt_ulysses_check(r->ulysses, r->stream);
  *output = malloc(r->output_bytes + 16);
  if (!status)
    status = cuda(cudaMemcpy(*output, dt_ulysses_output(r->ulysses), r->output_bytes, cudaMemcpyDeviceToHost));
  return status ? status : dt_comm_barrier(r->comm, "taken");
}

static dt_status compare(rank *r, const char *what) {
  uint16_t *output = NULL;
  dt_status status = take(r, &output);
  if (!status && memcmp(output, r->outputs[0], r->output_bytes) != 0) {
    printf("FAIL rank %d: rows differ after %s\n", r->rank, what);
    status = DT_ERR_INTERNAL;
  }
  free(output);
  return status;
}

static dt_status check_graph(rank *r) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  dt_status status = poison(r);
  if (!status) status = cuda(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
  if (!status) status = run(r, DT_ULYSSES_WHOLE, r->local);
  if (!status) status = cuda(cudaStreamEndCapture(r->stream, &graph));
  if (!status) status = cuda(cudaGraphInstantiate(&exec, graph, 0));
  if (!status) status = cuda(cudaGraphUpload(exec, r->stream));
  if (!status) status = cuda(cudaStreamSynchronize(r->stream));
  if (!status) status = dt_comm_barrier(r->comm, "graph"); /* making one may wait for the GPU that ranks share */
  for (int i = 0; i < REPLAYS && !status; i++) status = cuda(cudaGraphLaunch(exec, r->stream));
  if (!status) status = compare(r, "replays");
  if (exec) cudaGraphExecDestroy(exec);
  if (graph) cudaGraphDestroy(graph);
  return status;
}

/* Rows for others wait in memory until the last round: the same bits, beside the way in and without it, and some did
 * wait, of the first tiles at least; or none did, where they may not. */
static dt_status run_held(rank *r) {
  uint32_t first = 0;
  r->ulysses->holds = 1;
  dt_status status = cuda(cudaMemsetAsync(r->ulysses->kept, 0xff, r->ulysses->kept_bytes, r->stream));
  if (!status) status = poison(r);
  if (!status) status = run(r, DT_ULYSSES_FUSED, r->local);
  if (!status) status = compare(r, "fused, held back");
  if (!status) status = cuda(cudaMemcpy(&first, r->ulysses->kept, sizeof first, cudaMemcpyDeviceToHost));
  if (!status && (first == UINT32_MAX) != (r->shape->held == 2)) {
    printf("FAIL rank %d: %s\n", r->rank, first == UINT32_MAX ? "no row was held back" : "rows were held back");
    status = DT_ERR_INTERNAL;
  }
  for (int i = 0; i < BACK_TO_BACK && !status; i++) status = run(r, DT_ULYSSES_WHOLE, i % 2 ? r->local : r->other);
  if (!status) status = compare(r, "runs without a pause, held back");
  if (!status) status = poison(r);
  if (!status) status = run(r, DT_ULYSSES_WHOLE, r->local);
  if (!status) status = compare(r, "overlapped, held back");
  if (!status) status = check_graph(r);
  r->ulysses->holds = -1;
  return status;
}

static dt_status run_variants(rank *r) {
  dt_status status = DT_OK;
  for (int variant = 0; variant < VARIANTS && !status; variant++) {
    status = set_variant(r, variant);
    if (!status)
      status = run(r, DT_ULYSSES_WHOLE, r->other); /* its arrivals are what a head read too early would show */
    if (!status) status = poison(r);
    if (!status) status = run(r, DT_ULYSSES_WHOLE, r->local);
    if (!status) status = take(r, &r->outputs[variant]);
    if (status) break;
    if (variant && memcmp(r->outputs[variant], r->outputs[0], r->output_bytes) != 0) {
      printf("FAIL rank %d: %s differs from serial\n", r->rank, variant_names[variant]);
      return DT_ERR_INTERNAL;
    }
    status = check_graph(r);
  }
  if (!status) status = poison(r);
  if (!status) status = run(r, DT_ULYSSES_FUSED, r->local);
  if (!status) status = compare(r, "fused on what had arrived");
  if (!status) status = run(r, DT_ULYSSES_ATTENTION, r->local);
  /* No host between the runs: each must not overtake the peer's reading of the run before. */
  for (int i = 0; i < BACK_TO_BACK && !status; i++) status = run(r, DT_ULYSSES_WHOLE, i % 2 ? r->local : r->other);
  if (!status) status = compare(r, "runs without a pause");
  if (!status && r->shape->held) status = run_held(r);
  for (int i = 0; i < r->repeats && !status; i++) {
    status = run(r, DT_ULYSSES_WHOLE, r->local);
    if (!status) status = compare(r, "a repeat");
  }
  return status;
}

static double value_of(const shape *s, uint16_t bits) {
  if (!s->half) {
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
  }
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double size = exponent == 31  ? (mantissa ? NAN : INFINITY)
                      : exponent == 0 ? ldexp(mantissa, -24)
                                      : ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

/* Rows of this rank's output against float64: all if they are few. */
static dt_status check_rows(rank *r) {
  dt_attention_config config;
  dt_attention_rows runs[2];
  configure(r->shape, 0, &config);
  const size_t token = token_elements(r->shape, 0);
  double *expected = malloc(token * sizeof *expected);
  dt_status status = dt_attention_rows_out(&config, r->shape->ranks, r->rank, runs);
  const int64_t affordable = CHECKED_WORK / (1 + r->shape->kv_tokens * (int64_t)token);
  const int64_t most = affordable < 3 ? 3 : affordable;
  for (size_t i = 0; i < r->output_bytes / sizeof *r->outputs[0]; i++) /* not written by serial, nor then by others */
    if (r->outputs[0][i] == 0xffff) r->error = INFINITY;
  for (int i = 0; i < 2 && !status; i++) {
    const int64_t rows = runs[i].rows, checked = rows < most ? rows : most;
    for (int64_t c = 0; c < checked && !status; c++) {
      const int64_t at = checked > 1 ? c * (rows - 1) / (checked - 1) : 0; /* the first and the last among them */
      status = dt_attention_reference(&config, r->whole[0], r->whole[1], r->whole[2], runs[i].first + at, 1, expected);
      double error = 0, norm = 0;
      for (size_t e = 0; e < token; e++) {
        const double difference =
            value_of(r->shape, r->outputs[0][(size_t)(runs[i].local + at) * token + e]) - expected[e];
        error += difference * difference;
        norm += expected[e] * expected[e];
      }
      const double relative = norm > 0 ? sqrt(error / norm) : error == 0 ? 0 : INFINITY;
      if (!(relative <= r->error)) r->error = isnan(relative) ? INFINITY : relative;
    }
  }
  free(expected);
  return status;
}

static dt_status work(rank *r) {
  const shape *s = r->shape;
  const int device = r->rank % r->devices;
  int sms = 0;
  dt_status status = cuda(cudaSetDevice(device));
  if (!status) status = cuda(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  const int sharing = (s->ranks - device + r->devices - 1) / r->devices;
  dt_ulysses_config config;
  dt_ulysses_config_init(&config);
  configure(s, 0, &config.attention);
  config.comm = r->comm;
  config.sms = sms / sharing;
  config.timeout_s = r->absent ? 0.2 : 5;
  if (!status) status = dt_ulysses_create(&config, &r->ulysses);
  if (!status) r->output_bytes = dt_window_bytes(r->ulysses->output, r->rank);
  if (!status) status = make_inputs(r);
  if (!status) status = start_late(r);
  if (!status) status = dt_comm_barrier(r->comm, "made");
  if (!r->absent) {
    if (!status) status = check_way_in(r);
    if (!status) status = run_variants(r);
    if (!status) status = check_rows(r);
  } else if (r->rank == 0) {
    if (!status) status = set_variant(r, 2);
    if (!status) status = run(r, DT_ULYSSES_WHOLE, r->local);
    if (!status) status = dt_ulysses_check(r->ulysses, r->stream);
    /* Later runs do nothing, at once. */
    if (status && run(r, DT_ULYSSES_WHOLE, r->local) == DT_OK) status = dt_ulysses_check(r->ulysses, r->stream);
  } else {
    if (!status) status = set_variant(r, 2);
  }
  if (status) snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
  if (r->absent) dt_comm_barrier(r->comm, "end");
  cudaDeviceSynchronize();
  if (!status || r->absent) dt_ulysses_destroy(r->ulysses);
  return status;
}

static void *run_rank(void *context) {
  rank *r = context;
  r->status = dt_comm_create_cuda(r->control, r->rank % r->devices, &r->comm);
  if (r->status) {
    snprintf(r->detail, sizeof r->detail, "%s", dt_error_detail());
    dt_comm_abort(r->control, r->status, r->detail);
    return NULL;
  }
  r->status = work(r);
  if (r->status && !r->absent) dt_comm_abort(r->comm, r->status, r->detail);
  return NULL;
}

static uint16_t *random_tensor(size_t elements, uint64_t seed, const shape *s) {
  uint16_t *host = malloc(2 * elements + 16);
  dt_random random = {seed};
  for (size_t i = 0; i < elements; i++) {
    if (i >= PERIOD) { /* no two rows hold the same; more random numbers would take most of the time */
      host[i] = host[i - PERIOD];
      continue;
    }
    const float value = s->amplitude * (float)dt_random_normal(&random);
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (!s->half) {
      host[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
      continue;
    }
    const int exponent = (int)(bits >> 23 & 255) - 112;
    host[i] = (uint16_t)((bits >> 16 & 0x8000) | (exponent <= 0 ? 0 : (unsigned)exponent << 10 | (bits >> 13 & 1023)));
  }
  return host;
}

static int report(const shape *s, int absent) {
  if (absent) {
    const int good = ranks[0].status == DT_ERR_TIMEOUT && strstr(ranks[0].detail, "rank 1") && ranks[1].status == DT_OK;
    printf("%-4s a rank that stays away: %s\n", good ? "ok" : "FAIL", ranks[0].detail);
    return good;
  }
  int good = 1;
  double error = 0;
  int64_t misplaced = 0;
  for (int32_t r = 0; r < s->ranks; r++) {
    if (ranks[r].status) printf("FAIL rank %d: %s: %s\n", r, dt_status_name(ranks[r].status), ranks[r].detail);
    good &= ranks[r].status == DT_OK;
    misplaced += ranks[r].misplaced;
    if (!(ranks[r].error <= error)) error = ranks[r].error;
  }
  good = good && misplaced == 0 && error <= (s->half ? 1e-3 : 8e-3);
  printf("%-4s %s: %d ranks, rows %lld (text %lld), keys %lld, heads %d / %d, D %d: %lld misplaced, error %.2e\n",
         good ? "ok" : "FAIL", s->name, s->ranks, (long long)s->tokens, (long long)s->text, (long long)s->kv_tokens,
         s->heads, s->kv_heads, s->head_dim, (long long)misplaced, error);
  return good;
}

static cudaStream_t streams[RANKS_MAX];

/* Of all ranks, for all cases, before there are threads: of streams that threads make at the same time two might get
 * one hardware queue, and of ranks that share a GPU one would stand behind the other's kernel, which waits for it. */
static dt_status make_streams(int devices) {
  dt_status status = DT_OK;
  for (int r = 0; r < RANKS_MAX && !status; r++) {
    status = cuda(cudaSetDevice(r % devices));
    if (!status) status = cuda(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
    if (!status) status = cuda(cudaStreamSynchronize(streams[r]));
  }
  return status;
}

static int check(const shape *s, int devices, int absent, int repeats) {
  uint16_t *whole[3];
  for (int t = 0; t < 3; t++)
    whole[t] = random_tensor((size_t)(t ? s->kv_tokens : s->tokens) * token_elements(s, t), 7 + (uint64_t)t, s);
  dt_comm *controls[RANKS_MAX];
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.entry_timeout_s = config.timeout_s = 30;
  if (dt_comm_create_local(s->ranks, &config, controls) != DT_OK) {
    printf("FAIL %s\n", dt_error_detail());
    return 0;
  }
  memset(ranks, 0, sizeof ranks);
  for (int32_t r = 0; r < s->ranks; r++) {
    ranks[r] = (rank){.rank = r,
                      .devices = devices,
                      .control = controls[r],
                      .shape = s,
                      .absent = absent,
                      .repeats = repeats,
                      .whole = {whole[0], whole[1], whole[2]},
                      .stream = streams[r]};
    pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]);
  }
  for (int32_t r = 0; r < s->ranks; r++) pthread_join(ranks[r].thread, NULL);
  const int good = report(s, absent);
  fflush(stdout);
  for (int32_t r = 0; r < s->ranks; r++) {
    for (int i = 0; i < VARIANTS; i++) free(ranks[r].outputs[i]);
    dt_comm_destroy(ranks[r].comm ? ranks[r].comm : ranks[r].control);
  }
  for (int t = 0; t < 3; t++) free(whole[t]);
  return good;
}

int main(int argc, char **argv) {
  /* Ranks that share a GPU: a stream that shares a queue with another rank's would stand behind what waits for it. */
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const int devices = support_gpus(RANKS_MAX);
  if (devices < 1) {
    printf("skipped: no Hopper GPU\n");
    return 77;
  }
  printf("%d GPUs\n", devices);
  if (make_streams(devices)) return 1;
  int good = 1;
  const int last = argc > 2 ? atoi(argv[2]) - 1 : REPEATED;
  for (int i = 0; i <= last && i <= REPEATED; i++)
    good &= check(&shapes[i], devices, 0, i < REPEATED ? 0 : argc > 1 ? atoi(argv[1]) : 1000);
  good &= check(&shapes[1], devices, 1, 0);
  return !good;
}
