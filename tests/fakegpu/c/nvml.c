/* The fake libnvidia-ml.so.1: initialisation, which GPUs there are, their PCI, peers and NVLinks.  nvml_health.c has the rest. */
#include "nvml.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INSTANCES 8
static struct device devices[FAKE_MAX_GPUS], instances[FAKE_MAX_GPUS][INSTANCES];
static int started;

int nvml_ready(void) { return started; }
struct device *nvml_device(int gpu) { return &devices[gpu]; }
int nvml_text(const char *from, char *to, unsigned room) {
  if (strlen(from) + 1 > room) return INSUFFICIENT_SIZE;
  strcpy(to, from);
  return SUCCESS;
}

static int start(void) {
  if (!fake_gpus && !fake_number(0, "driver.loaded")) return DRIVER_NOT_LOADED;
  for (int i = 0; i < FAKE_MAX_GPUS; i++) {
    devices[i] = (struct device){i, -1};
    for (int k = 0; k < INSTANCES; k++) instances[i][k] = (struct device){i, k};
  }
  started++;
  return SUCCESS;
}
API int nvmlInit(void) {
  ENTER();
  return start();
}
SAME(nvmlInit_v2, nvmlInit);
API int nvmlInitWithFlags(unsigned flags) {
  ENTER();
  return start();
}
API int nvmlShutdown(void) {
  ENTER();
  if (!started) return UNINITIALIZED;
  started--;
  return SUCCESS;
}

API const char *nvmlErrorString(int code) {
  static const char *texts[] = {
      "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
      "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
      "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
      "GPU requires reset", "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch"};
  return code >= 0 && code < (int)(sizeof texts / sizeof *texts) ? texts[code] : "Unknown Error";
}

API int nvmlSystemGetDriverVersion(char *out, unsigned room) {
  ENTER_NVML();
  return nvml_text(fake_text("", "driver"), out, room);
}
API int nvmlSystemGetNVMLVersion(char *out, unsigned room) {
  ENTER_NVML();
  char text[64];
  snprintf(text, sizeof text, "%lld.%s", fake_number(12000, "cuda") / 1000, fake_text("", "driver"));
  return nvml_text(text, out, room);
}
API int nvmlSystemGetCudaDriverVersion(int *out) {
  ENTER_NVML();
  *out = fake_number(0, "cuda");
  return SUCCESS;
}
SAME(nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion);

/* Which GPUs there are */
API int nvmlDeviceGetCount(unsigned *out) {
  ENTER_NVML();
  *out = fake_gpus;
  return SUCCESS;
}
SAME(nvmlDeviceGetCount_v2, nvmlDeviceGetCount);
static int by_index(unsigned index, struct device **out) {
  if (index >= (unsigned)fake_gpus) return INVALID_ARGUMENT;
  *out = &devices[index];
  return fake_number(0, "gpu.%u.lost", index) ? GPU_IS_LOST : SUCCESS;
}
API int nvmlDeviceGetHandleByIndex(unsigned index, struct device **out) {
  ENTER_NVML("%u", index);
  return by_index(index, out);
}
SAME(nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByIndex);
static int by_address(const char *address, struct device **out) {
  int gpu = fake_gpu_at(address);
  return gpu < 0 ? NOT_FOUND : by_index(gpu, out);
}
API int nvmlDeviceGetHandleByPciBusId(const char *address, struct device **out) {
  ENTER_NVML("%s", address);
  return by_address(address, out);
}
SAME(nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetHandleByPciBusId);

static void uuid_text(const struct device *d, char out[48]) {
  const unsigned char *u = fake_gpu[d->gpu].uuid;
  int at = snprintf(out, 48, d->instance < 0 ? "GPU-" : "MIG-");
  for (int i = 0; i < 16; i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out[at++] = '-';
    at += snprintf(out + at, 48 - at, "%02x", i == 15 ? u[i] ^ (d->instance + 1) : u[i]);
  }
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **out) {
  ENTER_NVML("%s", uuid);
  char text[48];
  for (int i = 0; i < fake_gpus; i++) {
    uuid_text(&devices[i], text);
    if (!strcmp(text, uuid)) return by_index(i, out);
  }
  return NOT_FOUND;
}
API int nvmlDeviceGetUUID(struct device *d, char *out, unsigned room) {
  ENTER_GPU(d);
  char text[48];
  uuid_text(d, text);
  return nvml_text(text, out, room);
}
API int nvmlDeviceGetIndex(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  *out = d->gpu;
  return SUCCESS;
}
API int nvmlDeviceGetMinorNumber(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  *out = d->gpu;
  return SUCCESS;
}
API int nvmlDeviceGetName(struct device *d, char *out, unsigned room) {
  ENTER_GPU(d);
  return nvml_text(fake_text("", "gpu.%d.name", d->gpu), out, room);
}
API int nvmlDeviceGetCudaComputeCapability(struct device *d, int *major, int *minor) {
  ENTER_GPU(d);
  int capability = fake_number(80, "gpu.%d.capability", d->gpu);
  *major = capability / 10;
  *minor = capability % 10;
  return SUCCESS;
}

