/* Fake libcuda.so.1 with what tools/gpu_proof/bare_nccl.py calls: one device whose memory is the host's.  It proves the order
 * and the types of arguments, nothing about GPUs: a context must be current before memory is taken, a stream is one that was
 * made here, an address one that was given out.  Wrong use gives CUDA_ERROR_INVALID_VALUE.
 * Build: gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 fake_cuda_memory.c */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };
static int started, current, streams, events;
static char context_mark, stream_mark, event_mark;
static char *taken;
static size_t taken_size;

int cuInit(unsigned flags)
{
    started = flags == 0;
    return flags ? INVALID_VALUE : 0;
}

int cuGetErrorName(int code, const char **out)
{
    *out = code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : code == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" :
           code == INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_NOT_INITIALIZED";
    return 0;
}

int cuDeviceGet(int *out, int ordinal)
{
    *out = 40 + ordinal; /* not the ordinal: who confuses the two is found */
    return !started ? NOT_INITIALIZED : ordinal ? INVALID_DEVICE : 0;
}

int cuDevicePrimaryCtxRetain(void **out, int device)
{
    *out = &context_mark;
    return device == 40 ? 0 : INVALID_DEVICE;
}

int cuCtxSetCurrent(void *context)
{
    current = context == &context_mark;
    return current ? 0 : INVALID_CONTEXT;
}

int cuMemAlloc_v2(uint64_t *out, size_t size)
{
    if (!current)
        return INVALID_CONTEXT;
    taken = malloc(size);
    taken_size = size;
    *out = (uint64_t)(uintptr_t)taken;
    return 0;
}

static int inside(uint64_t address, size_t size)
{
    return taken && (char *)(uintptr_t)address == taken && size <= taken_size;
}

int cuMemFree_v2(uint64_t address)
{
    if (!inside(address, 0))
        return INVALID_VALUE;
    free(taken);
    taken = NULL;
    return 0;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size)
{
    if (!inside(to, size))
        return INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, size);
    return 0;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size)
{
    if (!inside(from, size))
        return INVALID_VALUE;
    memcpy(to, (void *)(uintptr_t)from, size);
    return 0;
}

int cuStreamCreate(void **out, unsigned flags)
{
    *out = &stream_mark;
    streams++;
    return current && !flags ? 0 : INVALID_VALUE;
}

int cuStreamSynchronize(void *stream)
{
    return streams && stream == &stream_mark ? 0 : INVALID_VALUE;
}

int cuEventCreate(void **out, unsigned flags)
{
    *out = &event_mark;
    events++;
    return flags ? INVALID_VALUE : 0;
}

int cuEventRecord(void *event, void *stream)
{
    return event == &event_mark && stream == &stream_mark ? 0 : INVALID_VALUE;
}

int cuEventElapsedTime(float *out, void *before, void *after)
{
    *out = 2.5f; /* milliseconds */
    return before == &event_mark && after == &event_mark ? 0 : INVALID_VALUE;
}
