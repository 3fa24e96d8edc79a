/* Stamps: where the engine's roles say what they do. Only a source that defines DT_STAMPED before it includes the engine
 * has them; in the others every function here is empty, and the machine code is the same as without the calls.
 *
 * What is under way lies in shared memory, so that the consumers' registers stay as they are. A role is one thread: the
 * first of a warpgroup of consumers, or of a warp.
 */
#ifndef DT_CUDA_SPANS_CUH
#define DT_CUDA_SPANS_CUH

#include "cuda/pipeline.cuh"

#ifdef DT_STAMPED

/* Of the whole CTA at DT_SHARED_STAMPS, then of each role: words, by byte offset. */
enum {
  DT_STAMP_RECORDS = 0, /* 8 bytes: this CTA's */
  DT_STAMP_CAPACITY = 8,
  DT_STAMP_COUNT = 0,
  DT_STAMP_NEXT = 4, /* ticket and band of the task read last */
  DT_STAMP_NOW = 12, /* of the task under way */
  DT_STAMP_BEGIN = 20,
  DT_STAMP_MIDDLE = 24,
  DT_STAMP_WAIT = 28, /* when the wait under way began */
  DT_STAMP_INSIDE = 32,
  DT_STAMP_SENT = 36,       /* ticket, band and shape of the tile being stored */
  DT_STAMP_SEND_BEGIN = 48, /* 0: nothing sent yet */
  DT_STAMP_SEND_MIDDLE = 52,
  DT_STAMP_SEND_INSIDE = 56,
  DT_STAMP_STEP = 60 /* when the step under way began */
};

DT_DEVICE uint32_t dt_clock() {
  uint32_t cycles;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(cycles)::"memory");
  return cycles;
}
DT_DEVICE uint64_t dt_timer_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
  return ns;
}
/* The clock at a step of the timer. Returns the timer. */
DT_DEVICE uint64_t dt_timer_step(uint32_t *clock) {
  const uint64_t before = dt_timer_ns();
  uint64_t now;
  do {
    now = dt_timer_ns();
    *clock = dt_clock();
  } while (now == before);
  return now;
}

DT_DEVICE uint32_t dt_stamp_role_of() {
  const uint32_t warp = threadIdx.x / 32;
  return warp < 8 ? warp / 4 : warp - 6;
}
DT_DEVICE bool dt_stamps_here() {
  return threadIdx.x % (threadIdx.x < 256 ? 128 : 32) == 0;
}
DT_DEVICE uint32_t dt_stamp_state(uint32_t shared) {
  return shared + DT_SHARED_STAMPS + DT_STAMP_HEAD + dt_stamp_role_of() * DT_STAMP_STATE;
}

DT_DEVICE void dt_stamp_write(uint32_t shared, uint4 what, uint4 times) {
  const uint32_t state = dt_stamp_state(shared), count = dt_load_shared_word(state + DT_STAMP_COUNT);
  const uint32_t capacity = dt_load_shared_word(shared + DT_SHARED_STAMPS + DT_STAMP_CAPACITY);
  dt_store_shared_word(state + DT_STAMP_COUNT, count + 1);
  if (count >= capacity) return;
  const uint64_t records = (uint64_t)dt_load_shared_word(shared + DT_SHARED_STAMPS + DT_STAMP_RECORDS + 4) << 32 |
                           dt_load_shared_word(shared + DT_SHARED_STAMPS + DT_STAMP_RECORDS);
  uint8_t *to = (uint8_t *)records + ((uint64_t)dt_stamp_role_of() * capacity + count) * sizeof(dt_stamp);
  dt_store_global(to, what);
  dt_store_global(to + 16, times);
}

