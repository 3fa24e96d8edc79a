/* One rank of `draintile attention --device cuda`: its GPU, its share of the inputs there, and the operator. */
#ifndef DRAINTILE_TOOL_ATTENTION_DEVICE_H
#define DRAINTILE_TOOL_ATTENTION_DEVICE_H

#include "attention.h"

typedef struct attention_device attention_device;

/* Whether this machine and the options allow --device cuda; says why not. Exit code. */
int attention_device_check(const tool_args *args);

/* Collective. `control` (fabric shm) belongs to *comm afterwards. Ranks share GPUs where they outnumber them. */
dt_status attention_device_open(const attention_job *job, dt_comm *control, const dt_attention_input *input,
                                dt_comm **comm, attention_device **device);
void attention_device_close(attention_device *device); /* collective unless a run failed; NULL allowed */

/* Collective: one run of a schedule. Times are the GPU's, between two events. output: host memory, until the next. */
dt_status attention_device_forward(attention_device *device, const dt_attention_config *config,
                                   dt_attention_stats *stats, const void **output);
/* Bytes that this rank sends to each peer in one run. */
dt_status attention_device_sent(const attention_job *job, int32_t rank, uint64_t *sent);
/* What it runs on. */
void attention_device_describe(const attention_device *device, attention_rank_facts *facts);

#endif