/* MIG: "gpu.N.mig" is the number of instances, 0: MIG is on and has none; no such key: MIG is off. */
API int nvmlDeviceGetMigMode(struct device *d, unsigned *current, unsigned *pending) {
  ENTER_GPU(d);
  if (fake_number(80, "gpu.%d.capability", d->gpu) < 80) return NOT_SUPPORTED;
  *current = *pending = fake_text(NULL, "gpu.%d.mig", d->gpu) != NULL;
  *pending = fake_number(*pending, "gpu.%d.mig.pending", d->gpu);
  return SUCCESS;
}
API int nvmlDeviceGetMaxMigDeviceCount(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  *out = INSTANCES;
  return SUCCESS;
}
API int nvmlDeviceGetMigDeviceHandleByIndex(struct device *d, unsigned index, struct device **out) {
  ENTER_GPU(d);
  if (index >= INSTANCES || index >= fake_number(0, "gpu.%d.mig", d->gpu)) return NOT_FOUND;
  *out = &instances[d->gpu][index];
  return SUCCESS;
}
API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *d, struct device **out) {
  ENTER_GPU(d);
  *out = &devices[d->gpu];
  return SUCCESS;
}
API int nvmlDeviceIsMigDeviceHandle(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  *out = d->instance >= 0;
  return SUCCESS;
}

/* PCI */
struct pci { /* nvmlPciInfo_t; version 1 ends after `subsystem` */
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char address[32];
};
static void fill_pci(struct pci *out, unsigned domain, unsigned bus, unsigned device, unsigned id) {
  memset(out, 0, sizeof *out);
  out->domain = domain;
  out->bus = bus;
  out->device = device;
  out->id = id << 16 | 0x10de;
  snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0xff);
  snprintf(out->address, sizeof out->address, "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0xff);
}
static int pci_of(struct device *d, struct pci *out) {
  const struct fake_gpu *gpu = &fake_gpu[d->gpu];
  fill_pci(out, gpu->domain, gpu->bus, gpu->device, fake_number(0, "gpu.%d.device", d->gpu));
  return SUCCESS;
}
API int nvmlDeviceGetPciInfo_v2(struct device *d, struct pci *out) {
  ENTER_GPU(d);
  return pci_of(d, out);
}
SAME(nvmlDeviceGetPciInfo_v3, nvmlDeviceGetPciInfo_v2);
static int link_number(struct device *d, const char *what, int usual, unsigned *out) {
  *out = fake_number(usual, "gpu.%d.pcie.%s", d->gpu, what);
  return SUCCESS;
}
API int nvmlDeviceGetCurrPcieLinkGeneration(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  return link_number(d, "generation", 4, out);
}
API int nvmlDeviceGetMaxPcieLinkGeneration(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  return link_number(d, "max_generation", 4, out);
}
API int nvmlDeviceGetCurrPcieLinkWidth(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  return link_number(d, "width", 16, out);
}
API int nvmlDeviceGetMaxPcieLinkWidth(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  return link_number(d, "max_width", 16, out);
}
API int nvmlDeviceGetPcieLinkMaxSpeed(struct device *d, unsigned *out) {
  static const unsigned speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000}; /* MB/s of a lane by generation */
  ENTER_GPU(d);
  unsigned generation;
  link_number(d, "max_generation", 4, &generation);
  *out = generation < sizeof speeds / sizeof *speeds ? speeds[generation] : 0;
  return SUCCESS;
}
API int nvmlDeviceGetPciInfoExt(struct device *d, void *out) {
  ENTER_GPU(d);
  return NOT_SUPPORTED;
}
API int nvmlDeviceGetPlatformInfo(struct device *d, void *out) {
  ENTER_GPU(d);
  return NOT_SUPPORTED;
}
API int nvmlDeviceGetNumaNodeId(struct device *d, unsigned *out) {
  ENTER_GPU(d);
  return NOT_SUPPORTED;
}

/* Peers: "p2p.A.B" is the nvmlGpuP2PStatus_t of the pair where it is not 0 (fine). */
API int nvmlDeviceGetP2PStatus(struct device *a, struct device *b, int capability, int *out) {
  ENTER_GPU(a);
  *out = fake_number(0, "p2p.%d.%d", a->gpu, b->gpu);
  if (!*out && capability == 2 && !fake_number(0, "gpu.%d.nvlinks", a->gpu)) *out = 5; /* NVLink: not supported */
  return SUCCESS;
}

