/* Queue pairs.  RDMA is process_vm_writev() (verbs_place.c) into the process whose number the key is; an immediate is a datagram to the Unix
 * socket of the peer's queue pair, in the fabric's folder.  What the two ends of a connection must agree on is looked up there. */
#define _GNU_SOURCE
#include "verbs.h"
#include "verbs_place.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

struct waiting { /* a posted receive */
  uint64_t id;
  struct waiting *next;
};
struct finished {
  struct completion completion;
  struct finished *next;
};
struct queue {
  struct rdma_cq cq; /* what the caller sees, first */
  struct finished *head, **tail;
};
struct pair {
  struct rdma_qp qp; /* what the caller sees, first */
  int socket, all_signaled, compared, unreachable, mtu;
  uint32_t peer;
  const char *kind; /* of the GID that it sends from */
  struct waiting *head, **tail;
  struct pair *next;
};
struct message {
  uint32_t immediate, length;
};

int verbs_posted;
static struct pair *pairs;
static uint32_t next_number;

struct rdma_qp *verbs_first_qp(struct rdma_context *context) {
  for (struct pair *p = pairs; p; p = p->next)
    if (p->qp.context == context) return &p->qp;
  return NULL;
}

/* Completion queues */
API struct rdma_cq *ibv_create_cq(struct rdma_context *context, int entries, void *user, void *channel, int vector) {
  ENTER_OR_NULL("%d", entries);
  struct queue *q = calloc(1, sizeof *q);
  q->cq.context = context;
  q->cq.entries = entries;
  q->cq.user = user;
  q->cq.channel = channel;
  q->tail = &q->head;
  return &q->cq;
}
API int ibv_destroy_cq(struct rdma_cq *cq) {
  ENTER();
  return 0;
}
static void finish(struct rdma_cq *cq, const struct completion *completion) { /* verbs_lock is held */
  struct queue *q = (struct queue *)cq;
  struct finished *f = calloc(1, sizeof *f);
  f->completion = *completion;
  *q->tail = f;
  q->tail = &f->next;
}
/* What Mellanox devices report beside a status */
static uint32_t vendor_error(int status) {
  switch (status) {
  case 4: return 0x51;
  case WR_FLUSHED: return 0xf9;
  case 9: return 0x8a;
  case REMOTE_ACCESS: return 0x88;
  case RETRIES_EXCEEDED: return 0x81;
  default: return 0;
  }
}

/* After an error everything that is posted to a queue pair is flushed. */
static void flush_receives(struct pair *p) {
  while (p->head) {
    struct waiting *w = p->head;
    struct completion done = {.id = w->id, .status = WR_FLUSHED, .operation = 128, .vendor_error = vendor_error(WR_FLUSHED), .qp = p->qp.number};
    finish(p->qp.receive_cq, &done);
    p->head = w->next;
    free(w);
  }
  p->tail = &p->head;
}
static void deliver(struct pair *p) { /* what has arrived, to the receives that wait for it */
  struct message m;
  while (p->head && p->socket >= 0 && recv(p->socket, &m, sizeof m, MSG_DONTWAIT) == sizeof m) {
    struct waiting *w = p->head;
    struct completion done = {.id = w->id, .operation = 129, .length = m.length, .immediate = m.immediate, .qp = p->qp.number, .flags = 2};
    finish(p->qp.receive_cq, &done);
    p->head = w->next;
    if (!p->head) p->tail = &p->head;
    free(w);
  }
}
int verbs_poll_cq(struct rdma_cq *cq, int room, struct completion *out) {
  struct queue *q = (struct queue *)cq;
  int got = 0, refused = fake_ordered("ibv_poll_cq");
  if (refused) return -refused;
  pthread_mutex_lock(&verbs_lock);
  for (struct pair *p = pairs; p; p = p->next)
    if (p->qp.receive_cq == cq) deliver(p);
  while (got < room && q->head) {
    struct finished *f = q->head;
    out[got++] = f->completion;
    q->head = f->next;
    if (!q->head) q->tail = &q->head;
    free(f);
  }
  pthread_mutex_unlock(&verbs_lock);
  return got;
}

