/* fake_kernel(): a launched kernel of NCCL, its channels as threads.  What ncclKernelMain() and loadWorkBatchToShmem() of
 * src/device/common.h do; struct ncclWork to 2.21, struct ncclDevWorkBatch since 2.22. */
#define _GNU_SOURCE
#include "../kernel_hook.h"
#include "../fake.h"
#include "kernels.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCH_FAILED = 719 }; /* CUDA_ERROR_LAUNCH_FAILED */

void cannot(struct launch *launch, const char *format, ...) {
  char text[300];
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  launch->over = 1;
  if (!atomic_exchange(&launch->failed, 1))
    fake_say("could not move data: %s (%s of NCCL %d, rank %d)", text, launch->name, launch->version, launch->rank);
}

static void trace(const struct channel *channel, const struct function *function) {
  char name[80];
  if (!getenv("FAKEGPU_KERNELS_TRACE")) return;
  function_name(function, name, sizeof name);
  fake_say("runs %s on channel %d", name, channel->number);
}

static int function_known(const struct channel *channel, int number, struct function *function) {
  if (function_of(channel->launch->layout, number, function)) {
    trace(channel, function);
    return 1;
  }
  cannot(channel->launch, "function %d is not known", number);
  return 0;
}

/* The transfers of a group run side by side: each may wait for what another one lets the peer do. */
enum { TRANSFERS = 32 };
struct transfers {
  struct task {
    const struct channel *channel;
    struct transfer transfer;
    pthread_t thread;
  } tasks[TRANSFERS];
  int count;
};
static void *transfer_thread(void *argument) {
  struct task *task = argument;
  run_transfer(task->channel, &task->transfer);
  return NULL;
}
static void add_transfer(struct transfers *all, const struct channel *channel, struct transfer transfer) {
  if (all->count == TRANSFERS) cannot(channel->launch, "more than %d transfers at once", TRANSFERS);
  else all->tasks[all->count++] = (struct task){channel, transfer, 0};
}
static void run_transfers(struct transfers *all) {
  for (int i = 1; i < all->count; i++)
    if (pthread_create(&all->tasks[i].thread, NULL, transfer_thread, &all->tasks[i])) cannot(all->tasks[i].channel->launch, "no thread");
  if (all->count) transfer_thread(&all->tasks[0]);
  for (int i = 1; i < all->count; i++)
    if (all->tasks[i].thread) pthread_join(all->tasks[i].thread, NULL);
}

/* To 2.21: struct ncclWork, 512 bytes: a header of 8, then elements. */
enum { WORK_LIST_SIZE = 512, WORK_LIST_HEADER = 8, P2P_ELEMENT = 28, P2P_ELEMENTS = 16, LIST_COLL = 1, LIST_P2P = 2 };

static uint64_t halves(const char *high) { return (uint64_t)FIELD(uint32_t, high, 0) << 32 | FIELD(uint32_t, high, 4); }

static void list_transfers(const struct channel *channel, char *work) {
  struct transfers all = {.count = 0};
  char *elements = work + WORK_LIST_HEADER;
  int groups = FIELD(uint8_t, elements, 7);
  for (int i = 0; i < groups && i < P2P_ELEMENTS; i++) { /* even: receives, odd: sends (sendrecv.h) */
    char *e = elements + i * P2P_ELEMENT;
    uint32_t word = FIELD(uint32_t, e, 0);
    int peer = (int32_t)(word << 2) >> 2, low_latency = word >> 30 == LL, sends = i % 2;
    if (!FIELD(uint8_t, e, 4) || peer == -1) continue;
    if (channel->launch->version >= 22105 && FIELD(uint8_t, e, 5) & 1) cannot(channel->launch, "a transfer with registered buffers is not written");
    char *address = (char *)halves(e + 8);
    size_t bytes = halves(e + 16), chunk = FIELD(int, e, 24);
    if (peer == channel->launch->rank) {
      char *target = (char *)halves(e - P2P_ELEMENT + 8);
      if (sends && address != target) memmove(target, address, bytes);
    } else {
      add_transfer(&all, channel, (struct transfer){sends, peer, low_latency, address, bytes, low_latency ? chunk / 2 : chunk});
    }
  }
  run_transfers(&all);
}

