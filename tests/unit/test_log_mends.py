"""The mend fits the errno, the place, the fabric and the version; the log does not refute it; AMD's GPUs get AMD's tools."""

# ruff: noqa: E501  (log lines)

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.mends import Mend, Topic, mend, table
from netdoctor.nccl.diagnosis.place import Place
from netdoctor.nccl.log.facts import Event, LogFacts, NetDevice
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import LOGS

HOSTS = {Place.POD: ("trainer-worker-0",), Place.CONTAINER: ("c2211f46f318",), Place.UNKNOWN: ("gpu-17",)}
ROWS = [(topic, row) for topic, rows in table().items() for row in rows]
NVIDIAS = re.compile(r"nvidia|cuda_|compute-sanitizer|fabricmanager|\bxid\b|libnccl\b", re.IGNORECASE)


def _log(row: Mend) -> LogFacts:
    """A log that shows what this row asks for, and no more."""
    place = next((p for p in Place if p in row.places), Place.UNKNOWN)
    log = LogFacts(hosts=HOSTS[place], absent=frozenset({"env"}))
    if row.since or row.until:
        log = replace(log, nccl_version=".".join(map(str, row.since or (2, 4, 8))))
    if row.variable:
        log = replace(log, env={row.variable: "77"})
    if row.shows.startswith("unset "):
        log = replace(log, absent=frozenset())
    more: dict[str, dict[str, object]] = {
        "dmabuf": {"dmabuf": True},
        "registers GPU memory": {"gdr_hca": {"mlx5_0": True}},
        "roce": {"devices": (NetDevice("mlx5_0", 1, "RoCE"),)},
        "ib": {"devices": (NetDevice("mlx5_0", 1, "IB"),)},
        "peermem refused": {"events": (Event("peermem", "-", 1, "could not insert 'nvidia_peermem'"),)},
        "slurm": {"events": (Event("died", "-", 1, "srun: error: n1: task 1: Killed"),)},
    }
    return replace(log, **more.get(row.shows, {}))  # type: ignore[arg-type]


def _lines(row: Mend) -> tuple[Event, ...]:
    return tuple(Event("connect", "-", 1, "", data={"errno": os.strerror(number)}) for number in sorted(row.errnos)[:1])


@pytest.mark.parametrize(("topic", "row"), ROWS, ids=lambda one: getattr(one, "name", None) or one.fix.summary[:40])
def test_each_row_is_the_advice_of_the_log_it_is_for(topic: Topic, row: Mend) -> None:
    assert mend(topic, _log(row), _lines(row)) == replace(row.fix, summary=row.fix.summary.replace("<value>", "77"))


def test_there_is_always_an_advice() -> None:
    assert set(table()) == set(Topic)
    assert all(mend(topic, LogFacts()) for topic in Topic)


@pytest.mark.parametrize(
    ("text", "words", "not_words"),
    [
        pytest.param(
            "w:1:2 [0] misc/shmutils.cc:70 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9), error: Permission denied (13)\n",
            "ls -ld /dev/shm",
            "--shm-size",
            id="refused is not full",
        ),
        pytest.param(
            "w:1:2 [0] misc/shmutils.cc:70 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-x (size 9), error: No such file or directory (2)\n",
            "--ipc=host",
            "--shm-size",
            id="of another container",
        ),
        pytest.param(
            "n1:1:2 [0] NCCL INFO NCCL version 2.19.3+cuda12.2\nn1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
            "n1:1:2 [0] misc/ibvwrap.cc:264 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument\n",
            "export NCCL_IB_GID_INDEX",
            "unset",
            id="nothing is set, and this NCCL does not choose",
        ),
        pytest.param(
            "n1:1:2 [0] NCCL INFO NCCL version 2.27.3+cuda12.9\nn1:1:2 [0] NCCL INFO NCCL_IB_GID_INDEX set by environment to 9.\n"
            "n1:1:2 [0] misc/ibvwrap.cc:264 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument\n",
            "unset NCCL_IB_GID_INDEX",
            "export NCCL_IB_GID_INDEX",
            id="it is set, and this NCCL chooses",
        ),
        pytest.param(
            "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
            "n1:1:2 [0] NCCL INFO Using network IB\n"
            "n1:1:2 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4000> with status=12 opcode=0 len=0 vendor err 129\n",
            "ethtool",
            "ibqueryerrors",
            id="RoCE has no subnet manager",
        ),
        pytest.param(
            "n1:1:2 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<45763> failed : Connection refused\n",
            "ss -ltnp",
            "ip_local_port_range",
            id="refused is no closed port range",
        ),
        pytest.param(
            "w-worker-0:1:2 [0] misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4> failed : Connection timed out\n",
            "networkpolicy",
            "nft",
            id="between pods",
        ),
    ],
)  # fmt: skip
def test_the_advice_of_a_log(text: str, words: str, not_words: str) -> None:
    fix = diagnose(parse_text(text))[0].fix
    assert fix is not None and words in repr(fix) and not_words not in repr(fix)


def _advice(finding: Finding) -> str:
    return repr(finding.fix) + (finding.how or "")


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["RCCL version 2.22.3+hip6.3", "n:1:2 [0] /src/rccl/build/hipify/src/init.cc:1 NCCL INFO x"])
def test_amds_gpus_get_no_advice_of_nvidias(sign: str) -> None:
    advised = [f for text in LOGS.values() for f in diagnose(parse_text(f"{sign}\n{text}")) if f.status is Status.FAIL]
    assert len(advised) > 100
    assert [w for f in advised if (w := NVIDIAS.findall(_advice(f)))] == []
    plain = [f for text in LOGS.values() for f in diagnose(parse_text(text)) if f.status is Status.FAIL]
    assert sum(bool(NVIDIAS.search(_advice(f))) for f in plain) > 20


def test_what_libc_says_of_an_errno_is_known() -> None:
    assert mend(Topic.FIREWALL, LogFacts(), _lines(replace(ROWS[0][1], errnos=frozenset({errno.ECONNREFUSED})))) != mend(
        Topic.FIREWALL, LogFacts()
    )
