/* The platform in memory, and the rules its parts keep. */
#ifndef DT_IO_PLATFORM_H
#define DT_IO_PLATFORM_H

#include <draintile/platform.h>

typedef struct owned_constant {
  dt_platform_constant view; /* points to what follows */
  char *name, *method;
  double *samples;
} owned_constant;

typedef struct owned_table {
  dt_platform_table view;
  char *strings[5 + DT_PLATFORM_ARGUMENTS]; /* name, labels, method, arguments */
  dt_platform_point *points;
  double *samples; /* of all points, one block */
} owned_table;

struct dt_platform {
  dt_platform_device device;
  char *device_strings[4];
  owned_constant *constants;
  owned_table *tables;
  char **notes;
  size_t constant_count, table_count, note_count;
};

/* Each prefixes the field with `where` ("constants.t0_s"). */
dt_status dt_platform_check_device(const dt_platform_device *device, dt_status status);
dt_status dt_platform_check_constant(const dt_platform_constant *constant, const char *where, dt_status status);
dt_status dt_platform_check_table(const dt_platform_table *table, const char *where, dt_status status);

/* The unit that a name ends in ("bytes_per_s"), or NULL. */
const char *dt_platform_unit(const char *name);

#endif
