/* Parts of `draintile bench combine`: the limit, the prediction, the report. */
#ifndef DRAINTILE_TOOL_BENCH_COMBINE_H
#define DRAINTILE_TOOL_BENCH_COMBINE_H

#include <draintile/combine_bench.h>
#include <draintile/platform.h>

#include "json.h"

extern const char *const bench_combine_routers[];
extern const char *const launch_names[], *const entry_names[], *const pacing_names[]; /* by their enums */
extern const char *const method_names[];                                              /* by dt_combine_method */

/* What a platform file says of the machine; NaN: there is no file, or it does not say. */
enum { COMBINE_CONSTANTS = 5 };
typedef struct combine_platform {
  dt_platform *platform; /* NULL: none */
  double rate_bytes_per_s, memory_bytes_per_s, capacity_bytes;
  double constant_s[COMBINE_CONSTANTS], constants_s; /* their sum */
} combine_platform;
extern const char *const combine_constant_names[COMBINE_CONSTANTS];

/* Without a path everything is NaN. Returns an exit code. */
int combine_platform_read(combine_platform *platform, const char *path);

/* What the time of a combine cannot be below on this machine. */
typedef struct combine_limit {
  double compute_s, link_s, weights_s, total_s;
  int64_t bytes, weights_bytes; /* the most that one rank sends or receives; what its GEMM reads of weights */
} combine_limit;
combine_limit combine_limit_of(const dt_combine_bench *bench, const combine_platform *platform);

/* What the simulator says before the run, from the platform file alone. */
typedef struct combine_prediction {
  double gemm_s, signal_s, signal_remote_first_s;
  double direct_s; /* with the setting's pacing; the next two: no and every expert's bands mixed */
  double direct_natural_s, direct_paced_s;
} combine_prediction;
/* NaN where the platform file does not say enough. `counts` as in draintile/combine.h. */
dt_status combine_predict(const dt_combine_bench_case *setting, int32_t ranks, const int32_t *counts,
                          const combine_platform *platform, combine_prediction *prediction);

/* One line a setting; with `whole` a table. */
void combine_print(const dt_combine_bench *bench, const combine_limit *limit, const combine_prediction *prediction,
                   int whole);
json_t *combine_json(const dt_combine_bench *bench, const combine_limit *limit, const combine_prediction *prediction);
json_t *combine_setting_json(const dt_combine_bench_case *setting);
json_t *combine_prediction_json(const combine_prediction *prediction);

#endif
