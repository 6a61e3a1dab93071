/* Virtual memory management (the cuMem* family), pools, and memory as dma-buf: a handle is a memfd, too. */
#define _GNU_SOURCE
#include "cuda.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define GRANULARITY (2u << 20)
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3 };
enum { HANDLE_POSIX_FD = 1, HANDLE_FABRIC = 8 };

struct allocation_properties { /* CUmemAllocationProp */
  int type, handle_types, location, id;
  void *windows;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
struct physical_memory {
  int fd, references, imported;
  size_t size;
  struct allocation_properties properties;
};
struct mapping {
  CUdeviceptr base;
  size_t size;
  struct physical_memory *memory;
  struct mapping *next;
};
static struct mapping *mappings;

API CUresult cuMemGetAllocationGranularity(size_t *out, struct allocation_properties *properties, int option) {
  ENTER("location %d/%d", properties->location, properties->id);
  *out = GRANULARITY;
  return SUCCESS;
}

API CUresult cuMemCreate(struct physical_memory **out, size_t size, struct allocation_properties *properties, uint64_t flags) {
  ENTER_CONTEXT("%zu location %d/%d handles %d", size, properties->location, properties->id, properties->handle_types);
  int on_device = properties->location == LOCATION_DEVICE;
  if (properties->handle_types & HANDLE_FABRIC) return NOT_SUPPORTED;
  if (on_device && !cuda_is_device(properties->id)) return INVALID_DEVICE;
  if (on_device && !cuda_take(properties->id, size)) return OUT_OF_MEMORY;
  int fd = cuda_memfd(on_device ? cuda_physical(properties->id) : -1, size);
  if (fd < 0) return OUT_OF_MEMORY;
  struct physical_memory *made = calloc(1, sizeof *made);
  *made = (struct physical_memory){fd, 1, 0, size, *properties};
  *out = made;
  return SUCCESS;
}

static CUresult drop(struct physical_memory *memory) {
  lock();
  int left = --memory->references;
  unlock();
  if (left) return SUCCESS;
  close(memory->fd);
  if (memory->properties.location == LOCATION_DEVICE && !memory->imported) cuda_give(memory->properties.id, memory->size);
  free(memory);
  return SUCCESS;
}
API CUresult cuMemRelease(struct physical_memory *memory) {
  ENTER();
  return drop(memory);
}

/* What is left of the alignment stays reserved: nothing else lands there. */
API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment, CUdeviceptr wish, uint64_t flags) {
  ENTER_CONTEXT("%zu", size);
  if (alignment < GRANULARITY) alignment = GRANULARITY;
  char *reserved = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return OUT_OF_MEMORY;
  *out = round_up((uintptr_t)reserved, alignment);
  return SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr base, size_t size) {
  ENTER();
  munmap((void *)base, size);
  return SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr base, size_t size, size_t offset, struct physical_memory *memory, uint64_t flags) {
  ENTER_CONTEXT("%lx %zu", (long)base, size);
  if (mmap((void *)base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->fd, offset) == MAP_FAILED) return INVALID_VALUE;
  int on_device = memory->properties.location == LOCATION_DEVICE;
  struct mapping *made = malloc(sizeof *made);
  lock();
  *made = (struct mapping){base, size, memory, mappings};
  mappings = made;
  memory->references++;
  unlock();
  cuda_add_block(base, size, on_device ? DEVICE_MEMORY : HOST_MEMORY, on_device ? memory->properties.id : 0, memory->fd);
  return SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr base, size_t size) {
  ENTER();
  struct block was;
  struct physical_memory *memory = NULL;
  lock();
  for (struct mapping **at = &mappings; *at; at = &(*at)->next)
    if ((*at)->base == base) {
      struct mapping *gone = *at;
      memory = gone->memory;
      *at = gone->next;
      free(gone);
      break;
    }
  unlock();
  if (!memory || !cuda_remove_block(base, &was)) return INVALID_VALUE;
  mmap((void *)base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return drop(memory);
}
API CUresult cuMemSetAccess(CUdeviceptr base, size_t size, void *descriptions, size_t count) {
  ENTER_CONTEXT();
  return SUCCESS;
}
API CUresult cuMemGetAccess(uint64_t *flags, void *location, CUdeviceptr base) {
  ENTER();
  *flags = 3; /* read and write */
  return SUCCESS;
}

API CUresult cuMemExportToShareableHandle(int *fd, struct physical_memory *memory, int type, uint64_t flags) {
  ENTER_CONTEXT("type %d", type);
  if (type != HANDLE_POSIX_FD) return NOT_SUPPORTED;
  *fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 3);
  return *fd < 0 ? INVALID_VALUE : SUCCESS;
}

