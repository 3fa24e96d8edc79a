/* What stands before the attention kernel in check_arrival. */
#ifndef DT_TESTS_ARRIVAL_SUPPORT_H
#define DT_TESTS_ARRIVAL_SUPPORT_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct arrival_operands {
  const void *from[3]; /* q, k, v, [rows][heads][head_dim] of 2 bytes */
  void *to[3];
  int64_t tokens, kv_tokens;
  int heads, head_dim;
} arrival_operands;

/* A kernel of one thread: sets words[heads] to `value`, lets a kernel launched behind it start early, and ends when the
 * first word of `watched` is not `poison` (*seen = 1) or after limit_us (*seen = 0). */
cudaError_t arrival_watch(uint32_t *words, int heads, uint32_t value, const void *watched, uint32_t poison,
                          uint32_t limit_us, uint32_t *seen, cudaStream_t stream);
/* After delay_us copies one head into place, then sets its word. One block. */
cudaError_t arrival_bring(const arrival_operands *operands, int head, uint32_t delay_us, uint32_t *word, uint32_t value,
                          cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
