/* A MoE layer on GPUs: the world, its clock, the price of an order of tasks. */
#include "layer.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"

enum { RANKS_MAX = 64 };
static const int64_t tokens_max = (int64_t)1 << 32;

/* Clock over power: so many times the power for a clock of twice. Only where power is left. */
static const double clock_power = 2.5;

static dt_status no_memory(void) {
  return dt_fail(DT_ERR_MEMORY, "price of a layer: no memory");
}

static dt_layer_order with_defaults(const dt_layer_order *order, int32_t clusters) {
  dt_layer_order full = *order;
  const dt_layer_grouping given = {order->raster_bands, order->segment_bands, order->group_tasks, order->lead,
                                   order->wave_experts};
  const dt_layer_grouping grouping = dt_layer_group(order->schedule, given, clusters);
  full.raster_bands = grouping.raster_bands;
  full.segment_bands = grouping.segment_bands;
  full.group_tasks = grouping.group_tasks;
  full.lead = grouping.lead;
  full.wave_experts = grouping.wave_experts;
  return full;
}

/* From the start until every rank has its table. */
static double plan_time(const layer_world *world) {
  const dt_layer_costs *c = world->costs;
  if (world->in_place) return 0.0;
  return c->plan_s + c->plan_expert_s * world->experts * world->model->ranks;
}

static dt_status create_rank(layer_world *world, int32_t index) {
  layer_rank *rank = &world->rank[index];
  dt_status status = layer_table_create(world, index, &rank->table);
  if (status) return status;
  const size_t bands = (size_t)rank->table.bands + 1, experts = (size_t)world->experts;
  rank->cluster = calloc((size_t)world->clusters, sizeof *rank->cluster);
  rank->arrived = calloc(bands, sizeof *rank->arrived);
  rank->released = calloc(bands, sizeof *rank->released);
  rank->stored = calloc(bands, sizeof *rank->stored);
  int good = rank->cluster && rank->arrived && rank->released && rank->stored;
  for (int l1 = 0; l1 < 2; l1++) {
    const size_t columns = (size_t)(l1 ? world->columns_1 : world->columns_2);
    rank->weights[l1] = calloc(experts * columns + 1, sizeof *rank->weights[l1]);
    rank->rows[l1] = calloc(bands, sizeof *rank->rows[l1]);
    good = good && rank->weights[l1] && rank->rows[l1];
  }
  if (!good) return no_memory();
  for (int32_t i = 0; i < world->clusters; i++)
    rank->cluster[i].task = rank->cluster[i].unreleased = rank->cluster[i].unstored = -1;
  return DT_OK;
}

static void release_world(layer_world *world) {
  for (int32_t r = 0; world->rank && r < world->model->ranks; r++) {
    layer_rank *rank = &world->rank[r];
    layer_table_release(&rank->table);
    free(rank->cluster);
    free(rank->arrived);
    free(rank->released);
    free(rank->stored);
    for (int l1 = 0; l1 < 2; l1++) free(rank->weights[l1]), free(rank->rows[l1]);
    free(rank->pieces);
    free(rank->link.flows);
  }
  free(world->rank);
  free(world->order_of_draws);
  free(world->events);
}

/* The tile that ends first; INFINITY: none runs. */
static double next_end(const layer_world *world, int32_t *rank, int32_t *cluster) {
  double first = INFINITY;
  for (int32_t r = 0; r < world->model->ranks; r++) {
    const layer_rank *k = &world->rank[r];
    for (int32_t i = 0; i < world->clusters; i++) {
      const layer_cluster *c = &k->cluster[i];
      if (c->state != LAYER_RUNNING) continue;
      const double end = c->done < 1.0 ? k->updated + (1.0 - c->done) / c->rate : k->updated;
      const double at = layer_more(end, c->accepted);
      if (at < first) first = at, *rank = r, *cluster = i;
    }
  }
  return first;
}

