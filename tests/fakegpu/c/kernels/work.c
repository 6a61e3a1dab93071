/* The order of chunks: rings and trees (src/device/all_reduce.h, all_gather.h, reduce_scatter.h, broadcast.h, reduce.h) and send
 * and receive (sendrecv.h).  Offsets count elements; what NCCL's proxies count are the chunks, so their number must be NCCL's. */
#include "kernels.h"

static const int NOBODY[] = {-1};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* A work and its primitive: the loops below say chunk by chunk what comes from where. */
struct run {
  const struct work *work;
  struct primitive primitive;
  size_t element;
};

/* Of `elements` from a place on those that are within the work: in 2.18 the last channels' pieces go beyond it. */
static int64_t within(const struct work *w, int64_t at, int64_t elements) { return smaller(elements, w->count - at); }

static void move(struct run *r, int what, int64_t from, int64_t to, int64_t elements) {
  const char *source = from < 0 ? NULL : r->work->send + from * (int64_t)r->element;
  char *target = to < 0 ? NULL : r->work->receive + to * (int64_t)r->element;
  primitive_move(&r->primitive, what, source, target, elements);
}
enum { NOWHERE = -1 };

static void ring_all_reduce(struct run *r, int index, int ranks) {
  const struct work *w = r->work;
  int64_t chunk = w->chunk, loop = chunk * ranks;
  for (int64_t done = 0; done < w->part && !r->primitive.launch->over; done += loop) {
    int64_t left = w->part - done, align = 16 / r->element;
    if (left < loop) chunk = w->last_chunk ? w->last_chunk : ((left + ranks - 1) / ranks + align - 1) / align * align;
    for (int step = 0; step < 2 * ranks - 1; step++) { /* what came from `step` ranks before, twice around */
      int64_t in = (index + 2 * ranks - 1 - step) % ranks * chunk, at = w->offset + done + in,
              count = within(w, at, smaller(chunk, left - in));
      if (step == 0) move(r, SEND, at, NOWHERE, count);
      else if (step < ranks - 1) move(r, RECEIVE | SEND, at, NOWHERE, count);
      else if (step == ranks - 1) move(r, RECEIVE | SEND | FINAL, at, at, count);
      else move(r, step < 2 * ranks - 2 ? RECEIVE | SEND : RECEIVE, NOWHERE, at, count);
    }
  }
}

static void ring_all_gather(struct run *r, const int *ring, int ranks) {
  const struct work *w = r->work;
  for (int64_t done = 0; done < w->part && !r->primitive.launch->over; done += w->chunk) {
    int64_t at = w->offset + done, count = within(w, at, smaller(w->chunk, w->part - done));
    move(r, SEND, at, ring[0] * w->count + at, count);
    for (int j = 1; j < ranks; j++) move(r, j < ranks - 1 ? RECEIVE | SEND : RECEIVE, NOWHERE, ring[ranks - j] * w->count + at, count);
  }
}

static void ring_reduce_scatter(struct run *r, const int *ring, int ranks) {
  const struct work *w = r->work;
  for (int64_t done = 0; done < w->part && !r->primitive.launch->over; done += w->chunk) {
    int64_t at = w->offset + done, count = within(w, at, smaller(w->chunk, w->part - done));
    for (int j = 1; j < ranks; j++) move(r, j == 1 ? SEND : RECEIVE | SEND, ring[ranks - j] * w->count + at, NOWHERE, count);
    move(r, RECEIVE | FINAL, ring[0] * w->count + at, at, count);
  }
}

static void ring_broadcast(struct run *r, const int *ring) {
  const struct work *w = r->work;
  for (int64_t done = 0; done < w->part && !r->primitive.launch->over; done += w->chunk) {
    int64_t at = w->offset + done, count = within(w, at, smaller(w->chunk, w->part - done));
    if (ring[0] == w->root) move(r, SEND, at, at, count);
    else move(r, ring[1] == w->root ? RECEIVE : RECEIVE | SEND, NOWHERE, at, count);
  }
}

static void ring_reduce(struct run *r, const int *ring, int ranks) {
  const struct work *w = r->work;
  for (int64_t done = 0; done < w->part && !r->primitive.launch->over; done += w->chunk) {
    int64_t at = w->offset + done, count = within(w, at, smaller(w->chunk, w->part - done));
    if (ring[ranks - 1] == w->root) move(r, SEND, at, NOWHERE, count);
    else if (ring[0] == w->root) move(r, RECEIVE | FINAL, at, at, count);
    else move(r, RECEIVE | SEND, at, NOWHERE, count);
  }
}

/* One pass of a tree over all chunks. */
static void tree_pass(struct run *r, int what, int reads, int writes) {
  const struct work *w = r->work;
  for (int64_t done = 0; done < w->part && !r->primitive.launch->over; done += w->chunk) {
    int64_t at = w->offset + done;
    move(r, what, reads ? at : NOWHERE, writes ? at : NOWHERE, within(w, at, smaller(w->chunk, w->part - done)));
  }
}

