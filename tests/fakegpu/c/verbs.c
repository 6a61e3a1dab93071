/* The fake libibverbs.so.1: devices, ports, GIDs, registration of memory, asynchronous events.  verbs_qp.c moves the data.
 *
 * A device is there where the machine has it and sysfs shows it, opening one opens its /dev/infiniband/uverbsN: a node that is
 * missing, refused or not mapped into a container fails here as it does with a kernel.
 */
#define _GNU_SOURCE
#include "verbs.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MOST 64
pthread_mutex_t verbs_lock = PTHREAD_MUTEX_INITIALIZER;
struct opened { /* what ibv_open_device() gives, and how many of the "event" lines it has been told */
  struct rdma_context context;
  int told;
};
static struct rdma_device devices[MOST];
static int hca_of[MOST], device_count;

int verbs_hca(const struct rdma_device *device) { return hca_of[device - devices]; }
static const char *port_text(int hca, int port, const char *key, const char *missing) {
  return fake_text(missing, "hca.%d.port.%d.%s", hca, port, key);
}
static int port_number(int hca, int port, const char *key, int missing) {
  return fake_number(missing, "hca.%d.port.%d.%s", hca, port, key);
}
/* IBV_LINK_LAYER_INFINIBAND, _ETHERNET, _UNSPECIFIED */
static int layer_of(int hca, int port) {
  const char *layer = port_text(hca, port, "layer", "InfiniBand");
  return !strcmp(layer, "InfiniBand") ? 1 : !strcmp(layer, "Ethernet") ? 2 : 0;
}
int verbs_is_ethernet(int hca, int port) { return layer_of(hca, port) == 2; }

void verbs_fabric(char *out, size_t room, const char *format, ...) {
  const char *machine = fake_machine(), *slash = machine ? strrchr(machine, '/') : NULL;
  int at = snprintf(out, room, "%.*s/", slash ? (int)(slash - machine) : 1, slash ? machine : ".");
  va_list values;
  va_start(values, format);
  vsnprintf(out + at, room - at, format, values);
  va_end(values);
}

int verbs_gid(int hca, int port, int index, union gid *out) {
  const char *text = fake_text("", "hca.%d.port.%d.gid.%d", hca, port, index);
  unsigned word[8];
  if (sscanf(text, "%x:%x:%x:%x:%x:%x:%x:%x", word, word + 1, word + 2, word + 3, word + 4, word + 5, word + 6, word + 7) != 8) return 0;
  for (int i = 0; i < 8; i++) {
    out->raw[2 * i] = word[i] >> 8;
    out->raw[2 * i + 1] = word[i];
  }
  return 1;
}

/* Devices */
static void list_device(int hca) {
  struct rdma_device *device = &devices[device_count];
  char path[128];
  const char *name = fake_text("", "hca.%d.name", hca);
  snprintf(path, sizeof path, "/sys/class/infiniband/%s", name);
  if (access(path, F_OK) || device_count == MOST || !fake_number(1, "hca.%d.verbs", hca)) return;
  *device = (struct rdma_device){.node_type = 1};
  snprintf(device->name, sizeof device->name, "%s", name);
  long long uverbs = fake_number(hca, "hca.%d.uverbs", hca);
  snprintf(device->dev_name, sizeof device->dev_name, "uverbs%lld", uverbs);
  snprintf(device->dev_path, sizeof device->dev_path, "/sys/class/infiniband_verbs/uverbs%lld", uverbs);
  snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s", path);
  hca_of[device_count++] = hca;
}
API struct rdma_device **ibv_get_device_list(int *count) {
  ENTER_OR_NULL();
  pthread_mutex_lock(&verbs_lock);
  if (!device_count)
    for (int hca = 0; hca < fake_number(0, "hcas"); hca++) list_device(hca);
  pthread_mutex_unlock(&verbs_lock);
  struct rdma_device **list = calloc(device_count + 1, sizeof *list);
  for (int i = 0; i < device_count; i++) list[i] = &devices[i];
  if (count) *count = device_count;
  return list;
}
API void ibv_free_device_list(struct rdma_device **list) { free(list); }
API const char *ibv_get_device_name(struct rdma_device *device) { return device->name; }
API int ibv_fork_init(void) {
  ENTER();
  return 0;
}