/* The scalar of a reduction.  Until 2.24 the division's is the divisor alone, the sign is the type's. */
static uint64_t scalar(const struct launch *launch, const struct function *f, uint64_t argument, int is_address) {
  if (is_address) argument = *(uint64_t *)argument;
  return f->reduction == SUM_POST_DIVIDED && launch->layout->types < 12 ? argument << 1 | (f->type % 2 == 0) : argument;
}

static void list_collectives(const struct channel *channel, char *work, const struct function *function) {
  const struct layout *layout = channel->launch->layout;
  for (char *e = work + WORK_LIST_HEADER; e + layout->work_size <= work + WORK_LIST_SIZE && FIELD(uint8_t, e, 0) & 1; e += layout->work_size) {
    uint64_t counts = FIELD(uint64_t, e, layout->work_counts), offsets = FIELD(uint64_t, e, layout->work_counts + 8);
    struct work one = {.function = *function};
    one.argument = scalar(channel->launch, function, FIELD(uint64_t, e, layout->work_argument), FIELD(uint8_t, e, 0) & 2);
    one.root = FIELD(int, e, 4);
    one.send = FIELD(char *, e, 8);
    one.receive = FIELD(char *, e, layout->work_receive);
    one.count = FIELD(int64_t, e, 24);
    one.chunk = counts & ((1 << 25) - 1); /* chunkCount:25, workCount:39; lastChunkCount:25, workOffset:39 */
    one.part = counts >> 25;
    one.last_chunk = offsets & ((1 << 25) - 1);
    one.offset = offsets >> 25;
    run_collective(channel, &one);
  }
}

static void run_list(const struct channel *channel, int block, char *head) {
  char *work = head + (size_t)block * WORK_LIST_SIZE;
  while (!channel->launch->over) {
    struct function function;
    int number = FIELD(uint16_t, work, 4), last = FIELD(uint8_t, work, 6) & 1, in_fifo = FIELD(uint8_t, work, 6) & 2;
    int type = FIELD(uint8_t, work, 7), next = FIELD(int, work, 0);
    if (last && in_fifo) /* the host may use the fifo's places again */
      *FIELD(volatile uint32_t *, channel->base, channel->launch->layout->channel_size - 16) = next;
    if (!function_known(channel, number, &function)) return;
    if (type == LIST_P2P) list_transfers(channel, work);
    else if (type == LIST_COLL) list_collectives(channel, work, &function);
    else cannot(channel->launch, "work of type %d (registered buffers)", type);
    if (last) return;
    work = head + (size_t)next * WORK_LIST_SIZE;
  }
}

/* Since 2.22: ncclDevKernelArgs, behind it batches of 16 bytes; a batch names works in the arguments, the fifo or a buffer. */
enum { ARGS_STORAGE = 16, ARGS_MASK = 20, ARGS_BUFFER = 24, IN_ARGS = 0, IN_FIFO = 1, P2P_WORK = 48, BATCH_P2P = 0, BATCH_COLL = 1 };
struct batch { /* ncclDevWorkBatch */
  uint32_t jump : 14, extends : 1, type : 2, function : 15;
  uint32_t base;
  uint64_t bits;
};

/* Custom floats of 8 bits with 3 bits of mantissa (u32fp8Decode() of bitops.h). */
static uint32_t decode_size(uint8_t x) { return x >> 3 ? ((x & 7u) | 8u) << ((x >> 3) - 1) : x & 7u; }

static int reversed(int value, int bits) {
  int out = 0;
  for (int i = 0; i < bits; i++) out |= (value >> i & 1) << (bits - 1 - i);
  return out;
}

