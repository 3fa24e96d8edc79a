/* A layer's slots (src/cuda/moe_slots.h), run on the host phase by phase (src/cuda/plan_warp.h): equal to dt_slots in
 * every entry, for any number of blocks and warps. */
#include "device_slots_support.h"

#include "cuda/moe_slots.h"

static void run_count(const dt_device_slots *slots) {
  dt_team team = {0, slots->warps, 0, slots->blocks};
  int32_t *memory = take(dt_slots_count_bytes(slots), 1);
#define PHASE(phase)                                                                                                   \
  for (team.warp = 0; team.warp < team.warps; team.warp++) {                                                           \
    dt_slots_scratch scratch = dt_slots_scratch_at(slots, memory, team.block, team.warp);                              \
    phase(slots, &scratch, &team);                                                                                     \
  }
  for (team.block = 0; team.block < team.blocks; team.block++) {
    memset(memory, 0xa5, dt_slots_count_bytes(slots));
    DT_COUNT_PHASES(PHASE)
  }
#undef PHASE
  free(memory);
}

static void run_place(const dt_device_slots *slots, const int32_t *counts, int32_t warps) {
  dt_team team = {0, warps, 0, slots->blocks};
  int32_t *memory = take(dt_slots_place_bytes(slots), 1);
  for (team.block = 0; team.block < team.blocks; team.block++) {
    memset(memory, 0xa5, dt_slots_place_bytes(slots));
    dt_slots_scratch scratch = dt_slots_scratch_at(slots, memory, team.block, 0);
    for (team.warp = 0; team.warp < warps; team.warp++) dt_place_clear(slots, &scratch, &team);
    for (team.warp = 0; team.warp < warps; team.warp++) dt_place_sum(slots, counts, &scratch, &team);
    for (team.warp = 0; team.warp < warps; team.warp++) dt_place_rows(slots, &scratch, &team);
  }
  free(memory);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_slots), cmocka_unit_test(test_slots_errors)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
