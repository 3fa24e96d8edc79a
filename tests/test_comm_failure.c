/* Ranks that die, stop, come late, give up or leave: everybody else gets the right error, in time, naming the rank; and
 * nothing is left behind.
 */
#include <dirent.h>

#include "comm_ranks.h"

typedef enum place { AT_COUNTER, AT_ANY_COUNTER, AT_BARRIER, AT_ALLOC, AT_GATHER, PLACES } place;

typedef struct scenario {
  place where;
  int32_t victim;
  double *event_s; /* shared: when the victim did it */
} scenario;

static double *shared_time(void) {
  double *time = mmap(NULL, sizeof *time, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (time == MAP_FAILED) abort();
  return time;
}

/* Waits, in one of the places, for something that the victim will never do. */
static dt_status wait_for_victim(dt_comm *comm, dt_window *window, const scenario *scene) {
  dt_wait wait = {.phase = "L1", .counter = "arrival of band", .index = 5, .peer = scene->victim};
  dt_window *more = NULL;
  char send = 1, receive[RANKS_MAX];
  switch (scene->where) {
  case AT_ANY_COUNTER:
    wait.peer = -1; /* falls through */
  case AT_COUNTER:
    return dt_comm_wait(comm, window, 64, 3, &wait);
  case AT_BARRIER:
    return dt_comm_barrier(comm, "combine");
  case AT_ALLOC:
    return dt_comm_alloc(comm, 1 << 20, &more);
  case AT_GATHER:
    return dt_comm_allgather(comm, &send, receive, 1);
  case PLACES:
    break;
  }
  return DT_OK;
}

/* After the first error everything else fails at once, and nothing hangs. */
static int all_refused(dt_comm *comm, dt_window *window) {
  dt_window *more = NULL;
  dt_put put = {.window = window, .peer = 0, .offset = 1024, .src = "x", .row_bytes = 1, .rows = 1};
  double start = now_s();
  EXPECT(dt_comm_status(comm) != DT_OK);
  EXPECT(dt_comm_put(comm, &put, NULL) != DT_OK);
  EXPECT(dt_comm_signal(comm, window, 0, 0, 1, 0) != DT_OK);
  EXPECT(dt_comm_barrier(comm, "late") != DT_OK);
  EXPECT(dt_comm_alloc(comm, 64, &more) != DT_OK && !more);
  EXPECT(now_s() - start < 1.0);
  return 0;
}

static int kill_body(dt_comm *comm, void *argument) {
  const scenario *scene = argument;
  char name[32];
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  snprintf(name, sizeof name, "rank %d died", scene->victim);
  if (dt_comm_rank(comm) == scene->victim) {
    sleep_s(0.03); /* the others are parked */
    *scene->event_s = now_s();
    raise(SIGKILL);
  }
  dt_status status = wait_for_victim(comm, window, scene);
  double took = now_s() - *scene->event_s;
  EXPECT(status == DT_ERR_PEER);
  EXPECT(strstr(dt_error_detail(), name));
  EXPECT(took < 1.0); /* about 0.05 s on a machine that is not busy */
  return all_refused(comm, window);
}

static void test_killed(void **state) {
  (void)state;
  scenario scene = {.victim = 2, .event_s = shared_time()};
  for (scene.where = AT_COUNTER; scene.where < PLACES; scene.where++) {
    int results[RANKS_MAX];
    run_shm(4, NULL, kill_body, &scene, results);
    for (int32_t p = 0; p < 4; p++) assert_int_equal(results[p], p == 2 ? 128 + SIGKILL : 0);
  }
  munmap(scene.event_s, sizeof *scene.event_s);
}

/* The victim stops itself; a wait expires; the parent then kills what is stopped. */
static int stop_body(dt_comm *comm, void *argument) {
  const scenario *scene = argument;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  double start = now_s();
  if (dt_comm_rank(comm) == scene->victim) raise(SIGSTOP);
  dt_status status = wait_for_victim(comm, window, scene);
  EXPECT(status == DT_ERR_TIMEOUT || status == DT_ERR_PEER); /* the first to expire tells the others */
  EXPECT(strstr(dt_error_detail(), "rank 1 is stopped"));
  if (scene->where == AT_COUNTER) {
    EXPECT(strstr(dt_error_detail(), "phase L1: arrival of band 5: expected 3, seen 0"));
  }
  EXPECT(now_s() - start > 0.39 && now_s() - start < 2.0);
  return all_refused(comm, window);
}

static void stop_and_expect(place where) {
  scenario scene = {.where = where, .victim = 1};
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.timeout_s = config.entry_timeout_s = 0.4;
  meeting *m = new_meeting(4);
  pid_t pids[4];
  for (int32_t p = 0; p < 4; p++) {
    pids[p] = fork_rank();
    if (pids[p] == 0) run_shm_rank(m, p, 4, &config, stop_body, &scene);
  }
  for (int32_t p = 0; p < 4; p++) {
    int status = 0;
    if (p == scene.victim) continue;
    waitpid(pids[p], &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  kill(pids[scene.victim], SIGKILL);
  waitpid(pids[scene.victim], NULL, 0);
  munmap(m, sizeof *m);
}

static void test_stopped(void **state) {
  (void)state;
  stop_and_expect(AT_COUNTER);
  stop_and_expect(AT_BARRIER);
}

/* The whole job stopped and continued (a shell's Ctrl-Z): that time does not count against the peers. */
static int pause_body(dt_comm *comm, void *argument) {
  (void)argument;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  dt_wait wait = {.phase = "pause", .counter = "word of rank", .index = 1, .peer = 1};
  if (dt_comm_rank(comm) == 0) EXPECT(!dt_comm_wait(comm, window, 0, 1, &wait));
  for (int i = 0; i < 15 && dt_comm_rank(comm) == 1; i++) sleep_s(0.04);
  if (dt_comm_rank(comm) == 1) EXPECT(!dt_comm_signal(comm, window, 0, 0, 1, 0));
  return 0;
}

static void test_paused_together(void **state) {
  (void)state;
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.timeout_s = 1.2;
  meeting *m = new_meeting(2);
  pid_t pids[2];
  for (int32_t p = 0; p < 2; p++) {
    pids[p] = fork_rank();
    if (pids[p] == 0) run_shm_rank(m, p, 2, &config, pause_body, NULL);
  }
  sleep_s(0.2);
  for (int32_t p = 0; p < 2; p++) kill(pids[p], SIGSTOP);
  sleep_s(1.8);
  for (int32_t p = 0; p < 2; p++) kill(pids[p], SIGCONT);
  for (int32_t p = 0; p < 2; p++) {
    int status = 0;
    waitpid(pids[p], &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  munmap(m, sizeof *m);
}

/* Scaled down: a rank later than the layer's time-out is fine at an entry wait, with a long entry time-out or
 * with none. */
static int late_body(dt_comm *comm, void *argument) {
  (void)argument;
  dt_window *window = NULL;
  int32_t me = dt_comm_rank(comm);
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  if (me == 1) sleep_s(0.35);
  dt_wait wait = {.phase = "counts", .counter = "counts of rank", .index = 1, .peer = 1, .entry = 1};
  if (me == 1) {
    for (int32_t p = 0; p < dt_comm_ranks(comm); p++) EXPECT(!dt_comm_signal(comm, window, p, 0, 1, 0));
  }
  EXPECT(!dt_comm_wait(comm, window, 0, 1, &wait));
  if (me == 2) sleep_s(0.25);
  EXPECT(!dt_comm_barrier(comm, "entry"));
  EXPECT(!dt_comm_status(comm));
  return 0;
}

static void test_late(void **state) {
  (void)state;
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.timeout_s = 0.1;
  for (int shm = 0; shm < 2; shm++) {
    for (config.entry_timeout_s = 0.0; config.entry_timeout_s < 25.0; config.entry_timeout_s += 20.0) {
      assert_int_equal(run_ranks(shm, 3, &config, late_body, NULL), 0);
    }
  }
}

/* A rank that is alive and runs, but behind: the message says where it was seen last. */
static int behind_body(dt_comm *comm, void *argument) {
  (void)argument;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  if (dt_comm_rank(comm) == 1) {
    EXPECT(!dt_comm_signal(comm, window, 0, 64, 1, 0));
    sleep_s(0.8);
    EXPECT(dt_comm_status(comm) == DT_ERR_PEER);
    EXPECT(strstr(dt_error_detail(), "rank 0 gave up (DT_ERR_TIMEOUT): rank 0, phase L2: tiles of band 7"));
    return all_refused(comm, window);
  }
  dt_wait wait = {.phase = "L2", .counter = "tiles of band", .index = 7, .peer = 1};
  EXPECT(dt_comm_wait(comm, window, 64, 2, &wait) == DT_ERR_TIMEOUT);
  EXPECT(strstr(dt_error_detail(), "rank 0, phase L2: tiles of band 7: expected 2, seen 1 after 0."));
  EXPECT(strstr(dt_error_detail(), "rank 1 is behind"));
  EXPECT(dt_comm_status(comm) == DT_ERR_TIMEOUT);
  return all_refused(comm, window);
}

static void test_behind(void **state) {
  (void)state;
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.timeout_s = 0.3;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 2, &config, behind_body, NULL), 0);
}

/* An abort reaches ranks parked in a counter, a barrier, and a stalled put. */
static int abort_body(dt_comm *comm, void *argument) {
  const scenario *scene = argument;
  int32_t me = dt_comm_rank(comm);
  static char bytes[1 << 20];
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, sizeof bytes, &window));
  if (me == scene->victim) {
    sleep_s(0.05);
    *scene->event_s = now_s();
    dt_comm_abort(comm, DT_ERR_INPUT, "ids: 99; 0 to 63 or -1");
    EXPECT(dt_comm_status(comm) == DT_ERR_INPUT && strstr(dt_error_detail(), "ids: 99"));
    return all_refused(comm, window);
  }
  scenario other = {.where = me == 0 ? AT_COUNTER : AT_BARRIER, .victim = scene->victim};
  dt_put put = {.window = window, .peer = 0, .offset = 128, .src = bytes, .row_bytes = sizeof bytes - 128, .rows = 1};
  dt_status status = me == 2 ? dt_comm_put(comm, &put, NULL) : wait_for_victim(comm, window, &other);
  EXPECT(status == DT_ERR_PEER);
  EXPECT(strcmp(dt_error_detail(), "rank 1 gave up (DT_ERR_INPUT): ids: 99; 0 to 63 or -1") == 0);
  EXPECT(now_s() - *scene->event_s < 0.5);
  return all_refused(comm, window);
}

static void test_aborted(void **state) {
  (void)state;
  scenario scene = {.victim = 1, .event_s = shared_time()};
  dt_comm_config config;
  dt_comm_config_init(&config);
  config.link_bytes_per_s = 1e5; /* rank 2's put would take ten seconds */
  config.link_capacity_bytes = 1.0;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 4, &config, abort_body, &scene), 0);
  munmap(scene.event_s, sizeof *scene.event_s);
}

