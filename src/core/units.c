#include <draintile/units.h>

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

typedef struct unit {
  const char *name;
  double scale;
} unit;

#define KIB 1024.0
static const unit byte_units[] = {
    {"B", 1.0},
    {"kB", 1e3},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"KiB", KIB},
    {"MiB", KIB *KIB},
    {"GiB", KIB *KIB *KIB},
    {"TiB", KIB *KIB *KIB *KIB},
    {NULL, 0.0},
};
static const unit second_units[] = {
    {"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"ps", 1e-12}, {"min", 60.0}, {"h", 3600.0}, {NULL, 0.0},
};

static const char bytes_allowed[] = "a number >= 0, alone or with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB";
static const char seconds_allowed[] = "a number >= 0, alone or with s, ms, us, ns, ps, min or h";
static const char rate_allowed[] = "a number >= 0, alone or with a unit of bytes per second, as 717GB/s or 3.5GiB/s";

/* Length of a decimal number without a sign at `text`; 0: none. An "e" counts only with digits behind it. */
static size_t number_length(const char *text) {
  size_t whole = strspn(text, "0123456789"), at = whole, fraction = 0;
  if (text[at] == '.') {
    fraction = strspn(text + at + 1, "0123456789");
    at += 1 + fraction;
  }
  if (whole + fraction == 0) return 0;
  if (text[at] == 'e' || text[at] == 'E') {
    size_t digits = at + 1 + (text[at + 1] == '+' || text[at + 1] == '-');
    size_t count = strspn(text + digits, "0123456789");
    if (count) at = digits + count;
  }
  return at;
}

/* A program may have set a locale whose decimal point is a comma. */
static double parse_number(const char *text) {
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  if (!c) return strtod(text, NULL);
  double value = strtod_l(text, NULL, c);
  freelocale(c);
  return value;
}

static dt_status parse(const char *name, const char *text, const unit *units, const char *suffix, const char *allowed,
                       double *value) {
  const char *shown = text ? text : "(none)";
  size_t length = text ? number_length(text) : 0;
  if (length == 0 || length > 64) return dt_fail(DT_ERR_ARGUMENT, "%s: \"%s\"; allowed: %s", name, shown, allowed);
  char digits[65];
  memcpy(digits, text, length);
  digits[length] = '\0';
  double number = parse_number(digits), scale = 0.0;
  const char *rest = text + length;
  if (*rest == '\0') scale = 1.0;
  if (*rest == ' ') rest++;
  for (const unit *u = units; u->name; u++) {
    size_t n = strlen(u->name);
    if (strncmp(rest, u->name, n) == 0 && strcmp(rest + n, suffix) == 0) scale = u->scale;
  }
  if (scale == 0.0 || !isfinite(number * scale))
    return dt_fail(DT_ERR_ARGUMENT, "%s: \"%s\"; allowed: %s", name, shown, allowed);
  /* Division by a power of ten is exact where multiplication by its inverse is not: 9us is the double 9e-6. */
  *value = scale < 1.0 ? number / round(1.0 / scale) : number * scale;
  return DT_OK;
}

dt_status dt_parse_bytes(const char *name, const char *text, double *bytes) {
  return parse(name, text, byte_units, "", bytes_allowed, bytes);
}

dt_status dt_parse_seconds(const char *name, const char *text, double *seconds) {
  return parse(name, text, second_units, "", seconds_allowed, seconds);
}

dt_status dt_parse_bytes_per_s(const char *name, const char *text, double *bytes_per_s) {
  return parse(name, text, byte_units, "/s", rate_allowed, bytes_per_s);
}

/* units: descending scales, the last taken for anything smaller. */
static char *format(double value, const unit *units, char *out, size_t size) {
  const unit *u = units;
  while (u[1].name && !(fabs(value) >= u->scale)) u++;
  double shown = value / u->scale;
  const int whole = fabs(shown) >= 1000.0 && fabs(shown) < 1e15; /* more digits would push the unit out of 32 bytes */
  snprintf(out, size, whole ? "%.0f %s" : "%.4g %s", shown, u->name);
  return out;
}

char *dt_format_bytes(double bytes, char *out, size_t size) {
  static const unit units[] = {{"TiB", KIB * KIB * KIB * KIB},
                               {"GiB", KIB * KIB * KIB},
                               {"MiB", KIB * KIB},
                               {"KiB", KIB},
                               {"B", 1.0},
                               {NULL, 0.0}};
  return format(bytes, units, out, size);
}

char *dt_format_seconds(double seconds, char *out, size_t size) {
  static const unit units[] = {{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {NULL, 0.0}};
  if (seconds == 0.0) {
    snprintf(out, size, "0 s");
    return out;
  }
  return format(seconds, units, out, size);
}

char *dt_format_bytes_per_s(double bytes_per_s, char *out, size_t size) {
  static const unit units[] = {{"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}, {"kB/s", 1e3}, {"B/s", 1.0}, {NULL, 0.0}};
  return format(bytes_per_s, units, out, size);
}