/* The part of a transfer that is this channel's (ncclP2pChannelToPart, ncclP2pPartBounds of device.h). */
static void batch_transfer(struct transfers *all, const struct channel *channel, char *w, int sends) {
  enum { PART_ALIGNMENT = 4096 };
  int channels = FIELD(uint8_t, w, 40), parts = FIELD(uint8_t, w, sends ? 42 : 43), flags = FIELD(uint8_t, w, 46), bits = 0;
  int part = (channel->number - FIELD(uint8_t, w, 41)) & (channels - 1);
  for (int n = channels; n > 1; n /= 2) bits++;
  if (!channel->launch->layout->plain_parts) part = reversed(part, bits);
  if (part >= parts) return;
  if (flags & (sends ? 0x14 : 0x28)) { /* …NetReg or …IpcReg */
    cannot(channel->launch, "a transfer with registered buffers is not written");
    return;
  }
  size_t bytes = FIELD(size_t, w, sends ? 16 : 24), each = (bytes + parts - 1) / parts;
  each = (each + PART_ALIGNMENT - 1) / PART_ALIGNMENT * PART_ALIGNMENT;
  size_t begin = part * each < bytes ? part * each : bytes, end = begin + each < bytes ? begin + each : bytes;
  char *address = FIELD(char *, w, sends ? 0 : 8) + begin;
  int peer = FIELD(int, w, sends ? 32 : 36);
  if (peer != channel->launch->rank)
    add_transfer(all, channel, (struct transfer){sends, peer, !!(flags & (sends ? 1 : 2)), address, end - begin,
                                                 decode_size(FIELD(uint8_t, w, sends ? 44 : 45))});
  else if (sends && end > begin && FIELD(char *, w, 8) + begin != address)
    memmove(FIELD(char *, w, 8) + begin, address, end - begin);
}

static void batch_collective(const struct channel *channel, char *w, const struct function *function) {
  static const int grains[] = {[LL] = 16, [LL128] = 1920, [SIMPLE] = 512}; /* ncclProtoGrainSize() */
  const struct layout *layout = channel->launch->layout;
  int low = FIELD(uint8_t, w, 0), high = FIELD(uint8_t, w, 1), flags = FIELD(uint8_t, w, 3);
  int64_t *counts = &FIELD(int64_t, w, layout->work_counts), middle = high - low - 1;
  uint64_t chunks = counts[3]; /* in grains, 21 bits each: low, middle, high */
  struct work one = {.function = *function, .root = FIELD(int, w, 4)};
  size_t element = function->collective == ALL_REDUCE || function->collective == REDUCE || function->collective == REDUCE_SCATTER
                     ? element_size(function->type) : 1;
  if (flags & 6) { /* regUsed, netRegUsed */
    cannot(channel->launch, "a collective with registered buffers is not written");
    return;
  }
  one.argument = scalar(channel->launch, function, FIELD(uint64_t, w, layout->work_argument), flags & 1);
  one.receive = FIELD(char *, w, layout->work_receive);
  one.send = FIELD(char *, w, layout->work_receive + 8);
  one.count = counts[0] + (middle > 0 ? counts[1] * middle : 0) + counts[2];
  int place = channel->number == low ? 0 : channel->number == high ? 2 : 1;
  one.offset = place == 0 ? 0 : counts[0] + counts[1] * (place == 2 ? middle : channel->number - low - 1);
  one.part = counts[place];
  one.chunk = (chunks >> 21 * place & 0x1fffff) * (grains[function->protocol] / element);
  run_collective(channel, &one);
}

static void run_works(const struct channel *channel, char *args, const struct batch **at) {
  const struct layout *layout = channel->launch->layout;
  struct transfers all = {.count = 0};
  const struct batch *b = *at;
  struct function function;
  if (!function_known(channel, b->function, &function)) return;
  for (;; b += b->jump) { /* a batch that is extended goes on in the next one */
    int size = b->type == BATCH_P2P ? P2P_WORK : layout->work_size, storage = FIELD(uint8_t, args, ARGS_STORAGE);
    if (b->type != BATCH_P2P && b->type != BATCH_COLL) cannot(channel->launch, "work of type %d is not written", b->type);
    for (int i = 0; i < 64 && !channel->launch->over; i++) {
      if (!(b->bits >> i & 1)) continue;
      uint32_t offset = b->base + i * size;
      char place[256] __attribute__((aligned(16)));
      for (int byte = 0; byte < size; byte += 16) /* the fifo goes round */
        memcpy(place + byte, storage == IN_ARGS ? args + offset + byte : FIELD(char *, args, ARGS_BUFFER) +
                             ((offset + byte) & FIELD(uint32_t, args, ARGS_MASK)), 16);
      if (storage == IN_FIFO && layout->comm_consumed >= 0) /* to 2.26 the host waits for what was read */
        FIELD(volatile uint32_t *, channel->launch->comm, layout->comm_consumed)[channel->number] = offset + size;
      if (b->type == BATCH_COLL) batch_collective(channel, place, &function);
      else for (int sends = 0; sends < 2; sends++) batch_transfer(&all, channel, place, sends);
    }
    if (!b->extends) break;
  }
  run_transfers(&all);
  *at = b;
}

