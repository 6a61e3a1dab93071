/* Where NCCL's structs have what its kernels read: offsets in bytes by version, measured by compiling a list of offsetof()
 * against the headers of each tag (src/include/device.h, collectives.h).  -1: the version has no such field.  2.32 has no public
 * tag yet: its numbers are read off what its host code gave to the kernels. */
#ifndef LAYOUT_H
#define LAYOUT_H
#include <stddef.h>
#include <stdint.h>

enum protocol { LL, LL128, SIMPLE, PROTOCOLS };                 /* NCCL_PROTO_* */
enum algorithm { TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT, ALGORITHMS }; /* NCCL_ALGO_* */
enum collective { BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, SEND_RECEIVE };    /* ncclFunc_t */
enum { STEPS = 8 };                                             /* NCCL_STEPS: slots of a connection's buffer */

struct layout {
  int from, last;                                               /* versions that were looked at, as ncclGetVersion() says them */
  int work_list;                                                /* struct ncclWork (to 2.21), not ncclDevWorkBatch */
  int types, all_gather_v, gather_algorithms;                   /* what ncclDevFuncId() counts its rows by */
  int function_bits;                                            /* of the function's number in a batch */
  int plain_parts;                                              /* ncclP2pChannelToPart() reverses no bits (from 2.28) */
  int comm_abort, comm_channels, comm_consumed;                 /* ncclDevComm, from 2.28 ncclKernelComm */
  int channel_size, channel_index, channel_tree;                /* ncclDevChannel: ring.index, tree */
  int conn_size, conn_step_size, conn_fifo, conn_step;          /* ncclConnInfo */
  int fifo_size;                                                /* ncclConnFifo */
  int work_size, work_receive, work_counts, work_argument;      /* ncclDevWorkColl or ncclWorkElem */
  int early;                                                    /* 2.18: kernels cut the work themselves (list.c) */
};

/* The same in every version from 2.20 on; 2.18 has another place for some. */
enum {
  COMM_RANK = 0, COMM_RANKS = 4, COMM_BUFFER_SIZES = 16, EARLY_BUFFER_SIZES = 8, COMM_P2P_CHUNK = 28,
  CHANNEL_PEERS = 0, CHANNEL_PREVIOUS = 8, CHANNEL_NEXT = 12, CHANNEL_RANKS = 16, CHANNELS = 64,
  CONN_BUFFERS = 0, CONN_TAIL = 48, CONN_HEAD = 56, CONNS = 2,  /* of a peer: two to send, then two to receive */
  EARLY_TAIL = 24, EARLY_HEAD = 32, EARLY_OFFSETS = 72,         /* offsFifo; sizesFifo is at conn_fifo */
  ARGS_SIZE = 32,                                               /* ncclDevKernelArgs; batches follow */
};
/* ncclConnFifo: mode; offset and size of 4 and 8 bytes, in a wide one of 8 and 8, each at its next multiple. */
enum { FIFO_MODE = 0, MODE_OFFSET = 1 /* NCCL_MODE_OFFSET */, FIFO_WIDE = 32 };

/* The library that is loaded in this process, its version (0: none) and layout (NULL: none is known). */
const struct layout *layout_of_nccl(int *version);

/* A field at an offset. */
#define FIELD(type, base, offset) (*(type *)((char *)(base) + (offset)))

/* What a device function does: the collective, its reduction (ncclDevRedOp_t), type (ncclDataType_t), algorithm, protocol. */
struct function {
  enum collective collective;
  int reduction, type;
  enum algorithm algorithm;
  enum protocol protocol;
  uint64_t argument; /* of MIN_MAX in 2.18, where they are two functions and the work carries none */
};
/* Bytes of a protocol's buffer. */
int buffer_size(const struct layout *layout, const char *comm, enum protocol protocol);
/* By the number that the work carries; 0: unknown, or the library tells nothing of its functions. */
int function_of(const struct layout *layout, int number, struct function *out);
void function_name(const struct function *function, char *out, size_t size);
#endif