/* Queue pairs */
static socklen_t address_of(struct sockaddr_un *out, uint32_t number) {
  *out = (struct sockaddr_un){.sun_family = AF_UNIX};
  verbs_fabric(out->sun_path, sizeof out->sun_path, "qp-%u", number);
  return sizeof *out;
}
API struct rdma_qp *ibv_create_qp(struct rdma_pd *pd, struct qp_init *init) {
  ENTER_OR_NULL("%s", pd->context->device->name);
  struct pair *p = calloc(1, sizeof *p);
  p->qp.context = pd->context;
  p->qp.pd = pd;
  p->qp.send_cq = init->send_cq;
  p->qp.receive_cq = init->receive_cq;
  p->qp.type = init->type;
  p->qp.user = init->user;
  p->all_signaled = init->all_signaled;
  p->kind = "";
  p->tail = &p->head;
  p->socket = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  pthread_mutex_lock(&verbs_lock);
  int bound = -1;
  for (int tries = 0; tries < 4096 && bound; tries++) { /* a number is the fabric's: taken by another, the next */
    struct sockaddr_un address;
    p->qp.number = (((uint32_t)getpid() * 97 + next_number++) & 0xfffff) + 64;
    socklen_t size = address_of(&address, p->qp.number);
    bound = bind(p->socket, (struct sockaddr *)&address, size);
    if (bound && errno != EADDRINUSE) break;
  }
  if (!bound) {
    p->next = pairs;
    pairs = p;
  }
  pthread_mutex_unlock(&verbs_lock);
  if (!bound) return &p->qp;
  close(p->socket);
  free(p);
  return NULL;
}
API int ibv_destroy_qp(struct rdma_qp *qp) {
  ENTER();
  struct pair *gone = (struct pair *)qp;
  struct sockaddr_un address;
  address_of(&address, qp->number);
  unlink(address.sun_path);
  strcat(address.sun_path, "-"); /* its ends, see publish_end() */
  unlink(address.sun_path);
  pthread_mutex_lock(&verbs_lock);
  for (struct pair **at = &pairs; *at; at = &(*at)->next)
    if (*at == gone) {
      *at = gone->next;
      break;
    }
  pthread_mutex_unlock(&verbs_lock);
  close(gone->socket);
  free(gone);
  return 0;
}

/* "kind MTU" of this end, for the other one; the kind of a GID is "IB", "v1" or "v2" */
static void publish_end(const struct pair *p) {
  char path[256];
  verbs_fabric(path, sizeof path, "qp-%u-", p->qp.number);
  FILE *file = fopen(path, "we");
  if (!file) return;
  fprintf(file, "%s\n", p->kind);
  fclose(file);
}
/* Does the other end speak as this one does?  RoCE v1 and v2 do not hear each other, packets above what the way carries are lost. */
static int hears(struct pair *p) {
  char path[256], kind[16] = "";
  verbs_fabric(path, sizeof path, "qp-%u-", p->peer);
  FILE *file = fopen(path, "re");
  if (!file) return 0;
  if (fscanf(file, "%15s", kind) != 1) kind[0] = 0;
  fclose(file);
  return !strcmp(kind, p->kind) && p->mtu <= fake_number(4096, "fabric.mtu");
}

/* What the kernel asks for when an address handle is made: errno where it cannot be. */
static int resolve(struct pair *p, const struct address_handle *path) {
  int hca = verbs_hca(p->qp.context->device), vlan = 0;
  p->kind = "IB";
  if (!verbs_is_ethernet(hca, path->port)) return 0;
  union gid own;
  if (!path->is_global || !verbs_gid(hca, path->port, path->sgid_index, &own)) return EINVAL;
  const char *type = fake_text("RoCE v2", "hca.%d.port.%d.type.%d", hca, path->port, path->sgid_index);
  p->kind = strstr(type, "v2") ? "v2" : "v1";
  int own_ip = !own.half[0] && ((uint32_t *)own.raw)[2] == htonl(0xffff);
  int their_ip = !path->to.half[0] && ((const uint32_t *)path->to.raw)[2] == htonl(0xffff);
  if (own_ip != their_ip) return ENETUNREACH;
  char name[256];
  verbs_fabric(name, sizeof name, "gid-%016llx%016llx", (long long)path->to.half[0], (long long)path->to.half[1]);
  FILE *file = fopen(name, "re");
  if (!file) return ETIMEDOUT; /* nobody has this address */
  if (fscanf(file, "%d", &vlan) != 1) vlan = 0;
  fclose(file);
  return vlan == fake_number(0, "hca.%d.port.%d.vlan", hca, path->port) ? 0 : ETIMEDOUT;
}
API int ibv_modify_qp(struct rdma_qp *qp, struct qp_attr *attr, int mask) {
  ENTER("%u mask %x state %d", qp->number, mask, mask & QP_STATE ? attr->state : -1);
  struct pair *p = (struct pair *)qp;
  if (mask & QP_TO_NUMBER) p->peer = attr->to_number;
  if (mask & QP_PATH_MTU) p->mtu = 128 << attr->path_mtu;
  if (mask & QP_PATH) {
    int refused = resolve(p, &attr->path);
    if (refused) return refused;
    publish_end(p);
  }
  if (mask & QP_STATE) qp->state = attr->state;
  return 0;
}
API int ibv_query_qp(struct rdma_qp *qp, struct qp_attr *attr, int mask, struct qp_init *init) {
  ENTER();
  memset(attr, 0, sizeof *attr);
  attr->state = qp->state;
  return 0;
}
API int ibv_query_ece(struct rdma_qp *qp, void *ece) {
  ENTER();
  return EOPNOTSUPP;
}
API int ibv_set_ece(struct rdma_qp *qp, void *ece) {
  ENTER();
  return EOPNOTSUPP;
}

