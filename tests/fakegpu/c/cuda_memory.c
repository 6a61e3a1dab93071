/* Memory: every allocation is a memfd, so that it can be shared between processes; pointers are addresses of this process. */
#define _GNU_SOURCE
#include "cuda.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define LARGE_PAGE (2u << 20)
static struct block *blocks;
static size_t taken[FAKE_MAX_GPUS]; /* by physical GPU, of this process */

static struct block *block_at(CUdeviceptr address) { /* cuda_lock is held */
  for (struct block *b = blocks; b; b = b->next)
    if (address >= b->base && address < b->base + b->size) return b;
  return NULL;
}

int cuda_find(CUdeviceptr address, struct block *out) {
  lock();
  struct block *found = block_at(address);
  if (found) *out = *found;
  unlock();
  return found != NULL;
}

void cuda_add_block(CUdeviceptr base, size_t size, enum memory_kind kind, CUdevice device, int fd) {
  struct block *b = malloc(sizeof *b);
  lock();
  *b = (struct block){base, size, kind, device, fd, blocks};
  blocks = b;
  unlock();
}

int cuda_remove_block(CUdeviceptr base, struct block *out) {
  int found = 0;
  lock();
  for (struct block **at = &blocks; *at; at = &(*at)->next)
    if ((*at)->base == base) {
      struct block *b = *at;
      *out = *b;
      *at = b->next;
      free(b);
      found = 1;
      break;
    }
  unlock();
  return found;
}

/* What this process may still take of a GPU: its memory less what others have ("gpu.N.used"), or the limit of a test. */
static size_t room_of(int physical) {
  size_t all = fake_number(0, "gpu.%d.memory", physical), others = fake_number(0, "gpu.%d.used", physical);
  size_t limit = fake_number(all - others, "gpu.%d.limit", physical);
  return limit > taken[physical] ? limit - taken[physical] : 0;
}
int cuda_take(CUdevice device, size_t size) {
  int physical = cuda_physical(device);
  lock();
  int fits = size <= room_of(physical);
  if (fits) taken[physical] += size;
  unlock();
  return fits;
}
void cuda_give(CUdevice device, size_t size) {
  lock();
  taken[cuda_physical(device)] -= size;
  unlock();
}

/* The name carries the GPU to whoever gets the descriptor. */
int cuda_memfd(int physical, size_t size) {
  char name[32];
  snprintf(name, sizeof name, "fakegpu-%d", physical);
  int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, size)) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* Large allocations are aligned as the driver aligns them: reserve more, map inside, give the rest back. */
static void *map_aligned(int fd, size_t size) {
  size_t alignment = size >= LARGE_PAGE ? LARGE_PAGE : PAGE;
  char *reserved = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return NULL;
  char *start = (char *)round_up((uintptr_t)reserved, alignment);
  if (start > reserved) munmap(reserved, start - reserved);
  if (reserved + alignment > start) munmap(start + size, reserved + alignment - start);
  void *mapped = mmap(start, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  return mapped == MAP_FAILED ? NULL : mapped;
}

CUresult cuda_allocate(CUdeviceptr *out, size_t size, enum memory_kind kind, CUdevice device) {
  size = round_up(size ? size : 1, PAGE);
  if (kind == DEVICE_MEMORY && !cuda_take(device, size)) return OUT_OF_MEMORY;
  int fd = cuda_memfd(kind == DEVICE_MEMORY ? cuda_physical(device) : -1, size);
  void *mapped = fd < 0 ? NULL : map_aligned(fd, size);
  if (!mapped) {
    if (fd >= 0) close(fd);
    if (kind == DEVICE_MEMORY) cuda_give(device, size);
    return OUT_OF_MEMORY;
  }
  cuda_add_block((CUdeviceptr)mapped, size, kind, device, fd);
  *out = (CUdeviceptr)mapped;
  return SUCCESS;
}

CUresult cuda_release(CUdeviceptr base) {
  struct block was;
  if (!base) return SUCCESS;
  if (!cuda_remove_block(base, &was)) return INVALID_VALUE;
  munmap((void *)was.base, was.size);
  if (was.fd >= 0) close(was.fd);
  if (was.kind == DEVICE_MEMORY) cuda_give(was.device, was.size);
  return SUCCESS;
}

static CUresult allocate_here(CUdeviceptr *out, size_t size, enum memory_kind kind) {
  if (!cuda_context()) return INVALID_CONTEXT;
  return cuda_allocate(out, size, kind, cuda_context()->device);
}
API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
  ENTER_CONTEXT("%zu", size);
  return allocate_here(out, size, DEVICE_MEMORY);
}
API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  ENTER_CONTEXT();
  *pitch = round_up(width, 512);
  return allocate_here(out, *pitch * height, DEVICE_MEMORY);
}
API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned flags) {
  ENTER_CONTEXT("%zu", size);
  return allocate_here(out, size, MANAGED_MEMORY);
}
API CUresult cuMemAllocHost_v2(void **out, size_t size) {
  ENTER_CONTEXT("%zu", size);
  return allocate_here((CUdeviceptr *)out, size, HOST_MEMORY);
}
API CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags) {
  ENTER_CONTEXT("%zu", size);
  return allocate_here((CUdeviceptr *)out, size, HOST_MEMORY);
}
API CUresult cuMemFree_v2(CUdeviceptr base) {
  ENTER_CONTEXT("%lx", (long)base);
  return cuda_release(base);
}
API CUresult cuMemFreeHost(void *base) {
  ENTER_CONTEXT();
  return cuda_release((CUdeviceptr)base);
}
API CUresult cuMemHostRegister_v2(void *base, size_t size, unsigned flags) {
  ENTER_CONTEXT("%p %zu", base, size);
  if (!cuda_context()) return INVALID_CONTEXT;
  cuda_add_block((CUdeviceptr)base, size, HOST_MEMORY, cuda_context()->device, -1);
  return SUCCESS;
}
API CUresult cuMemHostUnregister(void *base) {
  ENTER_CONTEXT();
  struct block was;
  return cuda_remove_block((CUdeviceptr)base, &was) ? SUCCESS : INVALID_VALUE;
}
API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *base, unsigned flags) {
  ENTER_CONTEXT();
  *out = (CUdeviceptr)base;
  return SUCCESS;
}
API CUresult cuMemHostGetFlags(unsigned *flags, void *base) {
  ENTER_CONTEXT();
  *flags = 3; /* portable, mapped */
  return SUCCESS;
}
API CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  ENTER_CONTEXT();
  if (!cuda_context()) return INVALID_CONTEXT;
  int physical = cuda_physical(cuda_context()->device);
  lock();
  *available = room_of(physical);
  unlock();
  *total = fake_number(0, "gpu.%d.memory", physical);
  return SUCCESS;
}
API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  ENTER_CONTEXT("%lx", (long)address);
  struct block b;
  if (!cuda_find(address, &b)) return NOT_FOUND;
  if (base) *base = b.base;
  if (size) *size = b.size;
  return SUCCESS;
}

