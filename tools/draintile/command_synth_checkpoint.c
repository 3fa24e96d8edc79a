/* draintile synth checkpoint: a Hugging Face folder of random weights, scaled like trained ones. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "interrupt.h"
#include "json.h"
#include "log.h"
#include "proc.h"
#include "synthetic.h"

enum { VOCABULARY = 256, NAME_BYTES = 96, PATH_BYTES = 4096 };

/* In config.json: what may be overwritten. */
static const char synthetic_key[] = "draintile_synth_seed";

typedef struct model_shape {
  int64_t hidden, intermediate, experts, top_k, layers, head_dim, heads;
  dt_dtype dtype;
  uint64_t seed;
} model_shape;

typedef struct tensor_list {
  synthetic_tensor *tensors;
  char (*names)[NAME_BYTES];
  int32_t *shard; /* of each tensor */
  size_t count, capacity;
} tensor_list;

/* Normal with deviation 1/sqrt(columns), so that a layer keeps the scale of what passes it; vectors are ones. */
static void add(tensor_list *list, const model_shape *shape, int64_t rows, int64_t columns, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void add(tensor_list *list, const model_shape *shape, int64_t rows, int64_t columns, const char *format, ...) {
  if (list->count == list->capacity) return;
  size_t i = list->count++;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(list->names[i], NAME_BYTES, format, arguments);
  va_end(arguments);
  list->tensors[i] = (synthetic_tensor){
      .spec = {.name = list->names[i], .dtype = shape->dtype, .dims = columns ? 2 : 1, .shape = {rows, columns}},
      .mean = columns ? 0 : 1,
      .deviation = columns ? 1 / sqrt((double)columns) : 0,
  };
}

static void add_layer(tensor_list *list, const model_shape *m, int64_t layer) {
  int l = (int)layer;
  add(list, m, m->hidden, 0, "model.layers.%d.input_layernorm.weight", l);
  add(list, m, m->hidden, 0, "model.layers.%d.post_attention_layernorm.weight", l);
  add(list, m, m->heads * m->head_dim, m->hidden, "model.layers.%d.self_attn.q_proj.weight", l);
  add(list, m, m->heads * m->head_dim, m->hidden, "model.layers.%d.self_attn.k_proj.weight", l);
  add(list, m, m->heads * m->head_dim, m->hidden, "model.layers.%d.self_attn.v_proj.weight", l);
  add(list, m, m->hidden, m->heads * m->head_dim, "model.layers.%d.self_attn.o_proj.weight", l);
  add(list, m, m->head_dim, 0, "model.layers.%d.self_attn.q_norm.weight", l);
  add(list, m, m->head_dim, 0, "model.layers.%d.self_attn.k_norm.weight", l);
  add(list, m, m->experts, m->hidden, "model.layers.%d.mlp.gate.weight", l);
  for (int e = 0; e < m->experts; e++) {
    add(list, m, m->intermediate, m->hidden, "model.layers.%d.mlp.experts.%d.gate_proj.weight", l, e);
    add(list, m, m->intermediate, m->hidden, "model.layers.%d.mlp.experts.%d.up_proj.weight", l, e);
    add(list, m, m->hidden, m->intermediate, "model.layers.%d.mlp.experts.%d.down_proj.weight", l, e);
  }
}

static int list_tensors(const model_shape *m, tensor_list *list) {
  list->capacity = (size_t)(3 + m->layers * (9 + 3 * m->experts));
  const size_t each = sizeof(*list->tensors) + sizeof(*list->names) + sizeof(*list->shard);
  int code = proc_memory_check("--layers, --experts", (double)list->capacity * (double)each);
  if (code) return code;
  list->tensors = calloc(list->capacity, sizeof(*list->tensors));
  list->names = calloc(list->capacity, sizeof(*list->names));
  list->shard = calloc(list->capacity, sizeof(*list->shard));
  if (!list->tensors || !list->names || !list->shard) return log_out_of_memory();
  add(list, m, VOCABULARY, m->hidden, "model.embed_tokens.weight");
  for (int64_t layer = 0; layer < m->layers; layer++) add_layer(list, m, layer);
  add(list, m, m->hidden, 0, "model.norm.weight");
  add(list, m, VOCABULARY, m->hidden, "lm_head.weight");
  return TOOL_OK;
}

/* Consecutive tensors up to the shard size (at least one) share a file. Returns the number of files. */
static int32_t cut_shards(tensor_list *list, double shard_bytes) {
  int32_t shard = 0;
  double filled = 0;
  for (size_t i = 0; i < list->count; i++) {
    double bytes = (double)synthetic_bytes(&list->tensors[i].spec);
    if (filled > 0 && filled + bytes > shard_bytes) {
      shard++;
      filled = 0;
    }
    filled += bytes;
    list->shard[i] = shard;
  }
  return shard + 1;
}

static void shard_name(char *name, size_t size, int32_t shard, int32_t shards) {
  if (shards == 1)
    snprintf(name, size, "model.safetensors");
  else
    snprintf(name, size, "model-%05d-of-%05d.safetensors", shard + 1, shards);
}

static int write_config(const char *folder, const model_shape *m) {
  static const char *const torch_names[] = {"float32", "bfloat16", "float16"};
  char path[PATH_BYTES];
  snprintf(path, sizeof(path), "%s/config.json", folder);
  json_t *config = json_pack(
      "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:s, s:f, s:f, s:i, s:i, s:i, s:[], s:b, s:s}",
      "architectures", "Qwen3MoeForCausalLM", "model_type", "qwen3_moe", "hidden_size", (json_int_t)m->hidden,
      "intermediate_size", (json_int_t)m->intermediate, "moe_intermediate_size", (json_int_t)m->intermediate,
      "num_experts", (json_int_t)m->experts, "num_experts_per_tok", (json_int_t)m->top_k, "norm_topk_prob", 1,
      "num_hidden_layers", (json_int_t)m->layers, "num_attention_heads", (json_int_t)m->heads, "num_key_value_heads",
      (json_int_t)m->heads, "head_dim", (json_int_t)m->head_dim, "hidden_act", "silu", "rms_norm_eps", 1e-6,
      "rope_theta", 1e6, "vocab_size", VOCABULARY, "max_position_embeddings", 4096, "decoder_sparse_step", 1,
      "mlp_only_layers", "tie_word_embeddings", 0, "torch_dtype", torch_names[m->dtype]);
  if (config) json_object_set_new(config, synthetic_key, json_whole_unsigned(m->seed));
  return json_write(config, path);
}

static int write_index(const char *folder, const tensor_list *list, int32_t shards) {
  char path[PATH_BYTES], name[64];
  snprintf(path, sizeof(path), "%s/model.safetensors.index.json", folder);
  json_t *map = json_object();
  int64_t total = 0;
  for (size_t i = 0; i < list->count; i++) {
    shard_name(name, sizeof(name), list->shard[i], shards);
    json_object_set_new(map, list->names[i], json_string(name));
    total += synthetic_bytes(&list->tensors[i].spec);
  }
  return json_write(json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map), path);
}

