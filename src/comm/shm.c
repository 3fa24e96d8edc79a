/* Fabric `shm`: ranks are processes of one machine. Memory is memfd, passed by descriptor; every rank maps every piece
 * for itself, so nobody can unmap under another's feet, and nothing outlives the processes.
 */
#include "shm.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "process.h"

enum { HELLO_MAGIC = 0x64747368, CONFIG_FIELDS = 5 };

/* What ranks tell each other through the caller's all-gather. */
typedef struct hello {
  uint32_t magic, control_bytes; /* the same build's layout */
  int32_t status;                /* the sender's failure before it got here */
  int32_t rank, ranks;
  int32_t pid;
  uint64_t start; /* with the pid: the process for good */
  double config[CONFIG_FIELDS];
  shm_address address;
} hello;

static size_t mapped_bytes(size_t bytes) {
  return bytes ? bytes : 1;
}

/* Sealed: a piece that shrank would kill its readers. Pages appear when they are touched. */
static dt_status make_memory(size_t bytes, int *fd) {
  int made = memfd_create("draintile", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made < 0) return dt_fail(DT_ERR_SYSTEM, "memfd_create: %s", strerror(errno));
  if (ftruncate(made, (off_t)mapped_bytes(bytes)) || fcntl(made, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)) {
    dt_status status = dt_fail(DT_ERR_MEMORY, "window of %zu bytes: %s", bytes, strerror(errno));
    close(made);
    return status;
  }
  *fd = made;
  return DT_OK;
}

static dt_status map_memory(int fd, size_t bytes, void **memory) {
  struct stat file;
  if (fstat(fd, &file) || (size_t)file.st_size < mapped_bytes(bytes)) {
    return dt_fail(DT_ERR_SYSTEM, "a peer's memory is smaller than its %zu bytes", bytes);
  }
  void *mapped = mmap(NULL, mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) return dt_fail(DT_ERR_MEMORY, "mapping %zu bytes: %s", bytes, strerror(errno));
  *memory = mapped;
  return DT_OK;
}

static void unmap_all(void **memory, const size_t *bytes, int32_t ranks) {
  for (int32_t p = 0; p < ranks; p++) {
    if (memory[p]) munmap(memory[p], mapped_bytes(bytes[p]));
    memory[p] = NULL;
  }
}

/* Passes fd (taken; -1 with status) to all and maps what comes back. memory[rank] is mapped already when not NULL. */
static dt_status share_memory(dt_comm *comm, int fd, dt_status status, size_t *bytes, void **memory) {
  int fds[DT_MAX_RANKS];
  status = dt_shm_exchange_fd(comm, fd, status, bytes[comm->rank], fds, bytes);
  for (int32_t p = 0; p < comm->ranks && !status; p++) {
    if (!memory[p]) status = map_memory(p == comm->rank ? fd : fds[p], bytes[p], &memory[p]);
  }
  if (fd >= 0) close(fd);
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (fds[p] >= 0) close(fds[p]);
  }
  return status;
}

/* A failure here ends the group: the peers could not tell how far this rank came. */
static dt_status shm_alloc(dt_comm *comm, dt_window *window) {
  int fd = -1;
  void *memory[DT_MAX_RANKS] = {NULL};
  dt_status status = make_memory(window->bytes[comm->rank], &fd);
  status = share_memory(comm, fd, status, window->bytes, memory);
  if (status) dt_host_abort(comm, status, dt_error_detail());
  if (!status) status = dt_host_barrier(comm, "alloc"); /* all have mapped, and nobody is two exchanges ahead */
  if (status) {
    unmap_all(memory, window->bytes, comm->ranks);
    return status;
  }
  for (int32_t p = 0; p < comm->ranks; p++) window->pieces[p] = memory[p];
  return DT_OK;
}

