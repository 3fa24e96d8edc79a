#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "extras.h"
#include "model/experiments.h"

static const char by_rounds[] = "; the median round, bootstrap interval of the median, 95 %";

/* Runs a setting `rounds` times and keeps one figure of each. */
typedef double (*figure_fn)(const dt_probe_result *);

static double third_of(const dt_probe_result *r) {
  return r->third_s;
}
static double rate_of(const dt_probe_result *r) {
  return r->bytes_per_s;
}
static double active_of(const dt_probe_result *r) {
  return r->active_producers;
}

static dt_status measure(const dt_probe_machine *machine, const dt_probe_setting *setting, int32_t rounds,
                         figure_fn figure, double *samples) {
  for (int32_t r = 0; r < rounds; r++) {
    dt_probe_result result;
    dt_status status = machine->run(machine->context, setting, &result);
    if (status) return status;
    samples[r] = figure(&result);
  }
  return DT_OK;
}

/* Isolated bursts of every size with a third stamp. */
static dt_status third_table(const dt_probe_machine *machine, int32_t pattern, int32_t third, int32_t rounds,
                             const char *name, const char *method, dt_platform *platform) {
  static const int64_t sizes[] = {0, 2048, 8192, 16384, 24576, 32768, 65536, 131072};
  dt_extras_table *table;
  dt_status status = dt_extras_table_create(name, dt_probe_pattern_name(pattern), "st.v4", "drained", method, &table);
  if (status) return status;
  dt_extras_argument(table, "producers");
  dt_extras_argument(table, "producer_bytes");
  const int32_t producers[] = {machine->max_producers / 4, machine->max_producers};
  for (size_t k = 0; k < 2 && !status; k++) {
    for (size_t b = 0; b < sizeof sizes / sizeof *sizes && !status; b++) {
      if (third == DT_PROBE_VISIBLE && sizes[b] == 0) continue;
      dt_probe_setting s = {.pattern = pattern,
                            .alignment = DT_FIT_DRAINED,
                            .producers = producers[k],
                            .producer_bytes = sizes[b],
                            .per_train = 1,
                            .trains = 16,
                            .third = third};
      s.train_s = 20e-6 + 3.0 * (double)sizes[b] * producers[k] / 300e9;
      double samples[DT_EXTRA_ROUNDS];
      status = measure(machine, &s, rounds, third_of, samples);
      const double at[] = {producers[k], (double)sizes[b]};
      if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
    }
  }
  return dt_extras_table_finish(table, status, platform);
}

/* How long after a burst has drained it is visible: visible_s - V/R of the bursts that need the link. */
static dt_status link_latency(const dt_probe_machine *machine, int32_t rounds, dt_platform *platform) {
  dt_interval rate;
  dt_status status = dt_platform_lookup(platform, "rate_bytes_per_s", &rate);
  dt_probe_setting s = {.pattern = DT_PROBE_ONE_WAY,
                        .alignment = DT_FIT_DRAINED,
                        .producers = machine->max_producers,
                        .producer_bytes = 32768,
                        .per_train = 1,
                        .trains = 16,
                        .third = DT_PROBE_VISIBLE};
  double drain_s = (double)s.producers * (double)s.producer_bytes / rate.value, samples[DT_EXTRA_ROUNDS];
  s.train_s = 20e-6 + 3.0 * drain_s;
  if (!status) status = measure(machine, &s, rounds, third_of, samples);
  for (int32_t r = 0; r < rounds && !status; r++) samples[r] = samples[r] > drain_s ? samples[r] - drain_s : 0.0;
  static const char method[] = "burst start to the end of a system fence behind it, minus V/R; all producers, 32 KiB";
  if (!status) status = dt_extras_constant(platform, "link_latency_s", samples, (size_t)rounds, method);
  return status ? status : dt_extras_constant(platform, "sim_link_latency_s", samples, (size_t)rounds, method);
}

/* The second paper's Figure 3a: a message split over some SMs, complete when a system fence behind it is. */
static dt_status put_table(const dt_probe_machine *machine, int32_t rounds, dt_platform *platform) {
  static const int32_t sms[] = {1, 2, 4, 8, 12, 16, 24, 32, 64};
  dt_extras_table *table;
  dt_status status = dt_extras_table_create(
      "put_bytes_per_s", "one-way", "put", "free",
      "messages one after the other from local memory, each complete when a system fence behind it ends", &table);
  if (status) return status;
  dt_extras_argument(table, "message_bytes");
  dt_extras_argument(table, "sms_count");
  for (size_t c = 0; c < sizeof sms / sizeof *sms && !status; c++) {
    for (int64_t message = 65536; message <= 16777216 && !status; message *= 4) {
      int64_t bytes = message / sms[c] / 16 * 16;
      if (sms[c] > machine->max_producers) continue;
      dt_probe_setting s = {.operation = DT_PROBE_PUT,
                            .pattern = DT_PROBE_ONE_WAY,
                            .alignment = DT_FIT_FREE,
                            .producers = sms[c],
                            .producer_bytes = bytes};
      s.window_s = 16.0 * (5e-6 + fmax((double)message / 300e9, (double)bytes / 40e9));
      double samples[DT_EXTRA_ROUNDS];
      status = measure(machine, &s, rounds, rate_of, samples);
      const double at[] = {(double)message, sms[c]};
      if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
    }
  }
  return dt_extras_table_finish(table, status, platform);
}

