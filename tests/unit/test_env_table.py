"""The table of verdicts, the healthy set-ups, and what looks at more than one variable."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from netdoctor.compare.traits import traits
from netdoctor.facts.environ import Origin, Setting
from netdoctor.facts.nccl_version import parse as parse_version
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.variables import catalogue
from netdoctor.variables.issue import Known
from netdoctor.variables.judge import judge, judge_conf, set_twice
from tests.support.facts.variables import HEALTHY, NEW, OLD, ROWS


def verdict(name: str, value: str, version: str, **known: object) -> list[Finding]:
    return judge([Setting(name, value)], Known(parse_version(version), **known))  # type: ignore[arg-type]


def together(values: dict[str, str], version: str | None = NEW, **known: object) -> dict[str, tuple[str, str]]:
    """{variable: (status, rule)} of variables that are set together."""
    settings = [Setting(n, v) for n, v in values.items()]
    found = judge(settings, Known(parse_version(version) if version else None, **known))  # type: ignore[arg-type]
    return {f.subject: (f.status.value, f.evidence["rule"]) for f in reversed(found)}


def test_the_table_is_large_enough() -> None:
    assert len(ROWS) >= 120
    assert len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize(("name", "value", "version", "status", "rule"), ROWS)
def test_verdict(name: str, value: str, version: str, status: str, rule: str) -> None:
    found = verdict(name, value, version)
    assert [(f.status.value, f.evidence["rule"]) for f in found] == [(status, rule)]
    row = catalogue.lookup(name)
    assert found[0].evidence["row"] == (row.row if row else None)
    assert found[0].status is not Status.FAIL or (found[0].severity and found[0].fix)


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_setups_have_no_fail(name: str) -> None:
    version, values = HEALTHY[name]
    found = judge([Setting(n, v) for n, v in values.items()], Known(parse_version(version)))
    assert [f.message for f in found if f.status is Status.FAIL] == []
    assert [f.message for f in found if f.status is Status.UNKNOWN and f.blocking] == []
    assert len(found) == len(values)


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_setups_have_no_fail_without_a_known_version(name: str) -> None:
    found = judge([Setting(n, v) for n, v in HEALTHY[name][1].items()], Known())
    assert [f.message for f in found if f.status is Status.FAIL] == []


@pytest.mark.parametrize(
    ("threads", "each", "expected"),
    [
        ("8", "8", ("pass", "sockets-tuned")),
        ("8", "9", ("fail", "socket-product")),
        ("16", "8", ("fail", "socket-product")),
        ("0", "8", ("fail", "no-effect")),
        ("0", "1", ("pass", "sockets-tuned")),
        ("1", "64", ("pass", "sockets-tuned")),
    ],
)
def test_socket_product(threads: str, each: str, expected: tuple[str, str]) -> None:
    found = together({"NCCL_SOCKET_NTHREADS": threads, "NCCL_NSOCKS_PERTHREAD": each})
    assert found["NCCL_NSOCKS_PERTHREAD"] == expected


@pytest.mark.parametrize(
    ("name", "kind"), [("NCCL_SOCKET_IFNAME", "links"), ("GLOO_SOCKET_IFNAME", "links"), ("NCCL_IB_HCA", "hcas")]
)
def test_what_there_is_to_choose_from_is_told_once(name: str, kind: str) -> None:
    (found,) = verdict(name, "nope9", NEW, **{kind: ["f1", "f0", "f0"]})
    assert found.expected == "one of: f0, f1"


HCAS = [f"mlx5_{i}" for i in range(12)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("mlx5_1", ("fail", "prefix")),
        ("=mlx5_1", ("pass", "ok")),
        ("mlx5_1,mlx5_10,mlx5_11", ("pass", "ok")),
        ("mlx5_0,mlx5_3", ("pass", "ok")),
        ("mlx5", ("pass", "ok")),
        ("mlx5_", ("pass", "ok")),
        ("^mlx5_1", ("pass", "ok")),
        ("mlx5_20", ("fail", "no-match")),
        ("mlx4_0", ("fail", "no-match")),
        ("mlx5_2:1", ("pass", "ok")),
        # as the unmodified 2.27.5, 2.29.7, 2.30.7 and 2.32.3 take them: TCP without a word, or all
        ("mlx5_2:x", ("fail", "no-match")),
        ("mlx5_2:1x", ("pass", "ok")),
        ("m", ("pass", "ok")),
        ("=", ("pass", "ok")),
        ("^", ("fail", "no-match")),
    ],
)
def test_hcas_of_a_known_node(value: str, expected: tuple[str, str]) -> None:
    assert together({"NCCL_IB_HCA": value}, hcas=HCAS)["NCCL_IB_HCA"] == expected


LINKS = ["lo", "eth0", "eth1", "eth10", "docker0", "virbr0", "bond0", "bond0.100", "bond0:1"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("eth0", ("pass", "ok")),
        ("eth1", ("fail", "prefix")),
        ("bond0", ("pass", "prefix")),
        ("=eth1", ("pass", "ok")),
        ("eth", ("pass", "ok")),
        ("ens", ("fail", "no-match")),
        ("=eth", ("fail", "no-match")),
        ("^lo", ("fail", "readmits-bridge")),
        ("^docker,lo", ("fail", "readmits-bridge")),
        ("^docker,lo,virbr", ("pass", "ok")),
        ("^lo,eth,docker,virbr,bond", ("fail", "no-match")),
        ("^docker", ("fail", "readmits-lo")),
    ],
)
def test_interfaces_of_a_known_node(value: str, expected: tuple[str, str]) -> None:
    assert together({"NCCL_SOCKET_IFNAME": value}, links=LINKS)["NCCL_SOCKET_IFNAME"] == expected


@pytest.mark.parametrize(
    ("value", "links", "expected"),
    [
        ("eth0 # data", None, "eth0"),
        ("eth0\r", None, "eth0"),
        ("^lo,docker", ["eth0", "virbr0", "virbr0"], "^lo,docker,virbr"),
    ],
)
def test_what_is_expected_is_what_was_meant(value: str, links: list[str] | None, expected: str) -> None:
    (finding,) = judge([Setting("NCCL_SOCKET_IFNAME", value, Origin("j", 1))], Known((2, 27, 5), links=links))
    assert finding.expected == expected


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "GLOO_SOCKET_IFNAME"])
def test_quotes_of_a_text_program_are_part_of_the_value(name: str) -> None:
    (finding,) = judge([Setting(name, "\u201ceth0\u201d", Origin("j", 1))], Known())
    assert finding.evidence["rule"] == "quoted"


def test_a_default_that_is_written_out_is_told() -> None:
    told = [
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_DISABLE", "1"),
        ("NCCL_IB_DISABLE", "0x"),
        ("NCCL_DEBUG", ""),
        ("NCCL_IB_TC", "-1"),
    ]
    written = {"nccl_variables": {"NCCL_IB_DISABLE": "0", "NCCL_ALGO": "Ring"}}
    assert list(traits(written, "", catalogue.is_default).values.values()) == ["Ring"]
    assert [catalogue.is_default(name, value) for name, value in told] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("value", "rule"), [("eth0", "ok"), ("eth", "no-match"), ("eth0,ens1", "no-match"), ("lo", "loopback")]
)
def test_gloo_takes_exact_names(value: str, rule: str) -> None:
    assert together({"GLOO_SOCKET_IFNAME": value}, links=LINKS)["GLOO_SOCKET_IFNAME"][1] == rule


@pytest.mark.parametrize("name", ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"])
@pytest.mark.parametrize(
    ("values", "nodes", "expected"),
    [
        (("lo", ""), None, ("pass", "loopback")),
        (("lo", "eth0"), None, ("pass", "loopback")),
        (("lo", ""), 1, ("pass", "loopback")),
        (("lo", ""), 8, ("fail", "loopback")),
        (("docker0", "eth0"), None, ("fail", "bridge")),
        (("docker0", "eth0"), 1, ("pass", "ok")),
        (("docker0", ""), None, ("pass", "bridge")),
        (("docker0", ""), 2, ("fail", "bridge")),
        (("eth0", "docker0"), 2, ("pass", "ok")),
    ],
)
def test_an_interface_of_one_node_serves_one_node(
    name: str, values: tuple[str, str], nodes: int | None, expected: tuple[str, str]
) -> None:
    (other,) = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"} - {name}
    for links in (None, ["lo", "eth0", "docker0"]):
        assert together({name: values[0], other: values[1]}, nodes=nodes, links=links)[name] == expected


@pytest.mark.parametrize(
    ("name", "value", "known", "expected"),
    [
        ("NCCL_IB_HCA", "mlx5_0", {"hcas": Unavailable("denied")}, "unknown"),
        ("NCCL_SOCKET_IFNAME", "eth0", {"links": Unavailable("denied")}, "unknown"),
        ("GLOO_SOCKET_IFNAME", "eth0", {"links": Unavailable("denied")}, "unknown"),
        ("NCCL_SOCKET_IFNAME", "eth0 ", {"links": Unavailable("denied")}, "fail"),
        ("NCCL_DEBUG", "WARN", {"links": Unavailable("denied")}, "pass"),
        ("NCCL_IB_HCA", "mlx5_0", {}, "pass"),
    ],
)
def test_devices_that_could_not_be_read_are_not_matched(name: str, value: str, known: dict[str, object], expected: str) -> None:
    assert verdict(name, value, NEW, **known)[0].status.value == expected


@pytest.mark.parametrize(("nodes", "severity"), [(None, None), (1, None), (2, Severity.CRITICAL)])
@pytest.mark.parametrize("value", ["127.0.0.1:6000", "localhost:6000", "[::1]:6000"])
def test_the_root_at_the_loopback_serves_one_node(value: str, nodes: int | None, severity: Severity | None) -> None:
    assert verdict("NCCL_COMM_ID", value, NEW, nodes=nodes)[0].severity is severity


def test_lo_is_critical_only_where_several_nodes_are_known() -> None:
    assert verdict("NCCL_SOCKET_IFNAME", "^docker", NEW)[0].severity is Severity.WARNING
    assert verdict("NCCL_SOCKET_IFNAME", "^docker", NEW, nodes=2)[0].severity is Severity.CRITICAL


@pytest.mark.parametrize(
    "known", [{"hcas": ()}, {"nodes": 1}, {"plugin": "aws-ofi-nccl"}], ids=["no RDMA device", "one node", "a plugin"]
)
def test_infiniband_off_is_no_fault_where_it_is_not_used(known: dict[str, object]) -> None:
    assert verdict("NCCL_IB_DISABLE", "1", NEW, **known)[0].status is Status.PASS
    assert verdict("NCCL_IB_DISABLE", "1", NEW)[0].status is Status.FAIL


def test_what_a_plugin_sets_is_nobodys_fault() -> None:
    plain = verdict("NCCL_BUFFSIZE", "8388608", NEW)[0]
    with_plugin = verdict("NCCL_BUFFSIZE", "8388608", NEW, plugin="aws-ofi-nccl")[0]
    assert plain.notes and not with_plugin.notes


def test_debug_variables_are_judged_with_each_other() -> None:
    found = together({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG_FILE": "/tmp/nccl.log"})
    assert found["NCCL_DEBUG_SUBSYS"] == ("pass", "ok")
    assert found["NCCL_DEBUG_FILE"] == ("pass", "one-file")
    assert together({"NCCL_DEBUG_FILE": "/tmp/%h.%p"})["NCCL_DEBUG_FILE"] == ("pass", "no-effect")
    assert together({"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "8"})["NCCL_MIN_NCHANNELS"] == ("fail", "min-above-max")


@pytest.mark.parametrize(
    ("name", "value", "version", "expected"),
    [
        ("NCCL_IB_HCA", "mlx5_2:", "2.29.7", ("fail", "no-match")),
        ("NCCL_IB_HCA", "mlx5_2:", "2.30.7", ("pass", "ok")),
        ("NCCL_DMABUF_ENABLE", "false", "2.30.7", ("pass", "read-as-zero")),
        ("NCCL_DMABUF_ENABLE", "false", "2.32.3", ("fail", "read-as-default")),
        ("NCCL_IB_DISABLE", "false", "2.32.3", ("pass", "read-as-zero")),
        ("NCCL_DEBUG", "ATTN", "2.30.7", ("fail", "grammar")),
    ],
)
def test_what_versions_read_differently(name: str, value: str, version: str, expected: tuple[str, str]) -> None:
    assert together({name: value}, version, hcas=HCAS)[name] == expected


def test_attn_is_a_level_of_2_32() -> None:
    assert together({"NCCL_DEBUG": "ATTN"}, "2.32.3")["NCCL_DEBUG"][0] == "pass"


def test_a_version_that_is_not_known_is_not_guessed() -> None:
    assert together({"NCCL_SOCKET_RCVBUF": "1"}, None)["NCCL_SOCKET_RCVBUF"] == ("unknown", "version-unknown")
    assert together({"NCCL_IB_DISABLE": "true"}, None)["NCCL_IB_DISABLE"] == ("fail", "read-as-zero")
    assert together({"NCCL_ALGO": "Ring"}, None)["NCCL_ALGO"] == ("pass", "pinned")


def test_conf_file_against_environment() -> None:
    entries = [
        Setting("NCCL_DEBUG", "INFO", Origin("/home/a/.nccl.conf", 1)),
        Setting("NCCL_ALGO", "Ring", Origin("/home/a/.nccl.conf", 2)),
        Setting("NCCL_ALGO", "Tree", Origin("/etc/nccl.conf", 1)),
        Setting("export NCCL_PROTO", "LL", Origin("/etc/nccl.conf", 2)),
        Setting("NCCL_NTHREADS ", " 256", Origin("/etc/nccl.conf", 3)),
        Setting("PATH", "/x", Origin("/etc/nccl.conf", 4)),
    ]
    found = judge_conf(entries, {"NCCL_DEBUG": "WARN"})
    assert [(f.subject, f.status.value, f.evidence["rule"]) for f in found] == [
        ("NCCL_DEBUG", "pass", "conf-shadowed"),
        ("NCCL_ALGO", "pass", "conf-shadowed"),
        ("NCCL_PROTO", "fail", "conf-name"),
        ("NCCL_NTHREADS", "fail", "conf-name"),
    ]
    assert "the environment says WARN" in found[0].notes[0]
    assert "/home/a/.nccl.conf:2 says Ring" in found[1].notes[0]


def test_the_same_variable_twice() -> None:
    found = set_twice(Setting("NCCL_DEBUG", "INFO", Origin("j", 1)), Setting("NCCL_DEBUG", "WARN", Origin("j", 3)))
    assert (found.status, found.evidence["source"]) == (Status.FAIL, "j:3")
    assert "INFO (j:1)" in found.message


def test_explained_suggestions_are_real_names() -> None:
    for name, value, version, _, rule in ROWS:
        if rule == "unknown-name" and (expected := verdict(name, value, version)[0].expected):
            assert catalogue.lookup(expected), name
    assert verdict("NCCL_SOCKET_IFNAM", "x", NEW)[0].expected == "NCCL_SOCKET_IFNAME"
    assert verdict("NCCL_DISABLE_P2P", "1", OLD)[0].expected == "NCCL_P2P_DISABLE"


NAMES = st.sampled_from(sorted(catalogue.table())) | st.from_regex(
    r"(NCCL|TORCH_NCCL|GLOO|UCX|FI)_[A-Z_]{1,12}", fullmatch=True
)
VALUES = st.text(max_size=30) | st.sampled_from(
    ["1", "0", "-2", "^", "=", "^=", ",", "^,", "=a", "a:b", ";", "0x", "00", "\x00"]
)
VERSIONS = st.none() | st.tuples(st.just(2), st.integers(0, 40), st.integers(0, 12))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=6), VERSIONS, st.none() | st.lists(VALUES, max_size=3))
def test_nothing_raises(values: dict[str, str], version: tuple[int, int, int] | None, known: list[str] | None) -> None:
    found = judge([Setting(n, v) for n, v in values.items()], Known(version, links=known, hcas=known))
    named = {name for f in found for name in f.evidence.get("names", (f.subject,))}  # many that nobody knows are one finding
    assert named == {name for name in values if catalogue.program_of(name) or catalogue.lookup(name)}
    assert all(f.evidence["rule"] for f in found)


def test_catalogue_rows_are_whole() -> None:
    from netdoctor.nccl.integers import ranges
    from netdoctor.variables.grammar import GRAMMARS

    for row in catalogue.table().values():
        assert (row.first is None) == (row.program != "nccl"), row.name
        assert row.first is None or row.last is None or row.first <= row.last, row.name
        plain = row.accepts in ("", "flag", "one", "int", "path", "text", "alias") or row.accepts in GRAMMARS
        assert plain or ranges(row.accepts) or "|" in row.accepts, row.name
        assert row.program != "none" or row.note, row.name
        assert [since for since, _ in row.history] == sorted(since for since, _ in row.history), row.name


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("NCCL_BUFFSIZE", "4M", "4194304, if 4 MiB were meant"),
        ("NCCL_BUFFSIZE", "4e6", "4000000, if 4e6 was meant"),
        ("NCCL_BUFFSIZE", "4_194_304", "4194304, if 4_194_304 was meant"),
        ("NCCL_BUFFSIZE", "4e", "4"),
        ("NCCL_BUFFSIZE", "512k", "524288, if 512 KiB were meant"),
        ("NCCL_BUFFSIZE", "1GiB", "1073741824, if 1 GiB were meant"),
        ("NCCL_BUFFSIZE", "8MB ", "8388608, if 8 MiB were meant"),
        ("NCCL_BUFFSIZE", "4194304x", "4194304"),
        ("NCCL_BUFFSIZE", "9223372036854775807K", "9223372036854775807"),
        ("NCCL_IB_TIMEOUT", "20M", "20"),  # no size: 0 to 31
    ],
)
def test_a_size_with_a_suffix_is_told_in_bytes(name: str, value: str, expected: str) -> None:
    found = verdict(name, value, NEW)[0]
    assert (found.status, found.evidence["rule"], found.expected) == (Status.FAIL, "junk", expected)


@pytest.mark.parametrize(
    ("value", "version", "said"),
    [("FOO", NEW, "no such level"), ("foo", NEW, "no such level"), ("nvl", NEW, "upper case"), ("P2C", OLD, "this version")],
)
def test_a_level_that_is_none_is_told_what_there_is(value: str, version: str, said: str) -> None:
    found = verdict("NCCL_P2P_LEVEL", value, version)[0]
    assert said in found.message
    assert str(found.expected).startswith("LOC, NVL, ")


@pytest.mark.parametrize("digits", ["1" * 5000, "-" + "1" * 5000, "0" * 5000 + "9", "0" * 5000 + "7", "0x" + "f" * 5000])
@pytest.mark.parametrize(
    ("name", "before"),
    [("NCCL_BUFFSIZE", ""), ("NCCL_P2P_LEVEL", ""), ("NCCL_COMM_ID", "h:"), ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "")],
)
def test_more_digits_than_int_takes_are_judged(name: str, before: str, digits: str) -> None:
    assert len(verdict(name, before + digits, NEW)) == 1


@pytest.mark.slow
def test_names_that_nobody_knows_are_one_finding() -> None:
    many = [Setting(f"NCCL_UNKNOWN_THING_{n}", "1") for n in range(20_000)]
    (found,) = judge(many, Known())
    assert found.status is Status.FAIL and found.message.startswith("20000 names")
    others = [Setting(f"UCX_UNKNOWN_THING_{n}", "1") for n in range(9)]
    assert [f.status for f in judge(others, Known())] == [Status.UNKNOWN]


def test_a_slip_among_unknown_names_stays_on_its_own() -> None:
    many = [Setting(f"NCCL_UNKNOWN_THING_{n}", "1") for n in range(9)]
    found = judge([*many[:5], Setting("NCCL_IB_TIMOUT", "22"), *many[5:]], Known(parse_version(NEW)))
    assert [f.expected for f in found] == [None, "NCCL_IB_TIMEOUT"]


@pytest.mark.parametrize("name", ["NCCL_FASTRAK_CTRL_DEV", "NCCL_GPUDIRECTTCPX_TX_BINDINGS", "NCCL_SHIMNET_SHIM_LAYERS"])
def test_what_a_clouds_guide_sets_is_known(name: str) -> None:
    (found,) = judge([Setting(name, "eth0")], Known(parse_version(NEW)))
    assert found.status is Status.PASS and "Google" in found.notes[0]