/* The sums go up, then the result comes down; NCCL has both at once (runTreeSplit), over the same steps of the same connections. */
static void tree_all_reduce(struct run *r, const struct channel *channel, const int *tree) {
  const int up[] = {tree[0], -1}, *down = tree + 1;
  const struct reduction reduction = r->primitive.reduction;
  const enum protocol protocol = r->work->function.protocol;
  if (up[0] < 0) {
    primitive_open(&r->primitive, channel, protocol, &reduction, 1, 1, down, down, 0, 0);
    tree_pass(r, RECEIVE | SEND | FINAL, 1, 1);
    primitive_close(&r->primitive);
    return;
  }
  primitive_open(&r->primitive, channel, protocol, &reduction, 1, 1, down, up, 0, 0);
  tree_pass(r, down[0] < 0 ? SEND : RECEIVE | SEND, 1, 0);
  primitive_close(&r->primitive);
  primitive_open(&r->primitive, channel, protocol, &reduction, 1, 1, up, down, 0, 0);
  tree_pass(r, down[0] < 0 ? RECEIVE : RECEIVE | SEND, 0, 1);
  primitive_close(&r->primitive);
}

void run_collective(const struct channel *channel, const struct work *w) {
  struct launch *launch = channel->launch;
  const struct function *f = &w->function;
  char name[80];
  struct run r = {.work = w};
  struct reduction reduction = {SUM, 0, 0};
  function_name(f, name, sizeof name);
  if (f->collective == ALL_REDUCE || f->collective == REDUCE || f->collective == REDUCE_SCATTER)
    reduction = (struct reduction){f->reduction, f->type, w->argument};
  r.element = element_size(reduction.type);
  if (!reduction_known(&reduction) || !(f->algorithm == RING || (f->algorithm == TREE && f->collective == ALL_REDUCE))) {
    cannot(launch, "%s is not written", name);
    return;
  }
  if (w->part > 0 && w->chunk <= 0) {
    cannot(launch, "%s has no chunk size", name);
    return;
  }
  if (f->algorithm == TREE) {
    r.primitive.reduction = reduction;
    r.primitive.launch = launch;
    tree_all_reduce(&r, channel, &FIELD(int, channel->base, launch->layout->channel_tree + 4)); /* up, then down[3] */
    return;
  }
  const int *ring = FIELD(const int *, channel->base, CHANNEL_RANKS);
  const int previous[] = {FIELD(int, channel->base, CHANNEL_PREVIOUS), -1}, next[] = {FIELD(int, channel->base, CHANNEL_NEXT), -1};
  /* *_CHUNKSTEPS and *_SLICESTEPS of collectives.h */
  int both = f->collective == BROADCAST || f->collective == REDUCE ? 1 : 2;
  primitive_open(&r.primitive, channel, f->protocol, &reduction, both, both, previous, next, 0, 0);
  if (!launch->over) switch (f->collective) {
    case ALL_REDUCE: ring_all_reduce(&r, FIELD(int, channel->base, launch->layout->channel_index), launch->ranks); break;
    case ALL_GATHER: ring_all_gather(&r, ring, launch->ranks); break;
    case REDUCE_SCATTER: ring_reduce_scatter(&r, ring, launch->ranks); break;
    case BROADCAST: ring_broadcast(&r, ring); break;
    case REDUCE: ring_reduce(&r, ring, launch->ranks); break;
    case SEND_RECEIVE: break;
  }
  primitive_close(&r.primitive);
}

static void run_transfer(const struct channel *channel, const struct transfer *t) {
  struct primitive p;
  const int peer[] = {t->peer, -1};
  size_t step_bytes = channel->launch->layout->early ? 0 : FIELD(int, channel->launch->comm, COMM_P2P_CHUNK), done = 0;
  if (!t->chunk) {
    cannot(channel->launch, "a transfer has no chunk size");
    return;
  }
  primitive_open(&p, channel, t->low_latency ? LL : SIMPLE, &(struct reduction){SUM, 0, 0}, 1, 1, t->sends ? NOBODY : peer,
                 t->sends ? peer : NOBODY, 1, step_bytes);
  do { /* without bytes, too: one empty chunk */
    size_t now = smaller(t->chunk, t->bytes - done);
    if (t->sends) primitive_move(&p, SEND, t->address + done, NULL, now);
    else primitive_move(&p, RECEIVE, NULL, t->address + done, now);
    done += now;
  } while (done < t->bytes && !channel->launch->over);
  primitive_close(&p);
}

/* The transfers of a group run side by side: each may wait for what another one lets the peer do. */
static void *transfer_thread(void *argument) {
  const struct task *task = argument;
  run_transfer(task->channel, &task->transfer);
  return NULL;
}
void add_transfer(struct transfers *all, const struct channel *channel, struct transfer transfer) {
  trace(channel, transfer.low_latency ? "SendRecv LL" : "SendRecv Simple");
  if (all->count == TRANSFERS) cannot(channel->launch, "more than %d transfers at once", TRANSFERS);
  else all->tasks[all->count++] = (struct task){channel, transfer, 0};
}
void run_transfers(struct transfers *all) {
  for (int i = 1; i < all->count; i++)
    if (pthread_create(&all->tasks[i].thread, NULL, transfer_thread, &all->tasks[i]))
      cannot(all->tasks[i].channel->launch, "there is no thread for a transfer");
  if (all->count) transfer_thread(&all->tasks[0]);
  for (int i = 1; i < all->count; i++)
    if (all->tasks[i].thread) pthread_join(all->tasks[i].thread, NULL);
}
