"""Who and what a line names beside its kind: the node, the reason, the device; and what is only advice or a consequence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS


def of(text: str) -> tuple[Finding, ...]:
    return diagnose(parse_text(text))


STEP = "slurmstepd: error: *** STEP 37.0 ON n1 CANCELLED AT 2021-03-15T17:50:23 ***\n"
JOB = "slurmstepd: error: *** JOB 37 ON n1 CANCELLED AT 2021-03-15T18:00:46{} ***\n"


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (" DUE TO PREEMPTION", "preempted"),
        (" DUE TO TIME LIMIT", "its time limit"),
        ("", "the scheduler or its user cancelled"),
    ],
)
def test_of_several_orders_the_one_with_a_reason_tells_it(reason: str, told: str) -> None:
    found = of(STEPS + STEP + JOB.format(reason))[0]
    assert found.status is Status.UNKNOWN
    assert told in found.message
    assert any(told.split()[0] == "the" or reason in line for line in found.evidence["shown"])


def test_a_signal_beside_a_bare_order_is_no_reason() -> None:
    assert "Ctrl-C" not in of(STEPS + STEP + "KeyboardInterrupt\n")[0].message


# Open MPI, orte/mca/errmgr/base and prrte: "[node-died]" of their help texts
LOST = """{0} has lost communication with a remote daemon.

  HNP daemon   : {1},0]{2} on node bert-launcher-gdqv7
  Remote daemon: {1},20]{2} on node bert-worker-19

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
"""


@pytest.mark.parametrize("text", [LOST.format("ORTE", "[[43015,0]", ""), LOST.format("PRTE", "[prterun-bert-34@0", "")])
def test_mpirun_names_the_node_of_the_daemon_that_it_lost(text: str) -> None:
    found = of(text)[0]
    assert (found.cause, found.subject) == ("rank_died", "bert-worker-19")
    assert "mpirun lost its daemon on bert-worker-19" in found.message
    assert "scheduler" not in found.message


def test_the_scheduler_still_names_its_own() -> None:
    found = of(
        STEPS
        + "slurmstepd: error: *** JOB 3 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
    )
    assert any("the scheduler lost a node" in f.message for f in found)


OWNER = """ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
        class_name: Runner
        actor_id: 28507c63735529c3265367b501000000
        pid: 159258
        namespace: b9b0f765-f39a-441b-95d6-fe12e866f264
        ip: 172.21.160.10
The actor is dead because its owner has died. Owner Id: 01000000ff Owner Ip address: 172.21.160.9 Owner worker exit type: \
SYSTEM_ERROR Worker exit detail: {}
"""


def test_the_node_of_an_actors_owner_that_crashed_is_named() -> None:
    found = of(OWNER.format("Owner's node has crashed."))[0]
    assert (found.cause, found.subject) == ("rank_died", "172.21.160.9")
    assert "the node 172.21.160.9 of Ray crashed" in found.message
    other = of(OWNER.format("Worker unexpectedly exits with a connection error code 2. End of file."))[0]
    assert "crashed" not in other.message


def test_what_printf_makes_of_no_name_is_no_host() -> None:
    none = "nslookup: can't resolve '(null)': Name does not resolve\n"
    found = of(none + "nslookup: can't resolve 'dlc1-master-0': Name does not resolve\nwaiting for master\n")[0]
    assert (found.cause, found.subject) == ("missing_node", "dlc1-master-0")
    assert "(null)" not in of(none)[0].subject


ADVICE = (
    'sharbox:20:20 [0] /rccl/src/init.cc:127 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to hang!\n'
)
IPC = "sharbox:20:36 [1] /rccl/src/transport/p2p.cc:220 NCCL WARN hipIpc{}MemHandle failed : invalid argument\n"


@pytest.mark.parametrize("call", ["Get", "Open"])
def test_rccls_advice_is_no_cause_beside_another_warning(call: str) -> None:
    found = of(ADVICE + "RCCL version 2.18.3+hip5.5 develop:6ecf771+\n" + IPC.format(call))[0]
    assert found.cause == "p2p_disabled"
    assert f"hipIpc{call}MemHandle failed : invalid argument" in found.message
    assert of(ADVICE + STEPS)[0].status is not Status.FAIL
    assert of("hipIpcGetMemHandle failed: invalid argument - IPC disabled for this rank\n" + STEPS)[0].status is not Status.FAIL


# `ray status` (format_info_string of Ray's autoscaler)
STATUS = """======== Autoscaler status: 2025-02-02 19:52:24.223188 ========
Resources
---------------------------------------------------------------
Usage:
 0.0/384.0 CPU
 {0}/16.0 GPU

Demands:
 {{{1}'GPU': 1.0}} * 1, {{'GPU': 1.0}} * 15 (PACK): 1+ pending placement groups

