/* Stream capture and graphs, as far as a library needs them that launches kernels and host functions: a graph is a list, run in
 * the order in which it was made.  Nodes are not looked at or changed one by one. */
#include "cuda.h"
#include <stdlib.h>
#include <string.h>

struct user_object {
  void *pointer;
  void (*destroy)(void *);
  unsigned references;
};
struct retained {
  struct user_object *object;
  unsigned count;
  struct retained *next;
};
struct graph {
  uint64_t capture; /* 0: not being captured (any more) */
  int users;        /* the graph itself and what was instantiated of it */
  struct operation *head, **tail;
  struct retained *objects;
  struct graph *next; /* among those that are being captured */
};
static struct graph *captures;
static uint64_t next_capture = 1;

struct graph *cuda_capture(const struct stream *s) {
  struct graph *found = NULL;
  if (!s->capture) return NULL;
  lock();
  for (struct graph *g = captures; g && !found; g = g->next)
    if (g->capture == s->capture) found = g;
  unlock();
  return found;
}
int cuda_join(struct stream *s, uint64_t capture) {
  struct stream as = {.capture = capture};
  if (!cuda_capture(&as)) return 0;
  s->capture = capture;
  return 1;
}
void cuda_append(struct graph *g, struct operation *o) {
  lock();
  *g->tail = o;
  g->tail = &o->next;
  unlock();
}

static struct graph *make(uint64_t capture) {
  struct graph *g = calloc(1, sizeof *g);
  g->tail = &g->head;
  g->capture = capture;
  g->users = 1;
  return g;
}
API CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
  ENTER_CONTEXT("%d", mode);
  struct stream *s = cuda_stream(handle);
  if (cuda_capture(s)) return INVALID_VALUE;
  lock();
  struct graph *g = make(next_capture++);
  g->next = captures;
  captures = g;
  s->capture = g->capture;
  unlock();
  return SUCCESS;
}
API CUresult cuStreamEndCapture(void *handle, struct graph **out) {
  ENTER_CONTEXT();
  struct graph *g = cuda_capture(cuda_stream(handle));
  if (!g) return INVALID_VALUE;
  lock();
  for (struct graph **at = &captures; *at; at = &(*at)->next)
    if (*at == g) {
      *at = g->next;
      break;
    }
  g->capture = 0;
  unlock();
  *out = g;
  return SUCCESS;
}
API CUresult cuStreamIsCapturing(void *handle, int *status) {
  ENTER();
  *status = cuda_capture(cuda_stream(handle)) != NULL;
  return SUCCESS;
}
static CUresult info(void *handle, int *status, uint64_t *id, struct graph **graph, void **nodes, void **edges, size_t *count) {
  struct graph *g = cuda_capture(cuda_stream(handle));
  *status = g != NULL;
  if (id) *id = g ? g->capture : 0;
  if (graph) *graph = g;
  if (nodes) *nodes = NULL; /* the order says it all: nothing depends on a node by its name */
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return SUCCESS;
}
API CUresult cuStreamGetCaptureInfo(void *handle, int *status, uint64_t *id) {
  ENTER();
  return info(handle, status, id, NULL, NULL, NULL, NULL);
}
API CUresult cuStreamGetCaptureInfo_v2(void *handle, int *status, uint64_t *id, struct graph **graph, void **nodes, size_t *count) {
  ENTER();
  return info(handle, status, id, graph, nodes, NULL, count);
}
API CUresult cuStreamGetCaptureInfo_v3(void *handle, int *status, uint64_t *id, struct graph **graph, void **nodes, void **edges,
                                       size_t *count) {
  ENTER();
  return info(handle, status, id, graph, nodes, edges, count);
}
API CUresult cuStreamUpdateCaptureDependencies(void *handle, void **nodes, size_t count, unsigned flags) {
  ENTER();
  return SUCCESS;
}
API CUresult cuStreamUpdateCaptureDependencies_v2(void *handle, void **nodes, void *edges, size_t count, unsigned flags) {
  ENTER();
  return SUCCESS;
}
API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  ENTER();
  return SUCCESS;
}

