/* Fake libnvidia-ml.so.1: 8 H100 by default; FAKE_NVML_CONF names a file of faults (fake_conf.h).
 * Build: gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c
 * A function that is not here is NVML_ERROR_FUNCTION_NOT_FOUND to pynvml, as with an old driver. */
#include "fake_conf.h"

enum { UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
typedef struct { int index, instance; } Device; /* instance -1: the GPU itself */
static Device gpus[64], instances[64][8];
static int started;

#define CHECK(gpu, fn)                                                                                                     \
    do {                                                                                                                   \
        if (!started)                                                                                                      \
            return UNINITIALIZED;                                                                                          \
        int code_ = fault((gpu), fn);                                                                                      \
        if (code_)                                                                                                         \
            return code_;                                                                                                  \
    } while (0)
#define INDEX(handle) (((Device *)(handle))->index)

static int copy(const char *from, char *to, unsigned size)
{
    if (strlen(from) + 1 > size)
        return TOO_SMALL;
    strcpy(to, from);
    return 0;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    load_settings("FAKE_NVML_CONF");
    int code = fault(-1, "init");
    if (code)
        return code;
    for (int i = 0; i < 64; i++) {
        gpus[i] = (Device){i, -1};
        for (int k = 0; k < 8; k++)
            instances[i][k] = (Device){i, k};
    }
    started++;
    return 0;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return started ? (started--, 0) : UNINITIALIZED; }

const char *nvmlErrorString(int code)
{
    static const char *names[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout",
        "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost",
        "GPU requires reset", "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch"};
    return code >= 0 && code < 19 ? names[code] : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) { CHECK(-1, "driver"); return copy(text(-1, "driver", "580.95.05"), out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { CHECK(-1, "nvml"); return copy("13.580.95.05", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { CHECK(-1, "cuda"); *out = number(-1, "cuda", 13000); return 0; }
int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
int nvmlDeviceGetCount_v2(unsigned *out) { CHECK(-1, "count"); *out = number(-1, "count", 8); return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    if (index >= (unsigned)number(-1, "count", 8))
        return INVALID;
    CHECK((int)index, "handle");
    *out = &gpus[index];
    return 0;
}

int nvmlDeviceGetIndex(void *h, unsigned *out) { CHECK(INDEX(h), "index"); *out = INDEX(h); return 0; }
int nvmlDeviceGetName(void *h, char *out, unsigned size) { CHECK(INDEX(h), "name"); return copy(text(INDEX(h), "name", "NVIDIA H100 80GB HBM3"), out, size); }

int nvmlDeviceGetUUID(void *h, char *out, unsigned size)
{
    char uuid[96];
    Device *device = h;
    CHECK(device->index, "uuid");
    uuid_text(device->index, uuid, sizeof uuid);
    if (device->instance >= 0)
        snprintf(uuid, sizeof uuid, "MIG-fa4e0000-0000-4000-8000-%06x%06x", device->instance + 1, device->index);
    return copy(uuid, out, size);
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
} Pci;

int nvmlDeviceGetPciInfo_v3(void *h, Pci *out)
{
    CHECK(INDEX(h), "pci");
    memset(out, 0, sizeof *out);
    out->bus = number(INDEX(h), "bus", BUS[INDEX(h) % 8]);
    out->domain = number(INDEX(h), "domain", 0);
    out->id = number(INDEX(h), "pci_device_id", 0x233010de);
    out->subsystem = 0x16c110de;
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:00.0", out->domain & 0xffff, out->bus & 0xff);
    snprintf(out->address, sizeof out->address, "%08X:%02X:00.0", out->domain, out->bus);
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *out) /* total, free, used */
{
    CHECK(INDEX(h), "memory");
    out[0] = number(INDEX(h), "mem_total_mib", 81559) << 20;
    out[2] = number(INDEX(h), "mem_used_mib", 4) << 20;
    out[1] = out[0] - out[2];
    return 0;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
int nvmlDeviceGetMemoryInfo_v2(void *h, Memory2 *out)
{
    CHECK(INDEX(h), "memory");
    out->total = number(INDEX(h), "mem_total_mib", 81559) << 20;
    out->reserved = number(INDEX(h), "mem_reserved_mib", 600) << 20;
    out->used = number(INDEX(h), "mem_used_mib", 4) << 20;
    out->free = out->total - out->used - out->reserved;
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *h, unsigned *out) { CHECK(INDEX(h), "utilization"); out[0] = number(INDEX(h), "utilization", 0); out[1] = 0; return 0; }

typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, Process *out)
{
    CHECK(INDEX(h), "processes");
    unsigned have = number(INDEX(h), "processes", 0), room = *count;
    *count = have;
    if (have > room)
        return TOO_SMALL;
    for (unsigned i = 0; i < have; i++)
        out[i] = (Process){number(INDEX(h), "pid", 1000) + i, 1 << 20, ~0u, ~0u};
    return 0;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *h, unsigned *count, Process *out)
{
    CHECK(INDEX(h), "graphics");
    unsigned have = number(INDEX(h), "graphics", 0), room = *count;
    *count = have;
    if (have > room)
        return TOO_SMALL;
    for (unsigned i = 0; i < have; i++)
        out[i] = (Process){number(INDEX(h), "pid", 1000) + i, 1 << 20, ~0u, ~0u};
    return 0;
}

int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending)
{
    CHECK(INDEX(h), "mig");
    *now = *pending = number(INDEX(h), "mig", 0) > 0;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *out) { CHECK(INDEX(h), "migs"); *out = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **out)
{
    CHECK(INDEX(h), "migs");
    if (index >= (unsigned)number(INDEX(h), "mig", 0) || index >= 8)
        return NOT_FOUND;
    *out = &instances[INDEX(h)][index];
    return 0;
}

int nvmlDeviceGetNvLinkState(void *h, unsigned link, int *out)
{
    char key[32];
    CHECK(INDEX(h), "nvlink");
    if (link >= (unsigned)number(INDEX(h), "nvlinks", 18))
        return INVALID;
    snprintf(key, sizeof key, "nvlink%u", link);
    *out = number(INDEX(h), key, 1);
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor)
{
    CHECK(INDEX(h), "capability");
    *major = number(INDEX(h), "major", 9);
    *minor = number(INDEX(h), "minor", 0);
    return 0;
}

int nvmlDeviceGetNumaNodeId(void *h, int *out) { CHECK(INDEX(h), "numa"); *out = number(INDEX(h), "numa", INDEX(h) / 4); return 0; }
int nvmlDeviceGetPersistenceMode(void *h, unsigned *out) { CHECK(INDEX(h), "persistence"); *out = number(INDEX(h), "persistence", 1); return 0; }

/* The state of a GPU */
int nvmlDeviceGetEccMode(void *h, int *now, int *pending) { CHECK(INDEX(h), "ecc"); *now = *pending = number(INDEX(h), "ecc", 1); return 0; }
int nvmlDeviceGetMemoryErrorCounter(void *h, int error, int counter, int location, unsigned long long *out)
{
    CHECK(INDEX(h), "ecc");
    if (location != 2 && location != 7) /* device memory, SRAM */
        return NOT_SUPPORTED;
    *out = error && !counter ? number(INDEX(h), location == 2 ? "ecc_dram" : "ecc_sram", 0) : 0;
    return 0;
}
int nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    CHECK(INDEX(h), "remapped");
    *corrected = 0;
    *uncorrected = *pending = number(INDEX(h), "remap_pending", 0);
    *failed = number(INDEX(h), "remap_failed", 0);
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *out) { CHECK(INDEX(h), "reasons"); *out = number(INDEX(h), "reasons", 1); return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *out) { CHECK(INDEX(h), "power"); *out = number(INDEX(h), "power_limit", 700000); return 0; }
int nvmlDeviceGetPowerManagementDefaultLimit(void *h, unsigned *out) { CHECK(INDEX(h), "power"); *out = number(INDEX(h), "power_default", 700000); return 0; }
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *out) { (void)sensor; CHECK(INDEX(h), "temperature"); *out = number(INDEX(h), "temperature", 35); return 0; }
int nvmlDeviceGetTemperatureThreshold(void *h, int which, unsigned *out) { (void)which; CHECK(INDEX(h), "temperature"); *out = 89; return 0; }
int nvmlDeviceGetComputeMode(void *h, int *out) { CHECK(INDEX(h), "compute_mode"); *out = number(INDEX(h), "compute_mode", 0); return 0; }
int nvmlDeviceGetPcieReplayCounter(void *h, unsigned *out) { CHECK(INDEX(h), "replays"); *out = number(INDEX(h), "replays", 0); return 0; }
int nvmlDeviceValidateInforom(void *h) { CHECK(INDEX(h), "inforom"); return number(INDEX(h), "inforom_corrupted", 0) ? 14 : 0; }
int nvmlDeviceGetBAR1MemoryInfo(void *h, unsigned long long *out) /* total, free, used */
{
    CHECK(INDEX(h), "bar1");
    out[0] = 131072ull << 20;
    out[2] = number(INDEX(h), "bar1_used_mib", 1) << 20;
    out[1] = out[0] - out[2];
    return 0;
}

/* The NVLink fabric, and access between peers */
typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; } Fabric;
int nvmlDeviceGetGpuFabricInfoV(void *h, Fabric *out)
{
    CHECK(INDEX(h), "fabric");
    memset(out->cluster, number(INDEX(h), "fabric_cluster", 0), sizeof out->cluster);
    out->state = number(INDEX(h), "fabric_state", 3);
    out->status = number(INDEX(h), "fabric_status", 0);
    out->clique = number(INDEX(h), "fabric_clique", 0);
    out->health = number(INDEX(h), "fabric_health", 0);
    return 0;
}
/* Confidential computing: "cc=1" is on, "cc_ready=1" takes work; without "cc" the driver does not know it. */
int nvmlSystemGetConfComputeState(unsigned *state) { if (number(-1, "cc", -1) < 0) return 3; state[0] = 2; state[1] = number(-1, "cc", 0); state[2] = 0; return 0; }
int nvmlSystemGetConfComputeGpusReadyState(unsigned *out) { if (number(-1, "cc", -1) < 0) return 3; *out = number(-1, "cc_ready", 0); return 0; }
int nvmlDeviceGetP2PStatus(void *h, void *other, int what, int *out) { (void)other; (void)what; CHECK(INDEX(h), "p2p"); *out = number(INDEX(h), "p2p", 0); return 0; }
