/* Every input the fuzzer kept for config.json and the shard index, once more. */
#include "fuzz/fuzz_model.c"

#define CORPUS "model"
#include "fuzz/replay.h"