/* Whoever connects must be able to learn where our GIDs are. */
static void publish_gids(int hca) {
  union gid gid;
  char path[256];
  for (int port = 1; port <= fake_number(1, "hca.%d.ports", hca); port++)
    for (int index = 0; index < port_number(hca, port, "gids", 1); index++) {
      if (!verbs_gid(hca, port, index, &gid)) continue;
      verbs_fabric(path, sizeof path, "gid-%016llx%016llx", (long long)gid.half[0], (long long)gid.half[1]);
      FILE *file = fopen(path, "we");
      if (!file) continue;
      fprintf(file, "%d\n", port_number(hca, port, "vlan", 0));
      fclose(file);
    }
}
API struct rdma_context *ibv_open_device(struct rdma_device *device) {
  ENTER_OR_NULL("%s", device->name);
  char path[128];
  snprintf(path, sizeof path, "/dev/infiniband/%s", device->dev_name);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return NULL;
  struct opened *opened = calloc(1, sizeof *opened);
  struct rdma_context *context = &opened->context;
  context->device = device;
  context->command_fd = fd;
  context->async_fd = -1;
  context->completion_vectors = 1;
  context->poll_cq = verbs_poll_cq;
  context->post_send = verbs_post_send;
  context->post_recv = verbs_post_recv;
  publish_gids(verbs_hca(device));
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* Yama: peers write into this process */
  return context;
}
API int ibv_close_device(struct rdma_context *context) {
  ENTER();
  close(context->command_fd);
  return 0;
}

API int ibv_query_device(struct rdma_context *context, struct rdma_device_attr *out) {
  ENTER();
  int hca = verbs_hca(context->device);
  *out = (struct rdma_device_attr){.vendor = 0x2c9, .max_mr_size = ~0ull, .max_qp = 262144, .max_qp_wr = 32768, .max_sge = 30,
                                    .max_cq = 1 << 24, .max_cqe = 4194303, .max_mr = 1 << 24, .max_pd = 1 << 24,
                                    .max_qp_rd_atom = 16, .max_qp_init_rd_atom = 16, .max_pkeys = 128};
  snprintf(out->firmware, sizeof out->firmware, "%s", fake_text("", "hca.%d.firmware", hca));
  out->node_guid = out->image_guid = __builtin_bswap64(strtoull(fake_text("0", "hca.%d.guid", hca), NULL, 16));
  out->part = fake_number(4129, "hca.%d.part", hca);
  out->ports = fake_number(1, "hca.%d.ports", hca);
  return 0;
}

/* Gb/s as width and speed of a link, as the verbs encode them */
static void link_of(int rate, uint8_t *width, uint8_t *speed) {
  static const struct {
    int lanes, code;
  } widths[] = {{4, 2}, {1, 1}, {8, 4}};
  static const struct {
    double lane;
    int code;
  } speeds[] = {{2.5, 1}, {5, 2}, {10, 4}, {14, 16}, {25, 32}, {50, 64}, {100, 128}};
  *width = *speed = 1;
  for (int w = 2; w >= 0; w--)
    for (int s = 0; s < 7; s++)
      if (widths[w].lanes * speeds[s].lane == rate) {
        *width = widths[w].code;
        *speed = speeds[s].code;
      }
}
static int mtu_code(int bytes) { return bytes >= 4096 ? 5 : bytes >= 2048 ? 4 : bytes >= 1024 ? 3 : bytes >= 512 ? 2 : 1; }
API int ibv_query_port(struct rdma_context *context, uint8_t port, struct rdma_port_attr *out) {
  ENTER("%s:%d", context->device->name, port);
  int hca = verbs_hca(context->device);
  if (port < 1 || port > fake_number(1, "hca.%d.ports", hca)) return EINVAL;
  struct rdma_port_attr attr = {.max_mtu = 5, .max_message = 1 << 30, .pkeys = 128, .subnet_timeout = 18};
  attr.state = port_number(hca, port, "state", 4);
  attr.physical = attr.state == 4 ? 5 : 3;
  attr.active_mtu = mtu_code(port_number(hca, port, "mtu", 4096));
  attr.gids = port_number(hca, port, "gids", 1);
  attr.link_layer = layer_of(hca, port);
  attr.lid = port_number(hca, port, "lid", 0);
  attr.sm_lid = attr.link_layer == 1;
  link_of(port_number(hca, port, "rate", 400), &attr.width, &attr.speed);
  memcpy(out, &attr, offsetof(struct rdma_port_attr, flags) + 1);
  return 0;
}
API int ibv_query_gid(struct rdma_context *context, uint8_t port, int index, union gid *out) {
  ENTER("%s:%d %d", context->device->name, port, index);
  int hca = verbs_hca(context->device);
  if (index < 0 || index >= port_number(hca, port, "gids", 1)) {
    errno = EINVAL;
    return -1;
  }
  if (!verbs_gid(hca, port, index, out)) memset(out, 0, sizeof *out);
  return 0;
}
API int ibv_query_pkey(struct rdma_context *context, uint8_t port, int index, uint16_t *out) {
  ENTER();
  *out = index ? 0 : 0xffff;
  return 0;
}

