/* The chain from a question to the constants that answered it. */
#ifndef DRAINTILE_TOOL_MODEL_EXPLAIN_H
#define DRAINTILE_TOOL_MODEL_EXPLAIN_H

#include <stdio.h>

#include <draintile/platform.h>

/* sources: as dt_platform_burst_model filled them for this question. */
void model_explain(FILE *out, const dt_platform *platform, const dt_platform_question *question,
                   const dt_platform_source sources[3]);

#endif
