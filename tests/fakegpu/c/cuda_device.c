/* Initialisation, devices and what they can, errors by name. */
#define _GNU_SOURCE
#include "cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed = PTHREAD_COND_INITIALIZER;
int cuda_broken;
int cuda_visible_count;
static int visible[FAKE_MAX_GPUS], started;

int cuda_is_device(CUdevice device) { return device >= 0 && device < cuda_visible_count; }
int cuda_physical(CUdevice device) { return visible[device]; }
struct fake_gpu *cuda_gpu(CUdevice device) { return &fake_gpu[visible[device]]; }

CUdevice cuda_device_of(int physical) {
  for (int i = 0; i < cuda_visible_count; i++)
    if (visible[i] == physical) return i;
  return -1;
}

/* One word of CUDA_VISIBLE_DEVICES, a number or the beginning of a UUID, as a GPU of the machine; -1 ends the list. */
static int named_gpu(const char *word, size_t length) {
  char text[64], *end;
  if (!length || length >= sizeof text) return -1;
  memcpy(text, word, length);
  text[length] = 0;
  if (!strncmp(text, "GPU-", 4)) {
    char digits[64] = "", uuid[33];
    for (const char *c = text + 4; *c; c++)
      if (*c != '-') strncat(digits, c, 1);
    for (int i = 0; i < fake_gpus; i++) {
      for (int k = 0; k < 16; k++) snprintf(uuid + 2 * k, 3, "%02x", fake_gpu[i].uuid[k]);
      if (*digits && !strncmp(uuid, digits, strlen(digits))) return i;
    }
    return -1;
  }
  long number = strtol(text, &end, 10);
  return end == text || number < 0 || number >= fake_gpus ? -1 : number;
}

/* In MIG mode without an instance: nothing of it is enumerated. */
static int is_empty(int gpu) { return fake_text(NULL, "gpu.%d.mig", gpu) != NULL && fake_number(0, "gpu.%d.mig", gpu) == 0; }

static void read_visible(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  cuda_visible_count = 0;
  if (!list) {
    for (int i = 0; i < fake_gpus; i++)
      if (!is_empty(i)) visible[cuda_visible_count++] = i;
    return;
  }
  while (cuda_visible_count < FAKE_MAX_GPUS) {
    size_t length = strcspn(list, ",");
    int gpu = named_gpu(list, length);
    if (gpu < 0) return;
    visible[cuda_visible_count++] = gpu;
    if (!list[length]) return;
    list += length + 1;
  }
}

API CUresult cuInit(unsigned flags) {
  ENTER();
  lock();
  if (!started) {
    read_visible();
    for (int i = 0; i < cuda_visible_count; i++) cuda_primary(i)->device = i;
    started = cuda_visible_count > 0;
  }
  unlock();
  return started ? SUCCESS : NO_DEVICE;
}

