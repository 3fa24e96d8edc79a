/* Fabric `local`: ranks are threads of one process. Pieces belong to the whole group and are unmapped when every rank
 * has freed the window, so a rank that gave up cannot take memory from under a store of a rank that has not noticed.
 */
#include <pthread.h>
#include <sys/mman.h>

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "host.h"

typedef struct local_piece {
  struct local_piece *next;
  void *memory;
  size_t bytes;
  int32_t references;
} local_piece;

typedef struct local_window {
  local_piece *pieces[DT_MAX_RANKS];
} local_window;

/* Shared by the endpoints; the last to be destroyed frees it. */
typedef struct local_group {
  pthread_mutex_t lock; /* guards pieces, references */
  int32_t references;
  local_piece *pieces;
  local_piece *slots[DT_MAX_RANKS]; /* each rank's piece during an alloc, between two barriers */
  dt_control *controls;             /* [ranks], mapped */
  size_t control_bytes;
} local_group;

typedef struct local_state {
  dt_host host; /* first: dt_host_of */
  local_group *group;
} local_state;

static local_group *group_of(const dt_comm *comm) {
  return ((local_state *)comm->state)->group;
}

static size_t mapped_bytes(size_t bytes) {
  return bytes ? bytes : 1;
}

static void *map_zeroed(size_t bytes) {
  void *memory =
      mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static local_piece *make_piece(local_group *group, size_t bytes, int32_t ranks) {
  local_piece *piece = calloc(1, sizeof *piece);
  if (!piece) return NULL;
  piece->memory = map_zeroed(bytes);
  if (!piece->memory) {
    free(piece);
    return NULL;
  }
  piece->bytes = bytes;
  piece->references = ranks;
  pthread_mutex_lock(&group->lock);
  piece->next = group->pieces;
  group->pieces = piece;
  pthread_mutex_unlock(&group->lock);
  return piece;
}

/* Under the lock. */
static void unlink_piece(local_group *group, local_piece *piece) {
  local_piece **link = &group->pieces;
  while (*link != piece) link = &(*link)->next;
  *link = piece->next;
  munmap(piece->memory, mapped_bytes(piece->bytes));
  free(piece);
}

static void release_pieces(local_group *group, local_piece **pieces, int32_t ranks) {
  pthread_mutex_lock(&group->lock);
  for (int32_t p = 0; p < ranks; p++) {
    if (pieces[p] && --pieces[p]->references == 0) unlink_piece(group, pieces[p]);
  }
  pthread_mutex_unlock(&group->lock);
}

/* When a barrier fails the group is aborted: what it leaves is unmapped with the group. */
static dt_status local_alloc(dt_comm *comm, dt_window *window) {
  local_group *group = group_of(comm);
  local_window *local = calloc(1, sizeof *local);
  if (!local) {
    dt_comm_abort(comm, DT_ERR_MEMORY, "no memory for a window");
    return dt_fail(DT_ERR_MEMORY, "window of %d pieces", comm->ranks);
  }
  group->slots[comm->rank] = make_piece(group, window->bytes[comm->rank], comm->ranks);
  dt_status status = dt_host_barrier(comm, "alloc");
  int32_t failed = -1;
  for (int32_t p = 0; p < comm->ranks && !status; p++) {
    local_piece *piece = local->pieces[p] = group->slots[p];
    if (!piece) {
      failed = p;
      continue;
    }
    window->pieces[p] = piece->memory;
    window->bytes[p] = piece->bytes;
  }
  if (!status) status = dt_host_barrier(comm, "alloc");
  if (!status && failed >= 0) {
    release_pieces(group, local->pieces, comm->ranks);
    status = dt_fail(DT_ERR_MEMORY, "window: rank %d has no memory for its piece", failed);
  }
  if (status) {
    free(local);
    return status;
  }
  window->state = local;
  return DT_OK;
}

static void local_free(dt_comm *comm, dt_window *window) {
  local_window *local = window->state;
  release_pieces(group_of(comm), local->pieces, comm->ranks);
  free(local);
}

static void release_group(local_group *group) {
  pthread_mutex_lock(&group->lock);
  int last = --group->references == 0;
  pthread_mutex_unlock(&group->lock);
  if (!last) return;
  while (group->pieces) unlink_piece(group, group->pieces);
  munmap(group->controls, group->control_bytes);
  pthread_mutex_destroy(&group->lock);
  free(group);
}

static void local_destroy(dt_comm *comm) {
  local_state *state = comm->state;
  __atomic_store_n(&state->host.controls[comm->rank]->left, 1, __ATOMIC_RELEASE);
  release_group(state->group);
  free(state);
}

static const dt_fabric local_fabric = {
    .api_version = DT_FABRIC_API,
    .name = "local",
    .alloc = local_alloc,
    .free = local_free,
    .put = dt_host_put,
    .signal = dt_host_signal,
    .wait = dt_host_wait,
    .barrier = dt_host_barrier,
    .abort = dt_host_abort,
    .status = dt_host_status,
    .destroy = local_destroy,
};

static local_group *make_group(int32_t ranks) {
  local_group *group = calloc(1, sizeof *group);
  if (!group) return NULL;
  group->control_bytes = (size_t)ranks * sizeof(dt_control);
  group->controls = map_zeroed(group->control_bytes);
  if (!group->controls) {
    free(group);
    return NULL;
  }
  pthread_mutex_init(&group->lock, NULL);
  return group;
}

static dt_status make_endpoint(local_group *group, int32_t rank, int32_t ranks, const dt_comm_config *config,
                               dt_comm **endpoint) {
  dt_comm *comm = NULL;
  dt_status status = dt_comm_new(&local_fabric, rank, ranks, config, &comm);
  if (status) return status;
  local_state *state = calloc(1, sizeof *state);
  if (!state) {
    free(comm);
    return dt_fail(DT_ERR_MEMORY, "endpoint: %zu bytes", sizeof *state);
  }
  dt_host_init(comm, &state->host);
  for (int32_t p = 0; p < ranks; p++) state->host.controls[p] = &group->controls[p];
  state->group = group;
  group->references++;
  *endpoint = comm;
  return DT_OK;
}

dt_status dt_comm_create_local(int32_t ranks, const dt_comm_config *config, dt_comm **endpoints) {
  if (ranks < 1 || ranks > DT_MAX_RANKS) return dt_fail(DT_ERR_ARGUMENT, "ranks: %d; 1 to %d", ranks, DT_MAX_RANKS);
  local_group *group = make_group(ranks);
  if (!group) return dt_fail(DT_ERR_MEMORY, "%d ranks", ranks);
  group->references = 1; /* this function's, so that a failure half-way does not free it early */
  dt_comm *made[DT_MAX_RANKS] = {NULL};
  dt_status status = DT_OK;
  for (int32_t p = 0; p < ranks && !status; p++) status = make_endpoint(group, p, ranks, config, &made[p]);
  for (int32_t p = 0; p < ranks; p++) {
    if (status)
      dt_comm_destroy(made[p]);
    else
      endpoints[p] = made[p];
  }
  release_group(group);
  return status;
}