/* Before and behind the roles of a CTA. open: one thread, before a barrier of the CTA. close: one thread, behind one. */
DT_DEVICE void dt_stamps_open(const dt_stamps &stamps, uint32_t shared) {
  const uint32_t at = shared + DT_SHARED_STAMPS;
  const uint64_t records = (uint64_t)(stamps.records + (uint64_t)blockIdx.x * DT_STAMP_ROLES * stamps.capacity);
  dt_stamp_cta *cta = stamps.ctas + blockIdx.x;
  uint32_t sm, clock;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  for (uint32_t i = 0; i < DT_STAMP_BYTES; i += 4) dt_store_shared_word(at + i, 0);
  dt_store_shared_word(at + DT_STAMP_RECORDS, (uint32_t)records);
  dt_store_shared_word(at + DT_STAMP_RECORDS + 4, (uint32_t)(records >> 32));
  dt_store_shared_word(at + DT_STAMP_CAPACITY, stamps.capacity);
  cta->sm = sm;
  cta->begin_ns = dt_timer_step(&clock);
  cta->begin_clock = clock;
}
DT_DEVICE void dt_stamps_close(const dt_stamps &stamps, uint32_t shared) {
  const uint32_t at = shared + DT_SHARED_STAMPS + DT_STAMP_HEAD + DT_STAMP_COUNT;
  dt_stamp_cta *cta = stamps.ctas + blockIdx.x;
  uint32_t clock;
  for (uint32_t role = 0; role < DT_STAMP_ROLES; role++)
    cta->count[role] = dt_load_shared_word(at + role * DT_STAMP_STATE);
  cta->end_ns = dt_timer_step(&clock);
  cta->end_clock = clock;
}

/* A task as read from its slot. */
DT_DEVICE void dt_stamp_task(uint32_t shared, uint4 second, uint32_t cta_rank) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared);
  dt_store_shared_word(state + DT_STAMP_NEXT, second.z);
  dt_store_shared_word(state + DT_STAMP_NEXT + 4, second.w + (second.y & DT_TILE_SHARES_ROWS ? 0 : cta_rank));
}
/* The task read last begins. */
DT_DEVICE void dt_stamp_begin(uint32_t shared) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared);
  dt_store_shared_word(state + DT_STAMP_NOW, dt_load_shared_word(state + DT_STAMP_NEXT));
  dt_store_shared_word(state + DT_STAMP_NOW + 4, dt_load_shared_word(state + DT_STAMP_NEXT + 4));
  dt_store_shared_word(state + DT_STAMP_INSIDE, 0);
  dt_store_shared_word(state + DT_STAMP_BEGIN, dt_clock());
}
/* What comes first is there. */
DT_DEVICE void dt_stamp_middle(uint32_t shared) {
  if (dt_stamps_here()) dt_store_shared_word(dt_stamp_state(shared) + DT_STAMP_MIDDLE, dt_clock());
}
/* Around a wait inside a task. The consumers' first is what a tile begins with. */
DT_DEVICE void dt_stamp_wait(uint32_t shared) {
  if (dt_stamps_here()) dt_store_shared_word(dt_stamp_state(shared) + DT_STAMP_WAIT, dt_clock());
}
DT_DEVICE void dt_stamp_waited(uint32_t shared, bool first) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared), now = dt_clock();
  if (first)
    dt_store_shared_word(state + DT_STAMP_MIDDLE, now);
  else
    dt_store_shared_word(state + DT_STAMP_INSIDE, dt_load_shared_word(state + DT_STAMP_INSIDE) + now -
                                                      dt_load_shared_word(state + DT_STAMP_WAIT));
}
/* The task ends. */
DT_DEVICE void dt_stamp_end(uint32_t shared, uint32_t kind, uint32_t shape) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared), now = dt_clock();
  const uint32_t task = dt_load_shared_word(state + DT_STAMP_NOW), band = dt_load_shared_word(state + DT_STAMP_NOW + 4);
  dt_stamp_write(shared, make_uint4(kind, task, band, shape),
                 make_uint4(dt_load_shared_word(state + DT_STAMP_BEGIN), dt_load_shared_word(state + DT_STAMP_MIDDLE),
                            now, dt_load_shared_word(state + DT_STAMP_INSIDE)));
  if (kind != DT_STAMP_TILE) return;
  dt_store_shared_word(state + DT_STAMP_SENT, task);
  dt_store_shared_word(state + DT_STAMP_SENT + 4, band);
  dt_store_shared_word(state + DT_STAMP_SENT + 8, shape);
  dt_store_shared_word(state + DT_STAMP_SEND_BEGIN, 0);
  dt_store_shared_word(state + DT_STAMP_SEND_INSIDE, 0);
}
/* A piece of the dispatch begins. */
DT_DEVICE void dt_stamp_piece(uint32_t shared, uint32_t piece, int32_t band) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared);
  dt_store_shared_word(state + DT_STAMP_NEXT, piece);
  dt_store_shared_word(state + DT_STAMP_NEXT + 4, (uint32_t)band);
  dt_stamp_begin(shared);
  dt_stamp_middle(shared);
}

