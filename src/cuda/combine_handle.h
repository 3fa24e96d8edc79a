/* The combine operator's handle, and what its tests may do with it. */
#ifndef DT_CUDA_COMBINE_HANDLE_H
#define DT_CUDA_COMBINE_HANDLE_H

#include <draintile/combine.h>
#include <draintile/gemm.h>

#include "combine_plan.h"
#include "combine_tables.h"
#include "recorder.h"

/* DT_COMBINE_PACING_AUTO: with so many units of an expert, natural order makes one of them all remote. */
enum { DT_COMBINE_PACED_UNITS = 2 };
/* dt_cuda_gemm.link_k: 780 TFLOP/s over 368 GB/s, two H200 (bench/results/h200x2/platform.json). */
enum { DT_COMBINE_LINK_K = 2120 };

struct dt_combine {
  dt_combine_config config;
  int device, sms; /* sms: of this rank's budget */
  int has_counts;
  dt_window *buffer, *control, *matrix; /* matrix: counts that the ranks exchange; NULL until they do */
  uint8_t *staging;                     /* [rows_max][n]: rows of other ranks; run_gemm: all */
  void *workspace;                      /* the GEMM's */
  void *kept;                           /* direct's, whose task table serves as long as the host's counts do */
  dt_combine_state *state;
  int split;    /* with `kept` some tasks are turned */
  int64_t rows; /* of the host's counts, with padding; else rows_max */
  int32_t chunks_max;
  dt_device_plan plan; /* of counts on the device; its arrays point into plan_memory */
  void *plan_memory;
  cudaStream_t side; /* of the consumers */
  cudaEvent_t entered, sent;
  dt_combine_params params;
  dt_recorder *recorder; /* config.timestamps: else NULL */
  dt_span *spans;        /* [span_count] of the last direct run */
  size_t span_count;
};

/* combine_counts.c: sizes that do not depend on counts. */
int32_t dt_combine_bands_max(const dt_combine_config *config);
int32_t dt_combine_raster(const dt_combine_config *config); /* of signal's GEMM */
/* With counts on the device: queues the plan and the tables. */
dt_status dt_combine_queue_plan(dt_combine *combine, dt_combine_mode mode, cudaStream_t stream);

/* combine_run.c: the GEMM, all but operands and places of rows. */
dt_cuda_gemm dt_combine_gemm(const dt_combine *combine, int sms);
/* From the host's counts: the task table of the direct runs to come. */
dt_status dt_combine_keep_table(dt_combine *combine, const dt_combine_tables *tables);
/* With counts on the device: what a direct run queues, without its GEMM; plan 0: without plan and tables either. */
dt_status dt_combine_run_counts(dt_combine *combine, int plan, cudaStream_t stream);

/* combine_spans.c; without config.timestamps nothing. */
dt_status dt_combine_make_recorder(dt_combine *combine);
void dt_combine_free_recorder(dt_combine *combine);

dt_status dt_combine_memory(void **pointer, size_t bytes, const char *what); /* zeroed */

/* For tests; no run in flight on any rank. The epoch that the last run had, on every rank alike. */
dt_status dt_combine_set_epoch(dt_combine *combine, uint32_t epoch);
void dt_combine_set_fault(dt_combine *combine, dt_combine_fault fault);
void dt_combine_set_form(dt_combine *combine, dt_combine_launch launch, dt_combine_entry entry); /* of runs from here */

#endif