static void run_batches(const struct channel *channel, int block, char *args) {
  const struct batch *b = (const struct batch *)(args + ARGS_SIZE) + block;
  while (!channel->launch->over) {
    run_works(channel, args, &b);
    if (!b->jump) return;
    b += b->jump;
  }
}

struct block {
  struct channel channel;
  int number;
  char *args;
  pthread_t thread;
};
static void *block_thread(void *argument) {
  struct block *block = argument;
  (block->channel.launch->layout->work_list ? run_list : run_batches)(&block->channel, block->number, block->args);
  return NULL;
}

/* A layout that does not fit is told from its first fields, before anything is followed. */
static int fits(const struct launch *launch, uint64_t channels, unsigned blocks) {
  const int *sizes = &FIELD(int, launch->comm, COMM_BUFFER_SIZES);
  int right = launch->ranks > 1 && launch->ranks < 65536 && launch->rank >= 0 && launch->rank < launch->ranks;
  for (int i = 0; i < PROTOCOLS; i++) right = right && sizes[i] > 0 && sizes[i] % STEPS == 0;
  return right && (unsigned)__builtin_popcountll(channels) == blocks;
}

static int run(struct launch *launch, uint64_t channels, char *args, unsigned blocks) {
  struct block all[CHANNELS];
  int count = 0;
  launch->rank = FIELD(int, launch->comm, COMM_RANK);
  launch->ranks = FIELD(int, launch->comm, COMM_RANKS);
  if (!fits(launch, channels, blocks)) {
    cannot(launch, "the structs are not laid out as this version's");
    return LAUNCH_FAILED;
  }
  char *base = FIELD(char *, launch->comm, launch->layout->comm_channels);
  for (int i = 0; i < CHANNELS; i++)
    if (channels >> i & 1) {
      all[count] = (struct block){{launch, i, base + (size_t)i * launch->layout->channel_size}, count, args, 0};
      count++;
    }
  for (int i = 1; i < count; i++)
    if (pthread_create(&all[i].thread, NULL, block_thread, &all[i])) cannot(launch, "no thread for a channel");
  block_thread(&all[0]);
  for (int i = 1; i < count; i++)
    if (all[i].thread) pthread_join(all[i].thread, NULL);
  return launch->failed ? LAUNCH_FAILED : 0;
}

API unsigned fake_kernel_params(const char *name, unsigned sizes[16]) {
  int version;
  const struct layout *layout = layout_of_nccl(&version);
  if (!strstr(name, "ncclDevKernel") || !layout) return 0;
  if (layout->work_list) {
    for (int i = 0; i < 3; i++) sizes[i] = 8; /* comm, channelMask, workHead */
    return 3;
  }
  sizes[0] = 4096; /* ncclDevKernelArgs4K */
  return 1;
}

API int fake_kernel(const char *name, const unsigned dims[7], void *args, size_t size) {
  struct launch launch = {.name = name, .rank = -1};
  if (!strstr(name, "nccl")) return 0; /* others' kernels do nothing, as without a stand-in */
  launch.layout = layout_of_nccl(&launch.version);
  if (!launch.layout || !strstr(name, "ncclDevKernel")) {
    cannot(&launch, launch.layout ? "this kernel is not written" : "the structs of this version are not known");
    return LAUNCH_FAILED;
  }
  if (size < ARGS_SIZE - 8) {
    cannot(&launch, "it was launched with %zu bytes of parameters", size);
    return LAUNCH_FAILED;
  }
  launch.comm = FIELD(char *, args, 0);
  return run(&launch, FIELD(uint64_t, args, 8), launch.layout->work_list ? FIELD(char *, args, 16) : args, dims[0]);
}
