/* Modules, functions and launches.  A kernel does nothing unless the machine names a stand-in (kernel_hook.h). */
#define _GNU_SOURCE
#include "cuda.h"
#include "kernel_hook.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*hook)(const char *, const unsigned *, void *, size_t);
static unsigned (*hook_params)(const char *, unsigned *);
static pthread_once_t hook_once = PTHREAD_ONCE_INIT;

static void load_hook(void) {
  const char *path = fake_text("", "kernels");
  void *library = *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (*path && !library) fake_say("%s", dlerror());
  if (!library) return;
  *(void **)&hook = dlsym(library, "fake_kernel");
  *(void **)&hook_params = dlsym(library, "fake_kernel_params");
}

CUresult cuda_load_module(struct module **out, const void *image) {
  *out = calloc(1, sizeof **out);
  (*out)->image = image;
  return SUCCESS;
}
API CUresult cuModuleLoadData(struct module **out, const void *image) {
  ENTER_CONTEXT();
  return cuda_load_module(out, image);
}
API CUresult cuModuleLoadDataEx(struct module **out, const void *image, unsigned count, void *options, void *values) {
  ENTER_CONTEXT();
  return cuda_load_module(out, image);
}
API CUresult cuModuleLoadFatBinary(struct module **out, const void *image) {
  ENTER_CONTEXT();
  return cuda_load_module(out, image);
}
API CUresult cuModuleUnload(struct module *module) {
  ENTER();
  return SUCCESS;
}
API CUresult cuModuleGetLoadingMode(int *mode) {
  ENTER();
  *mode = 2; /* lazy */
  return SUCCESS;
}
API CUresult cuLibraryLoadData(struct module **out, const void *image, void *jit, void *jit_values, unsigned jit_count, void *options,
                               void *values, unsigned count) {
  ENTER();
  return cuda_load_module(out, image);
}
API CUresult cuLibraryUnload(struct module *module) {
  ENTER();
  return SUCCESS;
}
API CUresult cuLibraryGetModule(struct module **out, struct module *library) {
  ENTER();
  *out = library;
  return SUCCESS;
}

static CUresult function(struct function **out, struct module *module, const char *name) {
  struct function *made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  made->module = module;
  *out = made;
  return SUCCESS;
}
API CUresult cuModuleGetFunction(struct function **out, struct module *module, const char *name) {
  ENTER_CONTEXT("%s", name);
  return function(out, module, name);
}
API CUresult cuLibraryGetKernel(struct function **out, struct module *module, const char *name) {
  ENTER("%s", name);
  return function(out, module, name);
}
/* A global variable: memory that is zero, as long as any that NCCL or torch ask for. */
static CUresult global(CUdeviceptr *address, size_t *size) {
  CUdeviceptr made;
  CUresult result = cuda_allocate(&made, 1 << 16, DEVICE_MEMORY, cuda_context() ? cuda_context()->device : 0);
  if (address) *address = made;
  if (size) *size = 0;
  return result;
}
API CUresult cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size, struct module *module, const char *name) {
  ENTER_CONTEXT("%s", name);
  return global(address, size);
}
API CUresult cuLibraryGetGlobal(CUdeviceptr *address, size_t *size, struct module *library, const char *name) {
  ENTER_CONTEXT("%s", name);
  return global(address, size);
}
API CUresult cuKernelGetFunction(struct function **out, struct function *kernel) {
  ENTER();
  *out = kernel;
  return SUCCESS;
}
API CUresult cuKernelGetLibrary(struct module **out, struct function *kernel) {
  ENTER();
  *out = kernel->module;
  return SUCCESS;
}
API CUresult cuKernelGetName(const char **out, struct function *kernel) {
  ENTER();
  *out = kernel->name;
  return SUCCESS;
}
API CUresult cuFuncGetName(const char **out, struct function *f) {
  ENTER();
  *out = f->name;
  return SUCCESS;
}
API CUresult cuFuncGetModule(struct module **out, struct function *f) {
  ENTER();
  *out = f->module;
  return SUCCESS;
}
API CUresult cuFuncIsLoaded(int *state, struct function *f) {
  ENTER();
  *state = 1;
  return SUCCESS;
}
API CUresult cuFuncLoad(struct function *f) {
  ENTER();
  return SUCCESS;
}

