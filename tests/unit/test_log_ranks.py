"""Ranks against each other: what differs is named before the handshake that is garbled by it."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log import whose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import CAME_UP

WRONG_TYPE = "socketFinalizeAccept from 10.0.0.2<48610>: wrong type 3 != 4"
GARBLED = "n1:1:9 [0] misc/socket.cc:533 NCCL WARN {}\n"
CUT = "n1:1:9 [0] transport/net_socket.cc:1 NCCL WARN NET/Socket : message truncated : receiving 9 bytes instead of 5\n"
TRUNCATED = GARBLED.format("Message truncated : received 84 bytes instead of 72")
IB = "NCCL INFO NET/IB : Using [0]mlx5_0:1/{} [RO]; OOB eth0:10.0.0.1<0>\n"


def two(first: str, second: str) -> str:
    return f"n1:1:1 [0] NCCL INFO {first}\nn2:2:2 [0] NCCL INFO {second}\n"


def named(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


@pytest.mark.parametrize(
    ("text", "cause", "words", "mend"),
    [
        pytest.param(
            two("Using network IB", "NCCL_NET set by environment to Socket")
            + two("Using network IB", "Using network Socket")
            + GARBLED.format(WRONG_TYPE),
            *("transport_fallback_tcp", "IB on n1, Socket on n2", "unset NCCL_NET"),
            id="network, asked for",
        ),
        pytest.param(
            two("x", "NCCL_IB_DISABLE set by environment to 1.") + two("Using network IB", "Using network Socket") + TRUNCATED,
            *("transport_fallback_tcp", "Socket on n2", "unset NCCL_IB_DISABLE"),
            id="network, switched off",
        ),
        pytest.param(
            two("x", "NCCL_IB_HCA set to mlx5_9") + two("Using network IB", "Using network Socket") + TRUNCATED,
            *("transport_fallback_tcp", "Socket on n2", "NCCL_IB_HCA=mlx5_9 names nothing"),
            id="network, an HCA that is not there",
        ),
        pytest.param(
            GARBLED.format(WRONG_TYPE),
            *("transport_fallback_tcp", "a connection of NET/Socket reached NET/IB", ""),
            id="network, by the handshake alone",
        ),
        pytest.param(
            f"n1:1:1 [0] {IB.format('IB')}n2:2:2 [0] {IB.format('RoCE')}{TRUNCATED}",
            *("env_misuse", "different fabrics", "NCCL_IB_HCA"),
            id="link layers",
        ),
        pytest.param(
            two("NCCL version 2.21.5+cuda12.4", "NCCL version 2.27.5+cuda12.9") + TRUNCATED,
            *("version_mismatch", "2.21.5 and 2.27.5", "one NCCL"),
            id="versions",
        ),
        *(
            pytest.param(
                two(f"{name} set by environment to {a}", f"{name} set by environment to {b}") + CUT,
                *("env_misuse", f"{name}={a} and {b}", "same NCCL variables"),
                id=name,
            )
            for name, a, b in (
                ("NCCL_PROTO", "LL", "Simple"),
                ("NCCL_ALGO", "Ring", "Tree"),
                ("NCCL_BUFFSIZE", "65536", "4194304"),
            )
        ),
        pytest.param(
            two(*(f"comm 0x1 rank {r} nRanks {n} nNodes 2 localRanks 1 localRank 0 MNNVL 0" for r, n in ((0, 2), (1, 4))))
            + TRUNCATED,
            *("env_misuse", "2 on rank 0, 4 on rank 1", "same number of ranks"),
            id="numbers of ranks",
        ),
        pytest.param(
            "localhost:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.4.0.21<0>\n"
            "localhost:2:2 [0] NCCL INFO Bootstrap : Using eth0:10.4.0.22<0>\n",
            *("duplicate_address", "localhost is the name of two machines: 10.4.0.21, 10.4.0.22", "hostname"),
            id="hosts",
        ),
    ],
)
def test_a_difference_comes_before_what_is_garbled_by_it(text: str, cause: str, words: str, mend: str) -> None:
    finding = named(text)
    assert (finding.status, finding.cause) == (Status.FAIL, cause)
    assert words in finding.message and mend in repr(finding.fix)


def test_ranks_that_are_alike_are_not_told_apart() -> None:
    assert named(two("Using network IB", "Using network IB") + TRUNCATED).cause == "version_mismatch"


@pytest.mark.parametrize(
    "echo",
    [
        "n1:1:9 [0] init.cc:1900 NCCL WARN Cuda failure 'driver shutting down'\n",
        "n1:1:9 [0] net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer n2<40> with status=5 opcode=0 len=0 vendor err 9\n",
        "n1:1:9 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer n2<42818>\n",
    ],
)
def test_the_echo_of_an_exit_does_not_outrank_the_first_warning(echo: str) -> None:
    warn = "n2:2:9 [0] shmutils.cc:70 NCCL WARN failed to extend /dev/shm/nccl-a to 9 bytes, error: No space left on device\n"
    for text in (warn + echo, echo + warn):
        assert named(text).cause == "shm_disabled_or_small"


def test_an_unknown_error_at_a_peers_handle_condemns_no_gpu() -> None:
    warn = "n1:1:9 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 999 'unknown error'\n"
    for text in (warn, warn + "n1:1:9 [0] NCCL INFO transport/p2p.cc:330 -> 1\n"):
        causes = {f.cause for f in diagnose(parse_text(CAME_UP + text)) if f.status is Status.FAIL}
        assert causes and not causes & {"inventory", "wrong_data"}


def test_a_program_whose_assertion_failed_is_no_node() -> None:
    said = b"python3: ../nptl/pthread_mutex_lock.c:424: __pthread_mutex_lock_full: Assertion `e != ESRCH' failed."
    assert whose.node(said) == ""
    assert whose.node(b"vm-07: " + said) == "vm-07"
    assert whose.node(b"n7: /w/train.py:32: UserWarning: slow") == "n7"