/* Who leaves is missed only by a wait that needs it. */
static int leave_body(dt_comm *comm, void *argument) {
  (void)argument;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, 4096, &window));
  int32_t me = dt_comm_rank(comm);
  if (me == 2) return 0;
  if (me == 1) sleep_s(0.2);
  if (me == 1) EXPECT(!dt_comm_signal(comm, window, 0, 0, 1, 0));
  dt_wait wait = {.phase = "leave", .counter = "word of rank", .index = 1, .peer = 1};
  if (me == 0) EXPECT(!dt_comm_wait(comm, window, 0, 1, &wait));
  EXPECT(dt_comm_barrier(comm, "all") == DT_ERR_PEER);
  EXPECT(strstr(dt_error_detail(), "rank 2 left"));
  return 0;
}

static void test_left(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 3, NULL, leave_body, NULL), 0);
}

/* Failures during create. */
typedef enum create_fault { FAULT_CALLBACK, FAULT_DEATH_AFTER, FAULT_DEATH_BEFORE, FAULT_CONFIG } create_fault;

typedef struct faulty_seat {
  meeting_seat seat; /* first: meet_all's */
  create_fault fault;
} faulty_seat;

static int faulty_meet(void *context, const void *send, void *receive, size_t bytes) {
  faulty_seat *faulty = context;
  int victim = faulty->seat.rank == 1;
  if (victim && faulty->fault == FAULT_DEATH_BEFORE) raise(SIGKILL);
  if (faulty->fault == FAULT_CALLBACK || faulty->fault == FAULT_DEATH_BEFORE) return 42; /* the launcher notices */
  int failed = meet_all(context, send, receive, bytes);
  if (victim && faulty->fault == FAULT_DEATH_AFTER) raise(SIGKILL);
  return failed;
}

