/* One line about a run that failed: the rank that was lost, or else the first cause that a rank named. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "args.h"
#include "interrupt.h"
#include "log.h"
#include "ranks_internal.h"

static int lost(const rank_process *process) {
  return process->ended && WIFSIGNALED(process->wait_status) && !process->killed_here;
}

static int code_of(const rank_process *process) {
  return process->ended && WIFEXITED(process->wait_status) ? WEXITSTATUS(process->wait_status) : TOOL_FAILED;
}

/* The account to print: a rank that failed by itself before one that failed because of another. */
static int32_t best_account(const rank_process *processes, const rank_account *accounts, int32_t ranks) {
  int32_t best = -1, best_grade = 0;
  for (int32_t rank = 0; rank < ranks; rank++) {
    if (!accounts[rank].detail[0]) continue;
    int grade = accounts[rank].secondary ? 1 : code_of(&processes[rank]) == TOOL_USAGE ? 3 : 2;
    if (grade > best_grade) {
      best = rank;
      best_grade = grade;
    }
  }
  return best;
}

int ranks_report(const rank_process *processes, const rank_account *accounts, int32_t ranks, int interrupted) {
  if (interrupted) return interrupt_fail(interrupted);
  int32_t told = best_account(processes, accounts, ranks);
  char account[RANK_DETAIL_BYTES + 32] = "";
  if (told >= 0) snprintf(account, sizeof(account), "; seen by rank %d: %s", told, accounts[told].detail);
  for (int32_t rank = 0; rank < ranks; rank++)
    if (lost(&processes[rank])) {
      int signal_number = WTERMSIG(processes[rank].wait_status);
      return log_fail(TOOL_FAILED, "rank %d (process %ld) was killed by signal %d (%s)%s", rank,
                      (long)processes[rank].pid, signal_number, strsignal(signal_number), account);
    }
  for (int32_t rank = 0; rank < ranks; rank++)
    if (processes[rank].stopped)
      return log_fail(TOOL_FAILED, "rank %d (process %ld) is stopped%s", rank, (long)processes[rank].pid, account);
  if (told >= 0) return log_fail(code_of(&processes[told]), "rank %d: %s", told, accounts[told].detail);
  for (int32_t rank = 0; rank < ranks; rank++)
    if (processes[rank].killed_here)
      return log_fail(TOOL_FAILED, "rank %d (process %ld) did not end in time", rank, (long)processes[rank].pid);
  return log_fail(TOOL_FAILED, "a rank failed without saying why");
}
