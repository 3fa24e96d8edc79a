/* A layer's slots (src/cuda/moe_slots.h), run on the host phase by phase (src/cuda/plan_warp.h): equal to dt_slots in
 * every entry, for any number of blocks and warps. */
#include "cuda/moe_slots.h"

#include "device_slots_support.h"

static dt_slots_scratch scratch_of(const dt_device_slots *slots, int32_t *memory, const dt_team *team) {
  return dt_slots_scratch_at(slots, memory, team->block, team->warp);
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
