/* What the configurations of operators on GPUs are set to, in builds with the CUDA parts and without. */
#include <math.h>
#include <string.h>

#include <draintile/combine.h>
#include <draintile/combine_bench.h>
#include <draintile/cuda_attention.h>
#include <draintile/cuda_moe.h>
#include <draintile/gemm.h>
#include <draintile/ulysses.h>

enum { COMBINE_CONSUMERS = 16 /* measured beside fewer and more: docs/notes/combine.md */ };

void dt_combine_config_init(dt_combine_config *config) {
  *config = (dt_combine_config){
      .size = sizeof *config, .consumers = COMBINE_CONSUMERS, .segment_bands = 1, .dtype = DT_DTYPE_BF16};
}

void dt_combine_bench_case_init(dt_combine_bench_case *setting) {
  *setting = (dt_combine_bench_case){
      .rows = 16384, .n = 8192, .k = 2048, .experts = 8, .consumers = COMBINE_CONSUMERS, .segment_bands = 1};
}

void dt_combine_bench_config_init(dt_combine_bench_config *config) {
  *config = (dt_combine_bench_config){.size = sizeof *config, .ranks = 2, .repeat = 20, .warm_up = 3};
}

void dt_cuda_attention_init(dt_cuda_attention *attention) {
  memset(attention, 0, sizeof *attention);
  attention->size = sizeof *attention;
  attention->scale = NAN;
}

void dt_cuda_gemm_init(dt_cuda_gemm *gemm) {
  memset(gemm, 0, sizeof *gemm);
  gemm->size = sizeof *gemm;
  gemm->tensor_stores = 1;
  gemm->dtype = DT_DTYPE_BF16;
}

void dt_cuda_moe_config_init(dt_cuda_moe_config *config) {
  *config = (dt_cuda_moe_config){.size = sizeof *config, .schedule = DT_SCHEDULE_DIRECT};
}

void dt_ulysses_config_init(dt_ulysses_config *config) {
  *config = (dt_ulysses_config){.size = sizeof *config};
  dt_attention_config_init(&config->attention);
  config->attention.dtype = DT_DTYPE_BF16;
}
