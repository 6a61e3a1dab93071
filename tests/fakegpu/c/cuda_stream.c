/* Streams: a queue of operations and a thread that runs them one after another; copies, sets, waits, host functions. */
#define _GNU_SOURCE
#include "cuda.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t next_number = 1;

static void *work(void *argument) {
  struct stream *s = argument;
  cuda_adopt(s->context);
  lock();
  for (;;) {
    while (!s->head && !s->dead) pthread_cond_wait(&cuda_changed, &cuda_lock);
    if (!s->head) break;
    struct operation *o = s->head;
    s->head = o->next;
    if (!s->head) s->tail = &s->head;
    s->busy = 1;
    unlock();
    if (!cuda_broken) o->run(o);
    if (o->owns) free(o->data);
    free(o);
    lock();
    s->busy = 0;
    pthread_cond_broadcast(&cuda_changed);
  }
  unlock();
  free(s);
  return NULL;
}

static struct stream *make_stream(struct context *context, unsigned flags, int priority) {
  struct stream *s = calloc(1, sizeof *s);
  s->context = context;
  s->flags = flags;
  s->priority = priority;
  s->tail = &s->head;
  s->number = next_number++;
  s->next = context->streams;
  context->streams = s;
  return s;
}

struct stream *cuda_stream(void *handle) {
  if ((uintptr_t)handle > 2) return handle; /* 0, 1 and 2 are the null stream in its kinds */
  struct context *context = cuda_context() ? cuda_context() : cuda_primary(0);
  lock();
  if (!context->null_stream) context->null_stream = make_stream(context, 0, 0);
  unlock();
  return context->null_stream;
}

struct operation *cuda_operation(void (*run)(struct operation *)) {
  struct operation *o = calloc(1, sizeof *o);
  o->run = run;
  return o;
}

void cuda_push(struct stream *s, struct operation *o) {
  struct graph *graph = cuda_capture(s);
  if (graph) {
    cuda_append(graph, o);
    return;
  }
  lock();
  *s->tail = o;
  s->tail = &o->next;
  if (!s->running) {
    pthread_t thread;
    s->running = !pthread_create(&thread, NULL, work, s);
    if (s->running) pthread_detach(thread);
  }
  pthread_cond_broadcast(&cuda_changed);
  unlock();
}

void cuda_drain(struct stream *s) {
  lock();
  while (s->head || s->busy) pthread_cond_wait(&cuda_changed, &cuda_lock);
  unlock();
}

static int idle(struct context *context) {
  for (struct stream *s = context->streams; s; s = s->next)
    if (s->head || s->busy) return 0;
  return 1;
}
void cuda_drain_context(struct context *context) {
  lock();
  while (!idle(context)) pthread_cond_wait(&cuda_changed, &cuda_lock);
  unlock();
}

