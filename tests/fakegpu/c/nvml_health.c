/* NVML's view of a GPU's state: memory, processes, ECC, clocks, fabric, events.  NCCL asks little of it, those who judge GPUs do. */
#include "nvml.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
static u64 of(struct device *d, u64 usual, const char *key) { return fake_number(usual, "gpu.%d.%s", d->gpu, key); }

/* An entry point that tells one value of a GPU. */
#define VALUE(name, type, usual, key) \
  API int name(struct device *d, type *out) { \
    ENTER_GPU(d); \
    *out = of(d, usual, key); \
    return SUCCESS; \
  }

/* Memory and who uses the GPU: "gpu.N.used" bytes, by "gpu.N.processes" processes */
static u64 total(struct device *d) { return of(d, 0, "memory"); }
static u64 used(struct device *d) { return of(d, 4 << 20, "used"); }
API int nvmlDeviceGetMemoryInfo(struct device *d, u64 out[3]) {
  ENTER_GPU(d);
  out[0] = total(d);
  out[2] = used(d);
  out[1] = out[0] - out[2];
  return SUCCESS;
}
struct memory_v2 {
  unsigned version;
  u64 total, reserved, available, used;
};
API int nvmlDeviceGetMemoryInfo_v2(struct device *d, struct memory_v2 *out) {
  ENTER_GPU(d);
  out->total = total(d);
  out->reserved = 0;
  out->used = used(d);
  out->available = out->total - out->used;
  return SUCCESS;
}
/* "gpu.N.busy" is what a process sees that asks again and again, as who samples a GPU under load */
API int nvmlDeviceGetUtilizationRates(struct device *d, unsigned out[2]) {
  static int asked[FAKE_MAX_GPUS];
  ENTER_GPU(d);
  out[0] = asked[d->gpu]++ ? of(d, of(d, 0, "utilization"), "busy") : of(d, 0, "utilization");
  out[1] = 0;
  return SUCCESS;
}
struct process {
  unsigned pid;
  u64 memory;
  unsigned gpu_instance, compute_instance;
};
static int processes(struct device *d, const char *which, unsigned *count, struct process *out) {
  unsigned room = *count, there = of(d, 0, which);
  *count = there;
  if (there > room) return INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < there; i++) out[i] = (struct process){4242 + i, used(d) / there, ~0u, ~0u};
  return SUCCESS;
}
API int nvmlDeviceGetComputeRunningProcesses_v2(struct device *d, unsigned *count, struct process *out) {
  ENTER_GPU(d);
  return processes(d, "processes", count, out);
}
SAME(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetComputeRunningProcesses_v2);
API int nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *d, unsigned *count, struct process *out) {
  ENTER_GPU(d);
  return processes(d, "graphics", count, out);
}
SAME(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2);

/* ECC; "gpu.N.consumer": a card that has neither ECC nor what comes with it */
#define ENTER_ECC(d) \
  ENTER_GPU(d); \
  if (of(d, 0, "consumer")) return NOT_SUPPORTED
