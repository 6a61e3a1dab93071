/* A kernel's work to 2.21: a list of struct ncclWork (src/include/device.h), 512 bytes: a header of 8, then elements.
 * ncclKernelMain() of src/device/common.h, RunWork of sendrecv.h. */
#include "kernels.h"
#include <string.h>

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
    if (channel->launch->version >= 22105 && FIELD(uint8_t, e, 5) & 1)
      cannot(channel->launch, "a transfer with registered buffers is not written");
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

/* In 2.18 a kernel cuts the work itself, by turns among its channels (all_reduce.h and so on).  Here each channel has one piece,
 * which ends behind the last element for the last ones: of as many chunks as the proxies count (getLoopInfo() of enqueue.cc). */
static void cut(const struct channel *channel, const char *e, struct work *one) {
  const struct function *f = &one->function;
  int channels = FIELD(uint8_t, e, 45), ring = f->algorithm == RING;
  int steps = f->protocol == SIMPLE && ring && f->collective >= ALL_GATHER ? STEPS / 2 : 1; /* *_CHUNKSTEPS of collectives.h */
  int64_t bytes = buffer_size(channel->launch->layout, channel->launch->comm, f->protocol) / STEPS;
  bytes = f->protocol == LL ? bytes / 2 : f->protocol == LL128 ? bytes / 16 * 15 : bytes * steps;
  int copies = f->collective == BROADCAST || f->collective == ALL_GATHER;
  one->root = FIELD(int, e, 40);
  one->chunk = bytes / (copies ? 1 : element_size(f->type));
  if (f->protocol != LL && !ring) one->chunk = FIELD(int64_t, e, 32); /* lastChunkSize: runTreeSplit() */
  one->part = channels ? (one->count + channels - 1) / channels : 0;
  one->offset = FIELD(uint8_t, e, 44) * one->part;
}

static void list_collectives(const struct channel *channel, char *work, const struct function *function) {
  const struct layout *layout = channel->launch->layout;
  char *end = work + WORK_LIST_SIZE - layout->work_size;
  for (char *e = work + WORK_LIST_HEADER; e <= end && FIELD(uint8_t, e, 0) & 1; e += layout->work_size) { /* isUsed */
    struct work one = {.function = *function};
    one.argument = scalar(channel->launch, function, FIELD(uint64_t, e, layout->work_argument), FIELD(uint8_t, e, 0) & 2);
    one.root = FIELD(int, e, 4);
    one.send = FIELD(char *, e, 8);
    one.receive = FIELD(char *, e, layout->work_receive);
    one.count = FIELD(int64_t, e, 24);
    if (layout->early) {
      cut(channel, e, &one);
      run_collective(channel, &one);
      continue;
    }
    uint64_t counts = FIELD(uint64_t, e, layout->work_counts), offsets = FIELD(uint64_t, e, layout->work_counts + 8);
    one.chunk = counts & ((1 << 25) - 1); /* chunkCount:25, workCount:39; lastChunkCount:25, workOffset:39 */
    one.part = counts >> 25;
    one.last_chunk = offsets & ((1 << 25) - 1);
    one.offset = offsets >> 25;
    run_collective(channel, &one);
  }
}

void run_list(const struct channel *channel, int block, char *head) {
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
