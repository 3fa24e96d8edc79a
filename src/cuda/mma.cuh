/* Warpgroup matrix multiply, m64n256k16 and m64n128k16, bf16 in, float32 accumulate, both operands from shared memory.
 *
 * Operands lie as the copy engine writes boxes of 64 bf16 columns with 128-byte swizzle: rows of 128 bytes, groups of 8
 * rows of 1,024 bytes, aligned to 1,024. Thread t of the warpgroup (warp w = t/32, lane l = t%32) holds in d[4j] and
 * d[4j + 1] row 16w + l/4, columns 8j + 2(l%4) and the next; in d[4j + 2] and d[4j + 3] the same of row + 8.
 */
#ifndef DT_CUDA_MMA_CUH
#define DT_CUDA_MMA_CUH

#include "cuda/ptx.cuh"

/* An operand's descriptor, fields in units of 16 bytes. Low half: start address and leading offset 1 (unused with this
 * swizzle); high half: stride 1,024 between groups of 8 rows, swizzle mode 1 (128 bytes). To the low half add
 * DT_MMA_K per 16 columns and DT_MMA_ROWS64 per 64 rows. */
enum { DT_MMA_K = 2, DT_MMA_ROWS64 = 512 };
DT_DEVICE uint32_t dt_mma_start(uint32_t address) {
  return (address & 0x3ffffu) >> 4 | 1u << 16;
}
DT_DEVICE uint64_t dt_mma_operand(uint32_t start) {
  return (uint64_t)(64u | 1u << 30) << 32 | start;
}

DT_DEVICE void dt_mma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DT_DEVICE void dt_mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Left> DT_DEVICE void dt_mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}
/* Keeps reads of the accumulators behind the wait before it. */
template <int Count> DT_DEVICE void dt_settle(float (&d)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i++) asm volatile("" : "+f"(d[i])::"memory");
}

#define DT_D8(i)                                                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),          \
      "+f"(d[i + 7])
#define DT_D64(i)                                                                                                      \
  DT_D8(i), DT_D8(i + 8), DT_D8(i + 16), DT_D8(i + 24), DT_D8(i + 32), DT_D8(i + 40), DT_D8(i + 48), DT_D8(i + 56)

/* d = a*b (accumulate 0) or d += a*b. */
DT_DEVICE void dt_mma(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  asm volatile("{\n\t.reg .pred p;\n\t"
               "setp.ne.b32 p, %130, 0;\n\t"
               "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
               "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
               "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
               "}, %128, %129, p, 1, 1, 0, 0;\n\t}"
               : DT_D64(0), DT_D64(64)
               : "l"(a), "l"(b), "r"(accumulate));
}

/* The same for 128 columns, in d[0] to d[63]. */
DT_DEVICE void dt_mma_narrow(float (&d)[128], uint64_t a, uint64_t b, int accumulate) {
  asm volatile("{\n\t.reg .pred p;\n\t"
               "setp.ne.b32 p, %66, 0;\n\t"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
               "}, %64, %65, p, 1, 1, 0, 0;\n\t}"
               : DT_D64(0)
               : "l"(a), "l"(b), "r"(accumulate));
}

#endif
