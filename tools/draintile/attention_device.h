/* One rank of `draintile attention --device cuda`: its GPU, its share of the inputs there, and the operator. */
#ifndef DRAINTILE_TOOL_ATTENTION_DEVICE_H
#define DRAINTILE_TOOL_ATTENTION_DEVICE_H

#include "attention.h"

typedef struct attention_device attention_device;

/* Refuses what the GPU's operator cannot do. Exit code. */
int attention_device_check(const attention_job *job);
/* Counts the GPUs; TOOL_SKIPPED where there is none. Before a rank is forked. */
int attention_device_find(attention_job *job);

/* Collective. `control` (fabric shm) belongs to *comm afterwards. Ranks share GPUs where they outnumber them. */
dt_status attention_device_open(const attention_job *job, dt_comm *control, const dt_attention_input *input,
                                dt_comm **comm, attention_device **device);
void attention_device_close(attention_device *device); /* collective unless a run failed; NULL allowed */

/* Collective: one run of a schedule. Times are the GPU's, between two events. output: host memory, until the next. */
dt_status attention_device_forward(attention_device *device, const dt_attention_config *config,
                                   dt_attention_stats *stats, const void **output);
/* Of the last forward, with --trace. */
void attention_device_spans(const attention_device *device, const dt_span **spans, size_t *count);
/* Bytes that this rank sends to each peer in one run. */
dt_status attention_device_sent(const attention_job *job, int32_t rank, uint64_t *sent);
/* What it runs on. */
void attention_device_describe(const attention_device *device, attention_rank_facts *facts);

#endif
