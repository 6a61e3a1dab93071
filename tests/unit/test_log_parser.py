"""NCCL's lines of every era, with every launcher's prefix, as facts.  Formats and their versions: NCCL src/, tags 2.4.2 to 2.32.3."""

# ruff: noqa: E501  (log lines are as long as NCCL writes them)

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.facts import GdrUse
from netdoctor.nccl.log.parser import Parser, parse_bytes, parse_text
from netdoctor.nccl.log.prefix import MAX_LINE

P = "node01:100:130 [0] NCCL INFO "

# (lines, field, value): what stands in facts when these lines are the log.  Versions in the comment: first – last.
ERAS: list[tuple[str, str, Any]] = [
    (P + "Bootstrap : Using [0]eth0:10.0.0.2<0> [1]eth1:10.1.0.2<0>", "bootstrap_ifname", "eth0"),  # 2.4.8 – 2.7.8
    (P + "Bootstrap : Using eth0:10.0.0.2<0>", "bootstrap_ifname", "eth0"),  # 2.8.3 – 2.23.4
    (P + "Bootstrap: Using eth0:10.0.0.2<0>", "bootstrap_ifname", "eth0"),  # 2.24.3 –
    (P + "Bootstrap: Using eth0:fe80::1%eth0<0>", "bootstrap_address", "fe80::1%eth0"),
    (P + "NET : Using interface ib0:12.12.12.102<0>", "bootstrap_ifname", "ib0"),  # 2.3
    ("NCCL version 2.10.3+cuda11.3", "nccl_version", "2.10.3"),  # – 2.24, bare
    ("NCCL version 2.7.8+cuda10.2NCCL version 2.7.8+cuda10.2", "nccl_version", "2.7.8"),
    (P + "NCCL version 2.27.3+cuda12.9", "cuda_version", "12.9"),  # 2.22 –
    (P + "NCCL version 2.26.5+cuda.", "nccl_version", "2.26.5"),
    ("(RayWorkerWrapper pid=663) NCCL version 2.21.5+cuda12.4", "nccl_version", "2.21.5"),
    ("INFO 01-02 03:04:05 pynccl.py:63] vLLM is using nccl==2.20.5", "nccl_version", "2.20.5"),
    (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: /x.cpp:3699, remote process exited, NCCL version 2.27.3",
        "nccl_version",
        "2.27.3",
    ),
    (
        P + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE ; OOB eth0:10.0.0.2<0>",
        "devices",
        ["mlx5_0/IB", "mlx5_1/RoCE"],
    ),  # 2.4.2 – 2.11.4
    (P + "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.2<0>", "devices", ["mlx5_0/IB"]),  # 2.12.7 –
    (
        P + "NET/IB : Using [0]={[0] mlx5_0:1/IB, [1] mlx5_1:1/IB} [RO]; OOB eth0:10.0.0.2<0>",
        "devices",
        ["mlx5_0/IB", "mlx5_1/IB"],
    ),  # 2.20 – 2.23
    (P + "NET/IB : Using [0]mlx5_0:1/IB/SHARP [RO]; OOB eth0:10.0.0.2<0>", "devices", ["mlx5_0/IB/SHARP"]),
    (P + "NET/IB : Using [RO]; OOB eth0:10.0.0.2<0>", "devices", []),
    (P + "NET/IB : No device found.", "no_ib_device", True),
    (P + "Failed to open libibverbs.so[.1]", "libibverbs_missing", True),  # 2.11.4 – 2.29.7
    (
        "node01:100:130 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]",
        "libibverbs_missing",
        True,
    ),  # – 2.10.3
    (P + "Count not open libibverbs.so", "libibverbs_missing", True),  # 2.30
    (P + "Using internal Network Socket", "net", "Socket"),  # 2.3
    (P + "Using network IB", "net", "IB"),  # 2.6.4 –
    (P + "Using network IBext_v8", "net", "IB"),
    (P + "Using network AWS Libfabric", "net", "Libfabric"),
    (P + "Using network Libfabric", "net", "Libfabric"),
    (P + "Using network gIB", "net", "gIB"),
    (P + "Assigned NET plugin IB to comm", "net", "IB"),  # 2.27.3 –
    (P + "transport/net_socket.cc:474 -> 6", "net", "Socket"),
    (P + "NET/Socket : Using [0]eth0:10.0.0.2<0> [1]eth1:10.1.0.2<0>", "socket_interfaces", ["eth0", "eth1"]),
    (P + "NET/Plugin: Loaded net plugin IBext_v10 (v10)", "plugin", "IBext_v10"),
    (
        P
        + "NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory",
        "plugin_error",
        None,
    ),
    (
        P
        + "NET/Plugin : dlerror=libfabric.so.1: cannot open shared object file: No such file or directory No plugin found (libnccl-net.so), using internal implementation",
        "plugin_error",
        "libfabric.so.1: cannot open shared object file: No such file or directory",
    ),
    (P + "Ring 00 : 1 -> 0 [receive] via NET/Socket/0", "transports", {"NET/Socket/0": 1}),  # 2.4
    (P + "Ring 00 : 0[1000] -> 1[2000] via P2P/IPC", "transports", {"P2P/IPC": 1}),  # 2.5 – 2.6
    (P + "Channel 00 : 0[1000] -> 1[2000] via direct shared memory", "transports", {"SHM/direct": 1}),  # 2.7 – 2.12.12
    (P + "Channel 00 : 0[1] -> 1[2] via SHM/direct/direct", "transports", {"SHM/direct/direct": 1}),  # 2.13.4 – 2.30.4
    (P + "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "transports", {"P2P/CUMEM/read": 1}),
    (P + "Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "transports", {"P2P/direct pointer": 1}),
    (P + "Channel 00/0 : 0[0] -> 7[7] via P2P/indirect/3[3]", "transports", {"P2P/indirect": 1}),
    (
        P + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0(8)/GDRDMA/Shared",
        "transports",
        {"NET/IB/0/GDRDMA": 1},
    ),  # 2.12 –, PXN
    (P + "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA(PCI)", "transports", {"NET/IB/0/GDRDMA": 1}),  # 2.26 –
    (
        P + "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/AWS Libfabric/1/GDRDMA",
        "transports",
        {"NET/AWS Libfabric/1/GDRDMA": 1},
    ),
    (P + "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA", "collnet", True),  # 2.14 –
    ("Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/2", "gdrdma", GdrUse.NONE),  # prefix cut off
    (P + "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/2/GDRDMA", "gdrdma", GdrUse.ALL),
    (
        P
        + "Channel 00/0 : 0[0] -> 8[0] [receive] via NET/IB/2/GDRDMA\n"
        + P
        + "Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/2",
        "gdrdma",
        GdrUse.SOME,
    ),
    (
        P + "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)",
        "gdr_hca",
        {"node01/mlx5_0": False},
    ),  # 2.5.6 – 2.12.12
    (P + "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", "gdr_hca", {"node01/mlx5_0": True}),  # 2.13.4 –
    (P + "GPU Direct RDMA Disabled for GPU 1a000 / HCA 2 (distance 5 > 2)", "gdr_distance", {"disabled": 1}),  # 2.6.4 – 2.20.5
    (P + "DMA-BUF is available on GPU device 0", "dmabuf", True),
    (P + "NVLS multicast support is available on dev 0", "nvls", True),  # 2.17.1 –
    (P + "NVLS multicast support is not available on dev 0 (NVLS_NCHANNELS 0)", "nvls", False),
    (P + "MNNVL 1 cliqueId 7 cliqueSize 8 cliqueRank 0", "mnnvl", True),
    (P + "SHARP rank 0/2 initialized on mlx5_0:1", "sharp", True),
    (
        P + "8 coll channels, 16 p2p channels, 4 p2p channels per peer",
        "channels",
        {"coll": 8, "p2p": 16, "p2p_per_peer": 4},
    ),  # 2.7.3 – 2.16.5
    (
        P + "16 coll channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
        "channels",
        {"coll": 16, "nvls": 16, "p2p": 16, "p2p_per_peer": 2},
    ),  # 2.17.1 – 2.19.4
    (P + "8388608 Bytes -> Algo 1 proto 2 time 110.0", "algorithms", {"? 1/2": 1}),  # – 2.22
    (
        P + "AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}",
        "algorithms",
        {"AllReduce RING/SIMPLE": 1},
    ),  # 2.24.3 –
    (P + "Setting affinity for GPU 0 to ff,ffff0000", "affinity", ("GPU 0: ff,ffff0000",)),  # – 2.27.7
    (
        P + "ncclTopoGetCpuAffinity: Affinity for GPU 0 is 0-23,48-71. (GPU affinity = 0-23,48-71 ; CPU affinity = 0-95).",
        "affinity",
        ("GPU 0: 0-23,48-71",),
    ),  # 2.28.3 –
    (P + "comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 - Init COMPLETE", "nranks", 8),  # 2.4
    (P + "comm 0x7f10 rank 3 nranks 8 cudaDev 3 busId 1a000 - Init COMPLETE", "comms_complete", 1),  # 2.5.6 – 2.15.5
    (P + "comm 0x7f10 rank 3 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 0", "nodes", 2),  # 2.20.3 –
    (
        P
        + "[Rank 3] ncclCommInitRankConfig comm 0x7f10 rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 1a000 commId 0xab - Init START",
        "comms_started",
        1,
    ),  # 2.29.2 –
    (P + "Init timings: rank 0 nranks 4 total 1.28 (kernels 0.23, bootstrap 0.90)", "init_seconds", 1.28),  # 2.22.3
    (
        P + "Init timings - ncclCommInitRankConfig: rank 0 nranks 4 total 1.28 (kernels 0.23, alloc 0.09)",
        "init_seconds",
        1.28,
    ),  # 2.23.4 –
    (P + "NCCL_P2P_DISABLE set by environment to 1.", "env", {"NCCL_P2P_DISABLE": "1"}),
    (P + "NCCL_IB_HCA set to mlx5_0", "env", {"NCCL_IB_HCA": "mlx5_0"}),
    (P + "NCCL_SOCKET_IFNAME set by environment to ^docker0,lo", "env", {"NCCL_SOCKET_IFNAME": "^docker0,lo"}),
    ("# Avg bus bandwidth    : 187.52", "busbw", 187.52),
    ("node01:100 NCCL DIAG [OK] NVLink: all links active", "diagnostics", ("[OK] NVLink: all links active",)),  # 2.31 –
    (P + "Connected all rings, use ring PXN 0 GDR 1", "rings", 1),  # 2.24.3 –
]

# (line with MSG in place of a message, host, pid, rank)
PREFIXES: list[tuple[str, str, int | None, tuple[int, ...]]] = [
    ("node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("node01.cluster.local:100:130 [-1] NCCL INFO MSG", "node01.cluster.local", 100, ()),
    ("vm:549:549 [22016] NCCL INFO MSG", "vm", 549, ()),
    ("[2026-01-02 03:04:05] node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("[1,3]<stdout>:node01:100:130 [0] NCCL INFO MSG", "node01", 100, (3,)),
    ("Mon Jan  2 03:04:05 2026[1,3]<stdout>:node01:100:130 [0] NCCL INFO MSG", "node01", 100, (3,)),
    ("12: node01:100:130 [0] NCCL INFO MSG", "node01", 100, (12,)),
    ("[rank3]: node01:100:130 [0] NCCL INFO MSG", "node01", 100, (3,)),
    ("[rank3]: [rank3]: node01:100:130 [0] NCCL INFO MSG", "node01", 100, (3,)),
    ("[default0]:node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("(RayWorkerWrapper pid=627, ip=10.244.1.107) node01:100:130 [1] NCCL INFO MSG", "node01", 100, ()),
    ("\x1b[36m(EngineCore_0 pid=42)\x1b[0;0m node01:100:130 [1] NCCL INFO MSG", "node01", 100, ()),
    ("2026-01-02T03:04:05.678901234Z stdout F node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("| 2026-01-02T03:04:05.678Z | node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("  | 2026-05-16T16:39:51.208-07:00node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("worker-0 worker-0 node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("[lrdn3031:0]:node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("> node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("451 node01:100:130 [0] NCCL INFO MSG", "node01", 100, ()),
    ("<cluster name>:924:924 [5] NCCL INFO MSG", "<cluster name>", 924, ()),
    ("node01:100:130 [0] misc/socket.cc:58 NCCL WARN MSG", "node01", 100, ()),
    ("node01:100:130 [0] misc/socket.cc:58 (socketProgress) NCCL WARN MSG", "node01", 100, ()),
    ("node01:100:130 [0] int cm_req(nccl_net_ofi_context_t*, fid_cq*, uint16_t):46 NCCL WARN MSG", "node01", 100, ()),
    ("node01 [0] misc/socket.cc:58 NCCL WARN MSG", "node01", None, ()),
    ("node01:7:7 [0] INFO MSG", "node01", 7, ()),
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
    got = shown(getattr(parse_text(text), field))
    assert got == value


@pytest.mark.parametrize(("line", "host", "pid", "ranks"), PREFIXES, ids=[str(i) for i in range(len(PREFIXES))])
def test_every_prefix(line: str, host: str, pid: int | None, ranks: tuple[int, ...]) -> None:
    facts = parse_text(line.replace("MSG", "Using network IB"))
    assert [(r.host, r.pid, r.ranks) for r in facts.ranks] == [(host, pid, ranks)]
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
    assert [(e.kind, e.line) for e in facts.events] == [("generic", 2 * step), ("register", 3 * step)]


@pytest.mark.parametrize("dense", [True, False])
def test_a_warning_with_another_record_behind_it_is_kept(dense: bool) -> None:
    """Of two writers, one overtook the other's newline."""
    filler = (P + "Trees [0] 1/-1/-1->0->-1\n") * 9 if dense else "step 1 loss 2.0\n" * 99
    warning = "node01:1:1 [0] misc/shmutils.cc:38 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9 bytes (28)"
    facts = parse_text(filler + warning + "node02:2:2 [0] NCCL INFO Using network Socket\n")
    assert [(e.kind, e.host) for e in facts.events] == [("shm_full", "node01")]
    assert facts.net == "Socket"


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize(
    ("line", "kind", "key", "value"),
    [
        ("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", "xid", "xid", "79"),
        ("Timed out after 301 seconds waiting for clients. 1/2 clients joined.", "store", "peer", None),
    ],
)
def test_a_line_of_a_long_log_is_read_wherever_it_stands(
    line: str, kind: str, key: str, value: str | None, place: str, alike: bool
) -> None:
    """Four MiB that say nothing, in blocks as the command reads them, once with lines that differ by more than digits."""
    count = 60_000
    lines = [f"iteration {n:8d} | loss {n / 7:.4f} | tokens per second {n * 13}" for n in range(count)]
    if not alike:
        spelled = str.maketrans("0123456789", "abcdghijkm")
        lines = [one.translate(spelled) for one in lines]
    number = {"first": 1, "middle": count // 2, "last": count}[place]
    lines[number - 1] = line
    data = "\n".join(lines).encode()
    parser = Parser()
    for at in range(0, len(data), 1 << 20):
        parser.feed(data[at : at + (1 << 20)])
    facts = parser.facts()
    assert len(data) > 3 << 20 and facts.lines == count
    assert [(e.kind, e.line, e.count, e.data.get(key), e.level) for e in facts.events] == [(kind, number, 1, value, None)]


def test_blocks_may_end_anywhere() -> None:
    text = "\n".join(row[0] for row in ERAS).encode()
    whole = parse_bytes(text)
    for size in (1, 13, 4096):
        parser = Parser()
        for at in range(0, len(text), size):
            parser.feed(text[at : at + size])
        assert parser.facts() == whole


def test_memory_does_not_grow_with_bytes() -> None:
    def kept(times: int) -> tuple[int, ...]:
        parser = Parser()
        for number in range(times):
            parser.feed(
                f"node01:1:{number % 4} [0] NCCL INFO socketPollConnect: connect to 10.0.0.9<{number}> returned Connection refused, retrying ({number}/34)\n".encode()
            )
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


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=400))
def test_any_text_after_a_prefix(text: str) -> None:
    assert diagnose(parse_text("node01:1:1 [0] a.cc:1 NCCL WARN " + text + "\n" + P + text))
