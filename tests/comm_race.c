/* Negative control (a): two ranks of fabric `local` pass rows. Built with the thread sanitizer it is silent; built with
 * DT_SIGNAL_ORDER=__ATOMIC_RELAXED as well, the sanitizer must report the reader's race with the put.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#include <draintile/comm.h>

enum { ROUNDS = 50, WORDS = 64 };

static void *sender(void *argument) {
  dt_comm *comm = argument;
  dt_window *window = NULL;
  uint32_t words[WORDS];
  if (dt_comm_alloc(comm, 64 + sizeof words * ROUNDS, &window)) return argument;
  for (uint32_t round = 0; round < ROUNDS; round++) {
    for (uint32_t i = 0; i < WORDS; i++) words[i] = round + i;
    dt_put put = {.window = window,
                  .peer = 1,
                  .offset = 64 + round * sizeof words,
                  .src = words,
                  .row_bytes = sizeof words,
                  .rows = 1};
    if (dt_comm_put(comm, &put, NULL) || dt_comm_signal(comm, window, 1, 0, 1, 0)) return argument;
  }
  return NULL;
}

static void *receiver(void *argument) {
  dt_comm *comm = argument;
  dt_window *window = NULL;
  if (dt_comm_alloc(comm, 64 + sizeof(uint32_t) * WORDS * ROUNDS, &window)) return argument;
  const uint32_t *words = (const uint32_t *)((unsigned char *)dt_window_local(window) + 64);
  dt_wait wait = {.phase = "race", .counter = "rows of round", .peer = 0};
  for (uint32_t round = 0; round < ROUNDS; round++) {
    wait.index = round;
    if (dt_comm_wait(comm, window, 0, round + 1, &wait)) return argument;
    for (uint32_t i = 0; i < WORDS; i++) {
      if (words[round * WORDS + i] != round + i) return argument;
    }
  }
  return NULL;
}

int main(void) {
  dt_comm *endpoints[2];
  if (dt_comm_create_local(2, NULL, endpoints)) return 1;
  pthread_t threads[2];
  void *failed[2] = {NULL, NULL};
  if (pthread_create(&threads[0], NULL, sender, endpoints[0])) return 1;
  if (pthread_create(&threads[1], NULL, receiver, endpoints[1])) return 1;
  for (int t = 0; t < 2; t++) pthread_join(threads[t], &failed[t]);
  for (int t = 0; t < 2; t++) dt_comm_destroy(endpoints[t]);
  if (failed[0] || failed[1]) return 1;
  puts("all rows right");
  return 0;
}
