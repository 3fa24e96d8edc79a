/* The platform file: what was measured on one machine, with its provenance. JSON, schema "draintile-platform",
 * version 1; docs/model.md describes the format. SI units; every name ends in the unit of its value.
 *
 *     dt_platform_create(&device, &platform);
 *     dt_platform_set_constant(platform, &constant);      any number of times
 *     dt_platform_add_table(platform, &table);            any number of times
 *     dt_platform_save(platform, "platform.json");
 *     dt_platform_destroy(platform);
 *
 * The calls that take a struct copy all of it, strings and samples included. What the getters return belongs to the
 * platform and is valid until it is changed or destroyed.
 */
#ifndef DRAINTILE_PLATFORM_H
#define DRAINTILE_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/model.h>
#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct dt_platform dt_platform;

/* Clocks as the driver reports them; 0: not read. */
typedef struct dt_platform_clocks {
  double sm_hz, memory_hz;
} dt_platform_clocks;

typedef struct dt_platform_device {
  const char *kind;   /* "cpu" or "cuda" */
  const char *name;   /* e.g. "NVIDIA H200", never empty */
  const char *driver; /* its version; "none" where there is no driver */
  const char *date;   /* ISO 8601, e.g. "2026-11-30T02:00:00Z" */
  int64_t count;      /* devices that took part, >= 1 */
  dt_platform_clocks clocks_before, clocks_after;
  int throttled; /* the driver reported throttling during the measurement */
} dt_platform_device;

/* A measured quantity. The name is [a-z0-9_]+ and ends in its unit: _s, _bytes, _bytes_per_s, _s_per_byte, _s_per_row,
 * _flop_per_s, _hz, _ratio or _count. */
typedef struct dt_platform_constant {
  const char *name;
  dt_interval interval; /* low <= value <= high, finite */
  int64_t n;            /* samples behind it, >= 1 */
  const char *method;   /* one line: how it was measured and fitted; never empty */
  const double *samples;
  size_t sample_count; /* raw samples; 0: kept elsewhere or none */
} dt_platform_constant;

enum { DT_PLATFORM_ARGUMENTS = 4 };

/* One measured point of a table. */
typedef struct dt_platform_point {
  double at[DT_PLATFORM_ARGUMENTS]; /* the first argument_count are used */
  dt_interval interval;
  int64_t n;
  const double *samples;
  size_t sample_count;
} dt_platform_point;

/* A quantity that depends on arguments. Names in use (others are free):
 *   t0_s(producers, producer_bytes), capacity_bytes(producers[, producer_bytes]),
 *   rate_bytes_per_s(producers[, producer_bytes]), issue_s(producers, producer_bytes, gap_s),
 *   put_bytes_per_s(message_bytes, sms_count), alltoall_bytes_per_s(message_bytes),
 *   gemm_flop_per_s(rows, n, k, experts), tile_s(k); docs/calibration.md has the rest.
 * An argument's name ends in a unit as a constant's does, or it is a count and takes whole numbers. The labels tell
 * tables of one name apart; "" or NULL where one does not apply. No two tables agree in name and all labels. */
typedef struct dt_platform_table {
  const char *name;
  const char *pattern;   /* "one-way", "both-ways", "all-to-all", "many-to-one", "local" */
  const char *operation; /* "st.v4", "bulk", "tensor", "put", "nccl", "copy-engine", ... */
  const char *alignment; /* "free", "aligned" */
  const char *method;
  int32_t argument_count; /* 0 to DT_PLATFORM_ARGUMENTS */
  const char *arguments[DT_PLATFORM_ARGUMENTS];
  const dt_platform_point *points; /* no two at the same arguments */
  size_t point_count;              /* >= 1 */
} dt_platform_table;

/* DT_ERR_ARGUMENT names the field and what is allowed. */
dt_status dt_platform_create(const dt_platform_device *device, dt_platform **platform);
void dt_platform_destroy(dt_platform *platform);
dt_status dt_platform_set_constant(dt_platform *platform, const dt_platform_constant *constant); /* replaces by name */
dt_status dt_platform_add_table(dt_platform *platform, const dt_platform_table *table);
dt_status dt_platform_add_note(dt_platform *platform, const char *note); /* one line of free text */

/* The provenance rule on its own: name and unit, method, n, low <= value <= high, all finite, samples finite.
 * DT_ERR_ARGUMENT names the first field that breaks it. dt_platform_set_constant, _add_table and _load apply it. */
dt_status dt_platform_constant_check(const dt_platform_constant *constant);

/* The most that is read of any text file, JSON of a platform or of a checkpoint: a device has no end. */
#define DT_TEXT_MAX_BYTES 100000000

/* DT_ERR_IO names the path; DT_ERR_INPUT the field (path of keys in the file), its value and what is allowed. */
dt_status dt_platform_load(const char *path, dt_platform **platform);
/* Writes a temporary name beside `path`, then renames: the file is whole or absent. Never NaN or infinity; counts are
 * JSON integers and at most 2^53, everything else a JSON real. DT_ERR_IO names the path; DT_ERR_ARGUMENT: a text that
 * is not UTF-8. */
dt_status dt_platform_save(const dt_platform *platform, const char *path);

const dt_platform_device *dt_platform_get_device(const dt_platform *platform);
size_t dt_platform_constant_count(const dt_platform *platform);
const dt_platform_constant *dt_platform_constant_at(const dt_platform *platform, size_t index);
size_t dt_platform_table_count(const dt_platform *platform);
const dt_platform_table *dt_platform_table_at(const dt_platform *platform, size_t index);
size_t dt_platform_note_count(const dt_platform *platform);
const char *dt_platform_note_at(const dt_platform *platform, size_t index);

/* By name; NULL if there is none. */
const dt_platform_constant *dt_platform_find_constant(const dt_platform *platform, const char *name);
/* The first table of that name whose labels agree; a label that is NULL here agrees with any. NULL if none does. */
const dt_platform_table *dt_platform_find_table(const dt_platform *platform, const char *name, const char *pattern,
                                                const char *operation, const char *alignment);

/* The constant's interval; DT_ERR_INPUT names it when it is missing. */
dt_status dt_platform_lookup(const dt_platform *platform, const char *name, dt_interval *interval);

/* The table at at[argument_count] (order of table->arguments): linear between the measured values of each argument in
 * turn, value, low and high alike; outside the measured range the nearest value, and *inside (may
 * be NULL) becomes 0. DT_ERR_ARGUMENT: an argument is not finite. */
dt_status dt_platform_interpolate(const dt_platform_table *table, const double *at, dt_interval *interval, int *inside);

/* The Burst-Gap model of `producers` producers of `producer_bytes` bytes: t0_s, rate_bytes_per_s and capacity_bytes,
 * each from the table of that name with these labels or, if no table has that name, the constant of that name.
 * DT_ERR_INPUT when tables of that name have other labels only, or t0_s or capacity_bytes may be below 0 or the rate 0.
 * sources (may be NULL) receives where each came from, in that order. */
typedef struct dt_platform_question {
  double producers, producer_bytes;
  const char *pattern, *operation, *alignment; /* NULL: any */
} dt_platform_question;
typedef struct dt_platform_source {
  const dt_platform_table *table; /* one of the two is NULL */
  const dt_platform_constant *constant;
  dt_interval interval;
  int inside; /* 0: beyond the measured range, nearest value taken */
} dt_platform_source;
dt_status dt_platform_burst_model(const dt_platform *platform, const dt_platform_question *question,
                                  dt_burst_model_interval *model, dt_platform_source sources[3]);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
