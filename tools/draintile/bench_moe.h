/* Parts of `draintile bench moe`: the methods of a row, its limit and price, the report. */
#ifndef DRAINTILE_TOOL_BENCH_MOE_H
#define DRAINTILE_TOOL_BENCH_MOE_H

#include <jansson.h>

#include <draintile/moe_bench.h>

#include "args.h"
#include "device_limit.h"

extern const char *const bench_moe_models[];    /* by dt_moe_shape_at */
extern const char *const bench_moe_routers[];   /* by dt_moe_router */
extern const char *const bench_moe_schedules[]; /* what --schedule takes */

enum { BENCH_MOE_METHODS = 64, BENCH_MOE_NAME = 64 };

/* What is timed in a row, in turns: serial and the parts on its plan, then every other schedule and grouping; one
 * schedule again, launched live. */
typedef struct bench_moe_methods {
  dt_moe_bench_method list[BENCH_MOE_METHODS];
  char names[BENCH_MOE_METHODS][BENCH_MOE_NAME];
  double predicted_s[BENCH_MOE_METHODS]; /* NaN: not priced */
  int32_t count;
} bench_moe_methods;

/* One row as it was asked for. */
typedef struct bench_moe_row {
  const dt_moe_shape *shape;
  dt_moe_router router;
  int64_t tokens;
  int32_t ranks;
} bench_moe_row;

/* Returns an exit code: too many. sms: multiprocessors of a GPU, for waves as published. */
int bench_moe_methods_make(const tool_args *args, const bench_moe_row *row, int32_t sms, bench_moe_methods *methods);
/* Fills predicted_s by the simulator, where the platform file knows enough. */
int bench_moe_price(const bench_moe_row *row, const device_machine *machine, int32_t sms, uint64_t seed,
                    bench_moe_methods *methods);

/* The bound of a row: what its slowest rank computes, must send and must read. */
device_limit bench_moe_limit(const bench_moe_row *row, const device_machine *machine, const dt_moe_bench_result *result,
                             double compute_s);
/* A part's time, with or without dedup, whichever is less; NaN without it. */
double bench_moe_part(const bench_moe_methods *methods, const dt_moe_bench_result *result, dt_cuda_moe_part part);

/* A line a row; the whole as JSON. Without a result only what was priced. */
void bench_moe_print(const bench_moe_row *row, const bench_moe_methods *methods, const dt_moe_bench_result *result,
                     const device_limit *limit);
json_t *bench_moe_json(const bench_moe_row *row, const bench_moe_methods *methods, const dt_moe_bench_result *result,
                       const device_limit *limit, int32_t repeat, int64_t max_tokens);
/* Bits and errors of a row: TOOL_OK or TOOL_CHECK_FAILED, having said which. */
int bench_moe_judge(const bench_moe_row *row, const bench_moe_methods *methods, const dt_moe_bench_result *result);

#endif
