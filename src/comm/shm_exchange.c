/* File descriptors between ranks, over datagrams on abstract Unix sockets: no name in the file system, nothing left
 * when a rank dies.
 */
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "clock.h"
#include "core/error.h"
#include "process.h"
#include "shm.h"

/* One per peer and exchange, with one descriptor unless status says that there is none. */
typedef struct exchange_message {
  unsigned char nonce[DT_NONCE_BYTES]; /* the receiver's */
  uint32_t sequence;
  int32_t rank, status;
  uint64_t bytes;
} exchange_message;

typedef struct exchange {
  uint64_t unsent, missing; /* peers, a bit each */
  uint64_t lost;            /* a descriptor was sent and did not arrive: this process has no room for it */
  int *fds;
  size_t *bytes;
  int32_t statuses[DT_MAX_RANKS];
} exchange;

dt_status dt_shm_open_socket(shm_state *state, int32_t rank) {
  shm_address *own = &state->addresses[rank];
  state->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (state->socket < 0) return dt_fail(DT_ERR_SYSTEM, "socket: %s", strerror(errno));
  struct sockaddr_un any = {.sun_family = AF_UNIX};
  own->bytes = sizeof own->socket;
  if (bind(state->socket, (struct sockaddr *)&any, offsetof(struct sockaddr_un, sun_path)) ||
      getsockname(state->socket, (struct sockaddr *)&own->socket, &own->bytes)) {
    return dt_fail(DT_ERR_SYSTEM, "bind to an abstract address: %s", strerror(errno));
  }
  if (getrandom(own->nonce, sizeof own->nonce, 0) != (ssize_t)sizeof own->nonce) {
    return dt_fail(DT_ERR_SYSTEM, "getrandom: %s", strerror(errno));
  }
  return DT_OK;
}

/* 1: sent, 0: the peer's queue is full, -1: errno. */
static int try_send(const shm_state *state, int32_t peer, const exchange_message *message, int fd) {
  const shm_address *to = &state->addresses[peer];
  struct iovec part = {.iov_base = (void *)message, .iov_len = sizeof *message};
  union {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr aligned;
  } control = {{0}};
  struct msghdr header = {.msg_name = (void *)&to->socket, .msg_namelen = to->bytes, .msg_iov = &part, .msg_iovlen = 1};
  if (fd >= 0) {
    header.msg_control = control.bytes;
    header.msg_controllen = sizeof control.bytes;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  }
  if (sendmsg(state->socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 1;
  int full = errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS;
  return full ? 0 : -1;
}

/* The descriptor of a message, others closed; -1: none. */
static int take_fd(struct msghdr *header) {
  int taken = -1;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
      int fd;
      memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      if (taken < 0)
        taken = fd;
      else
        close(fd);
    }
  }
  return taken;
}

/* All that died: one that gave up because another died may be gone by now too. */
static void list_dead(const dt_comm *comm, const dt_host *host, char *text, size_t size) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t p = 0; p < comm->ranks && used + 1 < size; p++) {
    if (host->pidfds[p] < 0 || !dt_process_died(host->pidfds[p])) continue;
    int wrote = snprintf(text + used, size - used, "%srank %d died", used ? ", " : "", p);
    used += wrote > 0 ? (size_t)wrote : 0;
  }
}

/* Takes every message that is there. Strangers' and repeated ones are dropped, with their descriptors. */
static void receive_all(const dt_comm *comm, const shm_state *state, exchange *all) {
  for (;;) {
    exchange_message message;
    struct iovec part = {.iov_base = &message, .iov_len = sizeof message};
    union {
      char bytes[CMSG_SPACE(4 * sizeof(int))];
      struct cmsghdr aligned;
    } control;
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t size = recvmsg(state->socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return;
    int fd = take_fd(&header);
    int ours = size == (ssize_t)sizeof message &&
               memcmp(message.nonce, state->addresses[comm->rank].nonce, DT_NONCE_BYTES) == 0 &&
               message.sequence == state->sequence && message.rank >= 0 && message.rank < comm->ranks &&
               (all->missing >> message.rank & 1);
    if (!ours) {
      if (fd >= 0) close(fd);
      continue;
    }
    all->missing &= ~((uint64_t)1 << message.rank);
    all->fds[message.rank] = fd;
    all->bytes[message.rank] = message.bytes;
    all->statuses[message.rank] = message.status;
    if (!message.status && fd < 0) all->lost |= (uint64_t)1 << message.rank;
  }
}

static dt_status send_all(const dt_comm *comm, const shm_state *state, exchange *all, const exchange_message *message,
                          int fd) {
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (!(all->unsent >> p & 1)) continue;
    exchange_message addressed = *message;
    memcpy(addressed.nonce, state->addresses[p].nonce, DT_NONCE_BYTES);
    int sent = try_send(state, p, &addressed, fd);
    if (sent < 0 && errno == ECONNREFUSED) {
      char dead[256];
      list_dead(comm, &state->host, dead, sizeof dead);
      return dt_fail(DT_ERR_PEER, "rank %d: its socket is gone: %s", p,
                     *dead ? dead : "it gave up, or is in another network namespace");
    }
    if (sent < 0) return dt_fail(DT_ERR_SYSTEM, "sendmsg to rank %d: %s", p, strerror(errno));
    if (sent) all->unsent &= ~((uint64_t)1 << p);
  }
  return DT_OK;
}

