/* How a chunk goes from peers to peers: src/device/prims_ll.h, prims_ll128.h, prims_simple.h (2.20 to 2.30: the same on the wire).
 *
 * A connection's buffer has STEPS slots.  LL: lines of 16 bytes, 8 of data and behind each half the number of the step;
 * LL128: lines of 128 bytes whose last 8 are that number; Simple: plain bytes, and tail and head count the steps.  A proxy
 * reads flags, counters, and from the fifo the bytes of a slot; the order of the data within a slot is only the kernels' affair.
 * Buffers that NCCL registered ("direct") are not handled: kernel.c and work.c refuse such work. */
#include "kernels.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LL_LINE = 16, LL_DATA = 8, LINE = 128, LINE_DATA = 120, UNIT_LINES = 16 /* a warp's share of LL128 */ };

/* One turn of a wait; nonzero: give up.  NCCL's checkAbort(). */
static int idle(struct launch *launch, unsigned *turns) {
  if (launch->over) return 1;
  volatile uint32_t *abort = FIELD(volatile uint32_t *, launch->comm, launch->layout->comm_abort);
  if (abort && *abort) launch->over = 1;
  if (++*turns < 200) sched_yield();
  else nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  return launch->over;
}

static size_t slot_size(const struct primitive *p) {
  return buffer_size(p->launch->layout, p->launch->comm, p->protocol) / STEPS;
}
/* ncclConnFifo: what kernel and proxy tell each other of a slot; NULL: no proxy between. */
static char *fifo_entry(const struct primitive *p, const struct side *s) {
  return s->fifo ? s->fifo + s->step % STEPS * (p->launch->layout->early ? sizeof(int) : (size_t)p->launch->layout->fifo_size) : NULL;
}
static char *slot(const struct primitive *p, const struct side *s) {
  if (p->protocol != SIMPLE) return s->buffers[p->protocol] + s->step % STEPS * slot_size(p);
  char *entry = fifo_entry(p, s);
  if (s->offsets) return s->buffers[SIMPLE] + s->offsets[s->step % STEPS];
  if (!entry || p->launch->layout->early || FIELD(volatile int, entry, FIFO_MODE) != MODE_OFFSET) return s->buffers[SIMPLE] + s->step % STEPS * s->step_size;
  return s->buffers[SIMPLE] + (p->launch->layout->fifo_size == FIFO_WIDE ? FIELD(volatile int64_t, entry, 8) : FIELD(volatile int, entry, 4));
}

/* Bytes that `bytes` of data take in a slot. */
static size_t wire_size(enum protocol protocol, size_t bytes) {
  if (protocol == LL) return (bytes + LL_DATA - 1) / LL_DATA * LL_LINE;
  if (protocol == LL128) return (bytes + UNIT_LINES * LINE_DATA - 1) / (UNIT_LINES * LINE_DATA) * (UNIT_LINES * LINE);
  return bytes;
}

static size_t capacity(const struct primitive *p) {
  return p->protocol == SIMPLE ? p->step_bytes * p->steps : slot_size(p);
}

static void wait_for_room(struct primitive *p, struct side *s, size_t bytes) {
  unsigned turns = 0;
  while (atomic_load_explicit(s->head, memory_order_acquire) + STEPS < s->step + p->steps)
    if (idle(p->launch, &turns)) return;
  char *entry = fifo_entry(p, s);
  if (entry && p->launch->layout->early) FIELD(volatile int, entry, 0) = wire_size(p->protocol, bytes);
  else if (entry) FIELD(volatile int64_t, entry, p->launch->layout->fifo_size == FIFO_WIDE ? 16 : 8) = wire_size(p->protocol, bytes);
}

