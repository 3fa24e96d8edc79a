/* What the two ends of a rank's socket share. */
#ifndef DRAINTILE_TOOL_RANKS_INTERNAL_H
#define DRAINTILE_TOOL_RANKS_INTERNAL_H

#include "ranks.h"

typedef enum frame_kind {
  FRAME_GATHER = 1, /* child: its share; parent: all shares */
  FRAME_MESSAGE,    /* child only */
  FRAME_ASK,        /* child: nothing; parent: the answer */
  FRAME_FAILED      /* parent only: another rank is gone */
} frame_kind;

typedef struct frame_header {
  int32_t kind, tag;
  uint64_t bytes;
} frame_header;

/* All of it, or -1 with errno. */
int frame_write(int socket, const frame_header *header, const void *data);

typedef struct rank_process {
  pid_t pid;
  int socket; /* -1: closed */
  int ended;  /* reaped */
  int wait_status;
  int killed_here;
  int stopped; /* seen stopped when it was given up */
  /* the frame being received, then the one that waits for the other ranks */
  frame_header header;
  size_t received; /* of header and data together */
  char *data;
  int waiting; /* a whole gather or ask frame waits */
} rank_process;

/* ranks_report.c: the one line about a failed run; returns its exit code. */
int ranks_report(const rank_process *processes, const rank_account *accounts, int32_t ranks, int interrupted);

#endif
