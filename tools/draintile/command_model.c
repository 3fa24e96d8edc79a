/* draintile model: the Burst-Gap closed forms for one question. */
#include <math.h>
#include <string.h>

#include <draintile/model.h>
#include <draintile/platform.h>

#include "commands.h"
#include "json.h"
#include "log.h"
#include "model_explain.h"
#include "table.h"

typedef struct model_case {
  dt_burst_model_interval model;
  dt_burst_question question;
  dt_burst_prediction prediction;
  dt_interval t_issue_s;
  dt_answer answer;
} model_case;

static int from_platform(const tool_args *args, dt_burst_model_interval *model) {
  dt_platform *platform;
  dt_status status = dt_platform_load(args_text(args, "platform"), &platform);
  if (status) return log_unread(status);
  dt_platform_question question = {
      .producers = args_number(args, "producers"),
      .producer_bytes = args_number(args, "producer-bytes"),
      .pattern = args_text(args, "pattern"),
      .operation = args_text(args, "operation"),
  }; /* of any alignment: the constants are the queue's own */
  dt_platform_source sources[3];
  status = dt_platform_burst_model(platform, &question, model, sources);
  const char *json = args_text(args, "json");
  if (!status && args_set(args, "explain"))
    model_explain(json_is_stdout(json) ? stderr : stdout, platform, &question, sources);
  dt_platform_destroy(platform);
  return status ? log_status(status, args_text(args, "platform")) : TOOL_OK;
}

static void override(const tool_args *args, const char *name, dt_interval *interval) {
  if (!args_set(args, name)) return;
  double value = args_number(args, name);
  *interval = (dt_interval){value, value, value};
}

static int read_case(const tool_args *args, model_case *c) {
  if (args_set(args, "platform")) {
    if (!args_set(args, "producers") || !args_set(args, "producer-bytes"))
      return log_fail(TOOL_USAGE, "--platform: needs --producers and --producer-bytes");
    int code = from_platform(args, &c->model);
    if (code) return code;
  } else {
    const char *needed[] = {"t0", "rate", "capacity"};
    for (size_t i = 0; i < ARGS_COUNT(needed); i++)
      if (!args_set(args, needed[i])) return log_fail(TOOL_USAGE, "--%s: required without --platform", needed[i]);
    const char *of_platform[] = {"pattern", "operation", "explain"};
    for (size_t i = 0; i < ARGS_COUNT(of_platform); i++)
      if (args_given(args, of_platform[i])) return log_fail(TOOL_USAGE, "--%s: needs --platform", of_platform[i]);
  }
  override(args, "t0", &c->model.t0_s);
  override(args, "rate", &c->model.rate_bytes_per_s);
  override(args, "capacity", &c->model.capacity_bytes);
  c->question.gap_s = args_number(args, "gap");
  c->question.aligned = args_set(args, "aligned");
  if (args_set(args, "burst"))
    c->question.burst_bytes = args_number(args, "burst");
  else if (args_set(args, "producers") && args_set(args, "producer-bytes"))
    c->question.burst_bytes = args_number(args, "producers") * args_number(args, "producer-bytes");
  else
    return log_fail(TOOL_USAGE, "--burst: required without --producers and --producer-bytes");
  return TOOL_OK;
}

static json_t *to_json(const model_case *c) {
  json_t *root = json_results("draintile-model");
  json_object_set_new(root, "t0_s", json_figure(c->model.t0_s.value));
  json_object_set_new(root, "rate_bytes_per_s", json_figure(c->model.rate_bytes_per_s.value));
  json_object_set_new(root, "capacity_bytes", json_figure(c->model.capacity_bytes.value));
  json_object_set_new(root, "burst_bytes", json_figure(c->question.burst_bytes));
  json_object_set_new(root, "gap_s", json_figure(c->question.gap_s));
  json_object_set_new(root, "aligned", json_boolean(c->question.aligned));
  json_object_set_new(root, "t_issue_s", json_figure(c->prediction.t_issue_s));
  json_object_set_new(root, "t_issue_low_s", json_figure(c->t_issue_s.low));
  json_object_set_new(root, "t_issue_high_s", json_figure(c->t_issue_s.high));
  json_object_set_new(root, "period_s", json_figure(c->prediction.period_s));
  json_object_set_new(root, "recovery_gap_s", json_figure(c->prediction.recovery_gap_s));
  json_object_set_new(root, "isolated_issue_s", json_figure(c->prediction.isolated_issue_s));
  json_object_set_new(root, "completion_coupled_period_s", json_figure(c->prediction.completion_coupled_period_s));
  json_object_set_new(root, "regime", json_string(dt_regime_name(c->prediction.regime)));
  json_object_set_new(root, "rate_ok", json_boolean(c->prediction.rate_ok));
  json_object_set_new(root, "capacity_ok", json_boolean(c->prediction.capacity_ok));
  json_object_set_new(root, "answer", json_string(dt_answer_name(c->answer)));
  return root;
}

