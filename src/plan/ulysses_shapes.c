/* Names of the Ulysses benchmark, in builds without CUDA too. */
#include <stddef.h>

#include <draintile/ulysses_bench.h>

const dt_ulysses_shape *dt_ulysses_shape_at(int32_t index) {
#define DT_ULYSSES_SHAPE_ROW(name, heads, dim, image, text) {name, heads, dim, image, text},
  static const dt_ulysses_shape shapes[] = {DT_ULYSSES_SHAPE_TABLE(DT_ULYSSES_SHAPE_ROW)};
#undef DT_ULYSSES_SHAPE_ROW
  return index >= 0 && index < DT_ULYSSES_SHAPES ? &shapes[index] : NULL;
}

const char *dt_ulysses_method_name(dt_ulysses_method method) {
  static const char *const names[] = {"kernel",    "serial", "fused",       "in",
                                      "piggyback", "whole",  "fused-graph", "whole-graph"};
  return (unsigned)method < DT_ULYSSES_METHODS ? names[method] : "unknown";
}

void dt_ulysses_bench_config_init(dt_ulysses_bench_config *config) {
  *config = (dt_ulysses_bench_config){
      .size = sizeof *config, .ranks = 2, .shape = *dt_ulysses_shape_at(0), .repeat = 20, .warm_up = 3};
}