API CUresult cuDriverGetVersion(int *version) {
  ENTER();
  *version = fake_number(0, "cuda");
  return SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
  ENTER();
  if (!started) return NOT_INITIALIZED;
  *count = cuda_visible_count;
  return SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int number) {
  ENTER("%d", number);
  if (!started) return NOT_INITIALIZED;
  if (!cuda_is_device(number)) return INVALID_DEVICE;
  *device = number;
  return SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
  ENTER("%d", device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  snprintf(name, room, "%s", fake_text("", "gpu.%d.name", cuda_physical(device)));
  return SUCCESS;
}

static CUresult uuid_of(unsigned char *uuid, CUdevice device) {
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  memcpy(uuid, cuda_gpu(device)->uuid, 16);
  return SUCCESS;
}
API CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
  ENTER("%d", device);
  return uuid_of(uuid, device);
}
API CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
  ENTER("%d", device);
  return uuid_of(uuid, device);
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  ENTER("%d", device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  *bytes = fake_number(0, "gpu.%d.memory", cuda_physical(device));
  return SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *text, int room, CUdevice device) {
  ENTER("%d", device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  snprintf(text, room, "%s", cuda_gpu(device)->address);
  return SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
  ENTER("%s", text);
  int physical = fake_gpu_at(text);
  *device = physical < 0 ? -1 : cuda_device_of(physical);
  return *device < 0 ? INVALID_DEVICE : SUCCESS;
}

/* What every data centre GPU answers; the rest depends on the machine. */
static const struct {
  int attribute, value;
} usual[] = {
    {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},                /* threads of a block, its dimensions */
    {5, 0x7fffffff}, {6, 65535}, {7, 65535},                 /* dimensions of a grid */
    {8, 48 << 10}, {9, 64 << 10}, {10, 32},                  /* shared and constant memory, warp */
    {11, 0x7fffffff}, {12, 65536}, {82, 65536},              /* pitch, registers */
    {13, 1410000}, {14, 512}, {15, 1}, {19, 1},              /* clock, texture alignment, overlap, mapped host memory */
    {21, 32768}, {22, 32768}, {23, 32768}, {27, 32768},      /* textures */
    {31, 1}, {32, 0}, {36, 1593000}, {37, 5120}, {38, 40 << 20}, {39, 2048}, {40, 3}, {41, 1},
    {78, 1}, {79, 1}, {80, 1}, {83, 1}, {89, 1}, {90, 1}, {91, 1},
    {92, 1}, {93, 1}, {94, 1}, {95, 1}, {96, 1}, {99, 1},    /* stream memory operations, cooperative launch */
    {102, 1}, {103, 1},                                      /* virtual memory management, its handles as descriptors */
    {106, 32}, {109, 1}, {115, 1}, {119, 1}, {121, 1}, {122, 1},
};

static int attribute_of(CUdevice device, int attribute) {
  int physical = cuda_physical(device), capability = fake_number(80, "gpu.%d.capability", physical);
  struct fake_gpu *gpu = cuda_gpu(device);
  switch (attribute) {
  case 16: return fake_number(108, "gpu.%d.multiprocessors", physical); /* NCCL's number of channels looks at it */
  case 33: return gpu->bus;
  case 34: return gpu->device;
  case 50: return gpu->domain;
  case 75: return capability / 10;
  case 76: return capability % 10;
  case 81: return (capability >= 90 ? 228 : 164) << 10;
  case 97: return (capability >= 90 ? 227 : 163) << 10;
  case 120: return capability >= 90; /* clusters */
  case 118: return fake_number(0, "gpu.%d.attribute.116", physical) ? 100 : 0; /* order of GPUDirect writes: all devices */
  case 117: return fake_number(0, "gpu.%d.attribute.116", physical);
  case 134: return fake_number(0, "gpu.%d.numa", physical);
  }
  for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
    if (usual[i].attribute == attribute) return usual[i].value;
  return 0;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
  ENTER("%d of %d", attribute, device);
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  const char *told = fake_text(NULL, "gpu.%d.attribute.%d", cuda_physical(device), attribute);
  if (told && !strcmp(told, "unknown")) return INVALID_VALUE; /* a driver that is older than the attribute */
  *value = told ? atoi(told) : attribute_of(device, attribute);
  return SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
  ENTER();
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  *major = attribute_of(device, 75);
  *minor = attribute_of(device, 76);
  return SUCCESS;
}

/* Peers: a pair is fine unless the machine has a line "p2p.A.B STATUS", NVML's status of the pair. */
static int peers(CUdevice a, CUdevice b) {
  return a != b && !fake_number(0, "p2p.%d.%d", cuda_physical(a), cuda_physical(b));
}
API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
  ENTER("%d %d", device, peer);
  if (!cuda_is_device(device) || !cuda_is_device(peer)) return INVALID_DEVICE;
  *can = peers(device, peer);
  return SUCCESS;
}
API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
  ENTER("%d of %d %d", attribute, device, peer);
  if (!cuda_is_device(device) || !cuda_is_device(peer) || device == peer) return INVALID_DEVICE;
  int access = peers(device, peer), linked = access && fake_number(0, "gpu.%d.nvlinks", cuda_physical(device)) > 0;
  *value = attribute == 1 ? 0 : attribute == 3 ? access : linked; /* 1 rank, 2 atomics, 3 access, 4 arrays */
  if (attribute == 3) *value = access;
  return SUCCESS;
}
API CUresult cuCtxEnablePeerAccess(struct context *peer, unsigned flags) {
  ENTER_CONTEXT();
  if (!cuda_context()) return INVALID_CONTEXT;
  return peers(cuda_context()->device, peer->device) ? SUCCESS : PEER_ACCESS_UNSUPPORTED;
}
API CUresult cuCtxDisablePeerAccess(struct context *peer) {
  ENTER_CONTEXT();
  return SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(void **pool, CUdevice device) {
  ENTER();
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  *pool = (void *)(uintptr_t)(0x9000 + device);
  return SUCCESS;
}
API CUresult cuDeviceGetMemPool(void **pool, CUdevice device) {
  ENTER();
  if (!cuda_is_device(device)) return INVALID_DEVICE;
  *pool = (void *)(uintptr_t)(0x9000 + device);
  return SUCCESS;
}
API CUresult cuDeviceSetMemPool(CUdevice device, void *pool) {
  ENTER();
  return SUCCESS;
}
API CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned channels, CUdevice device) {
  ENTER();
  *width = 1 << 27;
  return SUCCESS;
}
API CUresult cuDeviceGetExecAffinitySupport(int *can, int type, CUdevice device) {
  ENTER();
  *can = 0;
  return SUCCESS;
}

/* Names and texts as cuda.h has them, of the results that the fake gives or that a fault may order. */
static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
API CUresult cuGetErrorString(CUresult code, const char **text) {
  ENTER("%d", code);
  *text = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *text = errors[i].text;
  return *text ? SUCCESS : INVALID_VALUE;
}
API CUresult cuGetErrorName(CUresult code, const char **name) {
  ENTER("%d", code);
  *name = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].code == code) *name = errors[i].name;
  return *name ? SUCCESS : INVALID_VALUE;
}
