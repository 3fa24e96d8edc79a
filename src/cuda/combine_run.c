/* Queues a combine: the GEMM of a mode, and what goes before, beside and after it. */
#include <draintile/combine.h>

#include <string.h>

#include "combine_handle.h"
#include "core/error.h"
#include "driver.h"
#include "gemm_prepare.h"
#include "spans_combine.h"

dt_cuda_gemm dt_combine_gemm(const dt_combine *c, int sms) {
  dt_cuda_gemm gemm;
  dt_cuda_gemm_init(&gemm);
  gemm.counts = c->params.tables.active;
  gemm.remote_rows = c->params.tables.remote_rows;
  gemm.order = c->config.order;
  gemm.experts = c->config.experts_per_rank;
  gemm.rows_max = c->config.rows_max;
  gemm.n = c->config.n;
  gemm.k = c->config.k;
  gemm.sms = sms;
  gemm.dtype = c->config.dtype;
  gemm.timeout_s = 1e-6 * c->params.timeout_us;
  gemm.out = c->staging;
  return gemm;
}

/* Rows of this rank's experts to their places; direct: also those of others. */
static dt_cuda_gemm describe(const dt_combine *c, dt_combine_mode mode, const void *a, const void *b) {
  const int signal = mode == DT_COMBINE_SIGNAL;
  dt_cuda_gemm gemm = dt_combine_gemm(c, signal ? c->sms - c->config.consumers : c->sms);
  gemm.a = a;
  gemm.b = b;
  if (mode == DT_COMBINE_DIRECT) {
    gemm.row_target = c->params.tables.direct;
    gemm.owners = c->params.ranks;
    gemm.link_k = DT_COMBINE_LINK_K;
    for (int32_t r = 0; r < c->params.ranks; r++) {
      gemm.owner_out[r] = c->params.buffers[r];
      gemm.owner_rows[r] = c->params.buffer_rows[r];
    }
    if (c->config.order == DT_ORDER_NATURAL && c->config.pacing != DT_COMBINE_PACING_OFF) {
      gemm.order = DT_ORDER_PACED;
      gemm.paced_units = c->config.pacing == DT_COMBINE_PACING_AUTO ? DT_COMBINE_PACED_UNITS : 0;
    }
  } else {
    gemm.row_target = c->params.tables.staged;
    gemm.owners = 2;
    gemm.owner_out[DT_COMBINE_OWN] = c->params.buffers[c->params.rank];
    gemm.owner_rows[DT_COMBINE_OWN] = c->config.combine_rows_max;
    gemm.owner_out[DT_COMBINE_STAGING] = c->staging;
    gemm.owner_rows[DT_COMBINE_STAGING] = c->config.rows_max;
  }
  if (signal) {
    gemm.ready = c->params.ready;
    gemm.raster_bands = dt_combine_raster(&c->config);
  }
  return gemm;
}

/* direct with the host's counts: nothing need be done before the tiles' launch, which opens the epoch, too. */
static int opens_itself(const dt_combine *c, dt_combine_mode mode) {
  return mode == DT_COMBINE_DIRECT && !c->params.meets;
}
/* direct: whether the tiles' launch closes the epoch; else a kernel of its own does. */
static int closes_itself(const dt_combine *c) {
  return c->config.entry == DT_COMBINE_ENTRY_BESIDE || c->recorder;
}

/* direct with a kept table: the tiles alone. */
static dt_status queue_alone(dt_combine *c, const dt_cuda_gemm *gemm, cudaStream_t stream) {
  dt_tile_split params;
  dt_tile_combine *p = &params.combine;
  int ctas;
  memset(&params, 0, sizeof params);
  dt_status status = c->split ? dt_gemm_describe_split(gemm, c->kept, &params, &ctas)
                              : dt_gemm_describe(gemm, c->kept, &p->gemm, &ctas);
  if (status) return status;
  p->combine = c->params;
  p->combine.opens = 1;
  p->combine.gemm_error = &((const dt_tile_header *)c->kept)->error;
  p->tile_ctas = ctas;
  p->gated = p->closes = p->keeps = 1;
  return dt_cuda_check(c->split ? dt_tile_split_launch(&params, stream) : dt_tile_combine_launch(p, 0, stream),
                       "tile kernel");
}

/* The launch that has the combine's roles: rows that wait for the peers' entry, or consumers beside the tiles. */
static dt_status queue_roles(dt_combine *c, const dt_cuda_gemm *gemm, int consumers, cudaStream_t stream) {
  if (consumers == 0 && opens_itself(c, DT_COMBINE_DIRECT)) return queue_alone(c, gemm, stream);
  dt_tile_combine params = {
      .combine = c->params, .gated = consumers == 0 && !c->params.meets, .closes = consumers == 0};
  int ctas;
  dt_status status = dt_gemm_prepare(gemm, c->workspace, stream, &params.gemm, &ctas);
  params.tile_ctas = ctas;
  return status ? status : dt_cuda_check(dt_tile_combine_launch(&params, consumers, stream), "tile kernel");
}

