#include <draintile/moe_bench.h>
#include <draintile/plan.h>

#include <stdio.h>
#include <string.h>

#include "core/error.h"

static const char *const layouts[] = {"packed", "aligned"};
static const char *const orders[] = {"natural", "remote-first", "paced"};
static const char *const schedules[] = {"serial", "signal", "direct", "wave", "interleave", "alternate"};
static const char *const phases[] = {"dispatch", "l1", "l2", "reduce", "shared", "segment"};

#define ROUTER_NAME(id, name) name,
static const char *const moe_routers[] = {DT_MOE_ROUTER_TABLE(ROUTER_NAME)};
#undef ROUTER_NAME

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const char *name_of(const char *const *names, int count, int value) {
  return value >= 0 && value < count ? names[value] : "unknown";
}

static dt_status parse(const char *field, const char *const *names, int count, const char *text, int *out) {
  char allowed[128] = "";
  for (int i = 0; i < count; i++) {
    size_t used = strlen(allowed);
    if (text && strcmp(text, names[i]) == 0) {
      *out = i;
      return DT_OK;
    }
    snprintf(allowed + used, sizeof allowed - used, "%s%s", i ? ", " : "", names[i]);
  }
  return dt_fail(DT_ERR_ARGUMENT, "%s: %s; one of %s", field, text ? text : "(none)", allowed);
}

const char *dt_layout_name(dt_layout layout) {
  return name_of(layouts, LENGTH(layouts), (int)layout);
}

const char *dt_order_name(dt_order order) {
  return name_of(orders, LENGTH(orders), (int)order);
}

const char *dt_schedule_name(dt_schedule schedule) {
  return name_of(schedules, LENGTH(schedules), (int)schedule);
}

const char *dt_phase_name(dt_phase phase) {
  return name_of(phases, LENGTH(phases), (int)phase);
}

dt_status dt_layout_parse(const char *text, dt_layout *out) {
  int value = 0;
  dt_status status = parse("layout", layouts, LENGTH(layouts), text, &value);
  if (status == DT_OK) *out = (dt_layout)value;
  return status;
}

dt_status dt_order_parse(const char *text, dt_order *out) {
  int value = 0;
  dt_status status = parse("order", orders, LENGTH(orders), text, &value);
  if (status == DT_OK) *out = (dt_order)value;
  return status;
}

dt_status dt_schedule_parse(const char *text, dt_schedule *out) {
  int value = 0;
  dt_status status = parse("schedule", schedules, LENGTH(schedules), text, &value);
  if (status == DT_OK) *out = (dt_schedule)value;
  return status;
}

dt_status dt_moe_router_parse(const char *text, dt_moe_router *out) {
  int value = 0;
  dt_status status = parse("router", moe_routers, LENGTH(moe_routers), text, &value);
  if (status == DT_OK) *out = (dt_moe_router)value;
  return status;
}

dt_order dt_schedule_default_order(dt_schedule schedule) {
  switch (schedule) {
  case DT_SCHEDULE_SERIAL:
    return DT_ORDER_NATURAL;
  case DT_SCHEDULE_SIGNAL:
    return DT_ORDER_REMOTE_FIRST;
  default:
    return DT_ORDER_PACED;
  }
}
