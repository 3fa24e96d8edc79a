/* Other processes of this machine: whether they live, and whether they run. */
#ifndef DT_COMM_PROCESS_H
#define DT_COMM_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

/* State letter of proc(5): 'T' stopped, 'Z' zombie; 0: no such process. start (may be NULL): its start time in clock
 * ticks since boot, which with the pid names a process for good. */
char dt_process_state(pid_t pid, uint64_t *start);

/* A descriptor that becomes readable when the process ends, reaped or not; -1 and errno. */
int dt_process_open(pid_t pid);
int dt_process_died(int pidfd);

#endif
