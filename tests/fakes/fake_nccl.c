/* Fake libnccl.so.2 for tools/gpu_proof/bare_nccl.py, where there is no GPU: it proves how the arguments arrive (the id by value,
 * addresses of 64 bits, counts in elements), and adds what other ranks would have: FAKE_NCCL_WRONG=1 adds one too much.
 * Build: gcc -shared -fPIC -Wl,-soname,libnccl.so.2 -o libnccl.so.2 fake_nccl.c */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INVALID_ARGUMENT = 4, PERIOD = 4099 };
typedef struct { char internal[128]; } ncclUniqueId;
static int communicator[2]; /* ranks, rank */

const char *ncclGetErrorString(int code)
{
    return code == INVALID_ARGUMENT ? "invalid argument" : "unknown";
}

const char *ncclGetLastError(void *comm)
{
    (void)comm;
    return "said by the fake";
}

int ncclGetVersion(int *out)
{
    *out = 22907;
    return 0;
}

int ncclGetUniqueId(ncclUniqueId *out)
{
    for (int i = 0; i < 128; i++) /* zeros inside: a text would be cut there */
        out->internal[i] = (char)(i % 7 ? i : 0);
    return 0;
}

int ncclCommInitRank(void **comm, int ranks, ncclUniqueId id, int rank)
{
    ncclUniqueId right;
    ncclGetUniqueId(&right);
    if (ranks < 1 || rank < 0 || rank >= ranks || memcmp(&right, &id, sizeof id))
        return INVALID_ARGUMENT;
    communicator[0] = ranks;
    communicator[1] = rank;
    *comm = communicator;
    return 0;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *comm, void *stream)
{
    const float *in = from;
    float *out = to;
    if (type != 7 || op != 0 || comm != communicator || !stream)
        return INVALID_ARGUMENT;
    for (size_t i = 0; i < count; i++) {
        float sum = in[i];
        for (int r = 0; r < communicator[0]; r++) /* the pattern of the others */
            if (r != communicator[1])
                sum += (float)((i % PERIOD * (2 * r + 1) + 31 * r) % 251);
        out[i] = sum;
    }
    if (getenv("FAKE_NCCL_WRONG"))
        out[count - 1] += 1;
    return 0;
}

int ncclCommDestroy(void *comm)
{
    return comm == communicator ? 0 : INVALID_ARGUMENT;
}