API int nvmlDeviceGetEccMode(struct device *d, unsigned *current, unsigned *pending) {
  ENTER_ECC(d);
  *current = of(d, 1, "ecc.mode");
  *pending = of(d, *current, "ecc.pending_mode");
  return SUCCESS;
}
/* error: 0 corrected, 1 uncorrected; counter: 0 volatile (since the driver was loaded), 1 aggregate */
static u64 ecc(struct device *d, int error, int counter) {
  char key[64];
  snprintf(key, sizeof key, "ecc.%s%s", error ? "uncorrected" : "corrected", counter ? "_aggregate" : "");
  return of(d, 0, key);
}
API int nvmlDeviceGetTotalEccErrors(struct device *d, int error, int counter, u64 *out) {
  ENTER_GPU(d);
  if (!of(d, 1, "ecc.mode")) return NOT_SUPPORTED;
  *out = ecc(d, error, counter);
  return SUCCESS;
}
API int nvmlDeviceGetMemoryErrorCounter(struct device *d, int error, int counter, int location, u64 *out) {
  ENTER_ECC(d);
  if (!of(d, 1, "ecc.mode")) return NOT_SUPPORTED;
  if (location != 2 && location != 7) return NOT_SUPPORTED; /* as from Ampere on: device memory, and the SRAM of all caches */
  *out = location == 2 ? ecc(d, error, counter) : error && !counter ? of(d, 0, "ecc.sram") : 0;
  return SUCCESS;
}
struct sram { /* nvmlEccSramErrorStatus_v1_t */
  unsigned version;
  u64 counters[11];
  unsigned exceeded;
};
API int nvmlDeviceGetSramEccErrorStatus(struct device *d, struct sram *out) {
  ENTER_ECC(d);
  memset(out->counters, 0, sizeof out->counters);
  out->exceeded = of(d, 0, "ecc.sram_threshold");
  return SUCCESS;
}
API int nvmlDeviceGetRemappedRows(struct device *d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  ENTER_ECC(d);
  *corrected = of(d, 0, "remapped.corrected");
  *uncorrected = of(d, 0, "remapped.uncorrected");
  *pending = of(d, 0, "remapped.pending");
  *failed = of(d, 0, "remapped.failed");
  return SUCCESS;
}
API int nvmlDeviceGetRetiredPages(struct device *d, int cause, unsigned *count, u64 *addresses) {
  ENTER_GPU(d);
  return NOT_SUPPORTED; /* from Ampere on rows are remapped instead */
}
API int nvmlDeviceGetRetiredPagesPendingStatus(struct device *d, int *out) {
  ENTER_GPU(d);
  return NOT_SUPPORTED;
}
API int nvmlDeviceValidateInforom(struct device *d) {
  ENTER_GPU(d);
  return of(d, 0, "inforom.corrupted") ? CORRUPTED_INFOROM : SUCCESS;
}
API int nvmlDeviceGetPcieReplayCounter(struct device *d, unsigned *out) { /* "replays.rising": more at each call */
  static unsigned rose[FAKE_MAX_GPUS];
  ENTER_GPU(d);
  *out = of(d, 0, "replays.before") + rose[d->gpu];
  rose[d->gpu] += of(d, 0, "replays.rising");
  return SUCCESS;
}
API int nvmlDeviceGetBAR1MemoryInfo(struct device *d, u64 out[3]) { /* total, free, used */
  ENTER_GPU(d);
  out[0] = of(d, 131072ll << 20, "bar1");
  out[2] = of(d, 1 << 20, "bar1.used");
  out[1] = out[0] - out[2];
  return SUCCESS;
}

/* Clocks, power, temperature; type: 0 graphics, 1 SM, 2 memory, 3 video */
static unsigned clock_of(struct device *d, int type, const char *kind) {
  char key[64];
  snprintf(key, sizeof key, "clock.%s%s", type == 2 ? "memory" : "sm", kind);
  return of(d, type == 2 ? 2619 : 1980, key);
}
API int nvmlDeviceGetClockInfo(struct device *d, int type, unsigned *out) {
  ENTER_GPU(d);
  *out = clock_of(d, type, "");
  return SUCCESS;
}
API int nvmlDeviceGetMaxClockInfo(struct device *d, int type, unsigned *out) {
  ENTER_GPU(d);
  *out = clock_of(d, type, "_max");
  return SUCCESS;
}
API int nvmlDeviceGetApplicationsClock(struct device *d, int type, unsigned *out) {
  ENTER_GPU(d);
  *out = clock_of(d, type, "_application");
  return SUCCESS;
}
VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, u64, 1, "throttle") /* 1: idle */
SAME(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons);
API int nvmlDeviceGetTemperature(struct device *d, int sensor, unsigned *out) {
  ENTER_GPU(d);
  *out = of(d, 35, "temperature");
  return SUCCESS;
}
API int nvmlDeviceGetTemperatureThreshold(struct device *d, int which, unsigned *out) { /* 0 shutdown, 1 slowdown */
  ENTER_GPU(d);
  if (which > 1) return NOT_SUPPORTED;
  *out = which ? of(d, 89, "temperature.slowdown") : of(d, 94, "temperature.shutdown");
  return SUCCESS;
}
VALUE(nvmlDeviceGetPowerUsage, unsigned, 75000, "power.draw")
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, 700000, "power.limit")
VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 700000, "power.default")
VALUE(nvmlDeviceGetPerformanceState, int, 0, "performance")
VALUE(nvmlDeviceGetPersistenceMode, int, 1, "persistence")
VALUE(nvmlDeviceGetComputeMode, int, 0, "compute_mode")
API int nvmlDeviceGetSerial(struct device *d, char *out, unsigned room) {
  ENTER_GPU(d);
  char text[32];
  snprintf(text, sizeof text, "16521%05d", d->gpu);
  return nvml_text(text, out, room);
}
API int nvmlDeviceGetVbiosVersion(struct device *d, char *out, unsigned room) {
  ENTER_GPU(d);
  return nvml_text(fake_text("96.00.89.00.01", "gpu.%d.vbios", d->gpu), out, room);
}