/* Around one step of a tile's stores, and when all of them are done. sends: it stores to memory. */
DT_DEVICE void dt_stamp_step(uint32_t shared, bool sends) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared), now = dt_clock();
  dt_store_shared_word(state + DT_STAMP_STEP, now);
  if (sends && dt_load_shared_word(state + DT_STAMP_SEND_BEGIN) == 0)
    dt_store_shared_word(state + DT_STAMP_SEND_BEGIN, now | 1);
}
DT_DEVICE void dt_stamp_stepped(uint32_t shared) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared), now = dt_clock();
  dt_store_shared_word(state + DT_STAMP_SEND_MIDDLE, now);
  dt_store_shared_word(state + DT_STAMP_SEND_INSIDE, dt_load_shared_word(state + DT_STAMP_SEND_INSIDE) + now -
                                                         dt_load_shared_word(state + DT_STAMP_STEP));
}
/* waited: for the end; else all that is known is when they were issued. */
DT_DEVICE void dt_stamp_stored(uint32_t shared, bool waited) {
  if (!dt_stamps_here()) return;
  const uint32_t state = dt_stamp_state(shared), begin = dt_load_shared_word(state + DT_STAMP_SEND_BEGIN);
  if (begin == 0) return;
  const uint32_t middle = dt_load_shared_word(state + DT_STAMP_SEND_MIDDLE), end = waited ? dt_clock() : middle;
  const uint32_t inside = dt_load_shared_word(state + DT_STAMP_SEND_INSIDE) +
                          (waited ? end - dt_load_shared_word(state + DT_STAMP_STEP) : 0);
  dt_store_shared_word(state + DT_STAMP_SEND_BEGIN, 0);
  dt_stamp_write(shared,
                 make_uint4(DT_STAMP_STORE, dt_load_shared_word(state + DT_STAMP_SENT),
                            dt_load_shared_word(state + DT_STAMP_SENT + 4),
                            dt_load_shared_word(state + DT_STAMP_SENT + 8)),
                 make_uint4(begin, middle, end, inside));
}

#else

DT_DEVICE void dt_stamp_task(uint32_t, uint4, uint32_t) {}
DT_DEVICE void dt_stamp_begin(uint32_t) {}
DT_DEVICE void dt_stamp_middle(uint32_t) {}
DT_DEVICE void dt_stamp_wait(uint32_t) {}
DT_DEVICE void dt_stamp_waited(uint32_t, bool) {}
DT_DEVICE void dt_stamp_end(uint32_t, uint32_t, uint32_t) {}
DT_DEVICE void dt_stamp_piece(uint32_t, uint32_t, int32_t) {}
DT_DEVICE void dt_stamp_step(uint32_t, bool) {}
DT_DEVICE void dt_stamp_stepped(uint32_t) {}
DT_DEVICE void dt_stamp_stored(uint32_t, bool) {}

#endif
#endif
