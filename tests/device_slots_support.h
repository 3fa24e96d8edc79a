/* What the tests of both ways of placing slots share (src/cuda/plan_slots.h, src/cuda/moe_slots.h): equal to dt_slots
 * in every entry, for any number of blocks and warps. Each includes its header before this one, says where a warp's
 * scratch is, and runs its phases of placing. */
#ifndef DT_DEVICE_SLOTS_SUPPORT_H
#define DT_DEVICE_SLOTS_SUPPORT_H

#include "test_plan_support.h"

#include "cuda/plan_device.h"

enum { ROUTINGS = 150, MOST_WARPS = 6 };

static dt_slots_scratch scratch_of(const dt_device_slots *slots, int32_t *memory, const dt_team *team);

static void run_count(const dt_device_slots *slots) {
  dt_team team = {0, slots->warps, 0, slots->blocks};
  int32_t *memory = take(dt_slots_count_bytes(slots), 1);
#define PHASE(phase)                                                                                                   \
  for (team.warp = 0; team.warp < team.warps; team.warp++) {                                                           \
    dt_slots_scratch scratch = scratch_of(slots, memory, &team);                                                       \
    phase(slots, &scratch, &team);                                                                                     \
  }
  for (team.block = 0; team.block < team.blocks; team.block++) {
    memset(memory, 0xa5, dt_slots_count_bytes(slots));
    DT_COUNT_PHASES(PHASE)
  }
#undef PHASE
  free(memory);
}

/* counts: as counted, before they are cleared. warps: that place, where they need not be those that counted. */
static void run_place(const dt_device_slots *slots, const int32_t *counts, int32_t warps);

static void check_slots(dt_random *random, const routing *r, int32_t rank) {
  uint32_t error = 0;
  int32_t width = r->ranks * r->experts_per_rank;
  size_t slots = (size_t)r->tokens[rank] * (size_t)r->top_k;
  dt_device_slots device = {.ids = r->ids[rank],
                            .tokens = random_in(random, 0, 1) ? &r->tokens[rank] : NULL,
                            .tokens_capacity = r->tokens[rank],
                            .top_k = r->top_k,
                            .experts = width,
                            .error = &error,
                            .blocks = random_in(random, 1, 5),
                            .warps = random_in(random, 1, MOST_WARPS)};
  int32_t *padded = NULL;
  device.counts = take((size_t)width, sizeof(int32_t));
  device.row_of_slot = take(slots, sizeof(int32_t));
  device.slot_of_row = take(slots, sizeof(int32_t));
  device.histograms = take((size_t)width * (size_t)device.blocks, sizeof(int32_t));
  if (device.tokens) { /* rows need only hold what there is */
    device.tokens_capacity += random_in(random, 0, 9);
    size_t most = (size_t)device.tokens_capacity * (size_t)r->top_k;
    padded = take(most, sizeof *padded);
    memset(padded, 0x11, most * sizeof *padded); /* no ids */
    if (slots) memcpy(padded, r->ids[rank], slots * sizeof *padded);
    device.ids = padded;
  }
  run_count(&device);
  assert_int_equal(error, DT_DEVICE_PLAN_OK);
  assert_memory_equal(device.counts, &r->counts[rank * width], sizeof(int32_t) * (size_t)width);
  run_place(&device, &r->counts[rank * width], random_in(random, 1, MOST_WARPS));
  for (int32_t g = 0; g < width; g++) assert_int_equal(device.counts[g], 0);
  assert_memory_equal(device.row_of_slot, r->row_of_slot[rank], sizeof(int32_t) * slots);
  assert_memory_equal(device.slot_of_row, r->slot_of_row[rank], sizeof(int32_t) * slots);
  free(padded);
  free(device.counts);
  free(device.row_of_slot);
  free(device.slot_of_row);
  free(device.histograms);
}

static void test_slots(void **state) {
  dt_random random = {11};
  (void)state;
  for (int i = 0; i < ROUTINGS; i++) {
    routing r = routing_random(&random, random_in(&random, 1, 16), random_in(&random, 1, 64), 300);
    for (int32_t rank = 0; rank < r.ranks; rank++) check_slots(&random, &r, rank);
    routing_free(&r);
  }
}

/* An id out of range is reported and its slot dropped; too many tokens are reported and none is taken. */
static void test_slots_errors(void **state) {
  int32_t ids[6] = {0, 7, 2, -2, -1, 2}, clean[6] = {0, -1, 2, -1, -1, 2}, histograms[8];
  int32_t counts[3] = {0}, rows[6], slots[6], expected_counts[3], expected_rows[6], expected_slots[6];
  int64_t tokens = 6;
  uint32_t error = 0;
  dt_device_slots device = {ids, &tokens, 6, 1, 3, counts, rows, slots, histograms, &error, 2, 1};
  (void)state;
  assert_int_equal(dt_slots(clean, 6, 1, 3, expected_counts, expected_rows, expected_slots), DT_OK);
  run_count(&device);
  assert_int_equal(error, DT_DEVICE_PLAN_ERROR_ID);
  assert_memory_equal(counts, expected_counts, sizeof counts);
  run_place(&device, expected_counts, 1);
  assert_memory_equal(rows, expected_rows, sizeof rows);
  assert_memory_equal(slots, expected_slots, 3 * sizeof *slots);
  for (int i = 0; i < 2; i++) {
    error = 0;
    tokens = i == 0 ? 7 : -1;
    run_count(&device);
    assert_int_equal(error, DT_DEVICE_PLAN_ERROR_TOKENS);
    for (int g = 0; g < 3; g++) assert_int_equal(counts[g], 0);
  }
}

#endif
