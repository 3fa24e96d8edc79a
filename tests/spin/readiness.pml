/* The readiness protocol of one tile: two producers store their halves of a tile and add to its counter; a consumer
 * waits for the counter and reads both halves. It repeats with the counter running on (epochs).
 *
 * Memory is weaker than x86: each processor has a store buffer per address, so stores to different addresses reach memory
 * in any order, as on a GPU or a fabric with several paths. Stores to one address stay in order. The counter's add is
 * atomic in memory, but is issued like a store: a relaxed add may take effect before the stores ahead of it. A release
 * first waits until the processor's buffers are empty, which is what fence.acq_rel followed by red.release does.
 *
 * Built with -DRELEASE it must verify; without, the assertion must fail: negative control (c).
 */
#define PRODUCERS 2
#define ROUNDS 2
#define EMPTY 0

byte tile[PRODUCERS];            /* memory: the value of a half is the round that wrote it */
byte buffered[PRODUCERS];        /* store buffers, one address each: EMPTY or the value on its way */
byte counter;                    /* memory */
byte adding[PRODUCERS];          /* adds on their way, per producer */
byte taken;                      /* rounds that the consumer has finished (its release to the producers) */

/* Memory system: any buffered store or add reaches memory at any time. */
proctype memory() {
end:
  do
  :: atomic { buffered[0] != EMPTY -> tile[0] = buffered[0]; buffered[0] = EMPTY }
  :: atomic { buffered[1] != EMPTY -> tile[1] = buffered[1]; buffered[1] = EMPTY }
  :: atomic { adding[0] > 0 -> counter = counter + adding[0]; adding[0] = 0 }
  :: atomic { adding[1] > 0 -> counter = counter + adding[1]; adding[1] = 0 }
  od
}

proctype producer(byte me) {
  byte round = 1;
  do
  :: round <= ROUNDS ->
     taken >= round - 1;                              /* acquire: the area is free again */
     atomic { buffered[me] == EMPTY -> buffered[me] = round }
#ifdef RELEASE
     buffered[me] == EMPTY;                           /* release: stores before it are in memory */
#endif
     atomic { adding[me] == 0 -> adding[me] = 1 }
     round++
  :: else -> break
  od
}

proctype consumer() {
  byte round = 1;
  do
  :: round <= ROUNDS ->
     counter >= round * PRODUCERS;                    /* acquire: the reads below stay below */
     assert(tile[0] == round);
     assert(tile[1] == round);
     taken = round;                                   /* release: the reads above stay above */
     round++
  :: else -> break
  od;
  assert(counter == ROUNDS * PRODUCERS)               /* no add was lost, none came twice */
}

init {
  atomic {
    run memory();
    run producer(0);
    run producer(1);
    run consumer()
  }
}