/* Protection domains and memory */
API struct rdma_pd *ibv_alloc_pd(struct rdma_context *context) {
  ENTER_OR_NULL();
  struct rdma_pd *pd = calloc(1, sizeof *pd);
  pd->context = context;
  return pd;
}
API int ibv_dealloc_pd(struct rdma_pd *pd) {
  ENTER();
  free(pd);
  return 0;
}
/* The kernel would find GPU memory by its page tables; here the driver library that is loaded by then is asked. */
static int is_gpu_memory(void *address) {
  static int (*attribute)(void *, int, uint64_t);
  static int asked;
  unsigned type = 0;
  if (!asked) {
    asked = 1;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (cuda) *(void **)&attribute = dlsym(cuda, "cuPointerGetAttribute");
  }
  return attribute && !attribute(&type, 2, (uint64_t)(uintptr_t)address) && type == 2;
}
/* "registration" is any of the three calls below; the key of a region is this process, where its peers write to. */
static struct rdma_mr *register_memory(struct rdma_pd *pd, void *address, size_t length) {
  int refused = fake_ordered("registration");
  if (!pd) refused = EINVAL;
  if (refused) {
    errno = refused;
    return NULL;
  }
  struct rdma_mr *mr = calloc(1, sizeof *mr);
  *mr = (struct rdma_mr){pd->context, pd, address, length, 0, getpid(), getpid()};
  return mr;
}
static struct rdma_mr *register_pages(struct rdma_pd *pd, void *address, size_t length) {
  if (is_gpu_memory(address) && !fake_number(0, "peermem")) { /* what the kernel says where no module knows these pages */
    errno = EFAULT;
    return NULL;
  }
  return register_memory(pd, address, length);
}
API struct rdma_mr *ibv_reg_mr(struct rdma_pd *pd, void *address, size_t length, int access) {
  ENTER_OR_NULL("%p %zu", address, length);
  return register_pages(pd, address, length);
}
API struct rdma_mr *ibv_reg_mr_iova2(struct rdma_pd *pd, void *address, size_t length, uint64_t iova, unsigned access) {
  ENTER_OR_NULL("%p %zu", address, length);
  return register_pages(pd, address, length);
}
API struct rdma_mr *ibv_reg_dmabuf_mr(struct rdma_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  ENTER_OR_NULL("descriptor %d %zu", fd, length);
  int can = pd && fake_number(1, "hca.%d.dmabuf", verbs_hca(pd->context->device));
  if (!can || fd < 0) {
    errno = can ? EBADF : EOPNOTSUPP;
    return NULL;
  }
  return register_memory(pd, (void *)(uintptr_t)iova, length);
}
API int ibv_dereg_mr(struct rdma_mr *mr) {
  ENTER();
  free(mr);
  return 0;
}

/* Asynchronous events: "event DEVICE NUMBER PORT AFTER" comes when this process has posted so many sends; each context gets it once. */
static int due(struct opened *opened, struct async_event *out) {
  struct fake_event one;
  int at = opened->told;
  while (fake_next_event(&at, &one)) {
    if (strcmp(one.device, opened->context.device->name)) continue;
    if (verbs_posted < one.after) return 0;
    opened->told = at;
    out->type = one.number;
    if (one.number >= 1 && one.number <= 3) out->about.qp = verbs_first_qp(&opened->context);
    else out->about.port = one.port;
    return 1;
  }
  return 0;
}
API int ibv_get_async_event(struct rdma_context *context, struct async_event *out) {
  ENTER();
  while (!due((struct opened *)context, out)) usleep(10000);
  return 0;
}
API void ibv_ack_async_event(struct async_event *event) {}
API const char *ibv_event_type_str(int type) {
  static const char *texts[] = {"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
                                "local access violation work queue error", "communication established", "send queue drained",
                                "path migrated", "path migration request error", "local catastrophic error", "port active", "port error",
                                "LID change", "P_Key change", "SM change", "SRQ catastrophic error", "SRQ limit reached",
                                "last WQE reached", "client reregistration", "GID table change"};
  return type >= 0 && type < (int)(sizeof texts / sizeof *texts) ? texts[type] : "unknown";
}
