/* Every input the fuzzer kept for tensor files, once more. */
#include "fuzz/fuzz_safetensors.c"

#define CORPUS "safetensors"
#include "fuzz/replay.h"