/* NVLinks: "gpu.N.nvlinks" of them, each with "gpu.N.nvlink.L.remote" ADDRESS and, if it is, "gpu.N.nvlink.L.down". */
static int has_link(struct device *d, unsigned link) { return link < fake_number(0, "gpu.%d.nvlinks", d->gpu); }
static int is_up(struct device *d, unsigned link) { return has_link(d, link) && !fake_number(0, "gpu.%d.nvlink.%u.down", d->gpu, link); }
API int nvmlDeviceGetNvLinkState(struct device *d, unsigned link, int *out) {
  ENTER_GPU(d, "%u", link);
  if (!has_link(d, link)) return fake_number(0, "gpu.%d.nvlinks", d->gpu) ? INVALID_ARGUMENT : NOT_SUPPORTED;
  *out = is_up(d, link);
  return SUCCESS;
}
API int nvmlDeviceGetNvLinkCapability(struct device *d, unsigned link, int capability, unsigned *out) {
  ENTER_GPU(d, "%u", link);
  if (!has_link(d, link)) return fake_number(0, "gpu.%d.nvlinks", d->gpu) ? INVALID_ARGUMENT : NOT_SUPPORTED;
  *out = 1;
  return SUCCESS;
}
API int nvmlDeviceGetNvLinkVersion(struct device *d, unsigned link, unsigned *out) {
  ENTER_GPU(d);
  *out = fake_number(80, "gpu.%d.capability", d->gpu) >= 90 ? 4 : 3;
  return has_link(d, link) ? SUCCESS : INVALID_ARGUMENT;
}
static int remote_of(struct device *d, unsigned link, struct pci *out) {
  unsigned domain, bus, device;
  const char *address = fake_text("", "gpu.%d.nvlink.%u.remote", d->gpu, link);
  if (!has_link(d, link)) return INVALID_ARGUMENT;
  if (sscanf(address, "%x:%x:%x", &domain, &bus, &device) != 3) return NOT_SUPPORTED;
  int gpu = fake_gpu_at(address);
  fill_pci(out, domain, bus, device, gpu < 0 ? 0x22a3 : fake_number(0, "gpu.%d.device", gpu));
  return SUCCESS;
}
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *d, unsigned link, struct pci *out) {
  ENTER_GPU(d, "%u", link);
  return remote_of(d, link, out);
}
API int nvmlDeviceGetNvLinkRemotePciInfo(struct device *d, unsigned link, struct pci *out) {
  ENTER_GPU(d, "%u", link);
  struct pci whole;
  int result = remote_of(d, link, &whole);
  if (!result) memcpy(out, &whole, offsetof(struct pci, address));
  return result;
}
API int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *d, unsigned link, int *out) {
  ENTER_GPU(d, "%u", link);
  if (!has_link(d, link)) return INVALID_ARGUMENT;
  *out = fake_gpu_at(fake_text("", "gpu.%d.nvlink.%u.remote", d->gpu, link)) < 0 ? 2 : 0; /* switch, GPU */
  return SUCCESS;
}
API int nvmlDeviceGetNvLinkErrorCounter(struct device *d, unsigned link, int counter, unsigned long long *out) {
  ENTER_GPU(d, "%u", link);
  if (!has_link(d, link)) return INVALID_ARGUMENT;
  static unsigned rose[FAKE_MAX_GPUS][32]; /* "nvlink.L.rising": more replays at each call */
  *out = fake_number(0, "gpu.%d.nvlink.%u.errors.%d", d->gpu, link, counter);
  if (!counter && link < 32) *out += rose[d->gpu][link] += fake_number(0, "gpu.%d.nvlink.%u.rising", d->gpu, link);
  return SUCCESS;
}

/* Fields; those that are about one link have its number in `scope`. */
struct field { /* nvmlFieldValue_t */
  unsigned id, scope;
  long long time, latency;
  int type, result;
  union {
    double number;
    unsigned small;
    unsigned long long large;
  } value;
};
API int nvmlDeviceGetFieldValues(struct device *d, int count, struct field *all) {
  ENTER_GPU(d, "%d", count);
  int hopper = fake_number(80, "gpu.%d.capability", d->gpu) >= 90;
  for (int i = 0; i < count; i++) {
    struct field *f = &all[i];
    const char *told = fake_text(NULL, "gpu.%d.field.%u", d->gpu, f->id);
    f->result = SUCCESS;
    f->type = 1; /* unsigned int */
    f->value.large = 0;
    if (f->id == 230 && !fake_number(0, "gpu.%d.consumer", d->gpu)) f->value.small = fake_number(0, "gpu.%d.recovery", d->gpu);
    else if (told) f->value.large = strtoull(told, NULL, 0);
    else if (f->id == 90 || f->id == 164) f->value.small = hopper ? 26562 : 25781; /* MB/s of a link */
    else if (f->id == 91) f->value.small = fake_number(0, "gpu.%d.nvlinks", d->gpu);
    else if (f->id == 165) f->value.small = is_up(d, f->scope);
    else if (f->id == 166) f->value.small = hopper ? 6 : 5; /* version of a link, as NVML counts them */
    else f->result = NOT_SUPPORTED;
  }
  return SUCCESS;
}
