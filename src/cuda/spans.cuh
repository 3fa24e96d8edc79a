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

static_assert(DT_SHAPE_PHASE == 1 << 9, "dt_stamp_is_l1 of recorder.h");

/* What a role has under way: words, by byte offset. */
enum {
  DT_STAMP_RECORDS = 0, /* 8 bytes: where its first record goes */
  DT_STAMP_CAPACITY = 8,
  DT_STAMP_COUNT = 12,
  DT_STAMP_NEXT = 16, /* ticket and band of the task read last */
  DT_STAMP_NOW = 24,  /* of the task under way */
  DT_STAMP_BEGIN = 32,
  DT_STAMP_MIDDLE = 36,
  DT_STAMP_WAIT = 40, /* when the wait under way began */
  DT_STAMP_INSIDE = 44,
  DT_STAMP_SENT = 48,       /* ticket, band and shape of the tile being stored */
  DT_STAMP_SEND_BEGIN = 60, /* 0: nothing sent yet */
  DT_STAMP_SEND_MIDDLE = 64,
  DT_STAMP_SEND_INSIDE = 68,
  DT_STAMP_STEP = 72 /* when the step under way began */
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

/* Where a role's words are; 0: this thread is none. The thread's index is read anew: a register that kept it would be
 * one too many for the consumers. */
DT_DEVICE uint32_t dt_stamp_state(uint32_t shared) {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  if (thread % (thread < 256 ? 128 : 32) != 0) return 0;
  return shared + DT_SHARED_STAMPS + DT_STAMP_STATE * (thread < 256 ? thread / 128 : thread / 32 - 6);
}

DT_DEVICE void dt_stamp_write(uint32_t state, uint4 what, uint4 times) {
  const uint32_t count = dt_load_shared_word(state + DT_STAMP_COUNT);
  dt_store_shared_word(state + DT_STAMP_COUNT, count + 1);
  if (count >= dt_load_shared_word(state + DT_STAMP_CAPACITY)) return;
  const uint64_t records = (uint64_t)dt_load_shared_word(state + DT_STAMP_RECORDS + 4) << 32 |
                           dt_load_shared_word(state + DT_STAMP_RECORDS);
  uint8_t *to = (uint8_t *)records + (uint64_t)count * sizeof(dt_stamp);
  dt_store_global(to, what);
  dt_store_global(to + 16, times);
}

/* Before and behind the roles of a CTA. open: one thread, before a barrier of the CTA. close: one thread, behind one. */
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
  dt_store_shared_word(state + DT_STAMP_NEXT, second.z);
  dt_store_shared_word(state + DT_STAMP_NEXT + 4, second.w + (second.y & DT_TILE_SHARES_ROWS ? 0 : cta_rank));
}
/* The task read last begins. */
DT_DEVICE void dt_stamp_begin(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_word(state + DT_STAMP_NOW, dt_load_shared_word(state + DT_STAMP_NEXT));
  dt_store_shared_word(state + DT_STAMP_NOW + 4, dt_load_shared_word(state + DT_STAMP_NEXT + 4));
  dt_store_shared_word(state + DT_STAMP_INSIDE, 0);
  dt_store_shared_word(state + DT_STAMP_BEGIN, dt_clock());
}
/* What comes first is there. */
DT_DEVICE void dt_stamp_middle(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state != 0) dt_store_shared_word(state + DT_STAMP_MIDDLE, dt_clock());
}
/* Around a wait inside a task. The consumers' first is what a tile begins with. */
DT_DEVICE void dt_stamp_wait(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state != 0) dt_store_shared_word(state + DT_STAMP_WAIT, dt_clock());
}
DT_DEVICE void dt_stamp_waited(uint32_t shared, bool first) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  const uint32_t now = dt_clock();
  if (first)
    dt_store_shared_word(state + DT_STAMP_MIDDLE, now);
  else
    dt_store_shared_word(state + DT_STAMP_INSIDE, dt_load_shared_word(state + DT_STAMP_INSIDE) + now -
                                                      dt_load_shared_word(state + DT_STAMP_WAIT));
}
/* The task ends. */
DT_DEVICE void dt_stamp_end(uint32_t shared, uint32_t kind, uint32_t shape) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  const uint32_t now = dt_clock();
  const uint32_t task = dt_load_shared_word(state + DT_STAMP_NOW), band = dt_load_shared_word(state + DT_STAMP_NOW + 4);
  dt_stamp_write(state, make_uint4(kind, task, band, shape),
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
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  dt_store_shared_word(state + DT_STAMP_NEXT, piece);
  dt_store_shared_word(state + DT_STAMP_NEXT + 4, (uint32_t)band);
  dt_stamp_begin(shared);
  dt_stamp_middle(shared);
}

/* Around one step of a tile's stores, and when all of them are done. sends: it stores to memory. */
DT_DEVICE void dt_stamp_step(uint32_t shared, bool sends) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  const uint32_t now = dt_clock();
  dt_store_shared_word(state + DT_STAMP_STEP, now);
  if (sends && dt_load_shared_word(state + DT_STAMP_SEND_BEGIN) == 0)
    dt_store_shared_word(state + DT_STAMP_SEND_BEGIN, now | 1);
}
DT_DEVICE void dt_stamp_stepped(uint32_t shared) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  const uint32_t now = dt_clock();
  dt_store_shared_word(state + DT_STAMP_SEND_MIDDLE, now);
  dt_store_shared_word(state + DT_STAMP_SEND_INSIDE, dt_load_shared_word(state + DT_STAMP_SEND_INSIDE) + now -
                                                         dt_load_shared_word(state + DT_STAMP_STEP));
}
/* The first thread of a warp alone. waited: it knows that all are done; else it waits for them here. */
DT_DEVICE void dt_stamp_stored(uint32_t shared, bool waited) {
  const uint32_t state = dt_stamp_state(shared);
  if (state == 0) return;
  const uint32_t begin = dt_load_shared_word(state + DT_STAMP_SEND_BEGIN);
  if (begin == 0) return;
  if (!waited) {
    dt_store_shared_word(state + DT_STAMP_STEP, dt_clock());
    dt_bulk_wait_all();
  }
  const uint32_t end = dt_clock();
  const uint32_t inside = dt_load_shared_word(state + DT_STAMP_SEND_INSIDE) + end -
                          dt_load_shared_word(state + DT_STAMP_STEP);
  dt_store_shared_word(state + DT_STAMP_SEND_BEGIN, 0);
  dt_stamp_write(state,
                 make_uint4(DT_STAMP_STORE, dt_load_shared_word(state + DT_STAMP_SENT),
                            dt_load_shared_word(state + DT_STAMP_SENT + 4),
                            dt_load_shared_word(state + DT_STAMP_SENT + 8)),
                 make_uint4(begin, dt_load_shared_word(state + DT_STAMP_SEND_MIDDLE), end, inside));
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
