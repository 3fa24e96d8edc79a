/* How much communication each schedule hides on this machine: RANKS processes of one worker and one consumer on fabric
 * shm, a paced link at which the communication alone takes RATIO of the computation alone. All schedules run in turn,
 * REPEAT times; medians over the repeats of the slowest rank.
 *
 *     overlap [--ratio 0.5] [--repeat 7] [--ranks 2] [--hidden 1024] [--intermediate 768] [--experts 16] [--top-k 4]
 *             [--tokens 4096] [--tile-m 128] [--tile-n 0] [--dtype bf16|f32] [--raster 0] [--lead 0] [--group 0]
 *             [--segment 0] [--capacity-ms 4] [--link MB/s: no probe] [--details 0|1]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <draintile/moe.h>
#include <draintile/reference.h>

#include "core/random.h"
#include "core/statistics.h"
#include "cpu/kernels.h"
#include "must.h"

enum { RANKS = 8, REPEATS = 64, SCHEDULES = DT_SCHEDULE_ALTERNATE + 1 };

typedef struct options {
  double ratio, repeat, ranks, hidden, intermediate, experts, top_k, tokens, tile_m, tile_n, raster, lead, group,
      segment;
  double capacity_ms, link_mb_per_s, details;
  const char *dtype;
} options;

/* What the seconds of a schedule on one rank went into: sums over the spans of the worker and the consumer. */
typedef struct breakdown {
  double l1_s, l2_s, store_s, wait_1_s, wait_reduce_s, reduce_s, dispatch_s, segment_s, first_l1_s, last_l2_s;
} breakdown;

typedef struct board {
  int32_t ranks, arrived;
  unsigned char gather[RANKS][4096];
  double compute_s, comm_s, bytes; /* of the probe, slowest rank */
  double total_s[RANKS][REPEATS][SCHEDULES], serial_compute_s[RANKS][REPEATS], serial_comm_s[RANKS][REPEATS];
  double reduce_s[RANKS][REPEATS], plan_s[RANKS][REPEATS];
  breakdown parts[RANKS][REPEATS][SCHEDULES];
  int32_t different; /* outputs that were not serial's */
} board;

typedef struct seat {
  board *board;
  int32_t rank;
} seat;

static options opt = {.ratio = 0.5,
                      .repeat = 7,
                      .ranks = 2,
                      .hidden = 1024,
                      .intermediate = 768,
                      .experts = 16,
                      .top_k = 4,
                      .tokens = 4096,
                      .tile_m = 128,
                      .capacity_ms = 4,
                      .dtype = "bf16"};

static int gather_all(void *context, const void *send, void *receive, size_t bytes) {
  seat *s = context;
  board *b = s->board;
  if (bytes > sizeof(b->gather[0])) return 1;
  memcpy(b->gather[s->rank], send, bytes);
  __atomic_fetch_add(&b->arrived, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&b->arrived, __ATOMIC_SEQ_CST) < b->ranks) usleep(100);
  for (int32_t r = 0; r < b->ranks; r++) memcpy((unsigned char *)receive + (size_t)r * bytes, b->gather[r], bytes);
  return 0;
}

static void *random_values(dt_random *random, dt_dtype dtype, int64_t count, double scale) {
  float *wide = malloc((size_t)count * sizeof(float));
  for (int64_t i = 0; i < count; i++) wide[i] = (float)(scale * (2 * dt_random_unit(random) - 1));
  void *values = malloc((size_t)count * dt_dtype_bytes(dtype));
  dt_round_row(dtype, wide, count, values);
  free(wide);
  return values;
}

static dt_matrix random_matrix(dt_random *random, dt_dtype dtype, int64_t rows, int64_t cols) {
  return (dt_matrix){.data = random_values(random, dtype, rows * cols, sqrt(3.0 / (double)cols)),
                     .dtype = dtype,
                     .rows = rows,
                     .cols = cols,
                     .row_stride = cols,
                     .col_stride = 1};
}

typedef struct problem {
  dt_moe_config config;
  dt_moe_weights weights;
  dt_moe_input input;
  void *serial, *output;
  size_t bytes;
} problem;