/* K_act over the window Q/R, free-running by gap and aligned. */
static dt_status active_table(const dt_probe_machine *machine, int32_t rounds, dt_platform *platform) {
  dt_interval rate, capacity;
  if (dt_platform_lookup(platform, "rate_bytes_per_s", &rate) ||
      dt_platform_lookup(platform, "capacity_bytes", &capacity))
    return DT_OK; /* no window to count over */
  dt_design design = {.pattern = DT_PROBE_ONE_WAY,
                      .producers = machine->max_producers,
                      .producer_bytes = 32768,
                      .unit_bytes = 512,
                      .bytes_per_s = rate.value,
                      .issue_s_per_byte = 2e-11,
                      .bursts = 24};
  dt_status status = DT_OK;
  for (int32_t alignment = DT_FIT_FREE; alignment <= DT_FIT_DRAINED && !status; alignment += DT_FIT_DRAINED) {
    dt_extras_table *table;
    status = dt_extras_table_create("active_producers_count", "one-way", "st.v4",
                                    alignment == DT_FIT_FREE ? "free" : "aligned",
                                    "95th percentile over burst starts t of bursts that start in [t, t + Q/R)", &table);
    if (status) return status;
    dt_extras_argument(table, "producers");
    dt_extras_argument(table, "producer_bytes");
    dt_extras_argument(table, "gap_s");
    const double gaps[] = {0.0, 0.5, 0.9, 1.2};
    for (size_t g = 0; g < 4 && !status; g++) {
      dt_probe_setting s = dt_design_setting(&design, alignment, 1, 1, gaps[g]);
      s.active_window_s = capacity.value / rate.value;
      double samples[DT_EXTRA_ROUNDS];
      status = measure(machine, &s, rounds, active_of, samples);
      const double at[] = {s.producers, (double)s.producer_bytes, alignment == DT_FIT_FREE ? s.gap_s : s.train_s};
      if (!status) status = dt_extras_point(table, at, samples, (size_t)rounds);
      if (alignment == DT_FIT_DRAINED) break;
    }
    status = dt_extras_table_finish(table, status, platform);
  }
  return status;
}

static dt_status latencies(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  static const struct {
    const char *name;
    dt_latency_kind kind;
    double share;
    const char *method;
  } rows[] = {
      {"flag_s", DT_LATENCY_FLAG, 0.5, "half a round trip, st.relaxed.sys and ld.relaxed.sys, 400 trips"},
      {"flag_release_s", DT_LATENCY_RELEASE, 0.5, "half a round trip, st.release.sys and ld.acquire.sys, 400 trips"},
      {"fence_sys_s", DT_LATENCY_FENCE, 1.0, "one 4-byte remote store and fence.acq_rel.sys, 400 times"},
      {"fence_sys_idle_s", DT_LATENCY_FENCE_IDLE, 1.0, "fence.acq_rel.sys with nothing outstanding, 400 times"},
      {"entry_barrier_s", DT_LATENCY_BARRIER, 1.0, "a release to every peer, an acquire of every peer, 400 times"},
      {"counter_s", DT_LATENCY_ATOMIC, 1.0, "red.release.gpu and ld.acquire.gpu of one word, 400 times"},
  };
  double samples[DT_EXTRA_ROUNDS], waits[DT_EXTRA_ROUNDS];
  char method[160];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    int alone = rows[i].kind == DT_LATENCY_FENCE_IDLE || rows[i].kind == DT_LATENCY_ATOMIC;
    if (probe->ranks < 2 && !alone) continue;
    for (int32_t r = 0; r < rounds; r++) {
      dt_status status = dt_cuda_probe_latency(probe, rows[i].kind, 400, &samples[r]);
      if (status) return status;
      samples[r] *= rows[i].share;
    }
    snprintf(method, sizeof method, "%s%s", rows[i].method, by_rounds);
    dt_status status = dt_extras_constant(platform, rows[i].name, samples, (size_t)rounds, method);
    if (status) return status;
  }
  for (int32_t r = 0; r < rounds; r++) {
    dt_status status = dt_cuda_probe_launch(probe, &samples[r], &waits[r]);
    if (status) return status;
  }
  dt_status status = dt_extras_constant(platform, "launch_s", samples, (size_t)rounds,
                                        "200 empty kernels one after the other, a kernel's share of the time");
  if (status) return status;
  return dt_extras_constant(platform, "launch_and_wait_s", waits, (size_t)rounds,
                            "an empty kernel and cudaStreamSynchronize, host clock, 20 times");
}

dt_status dt_extras_stores(dt_cuda_probe *probe, int32_t rounds, dt_platform *platform) {
  dt_probe_machine machine;
  dt_cuda_probe_machine(probe, &machine);
  dt_status status = latencies(probe, rounds, platform);
  static const char loads[] = "a 16-byte load of L2-resident local memory by each of 512 threads, issued right after "
                              "the burst, until all are back";
  if (!status)
    status = third_table(&machine, DT_PROBE_LOCAL, DT_PROBE_LOADS, rounds, "load_after_burst_s", loads, platform);
  if (status || probe->ranks < 2) return status;
  status = third_table(&machine, DT_PROBE_ONE_WAY, DT_PROBE_LOADS, rounds, "load_after_burst_s", loads, platform);
  if (!status)
    status = third_table(&machine, DT_PROBE_ONE_WAY, DT_PROBE_VISIBLE, rounds, "visible_s",
                         "burst start to the end of a system fence behind it: an upper bound of remote visibility",
                         platform);
  if (!status) status = link_latency(&machine, rounds, platform);
  if (!status) status = put_table(&machine, rounds, platform);
  return status ? status : active_table(&machine, rounds, platform);
}
