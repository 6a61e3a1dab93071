/* Inside of the fake libibverbs.so.1: the library's binary interface, as NCCL and netdoctor use it, and what its modules share.
 * The layouts are those of rdma-core's public ABI; check_verbs_abi.c compares them with its header where that is installed. */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H
#include "fake.h"
#include <errno.h>
#include <pthread.h>
#include <stdint.h>

union gid {
  uint8_t raw[16];
  uint64_t half[2];
};
struct rdma_device { /* ibv_device */
  void *ops[2];
  int node_type, transport_type;
  char name[64], dev_name[64], dev_path[256], ibdev_path[256];
};
struct rdma_qp;
struct rdma_cq;
struct send_request;
struct receive_request;
struct completion;
struct rdma_context { /* ibv_context; its table of operations has 32 slots, of which these are used */
  struct rdma_device *device;
  void *unused_first[11];
  int (*poll_cq)(struct rdma_cq *, int, struct completion *);
  int (*req_notify_cq)(struct rdma_cq *, int);
  void *unused_middle[12];
  int (*post_send)(struct rdma_qp *, struct send_request *, struct send_request **);
  int (*post_recv)(struct rdma_qp *, struct receive_request *, struct receive_request **);
  void *unused_last[5];
  int command_fd, async_fd, completion_vectors;
  pthread_mutex_t mutex;
  void *abi_compat;
};
struct rdma_device_attr {
  char firmware[64];
  uint64_t node_guid, image_guid, max_mr_size, page_sizes;
  uint32_t vendor, part, hardware;
  int max_qp, max_qp_wr;
  unsigned capabilities;
  int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom;
  int max_qp_init_rd_atom, max_ee_init_rd_atom, atomic, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp;
  int max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr;
  int max_srq, max_srq_wr, max_srq_sge;
  uint16_t max_pkeys;
  uint8_t ack_delay, ports;
};
struct rdma_port_attr { /* without what came after `flags`: the symbol that NCCL binds writes no more */
  int state, max_mtu, active_mtu, gids;
  uint32_t capabilities, max_message, bad_pkeys, bad_qkeys;
  uint16_t pkeys, lid, sm_lid;
  uint8_t lmc, max_vl, sm_sl, subnet_timeout, init_type, width, speed, physical, link_layer, flags;
};
struct rdma_pd {
  struct rdma_context *context;
  uint32_t handle;
};
struct rdma_mr {
  struct rdma_context *context;
  struct rdma_pd *pd;
  void *address;
  size_t length;
  uint32_t handle, lkey, rkey;
};
struct rdma_cq { /* ibv_cq */
  struct rdma_context *context;
  void *channel, *user;
  uint32_t handle;
  int entries;
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  uint32_t events, async_events;
};
struct rdma_qp { /* ibv_qp */
  struct rdma_context *context;
  void *user;
  struct rdma_pd *pd;
  struct rdma_cq *send_cq, *receive_cq;
  void *srq;
  uint32_t handle, number;
  int state, type;
  pthread_mutex_t mutex;
  pthread_cond_t condition;
  uint32_t events;
};
struct qp_capacity {
  uint32_t send, receive, send_sge, receive_sge, inline_data;
};
struct qp_init {
  void *user;
  struct rdma_cq *send_cq, *receive_cq;
  void *srq;
  struct qp_capacity capacity;
  int type, all_signaled;
};
struct address_handle { /* ibv_ah_attr */
  union gid to;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
  uint16_t lid;
  uint8_t sl, path_bits, static_rate, is_global, port;
};
struct qp_attr {
  int state, current_state, path_mtu, migration;
  uint32_t qkey, receive_psn, send_psn, to_number;
  unsigned access;
  struct qp_capacity capacity;
  struct address_handle path, alternative;
  uint16_t pkey_index, alternative_pkey_index;
  uint8_t notify, draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port, timeout, retries, rnr_retries;
  uint8_t alternative_port, alternative_timeout;
  uint32_t rate_limit;
};
enum { QP_STATE = 1 << 0, QP_PATH = 1 << 7, QP_PATH_MTU = 1 << 8, QP_TO_NUMBER = 1 << 20 }; /* ibv_qp_attr_mask */
enum { RESET, INIT, READY_TO_RECEIVE, READY_TO_SEND };                                      /* ibv_qp_state */
#define QP_ERROR 6
struct part { /* ibv_sge */
  uint64_t address;
  uint32_t length, lkey;
};
struct send_request {
  uint64_t id;
  struct send_request *next;
  struct part *parts;
  int count, operation;
  unsigned flags;
  uint32_t immediate;
  uint64_t remote_address;
  uint32_t rkey;
};
enum { RDMA_WRITE, RDMA_WRITE_IMMEDIATE, SEND, SEND_IMMEDIATE, RDMA_READ, ATOMIC_CAS, ATOMIC_ADD }; /* ibv_wr_opcode */
#define SIGNALED 2
struct receive_request {
  uint64_t id;
  struct receive_request *next;
  struct part *parts;
  int count;
};
struct completion { /* ibv_wc */
  uint64_t id;
  int status, operation;
  uint32_t vendor_error, length, immediate, qp, from_qp;
  unsigned flags;
  uint16_t pkey_index, slid;
  uint8_t sl, path_bits;
};
enum { WR_FLUSHED = 5, REMOTE_ACCESS = 10, RETRIES_EXCEEDED = 12 }; /* ibv_wc_status */
struct async_event {
  union {
    struct rdma_qp *qp;
    int port;
  } about;
  int type;
};

#define ENTER_OR_NULL(...) \
  do { \
    int ordered_ = fake_enter(__func__, " " __VA_ARGS__); \
    if (ordered_) { \
      errno = ordered_; \
      return NULL; \
    } \
  } while (0)

extern pthread_mutex_t verbs_lock;
extern int verbs_posted; /* sends of this process so far */
int verbs_hca(const struct rdma_device *device);
/* A GID of a port's table; 0 where the index has none. */
int verbs_gid(int hca, int port, int index, union gid *out);
int verbs_is_ethernet(int hca, int port);
/* Path of a file of the fabric that all processes of a run share: the folder of the machine's file. */
void verbs_fabric(char *out, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
struct rdma_qp *verbs_first_qp(struct rdma_context *context);
int verbs_poll_cq(struct rdma_cq *, int, struct completion *);
int verbs_post_send(struct rdma_qp *, struct send_request *, struct send_request **);
int verbs_post_recv(struct rdma_qp *, struct receive_request *, struct receive_request **);
#endif
