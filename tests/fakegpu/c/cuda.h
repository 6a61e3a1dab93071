/* Inside of the fake libcuda.so.1: what its modules share.  Numbers are those of CUDA's public headers. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H
#include "fake.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  PEER_ACCESS_UNSUPPORTED = 217,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  PEER_ACCESS_ALREADY_ENABLED = 704,
  NOT_SUPPORTED = 801,
  STREAM_CAPTURE_UNSUPPORTED = 900,
};

/* One lock for everything, one condition for everything that may have changed. */
extern pthread_mutex_t cuda_lock;
extern pthread_cond_t cuda_changed;
static inline void lock(void) { pthread_mutex_lock(&cuda_lock); }
static inline void unlock(void) { pthread_mutex_unlock(&cuda_lock); }

/* A context that a kernel has broken answers every call with this (719 and its like are sticky); 0: none is broken. */
extern int cuda_broken;
#define ENTER_CONTEXT(...) \
  do { \
    ENTER(__VA_ARGS__); \
    if (cuda_broken) return cuda_broken; \
  } while (0)

/* Devices: those that CUDA_VISIBLE_DEVICES leaves, in its order. */
extern int cuda_visible_count;
int cuda_is_device(CUdevice device);
struct fake_gpu *cuda_gpu(CUdevice device);
int cuda_physical(CUdevice device);        /* number in the machine */
CUdevice cuda_device_of(int physical);     /* -1: not visible here */

/* Contexts */
struct context {
  CUdevice device;
  int retained;
  unsigned flags;
  struct local *locals;
  struct stream *null_stream, *streams;
};
struct context *cuda_context(void);        /* the calling thread's, or NULL */
struct context *cuda_primary(CUdevice device);
void cuda_adopt(struct context *context);  /* for a stream's own thread */

/* Memory */
enum memory_kind { HOST_MEMORY = 1, DEVICE_MEMORY = 2, MANAGED_MEMORY = 3 };
struct block {
  CUdeviceptr base;
  size_t size;
  enum memory_kind kind;
  CUdevice device;
  int fd;                                  /* -1: not ours, only registered */
  struct block *next;
};
CUresult cuda_allocate(CUdeviceptr *out, size_t size, enum memory_kind kind, CUdevice device);
CUresult cuda_release(CUdeviceptr base);
int cuda_find(CUdeviceptr address, struct block *out);
void cuda_add_block(CUdeviceptr base, size_t size, enum memory_kind kind, CUdevice device, int fd);
int cuda_remove_block(CUdeviceptr base, struct block *out);
int cuda_memfd(int physical, size_t size);
int cuda_take(CUdevice device, size_t size);    /* count it against the GPU's memory: 0 where it does not fit */
void cuda_give(CUdevice device, size_t size);
static inline size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

/* Streams: a queue of operations and a thread that runs them. */
struct operation {
  void (*run)(struct operation *);
  struct operation *next;
  CUdeviceptr to, from;
  size_t size;
  uint64_t value;
  int width;
  unsigned flags;
  void *data;                              /* freed after the operation where `owns` */
  int owns;
  void (*host)(void *);
  const char *name;
  unsigned dims[7];
};
struct stream {
  struct context *context;
  struct stream *next;
  unsigned flags;
  int priority, running, busy, dead;
  uint64_t number, capture;                /* capture: what it is part of, see cuda_graph.c */
  struct operation *head, **tail;
};
struct stream *cuda_stream(void *handle);
struct operation *cuda_operation(void (*run)(struct operation *));
void cuda_push(struct stream *stream, struct operation *operation);
void cuda_drain(struct stream *stream);
void cuda_drain_context(struct context *context);

/* Capture: what is pushed to a captured stream becomes part of a graph. */
struct graph;
struct graph *cuda_capture(const struct stream *stream); /* NULL: the stream is not captured */
int cuda_join(struct stream *stream, uint64_t capture);  /* 0: that capture is over */
void cuda_append(struct graph *graph, struct operation *operation);

/* Modules */
struct module {
  const void *image;
};
struct function {
  char name[512];
  struct module *module;
  int attribute[16];
};
CUresult cuda_load_module(struct module **out, const void *image);

/* The runtime's private tables */
CUresult cuda_export_table(const void **out, const unsigned char *id);
#endif