static CUresult create(struct stream **out, unsigned flags, int priority) {
  if (!cuda_context()) return INVALID_CONTEXT;
  lock();
  *out = make_stream(cuda_context(), flags, priority);
  unlock();
  return SUCCESS;
}
API CUresult cuStreamCreate(struct stream **out, unsigned flags) {
  ENTER_CONTEXT();
  return create(out, flags, 0);
}
API CUresult cuStreamCreateWithPriority(struct stream **out, unsigned flags, int priority) {
  ENTER_CONTEXT();
  return create(out, flags, priority);
}
API CUresult cuStreamDestroy_v2(struct stream *s) {
  ENTER();
  lock();
  for (struct stream **at = &s->context->streams; *at; at = &(*at)->next)
    if (*at == s) {
      *at = s->next;
      break;
    }
  s->dead = 1;
  if (!s->running) free(s); /* else its thread does, when the queue is empty */
  pthread_cond_broadcast(&cuda_changed);
  unlock();
  return SUCCESS;
}
API CUresult cuStreamSynchronize(void *handle) {
  ENTER_CONTEXT();
  if (cuda_capture(cuda_stream(handle))) return STREAM_CAPTURE_UNSUPPORTED;
  cuda_drain(cuda_stream(handle));
  return cuda_broken;
}
API CUresult cuStreamQuery(void *handle) {
  ENTER_CONTEXT();
  struct stream *s = cuda_stream(handle);
  if (cuda_capture(s)) return STREAM_CAPTURE_UNSUPPORTED;
  lock();
  int waiting = s->head || s->busy;
  unlock();
  return waiting ? NOT_READY : cuda_broken;
}
API CUresult cuStreamGetPriority(void *handle, int *priority) {
  ENTER();
  *priority = cuda_stream(handle)->priority;
  return SUCCESS;
}
API CUresult cuStreamGetFlags(void *handle, unsigned *flags) {
  ENTER();
  *flags = cuda_stream(handle)->flags;
  return SUCCESS;
}
API CUresult cuStreamGetId(void *handle, uint64_t *number) {
  ENTER();
  *number = cuda_stream(handle)->number;
  return SUCCESS;
}
API CUresult cuStreamGetCtx(void *handle, struct context **context) {
  ENTER();
  *context = cuda_stream(handle)->context;
  return SUCCESS;
}
API CUresult cuStreamGetDevice(void *handle, CUdevice *device) {
  ENTER();
  *device = cuda_stream(handle)->context->device;
  return SUCCESS;
}

/* Copies and sets */
static void run_copy(struct operation *o) { memmove((void *)o->to, (void *)o->from, o->size); }
static void run_set(struct operation *o) {
  char *at = (char *)o->to;
  for (size_t i = 0; i < o->size; i++) memcpy(at + i * o->width, &o->value, o->width);
}
static CUresult copy(void *handle, CUdeviceptr to, CUdeviceptr from, size_t size, int wait) {
  struct block ignored;
  struct operation *o = cuda_operation(run_copy);
  o->to = to;
  o->from = from;
  o->size = size;
  struct stream *s = cuda_stream(handle);
  cuda_push(s, o);
  /* memory that the driver does not know may be gone after the call: then even an asynchronous copy waits */
  if (wait || ((!cuda_find(to, &ignored) || !cuda_find(from, &ignored)) && !cuda_capture(s))) cuda_drain(s);
  return cuda_broken;
}
static CUresult set(void *handle, CUdeviceptr to, uint64_t value, int width, size_t count, int wait) {
  struct operation *o = cuda_operation(run_set);
  o->to = to;
  o->value = value;
  o->width = width;
  o->size = count;
  struct stream *s = cuda_stream(handle);
  cuda_push(s, o);
  if (wait) cuda_drain(s);
  return cuda_broken;
}
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  ENTER_CONTEXT("%zu", size);
  return copy(NULL, to, from, size, 1);
}
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return copy(stream, to, from, size, 0);
}
API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
  ENTER_CONTEXT("%zu", size);
  return copy(NULL, to, (CUdeviceptr)from, size, 1);
}
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
  ENTER_CONTEXT("%zu", size);
  return copy(NULL, (CUdeviceptr)to, from, size, 1);
}
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
  ENTER_CONTEXT("%zu", size);
  return copy(NULL, to, from, size, 1);
}
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return copy(stream, to, (CUdeviceptr)from, size, 0);
}
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return copy(stream, (CUdeviceptr)to, from, size, 0);
}
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return copy(stream, to, from, size, 0);
}
API CUresult cuMemcpyPeerAsync(CUdeviceptr to, void *to_context, CUdeviceptr from, void *from_context, size_t size, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return copy(stream, to, from, size, 0);
}
API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
  ENTER_CONTEXT("%zu", count);
  return set(NULL, to, value, 1, count, 1);
}
API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
  ENTER_CONTEXT("%zu", count);
  return set(NULL, to, value, 2, count, 1);
}
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
  ENTER_CONTEXT("%zu", count);
  return set(NULL, to, value, 4, count, 1);
}
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, void *stream) {
  ENTER_CONTEXT("%zu", count);
  return set(stream, to, value, 1, count, 0);
}
API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, void *stream) {
  ENTER_CONTEXT("%zu", count);
  return set(stream, to, value, 2, count, 0);
}
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, void *stream) {
  ENTER_CONTEXT("%zu", count);
  return set(stream, to, value, 4, count, 0);
}