static void put(struct primitive *p, struct side *s, const char *data, size_t bytes) {
  char *out = slot(p, s);
  if (p->protocol == SIMPLE) {
    memcpy(out, data, bytes);
  } else if (p->protocol == LL) {
    uint64_t flag = (uint64_t)(uint32_t)(s->step + 1) << 32;
    for (size_t at = 0; at < bytes; at += LL_DATA, out += LL_LINE) {
      uint32_t halves[2] = {0, 0};
      memcpy(halves, data + at, bytes - at < LL_DATA ? bytes - at : LL_DATA);
      atomic_store_explicit((_Atomic uint64_t *)out, halves[0] | flag, memory_order_release);
      atomic_store_explicit((_Atomic uint64_t *)out + 1, halves[1] | flag, memory_order_release);
    }
  } else {
    char *end = out + wire_size(LL128, bytes);
    for (size_t at = 0; out < end; at += LINE_DATA, out += LINE) {
      size_t left = at < bytes ? bytes - at : 0;
      if (left) memcpy(out, data + at, left < LINE_DATA ? left : LINE_DATA);
      atomic_store_explicit((_Atomic uint64_t *)(out + LINE_DATA), s->step + 1, memory_order_release);
    }
  }
}

/* Where the data of a slice are, once they are there; NULL: given up. */
static const char *get(struct primitive *p, struct side *s, size_t bytes) {
  unsigned turns = 0;
  if (p->protocol == SIMPLE) {
    while (atomic_load_explicit(s->tail, memory_order_acquire) < s->step + p->steps)
      if (idle(p->launch, &turns)) return NULL;
    return slot(p, s);
  }
  char *in = slot(p, s);
  if (p->protocol == LL) {
    uint32_t flag = s->step + 1;
    for (size_t at = 0; at < bytes; at += LL_DATA, in += LL_LINE)
      for (int half = 0; half < 2; half++) {
        uint64_t value;
        while ((value = atomic_load_explicit((_Atomic uint64_t *)in + half, memory_order_acquire)) >> 32 != flag)
          if (idle(p->launch, &turns)) return NULL;
        memcpy(s->room + at + 4 * half, &value, 4);
      }
  } else {
    for (size_t at = 0; at < bytes; at += LINE_DATA, in += LINE) {
      while (atomic_load_explicit((_Atomic uint64_t *)(in + LINE_DATA), memory_order_acquire) != s->step + 1)
        if (idle(p->launch, &turns)) return NULL;
      memcpy(s->room + at, in, LINE_DATA);
    }
  }
  return s->room;
}

/* LL and LL128 have no tail but for the proxy of LL128; head where the other end counts. */
static void posted(struct primitive *p, struct side *s) {
  s->step += p->steps;
  if (s->tail && (p->protocol == SIMPLE || (p->protocol == LL128 && s->fifo)))
    atomic_store_explicit(s->tail, s->step, memory_order_release);
}
static void taken(struct primitive *p, struct side *s) {
  s->step += p->steps;
  if (s->head) atomic_store_explicit(s->head, s->step, memory_order_release);
}

