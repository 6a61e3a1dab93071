/* Compiled, never run, where rdma-core's header is installed: our layouts are its layouts. */
#include "verbs.h"
#include <infiniband/verbs.h>
#undef ibv_query_port
#define SAME(ours, field, theirs, their_field) \
  _Static_assert(offsetof(ours, field) == offsetof(theirs, their_field), #ours "." #field)
SAME(struct rdma_device, node_type, struct ibv_device, node_type);
SAME(struct rdma_device, ibdev_path, struct ibv_device, ibdev_path);
SAME(struct rdma_context, poll_cq, struct ibv_context, ops.poll_cq);
SAME(struct rdma_context, req_notify_cq, struct ibv_context, ops.req_notify_cq);
SAME(struct rdma_context, post_send, struct ibv_context, ops.post_send);
SAME(struct rdma_context, post_recv, struct ibv_context, ops.post_recv);
SAME(struct rdma_context, command_fd, struct ibv_context, cmd_fd);
SAME(struct rdma_context, abi_compat, struct ibv_context, abi_compat);
SAME(struct rdma_device_attr, max_qp, struct ibv_device_attr, max_qp);
SAME(struct rdma_device_attr, max_qp_init_rd_atom, struct ibv_device_attr, max_qp_init_rd_atom);
SAME(struct rdma_device_attr, max_srq_sge, struct ibv_device_attr, max_srq_sge);
SAME(struct rdma_device_attr, ports, struct ibv_device_attr, phys_port_cnt);
SAME(struct rdma_port_attr, lid, struct ibv_port_attr, lid);
SAME(struct rdma_port_attr, speed, struct ibv_port_attr, active_speed);
SAME(struct rdma_port_attr, flags, struct ibv_port_attr, flags);
SAME(struct rdma_mr, rkey, struct ibv_mr, rkey);
SAME(struct rdma_cq, async_events, struct ibv_cq, async_events_completed);
SAME(struct rdma_qp, number, struct ibv_qp, qp_num);
SAME(struct rdma_qp, events, struct ibv_qp, events_completed);
SAME(struct qp_init, all_signaled, struct ibv_qp_init_attr, sq_sig_all);
SAME(struct qp_attr, to_number, struct ibv_qp_attr, dest_qp_num);
SAME(struct qp_attr, path.sgid_index, struct ibv_qp_attr, ah_attr.grh.sgid_index);
SAME(struct qp_attr, path.is_global, struct ibv_qp_attr, ah_attr.is_global);
SAME(struct qp_attr, path.port, struct ibv_qp_attr, ah_attr.port_num);
SAME(struct qp_attr, timeout, struct ibv_qp_attr, timeout);
SAME(struct qp_attr, rate_limit, struct ibv_qp_attr, rate_limit);
SAME(struct send_request, immediate, struct ibv_send_wr, imm_data);
SAME(struct send_request, rkey, struct ibv_send_wr, wr.rdma.rkey);
SAME(struct receive_request, count, struct ibv_recv_wr, num_sge);
SAME(struct completion, immediate, struct ibv_wc, imm_data);
SAME(struct completion, path_bits, struct ibv_wc, dlid_path_bits);
SAME(struct async_event, type, struct ibv_async_event, event_type);
_Static_assert(sizeof(struct completion) == sizeof(struct ibv_wc), "ibv_wc");
_Static_assert(sizeof(struct part) == sizeof(struct ibv_sge), "ibv_sge");
_Static_assert(QP_TO_NUMBER == IBV_QP_DEST_QPN && QP_PATH == IBV_QP_AV && QP_ERROR == IBV_QPS_ERR, "ibv_qp_attr_mask");
_Static_assert(RETRIES_EXCEEDED == IBV_WC_RETRY_EXC_ERR && REMOTE_ACCESS == IBV_WC_REM_ACCESS_ERR && WR_FLUSHED == IBV_WC_WR_FLUSH_ERR, "ibv_wc_status");
_Static_assert(RDMA_READ == IBV_WR_RDMA_READ && SEND_IMMEDIATE == IBV_WR_SEND_WITH_IMM && SIGNALED == IBV_SEND_SIGNALED, "ibv_wr_opcode");
_Static_assert(ATOMIC_ADD == IBV_WR_ATOMIC_FETCH_AND_ADD, "ibv_wr_opcode");
