"""What the logs of strangers' jobs showed that the reader of logs had missed: each mechanism by lines of our own."""

# ruff: noqa: E501  (log lines are as long as they are written)

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text


def fails(text: str) -> list[Finding]:
    return [f for f in diagnose(parse_text(text)) if f.status is Status.FAIL]


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


# pdsh writes the host before each line, and torch the rank behind it; others of the job still connect meanwhile.
_UP = "{host}: {node}:{pid}:{pid} [{dev}] NCCL INFO comm 0x5{pid} rank {rank} nranks 2 cudaDev {dev} nvmlDev {dev} busId 34000 commId 0x7f - Init COMPLETE\n"
_RINGS = "localhost: a1:70:71 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
_FELL = "{0}Traceback (most recent call last):\n{0}  File \"/w/fit.py\", line 60, in <module>\n{0}    main()\n{0}FileNotFoundError: [Errno 2] No such file or directory: '/w/cache/idx.npy'\n"
_PDSH = "10.0.0.2: [rank1]: "
_LAUNCHER = "10.0.0.2: [2026-03-31 15:16:55,259] [ERROR] [launch.py:341:sigkill_handler] ['/usr/bin/python3', '-u', 'fit.py', '--local_rank=3', '--train-iters', '2', '--lr', '1e-5'] exits with return code = 1\n"


@pytest.mark.parametrize("mark", [_PDSH, "[rank1]: 10.0.0.2: ", "3: n2: [rank1]: "])
def test_a_traceback_behind_marks_of_several_launchers(mark: str) -> None:
    """Neither a command line that a launcher repeats nor a neighbour's first collective is work of the rank that ended."""
    up = _UP.format(host="localhost", node="a1", pid=70, dev=0, rank=0) + _UP.format(
        host="10.0.0.2", node="a2", pid=80, dev=0, rank=1
    )
    found = fails(up + _FELL.format(mark) + _RINGS + _LAUNCHER)
    assert "did not find /w/cache/idx.npy; rank 1 ended by an uncaught exception" in found[0].message


def test_a_communicator_of_its_rank_shows_a_new_start() -> None:
    up = "".join(_UP.format(host="h", node=f"a{rank}", pid=70 + rank, dev=0, rank=rank) for rank in range(2))
    assert not fails(up + _FELL.format(_PDSH) + up + "".join(f"step {n} loss 2.0\n" for n in range(9)))


_CAUGHT = "[rank{0}]:[E ProcessGroupNCCL.cpp:563] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=BROADCAST, NumelIn=9, NumelOut=9, Timeout(ms)=120000) ran for 120052 milliseconds before timing out.\n"
_GLOO = "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [../third_party/gloo/gloo/transport/tcp/pair.cc:395] {} [10.0.0.3]:45263: {}\n"
_PENDING = "  Warning  FailedScheduling  11m  default-scheduler  0/4 nodes are available: 1 Insufficient nvidia.com/gpu.\n"
_ASSIGNED = "  Normal   Scheduled         9m   default-scheduler  Successfully assigned default/fit-0 to ip-10-0-5-9.internal\n"
_REFUSED = "  Warning  UnexpectedAdmissionError  3m  kubelet  Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu, which is unexpected\n"
_TORCHRUN = "0: E0526 12:38:01.6 229 torch/distributed/elastic/multiprocessing/api.py:914] failed (exitcode: 2) local_rank: 0 (pid: 23452) of binary: /opt/venv/bin/python\n"
_USAGE = " 3: usage: taskset [options] [mask | cpu-list] [pid|cmd [args...]]\n 2: up\n 3: failed to parse CPU mask: invalid\n 1: up\n"
_SRUN = "srun: error: n4: task 3: Exited with exit code 1\n"
_HIP = ":1:hip_code_object.cpp :460 : 43 us: hipErrorNoBinaryForGpu: Unable to find code object for all current devices!\n:1:hip_code_object.cpp :461 : 43 us:   Devices:\n:1:hip_code_object.cpp :464 : 43 us:     amdgcn-amd-amdhsa--{} - [Not Found]\n:1:hip_code_object.cpp :468 : 43 us:   Bundled Code Objects:\n:1:hip_code_object.cpp :483 : 43 us:     hipv4-amdgcn-amd-amdhsa--{} - [code object v4 is it]\nsrun: error: n4: task 0: Aborted\n"
_NAMELESS = "{0}: [W socket.cpp:653] [c10d] The IPv6 network addresses of ({1}, 53394) cannot be retrieved (gai error: -2 - Name or service not known).\n"
_CANCELLED = "slurmstepd: error: *** JOB 77 ON n01 CANCELLED AT 2026-07-10T15:46:57 ***\n"
_STORE = "[rank5]:[W312 14:27:50.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=80, addr=[n9]:39220, remote=[10.7.1.6]:5000): Broken pipe\n"
_CORE = "(APIServer pid=5) ERROR 04-27 18:09:47 [core_client.py:600] Engine core proc EngineCore_DP1 died unexpectedly, shutting down client.\n"


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        pytest.param(_GLOO.format("writev", "Bad address"), "other", "gave Gloo memory that the host cannot read", id="EFAULT"),
        pytest.param(
            _PENDING + _ASSIGNED + _REFUSED,
            "missing_node",
            "no healthy device of those",
            id="a pod that was placed, and refused",
        ),
        pytest.param(
            "0: fit.py: error: unrecognized arguments: --gate\n" + _TORCHRUN,
            "rank_died",
            "refused its command line and did not start: fit.py: error: unrecognized arguments: --gate",
            id="argparse, below a task that is a launcher",
        ),
        pytest.param(_USAGE + _SRUN, "rank_died", "taskset: failed to parse CPU mask: invalid", id="a tool that starts a task"),
        pytest.param(
            _HIP.format("gfx90a:xnack-", "gfx90a:xnack+"), "cuda_driver_mismatch", "differs in xnack alone", id="HIP, xnack"
        ),
        pytest.param(
            _HIP.format("gfx1100", "gfx906"), "cuda_driver_mismatch", "it was built for gfx906", id="HIP, another target"
        ),
        pytest.param(
            _NAMELESS.format(1, "n[01,05]") * 20 + _CANCELLED,
            "missing_node",
            "n[01,05] is a list of nodes",
            id="a list as a name",
        ),
        pytest.param(
            _NAMELESS.format(0, "n77") * 20 + _CANCELLED, "missing_node", "the name n77 does not resolve", id="a name"
        ),
        pytest.param(_STORE * 30, "rank_died", "keeps torch's store ([10.7.1.6]:5000) ended", id="the store is gone"),
        pytest.param(
            _CORE,
            "rank_died",
            "EngineCore_DP1 ended first; the others lost their peer; it left no word of its own",
            id="a server's child",
        ),
    ],
)
def test_named(text: str, cause: str, words: str) -> None:
    found = fails(text)[0]
    assert (found.cause, words in found.message) == (cause, True), found.message