static problem make_problem(int32_t rank) {
  problem p = {0};
  dt_moe_config_init(&p.config);
  must(dt_dtype_parse(opt.dtype, &p.config.dtype), "--dtype");
  p.config.top_k = (int32_t)opt.top_k;
  p.config.tile_m = (int32_t)opt.tile_m;
  p.config.tile_n = (int32_t)opt.tile_n;
  p.config.raster_bands = (int32_t)opt.raster;
  p.config.lead = (int32_t)opt.lead;
  p.config.group_tasks = (int32_t)opt.group;
  p.config.segment_bands = (int32_t)opt.segment;
  int64_t first, tokens, hidden = (int64_t)opt.hidden, intermediate = (int64_t)opt.intermediate;
  dt_token_block((int64_t)opt.tokens, (int32_t)opt.ranks, rank, &first, &tokens);
  p.config.max_tokens = tokens;
  dt_random random = {(uint64_t)rank + 1};
  int32_t per_rank = (int32_t)(opt.experts / opt.ranks);
  dt_expert *experts = calloc((size_t)per_rank, sizeof(*experts));
  for (int32_t e = 0; e < per_rank; e++) {
    experts[e].gate = random_matrix(&random, p.config.dtype, intermediate, hidden);
    experts[e].up = random_matrix(&random, p.config.dtype, intermediate, hidden);
    experts[e].down = random_matrix(&random, p.config.dtype, hidden, intermediate);
  }
  p.weights = (dt_moe_weights){
      .hidden = hidden, .intermediate = intermediate, .experts_per_rank = per_rank, .experts = experts};
  int32_t k = p.config.top_k, all = (int32_t)opt.experts;
  int32_t *ids = malloc((size_t)(tokens * k) * sizeof(*ids));
  for (int64_t t = 0; t < tokens; t++) {
    for (int32_t j = 0; j < k; j++) {
      int again = 1;
      while (again) {
        ids[t * k + j] = (int32_t)dt_random_below(&random, (uint64_t)all);
        again = 0;
        for (int32_t i = 0; i < j; i++) again |= ids[t * k + i] == ids[t * k + j];
      }
    }
  }
  float *weights = random_values(&random, DT_DTYPE_F32, tokens * k, 1);
  p.input = (dt_moe_input){.tokens = tokens,
                           .hidden = random_values(&random, p.config.dtype, tokens * hidden, 1),
                           .ids = ids,
                           .weights = weights};
  p.bytes = (size_t)(tokens * hidden) * dt_dtype_bytes(p.config.dtype);
  p.serial = malloc(p.bytes);
  p.output = malloc(p.bytes);
  return p;
}

static double span_s(const dt_span *span) {
  return (double)(span->end_ns - span->begin_ns) * 1e-9;
}

/* One worker a rank: its track is 0. */
static breakdown break_down(const dt_moe *moe) {
  const dt_span *spans;
  size_t count;
  dt_moe_spans(moe, &spans, &count);
  breakdown b = {.first_l1_s = INFINITY};
  uint64_t start = UINT64_MAX, last_l1 = 0;
  for (size_t i = 0; i < count; i++) {
    if (spans[i].begin_ns < start) start = spans[i].begin_ns;
    if (spans[i].kind == DT_SPAN_L1 && spans[i].end_ns > last_l1) last_l1 = spans[i].end_ns;
  }
  for (size_t i = 0; i < count; i++) {
    const dt_span *s = &spans[i];
    double seconds = span_s(s), begin = (double)(s->begin_ns - start) * 1e-9, end = (double)(s->end_ns - start) * 1e-9;
    if (s->kind == DT_SPAN_L1) b.l1_s += seconds, b.first_l1_s = fmin(b.first_l1_s, begin);
    if (s->kind == DT_SPAN_L2) b.l2_s += seconds, b.last_l2_s = fmax(b.last_l2_s, end);
    if (s->kind == DT_SPAN_STORE) b.store_s += seconds;
    if (s->kind == DT_SPAN_REDUCE) b.reduce_s += seconds;
    if (s->kind == DT_SPAN_DISPATCH) b.dispatch_s += seconds;
    if (s->kind == DT_SPAN_SEGMENT) b.segment_s += seconds;
    if (s->kind == DT_SPAN_WAIT && s->track == 0 && s->end_ns <= last_l1) b.wait_1_s += seconds;
    if (s->kind == DT_SPAN_WAIT && s->track == 0 && s->end_ns > last_l1) b.wait_reduce_s += seconds;
  }
  return b;
}

