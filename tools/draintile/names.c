#include "commands.h"

const char *const layout_names[] = {"packed", "aligned", NULL};
const char *const order_names[] = {"natural", "remote-first", "paced", NULL};
const char *const schedule_names[] = {"serial", "signal", "direct", "wave", "interleave", "alternate", NULL};
const char *const schedule_auto_names[] = {"serial",     "signal",    "direct", "wave",
                                           "interleave", "alternate", "auto",   NULL};
const char *const float_dtype_names[] = {"f32", "bf16", "f16", NULL};
