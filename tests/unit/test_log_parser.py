"""NCCL's lines of every era, with every launcher's prefix, as facts.  Formats and their versions: NCCL src/, tags 2.4.2 to 2.32.3."""

# ruff: noqa: E501  (log lines are as long as NCCL writes them)

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from netdoctor.model import plain
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import Parser, parse_bytes, parse_text
from netdoctor.nccl.log.prefix import MAX_LINE

P = "node01:100:130 [0] NCCL INFO "


def table(name: str) -> list[list[str]]:
    """The rows of a file of tests/unit/data, without its remarks."""
    text = (Path(__file__).parent / "data" / name).read_text()
    return [line.split("\t") for line in text.splitlines() if not line.startswith("# ")]


# (lines, field, value as JSON has it): what stands in facts when these lines are the log
ERAS: list[tuple[str, str, Any]] = [
    (text.replace("⏎", "\n"), field, json.loads(value)) for _, field, value, text in table("log_eras.tsv")
]
# (line with MSG in place of a message, host, pid, ranks)
PREFIXES: list[tuple[str, str, int | None, list[int]]] = [
    (text.replace("⇥", "\t"), host, json.loads(pid), json.loads(ranks))
    for _, host, pid, ranks, text in table("log_prefixes.tsv")
]


def shown(value: Any) -> Any:
    """Facts' dataclasses as what the table says."""
    if isinstance(value, tuple) and value and hasattr(value[0], "link"):
        return [f"{d.name}/{d.link}" for d in value]
    if isinstance(value, tuple) and value and hasattr(value[0], "ifname"):
        return [a.ifname for a in value]
    return [] if value == () else value


@pytest.mark.parametrize(("text", "field", "value"), ERAS, ids=[f"{i}-{row[1]}" for i, row in enumerate(ERAS)])
def test_every_era(text: str, field: str, value: Any) -> None:
    assert plain(shown(getattr(parse_text(text), field))) == value


@pytest.mark.parametrize(("line", "host", "pid", "ranks"), PREFIXES, ids=[str(i) for i in range(len(PREFIXES))])
def test_every_prefix(line: str, host: str, pid: int | None, ranks: list[int]) -> None:
    facts = parse_text(line.replace("MSG", "Using network IB"))
    assert [(r.host, r.pid, list(r.ranks)) for r in facts.ranks] == [(host, pid, ranks)]
    assert facts.network == "IB"


def test_two_records_on_one_line() -> None:
    facts = parse_text(P + "Bootstrap : Using eth0:10.0.0.2<0>node02:7:8 [1] NCCL INFO Using network IB")
    assert facts.hosts == ("node01", "node02")
    assert (facts.bootstrap_ifname, facts.network) == ("eth0", "IB")


def test_a_warning_that_somebody_wrapped() -> None:
    facts = parse_text(
        "ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument\n  dev mlx5_0:1, curr state INIT,\n  local GID ::ffff:10.0.1.2, remote GID ::\n"
    )
    (event,) = facts.of("modify_qp")
    assert (event.data["dev"], event.data["remote"], event.data["local"]) == ("mlx5_0", "::", "::ffff:10.0.1.2")


def test_line_numbers_are_the_files_own() -> None:
    parser = Parser()
    for name in ("a.log", "b.log"):
        parser.file(name)
        parser.feed(b"x\n" * 5 + b"node01:1:1 [0] init.cc:1 NCCL WARN Cuda failure 'out of memory'\n")
    assert [e.where for e in parser.facts().of("cuda")] == ["a.log:6"]  # the same process says the same: counted
    assert parser.facts().of("cuda")[0].count == 2


@pytest.mark.parametrize("dense", [True, False])
def test_rare_and_frequent_lines_are_read_alike(dense: bool) -> None:
    filler = [P + "Trees [0] 1/-1/-1->0->-1"] if dense else ["step 1 loss 2.0"] * 50
    wanted = [
        P + "Using network IB",
        "RuntimeError: NCCL error: unhandled system error",
        "node01:1:1 [0] a.cc:1 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
    ]
    text = "\n".join(line for one in wanted for line in [*filler, one])
    facts = parse_text(text)
    assert facts.net == "IB"
    step = len(filler) + 1
    assert [(e.kind, e.line) for e in facts.events] == [("generic", 2 * step), ("raised", 2 * step), ("register", 3 * step)]


@pytest.mark.parametrize("dense", [True, False])
def test_a_warning_with_another_record_behind_it_is_kept(dense: bool) -> None:
    """Of two writers, one overtook the other's newline."""
    filler = (P + "Trees [0] 1/-1/-1->0->-1\n") * 9 if dense else "step 1 loss 2.0\n" * 99
    warning = "node01:1:1 [0] misc/shmutils.cc:38 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes (28)"
    facts = parse_text(filler + warning + "node02:2:2 [0] NCCL INFO Using network Socket\n")
    assert [(e.kind, e.host) for e in facts.events] == [("shm_full", "node01")]
    assert facts.net == "Socket"