typedef struct link_setting {
  double rate, capacity;
  int all_schedules, repeats;
} link_setting;

static void run_rank(board *b, int32_t rank, const link_setting *link) {
  seat s = {b, rank};
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.link_bytes_per_s = link->rate;
  config.link_capacity_bytes = link->capacity;
  config.link_latency_s = link->rate > 0 ? 20e-6 : 0;
  dt_comm *comm;
  must(dt_comm_create_shm(rank, b->ranks, gather_all, &s, &config, &comm), "comm");
  problem p = make_problem(rank);
  p.config.schedule = DT_SCHEDULE_SERIAL;
  dt_moe *moe;
  must(dt_moe_create(comm, &p.config, &p.weights, &moe), "create");
  dt_moe_stats stats;
  must(dt_moe_forward(moe, &p.input, p.serial, &stats), "warm-up");
  b->bytes = (double)stats.bytes_sent;
  for (int i = 0; i < link->repeats; i++) {
    for (int schedule = 0; schedule < (link->all_schedules ? SCHEDULES : 1); schedule++) {
      p.config.schedule = (dt_schedule)schedule;
      must(dt_moe_set_schedule(moe, &p.config), "set schedule");
      must(dt_moe_forward(moe, &p.input, p.output, &stats), "forward");
      if (memcmp(p.serial, p.output, p.bytes)) __atomic_fetch_add(&b->different, 1, __ATOMIC_RELAXED);
      b->total_s[rank][i][schedule] = stats.total_s;
      b->parts[rank][i][schedule] = break_down(moe);
      if (schedule) continue;
      b->serial_compute_s[rank][i] = stats.compute_s;
      b->serial_comm_s[rank][i] = stats.dispatch_s + stats.combine_s;
      b->reduce_s[rank][i] = stats.reduce_s;
      b->plan_s[rank][i] = stats.plan_s;
    }
  }
  dt_moe_destroy(moe);
  dt_comm_destroy(comm);
}

static void run_all(board *b, const link_setting *link) {
  b->ranks = (int32_t)opt.ranks;
  b->arrived = 0;
  fflush(NULL);
  for (int32_t r = 0; r < b->ranks; r++) {
    if (fork() == 0) {
      run_rank(b, r, link);
      exit(0);
    }
  }
  for (int32_t r = 0; r < b->ranks; r++) {
    int status;
    if (wait(&status) < 0 || status) exit(3);
  }
}

/* Median over the repeats of the slowest rank. */
static double slowest(double (*samples)[REPEATS], int repeats) {
  double worst[REPEATS];
  for (int i = 0; i < repeats; i++) {
    worst[i] = 0;
    for (int r = 0; r < (int)opt.ranks; r++) worst[i] = fmax(worst[i], samples[r][i]);
  }
  return dt_median(worst, (size_t)repeats);
}

static double least(double (*samples)[REPEATS], int repeats) {
  double best = INFINITY;
  for (int i = 0; i < repeats; i++) {
    double worst = 0;
    for (int r = 0; r < (int)opt.ranks; r++) worst = fmax(worst, samples[r][i]);
    best = fmin(best, worst);
  }
  return best;
}

/* The rate at which serial's communication takes the ratio of its computation; least times, against disturbances. */
static double probe_link(board *b) {
  run_all(b, &(link_setting){.repeats = 4});
  double compute = least(b->serial_compute_s, 4), rate = b->bytes / (opt.ratio * compute);
  run_all(b, &(link_setting){.rate = rate, .capacity = rate * opt.capacity_ms * 1e-3, .repeats = 3});
  return rate * least(b->serial_comm_s, 3) / (compute * opt.ratio);
}

static double slowest_total(const board *b, int schedule, int repeats) {
  static double totals[RANKS][REPEATS];
  for (int r = 0; r < (int)opt.ranks; r++) {
    for (int i = 0; i < repeats; i++) totals[r][i] = b->total_s[r][i][schedule];
  }
  return slowest(totals, repeats);
}

