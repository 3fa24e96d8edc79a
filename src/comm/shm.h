/* The two halves of fabric `shm`: memory and endpoints (shm.c), descriptors over sockets (shm_exchange.c). */
#ifndef DT_COMM_SHM_H
#define DT_COMM_SHM_H

#include <sys/socket.h>
#include <sys/un.h>

#include "host.h"

enum { DT_NONCE_BYTES = 16 };

/* Where a rank receives descriptors. Anyone on the machine can send to an abstract address; only messages with the
 * receiver's nonce, known to the ranks alone, are taken. */
typedef struct shm_address {
  struct sockaddr_un socket;
  socklen_t bytes;
  unsigned char nonce[DT_NONCE_BYTES];
} shm_address;

typedef struct shm_state {
  dt_host host; /* first: dt_host_of */
  int socket;   /* bound to addresses[rank] */
  uint32_t sequence;
  shm_address addresses[DT_MAX_RANKS];
} shm_state;

/* Opens state->socket at a fresh abstract address of the kernel's choice; fills addresses[rank]. */
dt_status dt_shm_open_socket(shm_state *state, int32_t rank);

#endif