(autoscaler +10m11s, ip=172.31.42.4) Error: No available node types can fulfill resource request {{{1}'GPU': 1.0}}. Add suitable
"""
NODE = "'node:ec2-1-2-3-4.compute.amazonaws.com': 0.001, "


def test_a_node_asked_for_by_an_address_that_none_has() -> None:
    found = of(STATUS.format("0.0", NODE))[0]
    assert found.cause == "missing_node"
    assert found.message.startswith("Ray waits for a node under the address ec2-1-2-3-4.compute.amazonaws.com, which none of")
    assert found.fix is not None
    assert "VLLM_HOST_IP" in str(found.fix)
    busy = of(STATUS.format("0.0", ""))[0]
    assert "no node has the free GPUs" in busy.message
    known = "ray.init(): node 10.0.0.5 joined\n(RayWorker pid=12, ip=10.0.0.5) loading\n"
    full = of(known + STATUS.format("16.0", NODE.replace("ec2-1-2-3-4.compute.amazonaws.com", "10.0.0.5")))[0]
    assert "no node has the free GPUs" in full.message


KLOG = "I1115 09:55:55.{}       1 schedule_one.go:854] "
NO_FIT = (
    KLOG.format(240368)
    + '"Unable to schedule pod; no fit; waiting" pod="default/gpu-pod" err="0/4 nodes are available: 3 node '
    'unregistered. preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod.."\n'
)
BOUND = KLOG.format(340368) + '"Successfully bound pod to node" pod="default/{}" node="n7" evaluatedNodes=4 feasibleNodes=1\n'


def test_kube_scheduler_tells_which_pod_it_cannot_place() -> None:
    found = of(NO_FIT)[0]
    assert (found.cause, found.subject) == ("missing_node", "gpu-pod")
    assert "the scheduler finds no node for the pod gpu-pod: 3 node unregistered" in found.message
    assert of(NO_FIT + BOUND.format("gpu-pod"))[0].status is not Status.FAIL
    assert of(NO_FIT + BOUND.format("other"))[0].status is Status.FAIL


ISSUE = """Hello, I built the tests and the following is what I get of them on this machine, which is not what I expect.
./build/all_reduce_perf -b 8 -e 128M -f 2 -g 8
nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
{}

