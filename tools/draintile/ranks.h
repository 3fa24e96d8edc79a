/* Rank processes of one run: forked, fed and reaped by the command itself.
 *
 * Each rank talks to the parent over a Unix socket; the parent gathers for all. Ranks die with the parent, and the
 * parent leaves none behind: neither running, nor stopped, nor as a zombie.
 */
#ifndef DRAINTILE_TOOL_RANKS_H
#define DRAINTILE_TOOL_RANKS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <draintile/status.h>

enum { RANKS_MAX = 64, RANK_DETAIL_BYTES = 1024 };

/* A rank's account of itself, in memory shared with the parent. */
typedef struct rank_account {
  char detail[RANK_DETAIL_BYTES]; /* why it failed */
  int32_t secondary;              /* 1: it failed because another rank did */
  _Atomic int64_t progress;       /* forwards done */
} rank_account;

/* The child's end. */
typedef struct rank_link {
  int32_t rank, ranks;
  int socket;
  rank_account *account;
} rank_link;

/* A dt_allgather_fn; the context is the rank_link. */
int rank_link_allgather(void *link, const void *send, void *receive, size_t bytes);
/* One way: data for the parent's `message`. Returns an exit code. */
int rank_link_send(rank_link *link, int32_t tag, const void *data, size_t bytes);
/* The parent's decision, once every rank has asked. Returns an exit code. */
int rank_link_ask(rank_link *link, int32_t *answer);
/* Notes why this rank fails; returns `code`. */
int rank_link_fail(rank_link *link, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A library call failed: its detail is the reason, and whether it lies with another rank. Returns the exit code. */
int rank_link_fail_status(rank_link *link, dt_status status);

typedef struct ranks_config {
  int32_t ranks;
  double timeout_s; /* a rank that is stopped, or late where all others wait, is given up after this */
  double entry_timeout_s;
  void *context;
  int (*run)(rank_link *link, void *context);                                               /* in the child */
  int (*message)(void *context, int32_t rank, int32_t tag, const void *data, size_t bytes); /* in the parent */
  int (*decide)(void *context, int32_t *answer);                                            /* in the parent */
  void (*tick)(void *context, const rank_account *accounts); /* in the parent, ten times a second */
} ranks_config;

/* Forks the ranks and returns when all have ended: the exit code of the run. A failure is said in one line. */
int ranks_run(const ranks_config *config);

#endif
