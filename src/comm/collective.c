/* All-gather and agreement, over put and barrier of any fabric. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "fabric.h"

enum { GATHER_CHUNK = 32768 };

/* The window has two halves of one chunk per rank. A chunk's half is written again two chunks later, after a barrier
 * that every reader enters only when it has copied the first: one barrier a chunk is enough. */
static dt_status gather_chunk(dt_comm *comm, const unsigned char *send, unsigned char *receive, size_t bytes,
                              size_t stride) {
  size_t half = (size_t)(comm->gather_turn++ & 1) * (size_t)comm->ranks * GATHER_CHUNK;
  for (int32_t i = 0; i < comm->ranks; i++) {
    dt_put put = {.window = comm->gather_window,
                  .peer = (comm->rank + i) % comm->ranks,
                  .offset = half + (size_t)comm->rank * GATHER_CHUNK,
                  .src = send,
                  .row_bytes = bytes,
                  .rows = 1};
    dt_status status = dt_comm_put(comm, &put, NULL);
    if (status) return status;
  }
  dt_status status = dt_comm_barrier(comm, "all-gather");
  if (status) return status;
  const unsigned char *own = (const unsigned char *)dt_window_local(comm->gather_window) + half;
  for (int32_t p = 0; p < comm->ranks; p++) {
    memcpy(receive + (size_t)p * stride, own + (size_t)p * GATHER_CHUNK, bytes);
  }
  return DT_OK;
}

dt_status dt_comm_allgather(dt_comm *comm, const void *send, void *receive, size_t bytes) {
  if (comm->fabric->allgather) return comm->fabric->allgather(comm, send, receive, bytes);
  if (!comm->gather_window) {
    dt_status status = dt_comm_alloc(comm, 2 * (size_t)comm->ranks * GATHER_CHUNK, &comm->gather_window);
    if (status) return status;
  }
  for (size_t done = 0; done < bytes; done += GATHER_CHUNK) {
    size_t chunk = bytes - done < GATHER_CHUNK ? bytes - done : GATHER_CHUNK;
    dt_status status =
        gather_chunk(comm, (const unsigned char *)send + done, (unsigned char *)receive + done, chunk, bytes);
    if (status) return status;
  }
  return DT_OK;
}

typedef struct field_record {
  char name[56]; /* names are told apart by their first 55 characters */
  int64_t value;
} field_record;

/* "2 on ranks 0, 3" */
static size_t append_ranks(char *text, size_t size, size_t used, uint64_t ranks) {
  int first = 1;
  for (int32_t p = 0; p < DT_MAX_RANKS && used + 1 < size; p++) {
    if (!(ranks >> p & 1)) continue;
    const char *lead = !first ? ", " : (ranks & (ranks - 1)) ? " on ranks " : " on rank ";
    int wrote = snprintf(text + used, size - used, "%s%d", lead, p);
    used += wrote > 0 ? (size_t)wrote : 0;
    first = 0;
  }
  return used;
}

/* The groups of ranks that hold the same record at one place; by_name: compare names, else values. */
static void describe_groups(const field_record *records, size_t stride, int32_t ranks, int by_name, char *text,
                            size_t size) {
  uint64_t told = 0;
  size_t used = 0;
  for (int32_t p = 0; p < ranks && used + 1 < size; p++) {
    if (told >> p & 1) continue;
    const field_record *mine = records + (size_t)p * stride;
    uint64_t group = 0;
    for (int32_t q = p; q < ranks; q++) {
      const field_record *other = records + (size_t)q * stride;
      int same = by_name ? strcmp(mine->name, other->name) == 0 : mine->value == other->value;
      if (same) group |= (uint64_t)1 << q;
    }
    told |= group;
    int wrote = by_name
                    ? snprintf(text + used, size - used, "%s%s", used ? "; " : "", *mine->name ? mine->name : "none")
                    : snprintf(text + used, size - used, "%s%lld", used ? "; " : "", (long long)mine->value);
    used += wrote > 0 ? (size_t)wrote : 0;
    used = append_ranks(text, size, used, group);
  }
}

/* Every rank holds the same records and so finds the same difference. */
static dt_status compare_fields(const field_record *records, size_t count, int32_t ranks) {
  for (size_t i = 0; i < count; i++) {
    char text[768];
    for (int32_t p = 1; p < ranks; p++) {
      const field_record *first = records + i, *other = records + (size_t)p * count + i;
      if (strcmp(first->name, other->name) != 0) {
        describe_groups(first, count, ranks, 1, text, sizeof text);
        return dt_fail(DT_ERR_MISMATCH, "field %zu of the configuration: %s; the same on every rank", i, text);
      }
      if (first->value != other->value) {
        describe_groups(first, count, ranks, 0, text, sizeof text);
        return dt_fail(DT_ERR_MISMATCH, "%s: %s; the same on every rank", first->name, text);
      }
    }
  }
  return DT_OK;
}

dt_status dt_comm_agree(dt_comm *comm, const dt_agree_field *fields, size_t count) {
  uint64_t own = count, counts[DT_MAX_RANKS];
  dt_status status = dt_comm_allgather(comm, &own, counts, sizeof own);
  if (status) return status;
  size_t most = 0;
  for (int32_t p = 0; p < comm->ranks; p++) most = counts[p] > most ? (size_t)counts[p] : most;
  field_record *send = calloc(most + 1, sizeof *send);
  field_record *records = calloc((most + 1) * (size_t)comm->ranks, sizeof *records);
  if (send && records) {
    for (size_t i = 0; i < count; i++) {
      snprintf(send[i].name, sizeof send[i].name, "%s", fields[i].name);
      send[i].value = fields[i].value;
    }
    status = dt_comm_allgather(comm, send, records, most * sizeof *send); /* a shorter list ends in empty names */
    if (!status) status = compare_fields(records, most, comm->ranks);
  } else {
    dt_comm_abort(comm, DT_ERR_MEMORY, "no memory to compare configurations");
    status = dt_fail(DT_ERR_MEMORY, "configuration: %zu fields", most);
  }
  free(send);
  free(records);
  return status;
}
