#include "interrupt.h"

#include <signal.h>
#include <string.h>

#include "args.h"
#include "log.h"

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction previous[ARGS_COUNT(numbers)];
static volatile sig_atomic_t last;

static void on_signal(int number) {
  last = number;
}

void interrupt_catch(void) {
  struct sigaction action = {.sa_handler = on_signal};
  sigemptyset(&action.sa_mask);
  last = 0;
  for (size_t i = 0; i < ARGS_COUNT(numbers); i++) {
    sigaction(numbers[i], &action, &previous[i]);
    if (numbers[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) sigaction(numbers[i], &previous[i], NULL);
  }
}

void interrupt_release(void) {
  for (size_t i = 0; i < ARGS_COUNT(numbers); i++) sigaction(numbers[i], &previous[i], NULL);
}

int interrupt_number(void) {
  return last;
}

int interrupt_fail(int number) {
  return log_fail(TOOL_FAILED, "interrupted by signal %d (%s)", number, strsignal(number));
}

void interrupt_hold(sigset_t *mask) {
  sigset_t ends;
  sigemptyset(&ends);
  for (size_t i = 0; i < ARGS_COUNT(numbers); i++) sigaddset(&ends, numbers[i]);
  sigaddset(&ends, SIGQUIT);
  sigprocmask(SIG_BLOCK, &ends, mask);
}
