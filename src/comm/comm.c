/* The public calls: arguments checked here, once for every fabric. */
#include <draintile/comm.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric.h"

void dt_comm_config_init(dt_comm_config *config) {
  *config = (dt_comm_config){.size = sizeof *config, .entry_timeout_s = 300.0, .timeout_s = 60.0};
}

static dt_status check_config(const dt_comm_config *config) {
  const struct {
    const char *name;
    double value;
  } fields[] = {{"link_bytes_per_s", config->link_bytes_per_s},
                {"link_capacity_bytes", config->link_capacity_bytes},
                {"link_latency_s", config->link_latency_s},
                {"entry_timeout_s", config->entry_timeout_s}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
    if (!isfinite(fields[i].value) || fields[i].value < 0.0) {
      return dt_fail(DT_ERR_ARGUMENT, "%s: %g; finite and >= 0", fields[i].name, fields[i].value);
    }
  }
  if (!isfinite(config->timeout_s) || config->timeout_s <= 0.0) {
    return dt_fail(DT_ERR_ARGUMENT, "timeout_s: %g; finite and > 0", config->timeout_s);
  }
  if (config->link_bytes_per_s > 0.0 && config->link_capacity_bytes <= 0.0) {
    return dt_fail(DT_ERR_ARGUMENT, "link_capacity_bytes: 0; > 0 when link_bytes_per_s is");
  }
  return DT_OK;
}

dt_status dt_comm_new(const dt_fabric *fabric, int32_t rank, int32_t ranks, const dt_comm_config *config,
                      dt_comm **comm) {
  if (ranks < 1 || ranks > DT_MAX_RANKS) {
    return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 1 to %d", ranks, DT_MAX_RANKS);
  }
  if (rank < 0 || rank >= ranks) return dt_fail(DT_ERR_ARGUMENT, "rank: %d; 0 to %d", rank, ranks - 1);
  dt_comm_config filled;
  dt_comm_config_init(&filled);
  if (config) {
    if (config->size != sizeof *config) {
      return dt_fail(DT_ERR_ARGUMENT, "config.size: %zu; %zu, set by dt_comm_config_init", config->size, sizeof filled);
    }
    filled = *config;
  }
  dt_status status = check_config(&filled);
  if (status) return status;
  dt_comm *made = calloc(1, sizeof *made);
  if (!made) return dt_fail(DT_ERR_MEMORY, "endpoint: %zu bytes", sizeof *made);
  made->fabric = fabric;
  made->rank = rank;
  made->ranks = ranks;
  made->config = filled;
  *comm = made;
  return DT_OK;
}

void dt_comm_destroy(dt_comm *comm) {
  if (!comm) return;
  while (comm->windows) dt_comm_free(comm, comm->windows);
  comm->fabric->destroy(comm);
  free(comm);
}

int32_t dt_comm_rank(const dt_comm *comm) {
  return comm->rank;
}

int32_t dt_comm_ranks(const dt_comm *comm) {
  return comm->ranks;
}

const char *dt_comm_fabric(const dt_comm *comm) {
  return comm->fabric->name;
}

dt_status dt_comm_alloc(dt_comm *comm, size_t bytes, dt_window **window) {
  dt_window *made = calloc(1, sizeof *made);
  if (!made) {
    dt_comm_abort(comm, DT_ERR_MEMORY, "no memory for a window");
    return dt_fail(DT_ERR_MEMORY, "window: %zu bytes", sizeof *made);
  }
  made->comm = comm;
  made->bytes[comm->rank] = bytes;
  dt_status status = comm->fabric->alloc(comm, made);
  if (status) {
    free(made);
    return status;
  }
  made->next = comm->windows;
  comm->windows = made;
  *window = made;
  return DT_OK;
}

void dt_comm_free(dt_comm *comm, dt_window *window) {
  if (!window) return;
  dt_window **link = &comm->windows;
  while (*link && *link != window) link = &(*link)->next;
  if (!*link) return; /* not of this endpoint */
  *link = window->next;
  if (comm->gather_window == window) comm->gather_window = NULL;
  comm->fabric->free(comm, window);
  free(window);
}

void *dt_window_local(dt_window *window) {
  return window->pieces[window->comm->rank];
}

size_t dt_window_bytes(const dt_window *window, int32_t rank) {
  return rank >= 0 && rank < window->comm->ranks ? window->bytes[rank] : 0;
}

