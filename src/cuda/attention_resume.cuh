/* Tiles cut in two: a warpgroup leaves its rows of a tile as they are in scratch memory, and one of another CTA goes on
 * with them, so that the bits are those of a tile that is not cut.
 */
#ifndef DT_CUDA_ATTENTION_RESUME_CUH
#define DT_CUDA_ATTENTION_RESUME_CUH

#include "cuda/attention_pipeline.cuh"

/* A slab: of every consumer thread, 16 bytes of each in turn, its sums of P V; then the shifts and sums of its rows. */
template <class C> DT_DEVICE float4 *dt_state_at(const dt_attention_kernel &a, int32_t n) {
  return (float4 *)a.scratch + (size_t)a.pieces[dt_attention_cta()][n].scratch * (2 * C::M * (C::D / 8 + 1)) +
         threadIdx.x;
}

template <class C>
DT_DEVICE void dt_state_write(const dt_attention_kernel &a, const float (&o)[C::D / 2], const float (&shift)[2],
                              const float (&sum)[2]) {
  float4 *to = dt_state_at<C>(a, 0);
#pragma unroll
  for (int i = 0; i < C::D / 8; i++)
    __stcg(to + i * 2 * C::M, make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]));
  __stcg(to + C::D / 8 * 2 * C::M, make_float4(shift[0], shift[1], sum[0], sum[1]));
}
template <class C>
DT_DEVICE void dt_state_read(const dt_attention_kernel &a, float (&o)[C::D / 2], float (&shift)[2], float (&sum)[2]) {
  const float4 *from = dt_state_at<C>(a, 1);
  const float4 rows = __ldcg(from + C::D / 8 * 2 * C::M);
#pragma unroll
  for (int i = 0; i < C::D / 8; i++) {
    const float4 x = __ldcg(from + i * 2 * C::M);
    o[4 * i] = x.x, o[4 * i + 1] = x.y, o[4 * i + 2] = x.z, o[4 * i + 3] = x.w;
  }
  shift[0] = rows.x, shift[1] = rows.y, sum[0] = rows.z, sum[1] = rows.w;
}

/* This warp's rows are left: pairs with the acquire in dt_attention_resumable. Some time after the stores, so that they
 * have gone and nothing waits. */
template <class C> DT_DEVICE void dt_state_tell(const dt_attention_kernel &a) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) dt_add_release_gpu(&a.header->merges[a.pieces[dt_attention_cta()][0].scratch], 1);
}

#endif
