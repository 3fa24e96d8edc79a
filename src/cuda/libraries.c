#include "libraries.h"

#include <dlfcn.h>

int dt_library_load(const char *const *names, size_t name_count, const char *const *symbols, size_t count,
                    void *functions) {
  void *library = NULL, **to = functions;
  for (size_t i = 0; i < name_count && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; i < count; i++) {
    to[i] = library ? dlsym(library, symbols[i]) : NULL;
    if (!to[i]) return 0;
  }
  return 1;
}

int dt_nccl_load(dt_nccl *nccl) {
  static const char *const names[] = {"libnccl.so.2", "libnccl.so"};
  static const char *const symbols[] = {"ncclCommInitAll", "ncclCommDestroy", "ncclGroupStart", "ncclGroupEnd",
                                        "ncclSend",        "ncclRecv",        "ncclGetVersion"};
  return dt_library_load(names, 2, symbols, sizeof symbols / sizeof *symbols, nccl);
}
