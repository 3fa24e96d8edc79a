#include <draintile/moe_bench.h>

#include <string.h>

const dt_moe_shape *dt_moe_shape_find(const char *name) {
  for (int32_t i = 0; i < DT_MOE_SHAPES; i++)
    if (strcmp(dt_moe_shape_at(i)->name, name) == 0) return dt_moe_shape_at(i);
  return NULL;
}

void dt_moe_shape_model(const dt_moe_shape *shape, int32_t ranks, dt_layer_model *model) {
  dt_layer_model_init(model);
  model->ranks = ranks;
  model->experts_per_rank = ranks > 0 ? shape->experts / ranks : 0;
  model->top_k = shape->top_k;
  model->hidden = shape->hidden;
  model->intermediate = shape->intermediate;
}
