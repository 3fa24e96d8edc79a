/* Version of the library. The ABI (SONAME) changes with the major number only. */
#ifndef DRAINTILE_VERSION_H
#define DRAINTILE_VERSION_H

#define DT_VERSION_MAJOR 0
#define DT_VERSION_MINOR 1
#define DT_VERSION_PATCH 0
#define DT_VERSION_STRING "0.1.0"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Version of the library that was loaded, to compare with DT_VERSION_STRING. Static string. */
const char *dt_version(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
