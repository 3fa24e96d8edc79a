/* What lies between the stages of serial runs. */
#ifndef DT_SIM_FIT_STAGES_H
#define DT_SIM_FIT_STAGES_H

#include <draintile/simulate.h>

/* plan_s (counts exchange included: entry_s becomes 0) and barrier_s, medians over the runs. DT_ERR_MEMORY. */
dt_status sim_fit_stages(const dt_trace_rank *traces, size_t count, dt_sim_costs *costs);

#endif