/* CUpointer_attribute */
static CUresult pointer_attribute(void *out, int attribute, CUdeviceptr address) {
  struct block b = {0};
  int known = cuda_find(address, &b);
  int direct = known && b.kind == DEVICE_MEMORY && fake_number(0, "gpu.%d.attribute.116", cuda_physical(b.device));
  if (!known && attribute >= 1 && attribute <= 4) return INVALID_VALUE;
  switch (attribute) {
  case 1: *(void **)out = cuda_primary(b.device); break;              /* context */
  case 2: *(unsigned *)out = b.kind == HOST_MEMORY ? 1 : 2; break;    /* memory type */
  case 3:                                                             /* device pointer */
  case 4: *(CUdeviceptr *)out = address; break;                       /* host pointer */
  case 6: break;                                                      /* SYNC_MEMOPS */
  case 7: *(uint64_t *)out = b.base >> 12; break;                     /* buffer id */
  case 8: *(int *)out = b.kind == MANAGED_MEMORY; break;
  case 9: *(int *)out = known ? b.device : -2; break;                 /* device ordinal */
  case 10: *(int *)out = b.kind == DEVICE_MEMORY; break;              /* legacy IPC */
  case 11: *(CUdeviceptr *)out = b.base; break;
  case 12: *(size_t *)out = b.size; break;
  case 13: *(int *)out = known; break;                                /* mapped */
  case 15: *(int *)out = direct; break;                               /* GPUDirect RDMA */
  case 16: *(int *)out = known ? 3 : 0; break;                        /* access: read and write */
  default: *(uint64_t *)out = 0;
  }
  return SUCCESS;
}
API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address) {
  ENTER("%d of %lx", attribute, (long)address);
  return pointer_attribute(out, attribute, address);
}
API CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **out, CUdeviceptr address) {
  ENTER("%u of %lx", count, (long)address);
  for (unsigned i = 0; i < count; i++) {
    if (!pointer_attribute(out[i], attributes[i], address)) continue;
    if (attributes[i] == 2) *(unsigned *)out[i] = 0; /* memory that the driver does not know has no type */
    else *(uint64_t *)out[i] = 0;
  }
  return SUCCESS;
}
API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
  ENTER("%d", attribute);
  return SUCCESS;
}

/* IPC of whole allocations: the other process opens the memfd through /proc. */
struct ipc_handle {
  uint32_t magic;
  int pid, fd, physical;
  uint64_t size, offset;
  char rest[32];
};
#define IPC_MAGIC 0x66616b65
API CUresult cuIpcGetMemHandle(struct ipc_handle *out, CUdeviceptr address) {
  ENTER_CONTEXT("%lx", (long)address);
  struct block b;
  if (!cuda_find(address, &b) || b.kind != DEVICE_MEMORY || b.fd < 0) return INVALID_VALUE;
  *out = (struct ipc_handle){.magic = IPC_MAGIC, .pid = getpid(), .fd = b.fd, .physical = cuda_physical(b.device), .size = b.size};
  return SUCCESS;
}
API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc_handle handle, unsigned flags) {
  ENTER_CONTEXT("of process %d", handle.pid);
  if (!cuda_context()) return INVALID_CONTEXT;
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.pid, handle.fd);
  int fd = handle.magic == IPC_MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return INVALID_VALUE;
  void *mapped = map_aligned(fd, handle.size);
  if (!mapped) {
    close(fd);
    return OUT_OF_MEMORY;
  }
  cuda_add_block((CUdeviceptr)mapped, handle.size, DEVICE_MEMORY, cuda_context()->device, fd);
  *out = (CUdeviceptr)mapped;
  return SUCCESS;
}
API CUresult cuIpcCloseMemHandle(CUdeviceptr base) {
  ENTER_CONTEXT();
  struct block was;
  if (!cuda_remove_block(base, &was)) return INVALID_VALUE;
  munmap((void *)was.base, was.size);
  close(was.fd);
  return SUCCESS;
}
