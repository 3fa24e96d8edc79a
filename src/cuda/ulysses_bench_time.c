#include <math.h>
#include <stdlib.h>

#include "comm/fabric.h"
#include "core/error.h"
#include "driver.h"
#include "ulysses_bench_rank.h"

/* A run that takes long lives on what the power limit leaves it. That depends on what ran in the last tenths of a
 * second: behind faster runs the clock falls too low first; on the links: those that have carried nothing for 50 ms
 * (nvidia-smi nvlink -gLowPwrInfo) sleep, and a kernel that stores to nobody is 3 % faster then; and on the power
 * controller, which lowers the clock by 5 to 20 % for a tenth of a second about once a second (docs/notes/ulysses.md,
 * runs 18 to 24). So a row with such runs is timed in blocks: methods come one by one, forwards, then backwards, and so
 * on, each behind untimed runs of itself, each run behind some traffic, as between ranks that work together; and there
 * are as many samples as make up SAMPLE_S for each that was asked for, so that all methods see the controller's turns.
 */
enum { WAKE_BYTES = 8 << 20, HEATS_MOST = 64, BLOCKS = 4 };
static const double LONG_S = 0.01, HEAT_S = 0.3, SAMPLE_S = 0.1;

static dt_status wake_links(dt_ulysses_bench_rank *r) {
  cudaError_t error = cudaSuccess;
  for (int32_t p = 0; p < r->shared->config->ranks && error == cudaSuccess; p++) {
    const size_t bytes = dt_window_bytes(r->ulysses->output, p);
    if (p == r->rank) continue;
    error = cudaMemcpyAsync(r->watch.flush, r->ulysses->output->pieces[p], bytes < WAKE_BYTES ? bytes : WAKE_BYTES,
                            cudaMemcpyDefault, r->stream);
  }
  return dt_cuda_check(error, "links");
}

/* asleep: nothing goes over links, so ranks begin together but roughly. */
static dt_status time_run(dt_ulysses_bench_rank *r, int method, int asleep, double *seconds) {
  dt_status status = dt_comm_barrier(r->comm, "sample");
  if (!status && r->shared->in_blocks && !asleep) status = wake_links(r);
  if (!status) status = dt_bench_watch_start(&r->watch, !asleep);
  if (!status) status = dt_ulysses_bench_queue(r, method);
  return status ? status : dt_bench_watch_stop(&r->watch, seconds);
}

/* Once, each method in turn, from the last to the first if `backwards`: what a method leaves of heat and clock is then
 * not always the same one's to bear. */
static dt_status time_round(dt_ulysses_bench_rank *r, int backwards, double seconds[DT_ULYSSES_METHODS]) {
  dt_status status = DT_OK;
  for (int i = 0; i < DT_ULYSSES_METHODS && !status; i++) {
    const int m = backwards ? DT_ULYSSES_METHODS - 1 - i : i, serial = m == DT_ULYSSES_METHOD_SERIAL;
    if (!dt_ulysses_bench_times(r->shared->config, m)) continue;
    if (serial) status = dt_ulysses_bench_set_serial(r, 0, 1);
    if (!status) status = time_run(r, m, 0, &seconds[m]);
    if (!status && serial) status = dt_ulysses_bench_set_serial(r, 0, 0);
  }
  return status;
}

/* Samples first to end - 1 of a method of a long row. */
static dt_status time_block(dt_ulysses_bench_rank *r, int method, int asleep, int32_t first, int32_t end) {
  double *samples = asleep ? r->asleep : r->samples[method];
  const int serial = method == DT_ULYSSES_METHOD_SERIAL;
  dt_status status = serial ? dt_ulysses_bench_set_serial(r, 0, 1) : DT_OK;
  if (!status) status = dt_comm_barrier(r->comm, "heat");
  for (int32_t i = 0; i < r->shared->heats[method] && !status; i++) {
    if (!asleep) status = wake_links(r);
    if (!status) status = dt_ulysses_bench_queue(r, method);
  }
  for (int32_t s = first; s < end && !status; s++) status = time_run(r, method, asleep, &samples[s]);
  return status || !serial ? status : dt_ulysses_bench_set_serial(r, 0, 0);
}

