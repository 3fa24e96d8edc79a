/* What a build without the CUDA parts says. */
#include <draintile/ulysses.h>
#include <draintile/ulysses_bench.h>

#include "core/error.h"

#ifndef DT_WITH_CUDA
static dt_status without(void) {
  return dt_fail(DT_ERR_UNSUPPORTED, "attention on GPUs; this build has no CUDA parts");
}

dt_status dt_ulysses_create(const dt_ulysses_config *config, dt_ulysses **ulysses) {
  (void)config, (void)ulysses;
  return without();
}
void dt_ulysses_destroy(dt_ulysses *ulysses) {
  (void)ulysses;
}
dt_status dt_ulysses_set_schedule(dt_ulysses *ulysses, const dt_ulysses_config *config) {
  (void)ulysses, (void)config;
  return without();
}
dt_status dt_ulysses_run(dt_ulysses *ulysses, dt_ulysses_part part, const void *q, const void *k, const void *v,
                         void *stream) {
  (void)ulysses, (void)part, (void)q, (void)k, (void)v, (void)stream;
  return without();
}
dt_status dt_ulysses_check(dt_ulysses *ulysses, void *stream) {
  (void)ulysses, (void)stream;
  return without();
}
void *dt_ulysses_output(dt_ulysses *ulysses) {
  (void)ulysses;
  return NULL;
}
size_t dt_ulysses_device_bytes(const dt_ulysses *ulysses) {
  (void)ulysses;
  return 0;
}
int64_t dt_ulysses_tile_count(const dt_ulysses *ulysses) {
  (void)ulysses;
  return 0;
}
dt_status dt_ulysses_spans(dt_ulysses *ulysses, void *stream, const dt_span **spans, size_t *count) {
  (void)ulysses, (void)stream, (void)spans, (void)count;
  return without();
}
dt_status dt_ulysses_bench_run(const dt_ulysses_bench_config *config, dt_ulysses_bench **bench) {
  (void)config, (void)bench;
  return dt_fail(DT_ERR_NO_DEVICE, "attention on GPUs; this build has no CUDA parts");
}
void dt_ulysses_bench_destroy(dt_ulysses_bench *bench) {
  (void)bench;
}
#endif