static double part(const board *b, int schedule, int repeats, size_t offset) {
  static double values[RANKS][REPEATS];
  for (int r = 0; r < (int)opt.ranks; r++) {
    for (int i = 0; i < repeats; i++)
      values[r][i] = *(const double *)(const void *)((const char *)&b->parts[r][i][schedule] + offset);
  }
  return 1e3 * slowest(values, repeats);
}

static void parse(int argc, char **argv) {
  struct {
    const char *name;
    double *value;
  } numbers[] = {{"--ratio", &opt.ratio},
                 {"--repeat", &opt.repeat},
                 {"--ranks", &opt.ranks},
                 {"--hidden", &opt.hidden},
                 {"--intermediate", &opt.intermediate},
                 {"--experts", &opt.experts},
                 {"--top-k", &opt.top_k},
                 {"--tokens", &opt.tokens},
                 {"--tile-m", &opt.tile_m},
                 {"--tile-n", &opt.tile_n},
                 {"--raster", &opt.raster},
                 {"--lead", &opt.lead},
                 {"--group", &opt.group},
                 {"--segment", &opt.segment},
                 {"--capacity-ms", &opt.capacity_ms},
                 {"--link", &opt.link_mb_per_s},
                 {"--details", &opt.details}};
  for (int i = 1; i + 1 < argc; i += 2) {
    int known = strcmp(argv[i], "--dtype") == 0;
    if (known) opt.dtype = argv[i + 1];
    for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++) {
      if (strcmp(argv[i], numbers[n].name)) continue;
      *numbers[n].value = atof(argv[i + 1]);
      known = 1;
    }
    if (known) continue;
    fprintf(stderr, "unknown option %s\n", argv[i]);
    exit(2);
  }
  if (opt.ranks > RANKS || opt.repeat > REPEATS || opt.ranks < 1 || opt.repeat < 1) exit(2);
}

int main(int argc, char **argv) {
  parse(argc, argv);
  board *b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  int repeats = (int)opt.repeat;
  double rate = opt.link_mb_per_s * 1e6;
  if (rate <= 0) rate = probe_link(b);
  run_all(b, &(link_setting){
                 .rate = rate, .capacity = rate * opt.capacity_ms * 1e-3, .all_schedules = 1, .repeats = repeats});
  double compute = slowest(b->serial_compute_s, repeats), comm = slowest(b->serial_comm_s, repeats);
  double serial = slowest_total(b, 0, repeats);
  double flops = 6 * opt.hidden * opt.intermediate * opt.tokens * opt.top_k / opt.ranks;
  printf("link %.1f MB/s  compute alone %.2f ms (%.1f GFLOP/s a worker)  communication alone %.2f ms  ratio %.3f\n",
         rate * 1e-6, compute * 1e3, flops / compute * 1e-9, comm * 1e3, comm / compute);
  printf("serial's reduction %.2f ms, counts and plan %.2f ms; %d outputs differ from serial's\n",
         slowest(b->reduce_s, repeats) * 1e3, slowest(b->plan_s, repeats) * 1e3, b->different);
  printf("%-11s %9s %7s %8s %8s\n", "schedule", "total ms", "hidden", "speedup", "/max");
  for (int s = 0; s < SCHEDULES; s++) {
    double total = slowest_total(b, s, repeats);
    printf("%-11s %9.2f %7.3f %8.3f %8.3f\n", dt_schedule_name((dt_schedule)s), total * 1e3,
           1 - fmax(0, total - compute) / comm, serial / total, total / fmax(compute, comm));
    if (opt.details <= 0) continue;
#define PART(field) part(b, s, repeats, offsetof(breakdown, field))
    printf("    L1 %.2f  L2 %.2f (stores %.2f)  waits: L1 %.2f, later %.2f  reduce %.2f  dispatch %.2f  segments %.2f  "
           "first L1 at %.2f, last L2 ends %.2f\n",
           PART(l1_s), PART(l2_s), PART(store_s), PART(wait_1_s), PART(wait_reduce_s), PART(reduce_s), PART(dispatch_s),
           PART(segment_s), PART(first_l1_s), PART(last_l2_s));
  }
  return b->different ? 1 : 0;
}
