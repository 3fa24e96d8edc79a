/* Runs of the probe: bursts by a setting, latencies, launches. */
#include <string.h>

#include "comm/clock.h"
#include "core/error.h"
#include "cuda/driver.h"
#include "probe.h"

/* Ranks that send, and where to. */
typedef struct traffic {
  int32_t senders[DT_BURST_RANKS], count;
} traffic;

static void senders_of(const dt_cuda_probe *probe, int32_t pattern, traffic *t) {
  t->count = 0;
  int32_t first = pattern == DT_PROBE_MANY_TO_ONE ? 1 : 0;
  int32_t last = pattern == DT_PROBE_LOCAL || pattern == DT_PROBE_ONE_WAY ? 1
                 : pattern == DT_PROBE_BOTH_WAYS                          ? 2
                                                                          : probe->ranks;
  for (int32_t r = first; r < last; r++) t->senders[t->count++] = r;
}

static dt_status encode_map(unsigned char *area, CUtensorMap *map) {
  const dt_cuda_driver_api *api;
  dt_status status = dt_cuda_driver(&api);
  if (status) return status;
  const cuuint64_t size[] = {64, DT_PROBE_AREA_BYTES / 128}, stride[] = {128};
  const cuuint32_t box[] = {64, 64}, step[] = {1, 1};
  return dt_cuda_driver_check(api->cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, area, size, stride,
                                                          box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                          CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                              "cuTensorMapEncodeTiled");
}

static dt_status set_targets(const dt_cuda_probe *probe, const dt_probe_setting *s, int32_t rank, dt_burst_launch *l) {
  for (int32_t step = 1; step <= probe->ranks; step++) {
    int32_t peer = (rank + step) % probe->ranks;
    int used = s->pattern == DT_PROBE_LOCAL         ? peer == rank
               : s->pattern == DT_PROBE_MANY_TO_ONE ? peer == 0
               : s->pattern == DT_PROBE_ALL_TO_ALL  ? peer != rank
                                                    : peer == 1 - rank;
    if (!used) continue;
    unsigned char *area = probe->areas[rank]->pieces[peer] + (size_t)rank * DT_PROBE_AREA_BYTES;
    l->target[l->targets] = area;
    if (s->operation == DT_PROBE_TENSOR) {
      dt_status status = encode_map(area, &l->map[l->targets]);
      if (status) return status;
    }
    l->targets++;
  }
  return DT_OK;
}

static dt_status check_setting(const dt_cuda_probe *probe, const dt_probe_setting *s, size_t stride) {
  if (s->producers < 1 || s->producers > probe->sms)
    return dt_fail(DT_ERR_ARGUMENT, "producers: %d; 1 to %d", s->producers, probe->sms);
  int engine = s->operation == DT_PROBE_BULK || s->operation == DT_PROBE_TENSOR;
  int64_t unit = engine ? DT_BURST_CHUNK_BYTES : 16;
  if (s->producer_bytes < 0 || s->producer_bytes % unit || (size_t)s->producer_bytes > stride)
    return dt_fail(DT_ERR_ARGUMENT, "producer_bytes: %lld; a multiple of %lld, at most %zu",
                   (long long)s->producer_bytes, (long long)unit, stride);
  if (s->pattern != DT_PROBE_LOCAL && probe->ranks < 2)
    return dt_fail(DT_ERR_UNSUPPORTED, "pattern %s: %s", dt_probe_pattern_name(s->pattern), probe->cannot);
  return DT_OK;
}

static void fill_launch(const dt_cuda_probe *probe, const dt_probe_setting *s, size_t stride, dt_burst_launch *l) {
  static const int32_t thirds[] = {DT_BURST_NOTHING, DT_BURST_VISIBLE, DT_BURST_LOADS};
  double hz = probe->hz;
  l->operation = s->operation;
  l->third = s->operation == DT_PROBE_PUT ? DT_BURST_VISIBLE : thirds[s->third];
  l->bytes = (uint64_t)s->producer_bytes;
  l->stride = stride;
  /* Where the bytes go matters to how evenly producers share the link: every class of bursts must see every place. An
   * odd number of them, so that the second bursts of pairs do not keep to every other one. */
  l->slots = s->producer_bytes ? (uint32_t)(stride / (size_t)s->producer_bytes) : 1;
  if (l->slots > 7) l->slots = 7;
  if (l->slots % 2 == 0) l->slots--;
  l->bursts = DT_BURST_SAMPLES;
  l->gap_cycles = (uint64_t)(s->gap_s * hz);
  l->window_cycles = (uint64_t)(s->window_s * hz);
  if (s->alignment != DT_FIT_FREE) {
    l->trains = s->trains, l->per_train = s->per_train;
    l->train_cycles = (uint64_t)(s->train_s * hz);
    l->period_cycles = (uint64_t)(s->period_s * hz);
  }
}