/* Whether waiting on makes sense. Peers' shared state is not mapped yet during create. */
static dt_status check_progress(const dt_comm *comm, const dt_host *host, const exchange *all, double waited_s) {
  uint64_t awaited = all->missing | all->unsent;
  for (int32_t p = 0; p < comm->ranks; p++) {
    if (!(awaited >> p & 1)) continue;
    if (host->pidfds[p] >= 0 && dt_process_died(host->pidfds[p])) {
      char dead[256];
      list_dead(comm, host, dead, sizeof dead);
      return dt_fail(DT_ERR_PEER, "%s; rank %d waited for file descriptors", dead, comm->rank);
    }
    if (host->controls[p] && __atomic_load_n(&host->controls[p]->left, __ATOMIC_ACQUIRE)) {
      return dt_fail(DT_ERR_PEER, "rank %d left; rank %d waited for its file descriptor", p, comm->rank);
    }
  }
  double timeout_s = comm->config.entry_timeout_s;
  if (timeout_s > 0.0 && waited_s > timeout_s) {
    int32_t first = __builtin_ctzll(awaited);
    char state = dt_process_state(host->pids[first], NULL);
    return dt_fail(DT_ERR_TIMEOUT, "rank %d, phase alloc: file descriptor of rank %d: not received after %.3g s%s",
                   comm->rank, first, waited_s, state == 'T' ? "; it is stopped" : "");
  }
  return DT_OK;
}

static dt_status run_exchange(dt_comm *comm, shm_state *state, exchange *all, const exchange_message *message, int fd) {
  uint64_t start = dt_now_ns();
  for (;;) {
    receive_all(comm, state, all);
    dt_status status = send_all(comm, state, all, message, fd);
    if (status) return status;
    if (!(all->unsent | all->missing)) return DT_OK;
    if (state->host.controls[comm->rank] && dt_host_aborted(comm)) return dt_host_status(comm);
    status = check_progress(comm, &state->host, all, (double)(dt_now_ns() - start) * 1e-9);
    if (status && state->host.controls[comm->rank] && dt_host_aborted(comm)) return dt_host_status(comm);
    if (status) return status;
    struct pollfd readable = {.fd = state->socket, .events = POLLIN};
    poll(&readable, 1, all->unsent ? 1 : DT_SLICE_NS / 1000000);
  }
}

dt_status dt_shm_exchange_fd(dt_comm *comm, int fd, dt_status own_status, size_t bytes, int *fds, size_t *all_bytes) {
  shm_state *state = comm->state;
  uint64_t others = (comm->ranks == 64 ? UINT64_MAX : ((uint64_t)1 << comm->ranks) - 1) & ~((uint64_t)1 << comm->rank);
  exchange all = {.unsent = others, .missing = others, .fds = fds, .bytes = all_bytes};
  exchange_message message = {
      .sequence = ++state->sequence, .rank = comm->rank, .status = (int32_t)own_status, .bytes = bytes};
  for (int32_t p = 0; p < comm->ranks; p++) fds[p] = -1;
  all_bytes[comm->rank] = bytes;
  char detail[512]; /* of the caller's own failure, kept over the calls below */
  strncpy(detail, own_status ? dt_error_detail() : "", sizeof detail - 1);
  detail[sizeof detail - 1] = '\0';
  dt_status status = run_exchange(comm, state, &all, &message, fd);
  if (own_status) status = dt_fail(own_status, "%s", detail);
  for (int32_t p = 0; p < comm->ranks && !status; p++) {
    if (all.statuses[p]) {
      status = dt_fail(DT_ERR_PEER, "rank %d failed to provide its memory: %s", p,
                       dt_status_text((dt_status)all.statuses[p]));
    }
  }
  if (!status && all.lost)
    status =
        dt_fail(DT_ERR_SYSTEM, "file descriptors: none is left for the memory of rank %d; raise the limit (ulimit -n)",
                __builtin_ctzll(all.lost));
  if (status) {
    for (int32_t p = 0; p < comm->ranks; p++) {
      if (fds[p] >= 0) close(fds[p]);
      fds[p] = -1;
    }
  }
  return status;
}