static int create_rank(meeting *m, int32_t rank, create_fault fault) {
  faulty_seat seat = {.seat = {m, rank}, .fault = fault};
  dt_comm *comm = NULL;
  dt_comm_config config;
  dt_comm_config_init(&config);
  if (fault == FAULT_CONFIG && rank == 1) config.timeout_s = 60.00000001; /* near, and told apart in the message */
  double start = now_s();
  dt_status status = dt_comm_create_shm(rank, 3, faulty_meet, &seat, &config, &comm);
  EXPECT(comm == NULL);
  EXPECT(now_s() - start < 2.0);
  if (fault == FAULT_CONFIG) {
    EXPECT(status == DT_ERR_MISMATCH && strstr(dt_error_detail(), "timeout_s: 60 on rank 0, 60.0000000"));
  } else if (fault == FAULT_DEATH_AFTER) {
    EXPECT(status == DT_ERR_PEER && strstr(dt_error_detail(), "rank 1"));
  } else {
    EXPECT(status == DT_ERR_SYSTEM && strstr(dt_error_detail(), "all-gather callback: returned 42"));
  }
  return 0;
}

static void test_create(void **state) {
  (void)state;
  for (create_fault fault = FAULT_CALLBACK; fault <= FAULT_CONFIG; fault++) {
    meeting *m = new_meeting(3);
    pid_t pids[3];
    for (int32_t p = 0; p < 3; p++) {
      pids[p] = fork_rank();
      if (pids[p] == 0) _exit(create_rank(m, p, fault) != 0);
    }
    for (int32_t p = 0; p < 3; p++) {
      int status = 0;
      waitpid(pids[p], &status, 0);
      if (p == 1 && (fault == FAULT_DEATH_AFTER || fault == FAULT_DEATH_BEFORE)) {
        assert_true(WIFSIGNALED(status));
      } else {
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
      }
    }
    munmap(m, sizeof *m);
  }
}