static void take(layer_world *world, const layer_event *event) {
  layer_rank *rank = &world->rank[event->rank];
  switch (event->kind) {
  case LAYER_START:
    layer_start_tiles(world, event->rank, event->index, event->rows);
    return;
  case LAYER_ARRIVED:
    rank->arrived[event->index] += event->rows;
    layer_advance(world, rank);
    rank->traffic += 2.0 * event->rows * (double)world->model->hidden;
    if (rank->started) layer_wake(world, rank);
    return;
  case LAYER_COPIED:
    if (layer_dedups(world))
      layer_expand_next(world, event->rank);
    else
      layer_copy_next(world, event->rank, event->index, event->rows);
    return;
  case LAYER_RELEASED:
    layer_release(world, rank, event->index, event->rows);
    return;
  case LAYER_ACCEPTED:
    layer_accept(world, event->rank, event->index);
    return;
  }
}

static void run(layer_world *world) {
  for (;;) {
    int32_t rank = -1, cluster = -1;
    layer_event event;
    const double end = next_end(world, &rank, &cluster);
    if (layer_pop(world, end, &event)) {
      world->now = event.at;
      take(world, &event);
    } else if (rank >= 0) {
      world->now = end;
      layer_advance(world, &world->rank[rank]);
      layer_finish(world, rank, cluster);
      layer_rates(world, &world->rank[rank]);
    } else {
      return;
    }
  }
}

/* serial: rows of other ranks, once all tiles are there. */
static double put_end(const layer_world *world, int32_t self, double stored) {
  const dt_layer_costs *c = world->costs;
  double rows = 0.0;
  for (int32_t source = 0; source < world->model->ranks; source++)
    for (int32_t e = 0; source != self && e < world->experts; e++) rows += layer_count(world, source, self, e);
  return stored + c->put_s + 2.0 * rows * (double)world->model->hidden / c->link_bytes_per_s + c->link_latency_s;
}

/* Everything is over: what it took. A rank reduces when all rows of all ranks are there. */
static dt_status read_answer(const layer_world *world, dt_layer_answer *answer) {
  const dt_layer_model *m = world->model;
  double sent = 0.0, tokens = 0.0;
  *answer = (dt_layer_answer){.plan_s = plan_time(world), .dispatch_s = world->dispatched, .clock_ratio = world->clock};
  for (int32_t r = 0; r < m->ranks; r++) {
    const layer_rank *rank = &world->rank[r];
    for (int32_t i = 0; i < world->clusters; i++)
      if (rank->cluster[i].state != LAYER_DONE)
        return dt_fail(DT_ERR_INPUT, "price of a layer: rank %d waits for ever; counts that agree are allowed", r);
    const double end = fmax(rank->sent, world->dispatched);
    answer->tiles_s = fmax(answer->tiles_s, end);
    answer->memory_bytes = fmax(answer->memory_bytes, rank->traffic);
    double there = end;
    if (!world->alone && world->order.schedule == DT_SCHEDULE_SERIAL) there = put_end(world, r, end);
    if (!world->alone && world->order.schedule == DT_SCHEDULE_SIGNAL) there = fmax(end, layer_signal_end(world, r));
    sent = fmax(sent, there);
    tokens = fmax(tokens, (double)m->tokens[r]);
  }
  const double reduced = tokens * (m->top_k + 1.0) * 2.0 * (double)m->hidden;
  const double reduce_s = world->costs->reduce_s + reduced / world->costs->reduce_bytes_per_s;
  answer->combine_s = sent - answer->tiles_s;
  answer->tiles_s -= answer->dispatch_s;
  answer->dispatch_s -= answer->plan_s;
  answer->reduce_s = world->in_place ? 0.0 : reduce_s;
  answer->total_s = sent + answer->reduce_s;
  return DT_OK;
}