def test_a_refused_pod_is_of_the_node_that_the_scheduler_named() -> None:
    assert fails(_PENDING + _ASSIGNED + _REFUSED)[0].subject == "ip-10-0-5-9.internal"


def test_another_pods_place_is_none() -> None:
    mine = _PENDING.replace("FailedScheduling ", "FailedScheduling pod/fit-1 ")
    assert "free GPUs" in fails(mine + _ASSIGNED)[0].message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(_NAMELESS.format(0, "n77") * 4 + _CANCELLED, id="two tries"),
        pytest.param(_NAMELESS.format(0, "n77") * 20 + "step 1 loss 2.0\n" * 9 + _CANCELLED, id="it came about"),
        pytest.param(_STORE * 3, id="ranks that leave"),
        pytest.param("train_runtime 80\n" + _STORE * 30, id="behind a good end"),
    ],
)
def test_not_alleged(text: str) -> None:
    assert not fails(text)


def test_who_is_silent_is_not_known_of_ranks_that_were_ended() -> None:
    found = fails("".join(_CAUGHT.format(rank) for rank in (0, 2, 3)) + "n0: rank 1 died from signal 15\n")[0]
    assert "by rank 0, 2, 3" in found.message and "rank 1" not in found.message and found.subject != "rank 1"


def test_what_came_of_an_order_to_end_is_told() -> None:
    found = first("step 1 loss 2.0\n" * 9 + "Terminated\n" + _CAUGHT.format(0) + _CAUGHT.format(4))
    assert found.status is Status.UNKNOWN
    assert "ranks had waited for 120 s" in found.message and "BROADCAST number 3, by rank 0, 4" in found.message


