# The serial OpenBLAS, static, with its buffer table locked (src/cpu/blas_memory.c). libdraintile.so takes it in; the
# programs that link the internal static library share one copy, dt_blas, which exports what cmake/blas.map lists.
find_library(DT_OPENBLAS_ARCHIVE NAMES libopenblas.a PATH_SUFFIXES openblas-serial REQUIRED)
find_path(DT_CBLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-serial REQUIRED)
set(DT_BLAS_OPTIONS -Wl,--wrap=blas_memory_alloc,--wrap=blas_memory_free)

add_library(dt_blas SHARED src/cpu/blas_memory.c)
target_link_libraries(dt_blas PRIVATE dt_options ${DT_OPENBLAS_ARCHIVE} Threads::Threads m)
target_link_options(dt_blas PRIVATE ${DT_BLAS_OPTIONS} -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/blas.map
  -Wl,-u,cblas_sgemm,-u,cblas_dgemm,-u,openblas_get_config,-u,openblas_get_corename)
set_target_properties(dt_blas PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/blas.map)
