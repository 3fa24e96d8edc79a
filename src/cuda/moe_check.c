/* The MoE layer: what the device says of the forwards that are through. */
#include "core/error.h"
#include "driver.h"
#include "moe_handle.h"

dt_status dt_cuda_moe_read_state(dt_cuda_moe *m, cudaStream_t stream, dt_layer_state *state) {
  cudaError_t error = cudaMemcpyAsync(m->seen, m->plan.state, sizeof *state, cudaMemcpyDeviceToHost, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  *state = *m->seen;
  return dt_cuda_check(error, "MoE layer");
}

dt_status dt_cuda_moe_check(dt_cuda_moe *m, void *stream) {
  static const char *const pipe[] = {
      [DT_TILE_ERROR_FULL] = "operands",        [DT_TILE_ERROR_EMPTY] = "a free stage",
      [DT_TILE_ERROR_TICKET] = "a ticket",      [DT_TILE_ERROR_SLOT] = "a free ticket slot",
      [DT_TILE_ERROR_DONE] = "a tile's stores", [DT_TILE_ERROR_COPY] = "a row to dispatch"};
  dt_layer_state s;
  dt_status status = dt_cuda_moe_read_state(m, stream, &s);
  if (status) return status;
  const int32_t rank = m->plan.rank;
  switch (s.error) {
  case DT_LAYER_OK:
    return DT_OK;
  case DT_LAYER_ERROR_INPUT:
    return dt_fail(DT_ERR_INPUT, "rank %d, epoch %u: an id outside -1 to %d", rank, s.epoch, m->plan.slot.experts - 1);
  case DT_LAYER_ERROR_CAPACITY:
    return dt_fail(DT_ERR_CAPACITY, "rank %d, epoch %u: %u rows for the experts of rank %d; max_rows is %u", rank,
                   s.epoch, s.seen, s.index, s.expected);
  case DT_LAYER_ERROR_COUNTS:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, counts of rank %d: epoch %u expected, %u seen", rank, s.index, s.expected,
                   s.seen);
  case DT_LAYER_ERROR_ARRIVAL:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, rows of band %d: %u expected, %u seen", rank, s.epoch, s.index,
                   s.expected, s.seen);
  case DT_LAYER_ERROR_ACT:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, L2: L1 of band %d: %u expected, %u seen", rank, s.epoch, s.index,
                   s.expected, s.seen);
  case DT_LAYER_ERROR_SENT:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, reduction: rows of rank %d: epoch %u expected, %u seen", rank, s.index,
                   s.expected, s.seen);
  case DT_LAYER_ERROR_PLAN:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, tiles: the table did not come", rank, s.epoch);
  case DT_LAYER_ERROR_STORED:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, put: L2 of band %d: %u expected, %u seen", rank, s.epoch,
                   s.index, s.expected, s.seen);
  case DT_LAYER_ERROR_COPY:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u: a copy of consumer %d did not end", rank, s.epoch, s.index);
  case DT_LAYER_ERROR_PEER:
    return dt_fail(DT_ERR_PEER, "rank %d, epoch %u: rank %d gave up", rank, s.epoch, s.index);
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_FULL:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_EMPTY:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_TICKET:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_SLOT:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_DONE:
  case DT_LAYER_ERROR_PIPE + DT_TILE_ERROR_COPY:
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, epoch %u, tiles: a wait for %s expired (%u of %u tasks drawn)", rank,
                   s.epoch, pipe[s.error - DT_LAYER_ERROR_PIPE], s.next_task, s.tasks);
  default:
    return dt_fail(DT_ERR_INTERNAL, "rank %d, epoch %u: error %u", rank, s.epoch, s.error);
  }
}

dt_status dt_cuda_moe_stats_read(dt_cuda_moe *m, void *stream, dt_cuda_moe_stats *stats) {
  dt_layer_state s;
  dt_status status = dt_cuda_moe_read_state(m, stream, &s);
  if (status) return status;
  const uint64_t row_bytes = 2 * (uint64_t)m->config.hidden;
  *stats = (dt_cuda_moe_stats){.rows = s.rows,
                               .sent_rows = s.sent_rows,
                               .received_rows = s.received_rows,
                               .tasks = s.tasks,
                               .sms = m->sms,
                               .send_sms = m->config.dedup ? dt_cuda_moe_send_sms(m) : 0,
                               .consumers = m->consumers,
                               .dispatch_bytes = (uint64_t)s.dispatch_rows * row_bytes,
                               .combine_bytes = (uint64_t)s.sent_rows * row_bytes};
  return DT_OK;
}
