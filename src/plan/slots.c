#include <draintile/plan.h>

#include "core/error.h"
#include "slots.h"

void dt_token_block(int64_t tokens, int32_t ranks, int32_t rank, int64_t *first, int64_t *count) {
  int64_t base = tokens / ranks, larger = tokens % ranks;
  *count = base + (rank < larger);
  *first = rank * base + (rank < larger ? rank : larger);
}

dt_status dt_slots(const int32_t *ids, int64_t tokens, int32_t top_k, int32_t experts, int32_t *counts,
                   int32_t *row_of_slot, int32_t *slot_of_row) {
  if (top_k < 1) return dt_fail(DT_ERR_ARGUMENT, "top_k: %d; at least 1", top_k);
  if (experts < 1) return dt_fail(DT_ERR_ARGUMENT, "experts: %d; at least 1", experts);
  if (tokens < 0 || tokens > INT32_MAX / top_k) {
    return dt_fail(DT_ERR_ARGUMENT, "tokens: %lld; 0 to %d with top_k %d (a slot index has 31 bits)", (long long)tokens,
                   INT32_MAX / top_k, top_k);
  }
  int64_t slots = tokens * top_k, bad = dt_slots_bad(ids, slots, experts);
  if (bad >= 0) {
    return dt_fail(DT_ERR_INPUT, "ids: token %lld, choice %lld: %d; -1 or 0 to %d", (long long)(bad / top_k),
                   (long long)(bad % top_k), ids[bad], experts - 1);
  }
  dt_slots_place(ids, slots, experts, counts, row_of_slot, slot_of_row);
  return DT_OK;
}