/* Data */
static int move(const struct send_request *r, size_t length) {
  struct iovec here[32], there = {(void *)(uintptr_t)r->remote_address, length};
  int moved;
  for (int i = 0; i < r->count && i < 32; i++) here[i] = (struct iovec){(void *)(uintptr_t)r->parts[i].address, r->parts[i].length};
  if (r->operation == RDMA_WRITE || r->operation == RDMA_WRITE_IMMEDIATE) moved = verbs_place(r->rkey, here, r->count, &there) == (ssize_t)length;
  else if (r->operation == RDMA_READ) moved = process_vm_readv(r->rkey, here, r->count, &there, 1, 0) == (ssize_t)length;
  else return 0;
  if (moved) return 0;
  return errno == ESRCH ? RETRIES_EXCEEDED : REMOTE_ACCESS;
}
static int notify(struct pair *p, const struct send_request *r, size_t length) {
  struct sockaddr_un to;
  struct message m = {r->immediate, length};
  socklen_t size = address_of(&to, p->peer);
  while (sendto(p->socket, &m, sizeof m, 0, (struct sockaddr *)&to, size) < 0) {
    if (errno != EAGAIN && errno != ENOBUFS) return RETRIES_EXCEEDED;
    usleep(50);
  }
  return 0;
}
static int run(struct pair *p, const struct send_request *r, size_t length) {
  if (p->qp.state == QP_ERROR) return WR_FLUSHED;
  if (!p->compared) {
    p->compared = 1;
    p->unreachable = !hears(p);
  }
  if (p->unreachable) return RETRIES_EXCEEDED;
  int status = fake_ordered("completion");
  if (!status && length) status = move(r, length);
  int told = r->operation == RDMA_WRITE_IMMEDIATE || r->operation == SEND || r->operation == SEND_IMMEDIATE;
  return !status && told ? notify(p, r, length) : status;
}
int verbs_post_send(struct rdma_qp *qp, struct send_request *r, struct send_request **bad) {
  struct pair *p = (struct pair *)qp;
  int refused = fake_enter("ibv_post_send", " %u to %u", qp->number, p->peer);
  if (refused) {
    *bad = r;
    return refused;
  }
  for (; r; r = r->next) {
    size_t length = 0;
    for (int i = 0; i < r->count; i++) length += r->parts[i].length;
    int status = run(p, r, length);
    struct completion done = {.id = r->id, .status = status, .operation = r->operation == RDMA_READ ? 2 : r->operation == SEND ? 0 : 1,
                              .vendor_error = vendor_error(status), .length = length, .qp = qp->number};
    pthread_mutex_lock(&verbs_lock);
    verbs_posted++;
    if (status < 0) { /* ordered: this one never completes */
      pthread_mutex_unlock(&verbs_lock);
      continue;
    }
    if (status || p->all_signaled || r->flags & SIGNALED) finish(qp->send_cq, &done);
    if (status) {
      qp->state = QP_ERROR;
      flush_receives(p);
    }
    pthread_mutex_unlock(&verbs_lock);
  }
  return 0;
}
int verbs_post_recv(struct rdma_qp *qp, struct receive_request *r, struct receive_request **bad) {
  struct pair *p = (struct pair *)qp;
  int refused = fake_enter("ibv_post_recv", " %u", qp->number);
  if (refused) {
    *bad = r;
    return refused;
  }
  pthread_mutex_lock(&verbs_lock);
  for (; r; r = r->next) {
    struct waiting *w = calloc(1, sizeof *w);
    w->id = r->id;
    *p->tail = w;
    p->tail = &w->next;
  }
  if (qp->state == QP_ERROR) flush_receives(p);
  pthread_mutex_unlock(&verbs_lock);
  return 0;
}
