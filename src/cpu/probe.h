/* The probe on a CPU fabric: producers are threads of the sending ranks, a burst is one put. Collective: rank 0 leads
 * and holds the machine, the other ranks serve until it ends.
 */
#ifndef DT_CPU_PROBE_H
#define DT_CPU_PROBE_H

#include <draintile/comm.h>

#include "model/probe.h"

typedef struct dt_cpu_probe dt_cpu_probe;

/* Collective. max_producers: threads a sender, 1 to 8. */
dt_status dt_cpu_probe_create(dt_comm *comm, int32_t max_producers, dt_cpu_probe **probe);
/* Rank 0: the experiment as a machine; it borrows the probe. */
void dt_cpu_probe_machine(dt_cpu_probe *probe, dt_probe_machine *machine);
/* All-to-all: where burst `burst` of producer `index` goes. Producers take turns over the peers, each starting
 * elsewhere. */
int32_t dt_cpu_probe_peer(int32_t rank, int32_t ranks, int32_t index, uint32_t burst);
/* The other ranks: takes part in every run of rank 0 until it calls dt_cpu_probe_end. */
dt_status dt_cpu_probe_serve(dt_cpu_probe *probe);
dt_status dt_cpu_probe_end(dt_cpu_probe *probe);
void dt_cpu_probe_destroy(dt_cpu_probe *probe); /* collective */

#endif
