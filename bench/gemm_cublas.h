/* cuBLAS as a reference and a peer, loaded at run time: the benchmark links nothing of it. */
#ifndef DT_BENCH_GEMM_CUBLAS_H
#define DT_BENCH_GEMM_CUBLAS_H

#include "gemm_problem.h"

/* 0 when libcublas is not there. */
int cublas_open(cudaStream_t stream);
void cublas_loop(const gemm_problem *problem, uint16_t *out);  /* one GEMM an expert */
void cublas_dense(const gemm_problem *problem, uint16_t *out); /* all rows by the first expert's weights: equal flops */
void cublas_grouped(const gemm_problem *problem, uint16_t *out); /* after cublas_grouped_prepare */
void cublas_grouped_prepare(const gemm_problem *problem, uint16_t *out);

#endif
