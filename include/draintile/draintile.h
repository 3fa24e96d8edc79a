/* Everything public. */
#ifndef DRAINTILE_DRAINTILE_H
#define DRAINTILE_DRAINTILE_H

#include <draintile/attention.h>
#include <draintile/build.h>
#include <draintile/calibrate.h>
#include <draintile/checkpoint.h>
#include <draintile/combine.h>
#include <draintile/combine_bench.h>
#include <draintile/comm.h>
#include <draintile/cuda_attention.h>
#include <draintile/cuda_memory.h>
#include <draintile/cuda_moe.h>
#include <draintile/gemm.h>
#include <draintile/model.h>
#include <draintile/moe.h>
#include <draintile/moe_bench.h>
#include <draintile/plan.h>
#include <draintile/platform.h>
#include <draintile/reference.h>
#include <draintile/simulate.h>
#include <draintile/status.h>
#include <draintile/trace.h>
#include <draintile/ulysses.h>
#include <draintile/ulysses_bench.h>
#include <draintile/units.h>
#include <draintile/version.h>
#include <draintile/weights.h>

#endif
