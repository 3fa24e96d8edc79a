/* draintile synth: inputs to try the other commands on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "log.h"
#include "proc.h"
#include "synthetic.h"

/* topk_ids and topk_weights beside hidden_states, so that the skew is chosen here and not by a router. Weights are
 * positive, descending and sum to 1. */
static int write_routed(const tool_args *args, const synthetic_tensor *hidden, uint64_t seed) {
  int64_t tokens = hidden->spec.shape[0], slots;
  int32_t experts = (int32_t)args_int(args, "experts"), top_k = (int32_t)args_int(args, "top-k");
  if (top_k > experts) return log_fail(TOOL_USAGE, "--top-k: %d; allowed: 1 to %d, the experts", top_k, experts);
  slots = tokens * top_k;
  int code = proc_memory_check("topk_ids", (double)slots * (sizeof(int32_t) + sizeof(int64_t) + sizeof(float)));
  if (code) return code;
  int32_t *ids = malloc(((size_t)slots + 1) * sizeof(*ids));
  int64_t *wide = malloc(((size_t)slots + 1) * sizeof(*wide));
  float *weights = malloc(((size_t)slots + 1) * sizeof(*weights));
  code = ids && wide && weights ? TOOL_OK : log_out_of_memory();
  if (code == TOOL_OK)
    code = synthetic_route((synthetic_routing)args_choice(args, "routing"), tokens, experts, top_k, seed, ids);
  for (int64_t i = 0; code == TOOL_OK && i < slots; i++) {
    wide[i] = ids[i];
    weights[i] = (float)(2.0 * (top_k - (int32_t)(i % top_k)) / ((double)top_k * (top_k + 1)));
  }
  synthetic_tensor tensors[] = {
      *hidden,
      {.spec = {.name = "topk_ids", .dtype = DT_DTYPE_I64, .dims = 2, .shape = {tokens, top_k}}, .data = wide},
      {.spec = {.name = "topk_weights", .dtype = DT_DTYPE_F32, .dims = 2, .shape = {tokens, top_k}}, .data = weights},
  };
  if (code == TOOL_OK) code = synthetic_write(args->operand, tensors, ARGS_COUNT(tensors), seed);
  free(weights);
  free(wide);
  free(ids);
  return code;
}

static int run_tokens(const tool_args *args) {
  synthetic_tensor hidden = {
      .spec = {.name = "hidden_states",
               .dtype = (dt_dtype)args_choice(args, "dtype"),
               .dims = 2,
               .shape = {args_int(args, "count"), args_int(args, "hidden")}},
      .deviation = 1,
  };
  uint64_t seed = (uint64_t)args_int(args, "seed");
  if (args_set(args, "experts")) return write_routed(args, &hidden, seed);
  static const char *const routed[] = {"top-k", "routing"};
  for (size_t i = 0; i < ARGS_COUNT(routed); i++)
    if (args_given(args, routed[i])) return log_fail(TOOL_USAGE, "--experts: required with --%s", routed[i]);
  return synthetic_write(args->operand, &hidden, 1, seed);
}

static int run_qkv(const tool_args *args) {
  int64_t tokens = args_int(args, "tokens"), heads = args_int(args, "heads"), head_dim = args_int(args, "head-dim");
  int64_t kv_tokens = args_set(args, "kv-tokens") ? args_int(args, "kv-tokens") : tokens;
  int64_t kv_heads = args_set(args, "kv-heads") ? args_int(args, "kv-heads") : heads;
  if (heads % kv_heads)
    return log_fail(TOOL_USAGE, "--kv-heads: %lld; allowed: a divisor of %lld, the heads", (long long)kv_heads,
                    (long long)heads);
  dt_dtype dtype = (dt_dtype)args_choice(args, "dtype");
  double deviation = args_number(args, "deviation");
  synthetic_tensor tensors[] = {
      {.spec = {.name = "q", .dtype = dtype, .dims = 3, .shape = {tokens, heads, head_dim}}, .deviation = deviation},
      {.spec = {.name = "k", .dtype = dtype, .dims = 3, .shape = {kv_tokens, kv_heads, head_dim}},
       .deviation = deviation},
      {.spec = {.name = "v", .dtype = dtype, .dims = 3, .shape = {kv_tokens, kv_heads, head_dim}}, .deviation = 1},
  };
  return synthetic_write(args->operand, tensors, ARGS_COUNT(tensors), (uint64_t)args_int(args, "seed"));
}

static const arg_option tokens_options[] = {
    OPT_INT("count", "T", arg_required, 0, 1e9, "tokens"),
    OPT_INT("hidden", "H", arg_required, 1, 1e6, "values of a token"),
    OPTION_DTYPE,
    OPTION_SEED,
    OPT_INT("experts", "N", NULL, 1, 1 << 20,
            "write topk_ids and topk_weights as well, over N experts: they replace the router"),
    OPT_INT("top-k", "K", "2", 1, 1024, "experts of a token, with --experts"),
    OPT_CHOICE("routing", "MODE", "balanced", synthetic_routing_names, "how --experts are chosen"),
};

static const arg_option qkv_options[] = {
    OPT_INT("tokens", "S", arg_required, 0, 1e9, "query tokens"),
    OPT_INT("heads", "H", arg_required, 1, 65536, "query heads"),
    OPT_INT("head-dim", "D", arg_required, 1, 65536, "values of a head"),
    OPT_INT("kv-tokens", "S", NULL, 0, 1e9, "key and value tokens (default: as --tokens)"),
    OPT_INT("kv-heads", "H", NULL, 1, 65536, "key and value heads (default: as --heads)"),
    OPT_NUMBER("deviation", "X", "1", 0, 1e4,
               "standard deviation of queries and keys: large ones make sharp attention"),
    OPTION_DTYPE,
    OPTION_SEED,
};

static const tool_command command_synth_tokens = {
    .name = "tokens",
    .summary = "write a tokens file: hidden_states [T, H], normal with deviation 1",
    .options = tokens_options,
    .option_count = ARGS_COUNT(tokens_options),
    .operand = "FILE",
    .operand_help = "the safetensors file to write",
    .run = run_tokens,
};

static const tool_command command_synth_qkv = {
    .name = "qkv",
    .summary = "write an attention input: q [S, H, D], k and v [S_kv, H_kv, D]",
    .options = qkv_options,
    .option_count = ARGS_COUNT(qkv_options),
    .operand = "FILE",
    .operand_help = "the safetensors file to write",
    .run = run_qkv,
};

static const tool_command *const kinds[] = {&command_synth_checkpoint, &command_synth_tokens, &command_synth_qkv};

const tool_command command_synth = {
    .name = "synth",
    .summary = "write synthetic inputs: a checkpoint, tokens, attention heads",
    .subcommands = kinds,
    .subcommand_count = ARGS_COUNT(kinds),
};