static dt_status simulate(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *order,
                          int32_t alone, double clock, uint32_t chance, dt_layer_answer *answer, double *energy) {
  const int32_t clusters = (model->sms - (alone ? 0 : layer_consumers(order, model->sms))) / 2;
  const int32_t times = model->short_bands_alone ? 2 : 1; /* pieces were as long again */
  layer_world world = {.model = model,
                       .costs = costs,
                       .order = with_defaults(order, clusters),
                       .in_place = alone || model->rows_in_place,
                       .alone = alone,
                       .clock = clock,
                       .chance = chance,
                       .clusters = clusters,
                       .experts = model->experts_per_rank,
                       .columns_1 = layer_divide_up(model->intermediate, LAYER_COLUMN_1),
                       .columns_2 = layer_divide_up(model->hidden, LAYER_COLUMN_2),
                       .piece_rows = dt_layer_piece_rows(model->hidden, times * DT_LAYER_PIECE_BYTES),
                       .order_of_draws = malloc((size_t)clusters * sizeof *world.order_of_draws),
                       .rank = calloc((size_t)model->ranks, sizeof *world.rank)};
  dt_status status = world.rank && world.order_of_draws ? DT_OK : no_memory();
  for (int32_t r = 0; !status && r < model->ranks; r++) status = create_rank(&world, r);
  if (!status) {
    world.now = plan_time(&world);
    const int dedup = layer_dedups(&world);
    for (int32_t r = 0; !status && r < model->ranks; r++)
      status = dedup ? layer_dedup_create(&world, r) : layer_dispatch_create(&world, r);
    for (int32_t r = 0; !status && r < model->ranks; r++)
      if (dedup)
        status = layer_dedup_start(&world, r);
      else
        layer_dispatch_start(&world, r);
    if (!status) {
      run(&world);
      status = world.no_memory ? no_memory() : read_answer(&world, answer);
    }
    *energy = 0.0;
    for (int32_t r = 0; r < model->ranks; r++)
      *energy = fmax(*energy, world.rank[r].energy + world.rank[r].traffic * costs->power_s_per_byte / clock);
  }
  release_world(&world);
  return status;
}

/* The clock settles to the power that is taken again and again: tiles of a run that lasts so long take so many times
 * those of a short one. */
static double settled(const dt_layer_costs *costs, double seconds) {
  return 1.0 + (costs->sustained_ratio - 1.0) * seconds / (seconds + costs->sustained_s);
}

/* Tiles of a short run: tile_s is of runs of up to 48 waves, in which the clock settled the more the longer tiles are.
 */
static dt_layer_costs of_short_runs(const dt_layer_costs *costs) {
  enum { WAVES = 48 };
  dt_layer_costs cool = *costs;
  cool.tile_1_s /= settled(costs, WAVES * costs->tile_1_s);
  cool.tile_2_s /= settled(costs, WAVES * costs->tile_2_s);
  return cool;
}

static dt_status find_clock(const dt_layer_model *model, const dt_layer_costs *costs, double *clock) {
  const dt_layer_order direct = {.schedule = DT_SCHEDULE_DIRECT};
  dt_layer_answer answer;
  double energy;
  dt_status status = simulate(model, costs, &direct, 1, 1.0, 0, &answer, &energy);
  if (status) return status;
  const double full = settled(costs, answer.total_s);
  status = simulate(model, costs, &direct, 1, full, 0, &answer, &energy);
  if (status) return status;
  const double power = answer.total_s > 0.0 ? energy * full / answer.total_s : 0.0;
  *clock = fmax(full * (power > 1.0 ? power : pow(power, 1.0 / clock_power)), costs->least_ratio);
  return DT_OK;
}