**Results of it with the variable that is named in the manual:**
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 384.81                 Driver Version: 384.81                    |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla V100-SXM2...  Off  | 00000000:06:00.0 Off |                    0 |
| N/A   33C    P0    43W / 300W |     10MiB / 16152MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
"""


def test_a_failure_in_a_programs_own_form_makes_a_text_a_log() -> None:
    failed = ISSUE.format("Cuda failure common.cu:891 'CUDA driver version is insufficient for CUDA runtime version'")
    found = of(failed)[0]
    assert (found.status, found.cause) == (Status.FAIL, "cuda_driver_mismatch")
    # A document that speaks of it is none.
    told = of(ISSUE.format("You may see that the CUDA driver version is insufficient for CUDA runtime version."))[0]
    assert told.status is Status.UNKNOWN


OFI = "WARN: Function: create_nccl_ofi_component Line: 459: NET/OFI Couldn't open {}. RC: -22, ERROR: Invalid argument\n"
FOUND = "INFO: Function: ofi_init Line: 686: NET/OFI Selected Provider is efa\n"
REFUSED = (
    "[ 1632.420956] infiniband efa_0: Failed to process command ALLOC_PD (opcode 14) comp_status 1 err -12\n"
    "[ 1632.420957] infiniband efa_0: Failed to allocate pd[-12]\n"
)


@pytest.mark.parametrize("what", ["AV", "CQ", "a fabric access domain"])
def test_a_device_that_does_not_open_is_no_missing_plugin(what: str) -> None:
    found = of(FOUND + OFI.format(what) + REFUSED)[0]
    assert found.message.startswith("EFA device efa_0 refused: its driver says: Failed to")
    assert "install" not in str(found.fix)
    found = of(FOUND + OFI.format(what))[0]
    assert found.message.startswith("libfabric cannot use a device that it found")
    assert "install" not in str(found.fix)


def test_a_kernels_word_before_which_work_goes_on_is_no_fault() -> None:
    assert of(REFUSED + STEPS)[0].status is not Status.FAIL


JAX = (
    "user:275204:275656 [3] NCCL INFO misc/socket.cc:559 -> 2\nuser:275204:275656 [3] NCCL INFO bootstrap.cc:280 -> 2\n"
    "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:305: NCCL operation ncclCommInitRank(&comm, nranks, id, rank) "
    "failed: unhandled system error (run with NCCL_DEBUG=INFO for details). Last NCCL warning(error) log entry "
    "(may be unrelated) 'socketTryAccept: Accept failed: {}'.\n"
)


@pytest.mark.parametrize("why", ["Bad file descriptor", "Invalid argument"])
def test_ones_own_socket_that_does_not_accept_is_no_lost_peer(why: str) -> None:
    found = of(JAX.format(why))[0]
    assert found.cause == "rank_died"
    assert found.message.startswith(f"ncclCommInitRank failed: NCCL's own listening socket could not accept ({why})")
    assert "peer" not in found.message
    assert "lost the connection to its peer" in of(JAX.format("Software caused connection abort"))[0].message


VETH = """worker:10:10 [0] NCCL INFO Bootstrap : Using [0]eno1:172.18.40.41<0> [1]{0}:{1}<0>
worker:10:10 [0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation
worker:10:10 [0] NCCL INFO NET/IB : No device found.
worker:10:10 [0] NCCL INFO NET/Socket : Using [0]eno1:172.18.40.41<0> [1]{0}:{1}<0>
worker:10:10 [0] NCCL INFO Using network Socket
worker:10:34 [0] NCCL INFO Channel 00 : 0[18000] -> 1[18000] [receive] via NET/Socket/{2}
worker:10:34 [0] NCCL INFO Channel 00 : 1[18000] -> 0[18000] [send] via NET/Socket/{2}
worker:10:34 [0] NCCL INFO Call to connect returned Connection timed out, retrying
"""


@pytest.mark.parametrize(
    ("name", "address", "nic", "cause"),
    [
        ("veth25f2e72", "fe80::380d:bfff:fe5b:54d2%veth25f2e72", 1, "socket_ifname"),
        ("enx02", "169.254.3.1", 1, "socket_ifname"),
        ("veth25f2e72", "fe80::380d:bfff:fe5b:54d2%veth25f2e72", 0, "firewall_connect"),
        ("eno2", "172.19.40.41", 1, "firewall_connect"),
    ],
)
def test_a_channel_over_an_interface_that_leaves_no_node(name: str, address: str, nic: int, cause: str) -> None:
    found = of(VETH.format(name, address, nic))[0]
    assert found.cause == cause
    assert (name in found.message) == (cause == "socket_ifname")


def test_a_prediction_that_is_saved_is_at_its_end() -> None:
    saved = (
        "[INFO|2025-12-24 00:50:14] llamafactory.train.sft.trainer:143 >> Saving prediction results to /d/predictions.jsonl\n"
    )
    metrics = "***** predict metrics *****\n  predict_runtime                = 0:30:05.77\n"
    read = replace(parse_text(STEPS + metrics + saved), written=False)  # no process writes it any more
    assert diagnose(read)[0].status is Status.PASS
    assert diagnose(replace(parse_text(STEPS + metrics), written=False))[0].status is Status.UNKNOWN
    raised = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\nOSError: [Errno 28] No space left on device\n'
    assert of(STEPS + metrics + saved + raised)[0].status is Status.FAIL


INTERRUPTED = """Traceback (most recent call last):
  File "/c/lib/python3.10/queue.py", line 180, in get
    self.not_empty.wait(remaining)
KeyboardInterrupt
{}
Traceback (most recent call last):
  File "/w/corenet/trainer.py", line 287, in train_epoch
    for batch in self.loader:
  File "/c/lib/python3.10/threading.py", line 268, in __exit__
    return self._lock.__exit__(*args)
RuntimeError: release unlocked lock
"""
DURING = "\nDuring handling of the above exception, another exception occurred:\n"


def test_what_comes_of_a_ctrl_c_is_no_fault_of_the_program() -> None:
    late = (
        "[rank1]:[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=90, "
        "OpType=ALLREDUCE, NumelIn=38, NumelOut=38, Timeout(ms)=600000) ran for 600208 milliseconds before timing out.\n"
    )
    found = of(STEPS + INTERRUPTED.format(DURING) + late)
    assert [f.status for f in found] == [Status.UNKNOWN]
    assert "Ctrl-C" in found[0].message
    alone = of(STEPS + INTERRUPTED.partition("{}\n")[2])
    assert alone[0].status is Status.FAIL
    both = of(STEPS + INTERRUPTED.format(DURING) + INTERRUPTED.partition("{}\n")[2])
    assert any("RuntimeError" in str(f.message) for f in both), "the same without a Ctrl-C is the program's own"


DONE = '0: :::MLLOG {"event_type": "INTERVAL_END", "key": "run_stop", "value": null, "metadata": {"status": "success"}}\n'


def test_a_program_that_was_done_before_its_time_was_up() -> None:
    late = STEP.replace(" ***", " DUE TO TIME LIMIT ***")
    found = of(STEPS + DONE + late)[0]
    assert found.status is Status.UNKNOWN
    assert "its time limit; before it, the program had said that it was done" in found.message
    assert "was done" not in of(DONE + STEPS + late)[0].message, "of a part: it worked on"
    assert "was done" not in of(STEPS + late)[0].message


def test_a_topology_names_what_it_lacks() -> None:
    line = "n1:10:10 [0] graph/xml.h:100 NCCL WARN Attribute busid of node nic not found\n"
    assert "(busid of nic is not there)" in of(line)[0].message
