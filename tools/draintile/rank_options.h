/* Options of the commands that run ranks, and what they mean to all of them. */
#ifndef DRAINTILE_TOOL_RANK_OPTIONS_H
#define DRAINTILE_TOOL_RANK_OPTIONS_H

#include <draintile/comm.h>

#include "args.h"

extern const char *const device_names[]; /* cpu, cuda */

/* Rows of an option table. */
#define OPTION_DEVICE OPT_CHOICE("device", "DEVICE", "cpu", device_names, "where the ranks compute")
#define OPTIONS_LINK                                                                                                   \
  OPT_RATE("link-rate", NULL, "pace each rank's link at this rate (default: memory speed)"),                           \
      OPT_SIZE("link-capacity", "4MiB", "bytes in flight before a sender blocks, with --link-rate"),                   \
      OPT_TIME("link-latency", "0", "until bytes become visible, beyond the rate, with --link-rate")
#define OPTIONS_TIMEOUTS                                                                                               \
  OPT_TIME("timeout", NULL,                                                                                            \
           "give up a wait between ranks after this (default 60s), and one for a rank to arrive (default 300s)"),      \
      OPT_TIME("entry-timeout", NULL, "give up a wait for a rank to arrive after this; 0: while its process lives")
#define OPTIONS_WAITS                                                                                                  \
  OPTIONS_TIMEOUTS, OPT_TIME("delay", "0", "testing: random pauses up to this in every thread"),                       \
      OPT_INT("delay-seed", "S", "0", 0, 1e15, "testing: seed of the pauses")

#define OPTIONS_MEASURE                                                                                                \
  OPT_FLAG("check", "compare with a float64 reference and with serial, to the bit; exit 1 if it fails"),               \
      OPT_INT("repeat", "N", "5", 1, 100000, "measured runs of each schedule, interleaved, after a warm-up")
#define OPTION_TRACE OPT_OUTPUT("trace", "write the last repeat of every schedule as Chrome/Perfetto JSON")
extern const char *const switch_names[]; /* off, on */

/* All return an exit code, having said what is wrong. Device: TOOL_SKIPPED for what is not here. */
/* *gpus: how many there are, 0 for the CPU. gpus NULL: this command's ranks compute on the CPU alone. Asked in a child
 * process: a process that has spoken to the driver cannot fork ranks that use it. */
int rank_options_device(const tool_args *args, int32_t *gpus);
/* OPTIONS_LINK, into a configuration that is otherwise the default one; then OPTIONS_TIMEOUTS, or OPTIONS_WAITS. */
int rank_options_link(const tool_args *args, dt_comm_config *comm);
int rank_options_timeouts(const tool_args *args, dt_comm_config *comm);
int rank_options_waits(const tool_args *args, dt_comm_config *comm);
/* --delay and --delay-seed: seed 0 only without a delay. */
void rank_options_delay(const tool_args *args, int32_t *delay_max_us, uint64_t *delay_seed);

#endif
