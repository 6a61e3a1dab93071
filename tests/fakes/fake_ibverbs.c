/* Fake libibverbs.so.1: FAKE_IBV_CONF names a file of settings (fake_conf.h).
 *   count=8 (devices mlx5_0 …)   gpuN.X means device N here   error.list=38 (errno of ibv_get_device_list)
 *   gpu2.error.open=13   gpu2.error.pd=12   gpu2.dmabuf=95 (errno of ibv_reg_dmabuf_mr)   gpu3.crash.open=1
 *   warning=TEXT is printed to stderr, as libibverbs does for a provider that does not load
 * Build: gcc -shared -fPIC -Wl,-soname,libibverbs.so.1 -o libibverbs.so.1 fake_ibverbs.c */
#include <errno.h>

#include "fake_conf.h"

typedef struct { int index; char name[16]; } Device;
static Device devices[16], *list[17];

Device **ibv_get_device_list(int *count)
{
    load_settings("FAKE_IBV_CONF");
    if ((errno = fault(-1, "list")))
        return NULL;
    if (text(-1, "warning", NULL))
        fprintf(stderr, "libibverbs: Warning: %s\n", text(-1, "warning", ""));
    *count = number(-1, "count", 8);
    for (int i = 0; i < *count && i < 16; i++) {
        devices[i].index = i;
        snprintf(devices[i].name, sizeof devices[i].name, "mlx5_%d", i);
        list[i] = &devices[i];
    }
    return list;
}
const char *ibv_get_device_name(Device *device) { return device->name; }

Device *ibv_open_device(Device *device) { return (errno = fault(device->index, "open")) ? NULL : device; }
Device *ibv_alloc_pd(Device *context) { return (errno = fault(context->index, "pd")) ? NULL : context; }
void *ibv_reg_dmabuf_mr(Device *domain, unsigned long offset, size_t length, unsigned long iova, int fd, int access)
{
    (void)offset, (void)length, (void)iova, (void)fd, (void)access;
    errno = number(domain->index, "dmabuf", EBADF);
    return NULL;
}
int ibv_dealloc_pd(Device *domain) { (void)domain; return 0; }
int ibv_close_device(Device *context) { (void)context; return 0; }
