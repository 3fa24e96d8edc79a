/* What `draintile calibrate` prints and writes. */
#ifndef DRAINTILE_TOOL_CALIBRATE_REPORT_H
#define DRAINTILE_TOOL_CALIBRATE_REPORT_H

#include <stdio.h>

#include <draintile/calibrate.h>

/* The constants and the Burst-Gap tables. */
void report_platform(FILE *out, const dt_platform *platform);
void report_verification(FILE *out, const dt_verification *verification);
/* Schema "draintile-verification". Returns an exit code. */
int report_write(const dt_verification *verification, const dt_platform *platform, const char *command,
                 const char *path);

/* Pictures of a platform, PNG and SVG, by gnuplot, into `folder`; those that need a table that is missing are left
 * out. verification: the path of a verification file, NULL: no residuals. Returns an exit code. */
int plot_platform(const dt_platform *platform, const char *verification, const char *folder);

#endif
