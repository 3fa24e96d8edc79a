#include <draintile/build.h>

#include <cblas.h>
#include <sched.h>

void dt_build_info(dt_build *build) {
#ifdef __clang__
  build->compiler = "clang " __clang_version__;
#else
  build->compiler = "gcc " __VERSION__;
#endif
  build->blas = openblas_get_config();
  build->blas_core = openblas_get_corename();
#ifdef DT_WITH_CUDA
  build->cuda = 1;
#else
  build->cuda = 0;
#endif
}

int dt_build_processors(void) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  int count = CPU_COUNT(&set);
  return count > 0 ? count : 1;
}
