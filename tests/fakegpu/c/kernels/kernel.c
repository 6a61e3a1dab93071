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

static const char KERNEL[] = "ncclDevKernel", EARLY_KERNEL[] = "ncclKernel_";
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

/* What runs, for tests that must know it: FAKEGPU_KERNELS_TRACE. */
void trace(const struct channel *channel, const char *what) {
  if (getenv("FAKEGPU_KERNELS_TRACE")) fake_say("runs %s on channel %d", what, channel->number);
}

int function_known(const struct channel *channel, int number, struct function *function) {
  char name[80];
  if (function_of(channel->launch->layout, number, function)) {
    function_name(function, name, sizeof name);
    if (function->collective != SEND_RECEIVE) trace(channel, name);
    return 1;
  }
  cannot(channel->launch, "function %d is not known", number);
  return 0;
}

/* The scalar of a reduction.  Until 2.24 the division's is the divisor alone, the sign is the type's. */
uint64_t scalar(const struct launch *launch, const struct function *f, uint64_t argument, int is_address) {
  if (launch->layout->early && f->reduction == MIN_MAX) return f->argument;
  if (is_address) argument = *(uint64_t *)argument;
  return f->reduction == SUM_POST_DIVIDED && launch->layout->types < 12 ? argument << 1 | (f->type % 2 == 0) : argument;
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
  int right = launch->ranks > 1 && launch->ranks < 65536 && launch->rank >= 0 && launch->rank < launch->ranks;
  for (int i = 0; i < PROTOCOLS; i++) {
    int size = buffer_size(launch->layout, launch->comm, i);
    right = right && size > 0 && size % STEPS == 0;
  }
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

/* oneRankReduce<FuncPreMulSum<T>> (onerank.cu): with one rank only an average or a scaled sum is a kernel, all else a copy. */
static const char ONE_RANK[] = "oneRankReduceI13FuncPreMulSumI";
struct one_rank {
  char *target;
  const char *source;
  size_t count;
  uint64_t argument;
  uint8_t is_address;
};
static int scale(struct launch *launch, const struct one_rank *w) {
  static const struct {
    const char *name;
    int type;
  } types[] = {{"h", 1}, {"j", 3}, {"m", 5}, {"6__half", 6}, {"f", 7}, {"d", 8}, {"13__nv_bfloat16", 9}};
  const char *name = strstr(launch->name, ONE_RANK) + sizeof ONE_RANK - 1;
  for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
    if (strncmp(name, types[i].name, strlen(types[i].name))) continue;
    struct reduction reduction = {PRE_MULTIPLIED_SUM, types[i].type, w->is_address ? *(uint64_t *)w->argument : w->argument};
    if (w->target != w->source) memmove(w->target, w->source, w->count * element_size(reduction.type));
    reduce_before(&reduction, w->target, w->count);
    return 0;
  }
  cannot(launch, "this type is not written");
  return LAUNCH_FAILED;
}

API unsigned fake_kernel_params(const char *name, unsigned sizes[16]) {
  int version;
  const struct layout *layout = layout_of_nccl(&version);
  if (strstr(name, ONE_RANK)) {
    for (int i = 0; i < 4; i++) sizes[i] = 8;
    sizes[4] = 1;
    return 5;
  }
  if (!layout || !strstr(name, layout->early ? EARLY_KERNEL : KERNEL)) return 0;
  if (layout->work_list) {
    for (int i = 0; i < 3; i++) sizes[i] = 8; /* comm, channelMask, workHead */
    return 3;
  }
  sizes[0] = 4096; /* ncclDevKernelArgs4K */
  return 1;
}

API int fake_kernel(const char *name, const unsigned dims[7], void *args, size_t size) {
  struct launch launch = {.name = name, .rank = -1};
  launch.layout = layout_of_nccl(&launch.version);
  if (strstr(name, ONE_RANK) && size >= sizeof(struct one_rank) - 7) return scale(&launch, args);
  if (!strstr(name, "nccl") && !strstr(name, "oneRankReduce")) return 0; /* others' kernels do nothing, as without a stand-in */
  if (!launch.layout) cannot(&launch, "the structs of this version are not known");
  else if (!strstr(name, launch.layout->early ? EARLY_KERNEL : KERNEL)) cannot(&launch, "this kernel is not written");
  else if (size < ARGS_SIZE - 8) cannot(&launch, "it was launched with %zu bytes of parameters", size);
  if (launch.over) return LAUNCH_FAILED;
  launch.comm = FIELD(char *, args, 0);
  return run(&launch, FIELD(uint64_t, args, 8), launch.layout->work_list ? FIELD(char *, args, 16) : args, dims[0]);
}
