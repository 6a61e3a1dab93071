/* Events, and what is asked about stream capture: there is none. */
#include "cuda.h"
#include <stdlib.h>

struct event {
  uint64_t recorded, done; /* how often it was recorded, and the newest record that a stream has reached */
  int references;          /* one of the caller, one of each operation that names it */
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
API CUresult cuEventRecord(struct event *e, void *stream) {
  ENTER_CONTEXT();
  cuda_push(cuda_stream(stream), about(e, run_record, 1));
  return SUCCESS;
}
API CUresult cuEventRecordWithFlags(struct event *e, void *stream, unsigned flags) {
  ENTER_CONTEXT();
  cuda_push(cuda_stream(stream), about(e, run_record, 1));
  return SUCCESS;
}
API CUresult cuStreamWaitEvent(void *stream, struct event *e, unsigned flags) {
  ENTER_CONTEXT();
  cuda_push(cuda_stream(stream), about(e, run_wait, 0));
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

/* Capture */
API CUresult cuStreamIsCapturing(void *stream, int *status) {
  ENTER();
  *status = 0;
  return SUCCESS;
}
static CUresult not_capturing(int *status, uint64_t *id, void **graph, void **nodes, void **edges, size_t *count) {
  *status = 0;
  if (id) *id = 0;
  if (graph) *graph = NULL;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return SUCCESS;
}
API CUresult cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id) {
  ENTER();
  return not_capturing(status, id, NULL, NULL, NULL, NULL);
}
API CUresult cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void **nodes, size_t *count) {
  ENTER();
  return not_capturing(status, id, graph, nodes, NULL, count);
}
API CUresult cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void **nodes, void **edges, size_t *count) {
  ENTER();
  return not_capturing(status, id, graph, nodes, edges, count);
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER();
  return SUCCESS;
}
API CUresult cuStreamBeginCapture_v2(void *stream, int mode) {
  ENTER();
  fake_say("a stream shall be captured into a graph: the fake has no graphs");
  return STREAM_CAPTURE_UNSUPPORTED;
}
