/* Events.  In a stream that is captured they only carry the capture to other streams: a graph runs in the order of its making. */
#include "cuda.h"
#include <stdlib.h>

struct event {
  uint64_t recorded, done; /* how often it was recorded, and the newest record that a stream has reached */
  int references;          /* one of the caller, one of each operation that names it */
  uint64_t capture;        /* of the stream that it was recorded in, see cuda_graph.c */
  struct timespec when;
};

static void drop(struct event *e) { /* cuda_lock is held */
  if (!--e->references) free(e);
}
static struct operation *about(struct event *e, void (*run)(struct operation *), int recording) {
  struct operation *o = cuda_operation(run);
  o->data = e;
  lock();
  e->references++;
  o->value = recording ? ++e->recorded : e->recorded;
  unlock();
  return o;
}
static void run_record(struct operation *o) {
  struct event *e = o->data;
  lock();
  if (o->value > e->done) e->done = o->value;
  clock_gettime(CLOCK_MONOTONIC, &e->when);
  drop(e);
  unlock();
}
static void run_wait(struct operation *o) {
  struct event *e = o->data;
  lock();
  while (e->done < o->value && !cuda_broken) pthread_cond_wait(&cuda_changed, &cuda_lock);
  drop(e);
  unlock();
}

API CUresult cuEventCreate(struct event **out, unsigned flags) {
  ENTER_CONTEXT();
  struct event *e = calloc(1, sizeof *e);
  e->references = 1;
  *out = e;
  return SUCCESS;
}
API CUresult cuEventDestroy_v2(struct event *e) {
  ENTER();
  lock();
  drop(e);
  unlock();
  return SUCCESS;
}
static CUresult record(struct event *e, struct stream *s) {
  e->capture = cuda_capture(s) ? s->capture : 0;
  if (!e->capture) cuda_push(s, about(e, run_record, 1));
  return SUCCESS;
}
API CUresult cuEventRecord(struct event *e, void *stream) {
  ENTER_CONTEXT();
  return record(e, cuda_stream(stream));
}
API CUresult cuEventRecordWithFlags(struct event *e, void *stream, unsigned flags) {
  ENTER_CONTEXT();
  return record(e, cuda_stream(stream));
}
API CUresult cuStreamWaitEvent(void *stream, struct event *e, unsigned flags) {
  ENTER_CONTEXT();
  struct stream *s = cuda_stream(stream);
  if (e->capture && cuda_join(s, e->capture)) return SUCCESS;
  if (!cuda_capture(s)) cuda_push(s, about(e, run_wait, 0));
  return SUCCESS;
}
API CUresult cuEventQuery(struct event *e) {
  ENTER_CONTEXT();
  lock();
  int done = e->done >= e->recorded;
  unlock();
  return done ? SUCCESS : NOT_READY;
}
API CUresult cuEventSynchronize(struct event *e) {
  ENTER_CONTEXT();
  lock();
  while (e->done < e->recorded && !cuda_broken) pthread_cond_wait(&cuda_changed, &cuda_lock);
  unlock();
  return cuda_broken;
}
static CUresult elapsed(float *milliseconds, const struct event *from, const struct event *to) {
  *milliseconds = (to->when.tv_sec - from->when.tv_sec) * 1e3f + (to->when.tv_nsec - from->when.tv_nsec) / 1e6f;
  return SUCCESS;
}
API CUresult cuEventElapsedTime(float *milliseconds, struct event *from, struct event *to) {
  ENTER_CONTEXT();
  return elapsed(milliseconds, from, to);
}
API CUresult cuEventElapsedTime_v2(float *milliseconds, struct event *from, struct event *to) {
  ENTER_CONTEXT();
  return elapsed(milliseconds, from, to);
}

/* Events as nodes of a graph: each run records or waits anew; the graph keeps its reference for good. */
static void run_record_again(struct operation *o) {
  struct event *e = o->data;
  lock();
  e->done = ++e->recorded;
  clock_gettime(CLOCK_MONOTONIC, &e->when);
  unlock();
}
static void run_wait_again(struct operation *o) {
  struct event *e = o->data;
  lock();
  uint64_t wanted = e->recorded;
  while (e->done < wanted && !cuda_broken) pthread_cond_wait(&cuda_changed, &cuda_lock);
  unlock();
}
static CUresult node(void **out, struct graph *g, struct event *e, void (*run)(struct operation *)) {
  struct operation *o = cuda_operation(run);
  o->data = e;
  lock();
  e->references++;
  unlock();
  cuda_append(g, o);
  *out = o;
  return SUCCESS;
}
API CUresult cuGraphAddEventRecordNode(void **out, struct graph *g, void **after, size_t count, struct event *e) {
  ENTER();
  return node(out, g, e, run_record_again);
}
API CUresult cuGraphAddEventWaitNode(void **out, struct graph *g, void **after, size_t count, struct event *e) {
  ENTER();
  return node(out, g, e, run_wait_again);
}