static void shm_free(dt_comm *comm, dt_window *window) {
  for (int32_t p = 0; p < comm->ranks; p++) munmap(window->pieces[p], mapped_bytes(window->bytes[p]));
}

static void shm_destroy(dt_comm *comm) {
  shm_state *state = comm->state;
  dt_control *own = state->host.controls[comm->rank];
  if (own) __atomic_store_n(&own->left, 1, __ATOMIC_RELEASE);
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (state->host.controls[p]) munmap(state->host.controls[p], sizeof(dt_control));
    if (state->host.pidfds[p] >= 0) close(state->host.pidfds[p]);
  }
  if (state->socket >= 0) close(state->socket);
  free(state);
}

static const dt_fabric shm_fabric = {
    .api_version = DT_FABRIC_API,
    .name = "shm",
    .alloc = shm_alloc,
    .free = shm_free,
    .put = dt_host_put,
    .signal = dt_host_signal,
    .wait = dt_host_wait,
    .barrier = dt_host_barrier,
    .abort = dt_host_abort,
    .status = dt_host_status,
    .destroy = shm_destroy,
};

static const char *const config_names[CONFIG_FIELDS] = {"link_bytes_per_s", "link_capacity_bytes", "link_latency_s",
                                                        "entry_timeout_s", "timeout_s"};

static void fill_hello(const dt_comm *comm, dt_status status, hello *own) {
  const shm_state *state = comm->state;
  const dt_comm_config *config = &comm->config;
  *own = (hello){.magic = HELLO_MAGIC,
                 .control_bytes = sizeof(dt_control),
                 .status = (int32_t)status,
                 .rank = comm->rank,
                 .ranks = comm->ranks,
                 .pid = getpid(),
                 .config = {config->link_bytes_per_s, config->link_capacity_bytes, config->link_latency_s,
                            config->entry_timeout_s, config->timeout_s},
                 .address = state->addresses[comm->rank]};
  dt_process_state(own->pid, &own->start);
}

/* The same on every rank, since all see the same hellos. */
static dt_status check_hellos(const hello *hellos, int32_t ranks) {
  for (int32_t p = 0; p < ranks; p++) {
    const hello *other = &hellos[p];
    if (other->magic != HELLO_MAGIC || other->control_bytes != hellos[0].control_bytes) {
      return dt_fail(DT_ERR_MISMATCH, "rank %d: another version of the library, or all-gather returned other bytes", p);
    }
    if (other->rank != p) return dt_fail(DT_ERR_ARGUMENT, "all-gather: rank %d in place %d", other->rank, p);
    if (other->ranks != ranks) return dt_fail(DT_ERR_MISMATCH, "ranks: %d on rank %d, %d here", other->ranks, p, ranks);
    if (other->status) {
      return dt_fail(DT_ERR_PEER, "rank %d could not start: %s", p, dt_status_text((dt_status)other->status));
    }
    for (int i = 0; i < CONFIG_FIELDS; i++) {
      if (other->config[i] != hellos[0].config[i]) {
        return dt_fail(DT_ERR_MISMATCH, "%s: %.17g on rank 0, %.17g on rank %d; the same on every rank",
                       config_names[i], hellos[0].config[i], other->config[i], p);
      }
    }
  }
  return DT_OK;
}