@pytest.mark.parametrize("alike", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("xid", "store"), list(itertools.pairwise(["first", "middle", "last", "first"])))
def test_a_line_of_a_long_log_is_read_wherever_it_stands(xid: str, store: str, alike: bool) -> None:
    """Over two MiB that say nothing, in blocks as the command reads them, once with lines that differ by more than digits.  The two
    lines stand in different blocks."""
    count = 35_000
    lines = [f"iteration {n:8d} | loss {n / 7:.4f} | tokens per second {n * 13}" for n in range(count)]
    if not alike:
        spelled = str.maketrans("0123456789", "abcdghijkm")
        lines = [one.translate(spelled) for one in lines]
    numbers = {"first": 1, "middle": count // 2, "last": count}
    lines[numbers[xid] - 1] = "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus."
    lines[numbers[store] - 1] = "Timed out after 301 seconds waiting for clients. 1/2 clients joined."
    data = "\n".join(lines).encode()
    parser = Parser()
    for at in range(0, len(data), 1 << 20):
        parser.feed(data[at : at + (1 << 20)])
    facts = parser.facts()
    assert len(data) > 2 << 20 and facts.lines == count
    assert sorted((e.kind, e.line, e.count, e.data.get("xid"), e.data.get("level")) for e in facts.events) == [
        ("store", numbers[store], 1, None, None),
        ("xid", numbers[xid], 1, "79", None),
    ]


def test_blocks_may_end_anywhere() -> None:
    text = "\n".join(row[0] for row in ERAS).encode()
    whole = parse_bytes(text)
    for size in (1, 13, 4096):
        parser = Parser()
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        assert parser.facts() == whole


@pytest.mark.slow
def test_memory_does_not_grow_with_bytes() -> None:
    def kept(times: int) -> tuple[int, ...]:
        parser = Parser()
        for number in range(times):
            parser.feed(
                f"node01:1:{number % 4} [0] NCCL INFO socketPollConnect: connect to 10.0.0.9<{number}> returned Connection refused, retrying ({number}/34)\n".encode()
            )
        parser.facts()
        state = parser.accumulator
        return len(state.events), len(state.processes), len(parser._shapes), len(parser._heads)

    assert kept(20000) == kept(200)


def test_an_endless_line_is_cut() -> None:
    parser = Parser()
    for _ in range(64):
        parser.feed(b"x" * MAX_LINE)
    assert len(parser._tail) <= MAX_LINE
    parser.feed(b"\n" + P.encode() + b"Using network IB\n")
    assert parser.facts().net == "IB"
    assert parser.facts().lines == 2


def test_absent_is_not_null() -> None:
    terse = parse_text("node01:1:1 [0] init.cc:1 NCCL WARN something")
    assert "nccl_version" in terse.absent
    assert any(how == "NCCL_DEBUG=INFO" for _, how in terse.unseen)
    told = parse_text(P + "Using network IB\n" + P + "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'")
    assert "plugin" not in told.absent and told.plugin is None
    assert "gdr_hca" not in told.absent
    assert "algorithms" in told.absent


def test_ranks_of_one_process_with_several_gpus() -> None:
    text = "".join(
        f"node01:5:{60 + i} [{i}] NCCL INFO comm 0x{i} rank {i} nranks 4 cudaDev {i} busId {i} - Init COMPLETE\n"
        for i in range(4)
    )
    (rank,) = parse_text(text).ranks
    assert rank.ranks == (0, 1, 2, 3)


def test_the_rank_of_an_event_is_its_devices() -> None:
    text = "".join(
        f"node01:5:{60 + i} [{i}] NCCL INFO comm 0x{i} rank {i + 8} nranks 16 cudaDev {i} busId {i} - Init COMPLETE\n"
        for i in range(4)
    )
    facts = parse_text(text + "node01:5:63 [2] enqueue.cc:1 NCCL WARN Cuda failure 'an illegal memory access was encountered'")
    assert facts.of("cuda")[0].rank == 10


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from([row[0].encode() for row in ERAS]),
            st.sampled_from([row[0].encode() for row in PREFIXES]),
        ),
        max_size=30,
    )
)
def test_any_bytes_give_facts_and_findings(lines: list[bytes]) -> None:
    assert diagnose(parse_bytes(b"\n".join(lines)))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_after_a_prefix(text: str) -> None:
    assert diagnose(parse_text("node01:1:1 [0] a.cc:1 NCCL WARN " + text + "\n" + P + text))


def test_devices_and_their_virtual_numbers() -> None:
    """As the unmodified NCCL 2.25.1 and 2.32.3 print them."""
    facts = parse_text(
        "n:1:1 [0] NCCL INFO NET/IB : Made virtual device [1] name=mlx5_1 speed=200000 ndevs=1\n"
        "n:1:1 [0] NCCL INFO NET/IB : Made virtual device [3] name=mlx5_0+mlx5_1 speed=400000 ndevs=2 rail=-1 plane=16385\n"
        "n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1:0/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.2<0>\n"
        "m:2:2 [0] NCCL INFO NET/IB : Made virtual device [1] name=mlx5_7 speed=200000 ndevs=1\n"
        "n:1:1 [0] NCCL INFO Channel 00/0 : 1[2] -> 0[0] [receive] via NET/IB/3/GDRDMA/flush=Always\n"
        "n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[2] [send] via NET/IB/1/GDRDMA\n"
    )
    assert [(d.name, d.port, d.link) for d in facts.devices] == [("mlx5_0", 1, "IB"), ("mlx5_1", 1, "RoCE")]
    assert facts.virtual_devices == {1: "", 3: "mlx5_0+mlx5_1"}  # two nodes call different ones by one number
    assert {v.direction.value: sorted(facts.hcas(v)) for v in facts.vias} == {"receive": ["mlx5_0", "mlx5_1"], "send": []}
    assert all(v.gdrdma for v in facts.vias)