/* CUfunction_attribute: 0 threads of a block, 4 registers, 5 and 6 PTX and binary version, 8 dynamic shared memory */
static int attribute_of(const struct function *f, int attribute) {
  if (attribute == 0) return 1024;
  if (attribute == 4) return 96;
  if (attribute == 5 || attribute == 6) return fake_number(80, "gpu.0.capability");
  return attribute >= 0 && attribute < 16 ? f->attribute[attribute] : 0;
}
API CUresult cuFuncGetAttribute(int *value, int attribute, struct function *f) {
  ENTER("%d", attribute);
  *value = attribute_of(f, attribute);
  return SUCCESS;
}
API CUresult cuFuncSetAttribute(struct function *f, int attribute, int value) {
  ENTER("%d=%d", attribute, value);
  if (attribute >= 0 && attribute < 16) f->attribute[attribute] = value;
  return SUCCESS;
}
API CUresult cuKernelGetAttribute(int *value, int attribute, struct function *kernel, CUdevice device) {
  ENTER("%d", attribute);
  *value = attribute_of(kernel, attribute);
  return SUCCESS;
}
API CUresult cuKernelSetAttribute(int attribute, int value, struct function *kernel, CUdevice device) {
  ENTER("%d=%d", attribute, value);
  if (attribute >= 0 && attribute < 16) kernel->attribute[attribute] = value;
  return SUCCESS;
}
API CUresult cuFuncSetCacheConfig(struct function *f, int config) {
  ENTER();
  return SUCCESS;
}
API CUresult cuFuncSetSharedMemConfig(struct function *f, int config) {
  ENTER();
  return SUCCESS;
}
API CUresult cuKernelSetCacheConfig(struct function *kernel, int config, CUdevice device) {
  ENTER();
  return SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, struct function *f, int block, size_t shared) {
  ENTER();
  *count = 1;
  return SUCCESS;
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, struct function *f, int block, size_t shared, unsigned flags) {
  ENTER();
  *count = 1;
  return SUCCESS;
}
API CUresult cuOccupancyMaxActiveClusters(int *count, struct function *f, void *config) {
  ENTER();
  *count = 1;
  return SUCCESS;
}

/* Launches */
static void run_kernel(struct operation *o) {
  int failure = fake_ordered("kernel");
  if (!failure && hook) failure = hook(o->name, o->dims, o->data, o->size);
  if (failure) {
    lock();
    cuda_broken = failure;
    pthread_cond_broadcast(&cuda_changed);
    unlock();
  }
}

/* The parameters behind pointers, put into one buffer. */
static void gather(struct operation *o, void **parameters) {
  unsigned sizes[16] = {0}, count = hook_params ? hook_params(o->name, sizes) : 0;
  if (!count && !strstr(o->name, "nccl")) return;
  if (!count) sizes[0] = 64, count = 1;
  size_t total = 0;
  for (unsigned i = 0; i < count && i < 16; i++) total += sizes[i] + 8;
  char *buffer = calloc(1, total);
  for (unsigned i = 0; i < count && i < 16; i++) {
    unsigned alignment = sizes[i] % 8 == 0 ? 8 : sizes[i] % 4 == 0 ? 4 : sizes[i] % 2 == 0 ? 2 : 1;
    o->size = round_up(o->size, alignment);
    memcpy(buffer + o->size, parameters[i], sizes[i]);
    o->size += sizes[i];
  }
  o->data = buffer;
  o->owns = 1;
}

static CUresult launch(struct function *f, const unsigned dims[7], void *stream, void **parameters, void **extra) {
  void *buffer = NULL;
  size_t size = 0;
  pthread_once(&hook_once, load_hook);
  struct operation *o = cuda_operation(run_kernel);
  o->name = f->name;
  memcpy(o->dims, dims, sizeof o->dims);
  for (void **e = extra; e && *e; e += 2) { /* CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE */
    if (e[0] == (void *)1) buffer = e[1];
    if (e[0] == (void *)2) size = *(size_t *)e[1];
  }
  if (buffer && size) {
    o->data = memcpy(malloc(size), buffer, size);
    o->size = size;
    o->owns = 1;
  } else if (parameters) {
    gather(o, parameters);
  }
  cuda_push(cuda_stream(stream), o);
  return SUCCESS;
}
API CUresult cuLaunchKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            void *stream, void **parameters, void **extra) {
  ENTER_CONTEXT("%s grid %u block %u", f->name, gx, bx);
  return launch(f, (unsigned[7]){gx, gy, gz, bx, by, bz, shared}, stream, parameters, extra);
}
API CUresult cuLaunchCooperativeKernel(struct function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                       unsigned shared, void *stream, void **parameters) {
  ENTER_CONTEXT("%s grid %u block %u", f->name, gx, bx);
  return launch(f, (unsigned[7]){gx, gy, gz, bx, by, bz, shared}, stream, parameters, NULL);
}
struct launch_config { /* CUlaunchConfig */
  unsigned dims[7];
  void *stream, *attributes;
  unsigned attribute_count;
};
API CUresult cuLaunchKernelEx(const struct launch_config *config, struct function *f, void **parameters, void **extra) {
  ENTER_CONTEXT("%s grid %u block %u", f->name, config->dims[0], config->dims[3]);
  return launch(f, config->dims, config->stream, parameters, extra);
}
API CUresult cuProfilerStart(void) {
  ENTER();
  return SUCCESS;
}
API CUresult cuProfilerStop(void) {
  ENTER();
  return SUCCESS;
}
API CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
  ENTER();
  return SUCCESS;
}
