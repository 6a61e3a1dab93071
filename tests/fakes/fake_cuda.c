/* Fake libcuda.so.1: the GPUs of fake_nvml.c in the same order; FAKE_CUDA_CONF names a file of faults (fake_conf.h).
 *   count=8   visible=3,1 (GPU numbers in the job's order)   gpuN.attr124=0   gpuN.uuid=MIG-…   error.init=803
 * CUDA_VISIBLE_DEVICES with plain numbers is followed, "" hides all: cuInit then gives CUDA_ERROR_NO_DEVICE (100).
 * Build: gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o libcuda.so.1 fake_cuda.c */
#include "fake_conf.h"

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };
static int visible[64], nvisible, started;

static void choose(void)
{
    const char *list = text(-1, "visible", getenv("CUDA_VISIBLE_DEVICES"));
    int count = number(-1, "count", 8);
    nvisible = 0;
    for (int i = 0; !list && i < count && i < 64; i++)
        visible[nvisible++] = i;
    while (list && *list && nvisible < 64) {
        char *end;
        long gpu = strtol(list, &end, 10);
        if (end == list || gpu < 0 || gpu >= count) /* as CUDA does: what follows the first wrong one is not seen */
            break;
        visible[nvisible++] = gpu;
        list = *end == ',' ? end + 1 : end;
    }
}

int cuInit(unsigned flags)
{
    (void)flags;
    load_settings("FAKE_CUDA_CONF");
    int code = fault(-1, "init");
    if (code)
        return code;
    choose();
    if (!nvisible)
        return NO_DEVICE;
    started = 1;
    return 0;
}

int cuDriverGetVersion(int *out)
{
    load_settings("FAKE_CUDA_CONF");
    *out = number(-1, "cuda", 13000);
    return fault(-1, "version");
}

int cuGetErrorName(int code, const char **out)
{
    switch (code) {
    case 1: *out = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case 3: *out = "CUDA_ERROR_NOT_INITIALIZED"; return 0;
    case 100: *out = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 101: *out = "CUDA_ERROR_INVALID_DEVICE"; return 0;
    case 802: *out = "CUDA_ERROR_SYSTEM_NOT_READY"; return 0;
    case 803: *out = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; return 0;
    case 999: *out = "CUDA_ERROR_UNKNOWN"; return 0;
    }
    *out = NULL;
    return INVALID_VALUE;
}

#define GPU(device)                                                                                                        \
    if (!started)                                                                                                          \
        return NOT_INITIALIZED;                                                                                            \
    if ((device) < 0 || (device) >= nvisible)                                                                              \
        return INVALID_DEVICE;                                                                                             \
    int gpu = visible[device];

int cuDeviceGetCount(int *out)
{
    if (!started)
        return NOT_INITIALIZED;
    *out = nvisible;
    return fault(-1, "count");
}

int cuDeviceGet(int *out, int ordinal)
{
    GPU(ordinal)
    *out = ordinal;
    return fault(gpu, "get");
}

int cuDeviceGetName(char *out, int size, int device)
{
    GPU(device)
    snprintf(out, size, "%s", text(gpu, "name", "NVIDIA H100 80GB HBM3"));
    return fault(gpu, "name");
}

int cuDeviceGetUuid_v2(unsigned char *out, int device)
{
    char uuid[96];
    int have = 0;
    GPU(device)
    uuid_text(gpu, uuid, sizeof uuid);
    for (const char *at = strchr(uuid, '-'); at && *at && have < 16;) {
        unsigned byte;
        if (*at == '-')
            at++;
        if (sscanf(at, "%2x", &byte) != 1)
            break;
        out[have++] = byte;
        at += 2;
    }
    return fault(gpu, "uuid");
}

int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    char key[32];
    long fallback;
    GPU(device)
    snprintf(key, sizeof key, "attr%d", attribute);
    switch (attribute) {
    case 18: fallback = 0; break;                          /* INTEGRATED */
    case 33: fallback = number(gpu, "bus", BUS[gpu % 8]); break; /* PCI_BUS_ID */
    case 34: fallback = 0; break;                          /* PCI_DEVICE_ID */
    case 50: fallback = number(gpu, "domain", 0); break;   /* PCI_DOMAIN_ID */
    case 75: fallback = number(gpu, "major", 9); break;    /* COMPUTE_CAPABILITY_MAJOR */
    case 76: fallback = number(gpu, "minor", 0); break;
    case 110: case 116: case 124: case 132: fallback = 1; break; /* GPUDirect RDMA, DMA-BUF, multicast */
    case 128: fallback = 0; break;                         /* fabric handles */
    case 134: fallback = gpu / 4; break;                   /* HOST_NUMA_ID */
    default: return INVALID_VALUE;
    }
    *out = number(gpu, key, fallback);
    return *out == -1 ? INVALID_VALUE : fault(gpu, "attribute"); /* attrN=-1: a driver that does not know it */
}