/* Which GPU the memory is on stands in the memfd's name. */
static int physical_of(int fd) {
  char link[64], name[128] = "";
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  if (readlink(link, name, sizeof name - 1) < 0) return -1;
  char *number = strstr(name, "fakegpu-");
  return number ? atoi(number + strlen("fakegpu-")) : -1;
}
API CUresult cuMemImportFromShareableHandle(struct physical_memory **out, void *handle, int type) {
  ENTER_CONTEXT("type %d descriptor %d", type, (int)(uintptr_t)handle);
  if (type != HANDLE_POSIX_FD) return NOT_SUPPORTED;
  struct stat state;
  int fd = fcntl((int)(uintptr_t)handle, F_DUPFD_CLOEXEC, 3);
  if (fd < 0 || fstat(fd, &state)) return INVALID_VALUE;
  int physical = physical_of(fd), device = physical < 0 ? -1 : cuda_device_of(physical);
  struct allocation_properties properties = {.type = 1, .handle_types = HANDLE_POSIX_FD};
  properties.location = physical < 0 ? LOCATION_HOST_NUMA : LOCATION_DEVICE;
  properties.id = device < 0 ? 0 : device; /* a GPU that this process does not see: its memory is there all the same */
  struct physical_memory *made = calloc(1, sizeof *made);
  *made = (struct physical_memory){fd, 1, 1, state.st_size, properties};
  *out = made;
  return SUCCESS;
}
API CUresult cuMemRetainAllocationHandle(struct physical_memory **out, void *address) {
  ENTER_CONTEXT("%p", address);
  CUdeviceptr wanted = (CUdeviceptr)address;
  *out = NULL;
  lock();
  for (struct mapping *m = mappings; m && !*out; m = m->next)
    if (wanted >= m->base && wanted < m->base + m->size) *out = m->memory;
  if (*out) (*out)->references++;
  unlock();
  return *out ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemGetAllocationPropertiesFromHandle(struct allocation_properties *out, struct physical_memory *memory) {
  ENTER();
  *out = memory->properties;
  return SUCCESS;
}

/* dma-buf: what the HCA gets is the memfd; whether the driver gives one is attribute 124 of the GPU. */
API CUresult cuMemGetHandleForAddressRange(int *fd, CUdeviceptr address, size_t size, int type, uint64_t flags) {
  ENTER_CONTEXT("%lx %zu", (long)address, size);
  struct block b;
  if (!cuda_find(address, &b) || b.kind != DEVICE_MEMORY || b.fd < 0) return INVALID_VALUE;
  if (!fake_number(0, "gpu.%d.attribute.124", cuda_physical(b.device))) return NOT_SUPPORTED;
  *fd = fcntl(b.fd, F_DUPFD_CLOEXEC, 3);
  return SUCCESS;
}

/* Multicast objects (NVLS) are not there: attribute 132 is 0 unless a machine lies about it. */
API CUresult cuMulticastGetGranularity(size_t *out, void *properties, int option) {
  ENTER();
  return NOT_SUPPORTED;
}

/* Pools */
API CUresult cuMemPoolCreate(void **pool, void *properties) {
  ENTER();
  *pool = malloc(16);
  return SUCCESS;
}
API CUresult cuMemPoolDestroy(void *pool) {
  ENTER();
  return SUCCESS;
}
API CUresult cuMemPoolSetAttribute(void *pool, int attribute, void *value) {
  ENTER();
  return SUCCESS;
}
API CUresult cuMemPoolGetAttribute(void *pool, int attribute, void *value) {
  ENTER();
  *(uint64_t *)value = 0;
  return SUCCESS;
}
API CUresult cuMemPoolSetAccess(void *pool, void *descriptions, size_t count) {
  ENTER();
  return SUCCESS;
}
API CUresult cuMemPoolTrimTo(void *pool, size_t keep) {
  ENTER();
  return SUCCESS;
}
static CUresult from_pool(CUdeviceptr *out, size_t size) {
  if (!cuda_context()) return INVALID_CONTEXT;
  return cuda_allocate(out, size, DEVICE_MEMORY, cuda_context()->device);
}
API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return from_pool(out, size);
}
API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, void *pool, void *stream) {
  ENTER_CONTEXT("%zu", size);
  return from_pool(out, size);
}
static void run_free(struct operation *o) { cuda_release(o->to); }
API CUresult cuMemFreeAsync(CUdeviceptr base, void *stream) {
  ENTER_CONTEXT();
  struct operation *o = cuda_operation(run_free);
  o->to = base;
  cuda_push(cuda_stream(stream), o);
  return SUCCESS;
}
