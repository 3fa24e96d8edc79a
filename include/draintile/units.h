/* Quantities as people write them, in SI units inside: "4.25MiB", "9us", "717GB/s", "3.7e+11B/s", plain numbers.
 *
 * Bytes:            B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024); none: bytes.
 * Seconds:          s, ms, us, ns, ps, min, h; none: seconds.
 * Bytes per second: a byte unit and "/s"; none: bytes per second.
 * A space may stand before the unit. Values are finite and >= 0. "KB" is read as kB, 1000 bytes.
 */
#ifndef DRAINTILE_UNITS_H
#define DRAINTILE_UNITS_H

#include <stddef.h>

#include <draintile/status.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* `name` (the option or field) starts the error's detail. *value is set on success only. DT_ERR_ARGUMENT says what is
 * allowed, also when the unit is of another dimension ("9us" as bytes). */
dt_status dt_parse_bytes(const char *name, const char *text, double *bytes);
dt_status dt_parse_seconds(const char *name, const char *text, double *seconds);
dt_status dt_parse_bytes_per_s(const char *name, const char *text, double *bytes_per_s);

/* Four significant digits with the unit that gives at least 1: "4.25 MiB", "9 us", "717 GB/s". Always terminated;
 * returns `out`. 32 bytes are enough. */
char *dt_format_bytes(double bytes, char *out, size_t size);
char *dt_format_seconds(double seconds, char *out, size_t size);
char *dt_format_bytes_per_s(double bytes_per_s, char *out, size_t size);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