/* Leaks: descriptors, mappings, names in the file system. */
static int count_entries(const char *path) {
  DIR *directory = opendir(path);
  if (!directory) return -1;
  int count = 0;
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}

static int count_maps(void) {
  FILE *maps = fopen("/proc/self/maps", "r");
  if (!maps) return -1;
  char line[512];
  int count = 0;
  while (fgets(line, sizeof line, maps)) count += strstr(line, "memfd:draintile") != NULL;
  fclose(maps);
  return count;
}

static int leak_rank(meeting *m, int32_t rank) {
  meeting_seat seat = {m, rank};
  int fds = count_entries("/proc/self/fd"), maps = count_maps();
  dt_comm *comm = NULL;
  EXPECT(fds > 0 && maps == 0);
  EXPECT(!dt_comm_create_shm(rank, 3, meet_all, &seat, NULL, &comm));
  int open_fds = count_entries("/proc/self/fd"), open_maps = count_maps();
  EXPECT(open_fds == fds + 3); /* a socket and two peers */
  EXPECT(open_maps == 3);
  for (int i = 0; i < 20; i++) {
    dt_window *windows[4];
    for (int w = 0; w < 4; w++) EXPECT(!dt_comm_alloc(comm, 10000, &windows[w]));
    EXPECT(count_entries("/proc/self/fd") == open_fds && count_maps() == open_maps + 12);
    for (int w = 0; w < 4; w++) dt_comm_free(comm, windows[w]);
    EXPECT(count_maps() == open_maps);
  }
  dt_window *kept = NULL;
  (void)dt_comm_alloc(comm, 1 << 20, &kept); /* a peer may have aborted already: nothing may be left either way */
  dt_comm_abort(comm, DT_ERR_INPUT, "on purpose");
  dt_comm_destroy(comm);
  EXPECT(count_entries("/proc/self/fd") == fds && count_maps() == 0);
  return 0;
}