static dt_status check_peer(const dt_comm *comm, int32_t peer) {
  if (peer >= 0 && peer < comm->ranks) return DT_OK;
  return dt_fail(DT_ERR_ARGUMENT, "peer: %d; 0 to %d", peer, comm->ranks - 1);
}

static dt_status check_put(const dt_comm *comm, const dt_put *put) {
  dt_status status = check_peer(comm, put->peer);
  if (status) return status;
  if (put->rows < 0) return dt_fail(DT_ERR_ARGUMENT, "rows: %lld; >= 0", (long long)put->rows);
  if (put->rows == 0 || put->row_bytes == 0) return DT_OK;
  if (put->rows > 1 && put->dst_stride < put->row_bytes) {
    return dt_fail(DT_ERR_ARGUMENT, "dst_stride: %zu; >= row_bytes %zu", put->dst_stride, put->row_bytes);
  }
  if (!(put->backlog_limit_bytes >= 0.0) || !isfinite(put->backlog_limit_bytes)) {
    return dt_fail(DT_ERR_ARGUMENT, "backlog_limit_bytes: %g; finite and >= 0", put->backlog_limit_bytes);
  }
  size_t bytes = put->window->bytes[put->peer], last = 0;
  if (__builtin_mul_overflow((size_t)(put->rows - 1), put->dst_stride, &last) || put->offset > bytes ||
      last > bytes - put->offset || put->row_bytes > bytes - put->offset - last) {
    return dt_fail(DT_ERR_ARGUMENT,
                   "put of %lld rows of %zu bytes, stride %zu, at offset %zu: past the %zu bytes of rank %d's piece",
                   (long long)put->rows, put->row_bytes, put->dst_stride, put->offset, bytes, put->peer);
  }
  return DT_OK;
}

dt_status dt_comm_put(dt_comm *comm, const dt_put *put, uint64_t *visible_ns) {
  dt_status status = check_put(comm, put);
  if (status) return status;
  uint64_t visible = 0;
  if (put->rows > 0 && put->row_bytes > 0) {
    status = comm->fabric->put(comm, put, &visible);
    if (status) return status;
    if (put->peer != comm->rank) {
      __atomic_fetch_add(&comm->sent[put->peer], (uint64_t)put->rows * put->row_bytes, __ATOMIC_RELAXED);
    }
  }
  if (visible_ns) *visible_ns = visible;
  return DT_OK;
}

static dt_status check_counter(const dt_window *window, int32_t rank, size_t offset) {
  size_t bytes = window->bytes[rank];
  if (offset % sizeof(dt_counter) == 0 && bytes >= sizeof(dt_counter) && offset <= bytes - sizeof(dt_counter)) {
    return DT_OK;
  }
  return dt_fail(DT_ERR_ARGUMENT, "offset: %zu; a multiple of %zu within the %zu bytes of rank %d's piece", offset,
                 sizeof(dt_counter), bytes, rank);
}

dt_status dt_comm_signal(dt_comm *comm, dt_window *window, int32_t peer, size_t offset, uint32_t value,
                         uint64_t visible_ns) {
  dt_status status = check_peer(comm, peer);
  if (!status) status = check_counter(window, peer, offset);
  return status ? status : comm->fabric->signal(comm, window, peer, offset, value, visible_ns);
}

dt_status dt_comm_wait(dt_comm *comm, dt_window *window, size_t offset, uint32_t target, const dt_wait *wait) {
  static const dt_wait unnamed = {.phase = "unnamed", .counter = "counter", .index = -1, .peer = -1};
  dt_status status = check_counter(window, comm->rank, offset);
  return status ? status : comm->fabric->wait(comm, window, offset, target, wait ? wait : &unnamed);
}

dt_status dt_comm_barrier(dt_comm *comm, const char *phase) {
  return comm->fabric->barrier(comm, phase ? phase : "barrier");
}

void dt_comm_abort(dt_comm *comm, dt_status status, const char *detail) {
  comm->fabric->abort(comm, status, detail ? detail : "");
}

dt_status dt_comm_status(dt_comm *comm) {
  return comm->fabric->status(comm);
}

void dt_comm_bytes_sent(const dt_comm *comm, uint64_t *sent) {
  for (int32_t p = 0; p < comm->ranks; p++) sent[p] = __atomic_load_n(&comm->sent[p], __ATOMIC_RELAXED);
}