_RAYLET = "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker IP address: 10.0.0.8 Worker port: 10151 Worker PID: 503\n"
_ACTOR = "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n\tclass_name: Decoder\n\tactor_id: 4643ca20\n\tpid: 503\n\tnamespace: x\n\tip: 10.0.0.8\n"
_UCX = (
    "".join(
        f"[n4:{pid} :0:{pid}] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x28)\n"
        for pid in (7, 8)
    )
    + "==== backtrace (tid:      7) ====\n 0 0x0000000000042520 __sigaction()  ???:0\n 1 0x000000000004d128 mca_coll_base()  /build/coll.c:229\n"
    + " 2 0x000000000007421b c10d::ProcessGroupMPI::init()  ???:0\n 3 0x0000000000169492 PyObject_Call()  ???:0\n"
)
_IMPORT = "WARNING 02-28 20:57:36 _ext.py:180] Failed to import from kern._C_x with ImportError('libcublas.so.11: cannot open shared object file: No such file or directory')\n"
_OPS = "Traceback (most recent call last):\n  File \"/w/fit.py\", line 6, in <module>\n    go()\nAttributeError: '_OpNamespace' '{}' object has no attribute 'gemm'\n"
_TORN = (
    'Traceback (most recent call last):\nTraceback (most recent call last):\n  File "/w/fit.py", line 6, in <module>\n'
    "    open(name)FileNotFoundError\nFileNotFoundError\n: FileNotFoundError: [Errno 2] No such file or directory: '/d/a.pt'\n"
    "FileNotFoundError: [Errno 2] No such file or directory: '/d/a.pt'[Errno 2] No such file or directory: '/d/a.pt'\n"
)
_FULL = 'Traceback (most recent call last):\n  File "/w/fit.py", line 6, in <module>\n    {}\n  File "/v/lib/python3.11/site-packages/torch/{}", line 130, in {}\n    super().go()\nRuntimeError: CUDA error: out of memory\n'
_AT_START = _FULL.format("dist.barrier()", "distributed/distributed_c10d.py", "barrier")


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        pytest.param(_RAYLET + _ACTOR, "rank_died", "the actor Decoder (pid 503) on 10.0.0.8 of Ray died", id="Ray's fields"),
        pytest.param(_UCX, "rank_died", "2 processes crashed by SIGSEGV, each by itself", id="each crashed by itself"),
        pytest.param(_UCX, "rank_died", "stood in mca_coll_base, called by c10d::ProcessGroupMPI::init", id="native frames"),
        pytest.param(
            _IMPORT + _OPS.format("_C_x"),
            "rank_died",
            "libcublas.so.11 is not there, without which kern._C_x",
            id="an extension",
        ),
        pytest.param(_TORN, "rank_died", "did not find /d/a.pt; ", id="a message that ranks have torn apart"),
        pytest.param(
            _FULL.format("g()", "cuda/graphs.py", "end"), "other", "while CUDA graphs were captured", id="CUDA graphs"
        ),
        pytest.param(_AT_START, "other", "at a collective of the start (dist.barrier())", id="the first barrier"),
    ],
)
def test_told(text: str, cause: str, words: str) -> None:
    found = fails(text)[0]
    assert (found.cause, words in found.message) == (cause, True), found.message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(_IMPORT + _OPS.format("_C_y"), "is not there, without which", id="another extension's"),
        pytest.param("step 1 loss 2.0\n" * 9 + _AT_START, "at a collective of the start", id="a barrier behind work"),
    ],
)
def test_not_told(text: str, words: str) -> None:
    assert words not in fails(text)[0].message


_SERVED = (
    "[2026-08-01 23:43:43] INFO:     Application startup complete.\n"
    + '[2026-08-01 23:44:43] INFO:     127.0.0.1:4 - "POST /v1/x HTTP/1.1" 200 OK\n' * 9
)
_ASKED = "[2026-08-02 00:17:43] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
_CHILD = "[2026-08-02 00:17:43] Subprocess detokenizer (pid=31379) crashed with exit code -15. Triggering SIGQUIT for cleanup...\n[2026-08-02 00:17:43] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
_LIMIT = "slurmstepd: error: *** JOB 77 ON n01 CANCELLED AT 2026-08-02T00:17:43 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(_SERVED + _ASKED + _CHILD, Status.PASS, id="a server that was told to end"),
        pytest.param(_SERVED + _CHILD, Status.UNKNOWN, id="a child that somebody ended"),
        pytest.param(_ASKED + _CHILD, Status.UNKNOWN, id="one that never came up"),
        pytest.param(_SERVED + _ASKED + _CHILD + _LIMIT, Status.UNKNOWN, id="by its time limit"),
        pytest.param(_SERVED + "RuntimeError: the cache is torn\n" + _ASKED + _CHILD, Status.FAIL, id="behind an error"),
    ],
)
def test_a_server_that_ends(text: str, status: Status) -> None:
    assert first(text).status is status


def test_the_last_that_a_program_said_it_did() -> None:
    told = "step 5 loss 2.0\nn1: saving checkpoint at step 5 to /w/out\nn1: done with a part\n" + _LAUNCHER
    assert "the last that the program said it did was: n1: saving checkpoint at step 5" in fails(told)[0].message


def test_an_advice_is_no_trouble() -> None:
    said = "  - change your class, otherwise you'll get an exception.\n"
    assert not [e for e in parse_text(said * 4).events if e.kind == "last_words"]
    assert [e for e in parse_text("  - you got an exception.\n").events if e.kind == "last_words"]