/* Tasks of the rank that has most. */
static double most_tasks(const dt_layer_model *m) {
  double most = 0.0;
  for (int32_t p = 0; p < m->ranks; p++) {
    double bands = 0.0;
    for (int32_t e = 0; e < m->experts_per_rank; e++) {
      int64_t rows = 0;
      for (int32_t r = 0; r < m->ranks; r++) rows += m->counts[((int64_t)r * m->ranks + p) * m->experts_per_rank + e];
      bands += layer_divide_up(rows, LAYER_BAND);
    }
    most = fmax(most, bands);
  }
  return 0.5 * most * ((double)m->intermediate / LAYER_COLUMN_1 + (double)m->hidden / LAYER_COLUMN_2);
}

static int by_total(const void *a, const void *b) {
  const double x = ((const dt_layer_answer *)a)->total_s, y = ((const dt_layer_answer *)b)->total_s;
  return (x > y) - (x < y);
}

/* Who gets two of the last tiles is chance, here as on the device, and counts the more the fewer tiles there are: the
 * middle of three, of a small layer of seven. */
static dt_status median_of(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *order,
                           double clock, dt_layer_answer *answer) {
  enum { DRAWS = 3, DRAWS_SMALL = 7, SMALL = 40 /* tasks a cluster */ };
  const int32_t draws = most_tasks(model) <= SMALL * (model->sms / 2.0) ? DRAWS_SMALL : DRAWS;
  dt_layer_answer a[DRAWS_SMALL];
  double energy;
  dt_status status = DT_OK;
  for (int32_t i = 0; !status && i < draws; i++)
    status = simulate(model, costs, order, 0, clock, (uint32_t)i + 1, &a[i], &energy);
  if (status) return status;
  qsort(a, (size_t)draws, sizeof *a, by_total);
  *answer = a[draws / 2];
  return DT_OK;
}

static dt_status check(const dt_layer_model *m) {
  if (m == NULL || m->size != sizeof *m)
    return dt_fail(DT_ERR_ARGUMENT, "size: not set by dt_layer_model_init; %zu expected", sizeof *m);
  const struct {
    const char *name;
    int64_t value, least, most;
  } fields[] = {{"ranks", m->ranks, 1, RANKS_MAX},
                {"experts_per_rank", m->experts_per_rank, 1, 1 << 16},
                {"top_k", m->top_k, 1, 1 << 10},
                {"hidden", m->hidden, 1, 1 << 20},
                {"intermediate", m->intermediate, 1, 1 << 20},
                {"sms", m->sms, 2, 1 << 12},
                {"head", m->head, -1, 1024},
                {"dedup", m->dedup, 0, 1},
                {"send_sms", m->send_sms, 0, 1 << 12},
                {"ahead", m->ahead, -1, 1 << 20}};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    if (fields[i].value < fields[i].least || fields[i].value > fields[i].most)
      return dt_fail(DT_ERR_ARGUMENT, "%s: %lld; %lld to %lld is allowed", fields[i].name, (long long)fields[i].value,
                     (long long)fields[i].least, (long long)fields[i].most);
  if (!m->counts || !m->tokens) return dt_fail(DT_ERR_ARGUMENT, "counts, tokens: NULL; both are needed");
  const int64_t cells = (int64_t)m->ranks * m->ranks * m->experts_per_rank;
  for (int64_t i = 0; i < cells; i++)
    if (m->counts[i] < 0 || m->counts[i] > 1 << 26)
      return dt_fail(DT_ERR_ARGUMENT, "counts[%lld]: %d; 0 to 2^26 is allowed", (long long)i, m->counts[i]);
  for (int32_t r = 0; r < m->ranks; r++)
    if (m->tokens[r] < 0 || m->tokens[r] > tokens_max)
      return dt_fail(DT_ERR_ARGUMENT, "tokens[%d]: %lld; 0 to 2^32 is allowed", r, (long long)m->tokens[r]);
  for (int32_t i = 0; m->dispatch_rows && i < m->ranks * m->ranks; i++)
    if (m->dispatch_rows[i] < 0 || m->dispatch_rows[i] > tokens_max)
      return dt_fail(DT_ERR_ARGUMENT, "dispatch_rows[%d]: %lld; 0 to 2^32 is allowed", i,
                     (long long)m->dispatch_rows[i]);
  return DT_OK;
}