static void print_case(const model_case *c) {
  tool_table *table = table_create("<quantity|value|<meaning");
  table_cell(table, "t_issue");
  table_time(table, c->prediction.t_issue_s);
  table_cell(table, "issue time of a burst, %s bursts", c->question.aligned ? "aligned" : "free-running");
  table_cell(table, "period");
  table_time(table, c->prediction.period_s);
  table_cell(table, "issue time + gap");
  table_cell(table, "recovery_gap");
  table_time(table, c->prediction.recovery_gap_s);
  table_cell(table, "gap from which a free-running burst no longer stalls");
  table_cell(table, "isolated_issue");
  table_time(table, c->prediction.isolated_issue_s);
  table_cell(table, "issue time after any long gap");
  table_cell(table, "completion_coupled_period");
  table_time(table, c->prediction.completion_coupled_period_s);
  table_cell(table, "the rejected law, V/R + gap");
  table_cell(table, "regime");
  table_cell(table, "%s", dt_regime_name(c->prediction.regime));
  table_cell(table, "what sets the issue time");
  table_cell(table, "rate_ok");
  table_cell(table, "%s", c->prediction.rate_ok ? "yes" : "no");
  table_cell(table, "V <= R*(T0 + G)");
  table_cell(table, "capacity_ok");
  table_cell(table, "%s", c->prediction.capacity_ok ? "yes" : "no");
  table_cell(table, "V - R*T0 <= Q");
  table_cell(table, "answer");
  table_cell(table, "%s", dt_answer_name(c->answer));
  table_cell(table, "over the intervals of T0, R and Q");
  table_print(table, stdout);
}

static int run(const tool_args *args) {
  model_case c;
  memset(&c, 0, sizeof(c));
  int code = read_case(args, &c);
  if (code) return code;
  dt_burst_model point = {c.model.t0_s.value, c.model.rate_bytes_per_s.value, c.model.capacity_bytes.value};
  dt_status status = dt_burst_predict(&point, &c.question, &c.prediction);
  if (status == DT_OK) status = dt_burst_answer(&c.model, &c.question, &c.answer, &c.t_issue_s);
  if (status) return log_status(status, NULL);
  const char *json = args_text(args, "json");
  if (!json_is_stdout(json)) print_case(&c);
  return json ? json_write(to_json(&c), json) : TOOL_OK;
}

static const arg_option options[] = {
    OPT_TIME("t0", NULL, "issue time of a burst without backpressure (T0)"),
    OPT_RATE("rate", NULL, "drain rate (R)"),
    OPT_SIZE("capacity", NULL, "bytes that can be outstanding (Q)"),
    OPT_SIZE("burst", NULL, "bytes of a burst, all producers (V)"),
    OPT_TIME("gap", "0", "from the end of an issue to the next (G)"),
    OPT_FLAG("aligned", "the bursts of all producers start together"),
    OPT_TEXT(
        "platform", "FILE", NULL,
        "take T0, R and Q with their intervals from a platform file; options given beside it replace single constants"),
    OPT_INT("producers", "K", NULL, 1, 1e6, "producers of a burst, for --platform"),
    OPT_SIZE("producer-bytes", NULL, "bytes of a burst that each producer issues, for --platform"),
    OPT_TEXT("pattern", "NAME", NULL, "traffic pattern of the platform's tables, e.g. one-way (default: any)"),
    OPT_TEXT("operation", "NAME", NULL, "store operation of the platform's tables, e.g. st.v4 (default: any)"),
    OPT_FLAG("explain", "print where each constant of the platform file comes from"),
    OPTION_JSON,
};

const tool_command command_model = {
    .name = "model",
    .summary = "predict the issue time of remote-store bursts (Burst-Gap model)",
    .options = options,
    .option_count = ARGS_COUNT(options),
    .run = run,
};
