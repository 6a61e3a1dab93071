/* A kernel's work since 2.22: ncclDevKernelArgs, behind it batches of 16 bytes; a batch names works in the arguments, the fifo or
 * a buffer.  loadWorkBatchToShmem() of src/device/common.h, RunWorkBatch of sendrecv.h. */
#include "kernels.h"
#include <string.h>

enum { ARGS_STORAGE = 16, ARGS_MASK = 20, ARGS_BUFFER = 24, IN_ARGS = 0, IN_FIFO = 1, P2P_WORK = 48, BATCH_P2P = 0, BATCH_COLL = 1 };
struct batch { /* ncclDevWorkBatch */
  uint32_t jump : 14, extends : 1, type : 2, function : 15; /* 2.32 has 11 bits, and above them the collective's number */
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
  if (!function_known(channel, b->function & ((1 << layout->function_bits) - 1), &function)) return;
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

void run_batches(const struct channel *channel, int block, char *args) {
  const struct batch *b = (const struct batch *)(args + ARGS_SIZE) + block;
  while (!channel->launch->over) {
    run_works(channel, args, &b);
    if (!b->jump) return;
    b += b->jump;
  }
}
