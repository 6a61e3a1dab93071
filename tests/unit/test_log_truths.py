"""What a report says of a log is what stands there: names, counts, versions, and the mend of that very fault."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from netdoctor.report.log_section import LogSection

WARN = "n1:13:33 [0] misc/x.cc:90 NCCL WARN "
NO_ROUTE = (
    "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of "
    "(job-master-0, 23456). "
    "The client socket has failed to connect to 172-16-100-89.job-master-0.default.svc:23456 (errno: 113 - No route to host).\n"
)
COMM_ID = (
    "e82c50601d13:213:213 [0] include/socket.h:197 NCCL WARN Net : No interface found in the same subnet as remote address "
    "192.168.0.91<27030>\n"
    "e82c50601d13:213:213 [0] NCCL INFO Bootstrap : Using [0]eth0:172.17.0.3<0>\n"
)
REFUSED = "e82c50601d13:213:213 [0] include/socket.h:333 NCCL WARN Call to bind failed : Cannot assign requested address\n"


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


def summary(text: str) -> str:
    section = LogSection(parse_text(text))
    return f"{section.about()}\n" + "\n".join(section.text())


@pytest.mark.parametrize(
    ("line", "said", "mend"),
    [
        pytest.param(NO_ROUTE, "the rendezvous at job-master-0", "", id="whom the store does not reach"),
        pytest.param(WARN + "Call to ibv_create_qp failed", "not even a queue pair", "", id="a queue pair"),
        pytest.param(
            WARN + "Call to ibv_create_cq failed with error Cannot allocate memory", "a completion queue", "", id="a CQ"
        ),
        pytest.param(
            WARN + "Failed to open libnvidia-ml.so.1", "libnvidia-ml.so.1 is not where the loader looks", "utility", id="NVML"
        ),
        pytest.param(WARN + "Cuda failure 'CUDA driver is a stub library'", "stub of libcuda", "stubs", id="the stub"),
        pytest.param(COMM_ID, "NCCL_COMM_ID names 192.168.0.91", "", id="an id of another network"),
        pytest.param(COMM_ID + REFUSED, "that of the host around this container", "network=host", id="a host's id"),
    ],
)
def test_the_message_names_what_the_line_names(line: str, said: str, mend: str) -> None:
    found = first(line)
    assert said in found.message
    commands = "" if found.fix is None else "\n".join((found.fix.summary, *found.fix.commands))
    assert mend in commands


def test_a_queue_pair_that_broke_says_nothing_of_the_link() -> None:
    found = first(WARN + "NET/IB : mlx5_3:1 async fatal event on QP (0x7f): invalid request local work queue error\n")
    assert (found.status, found.cause) == (Status.FAIL, "other")
    assert "says nothing of the link" in found.message


@pytest.mark.parametrize(
    ("header", "version"),
    [
        ("# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n", "2.28.7"),
        ("n1: # nccl-tests version 2.13.8 nccl-headers=2804 nccl-library=2708\n", "2.7.8"),
    ],
)
def test_the_header_of_nccl_tests_names_the_library(header: str, version: str) -> None:
    assert parse_text(header).nccl_version == version


def test_a_line_may_hold_several_messages() -> None:
    line = "".join(f"n1:1{n}:1{n} [{n}] NCCL INFO Connected all rings" for n in range(3))
    assert "1 line, 3 messages of NCCL" in summary(f"{line}\n")


def rank(number: int, host: str = "n1", address: str = "10.0.0.1") -> str:
    mark = f"{host}:1{number}:1{number} [{number}] NCCL INFO "
    comm = f"{mark}comm 0x5{number} rank {number} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
    return f"{mark}Bootstrap : Using eth0:{address}<0>\n{comm}"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        pytest.param(rank(0) + rank(1), "1 host, which NCCL counts as 2 nodes", id="one host"),
        pytest.param(rank(0) + rank(1, "n2", "10.0.0.2"), "2 ranks; 2 nodes;", id="two"),
        pytest.param(rank(0) + rank(1, address="10.0.0.2"), "2 ranks; 2 nodes;", id="one name, two addresses"),
        pytest.param(rank(0), "2 ranks; 2 nodes;", id="a rank in no line"),
        pytest.param("n1:13:33 [0] NCCL INFO Using network IB\n", "1 host in this log", id="not all of a job"),
    ],
)
def test_how_many_hosts_there_are(log: str, said: str) -> None:
    assert said in summary(log)


AGENT = (
    "0: E0316 13:16:32.769000 575770 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -7) local_rank: 1 "
    "(pid: 575909) of binary: /opt/python\n"
)


def test_a_task_that_is_a_launcher_is_no_rank() -> None:
    assert {
        e.rank for e in parse_text(f"{AGENT}1: torch.distributed.DistNetworkError: failed to recv, got 0 bytes\n").events
    } == {None}
    assert parse_text("3: RuntimeError: no data\n").events[0].rank == 3


@pytest.mark.parametrize("alone", ["done\n", "Finished\n", "\n\nAll tests passed\n"])
def test_that_all_is_done_needs_something_that_was(alone: str) -> None:
    assert first(alone).status is Status.UNKNOWN