/* The NVLink fabric: no "gpu.N.fabric.state" is a GPU that is in none; 1 not started, 2 in progress, 3 completed */
struct fabric_v1 {
  unsigned char cluster[16];
  unsigned status, clique;
  unsigned char state;
};
struct fabric_v2 {
  unsigned version;
  unsigned char cluster[16];
  unsigned status, clique;
  unsigned char state;
  unsigned health;
};
static int fabric(struct device *d, struct fabric_v2 *out) {
  if (!fake_text(NULL, "gpu.%d.fabric.state", d->gpu)) return NOT_SUPPORTED;
  const char *cluster = fake_text("", "gpu.%d.fabric.cluster", d->gpu);
  memset(out->cluster, 0, sizeof out->cluster);
  for (int i = 0; i < 16 && strlen(cluster) >= 32; i++) sscanf(cluster + 2 * i, "%2hhx", &out->cluster[i]);
  out->state = of(d, 0, "fabric.state");
  out->status = of(d, 0, "fabric.status");
  out->clique = of(d, 0, "fabric.clique");
  out->health = of(d, 0, "fabric.health");
  return SUCCESS;
}
API int nvmlDeviceGetGpuFabricInfo(struct device *d, struct fabric_v1 *out) {
  ENTER_GPU(d);
  struct fabric_v2 whole;
  int result = fabric(d, &whole);
  if (result) return result;
  memcpy(out->cluster, whole.cluster, sizeof out->cluster);
  out->status = whole.status;
  out->clique = whole.clique;
  out->state = whole.state;
  return SUCCESS;
}
API int nvmlDeviceGetGpuFabricInfoV(struct device *d, struct fabric_v2 *out) {
  ENTER_GPU(d);
  return fabric(d, out);
}
API int nvmlSystemGetConfComputeState(unsigned out[3]) {
  ENTER_NVML();
  memset(out, 0, 12);
  return SUCCESS;
}
API int nvmlSystemGetConfComputeSettings(unsigned out[5]) {
  ENTER_NVML();
  memset(out + 1, 0, 16);
  return SUCCESS;
}

/* Events: a GPU with "gpu.N.xid" has that Xid to tell, once. */
struct event { /* nvmlEventData_t */
  struct device *device;
  u64 type, data;
  unsigned gpu_instance, compute_instance;
};
static int xid_told[FAKE_MAX_GPUS];
API int nvmlEventSetCreate(void **out) {
  ENTER_NVML();
  *out = xid_told;
  return SUCCESS;
}
API int nvmlEventSetFree(void *set) {
  ENTER_NVML();
  return SUCCESS;
}
API int nvmlDeviceGetSupportedEventTypes(struct device *d, u64 *out) {
  ENTER_GPU(d);
  *out = 8; /* nvmlEventTypeXidCriticalError */
  return SUCCESS;
}
API int nvmlDeviceRegisterEvents(struct device *d, u64 types, void *set) {
  ENTER_GPU(d);
  return SUCCESS;
}
static int next_event(struct event *out, unsigned milliseconds) {
  for (int i = 0; i < fake_gpus; i++) {
    long long xid = fake_number(0, "gpu.%d.xid", i);
    if (!xid || xid_told[i]) continue;
    xid_told[i] = 1;
    *out = (struct event){nvml_device(i), 8, xid, ~0u, ~0u};
    return SUCCESS;
  }
  usleep(milliseconds * 1000);
  return 10; /* NVML_ERROR_TIMEOUT */
}
API int nvmlEventSetWait(void *set, struct event *out, unsigned milliseconds) {
  ENTER_NVML();
  return next_event(out, milliseconds);
}
SAME(nvmlEventSetWait_v2, nvmlEventSetWait);
