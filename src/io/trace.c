#include <draintile/trace.h>

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/spans.h"
#include "file.h"

static const char *const kind_names[] = {"plan",   "dispatch", "L1",      "L2",   "store",     "segment", "reduce",
                                         "shared", "wait",     "barrier", "link", "attention", "stall",   "publish"};

const char *dt_span_kind_name(dt_span_kind kind) {
  size_t at = (size_t)kind;
  return at < sizeof kind_names / sizeof *kind_names ? kind_names[at] : "unknown";
}

/* Of a text that is not UTF-8, cut within a character perhaps, only what is ASCII. */
static void write_string(FILE *out, const char *text) {
  json_t *utf8 = json_string(text);
  const int ascii = utf8 == NULL;
  json_decref(utf8);
  fputc('"', out);
  for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
    if (*c == '"' || *c == '\\')
      fprintf(out, "\\%c", *c);
    else if (*c < 0x20)
      fprintf(out, "\\u%04x", *c);
    else
      fputc(ascii && *c >= 0x80 ? '?' : *c, out);
  }
  fputc('"', out);
}

/* Microseconds with the nanoseconds as decimals: exact, where a double of a long uptime is not. */
static void write_us(FILE *out, const char *key, uint64_t ns) {
  fprintf(out, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

static void write_metadata(FILE *out, int *first, int process, int track, const char *what, const char *name) {
  fprintf(out, "%s{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"args\":{\"name\":", *first ? "" : ",\n",
          process, track, what);
  write_string(out, name);
  fputs("}}", out);
  *first = 0;
}

static void name_track(const dt_trace_rank *rank, int track, char *name, size_t size) {
  static const char *const roles[DT_DEVICE_ROLES] = {"consumer 0", "consumer 1", "stores 0", "stores 1",
                                                     "loader",     "release",    "copies 0", "copies 1"};
  if (rank->device && track <= 0)
    snprintf(name, size, "kernels");
  else if (rank->device)
    snprintf(name, size, "SM %d %s", (track - 1) / DT_DEVICE_ROLES, roles[(track - 1) % DT_DEVICE_ROLES]);
  else if (track < rank->workers)
    snprintf(name, size, "worker %d", track);
  else if (track < rank->workers + rank->consumers)
    snprintf(name, size, "consumer %d", track - rank->workers);
  else
    snprintf(name, size, "link %d", track - rank->workers - rank->consumers);
}

static void write_names(FILE *out, int *first, int process, const dt_trace_rank *rank, const dt_span *const *sorted) {
  char name[160];
  snprintf(name, sizeof name, "%s rank %d", rank->name ? rank->name : "run", rank->rank);
  write_metadata(out, first, process, 0, "process_name", name);
  for (size_t i = 0; i < rank->span_count; i++) {
    int track = sorted[i]->track;
    if (i && sorted[i - 1]->track == track) continue;
    name_track(rank, track, name, sizeof name);
    write_metadata(out, first, process, track, "thread_name", name);
  }
}

static void write_slice(FILE *out, int process, const dt_span *span, uint64_t begin, uint64_t end) {
  fprintf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\"", process, span->track,
          dt_span_kind_name((dt_span_kind)span->kind));
  write_us(out, "ts", begin);
  write_us(out, "dur", end - begin);
  fprintf(out, ",\"args\":{\"index\":%d,\"column\":%d,\"peer\":%d,\"rows\":%d,\"bytes\":%" PRId64 "}}", span->index,
          span->column, span->peer, span->rows, span->bytes);
}

/* Overlapping slices that do not nest are dropped or misplaced by viewers: an end that reaches past the slice open
 * around it is cut to that slice's end. Link slices (bytes in flight) follow each other on the link: a begin that lies
 * before the previous end is moved to it. */
static dt_status write_rank(FILE *out, int *first, int process, const dt_trace_rank *rank, uint64_t origin) {
  if (rank->span_count == 0) return DT_OK;
  const dt_span **sorted = malloc(rank->span_count * sizeof(const dt_span *));
  uint64_t *open = malloc(rank->span_count * sizeof *open);
  if (!sorted || !open) {
    free(sorted);
    free(open);
    return dt_fail(DT_ERR_MEMORY, "trace: no memory for %zu spans", rank->span_count);
  }
  for (size_t i = 0; i < rank->span_count; i++) sorted[i] = &rank->spans[i];
  qsort(sorted, rank->span_count, sizeof(const dt_span *), dt_span_order);
  write_names(out, first, process, rank, sorted);

  size_t depth = 0;
  uint64_t link_end = 0;
  for (size_t i = 0; i < rank->span_count; i++) {
    const dt_span *span = sorted[i];
    if (i && sorted[i - 1]->track != span->track) {
      depth = 0;
      link_end = 0;
    }
    uint64_t begin = span->begin_ns, end = span->end_ns < begin ? begin : span->end_ns;
    if (span->kind == DT_SPAN_LINK) {
      if (begin < link_end) begin = link_end;
      if (end < begin) end = begin;
      link_end = end;
    } else {
      while (depth && open[depth - 1] <= begin) depth--;
      if (depth && end > open[depth - 1]) end = open[depth - 1];
      open[depth++] = end;
    }
    write_slice(out, process, span, begin - origin, end - origin);
  }
  free(sorted);
  free(open);
  return DT_OK;
}

dt_status dt_trace_write(const char *path, const dt_trace_rank *ranks, size_t count) {
  dt_output_file file;
  dt_status status = dt_output_open(path, &file);
  if (status != DT_OK) return status;
  uint64_t origin = dt_spans_begin_ns(ranks, count);
  int first = 1;
  fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file.stream);
  for (size_t r = 0; r < count && status == DT_OK; r++)
    status = write_rank(file.stream, &first, (int)r, &ranks[r], origin);
  fputs("\n]}\n", file.stream);
  if (status != DT_OK) {
    dt_output_discard(&file);
    return status;
  }
  return dt_output_commit(&file);
}
