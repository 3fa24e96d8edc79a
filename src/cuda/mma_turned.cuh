/* Warpgroup matrix multiply of turned tiles: m64nNk16 with N, the rows of A, from 144 to 224. Operands and accumulators
 * as mma.cuh says, with the weights as rows and A's rows as columns. */
#ifndef DT_CUDA_MMA_TURNED_CUH
#define DT_CUDA_MMA_TURNED_CUH

#include "cuda/mma.cuh"

/* Names of the first so many accumulators. */
#define DT_NAMES_64                                                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "     \
  "%24, "                                                                                                              \
  "%25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "     \
  "%47, "                                                                                                              \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DT_NAMES_72 DT_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define DT_NAMES_80 DT_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define DT_NAMES_88 DT_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define DT_NAMES_96 DT_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define DT_NAMES_104 DT_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define DT_NAMES_112 DT_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"

/* a, b, and whether to accumulate are the operands behind the accumulators. */
#define DT_MMA_TURNED(n, names, a_name, b_name, p_name, ...)                                                           \
  asm volatile("{\n\t.reg .pred p;\n\t"                                                                                \
               "setp.ne.b32 p, " p_name ", 0;\n\t"                                                                     \
               "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" names "}, " a_name ", " b_name             \
               ", p, 1, 1, 0, 0;\n\t}"                                                                                 \
               : __VA_ARGS__                                                                                           \
               : "l"(a), "l"(b), "r"(accumulate))

/* d = a*b (accumulate 0) or d += a*b, in d[0] to d[N/2 - 1]. */
template <int N> DT_DEVICE void dt_mma_turned(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  if constexpr (N == 144)
    DT_MMA_TURNED(144, DT_NAMES_72, "%72", "%73", "%74", DT_D64(0), DT_D8(64));
  else if constexpr (N == 160)
    DT_MMA_TURNED(160, DT_NAMES_80, "%80", "%81", "%82", DT_D64(0), DT_D8(64), DT_D8(72));
  else if constexpr (N == 176)
    DT_MMA_TURNED(176, DT_NAMES_88, "%88", "%89", "%90", DT_D64(0), DT_D8(64), DT_D8(72), DT_D8(80));
  else if constexpr (N == 192)
    DT_MMA_TURNED(192, DT_NAMES_96, "%96", "%97", "%98", DT_D64(0), DT_D8(64), DT_D8(72), DT_D8(80), DT_D8(88));
  else if constexpr (N == 208)
    DT_MMA_TURNED(208, DT_NAMES_104, "%104", "%105", "%106", DT_D64(0), DT_D8(64), DT_D8(72), DT_D8(80), DT_D8(88),
                  DT_D8(96));
  else if constexpr (N == 224)
    DT_MMA_TURNED(224, DT_NAMES_112, "%112", "%113", "%114", DT_D64(0), DT_D8(64), DT_D8(72), DT_D8(80), DT_D8(88),
                  DT_D8(96), DT_D8(104));
  else
    static_assert(N == 144, "N: 144 to 224 in steps of 16");
}

#endif
