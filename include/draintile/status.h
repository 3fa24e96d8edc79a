/* Status codes of every public call, and the detail message of the last failure. */
#ifndef DRAINTILE_STATUS_H
#define DRAINTILE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* name, value, text. Values are ABI: append, never renumber. */
#define DT_STATUS_TABLE(X)                                                                                             \
  X(DT_OK, 0, "success")                                                                                               \
  X(DT_ERR_ARGUMENT, 1, "invalid argument")                                                                            \
  X(DT_ERR_INPUT, 2, "invalid input data")                                                                             \
  X(DT_ERR_MISMATCH, 3, "ranks disagree on the configuration")                                                         \
  X(DT_ERR_CAPACITY, 4, "a buffer is too small for the rows routed to it")                                             \
  X(DT_ERR_MEMORY, 5, "out of memory")                                                                                 \
  X(DT_ERR_IO, 6, "input or output failed")                                                                            \
  X(DT_ERR_SYSTEM, 7, "a system call failed")                                                                          \
  X(DT_ERR_TIMEOUT, 8, "a bounded wait expired")                                                                       \
  X(DT_ERR_PEER, 9, "another rank failed")                                                                             \
  X(DT_ERR_UNSUPPORTED, 10, "not supported by this build or device")                                                   \
  X(DT_ERR_NO_DEVICE, 11, "no such device")                                                                            \
  X(DT_ERR_DEVICE, 12, "the device reported an error")                                                                 \
  X(DT_ERR_INTERNAL, 13, "internal invariant broken")

typedef enum dt_status {
#define DT_STATUS_ENUM(name, value, text) name = value,
  DT_STATUS_TABLE(DT_STATUS_ENUM)
#undef DT_STATUS_ENUM
} dt_status;

/* The code's name ("DT_ERR_INPUT") and its one-line text. Static strings, never NULL. */
const char *dt_status_name(dt_status status);
const char *dt_status_text(dt_status status);

/* One line about the last failure on this thread: the field, its value and what is allowed; of a line beyond 1023 bytes
 * the middle is left out, and control characters of what it repeats are '?'. The string belongs to the library and is
 * valid until the next failing call on this thread. Empty when nothing failed yet. */
const char *dt_error_detail(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