static dt_status launch_rank(dt_cuda_probe *probe, const dt_probe_setting *s, const traffic *t, int32_t index) {
  int32_t rank = t->senders[index];
  size_t stride = DT_PROBE_AREA_BYTES / (size_t)s->producers / DT_BURST_CHUNK_BYTES * DT_BURST_CHUNK_BYTES;
  dt_burst_launch l;
  memset(&l, 0, sizeof l);
  dt_status status = check_setting(probe, s, stride);
  if (!status) status = set_targets(probe, s, rank, &l);
  if (status) return status;
  fill_launch(probe, s, stride, &l);
  l.source = probe->sources[rank];
  l.rank = index, l.ranks = t->count;
  l.epoch = probe->epoch;
  l.arrivals = probe->arrivals[rank] += (uint32_t)s->producers;
  for (int32_t i = 0; i < t->count; i++)
    l.control[i] = (dt_burst_control *)probe->controls[rank]->pieces[t->senders[i]];
  l.stamps = probe->stamps[rank], l.counts = probe->counts[rank], l.clocks = probe->clocks[rank];
  cudaError_t error = cudaSetDevice(rank);
  if (error == cudaSuccess)
    error = cudaMemsetAsync(l.counts, 0, (size_t)s->producers * sizeof *l.counts, probe->streams[rank]);
  if (error == cudaSuccess) error = dt_burst_launch_kernel(&l, s->producers, probe->streams[rank]);
  return dt_cuda_check(error, "burst kernel");
}