static void test_leaks(void **state) {
  (void)state;
  int names = count_entries("/dev/shm");
  meeting *m = new_meeting(3);
  pid_t pids[3];
  for (int32_t p = 0; p < 3; p++) {
    pids[p] = fork_rank();
    if (pids[p] == 0) _exit(leak_rank(m, p) != 0);
  }
  for (int32_t p = 0; p < 3; p++) {
    int status = 0;
    waitpid(pids[p], &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  munmap(m, sizeof *m);
  assert_int_equal(count_entries("/dev/shm"), names);
}

/* A rank killed at any moment of create, alloc, traffic, gathers, barriers, frees: the others end soon, with
 * DT_ERR_PEER. */
static int busy_round(dt_comm *comm, int round, dt_status *status) {
  int32_t me = dt_comm_rank(comm), ranks = dt_comm_ranks(comm), to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
  dt_window *window = NULL;
  int64_t words[64], all[64 * RANKS_MAX];
  for (int i = 0; i < 64; i++) words[i] = 1000 * round + 100 * me + i;
  if ((*status = dt_comm_alloc(comm, 4096, &window))) return 0;
  dt_put put = {.window = window, .peer = to, .offset = 64, .src = words, .row_bytes = sizeof words, .rows = 1};
  dt_wait wait = {.phase = "busy", .counter = "round", .index = round, .peer = from};
  *status = dt_comm_put(comm, &put, NULL);
  if (!*status) *status = dt_comm_signal(comm, window, to, 0, 1, 0);
  if (!*status) *status = dt_comm_wait(comm, window, 0, 1, &wait);
  const int64_t *own = (const int64_t *)((unsigned char *)dt_window_local(window) + 64);
  if (!*status) EXPECT(own[63] == 1000 * round + 100 * from + 63);
  if (!*status) *status = dt_comm_allgather(comm, words, all, sizeof words);
  if (!*status) EXPECT(all[64 * from + 1] == 1000 * round + 100 * from + 1);
  dt_comm_free(comm, window);
  return 0;
}

static int busy_rank(meeting *m, int32_t rank) {
  meeting_seat seat = {m, rank};
  dt_comm *comm = NULL;
  dt_status status = dt_comm_create_shm(rank, m->ranks, meet_all, &seat, NULL, &comm);
  if (status) {
    EXPECT(status == DT_ERR_PEER || (status == DT_ERR_SYSTEM && strstr(dt_error_detail(), "callback")));
    return 0;
  }
  for (int round = 0; !status; round++) {
    int failed = busy_round(comm, round, &status);
    if (failed) return failed;
  }
  EXPECT(status == DT_ERR_PEER);
  dt_comm_destroy(comm);
  return 0;
}

static void test_killed_anywhere(void **state) {
  (void)state;
  srand(7);
  for (int trial = 0; trial < 60; trial++) {
    meeting *m = new_meeting(4);
    pid_t pids[4];
    for (int32_t p = 0; p < 4; p++) {
      pids[p] = fork_rank();
      if (pids[p] == 0) _exit(busy_rank(m, p) != 0);
    }
    int victim = rand() % 4, status = 0;
    sleep_s(1e-6 * (rand() % (trial % 2 ? 3000 : 30000)));
    kill(pids[victim], SIGKILL);
    double killed = now_s();
    waitpid(pids[victim], NULL, 0);
    __atomic_store_n(&m->broken, 1, __ATOMIC_SEQ_CST);
    for (int32_t p = 0; p < 4; p++) {
      if (p == victim) continue;
      assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
      assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_true(now_s() - killed < 2.0);
    munmap(m, sizeof *m);
  }
}

/* Only touched pages take memory. */
static int sparse_body(dt_comm *comm, void *argument) {
  (void)argument;
  dt_window *window = NULL;
  EXPECT(!dt_comm_alloc(comm, (size_t)1 << 38, &window)); /* 256 GiB */
  unsigned char *own = dt_window_local(window);
  own[0] = own[((size_t)1 << 38) - 1] = 1;
  EXPECT(own[(size_t)1 << 37] == 0);
  EXPECT(!dt_comm_barrier(comm, "end"));
  return 0;
}

static void test_sparse(void **state) {
  (void)state;
  for (int shm = 0; shm < 2; shm++) assert_int_equal(run_ranks(shm, 2, NULL, sparse_body, NULL), 0);
}

/* A link that would need longer than a wait may last: an error at once on every rank, however absurd the figures. */
static int slow_link_body(dt_comm *comm, void *argument) {
  (void)argument;
  static char data[4096];
  dt_window *window = NULL;
  uint64_t visible_ns = 0;
  double start = now_s();
  dt_status status = dt_comm_alloc(comm, 8192, &window);
  if (!status && dt_comm_rank(comm) == 0) {
    dt_put put = {.window = window, .peer = 1, .offset = 4096, .src = data, .row_bytes = sizeof data, .rows = 1};
    for (int i = 0; i < 8 && !status; i++) status = dt_comm_put(comm, &put, &visible_ns);
    if (!status) status = dt_comm_signal(comm, window, 1, 64, 1, visible_ns);
    if (!status) status = dt_comm_barrier(comm, "combine");
  } else if (!status) {
    dt_wait wait = {.phase = "L1", .counter = "arrival of band", .index = 0, .peer = 0};
    status = dt_comm_wait(comm, window, 64, 1, &wait);
  }
  EXPECT(status == DT_ERR_TIMEOUT || status == DT_ERR_PEER);
  EXPECT(strstr(dt_error_detail(), "paced link: needs") != NULL);
  EXPECT(now_s() - start < 3.0);
  return 0;
}

static void test_slow_link(void **state) {
  (void)state;
  const double links[][3] = {{1e3, 1e6, 0.0},      {1e3, 1.0, 0.0},   {1e9, 1e6, 10.0},   {1e-300, 1e6, 0.0},
                             {1e-300, 1e300, 0.0}, {1e9, 1e6, 1e300}, {1e-3, 1e-3, 1e300}};
  for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
    for (int shm = 0; shm < 2; shm++) {
      dt_comm_config config;
      dt_comm_config_init(&config);
      config.link_bytes_per_s = links[i][0];
      config.link_capacity_bytes = links[i][1];
      config.link_latency_s = links[i][2];
      config.timeout_s = config.entry_timeout_s = 1.0;
      assert_int_equal(run_ranks(shm, 2, &config, slow_link_body, NULL), 0);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_killed),    cmocka_unit_test(test_stopped), cmocka_unit_test(test_paused_together),
      cmocka_unit_test(test_late),      cmocka_unit_test(test_behind),  cmocka_unit_test(test_aborted),
      cmocka_unit_test(test_left),      cmocka_unit_test(test_create),  cmocka_unit_test(test_leaks),
      cmocka_unit_test(test_slow_link), cmocka_unit_test(test_sparse),  cmocka_unit_test(test_killed_anywhere),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
