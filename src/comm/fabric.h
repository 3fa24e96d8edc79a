/* What a fabric is: a table of operations, and the two structs that the public calls of comm.h work on. comm.c checks
 * arguments and keeps the list of windows; everything else goes through the table.
 */
#ifndef DT_COMM_FABRIC_H
#define DT_COMM_FABRIC_H

#include <stdint.h>

#include <draintile/comm.h>

enum { DT_FABRIC_API = 1, DT_MAX_RANKS = 64 };

typedef struct dt_fabric {
  uint32_t api_version; /* DT_FABRIC_API */
  const char *name;     /* dt_comm_fabric */

  /* Collective. window->bytes[rank] is set; fills the other sizes and pieces[ranks]: the address, in this process (or
   * on this rank's device), of every rank's piece, through which kernels and puts store. On failure it leaves nothing
   * behind and every rank fails. */
  dt_status (*alloc)(dt_comm *comm, dt_window *window);
  void (*free)(dt_comm *comm, dt_window *window); /* releases what alloc made, not the struct; never waits */

  /* Arguments are checked: peer, bounds of both sides, alignment of counters. put counts no bytes: comm.c does. */
  dt_status (*put)(dt_comm *comm, const dt_put *put, uint64_t *visible_ns);
  dt_status (*signal)(dt_comm *comm, dt_window *window, int32_t peer, size_t offset, uint32_t value,
                      uint64_t visible_ns);
  dt_status (*wait)(dt_comm *comm, dt_window *window, size_t offset, uint32_t target, const dt_wait *wait);
  dt_status (*barrier)(dt_comm *comm, const char *phase);
  dt_status (*allgather)(dt_comm *comm, const void *send, void *receive, size_t bytes); /* optional: by put, barrier */

  void (*abort)(dt_comm *comm, dt_status status, const char *detail);
  dt_status (*status)(dt_comm *comm);
  void (*destroy)(dt_comm *comm); /* releases state, not the struct; the windows are freed before; never waits */
} dt_fabric;

struct dt_comm {
  const dt_fabric *fabric;
  int32_t rank, ranks;
  dt_comm_config config;
  void *state;                 /* the fabric's */
  uint64_t sent[DT_MAX_RANKS]; /* atomic adds */
  dt_window *windows;          /* all that are allocated */
  dt_window *gather_window;    /* dt_comm_allgather's, made when first needed */
  uint32_t gather_turn;        /* parity of its halves */
};

struct dt_window {
  dt_comm *comm;
  dt_window *next;
  unsigned char *pieces[DT_MAX_RANKS];
  size_t bytes[DT_MAX_RANKS]; /* as asked for */
  void *state;                /* the fabric's */
};

/* A zeroed endpoint of `fabric` with the defaults of `config` (NULL: dt_comm_config_init) checked and filled in, for
 * the fabric's create to complete. Released with free() when create fails. */
dt_status dt_comm_new(const dt_fabric *fabric, int32_t rank, int32_t ranks, const dt_comm_config *config,
                      dt_comm **comm);

/* Fabric shm only, collective: passes `fd` (-1: failed here, with `status`) and `bytes` to every rank; fds[ranks]
 * (close them; fds[rank] is -1) and bytes[ranks] receive the peers'. When any rank passed -1, all fail. A fabric for
 * devices keeps an shm endpoint inside for this, for barriers, agreement and liveness. */
dt_status dt_shm_exchange_fd(dt_comm *comm, int fd, dt_status status, size_t bytes, int *fds, size_t *all_bytes);

#endif