static void move_slice(struct primitive *p, int what, const char *source, char *target, size_t elements) {
  size_t bytes = elements * p->element;
  int tos = what & SEND ? p->tos : 0, froms = what & RECEIVE ? p->froms : 0;
  const char *result = source;
  for (int i = 0; i < tos; i++) wait_for_room(p, &p->to[i], bytes);
  if (p->launch->over) return;
  if (source && bytes && (froms || p->reduction.kind == PRE_MULTIPLIED_SUM)) {
    memcpy(p->result, source, bytes);
    reduce_before(&p->reduction, p->result, elements);
    result = p->result;
  }
  for (int i = 0; i < froms; i++) {
    const char *data = get(p, &p->from[i], bytes);
    if (!data) return;
    if (!result) result = data;
    else if (bytes) {
      if (result != p->result) result = memcpy(p->result, result, bytes);
      reduce_into(&p->reduction, p->result, data, elements);
    }
  }
  if (what & FINAL && bytes && p->reduction.kind == SUM_POST_DIVIDED) {
    if (result != p->result) result = memcpy(p->result, result, bytes);
    reduce_after(&p->reduction, p->result, elements);
  }
  if (bytes) {
    for (int i = 0; i < tos; i++) put(p, &p->to[i], result, bytes);
    if (target && target != result) memmove(target, result, bytes);
  }
  for (int i = 0; i < froms; i++) taken(p, &p->from[i]);
  for (int i = 0; i < tos; i++) posted(p, &p->to[i]);
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* A chunk.  Simple cuts it into slices (genericOp() of prims_simple.h), each a post of its own, with or without data. */
void primitive_move(struct primitive *p, int what, const char *source, char *target, int64_t elements) {
  size_t left = elements > 0 ? elements : 0, slice = left;
  if (p->protocol == SIMPLE)
    slice = larger((left + 16 * p->slices - 1) / (16 * p->slices) * 16, p->step_bytes / p->element * p->steps / 32);
  for (int i = 0; i < p->slices && !p->launch->over; i++) {
    size_t now = slice < left ? slice : left;
    if (wire_size(p->protocol, now * p->element) > capacity(p)) {
      cannot(p->launch, "a slice of %zu bytes is larger than the connection's buffer", now * p->element);
      return;
    }
    move_slice(p, what, source, target, now);
    if (source) source += now * p->element;
    if (target) target += now * p->element;
    left -= now;
  }
}

static void open_side(struct primitive *p, struct side *s, char *conn, int receives) {
  const struct layout *layout = p->launch->layout;
  s->conn = conn;
  for (int i = 0; i < PROTOCOLS; i++) s->buffers[i] = FIELD(char *, conn, CONN_BUFFERS + 8 * i);
  s->tail = FIELD(_Atomic uint64_t *, conn, layout->early ? EARLY_TAIL : CONN_TAIL);
  s->head = FIELD(_Atomic uint64_t *, conn, layout->early ? EARLY_HEAD : CONN_HEAD);
  s->offsets = layout->early ? FIELD(volatile int *, conn, EARLY_OFFSETS) : NULL;
  s->fifo = FIELD(char *, conn, layout->conn_fifo);
  s->step_size = layout->conn_step_size < 0 ? p->step_bytes : (size_t)FIELD(int, conn, layout->conn_step_size);
  s->step = FIELD(uint64_t, conn, layout->conn_step);
  uint64_t round = p->slices * p->steps;
  if (p->protocol == SIMPLE) {
    s->step = (s->step + round - 1) / round * round;
    if (receives && s->head) atomic_store(s->head, s->step); /* credits for what the rounding skipped */
  }
  if (receives && p->protocol != SIMPLE) s->room = malloc(slot_size(p) + LINE);
  if (!s->buffers[p->protocol] || (!receives && !s->head) || (p->protocol == SIMPLE && (!s->tail || !s->head)))
    cannot(p->launch, "a connection has no buffer of this protocol");
}

void primitive_open(struct primitive *p, const struct channel *channel, enum protocol protocol, const struct reduction *reduction,
                    int slices, int steps, const int *from, const int *to, int connection, size_t step_bytes) {
  const struct layout *layout = channel->launch->layout;
  char **peers = FIELD(char **, channel->base, CHANNEL_PEERS);
  *p = (struct primitive){.launch = channel->launch, .protocol = protocol, .reduction = *reduction};
  p->element = element_size(reduction->type);
  p->slices = protocol == SIMPLE ? slices : 1;
  p->steps = protocol == SIMPLE ? steps : 1;
  p->step_bytes = step_bytes ? step_bytes : slot_size(p);
  p->result = malloc(capacity(p) + LINE);
  for (; p->froms < MAX_PEERS && from[p->froms] >= 0; p->froms++)
    open_side(p, &p->from[p->froms], peers[from[p->froms]] + (CONNS + connection) * layout->conn_size, 1);
  for (; p->tos < MAX_PEERS && to[p->tos] >= 0; p->tos++)
    open_side(p, &p->to[p->tos], peers[to[p->tos]] + connection * layout->conn_size, 0);
}

void primitive_close(struct primitive *p) {
  for (int i = 0; i < p->froms; i++) {
    FIELD(uint64_t, p->from[i].conn, p->launch->layout->conn_step) = p->from[i].step;
    free(p->from[i].room);
  }
  for (int i = 0; i < p->tos; i++) FIELD(uint64_t, p->to[i].conn, p->launch->layout->conn_step) = p->to[i].step;
  free(p->result);
}
