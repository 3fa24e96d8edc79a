# The CUDA parts: kernels for Hopper (sm_90a) and their host code, linked into the same library. Included when nvcc is
# found and DT_CUDA is on; the driver is loaded at run time, so the library also runs where there is none.
option(DT_PTXAS_VERBOSE "print every kernel's registers, shared memory and spills while it compiles" OFF)
file(GLOB DT_CUDA_SOURCES CONFIGURE_DEPENDS src/cuda/*.cu src/cuda/*.c src/cuda/probe/*.cu src/cuda/probe/*.c)
if(DT_CUDA_SOURCES)
  set(CMAKE_CUDA_ARCHITECTURES 90a)
  find_package(CUDAToolkit REQUIRED)
  add_library(dt_cuda_objects OBJECT ${DT_CUDA_SOURCES})
  target_include_directories(dt_cuda_objects PRIVATE include src)
  target_compile_options(dt_cuda_objects PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${DT_PTXAS_VERBOSE}>>:-Xptxas=-v>)
  target_link_libraries(dt_cuda_objects PRIVATE dt_options CUDA::cudart_static)
endif()
