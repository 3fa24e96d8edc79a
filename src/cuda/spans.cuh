/* Stamps: where the engine's roles say what they do. Only a source that defines DT_STAMPED before it includes the
 * engine has them; in the others every function here is empty, and the machine code is the same as without the calls.
 *
 * What is under way lies in shared memory, so that the consumers' registers stay as they are. A role is one thread: the
 * first of a warpgroup of consumers, or of a warp.
 */
#ifndef DT_CUDA_SPANS_CUH
#define DT_CUDA_SPANS_CUH

#include "cuda/pipeline.cuh"

#ifdef DT_STAMPED

static_assert(DT_SHAPE_PHASE == 1 << 9, "dt_stamp_is_l1 of recorder.h");

/* What a role has under way: by byte offset, each vector aligned to its size. */
enum {
  DT_STAMP_NOW = 0,    /* the record of the task under way */
  DT_STAMP_ENDED = 48, /* the record of a tile that is being stored */
  DT_STAMP_NEXT = 96,  /* 8 bytes, of the task read last: ticket, band */
  DT_STAMP_RECORDS = 104, /* 8 bytes: where the next record goes */
  DT_STAMP_CAPACITY = 112,
  DT_STAMP_COUNT = 116,
  /* of a record */
  DT_STAMP_BEGIN = 16,
  DT_STAMP_MIDDLE = 20,
  DT_STAMP_END = 24,
  DT_STAMP_STORES = 28,
  DT_STAMP_FIRST = 32,
  DT_STAMP_ISSUED = 36,
  DT_STAMP_DONE = 40
};

DT_DEVICE uint32_t dt_clock() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}
/* The clock at a step of the timer. Returns the timer. */
DT_DEVICE uint64_t dt_timer_step(uint32_t *clock) {
  const uint64_t before = dt_time_ns();
  uint64_t now;
  do {
    now = dt_time_ns();
    *clock = dt_clock();
  } while (now == before);
  return now;
}

/* Where a role's words are; 0: this thread is none. The thread's index is read anew: a register that kept it would be
 * one too many for the consumers. */
DT_DEVICE uint32_t dt_stamp_state(uint32_t shared) {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  if (thread % (thread < 256 ? 128 : 32) != 0) return 0;
  return shared + DT_SHARED_STAMPS + DT_STAMP_STATE * (thread < 256 ? thread / 128 : thread / 32 - 6);
}

DT_DEVICE void dt_store_shared_2(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
DT_DEVICE uint2 dt_load_shared_2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
DT_DEVICE void dt_store_shared_4(uint32_t address, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

/* Writes a record, 16 bytes at a time: the consumers have few registers left. */
DT_DEVICE void dt_stamp_write(uint32_t state, uint32_t record) {
  const uint32_t count = dt_load_shared_word(state + DT_STAMP_COUNT);
  dt_store_shared_word(state + DT_STAMP_COUNT, count + 1);
  if (count >= dt_load_shared_word(state + DT_STAMP_CAPACITY)) return;
  const uint2 records = dt_load_shared_2(state + DT_STAMP_RECORDS);
  uint8_t *to = (uint8_t *)((uint64_t)records.y << 32 | records.x) + (uint64_t)count * sizeof(dt_stamp);
#pragma unroll
  for (uint32_t i = 0; i < sizeof(dt_stamp); i += 16) dt_store_global(to + i, dt_load_shared(record + i));
}

/* Before and behind the roles of a CTA. open: one thread, before a barrier of the CTA. close: likewise, behind one. */
DT_DEVICE void dt_stamps_open(const dt_stamps &stamps, uint32_t shared) {
  dt_stamp_cta *cta = stamps.ctas + blockIdx.x;
  for (uint32_t i = 0; i < DT_STAMP_BYTES; i += 4) dt_store_shared_word(shared + DT_SHARED_STAMPS + i, 0);
  for (uint32_t role = 0; role < DT_STAMP_ROLES; role++) {
    const uint32_t at = shared + DT_SHARED_STAMPS + role * DT_STAMP_STATE;
    const uint64_t records =
        (uint64_t)(stamps.records + ((uint64_t)blockIdx.x * DT_STAMP_ROLES + role) * stamps.capacity);
    dt_store_shared_word(at + DT_STAMP_RECORDS, (uint32_t)records);
    dt_store_shared_word(at + DT_STAMP_RECORDS + 4, (uint32_t)(records >> 32));
    dt_store_shared_word(at + DT_STAMP_CAPACITY, stamps.capacity);
  }
  uint32_t sm, clock;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  cta->sm = sm;
  cta->begin_ns = dt_timer_step(&clock);
  cta->begin_clock = clock;
}
DT_DEVICE void dt_stamps_close(const dt_stamps &stamps, uint32_t shared) {
  dt_stamp_cta *cta = stamps.ctas + blockIdx.x;
  uint32_t clock;
  for (uint32_t role = 0; role < DT_STAMP_ROLES; role++)
    cta->count[role] = dt_load_shared_word(shared + DT_SHARED_STAMPS + role * DT_STAMP_STATE + DT_STAMP_COUNT);
  cta->end_ns = dt_timer_step(&clock);
  cta->end_clock = clock;
}

/* A task as read from its slot. */
DT_DEVICE void dt_stamp_task(uint32_t shared, uint4 second, uint32_t cta_rank) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_2(state + DT_STAMP_NEXT, second.z, second.w + (second.y & DT_TILE_SHARES_ROWS ? 0 : cta_rank));
}
/* The task read last begins. */
DT_DEVICE void dt_stamp_begin(uint32_t shared, uint32_t kind, uint32_t shape) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  const uint2 next = dt_load_shared_2(state + DT_STAMP_NEXT);
  dt_store_shared_4(state + DT_STAMP_NOW, make_uint4(kind, next.x, next.y, shape));
  dt_store_shared_word(state + DT_STAMP_NOW + DT_STAMP_BEGIN, dt_clock());
}
/* What comes first is there. */
DT_DEVICE void dt_stamp_middle(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state != 0) dt_store_shared_word(state + DT_STAMP_NOW + DT_STAMP_MIDDLE, dt_clock());
}
/* The same, of a consumer at a stage; first: of the tile. */
DT_DEVICE void dt_stamp_operands(uint32_t shared, bool first) {
  if (first) dt_stamp_middle(shared);
}
/* A task of any role but the consumers ends. */
DT_DEVICE void dt_stamp_end(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_word(state + DT_STAMP_NOW + DT_STAMP_END, dt_clock());
  dt_stamp_write(state, state + DT_STAMP_NOW);
}
/* A piece begins, of the dispatch or to put. */
DT_DEVICE void dt_stamp_copy(uint32_t shared, uint32_t kind, uint32_t piece, int32_t band, int32_t rows) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_4(state + DT_STAMP_NOW, make_uint4(kind, piece, (uint32_t)band, (uint32_t)rows));
  dt_store_shared_word(state + DT_STAMP_NOW + DT_STAMP_BEGIN, dt_clock());
}
DT_DEVICE void dt_stamp_piece(uint32_t shared, uint32_t piece, int32_t band, int32_t rows) {
  dt_stamp_copy(shared, DT_STAMP_PIECE, piece, band, rows);
}
DT_DEVICE void dt_stamp_put(uint32_t shared, uint32_t piece, int32_t band, int32_t rows) {
  dt_stamp_copy(shared, DT_STAMP_PUT, piece, band, rows);
}