static void run_host(struct operation *o) { o->host(o->data); }
API CUresult cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
  ENTER_CONTEXT();
  struct operation *o = cuda_operation(run_host);
  o->host = function;
  o->data = argument;
  cuda_push(cuda_stream(stream), o);
  return SUCCESS;
}

/* Values in memory that a stream writes or waits for */
static void run_write(struct operation *o) {
  if (o->width == 4) __atomic_store_n((uint32_t *)o->to, (uint32_t)o->value, __ATOMIC_SEQ_CST);
  else __atomic_store_n((uint64_t *)o->to, o->value, __ATOMIC_SEQ_CST);
}
static int reached(const struct operation *o) {
  uint64_t now = o->width == 4 ? __atomic_load_n((uint32_t *)o->to, __ATOMIC_SEQ_CST) : __atomic_load_n((uint64_t *)o->to, __ATOMIC_SEQ_CST);
  int64_t ahead = o->width == 4 ? (int32_t)((uint32_t)now - (uint32_t)o->value) : (int64_t)(now - o->value);
  switch (o->flags & 3) { /* CUstreamWaitValue_flags */
  case 0: return ahead >= 0;
  case 1: return ahead == 0;
  case 2: return (now & o->value) != 0;
  default: return ~(now | o->value) != 0;
  }
}
static void run_wait(struct operation *o) {
  while (!reached(o) && !cuda_broken) usleep(20);
}
static CUresult value_operation(void *stream, void (*run)(struct operation *), CUdeviceptr to, uint64_t value, int width, unsigned flags) {
  struct operation *o = cuda_operation(run);
  o->to = to;
  o->value = value;
  o->width = width;
  o->flags = flags;
  cuda_push(cuda_stream(stream), o);
  return SUCCESS;
}
API CUresult cuStreamWriteValue32_v2(void *stream, CUdeviceptr to, unsigned value, unsigned flags) {
  ENTER_CONTEXT();
  return value_operation(stream, run_write, to, value, 4, flags);
}
API CUresult cuStreamWriteValue64_v2(void *stream, CUdeviceptr to, uint64_t value, unsigned flags) {
  ENTER_CONTEXT();
  return value_operation(stream, run_write, to, value, 8, flags);
}
API CUresult cuStreamWaitValue32_v2(void *stream, CUdeviceptr to, unsigned value, unsigned flags) {
  ENTER_CONTEXT();
  return value_operation(stream, run_wait, to, value, 4, flags);
}
API CUresult cuStreamWaitValue64_v2(void *stream, CUdeviceptr to, uint64_t value, unsigned flags) {
  ENTER_CONTEXT();
  return value_operation(stream, run_wait, to, value, 8, flags);
}
struct batch_operation { /* CUstreamBatchMemOpParams, a union of 48 bytes */
  uint32_t kind;
  CUdeviceptr address;
  uint64_t value;
  uint32_t flags;
  uint64_t rest[2];
};
API CUresult cuStreamBatchMemOp_v2(void *stream, unsigned count, const struct batch_operation *all, unsigned flags) {
  ENTER_CONTEXT("%u", count);
  for (unsigned i = 0; i < count; i++) {
    const struct batch_operation *one = &all[i];
    switch (one->kind) { /* CUstreamBatchMemOpType; 3 (flush) and 6 (barrier) have nothing to do here */
    case 1: value_operation(stream, run_wait, one->address, (uint32_t)one->value, 4, one->flags); break;
    case 2: value_operation(stream, run_write, one->address, (uint32_t)one->value, 4, one->flags); break;
    case 4: value_operation(stream, run_wait, one->address, one->value, 8, one->flags); break;
    case 5: value_operation(stream, run_write, one->address, one->value, 8, one->flags); break;
    }
  }
  return SUCCESS;
}