static dt_status collect_rank(dt_cuda_probe *probe, const dt_probe_setting *s, int32_t rank, dt_probe_result *result) {
  _Static_assert(sizeof(dt_burst_stamp) == sizeof(dt_probe_stamp), "stamps of the kernel and of the summary");
  dt_burst_control control;
  size_t producers = (size_t)s->producers;
  cudaStream_t stream = probe->streams[rank];
  cudaError_t error = cudaSetDevice(rank);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(probe->host_counts, probe->counts[rank], producers * sizeof(uint32_t),
                            cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess)
    error = cudaMemcpyAsync(probe->host_stamps, probe->stamps[rank],
                            producers * DT_BURST_SAMPLES * sizeof(dt_burst_stamp), cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess)
    error =
        cudaMemcpyAsync(&control, probe->controls[rank]->pieces[rank], sizeof control, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  dt_status status = dt_cuda_check(error, "probe results");
  if (status) return status;
  if (control.dead) return dt_fail(DT_ERR_TIMEOUT, "burst kernel of rank %d: a rendezvous expired", rank);
  return dt_probe_summary(s, (const dt_probe_stamp *)probe->host_stamps, probe->host_counts, DT_BURST_SAMPLES,
                          1.0 / probe->hz, result);
}

static dt_status run_setting(void *context, const dt_probe_setting *setting, dt_probe_result *result) {
  dt_cuda_probe *probe = context;
  traffic t;
  senders_of(probe, setting->pattern, &t);
  if (!t.count)
    return dt_fail(DT_ERR_UNSUPPORTED, "pattern %s: %s", dt_probe_pattern_name(setting->pattern), probe->cannot);
  probe->epoch++;
  dt_status status = DT_OK;
  for (int32_t i = 0; i < t.count && !status; i++) status = launch_rank(probe, setting, &t, i);
  dt_probe_result sum = {0};
  for (int32_t i = 0; i < t.count && !status; i++) {
    dt_probe_result one = {0};
    status = collect_rank(probe, setting, t.senders[i], &one);
    double share = 1.0 / t.count;
    sum.issue_s += share * one.issue_s, sum.gap_s += share * one.gap_s, sum.third_s += share * one.third_s;
    sum.issue_min_s += share * one.issue_min_s, sum.issue_max_s += share * one.issue_max_s;
    sum.bytes_per_s += share * one.bytes_per_s, sum.start_spread_s += share * one.start_spread_s;
    sum.active_producers += share * one.active_producers, sum.bursts += one.bursts;
  }
  if (!status) *result = sum;
  return status;
}

void dt_cuda_probe_machine(dt_cuda_probe *probe, dt_probe_machine *machine) {
  uint32_t patterns = 1u << DT_PROBE_LOCAL;
  if (probe->ranks > 1) patterns |= 1u << DT_PROBE_ONE_WAY | 1u << DT_PROBE_BOTH_WAYS;
  if (probe->ranks > 2) patterns |= 1u << DT_PROBE_ALL_TO_ALL | 1u << DT_PROBE_MANY_TO_ONE;
  *machine = (dt_probe_machine){.context = probe,
                                .max_producers = probe->sms,
                                .patterns = patterns,
                                .operations = 1u << DT_PROBE_STORE | 1u << DT_PROBE_BULK | 1u << DT_PROBE_TENSOR |
                                              1u << DT_PROBE_PUT,
                                .run = run_setting};
}

dt_status dt_cuda_probe_latency(dt_cuda_probe *probe, dt_latency_kind kind, uint32_t iterations, double *seconds) {
  int32_t ranks = kind == DT_LATENCY_BARRIER                              ? probe->ranks
                  : kind == DT_LATENCY_FLAG || kind == DT_LATENCY_RELEASE ? 2
                                                                          : 1;
  int needs_peer = kind != DT_LATENCY_FENCE_IDLE && kind != DT_LATENCY_ATOMIC;
  if (needs_peer && probe->ranks < 2) return dt_fail(DT_ERR_UNSUPPORTED, "latency: %s", probe->cannot);
  cudaError_t error = cudaSuccess;
  for (int32_t r = 0; r < ranks && error == cudaSuccess; r++) {
    dt_latency_launch l = {
        .kind = kind, .rank = r, .ranks = ranks, .first = probe->latency_value, .iterations = iterations};
    for (int32_t p = 0; p < probe->ranks; p++)
      l.slots[p] = (uint32_t *)(probe->controls[r]->pieces[p] + sizeof(dt_burst_control));
    l.dead = &((dt_burst_control *)probe->controls[r]->pieces[r])->dead;
    l.cycles = probe->clocks[r];
    error = cudaSetDevice(r);
    if (error == cudaSuccess) error = dt_latency_launch_kernel(&l, probe->streams[r]);
  }
  probe->latency_value += iterations;
  uint64_t cycles = 0;
  int32_t expired = -1;
  for (int32_t r = ranks - 1; r >= 0 && error == cudaSuccess; r--) {
    error = cudaSetDevice(r);
    if (error == cudaSuccess)
      error = cudaMemcpyAsync(&cycles, probe->clocks[r], sizeof cycles, cudaMemcpyDeviceToHost, probe->streams[r]);
    if (error == cudaSuccess) error = cudaStreamSynchronize(probe->streams[r]);
    if (error == cudaSuccess && !cycles) expired = r;
  }
  dt_status status = dt_cuda_check(error, "latency kernel");
  if (!status && expired >= 0) status = dt_fail(DT_ERR_TIMEOUT, "latency kernel of rank %d: a wait expired", expired);
  if (!status) *seconds = (double)cycles / probe->hz / (iterations - 1);
  return status;
}

dt_status dt_cuda_probe_launch(dt_cuda_probe *probe, double *launch_s, double *launch_and_wait_s) {
  enum { LAUNCHES = 200, WAITS = 20 };
  cudaStream_t stream = probe->streams[0];
  cudaError_t error = cudaSetDevice(0);
  if (error == cudaSuccess) error = dt_empty_launch_kernel(stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  double begin = dt_now_s();
  for (int i = 0; i < LAUNCHES && error == cudaSuccess; i++) error = dt_empty_launch_kernel(stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  *launch_s = (dt_now_s() - begin) / LAUNCHES;
  begin = dt_now_s();
  for (int i = 0; i < WAITS && error == cudaSuccess; i++) {
    error = dt_empty_launch_kernel(stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  }
  *launch_and_wait_s = (dt_now_s() - begin) / WAITS;
  return dt_cuda_check(error, "empty kernel");
}