static int write_folder(const char *folder, const model_shape *m, double shard_bytes) {
  tensor_list list = {0};
  int code = list_tensors(m, &list);
  int32_t shards = code == TOOL_OK ? cut_shards(&list, shard_bytes) : 0;
  size_t first = 0;
  for (int32_t shard = 0; code == TOOL_OK && shard < shards; shard++) {
    char name[64], path[PATH_BYTES];
    size_t end = first;
    while (end < list.count && list.shard[end] == shard) end++;
    shard_name(name, sizeof(name), shard, shards);
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    code = synthetic_write(path, list.tensors + first, end - first, m->seed);
    first = end;
  }
  if (code == TOOL_OK && shards > 1) code = write_index(folder, &list, shards);
  if (code == TOOL_OK) code = write_config(folder, m);
  free(list.shard);
  free(list.names);
  free(list.tensors);
  return code;
}

/* Removes the files of a folder and the folder itself. */
static void remove_folder(const char *folder) {
  DIR *directory = opendir(folder);
  struct dirent *entry;
  while (directory && (entry = readdir(directory)))
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
      unlinkat(dirfd(directory), entry->d_name, 0);
  if (directory) closedir(directory);
  rmdir(folder);
}

static bool is_written_here(const char *name) {
  int end = 0;
  sscanf(name, "model-%*[0-9]-of-%*[0-9].safetensors%n", &end);
  return (end > 0 && !name[end]) || strcmp(name, "model.safetensors") == 0 ||
         strcmp(name, "model.safetensors.index.json") == 0 || strcmp(name, "config.json") == 0;
}

/* What the folder holds of its user's; false: nothing. */
static bool find_foreign(DIR *directory, char name[NAME_MAX + 1], int *entries) {
  struct dirent *entry;
  *entries = 0;
  while ((entry = readdir(directory))) {
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    ++*entries;
    snprintf(name, NAME_MAX + 1, "%s", entry->d_name);
    if (!is_written_here(name)) return true;
  }
  return false;
}

static bool is_marked(const char *folder) {
  char path[PATH_BYTES];
  snprintf(path, sizeof(path), "%s/config.json", folder);
  struct stat file; /* a pipe without a writer would never open */
  json_t *config = stat(path, &file) == 0 && S_ISREG(file.st_mode) ? json_load_file(path, 0, NULL) : NULL;
  const bool marked = json_object_get(config, synthetic_key) != NULL;
  json_decref(config);
  return marked;
}

/* An existing folder is replaced only when it is empty, or its config.json says that it was made here and nothing else
 * lies there. */
