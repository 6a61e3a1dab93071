/* What the parts of the stand-in share: a launch, one channel of it, and the primitives that move a chunk. */
#ifndef KERNELS_H
#define KERNELS_H
#include "layout.h"
#include "reduce.h"
#include <pthread.h>
#include <stdatomic.h>

/* One launched kernel.  `over`: it cannot go on, or NCCL's abort flag is set; every wait ends then. */
struct launch {
  const struct layout *layout;
  const char *name;
  int version, rank, ranks;
  char *comm;
  _Atomic int failed, over;
};

/* Says once a launch what could not be run and why; the launch then fails. */
void cannot(struct launch *launch, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A block of the grid: a channel and where its structs are. */
struct channel {
  struct launch *launch;
  int number;
  char *base; /* ncclDevChannel */
};

/* One end of a connection (ncclConnInfo). */
struct side {
  char *conn;
  char *buffers[PROTOCOLS];
  _Atomic uint64_t *head, *tail;   /* what was taken, what was put */
  char *fifo;                      /* NULL: no proxy between */
  volatile int *offsets;           /* 2.18: of the slots in a shared buffer; NULL: they are in order */
  uint64_t step;
  size_t step_size;                /* of Simple's slots */
  char *room;                      /* where data without its flags are put together */
};

/* From up to three peers and to up to three, by one protocol; NCCL's Primitives<>. */
enum { MAX_PEERS = 3 };
struct primitive {
  struct launch *launch;
  enum protocol protocol;
  struct reduction reduction;
  size_t element, step_bytes; /* bytes of an element; of a step of Simple */
  int slices, steps;          /* of a chunk; of a slice (1 and 1 but for Simple) */
  int froms, tos;
  struct side from[MAX_PEERS], to[MAX_PEERS];
  char *result;
};

/* What a chunk does.  From where: SOURCE is memory of the caller, RECEIVE all peers; to where: TARGET memory, SEND all peers. */
enum { RECEIVE = 1, SEND = 2, FINAL = 4 /* the reduction is complete */ };

/* `from` and `to`: ranks, ended by -1; connection: 0 of collectives, 1 of send and receive.  step_bytes 0: of the communicator. */
void primitive_open(struct primitive *p, const struct channel *channel, enum protocol protocol, const struct reduction *reduction,
                    int slices, int steps, const int *from, const int *to, int connection, size_t step_bytes);
void primitive_move(struct primitive *p, int what, const char *source, char *target, int64_t elements);
void primitive_close(struct primitive *p);

/* The work of a collective on one channel. */
struct work {
  struct function function;
  uint64_t argument;
  int root;
  char *send, *receive;
  int64_t count;             /* elements of a rank, of all channels */
  int64_t offset, part;      /* this channel's elements */
  int64_t chunk, last_chunk; /* last_chunk 0: the kernel finds it */
};
void run_collective(const struct channel *channel, const struct work *work);

/* The transfers of a group; they run side by side: each may wait for what another one lets the peer do. */
struct transfer { /* one direction, on one channel */
  int sends, peer, low_latency;
  char *address;
  size_t bytes, chunk;
};
enum { TRANSFERS = 32 };
struct transfers {
  struct task {
    const struct channel *channel;
    struct transfer transfer;
    pthread_t thread;
  } tasks[TRANSFERS];
  int count;
};
void add_transfer(struct transfers *all, const struct channel *channel, struct transfer transfer);
void run_transfers(struct transfers *all);

/* What work carries, for both kinds of it: its function by number (0: said that it is not known), the scalar of its reduction. */
int function_known(const struct channel *channel, int number, struct function *function);
uint64_t scalar(const struct launch *launch, const struct function *function, uint64_t argument, int is_address);
/* For tests that must know what ran: FAKEGPU_KERNELS_TRACE. */
void trace(const struct channel *channel, const char *what);

/* A block of the kernel: all works of one channel.  To 2.21 `args` is the list's head, later the kernel's parameters. */
void run_list(const struct channel *channel, int block, char *args);
void run_batches(const struct channel *channel, int block, char *args);
#endif
