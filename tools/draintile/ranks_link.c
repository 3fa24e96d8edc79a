/* The child's end of a rank's socket. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "args.h"
#include "ranks_internal.h"

static int write_all(int socket, const void *data, size_t bytes) {
  const char *at = data;
  while (bytes) {
    ssize_t written = send(socket, at, bytes, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return -1;
    at += written;
    bytes -= (size_t)written;
  }
  return 0;
}

int frame_write(int socket, const frame_header *header, const void *data) {
  if (write_all(socket, header, sizeof(*header)) != 0) return -1;
  return write_all(socket, data, header->bytes);
}

static int read_all(int socket, void *data, size_t bytes) {
  char *at = data;
  while (bytes) {
    ssize_t got = read(socket, at, bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return -1;
    at += got;
    bytes -= (size_t)got;
  }
  return 0;
}

int rank_link_fail(rank_link *link, int code, const char *format, ...) {
  if (link->account->detail[0]) return code;
  va_list list;
  va_start(list, format);
  vsnprintf(link->account->detail, RANK_DETAIL_BYTES, format, list);
  va_end(list);
  return code;
}

int rank_link_fail_status(rank_link *link, dt_status status) {
  link->account->secondary = status == DT_ERR_PEER;
  const char *detail = dt_error_detail();
  return rank_link_fail(link, log_exit_code(status), "%s", *detail ? detail : dt_status_text(status));
}

/* Sends and waits for a reply of exactly `bytes`. */
static int exchange(rank_link *link, const frame_header *header, const void *data, void *reply, size_t bytes) {
  frame_header back;
  if (frame_write(link->socket, header, data) != 0 || read_all(link->socket, &back, sizeof(back)) != 0) return -1;
  if (back.kind != header->kind || back.bytes != bytes) return -1;
  return read_all(link->socket, reply, bytes);
}

int rank_link_allgather(void *context, const void *send_data, void *receive, size_t bytes) {
  rank_link *link = context;
  frame_header header = {.kind = FRAME_GATHER, .bytes = bytes};
  return exchange(link, &header, send_data, receive, bytes * (size_t)link->ranks);
}

int rank_link_send(rank_link *link, int32_t tag, const void *data, size_t bytes) {
  frame_header header = {.kind = FRAME_MESSAGE, .tag = tag, .bytes = bytes};
  if (frame_write(link->socket, &header, data) == 0) return TOOL_OK;
  return rank_link_fail(link, TOOL_FAILED, "the parent process: %s", strerror(errno));
}

int rank_link_ask(rank_link *link, int32_t *answer) {
  frame_header header = {.kind = FRAME_ASK};
  if (exchange(link, &header, NULL, answer, sizeof(*answer)) == 0) return TOOL_OK;
  link->account->secondary = 1;
  return rank_link_fail(link, TOOL_FAILED, "the ranks could not agree on a schedule");
}
