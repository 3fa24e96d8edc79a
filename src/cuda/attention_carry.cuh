/* What the attention's CTAs carry beside it: one thread a CTA. */
#ifndef DT_CUDA_ATTENTION_CARRY_CUH
#define DT_CUDA_ATTENTION_CARRY_CUH

#include "cuda/attention_pipeline.cuh"
#include "cuda/ulysses_meet.cuh"

/* Not SHARED_DEAD: only what the loader and the consumers share ends them together. Who waits for a head sees the
 * error. */
DT_DEVICE void dt_carry_fail(const dt_attention_kernel &a) {
  atomicCAS(&a.header->error, 0u, (uint32_t)DT_ATTENTION_ERROR_CARRY);
}

/* Until the ranks have met: pairs with the release of the gate by whoever waited for them. False: given up. */
DT_DEVICE bool dt_carry_gate(const dt_attention_kernel &a) {
  const uint32_t start = dt_time_us(), target = *a.carry.gate_target;
  while ((int32_t)(dt_acquire_sys(a.carry.gate) - target) < 0) {
    if (*(volatile uint32_t *)&a.header->error != 0) return false;
    if (dt_time_us() - start > a.timeout_us) dt_carry_fail(a);
  }
  return true;
}

/* An item without rows only says that it is done. */
template <class C>
DT_DEVICE void dt_carry_load(const dt_attention_kernel &a, uint32_t shared, uint32_t item, uint32_t stage) {
  const dt_attention_carried &c = a.carry.items[item];
  const uint32_t full = dt_attention_barriers<C>::carry_full(shared, stage);
  if (c.from < 0) return dt_barrier_arrive(full);
  dt_barrier_expect(full, DT_ATTENTION_CARRY_BYTES);
  dt_tensor_load_3d(shared + C::SHARED_CARRY + stage * DT_ATTENTION_CARRY_BYTES, &a.carry.from[c.from], 0, c.from_head,
                    c.from_row, full);
}

/* What is being loaded comes soon, whatever else fails; the copy engine must not write into a CTA that has ended. */
template <class C>
DT_DEVICE bool dt_carry_loaded(const dt_attention_kernel &a, uint32_t shared, uint32_t stage, uint32_t parity) {
  const uint32_t full = dt_attention_barriers<C>::carry_full(shared, stage), start = dt_time_us();
  while (!dt_barrier_try(full, parity))
    if (dt_time_us() - start > a.timeout_us) {
      dt_carry_fail(a);
      return false;
    }
  return true;
}

/* A group of its own also where there is nothing to store: groups are counted. */
DT_DEVICE void dt_carry_store(const dt_attention_kernel &a, const dt_attention_carried &c, uint32_t from) {
  if (c.from >= 0) dt_tensor_store_3d(&a.carry.to[c.to], 0, c.to_head, c.to_row, from);
  dt_bulk_commit();
}

/* After its rows are written. Release: pairs with the acquire in dt_attention_arrived. */
DT_DEVICE void dt_carry_publish(const dt_attention_kernel &a, const dt_attention_carried &c) {
  uint32_t *word = a.carry.arrived[c.rank] + c.word;
  dt_fence_async_global();
  for (uint32_t i = 0; i < c.words; i++) dt_add_release_sys(word + i, c.weight);
}

/* Until item `item` is due. */
DT_DEVICE void dt_carry_pace(const dt_attention_kernel &a, uint64_t start_ns, uint32_t item) {
  const uint64_t due = start_ns + (uint64_t)(item - (uint32_t)a.carry.early) * a.carry.interval_ns;
  while ((int64_t)(dt_time_ns() - due) < 0) __nanosleep(500);
}

/* One thread, with a stage of its own; one item is under way. A release waits for whatever is, of other CTAs too:
 * threads in step would all store, and all wait, together. So every second CTA has two of them, in warps of their
 * own, and they begin at different times; more would only wait longer for each other. Stays: carries also what is
 * late, when it is due; else no more behind the first such item. */
template <class C>
DT_DEVICE void dt_attention_carry_run(const dt_attention_kernel &a, uint32_t shared, uint32_t stage, bool stays) {
  const uint32_t from = shared + C::SHARED_CARRY + stage * DT_ATTENTION_CARRY_BYTES;
  const uint32_t count = (uint32_t)a.carry.count, early = (uint32_t)a.carry.early;
  uint32_t item, parity = 0;
  uint64_t start = 0; /* of what is late */
  bool met = false;
  while ((item = atomicAdd(a.carry.ticket, 1u)) < count) {
    if (item >= early) {
      if (start == 0) start = dt_time_ns();
      dt_carry_pace(a, start, item);
    }
    dt_carry_load<C>(a, shared, item, stage);
    bool good = dt_carry_loaded<C>(a, shared, stage, parity);
    parity ^= 1;
    if (good && !met) {
      good = met = dt_carry_gate(a);
      if (!stays) __nanosleep(1000 + blockIdx.x % 8 * 1000); /* not in step with the other */
    }
    if (!good) return;
    dt_carry_store(a, a.carry.items[item], from);
    dt_bulk_wait<0>();
    dt_carry_publish(a, a.carry.items[item]);
    if (item >= early && !stays) return;
  }
}

#endif