/* The tiles with stamps. */
static dt_status queue_stamped(dt_combine *c, const dt_cuda_gemm *gemm, cudaStream_t stream) {
  dt_stamped_combine params = {.combine = {.combine = c->params, .gated = !c->params.meets, .closes = 1},
                               .stamps = c->recorder->stamps};
  params.combine.combine.opens = opens_itself(c, DT_COMBINE_DIRECT);
  dt_status status = dt_gemm_prepare(gemm, c->workspace, stream, &params.combine.gemm, &params.combine.tile_ctas);
  return status ? status : dt_cuda_check(dt_stamped_combine_launch(&params, stream), "tile kernel");
}

/* Consumers in a kernel of their own, on a stream of higher priority. */
static dt_status run_two(dt_combine *c, const dt_cuda_gemm *gemm, cudaStream_t stream) {
  dt_status status = dt_cuda_check(cudaEventRecord(c->entered, stream), "event");
  if (!status) status = dt_cuda_check(cudaStreamWaitEvent(c->side, c->entered, 0), "event");
  if (!status) status = dt_cuda_check(dt_combine_send_launch(&c->params, c->config.consumers, 1, c->side), "consumers");
  if (!status) status = dt_cuda_check(cudaEventRecord(c->sent, c->side), "event");
  if (!status) status = dt_cuda_grouped_gemm(gemm, c->workspace, stream);
  return status ? status : dt_cuda_check(cudaStreamWaitEvent(stream, c->sent, 0), "event");
}

dt_status dt_combine_run(dt_combine *c, dt_combine_mode mode, const void *a, const void *b, void *stream) {
  if (!c->has_counts) return dt_fail(DT_ERR_ARGUMENT, "counts: not set; dt_combine_set_counts comes first");
  if (mode < DT_COMBINE_BULK || mode > DT_COMBINE_DIRECT)
    return dt_fail(DT_ERR_ARGUMENT, "mode: %d; bulk, signal or direct allowed", (int)mode);
  dt_status status = dt_cuda_check(cudaSetDevice(c->device), "cudaSetDevice");
  if (!status && !opens_itself(c, mode)) status = dt_cuda_check(dt_combine_enter_launch(&c->params, stream), "entry");
  if (!status && c->params.own_counts) status = dt_combine_queue_plan(c, mode, stream);
  if (status) return status;
  const dt_cuda_gemm gemm = describe(c, mode, a, b);
  if (mode == DT_COMBINE_SIGNAL)
    return c->config.launch == DT_COMBINE_LAUNCH_TWO ? run_two(c, &gemm, stream)
                                                     : queue_roles(c, &gemm, c->config.consumers, stream);
  if (mode == DT_COMBINE_DIRECT && c->recorder) return queue_stamped(c, &gemm, stream);
  if (mode == DT_COMBINE_DIRECT && closes_itself(c)) return queue_roles(c, &gemm, 0, stream);
  status = dt_cuda_grouped_gemm(&gemm, c->workspace, stream);
  if (status) return status;
  if (mode == DT_COMBINE_DIRECT) return dt_cuda_check(dt_combine_leave_launch(&c->params, stream), "exit");
  return dt_cuda_check(dt_combine_send_launch(&c->params, c->sms / 2 * 2, 0, stream), "put");
}

/* Tasks are turned where an expert's rows have at most two owners, in bands that nobody waits for; not where ranks
 * share the device: the first launch of the kernel for it might wait for a peer's. */
dt_status dt_combine_keep_table(dt_combine *c, const dt_combine_tables *tables) {
  const dt_cuda_gemm gemm = describe(c, DT_COMBINE_DIRECT, NULL, NULL);
  c->split = c->params.ranks <= 2 && c->config.sms == 0 && c->config.layout == DT_LAYOUT_PACKED &&
             c->config.order == DT_ORDER_NATURAL && c->config.pacing != DT_COMBINE_PACING_ON &&
             dt_gemm_may_split(&gemm, tables->expert_rows);
  const dt_status status = dt_gemm_table(&gemm, c->split, c->kept, NULL);
  return status ? status : dt_cuda_check(dt_cuda_settle(), "task table");
}

dt_status dt_combine_run_gemm(dt_combine *c, int reserve, const void *a, const void *b, void *stream) {
  if (!c->has_counts) return dt_fail(DT_ERR_ARGUMENT, "counts: not set; dt_combine_set_counts comes first");
  dt_cuda_gemm gemm = dt_combine_gemm(c, reserve ? c->sms - c->config.consumers : c->sms);
  gemm.rows_max = c->rows; /* what it turns depends on it */
  if (reserve) gemm.raster_bands = dt_combine_raster(&c->config);
  gemm.a = a;
  gemm.b = b;
  return dt_cuda_grouped_gemm(&gemm, c->workspace, stream);
}

dt_status dt_combine_run_counts(dt_combine *c, int plan, cudaStream_t stream) {
  if (!c->params.own_counts) return dt_fail(DT_ERR_ARGUMENT, "counts: dt_combine_follow_counts comes first");
  dt_status status = dt_cuda_check(dt_combine_enter_launch(&c->params, stream), "entry");
  if (!status && plan) status = dt_combine_queue_plan(c, DT_COMBINE_DIRECT, stream);
  return status ? status : dt_cuda_check(dt_combine_leave_launch(&c->params, stream), "exit");
}
