/* SIGINT, SIGTERM and SIGHUP, where a command has more to do than end: ranks to stop, files to remove. */
#ifndef DRAINTILE_TOOL_INTERRUPT_H
#define DRAINTILE_TOOL_INTERRUPT_H

#include <signal.h>

/* From here on the signals are only remembered. A SIGHUP that was ignored (nohup) stays ignored. */
void interrupt_catch(void);
/* As it was before interrupt_catch. */
void interrupt_release(void);
/* The last signal since interrupt_catch; 0: none. */
int interrupt_number(void);
/* Says which signal it was. Returns an exit code. */
int interrupt_fail(int number);

/* Until sigprocmask(SIG_SETMASK, mask, NULL) what would end the process waits: a few lines that must be whole. */
void interrupt_hold(sigset_t *mask);

#endif