/* A consumer's tile: its last multiplication is done. What is written of it waits for dt_stamp_stored, which comes
 * while the next tile is multiplied. */
DT_DEVICE void dt_stamp_multiplied(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_word(state + DT_STAMP_NOW + DT_STAMP_END, dt_clock());
  dt_store_shared_4(state + DT_STAMP_ENDED, dt_load_shared(state + DT_STAMP_NOW));
  dt_store_shared_4(state + DT_STAMP_ENDED + 16, dt_load_shared(state + DT_STAMP_NOW + 16));
}
/* Its first store comes next; its last one is issued. */
DT_DEVICE void dt_stamp_send(uint32_t shared, bool first) {
  if (!first) return;
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_word(state + DT_STAMP_ENDED + DT_STAMP_FIRST, dt_clock());
  dt_store_shared_word(state + DT_STAMP_ENDED + DT_STAMP_STORES, 1);
}
DT_DEVICE void dt_stamp_sent(uint32_t shared, bool last) {
  if (!last) return;
  const uint32_t state = dt_stamp_state(shared);
  if (state != 0) dt_store_shared_word(state + DT_STAMP_ENDED + DT_STAMP_ISSUED, dt_clock());
}
/* The warpgroup is through with it. waited: it knows that its stores are done; else it waits for them here. */
DT_DEVICE void dt_stamp_stored(uint32_t shared, bool waited) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  if (!waited) dt_bulk_wait_all();
  dt_store_shared_word(state + DT_STAMP_ENDED + DT_STAMP_DONE, dt_clock());
  dt_stamp_write(state, state + DT_STAMP_ENDED);
}

#else

DT_DEVICE void dt_stamp_task(uint32_t, uint4, uint32_t) {}
DT_DEVICE void dt_stamp_begin(uint32_t, uint32_t, uint32_t) {}
DT_DEVICE void dt_stamp_middle(uint32_t) {}
DT_DEVICE void dt_stamp_operands(uint32_t, bool) {}
DT_DEVICE void dt_stamp_end(uint32_t) {}
DT_DEVICE void dt_stamp_piece(uint32_t, uint32_t, int32_t, int32_t) {}
DT_DEVICE void dt_stamp_put(uint32_t, uint32_t, int32_t, int32_t) {}
DT_DEVICE void dt_stamp_multiplied(uint32_t) {}
DT_DEVICE void dt_stamp_send(uint32_t, bool) {}
DT_DEVICE void dt_stamp_sent(uint32_t, bool) {}
DT_DEVICE void dt_stamp_stored(uint32_t, bool) {}

#endif
#endif
