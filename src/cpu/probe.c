#include "probe.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/clock.h"
#include "core/error.h"

enum { PRODUCERS = 8, SAMPLES = 4096, TICK_NS = 16 };

/* A producer's part of a peer's window; larger bursts wrap around in several puts of one burst. */
static const size_t area_bytes = (size_t)8 << 20;

struct dt_cpu_probe {
  dt_comm *comm;
  int32_t max_producers;
  dt_window *window; /* [ranks][producers] areas */
  unsigned char *source;
  dt_probe_stamp *stamps; /* [producers][SAMPLES] */
  uint32_t counts[PRODUCERS];
};

dt_status dt_cpu_probe_create(dt_comm *comm, int32_t max_producers, dt_cpu_probe **out) {
  if (max_producers < 1 || max_producers > PRODUCERS)
    return dt_fail(DT_ERR_ARGUMENT, "max_producers: %d; 1 to %d", max_producers, PRODUCERS);
  dt_cpu_probe *probe = calloc(1, sizeof *probe);
  dt_probe_stamp *stamps = malloc((size_t)max_producers * SAMPLES * sizeof *stamps);
  unsigned char *source = malloc(area_bytes);
  dt_window *window = NULL;
  dt_status status = DT_OK;
  if (!probe || !stamps || !source) {
    status = dt_fail(DT_ERR_MEMORY, "probe: %zu bytes", area_bytes);
    dt_comm_abort(comm, status, dt_error_detail());
  } else {
    for (size_t i = 0; i < area_bytes; i++) source[i] = (unsigned char)(i * 131 + 7); /* not zeros: pages of its own */
    size_t areas = (size_t)dt_comm_ranks(comm) * (size_t)max_producers;
    status = dt_comm_alloc(comm, areas * area_bytes, &window);
  }
  if (status) {
    free(probe), free(stamps), free(source);
    return status;
  }
  *probe = (dt_cpu_probe){
      .comm = comm, .max_producers = max_producers, .window = window, .source = source, .stamps = stamps};
  *out = probe;
  return DT_OK;
}

void dt_cpu_probe_destroy(dt_cpu_probe *probe) {
  if (!probe) return;
  dt_comm_free(probe->comm, probe->window);
  free(probe->stamps), free(probe->source);
  free(probe);
}

/* One producer's run. */
typedef struct producer {
  dt_cpu_probe *probe;
  const dt_probe_setting *setting;
  int32_t index, peer;
  uint64_t origin_ns;
  dt_status status;
} producer;

int32_t dt_cpu_probe_peer(int32_t rank, int32_t ranks, int32_t index, uint32_t burst) {
  return (int32_t)((rank + 1 + (int64_t)((uint32_t)index + burst) % (ranks - 1)) % ranks);
}

