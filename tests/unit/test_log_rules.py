"""Each mechanism in NCCL's own wording: which cause comes first, and what must stay silent.

The logs of `data/log_rules.txt` are written from the format strings of NCCL's sources (and torch's, Gloo's, aws-ofi-nccl's);
hosts and numbers are made up.
"""

# ruff: noqa: E501  (log lines are as long as NCCL writes them)

from __future__ import annotations

import re
from pathlib import Path

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

_, *PARTS = re.split(r"^## (.*)\n", (Path(__file__).parent / "data" / "log_rules.txt").read_text(), flags=re.MULTILINE)
BLOCKS = {title: text for title, text in zip(PARTS[::2], PARTS[1::2], strict=True) if title.startswith("@")}
LOGS = {
    title: re.sub(r"^(@[A-Z]+)\n", lambda block: BLOCKS[block[1]], text, flags=re.MULTILINE)
    for title, text in zip(PARTS[::2], PARTS[1::2], strict=True)
    if title not in BLOCKS
}
FIRST = {title: text for title, text in LOGS.items() if not title.startswith("silent: ")}
CAME_UP = BLOCKS["@ONE"] + BLOCKS["@DONE"]
WA = "node01:100:130 [0] "


def first(text: str) -> str | None:
    """The cause of the first fail."""
    fails = [f for f in diagnose(parse_text(text)) if f.status is Status.FAIL]
    return fails[0].cause if fails else None


@pytest.mark.parametrize("title", FIRST)
def test_the_likeliest_cause(title: str) -> None:
    assert first(FIRST[title]) == title.partition(":")[0]


@pytest.mark.parametrize("title", sorted(LOGS.keys() - FIRST.keys()))
def test_what_is_benign_stays_silent(title: str) -> None:
    findings = diagnose(parse_text(LOGS[title]))
    assert [f.status for f in findings] == [Status.PASS], findings


def shown(text: str) -> list[str]:
    return [line for finding in diagnose(parse_text(text)) for line in finding.evidence["lines"]]


@pytest.mark.parametrize("text", FIRST.values(), ids=FIRST)
def test_a_message_of_two_kinds_is_shown_once(text: str) -> None:
    for finding in diagnose(parse_text(text)):
        places = [line.split(": ")[0] for line in finding.evidence["lines"]]
        assert len(places) == len(set(places))


def test_two_messages_on_one_line_are_both_shown() -> None:
    """Of two writers, one overtook the other's newline."""
    extend = "Error: failed to extend /dev/shm/nccl-aB3dEf to 9637892 bytes, error: No space left on device (28)"
    attach = "Error while attaching to shared memory segment /dev/shm/nccl-x (size 9637888)"
    glued = f"{WA}misc/shmutils.cc:38 NCCL WARN {extend}node02:200:230 [0] misc/shmutils.cc:81 NCCL WARN {attach}\n"
    assert sorted(shown(glued)) == [f"-:1: {attach}", f"-:1: {extend}"]


def test_how_often_a_message_of_two_kinds_came_is_kept() -> None:
    line = f"{WA}misc/shmutils.cc:38 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637892 bytes, error: No space left on device\n"
    (one,) = shown(line * 3)
    assert one.endswith(" (and 2 more like it)")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("mpirun noticed that process rank 3 with PID 1 on node node01 exited on signal 6 (Aborted).", "rank_died"),
        ("[ 1.0] DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xfe", "acs_iommu"),
        ("[ 9.0] mlx5_core 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0 address=0x0]", "acs_iommu"),
    ],
)
def test_a_lone_line_of_another_program_after_a_job_that_came_up(line: str, cause: str) -> None:
    findings = diagnose(parse_text(CAME_UP + "step 1 loss 2.0\n" * 100 + line))
    assert [(f.status, f.cause) for f in findings] == [(Status.FAIL, cause)]


def test_a_job_that_somebody_ended_did_not_fail() -> None:
    text = "mpirun noticed that process rank 3 with PID 1 on node node01 exited on signal 15 (Terminated)."
    (finding,) = diagnose(parse_text(CAME_UP + text))
    assert finding.status is Status.UNKNOWN and "asked to end" in finding.message


def test_of_many_kinds_the_earliest_are_shown() -> None:
    """Six lines are shown; the first that failed must be among them."""
    lines = [
        "[ 9.0] NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=python",
        f"{WA}enqueue.cc:1402 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
        f"{WA}transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4000> with status=9 opcode=0 len=0 vendor err 136",
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        f"{WA}proxy.cc:1500 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable",
        "srun: error: node02: task 3: Exited with exit code 1",
        "Root Cause (first observed failure):",
    ]
    (finding,) = (f for f in diagnose(parse_text("\n".join(lines))) if f.cause == "rank_died")
    assert [int(one.split(":")[1]) for one in finding.evidence["lines"]] == [1, 2, 3, 4, 5, 6]


def test_a_line_of_another_lines_shape_breaks_no_rule() -> None:
    """Shapes leave out hexadecimal letters: "Xi" is read as "Xid" was, and its pattern catches nothing."""
    lines = ("NVRM: Xid (PCI:0): 79, x", "NVRM: Xi (PCI:0): 79, x")
    facts = parse_text("".join(f"n{i}:1:1 [0] NCCL WARN {line}\n" for i, line in enumerate(lines)))
    assert [e.data for e in facts.of("xid")] == [{"xid": "79"}, {}]
    assert diagnose(facts)[0].cause == "inventory"


def test_a_refused_registration_ends_the_job() -> None:
    line = "n:1:2 [0] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address\n"
    first = diagnose(parse_text(line))[0]
    assert first.cause == "gdr_disabled" and first.why is not None and first.why.startswith("the job stops")
