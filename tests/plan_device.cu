/* The plan's sources compile as device code. This file is compiled, not run: that both sides give the same plan follows
 * from its being one source. */
#include "plan/build.h"
#include "plan/slots.h"
#include "plan/ulysses.h"

extern "C" __global__ void plan_measure(dt_plan_config config, const int32_t *counts, dt_build_ranks ranks,
                                        dt_build_sizes *sizes, int64_t *tasks) {
  dt_build_measure(&config, counts, &ranks, sizes);
  *tasks = dt_build_task_count(&config, sizes);
}

extern "C" __global__ void plan_fill(dt_plan_config config, const int32_t *counts, const dt_build_sizes *sizes,
                                     dt_build_ranks ranks, dt_build_scratch scratch, dt_build_arrays arrays) {
  dt_build_fill(&config, counts, sizes, &ranks, &scratch, &arrays);
}

/* Experts do not depend on one another: one thread each. dst_rows is [experts][ranks]. */
extern "C" __global__ void plan_experts(dt_plan_config config, const int32_t *counts, const dt_expert_layout *experts,
                                        const int64_t *dst_rows, dt_build_arrays arrays) {
  dt_shape shape = dt_shape_of(&config, counts);
  int32_t e = (int32_t)(blockIdx.x * blockDim.x + threadIdx.x);
  if (e >= shape.experts) return;
  dt_expert_fill(&shape, config.rank, e, &experts[e], &dst_rows[(int64_t)e * shape.ranks], arrays.groups, arrays.bands,
                 arrays.parts, arrays.segments);
}

extern "C" __global__ void plan_slots(const int32_t *ids, int64_t slots, int32_t experts, int32_t *counts,
                                      int32_t *row_of_slot, int32_t *slot_of_row, int64_t *bad) {
  *bad = dt_slots_bad(ids, slots, experts);
  if (*bad < 0) dt_slots_place(ids, slots, experts, counts, row_of_slot, slot_of_row);
}

/* Where a row of a head arrives, and who owns it: one thread a rank. */
extern "C" __global__ void attention_places(dt_ulysses_layout u, int64_t *places) {
  int32_t rank = (int32_t)threadIdx.x;
  if (rank >= u.ranks) return;
  dt_ulysses_rows run = dt_ulysses_sent(&u, u.kv_tokens, rank, 0, DT_ULYSSES_IMAGE);
  places[2 * rank] = dt_ulysses_kv_at(&u, 0, 1, dt_ulysses_kv_of(&u, 0, 0), run.first) + dt_ulysses_arrivals(&u, rank);
  places[2 * rank + 1] = dt_ulysses_visible(&u, dt_ulysses_owned_rows(&u, u.tokens, rank));
}