static void sleep_until(uint64_t time_ns) {
  struct timespec until = dt_timespec(time_ns);
  while (dt_now_ns() < time_ns && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
}

/* Burst n of this producer. */
static dt_status put_burst(const producer *p, uint32_t n, uint64_t *visible_ns) {
  int32_t rank = dt_comm_rank(p->probe->comm), ranks = dt_comm_ranks(p->probe->comm), peer = p->peer;
  if (p->setting->pattern == DT_PROBE_ALL_TO_ALL) /* turns over the peers */
    peer = dt_cpu_probe_peer(rank, ranks, p->index, n);
  size_t area =
      ((size_t)dt_comm_rank(p->probe->comm) * (size_t)p->probe->max_producers + (size_t)p->index) * area_bytes;
  size_t left = (size_t)p->setting->producer_bytes;
  while (left) {
    size_t bytes = left < area_bytes ? left : area_bytes;
    dt_put put = {.window = p->probe->window,
                  .peer = peer,
                  .offset = area,
                  .src = p->probe->source,
                  .row_bytes = bytes,
                  .rows = 1};
    dt_status status = dt_comm_put(p->probe->comm, &put, visible_ns);
    if (status) return status;
    left -= bytes;
  }
  return DT_OK;
}

static void *run_producer(void *argument) {
  producer *p = argument;
  const dt_probe_setting *s = p->setting;
  dt_probe_stamp *stamps = p->probe->stamps + (size_t)p->index * SAMPLES;
  uint32_t *count = &p->probe->counts[p->index];
  uint64_t end_ns = p->origin_ns;
  *count = 0;
  for (uint32_t n = 0; n < SAMPLES; n++) {
    uint64_t at_ns = end_ns + (n ? (uint64_t)(s->gap_s * 1e9) : 0);
    if (s->alignment != DT_FIT_FREE) {
      uint32_t per_train = (uint32_t)s->per_train, train = n / per_train, burst = n % per_train;
      if (n >= per_train * (uint32_t)s->trains) break;
      at_ns = p->origin_ns + (uint64_t)(((double)train * s->train_s + (double)burst * s->period_s) * 1e9);
    }
    sleep_until(at_ns);
    uint64_t start_ns = dt_now_ns(), visible_ns = 0;
    if (s->alignment == DT_FIT_FREE && (double)(start_ns - p->origin_ns) * 1e-9 >= s->window_s) break;
    p->status = put_burst(p, n, &visible_ns);
    if (p->status) break;
    end_ns = dt_now_ns();
    if (visible_ns < end_ns) visible_ns = end_ns; /* a plain fabric: visible when the copy is done */
    stamps[n] =
        (dt_probe_stamp){(uint32_t)((start_ns - p->origin_ns) / TICK_NS), (uint32_t)((end_ns - p->origin_ns) / TICK_NS),
                         s->third == DT_PROBE_VISIBLE ? (uint32_t)((visible_ns - start_ns) / TICK_NS) : 0};
    *count = n + 1;
  }
  return NULL;
}

static dt_status run_sender(dt_cpu_probe *probe, const dt_probe_setting *s, int32_t peer, dt_probe_result *result) {
  producer producers[PRODUCERS];
  pthread_t threads[PRODUCERS];
  uint64_t origin_ns = dt_now_ns() + 300000; /* time for the threads to start */
  int32_t started = 0;
  for (; started < s->producers; started++) {
    producers[started] =
        (producer){.probe = probe, .setting = s, .index = started, .peer = peer, .origin_ns = origin_ns};
    if (pthread_create(&threads[started], NULL, run_producer, &producers[started])) break;
  }
  for (int32_t p = 0; p < started; p++) pthread_join(threads[p], NULL);
  if (started < s->producers) return dt_fail(DT_ERR_SYSTEM, "no thread for producer %d", started);
  for (int32_t p = 0; p < started; p++)
    if (producers[p].status) return dt_comm_status(probe->comm) ? dt_comm_status(probe->comm) : producers[p].status;
  return dt_probe_summary(s, probe->stamps, probe->counts, SAMPLES, TICK_NS * 1e-9, result);
}

/* Peer of this rank's bursts in a pattern; -1: it does not send. */
static int32_t peer_of(const dt_comm *comm, int32_t pattern) {
  int32_t rank = dt_comm_rank(comm);
  switch (pattern) {
  case DT_PROBE_LOCAL:
    return rank == 0 ? 0 : -1;
  case DT_PROBE_ONE_WAY:
    return rank == 0 ? 1 : -1;
  case DT_PROBE_BOTH_WAYS:
    return rank < 2 ? 1 - rank : -1;
  case DT_PROBE_ALL_TO_ALL: /* a producer's bursts go round; put_burst knows where */
    return (rank + 1) % dt_comm_ranks(comm);
  default:
    return rank > 0 ? 0 : -1;
  }
}

/* What a rank says after its part. */
typedef struct rank_outcome {
  dt_probe_result result;
  int32_t status, sent;
} rank_outcome;

/* Every rank, with the same setting. */
static dt_status take_part(dt_cpu_probe *probe, const dt_probe_setting *s, dt_probe_result *result) {
  int32_t ranks = dt_comm_ranks(probe->comm), peer = peer_of(probe->comm, s->pattern);
  rank_outcome own, *all = calloc((size_t)ranks, sizeof *all);
  memset(&own, 0, sizeof own);
  if (!all) return dt_fail(DT_ERR_MEMORY, "probe: %d ranks", ranks);
  dt_status status = dt_comm_barrier(probe->comm, "probe");
  if (!status && peer >= 0) {
    own.status = run_sender(probe, s, peer, &own.result);
    own.sent = 1;
  }
  if (!status) status = dt_comm_allgather(probe->comm, &own, all, sizeof own);
  dt_probe_result sum = {0};
  int32_t senders = 0;
  for (int32_t r = 0; r < ranks && !status; r++) {
    senders += all[r].sent;
    if (all[r].status && r == dt_comm_rank(probe->comm))
      status = all[r].status; /* its detail is this thread's */
    else if (all[r].status)
      status = dt_fail(all[r].status, "probe: rank %d: %s", r, dt_status_text(all[r].status));
  }
  for (int32_t r = 0; r < ranks && !status; r++) {
    if (!all[r].sent) continue;
    const dt_probe_result *one = &all[r].result;
    double share = 1.0 / senders;
    sum.issue_s += share * one->issue_s, sum.gap_s += share * one->gap_s, sum.third_s += share * one->third_s;
    sum.issue_min_s += share * one->issue_min_s, sum.issue_max_s += share * one->issue_max_s;
    sum.bytes_per_s += share * one->bytes_per_s, sum.start_spread_s += share * one->start_spread_s;
    sum.active_producers += share * one->active_producers, sum.bursts += one->bursts;
  }
  free(all);
  if (!status) *result = sum;
  return status;
}

/* Rank 0's word goes: the others pass nothing of their own. */
typedef struct order {
  dt_probe_setting setting;
  int32_t end;
} order;

static dt_status agree_on(dt_cpu_probe *probe, const order *own, order *agreed) {
  order *all = calloc((size_t)dt_comm_ranks(probe->comm), sizeof *all);
  if (!all) return dt_fail(DT_ERR_MEMORY, "probe: an order a rank");
  dt_status status = dt_comm_allgather(probe->comm, own, all, sizeof *own);
  if (!status) *agreed = all[0];
  free(all);
  return status;
}

static dt_status run_setting(void *context, const dt_probe_setting *setting, dt_probe_result *result) {
  dt_cpu_probe *probe = context;
  if (setting->producers < 1 || setting->producers > probe->max_producers || setting->producer_bytes < 1)
    return dt_fail(DT_ERR_ARGUMENT, "producers: %d of %lld bytes; 1 to %d, at least a byte", setting->producers,
                   (long long)setting->producer_bytes, probe->max_producers);
  order own, agreed;
  memset(&own, 0, sizeof own);
  own.setting = *setting;
  dt_status status = agree_on(probe, &own, &agreed);
  return status ? status : take_part(probe, setting, result);
}

void dt_cpu_probe_machine(dt_cpu_probe *probe, dt_probe_machine *machine) {
  int32_t ranks = dt_comm_ranks(probe->comm);
  uint32_t patterns = 1u << DT_PROBE_LOCAL;
  if (ranks > 1) patterns |= 1u << DT_PROBE_ONE_WAY | 1u << DT_PROBE_BOTH_WAYS;
  if (ranks > 2) patterns |= 1u << DT_PROBE_ALL_TO_ALL | 1u << DT_PROBE_MANY_TO_ONE;
  *machine = (dt_probe_machine){.context = probe,
                                .max_producers = probe->max_producers,
                                .patterns = patterns,
                                .operations = 1u << DT_PROBE_PUT,
                                .run = run_setting};
}

dt_status dt_cpu_probe_serve(dt_cpu_probe *probe) {
  for (;;) {
    order own, agreed = {.end = 1};
    memset(&own, 0, sizeof own);
    dt_status status = agree_on(probe, &own, &agreed);
    if (status || agreed.end) return status;
    dt_probe_result ignored;
    status = take_part(probe, &agreed.setting, &ignored);
    if (status && status != DT_ERR_INPUT) return status;
  }
}

dt_status dt_cpu_probe_end(dt_cpu_probe *probe) {
  order own, agreed;
  memset(&own, 0, sizeof own);
  own.end = 1;
  return agree_on(probe, &own, &agreed);
}
