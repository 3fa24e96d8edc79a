/* Warpgroup matrix multiply as attention needs it, bf16 or fp16 in, float32 accumulate: scores = Q K^T with both
 * operands in shared memory, and O += P V with P in registers and V as it lies in memory (transposed B).
 *
 * Accumulators lie as mma.cuh says; four neighbouring pairs of a thread's scores, packed, are its part of P for 16
 * columns.
 */
#ifndef DT_CUDA_ATTENTION_MMA_CUH
#define DT_CUDA_ATTENTION_MMA_CUH

#include "cuda/mma.cuh"

/* Descriptors. K-major operands as dt_mma_operand makes them. V is read along its rows: groups of 8 rows 1,024 bytes
 * apart, 64 columns further `column_bytes` further; to the low half add DT_MMA_V16 per 16 rows. */
enum { DT_MMA_V16 = 128 };
DT_DEVICE uint32_t dt_mma_start_v(uint32_t address, uint32_t column_bytes) {
  return (address & 0x3ffffu) >> 4 | column_bytes / 16 << 16;
}

template <bool Half> DT_DEVICE uint32_t dt_pack(float lo, float hi) {
  if constexpr (!Half) return dt_pack_bf16(lo, hi);
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

/* P's registers must not be reused before the wait ahead of this: see mma.cuh. */
template <int Count> DT_DEVICE void dt_settle(uint32_t (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* Operand lists: text, and constraints with C either "=f" or "+f". */
#define DT_TEXT_32                                                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                             \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DT_TEXT_40 DT_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define DT_TEXT_64                                                                                                     \
  DT_TEXT_40 ", %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "                      \
             "%56, %57, %58, %59, %60, %61, %62, %63"
#define DT_TEXT_128                                                                                                    \
  DT_TEXT_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                      \
             "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                        \
             "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "          \
             "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define DT_LIST_8(C, i)                                                                                                \
  C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define DT_LIST_32(C) DT_LIST_8(C, 0), DT_LIST_8(C, 8), DT_LIST_8(C, 16), DT_LIST_8(C, 24)
#define DT_LIST_40(C) DT_LIST_32(C), DT_LIST_8(C, 32)
#define DT_LIST_64(C) DT_LIST_40(C), DT_LIST_8(C, 40), DT_LIST_8(C, 48), DT_LIST_8(C, 56)
#define DT_LIST_128(C)                                                                                                 \
  DT_LIST_64(C), DT_LIST_8(C, 64), DT_LIST_8(C, 72), DT_LIST_8(C, 80), DT_LIST_8(C, 88), DT_LIST_8(C, 96),             \
      DT_LIST_8(C, 104), DT_LIST_8(C, 112), DT_LIST_8(C, 120)

/* dt_scores<N>: 64 rows of Q times N rows of K, 16 deep. `first` does not read d: with read-write operands the old
 * scores would stay in registers. */
template <int N> struct dt_scores;
#define DT_SCORES_ASM(N, TYPE, COUNT, C, ADD, A, B)                                                                    \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " ADD ", 0;\n\t"                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" DT_TEXT_##COUNT "}, " A ", " B     \
               ", p, 1, 1, 0, 0;\n\t}"                                                                                 \
               : DT_LIST_##COUNT(C)                                                                                    \
               : "l"(a), "l"(b))
#define DT_SCORES(N, COUNT, A, B)                                                                                      \
  template <> struct dt_scores<N> {                                                                                    \
    template <bool Half> static __device__ __forceinline__ void first(float (&d)[COUNT], uint64_t a, uint64_t b) {     \
      if constexpr (Half)                                                                                              \
        DT_SCORES_ASM(N, "f16", COUNT, "=f", "0", A, B);                                                               \
      else                                                                                                             \
        DT_SCORES_ASM(N, "bf16", COUNT, "=f", "0", A, B);                                                              \
    }                                                                                                                  \
    template <bool Half> static __device__ __forceinline__ void add(float (&d)[COUNT], uint64_t a, uint64_t b) {       \
      if constexpr (Half)                                                                                              \
        DT_SCORES_ASM(N, "f16", COUNT, "+f", "1", A, B);                                                               \
      else                                                                                                             \
        DT_SCORES_ASM(N, "bf16", COUNT, "+f", "1", A, B);                                                              \
    }                                                                                                                  \
  };
DT_SCORES(80, 40, "%40", "%41")
DT_SCORES(128, 64, "%64", "%65")

/* dt_values<D>: O of 64 rows by D columns, += P of 16 columns times 16 rows of V (= if accumulate is 0). */
template <int D> struct dt_values;
#define DT_VALUES_ASM(D, TYPE, COUNT, P0, P1, P2, P3, B, ADD)                                                          \
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, " ADD ", 0;\n\t"                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #D "k16.f32." TYPE "." TYPE " {" DT_TEXT_##COUNT "}, {" P0 ", " P1  \
               ", " P2 ", " P3 "}, " B ", p, 1, 1, 1;\n\t}"                                                            \
               : DT_LIST_##COUNT("+f")                                                                                 \
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(b), "r"(accumulate))
#define DT_VALUES(D, COUNT, P0, P1, P2, P3, B, ADD)                                                                    \
  template <> struct dt_values<D> {                                                                                    \
    template <bool Half>                                                                                               \
    static __device__ __forceinline__ void add(float (&d)[COUNT], const uint32_t *p, uint64_t b, int accumulate) {     \
      if constexpr (Half)                                                                                              \
        DT_VALUES_ASM(D, "f16", COUNT, P0, P1, P2, P3, B, ADD);                                                        \
      else                                                                                                             \
        DT_VALUES_ASM(D, "bf16", COUNT, P0, P1, P2, P3, B, ADD);                                                       \
    }                                                                                                                  \
  };
DT_VALUES(64, 32, "%32", "%33", "%34", "%35", "%36", "%37")
DT_VALUES(128, 64, "%64", "%65", "%66", "%67", "%68", "%69")
DT_VALUES(256, 128, "%128", "%129", "%130", "%131", "%132", "%133")

#endif
