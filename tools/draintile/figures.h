/* What several reports compute alike. */
#ifndef DRAINTILE_TOOL_FIGURES_H
#define DRAINTILE_TOOL_FIGURES_H

#include <stdint.h>

#include <draintile/weights.h>

/* Sorts a copy; NaN without values. */
double figures_median(const double *values, int32_t count);
/* values[count], 1 or more, come out sorted; quartiles are values, the outer ones of two. */
void figures_quartiles(double *values, int32_t count, double *low, double *median, double *high);

/* The largest relative error of a token that --check allows. */
double figures_tolerance(dt_dtype dtype);
/* ||y - reference|| / ||reference||, as if the values of the reference were at least the smallest normal ones of the
 * type (smaller ones it cannot hold as precisely); where the reference is 0, y must be 0. NaN counts as infinitely
 * wrong. */
double figures_token_error(dt_dtype dtype, const double *y, const double *reference, int64_t count);

/* Raises *worst to an error that is worse; once it is NaN it stays that, which passes no check. */
void figures_raise(double *worst, double error);

/* How an output compares with serial's and with the reference. */
typedef struct figures_verdict {
  int32_t bit_equal;         /* every output, warm-up included, equals serial's first */
  double max_relative_error; /* NaN: not checked */
  int64_t worst_token;       /* of the file; -1: no tokens */
} figures_verdict;

/* Keeps the worse of what is there and this token's error. */
void figures_verdict_add(figures_verdict *verdict, double error, int64_t token);
/* Keeps the worse of what is there and another rank's. */
void figures_verdict_merge(figures_verdict *verdict, const figures_verdict *rank);

/* What a schedule hid of the communication, from its time and the parts of serial's: docs/command.md. */
typedef struct figures_overlap {
  double total_s, compute_alone_s, comm_alone_s, serial_s;
  double hidden_ratio, efficiency, speedup_over_serial;
} figures_overlap;

figures_overlap figures_overlap_of(double total_s, double compute_alone_s, double comm_alone_s, double serial_s);

#endif