static dt_status time_long(dt_ulysses_bench_rank *r) {
  const int64_t repeat = r->shared->repeat;
  dt_status status = DT_OK;
  for (int block = 0; block < BLOCKS; block++) {
    const int32_t first = (int32_t)(repeat * block / BLOCKS), end = (int32_t)(repeat * (block + 1) / BLOCKS);
    for (int i = 0; i < DT_ULYSSES_METHODS && !status; i++) {
      const int m = block % 2 ? DT_ULYSSES_METHODS - 1 - i : i;
      if (dt_ulysses_bench_times(r->shared->config, m)) status = time_block(r, m, 0, first, end);
    }
    if (!status && dt_ulysses_bench_times(r->shared->config, DT_ULYSSES_METHOD_KERNEL))
      status = time_block(r, DT_ULYSSES_METHOD_KERNEL, 1, first, end);
  }
  return status;
}

/* By a round that was measured, the same on every rank: whether the row is a long one, of how many untimed runs a block
 * of a method has, and how many samples there are. */
static dt_status choose_samples(dt_ulysses_bench_rank *r, const double seconds[DT_ULYSSES_METHODS]) {
  const dt_ulysses_bench_config *c = r->shared->config;
  double all[DT_BENCH_RANKS][DT_ULYSSES_METHODS], most[DT_ULYSSES_METHODS] = {0}, longest = 0;
  const dt_status status = dt_comm_allgather(r->comm, seconds, all, sizeof all[0]);
  if (status) return status;
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) {
    for (int32_t p = 0; p < c->ranks; p++) most[m] = fmax(most[m], all[p][m]);
    longest = fmax(longest, most[m]);
  }
  double heats_s = 0, round_s = 0, repeat = c->repeat;
  const int in_blocks = longest >= LONG_S;
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) {
    const int32_t heats = in_blocks && most[m] > 0 ? (int32_t)fmin(HEATS_MOST, ceil(HEAT_S / most[m])) : 0;
    const int times = m == DT_ULYSSES_METHOD_KERNEL && in_blocks ? 2 : 1; /* asleep as well */
    heats_s += times * BLOCKS * heats * most[m];
    round_s += times * most[m];
    if (r->rank == 0) r->shared->heats[m] = heats;
  }
  if (in_blocks) repeat = fmin(INT32_MAX, ceil(repeat * fmax(1, SAMPLE_S / longest)));
  if (c->seconds > 0 && heats_s + round_s * repeat > c->seconds)
    repeat = fmax(fmin(5, c->repeat), floor((c->seconds - heats_s) / round_s));
  if (r->rank == 0) r->shared->repeat = (int32_t)repeat, r->shared->in_blocks = in_blocks;
  return dt_comm_barrier(r->comm, "samples");
}

static dt_status make_samples(dt_ulysses_bench_rank *r) {
  const size_t repeat = (size_t)r->shared->repeat;
  r->asleep = calloc(repeat, sizeof *r->asleep);
  int made = r->asleep != NULL;
  for (int m = 0; m < DT_ULYSSES_METHODS; m++) {
    r->samples[m] = calloc(repeat, sizeof *r->samples[m]);
    made = made && r->samples[m];
  }
  return made ? DT_OK : dt_fail(DT_ERR_MEMORY, "samples: %zu", repeat);
}

dt_status dt_ulysses_bench_time(dt_ulysses_bench_rank *r) {
  double seconds[DT_ULYSSES_METHODS] = {0};
  dt_status status = DT_OK;
  for (int32_t round = -1; round < r->shared->config->warm_up && !status; round++) status = time_round(r, 0, seconds);
  if (!status) status = choose_samples(r, seconds);
  if (!status) status = make_samples(r);
  if (!status && r->shared->in_blocks) return time_long(r);
  for (int32_t round = 0; round < r->shared->repeat && !status; round++) {
    status = time_round(r, round % 2, seconds);
    for (int m = 0; m < DT_ULYSSES_METHODS; m++) r->samples[m][round] = seconds[m];
  }
  return status;
}
