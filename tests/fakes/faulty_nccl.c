/* The real libnccl (FAULTY_NCCL names it) with a fault in the ranks whose environment has TORCH_FAULT="PHASE:ACTION", as
 * faulty_torch has it for torch.  Phases: rendezvous (the first rank alone calls NCCL there), init, first, timed.
 * Build: gcc -shared -fPIC -Wl,-soname,libnccl-faulty.so.2 -o libnccl-faulty.so.2 faulty_nccl.c */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST = 1, TIMED = 10, INTERNAL_ERROR = 3 };
typedef struct { char internal[128]; } ncclUniqueId;

static void *real(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen(getenv("FAULTY_NCCL") ? getenv("FAULTY_NCCL") : "", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) {
        fprintf(stderr, "faulty_nccl: %s: %s\n", name, dlerror());
        _exit(99);
    }
    return found;
}

static void write_all(int to, const char *data, size_t size)
{
    while (size) {
        ssize_t done = write(to, data, size);
        if (done <= 0)
            return;
        data += done;
        size -= (size_t)done;
    }
}

/* The action planted for this phase, "" without; those that end or stop the process do so here. */
static const char *fault(const char *phase)
{
    const char *planted = getenv("TORCH_FAULT"), *colon = planted ? strchr(planted, ':') : NULL;
    if (!colon || (size_t)(colon - planted) != strlen(phase) || strncmp(planted, phase, strlen(phase)))
        return "";
    const char *action = colon + 1;
    if (!strcmp(action, "kill"))
        kill(getpid(), SIGKILL);
    else if (!strcmp(action, "stop"))
        kill(getpid(), SIGSTOP);
    else if (!strcmp(action, "segv"))
        kill(getpid(), SIGSEGV);
    else if (*action >= '0' && *action <= '9')
        _exit(atoi(action));
    else if (!strcmp(action, "rubbish") || !strcmp(action, "flood")) {
        static char data[1 << 18];
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = (char)(*action == 'f' ? 'x' : rand());
        for (int n = *action == 'f' ? 256 : 1; n; n--)
            write_all(1, data, sizeof data);
    }
    return action;
}

int ncclGetVersion(int *out)
{
    return ((int (*)(int *))real(__func__))(out);
}

const char *ncclGetErrorString(int code)
{
    return ((const char *(*)(int))real(__func__))(code);
}

const char *ncclGetLastError(void *comm)
{
    return ((const char *(*)(void *))real(__func__))(comm);
}

int ncclGetUniqueId(ncclUniqueId *out)
{
    if (!strcmp(fault("rendezvous"), "raise"))
        return INTERNAL_ERROR;
    return ((int (*)(ncclUniqueId *))real(__func__))(out);
}

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank)
{
    if (!strcmp(fault("init"), "raise"))
        return INTERNAL_ERROR;
    return ((int (*)(void **, int, ncclUniqueId, int))real(__func__))(comm, ranks, id, rank);
}

int ncclCommGetAsyncError(void *comm, int *out)
{
    return ((int (*)(void *, int *))real(__func__))(comm, out);
}

int ncclCommDestroy(void *comm)
{
    return ((int (*)(void *))real(__func__))(comm);
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
{
    static int calls;
    calls++;
    const char *action = calls == FIRST ? fault("first") : calls == TIMED ? fault("timed") : "";
    if (!strcmp(action, "raise"))
        return INTERNAL_ERROR;
    int code = ((int (*)(const void *, void *, size_t, int, int, void *, void *))real(__func__))(from, to, count, type, op, comm, stream);
    if (!code && !strcmp(action, "wrong")) {
        void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
        int (*set)(uint64_t, unsigned, size_t, void *) = cuda ? (int (*)(uint64_t, unsigned, size_t, void *))dlsym(cuda, "cuMemsetD32Async") : NULL;
        return set ? set((uint64_t)(uintptr_t)to + 28, 0, 1, stream) : INTERNAL_ERROR;
    }
    return code;
}
