/* Contexts: the primary one of each device, those that are made, and the calling thread's stack of them. */
#include "cuda.h"
#include <stdlib.h>

#define DEEPEST 32
static struct context primaries[FAKE_MAX_GPUS];
static __thread struct context *stack[DEEPEST];
static __thread int depth;

struct context *cuda_primary(CUdevice device) { return &primaries[device]; }
struct context *cuda_context(void) { return depth ? stack[depth - 1] : NULL; }
void cuda_adopt(struct context *context) {
  stack[0] = context;
  depth = 1;
}

API CUresult cuDevicePrimaryCtxRetain(struct context **out, CUdevice device) {
  ENTER("%d", device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  primaries[device].retained++;
  *out = &primaries[device];
  return SUCCESS;
}
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  ENTER("%d", device);
  return cuda_is_device(device) ? SUCCESS : INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  ENTER("%d", device);
  return cuda_is_device(device) ? SUCCESS : INVALID_DEVICE;
}
API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  ENTER("%d", device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  primaries[device].flags = flags;
  return SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  ENTER("%d", device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  *flags = primaries[device].flags;
  *active = primaries[device].retained > 0;
  return SUCCESS;
}

static CUresult create(struct context **out, unsigned flags, CUdevice device) {
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  if (depth == DEEPEST) return INVALID_VALUE;
  struct context *made = calloc(1, sizeof *made);
  made->device = device;
  made->flags = flags;
  stack[depth++] = *out = made;
  return SUCCESS;
}
API CUresult cuCtxCreate_v2(struct context **out, unsigned flags, CUdevice device) {
  ENTER("%d", device);
  return create(out, flags, device);
}
API CUresult cuCtxCreate_v3(struct context **out, void *affinity, int count, unsigned flags, CUdevice device) {
  ENTER("%d", device);
  return create(out, flags, device);
}
API CUresult cuCtxCreate_v4(struct context **out, void *parameters, unsigned flags, CUdevice device) {
  ENTER("%d", device);
  return create(out, flags, device);
}
API CUresult cuCtxDestroy_v2(struct context *context) {
  ENTER();
  if (depth && stack[depth - 1] == context) depth--;
  return SUCCESS;
}
API CUresult cuCtxGetCurrent(struct context **out) {
  ENTER();
  *out = cuda_context();
  return SUCCESS;
}
API CUresult cuCtxSetCurrent(struct context *context) {
  ENTER("%p", (void *)context);
  if (!context) {
    if (depth) depth--;
    return SUCCESS;
  }
  if (!depth) depth = 1;
  stack[depth - 1] = context;
  return SUCCESS;
}
API CUresult cuCtxPushCurrent_v2(struct context *context) {
  ENTER();
  if (depth == DEEPEST) return INVALID_VALUE;
  stack[depth++] = context;
  return SUCCESS;
}
API CUresult cuCtxPopCurrent_v2(struct context **out) {
  ENTER();
  if (!depth) return INVALID_CONTEXT;
  depth--;
  if (out) *out = stack[depth];
  return SUCCESS;
}
API CUresult cuCtxGetDevice(CUdevice *device) {
  ENTER();
  if (!cuda_context()) return INVALID_CONTEXT;
  *device = cuda_context()->device;
  return SUCCESS;
}
API CUresult cuCtxGetDevice_v2(CUdevice *device, struct context *context) {
  ENTER();
  if (!context) context = cuda_context();
  if (!context) return INVALID_CONTEXT;
  *device = context->device;
  return SUCCESS;
}
API CUresult cuCtxGetFlags(unsigned *flags) {
  ENTER();
  if (!cuda_context()) return INVALID_CONTEXT;
  *flags = cuda_context()->flags;
  return SUCCESS;
}
API CUresult cuCtxSetFlags(unsigned flags) {
  ENTER();
  if (!cuda_context()) return INVALID_CONTEXT;
  cuda_context()->flags = flags;
  return SUCCESS;
}
API CUresult cuCtxGetId(struct context *context, uint64_t *id) {
  ENTER();
  *id = (uintptr_t)(context ? context : cuda_context());
  return SUCCESS;
}
API CUresult cuCtxGetApiVersion(struct context *context, unsigned *version) {
  ENTER();
  *version = 3020;
  return SUCCESS;
}
API CUresult cuCtxGetLimit(size_t *value, int limit) {
  ENTER("%d", limit);
  *value = limit == 0 ? 1 << 10 : limit == 1 ? 1 << 20 : 8 << 20; /* stack, printf, heap */
  return SUCCESS;
}
API CUresult cuCtxSetLimit(int limit, size_t value) {
  ENTER("%d=%zu", limit, value);
  return SUCCESS;
}
API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  ENTER();
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return SUCCESS;
}
API CUresult cuCtxGetCacheConfig(int *config) {
  ENTER();
  *config = 0;
  return SUCCESS;
}
API CUresult cuCtxSetCacheConfig(int config) {
  ENTER();
  return SUCCESS;
}
API CUresult cuCtxGetSharedMemConfig(int *config) {
  ENTER();
  *config = 1;
  return SUCCESS;
}
API CUresult cuCtxSetSharedMemConfig(int config) {
  ENTER();
  return SUCCESS;
}
API CUresult cuCtxResetPersistingL2Cache(void) {
  ENTER();
  return SUCCESS;
}
API CUresult cuCtxSynchronize(void) {
  ENTER_CONTEXT();
  if (!cuda_context()) return INVALID_CONTEXT;
  cuda_drain_context(cuda_context());
  return cuda_broken;
}