/* Graphs.  What is instantiated is the graph itself: nothing changes it afterwards. */
API CUresult cuGraphCreate(struct graph **out, unsigned flags) {
  ENTER();
  *out = make(0);
  return SUCCESS;
}
struct host_node { /* CUDA_HOST_NODE_PARAMS */
  void (*function)(void *);
  void *argument;
};
static void run_host(struct operation *o) { o->host(o->data); }
API CUresult cuGraphAddHostNode(void **node, struct graph *g, void **after, size_t count, const struct host_node *host) {
  ENTER();
  struct operation *o = cuda_operation(run_host);
  o->host = host->function;
  o->data = host->argument;
  cuda_append(g, o);
  *node = o;
  return SUCCESS;
}
API CUresult cuGraphGetNodes(struct graph *g, void **nodes, size_t *count) {
  ENTER();
  size_t n = 0;
  for (struct operation *o = g->head; o; o = o->next, n++)
    if (nodes && n < *count) nodes[n] = o;
  *count = n;
  return SUCCESS;
}
static CUresult instantiate(struct graph **out, struct graph *g) {
  lock();
  g->users++;
  unlock();
  *out = g;
  return SUCCESS;
}
API CUresult cuGraphInstantiate_v2(struct graph **out, struct graph *g, void **failed, char *log, size_t room) {
  ENTER_CONTEXT();
  return instantiate(out, g);
}
API CUresult cuGraphInstantiateWithFlags(struct graph **out, struct graph *g, unsigned long long flags) {
  ENTER_CONTEXT();
  return instantiate(out, g);
}
struct instantiate_parameters { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
  uint64_t flags;
  void *upload_stream, *failed;
  int result;
};
API CUresult cuGraphInstantiateWithParams(struct graph **out, struct graph *g, struct instantiate_parameters *parameters) {
  ENTER_CONTEXT();
  parameters->result = 0;
  return instantiate(out, g);
}
API CUresult cuGraphUpload(struct graph *g, void *stream) {
  ENTER_CONTEXT();
  return SUCCESS;
}
API CUresult cuGraphLaunch(struct graph *g, void *handle) {
  ENTER_CONTEXT();
  struct stream *s = cuda_stream(handle);
  for (struct operation *o = g->head; o; o = o->next) {
    struct operation *again = cuda_operation(o->run);
    *again = *o;
    again->next = NULL;
    if (o->owns) again->data = memcpy(malloc(o->size), o->data, o->size); /* a kernel may change its parameters */
    cuda_push(s, again);
  }
  return SUCCESS;
}

static void release(struct user_object *object, unsigned count) {
  object->references -= count;
  if (object->references) return;
  object->destroy(object->pointer);
  free(object);
}
static CUresult drop(struct graph *g) {
  lock();
  int left = --g->users;
  unlock();
  if (left) return SUCCESS;
  while (g->objects) {
    struct retained *gone = g->objects;
    g->objects = gone->next;
    release(gone->object, gone->count);
    free(gone);
  }
  while (g->head) {
    struct operation *gone = g->head;
    g->head = gone->next;
    if (gone->owns) free(gone->data);
    free(gone);
  }
  free(g);
  return SUCCESS;
}
API CUresult cuGraphDestroy(struct graph *g) {
  ENTER();
  return drop(g);
}
API CUresult cuGraphExecDestroy(struct graph *g) {
  ENTER();
  return drop(g);
}

/* What lives as long as a graph does */
API CUresult cuUserObjectCreate(struct user_object **out, void *pointer, void (*destroy)(void *), unsigned count, unsigned flags) {
  ENTER();
  struct user_object *object = calloc(1, sizeof *object);
  *object = (struct user_object){pointer, destroy, count};
  *out = object;
  return SUCCESS;
}
API CUresult cuUserObjectRetain(struct user_object *object, unsigned count) {
  ENTER();
  object->references += count;
  return SUCCESS;
}
API CUresult cuUserObjectRelease(struct user_object *object, unsigned count) {
  ENTER();
  release(object, count);
  return SUCCESS;
}
#define MOVE 1 /* CU_GRAPH_USER_OBJECT_MOVE: the caller's references become the graph's */
API CUresult cuGraphRetainUserObject(struct graph *g, struct user_object *object, unsigned count, unsigned flags) {
  ENTER();
  struct retained *one = malloc(sizeof *one);
  *one = (struct retained){object, count, g->objects};
  g->objects = one;
  if (!(flags & MOVE)) object->references += count;
  return SUCCESS;
}