/* Names all that died: one that gave up because another died may be gone by now too. */
static dt_status open_peers(dt_comm *comm, const hello *hellos) {
  shm_state *state = comm->state;
  char dead[256] = "";
  size_t used = 0;
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (p == comm->rank) continue;
    uint64_t start = 0;
    state->addresses[p] = hellos[p].address;
    state->host.pids[p] = hellos[p].pid;
    state->host.pidfds[p] = dt_process_open(hellos[p].pid);
    if (state->host.pidfds[p] < 0 && errno != ESRCH) {
      return dt_fail(DT_ERR_SYSTEM, "pidfd_open of rank %d: %s", p, strerror(errno));
    }
    errno = 0;
    int lives = state->host.pidfds[p] >= 0 && !dt_process_died(state->host.pidfds[p]) &&
                dt_process_state(hellos[p].pid, &start) && start == hellos[p].start;
    if (!lives && (errno == EMFILE || errno == ENFILE)) {
      return dt_fail(DT_ERR_SYSTEM, "file descriptors: none is left to look at rank %d; raise the limit (ulimit -n)",
                     p);
    }
    if (lives || used + 1 >= sizeof dead) continue;
    int wrote = snprintf(dead + used, sizeof dead - used, "%srank %d", used ? ", " : "", p);
    used += wrote > 0 ? (size_t)wrote : 0;
  }
  if (used == 0) return DT_OK;
  return dt_fail(DT_ERR_PEER, "died during create, or in another pid namespace: %s", dead);
}

/* Own control block and socket: all that can fail before the peers are known. */
static dt_status prepare(dt_comm *comm, int *fd) {
  shm_state *state = comm->state;
  void *memory = NULL;
  dt_status status = dt_shm_open_socket(state, comm->rank);
  if (!status) status = make_memory(sizeof(dt_control), fd);
  if (!status) status = map_memory(*fd, sizeof(dt_control), &memory);
  state->host.controls[comm->rank] = memory;
  return status;
}

static dt_status meet(dt_comm *comm, dt_allgather_fn allgather, void *context, dt_status status, hello *hellos) {
  hello own;
  fill_hello(comm, status, &own);
  char detail[256];
  strncpy(detail, status ? dt_error_detail() : "", sizeof detail - 1);
  detail[sizeof detail - 1] = '\0';
  int failed = allgather(context, &own, hellos, sizeof own);
  if (status) return dt_fail(status, "%s", detail);
  if (failed) return dt_fail(DT_ERR_SYSTEM, "all-gather callback: returned %d; 0 is success", failed);
  return check_hellos(hellos, comm->ranks);
}

static dt_status connect_ranks(dt_comm *comm, dt_allgather_fn allgather, void *context, int *fd, hello *hellos) {
  shm_state *state = comm->state;
  size_t bytes[DT_MAX_RANKS] = {0};
  void *memory[DT_MAX_RANKS] = {NULL};
  dt_status status = meet(comm, allgather, context, prepare(comm, fd), hellos);
  if (status) return status;
  status = open_peers(comm, hellos);
  memory[comm->rank] = state->host.controls[comm->rank];
  bytes[comm->rank] = sizeof(dt_control);
  int passed = *fd;
  *fd = -1;
  status = share_memory(comm, passed, status, bytes, memory);
  for (int32_t p = 0; p < comm->ranks; p++) state->host.controls[p] = memory[p];
  return status ? status : dt_host_barrier(comm, "create");
}

dt_status dt_comm_create_shm(int32_t rank, int32_t ranks, dt_allgather_fn allgather, void *context,
                             const dt_comm_config *config, dt_comm **endpoint) {
  if (!allgather) return dt_fail(DT_ERR_ARGUMENT, "allgather: NULL; a function");
  dt_comm *comm = NULL;
  dt_status status = dt_comm_new(&shm_fabric, rank, ranks, config, &comm);
  if (status) return status;
  shm_state *state = calloc(1, sizeof *state);
  hello *hellos = calloc((size_t)ranks, sizeof *hellos);
  if (!state || !hellos) {
    free(state);
    free(hellos);
    free(comm);
    return dt_fail(DT_ERR_MEMORY, "endpoint: %zu bytes", sizeof *state);
  }
  state->socket = -1;
  dt_host_init(comm, &state->host);
  int fd = -1;
  status = connect_ranks(comm, allgather, context, &fd, hellos);
  if (fd >= 0) close(fd);
  free(hellos);
  if (status) {
    dt_comm_destroy(comm);
    return status;
  }
  *endpoint = comm;
  return DT_OK;
}