static int check_target(const char *folder) {
  struct stat status;
  if (lstat(folder, &status) != 0) return TOOL_OK;
  if (!S_ISDIR(status.st_mode)) return log_fail(TOOL_USAGE, "%s: exists and is not a folder", folder);
  const char *slash = strrchr(folder, '/'), *last = slash ? slash + 1 : folder;
  if (args_is_mount(folder) || strcmp(last, ".") == 0 || strcmp(last, "..") == 0)
    return log_fail(TOOL_USAGE, "%s: cannot be replaced; allowed: a folder in it", folder);
  DIR *directory = opendir(folder);
  if (!directory) return log_fail(TOOL_FAILED, "%s: %s", folder, strerror(errno));
  char name[NAME_MAX + 1];
  int entries;
  const bool foreign = find_foreign(directory, name, &entries);
  closedir(directory);
  if (entries == 0 || (!foreign && is_marked(folder))) return TOOL_OK;
  return log_fail(TOOL_USAGE,
                  "%s: holds files that synth did not make: %s; allowed: a new folder, an empty one, or one that synth "
                  "made",
                  folder, name);
}

static int put_in_place(const char *temporary, const char *folder) {
  if (rename(temporary, folder) == 0) return TOOL_OK;
  int code = errno == ENOTEMPTY || errno == EEXIST ? check_target(folder) /* that may have come meanwhile */
                                                   : log_fail(TOOL_FAILED, "%s: %s", folder, strerror(errno));
  if (code == TOOL_OK && renameat2(AT_FDCWD, temporary, AT_FDCWD, folder, RENAME_EXCHANGE) == 0) {
    remove_folder(temporary);
    return TOOL_OK;
  }
  if (code == TOOL_OK) code = log_fail(TOOL_FAILED, "%s: %s", folder, strerror(errno));
  remove_folder(temporary);
  return code;
}

static int new_folder(const char *name) {
  return mkdir(name, 0777);
}

static int run(const tool_args *args) {
  model_shape m = {
      .hidden = args_int(args, "hidden"),
      .intermediate = args_int(args, "intermediate"),
      .experts = args_int(args, "experts"),
      .top_k = args_int(args, "top-k"),
      .layers = args_int(args, "layers"),
      .dtype = (dt_dtype)args_choice(args, "dtype"),
      .seed = (uint64_t)args_int(args, "seed"),
  };
  if (m.top_k > m.experts)
    return log_fail(TOOL_USAGE, "--top-k: %lld; allowed: 1 to %lld, the experts", (long long)m.top_k,
                    (long long)m.experts);
  m.head_dim = m.hidden % 128 == 0 ? 128 : 16;
  m.heads = m.hidden / m.head_dim > 0 ? m.hidden / m.head_dim : 1;
  size_t length = strlen(args->operand);
  while (length > 1 && args->operand[length - 1] == '/') length--;
  char folder[PATH_BYTES / 2], temporary[PATH_BYTES / 2 + 40];
  if (length >= sizeof(folder))
    return log_fail(TOOL_USAGE, "DIR: path too long; allowed: %zu bytes", sizeof(folder) - 1);
  snprintf(folder, sizeof(folder), "%.*s", (int)length, args->operand);
  int code = check_target(folder);
  if (code) return code;
  interrupt_catch();
  if (args_temporary(folder, new_folder, temporary, sizeof(temporary)) < 0)
    return log_fail(TOOL_FAILED, "%s: %s", folder, strerror(errno));
  code = write_folder(temporary, &m, args_number(args, "shard-size"));
  if (code == TOOL_OK)
    code = put_in_place(temporary, folder);
  else
    remove_folder(temporary);
  interrupt_release();
  return code;
}

static const char *const architectures[] = {"qwen3_moe", NULL};

static const arg_option options[] = {
    OPT_CHOICE("arch", "ARCH", "qwen3_moe", architectures, "model family"),
    OPT_INT("hidden", "H", arg_required, 1, 1e6, "hidden size"),
    OPT_INT("intermediate", "I", arg_required, 1, 1e6, "intermediate size of an expert"),
    OPT_INT("experts", "N", arg_required, 1, 65536, "experts of a layer"),
    OPT_INT("top-k", "K", arg_required, 1, 1024, "experts of a token"),
    OPT_INT("layers", "L", "1", 1, 1024, "layers"),
    OPTION_DTYPE,
    OPTION_SEED,
    OPT_SIZE("shard-size", "4GiB", "a file holds at most this, or one tensor"),
};

const tool_command command_synth_checkpoint = {
    .name = "checkpoint",
    .summary = "write a Hugging Face model folder with random weights, scaled like trained ones",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .operand = "DIR",
    .operand_help = "the folder to write; an existing one is replaced only when synth made it",
    .run = run,
};
