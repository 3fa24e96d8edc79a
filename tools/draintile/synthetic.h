/* Synthetic tensors and routings, deterministic by seed. */
#ifndef DRAINTILE_TOOL_SYNTHETIC_H
#define DRAINTILE_TOOL_SYNTHETIC_H

#include <stddef.h>
#include <stdint.h>

#include <draintile/checkpoint.h>

#include "args.h"

/* One tensor of a file: `data` as it is or, without it, normal values with this standard deviation around this mean. */
typedef struct synthetic_tensor {
  dt_tensor_spec spec;
  double mean, deviation;
  const void *data;
} synthetic_tensor;

/* Writes the tensors to one file. Returns an exit code, having said what failed. */
int synthetic_write(const char *path, const synthetic_tensor *tensors, size_t count, uint64_t seed);
/* The bytes of a tensor. */
int64_t synthetic_bytes(const dt_tensor_spec *spec);

typedef enum synthetic_routing {
  SYNTHETIC_BALANCED = 0,      /* every (source, expert) count within 1 of its mean */
  SYNTHETIC_MODERATE_SKEW = 1, /* expert weights ~ place^-0.5 under a random permutation, drawn without replacement */
  SYNTHETIC_STRESS_SKEW = 2    /* half of the slots to the first eighth of the experts, half uniform */
} synthetic_routing;
extern const char *const synthetic_routing_names[];

/* ids[tokens][top_k], distinct within a token; top_k <= experts. TOOL_FAILED when out of memory. */
int synthetic_route(synthetic_routing routing, int64_t tokens, int32_t experts, int32_t top_k, uint64_t seed,
                    int32_t *ids);

#endif