/* What the layer (dt_cuda_moe_config) refuses too. */
static dt_status check_order(const dt_layer_order *o, const dt_layer_model *m) {
  const int32_t sms = m->sms;
  const int in_turn = o->schedule == DT_SCHEDULE_SERIAL || o->schedule == DT_SCHEDULE_SIGNAL ||
                      o->schedule == DT_SCHEDULE_DIRECT; /* L1 of all, then L2 */
  if (o->schedule < DT_SCHEDULE_SERIAL || o->schedule > DT_SCHEDULE_ALTERNATE)
    return dt_fail(DT_ERR_UNSUPPORTED, "schedule: %s; serial, signal, direct, wave, interleave or alternate on GPUs",
                   dt_schedule_name(o->schedule));
  if (o->order < DT_ORDER_NATURAL || o->order > DT_ORDER_PACED)
    return dt_fail(DT_ERR_ARGUMENT, "order: %d; natural, remote-first or paced", (int)o->order);
  if (m->dedup && (o->order == DT_ORDER_PACED || (o->order == DT_ORDER_REMOTE_FIRST && !in_turn)))
    return dt_fail(DT_ERR_UNSUPPORTED, "order: %s; with dedup natural, or remote-first with serial, signal or direct",
                   dt_order_name(o->order));
  if (o->consumers < 0 || o->consumers % 2 != 0 || layer_consumers(o, sms) > sms - 2)
    return dt_fail(DT_ERR_ARGUMENT, "consumers: %d; even, 0 to %d", o->consumers, sms - 2);
  if (o->raster_bands < 0 || o->raster_bands % 2 != 0)
    return dt_fail(DT_ERR_ARGUMENT, "raster_bands: %d; even, 0 or more", o->raster_bands);
  const struct {
    const char *name;
    int32_t value;
  } counts[] = {{"segment_bands", o->segment_bands},
                {"group_tasks", o->group_tasks},
                {"lead", o->lead},
                {"wave_experts", o->wave_experts}};
  for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
    if (counts[i].value < 0) return dt_fail(DT_ERR_ARGUMENT, "%s: %d; 0 or more", counts[i].name, counts[i].value);
  return DT_OK;
}

void dt_layer_model_init(dt_layer_model *model) {
  *model = (dt_layer_model){.size = sizeof *model, .ranks = 1, .experts_per_rank = 1, .top_k = 1, .sms = 132};
}

dt_status dt_layer_price(const dt_layer_model *model, const dt_layer_costs *costs, const dt_layer_order *orders,
                         int32_t count, dt_layer_answer *answers) {
  double clock = 1.0;
  dt_status status = check(model);
  if (!status) status = dt_layer_costs_check(costs);
  for (int32_t i = 0; !status && i < count; i++) status = check_order(&orders[i], model);
  if (status) return status;
  const dt_layer_costs cool = of_short_runs(costs);
  status = find_clock(model, &cool, &clock);
  for (int32_t i = 0; !status && i < count; i++) status = median_of(model, &cool, &orders[i], clock, &answers[i]);
  return status;
}

dt_status dt_layer_price_alone(const dt_layer_model *model, const dt_layer_costs *costs, double *compute_s) {
  const dt_layer_order direct = {.schedule = DT_SCHEDULE_DIRECT};
  dt_layer_answer answer = {.total_s = 0.0};
  double clock = 1.0, energy;
  dt_status status = check(model);
  if (!status) status = dt_layer_costs_check(costs);
  if (status) return status;
  const dt_layer_costs cool = of_short_runs(costs);
  status = find_clock(model, &cool, &clock);
  if (!status) status = simulate(model, &cool, &direct, 1, clock, 0, &answer, &energy);
  if (!status) *compute_s = answer.total_s + costs->table_s;
  return status;
}
