"""The report for people: the verdict first, what is wrong, what is right by area; or a line a check."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from netdoctor.causes.cost import STOPS
from netdoctor.model import Finding, Fix, Health, Report, Severity, Status
from netdoctor.report import terminal
from netdoctor.report.brief import render as brief
from netdoctor.report.text import render
from netdoctor.report.values import cut, shown
from tests.support.facts.reports import DRAWN, EVERY, FAIL, PAIRS, PASS, check, report, reports

WORDS = ("pass ", "FAIL ", "skip ", "UNKNOWN ", "ERROR ", "WAIVED ")
CSI = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", EVERY)
def test_verbose_has_one_line_a_check_and_the_verdict_last(name: str) -> None:
    one = EVERY[name]
    lines = render(one, verbose=True).splitlines()
    assert [line.split()[1] for line in lines if line.startswith(WORDS)] == [c.id for c in one.checks]
    assert lines[-1] == one.verdict.text
    if one.partial:
        assert one.partial in lines[-2]


@pytest.mark.parametrize("name", EVERY)
def test_the_verdict_comes_first_and_every_check_is_told(name: str) -> None:
    one = EVERY[name]
    lines = render(one).splitlines()
    assert one.verdict.text in lines[3:5]
    wrong = [line.split()[0] for line in lines if line.startswith(WORDS)]
    assert wrong == sorted(wrong, key=["FAIL", "WAIVED", "ERROR", "UNKNOWN", "pass", "skip"].index)
    for each in one.checks:  # beside a fail, what could not be told is a block with a line for each reason
        area, _, last = each.id.partition(".")
        folded = f"pass     {area} "
        told = [line for line in lines if line.startswith((*WORDS, " " * 9))]
        assert any(each.id in line or (line.startswith(folded) and last in line) for line in told)
    assert lines[-1] == one.verdict.text
    if one.partial:
        assert one.partial in lines[3]


def test_the_head_says_what_to_do_first() -> None:
    assert render(EVERY["unhealthy"]).splitlines()[5] == (
        "first: set NCCL_SOCKET_IFNAME=ib0 in the job's environment: export NCCL_SOCKET_IFNAME=ib0"
    )


@pytest.mark.parametrize(
    ("worst", "says"),
    [
        ({"how": "getent hosts n0"}, "first: getent hosts n0"),  # another one's mend does not come before it
        ({"how": "getent hosts n0", "fix": Fix("raise it", ("ulimit -n",))}, "first: raise it: ulimit -n"),
        ({}, "first: lesser mend"),
    ],
)
def test_the_first_step_is_of_the_worst_fail(worst: dict[str, Any], says: str) -> None:
    bad = check("a.worst", Finding(Status.FAIL, "no name", severity=Severity.CRITICAL, **worst))
    less = check("b.less", Finding(Status.FAIL, "slow", severity=Severity.WARNING, fix=Fix("lesser mend")))
    open_ = check("c.open", Finding(Status.UNKNOWN, "not seen", how="netdoctor preflight"))
    assert says in render(report(open_, less, bad)).splitlines()


def test_of_one_cause_the_command_comes_first() -> None:
    thought, copied = Fix("correct it: one of: eth0"), Fix("set it", ("export A=eth0",))
    bad = [
        check(name, Finding(Status.FAIL, "no match", severity=Severity.CRITICAL, cause=cause, fix=fix))
        for name, cause, fix in (("a.one", "mtu", thought), ("b.other", "hang", copied), ("c.same", "mtu", copied))
    ]
    assert "first: set it: export A=eth0" in render(report(*bad)).splitlines()
    assert "first: correct it: one of: eth0" in render(report(*bad[:2])).splitlines()


def test_an_inconclusive_report_says_what_to_do_first() -> None:
    one = check("allreduce.run", Finding(Status.UNKNOWN, "no torch", how="give --python"))
    assert "first: give --python" in render(report(one)).splitlines()
    assert "first: " not in render(report(check("a.b", Finding(Status.PASS, "right")), one))


def test_a_run_that_did_not_come_to_be_is_what_to_do_first() -> None:
    """Nothing is wrong with the node (an environment whose libraries have too few descriptors): the all-reduce is left."""
    lost = check("allreduce.run", Finding(Status.UNKNOWN, "the all-reduce did not start", how="ulimit -n 1024"))
    well = [check("a.right", Finding(Status.PASS, "right")), check("a.other", Finding(Status.UNKNOWN, "no", how="as root"))]
    run = {"ranks": 2, "backend": "gloo", "device": "cpu", "state": "not started"}
    assert "first: ulimit -n 1024" in render(replace(report(*well, lost), runs=(run,))).splitlines()
    assert "first: " not in render(replace(report(*well, lost), runs=({**run, "state": "finished"},)))


def test_what_settles_most_comes_first() -> None:
    """--python for one check, the job's own view for four."""
    one = check("a.backend", Finding(Status.UNKNOWN, "no torch", how="give --python"))
    more = [check(f"b.{n}", Finding(Status.UNKNOWN, "not the job's view", how="--vantage job")) for n in "abc"]
    also = check("c.also", Finding(Status.UNKNOWN, "open", how="see b.a"))
    assert "first: --vantage job" in render(report(one, *more)).splitlines()
    assert "first: --vantage job" in render(report(one, more[0], also)).splitlines()
    assert "first: give --python" in render(report(one, more[0])).splitlines()


def test_a_subject_that_begins_the_words_is_not_said_twice() -> None:
    text = render(report(check("allreduce.nodes", Finding(Status.FAIL, "node 0 (master): gone", "node 0"))))
    assert "node 0 (master): gone" in text and "node 0: node 0" not in text


def test_a_machine_without_gpus_says_what_it_can_show() -> None:
    none = check("hardware.accelerator", Finding(Status.SKIP, "no accelerator"))
    ran = replace(report(none), runs=({"backend": "gloo", "ranks": 2, "device": "cpu", "state": "finished", "verified": True},))
    first, bare = (render(one).splitlines()[0] for one in (ran, replace(ran, runs=())))
    assert first.startswith("no GPU here: this run shows ") and first.endswith("; nothing of GPUs, RDMA or NCCL")
    assert "an all-reduce by Gloo on the CPU" in first and "Gloo" not in bare and "no GPU here" not in render(EVERY["healthy"])
    assert max(map(len, render(ran, width=60).splitlines()[:4])) <= 60
    assert brief(report(none)).endswith("; no GPU here: nothing seen of GPUs or NCCL") and "no GPU" not in brief(
        EVERY["healthy"]
    )
    assert brief(report(none), width=60).endswith("; no GPU here: nothing seen of GPUs or NCCL")


def test_the_first_line_shows_what_was_judged_and_nothing_else() -> None:
    none = check("hardware.accelerator", Finding(Status.SKIP, "no accelerator"))
    doubt, right, no = (Finding(s, "words", s.value) for s in (Status.UNKNOWN, Status.PASS, Status.SKIP))
    some = (
        none,
        check("net.reach", doubt),
        check("net.ports", right),
        check("nccl.environment", doubt),
        check("process.limits", no),
    )
    bare = replace(report(*some, check("node.clock", right, no)), runs=())
    assert render(bare).splitlines()[0] == (
        "no GPU here: this run shows the network in part and the node's state; nothing of GPUs, RDMA, NCCL, limits or variables"
    )
    blind = replace(report(none), runs=())
    assert render(blind).splitlines()[0] == "no GPU here: this run shows nothing of GPUs, RDMA or NCCL"


def test_runs_that_went_alike_are_one_line() -> None:
    run = {"backend": "nccl", "ranks": 2, "device": "cuda", "state": "finished", "verified": True}
    paths = [{**run, "path": f"inter-node mlx5_{n}:1"} for n in range(4)]
    speeds = ({"busbw_gb_s": {67108864: 22.5}},) * 3 + ({"busbw_gb_s": {67108864: 11.0}},)
    one = replace(EVERY["healthy"], runs=tuple(paths), volatile={"runs": speeds})
    told = [line for line in render(one).splitlines() if line.startswith("all-reduce")]
    kind = "all-reduce: NCCL, 2 ranks on cuda, 4 paths between nodes: finished, data right"
    assert told == [f"{kind}, 11 GB/s bus bandwidth at 64 MiB (inter-node mlx5_3:1 the slowest)"]
    broken = replace(one, runs=(*paths[:3], {**paths[3], "verified": False}))
    assert sum(line.startswith("all-reduce") for line in render(broken).splitlines()) == 2


@pytest.mark.parametrize(("gpus", "turns"), [(1, True), (2, False), (None, False)])
def test_ranks_that_share_a_gpu_measure_nothing(gpus: int | None, turns: bool) -> None:
    run = {"backend": "nccl", "ranks": 2, "device": "cuda", "state": "finished", "verified": True}
    have = {} if gpus is None else {"gpus": [{}] * gpus}
    one = replace(EVERY["healthy"], runs=(run,), volatile={"runs": [{"busbw_gb_s": {67108864: 22.5}}]}, inventory=have)
    assert ("22.5 GB/s bus bandwidth at 64 MiB (its ranks take turns on a GPU: no measure of it)\n" in render(one)) is turns


def test_what_is_wrong_is_expanded() -> None:
    text = render(EVERY["unhealthy"], verbose=True)
    for part in (
        "[critical] NCCL takes docker0",
        "expected  ib0",
        "evidence  chosen: docker0; candidates: docker0, ib0; route: unavailable (EACCES)",
        "why       NCCL or Gloo takes the wrong network interface: hangs at start",
        "measured  busbw: 2.7 GB/s; pid: 4711",
        "cost      2.7 GB/s; with NCCL_SOCKET_IFNAME=ib0 11.2 GB/s: 4.1 times",
        "mend      set NCCL_SOCKET_IFNAME=ib0 in the job's environment\n" + " " * 19 + "export NCCL_SOCKET_IFNAME=ib0",
        "to last   echo NCCL_SOCKET_IFNAME=ib0 >> /etc/nccl.conf",
        "next      NCCL_DEBUG=INFO shows",
        "note      eth0 would do as well",
        "[warning] 2 of 4 (1 pass, 1 unknown): gpu1-mlx5_1, gpu2-mlx5_2\n",  # what is said of them stands below, once
        "- FAIL [warning] gpu1-mlx5_1, gpu2-mlx5_2: neither peermem nor DMA-BUF",
        "- UNKNOWN gpu3-mlx5_3: mlx5_3 does not open: EACCES",
        "find out  look as the job's user",
    ):
        assert part in text


def test_the_only_finding_of_a_check_is_not_said_twice() -> None:
    text = render(EVERY["unhealthy"])
    assert text.count("NCCL takes docker0") == 1
    assert text.count("no torch that is the job's") == 1


def test_a_pass_is_not_expanded_but_its_advice_is_told() -> None:
    text = render(EVERY["healthy"])
    assert "usable:" not in text
    assert "note     net.tcp_buffers: bbr is set, but not in the kernel" in text


def test_a_waived_fail_stays_visible() -> None:
    text = render(EVERY["waived"])
    assert "WAIVED   net.socket_ifname  NCCL takes docker0" in text
    assert "waived    docker0 is the data network here (until 2026-12-31)" in text
    assert "FAIL" not in text


def test_it_says_that_nccl_did_not_run() -> None:
    assert "all-reduce: Gloo, 2 ranks on cpu: finished, data right, 1.234 GB/s bus bandwidth at 64 MiB" in render(
        EVERY["healthy"]
    )
    assert "NCCL did not run" in render(EVERY["healthy"])
    ran = replace(
        EVERY["healthy"], runs=({"backend": "nccl", "ranks": 8, "device": "cuda", "state": "hung", "verified": False},)
    )
    assert "NCCL did not run" not in render(ran)
    assert "all-reduce: NCCL, 8 ranks on cuda: hung, DATA WRONG" in render(ran)
    assert "NCCL did not run" not in render(EVERY["nothing ran"])


def test_where_it_was_seen_from() -> None:
    one = report(PASS, vantage={"kind": "prolog", "runtime": None, "user": "root", "why_not": "seen as root outside the job"})
    text = render(one)
    assert "seen from: prolog, as root; profile default" in text
    assert "not the job's own view: seen as root outside the job" in text


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_prose_is_wrapped_and_commands_are_not(name: str, width: int) -> None:
    for line in render(EVERY[name], width=width).splitlines():
        command = "NCCL_SOCKET_IFNAME=ib0" in line or "--python" in line
        assert len(line) <= width or command or line.startswith(("netdoctor ", "seen from")), line


def test_a_tiny_terminal_does_not_wrap() -> None:
    assert render(EVERY["unhealthy"], width=10) == render(EVERY["unhealthy"])


@pytest.mark.parametrize("name", EVERY)
def test_colour_adds_nothing_but_colour(name: str) -> None:
    plain, coloured = render(EVERY[name], width=90), render(EVERY[name], width=90, colour=True)
    assert "\x1b" not in plain
    assert CSI.sub("", coloured) == plain
    assert coloured != plain


@pytest.mark.slow
@DRAWN
@given(reports())
def test_hostile_strings_cannot_forge_lines_or_move_the_cursor(one: Report) -> None:
    text = render(one, width=80)
    lines = text.split("\n")
    listed = render(one, width=80, verbose=True).split("\n")
    assert len([line for line in listed if line.startswith(WORDS)]) == len(one.checks)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", text)
    assert lines[-1] == ""
    verdicts = [line for line in lines if line.startswith(("healthy:", "unhealthy:", "inconclusive:", "nothing failed"))]
    assert len(verdicts) == 2
    assert len(set(verdicts)) == 1
    text.encode("utf-8")
    for line, limit in ((brief(one), 200), (brief(one, width=80), 80), (brief(one, width=100, prefix="node check: "), 100)):
        assert len(line.encode("utf-8")) <= limit
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e\u2028]", line)


# One line


@pytest.mark.parametrize("name", EVERY)
def test_brief_is_one_line_with_the_verdict(name: str) -> None:
    """In the words of the whole report: where it does not say healthy, neither does the line."""
    line, verdict = brief(EVERY[name]), EVERY[name].verdict
    assert len(line) <= len(line.encode()) <= 200
    assert line.startswith("unhealthy: " if verdict.status is Health.UNHEALTHY else verdict.text[:40])
    assert "\n" not in line


def test_brief_names_causes() -> None:
    assert brief(EVERY["unhealthy"]) == "unhealthy: socket_ifname (net.socket_ifname), gdr_disabled (rdma.gpudirect)"
    assert "interrupted by SIGTERM" in brief(EVERY["interrupted and unhealthy"])


def test_brief_says_how_many_more() -> None:
    many = [check(f"site.check{n}", Finding(Status.FAIL, "m"), cause="mtu") for n in range(40)]
    line = brief(report(*many))
    assert len(line.encode()) <= 200
    assert re.search(r", \+\d\d more$", line)
    shown_ids = len(re.findall(r"site\.check", line))
    assert f"+{40 - shown_ids} more" in line


@pytest.mark.parametrize(
    ("text", "limit", "out"), [("abc", 3, "abc"), ("abcdef", 5, "ab…"), ("ééé", 5, "é…"), ("abc", 2, "ab"), ("é", 1, "")]
)
def test_cut_counts_bytes(text: str, limit: int, out: str) -> None:
    assert cut(text, limit) == out


def test_values_are_shown_short() -> None:
    assert shown({"a": [1, 2], "b": {"c": None}, "d": True, "e": 0.123456}) == "a: [1, 2], b: (c: none), d: yes, e: 0.1235"
    assert shown(frozenset({"y", "x"})) == "x, y"
    assert shown([]) == "none"
    assert len(shown("x" * 1000).encode()) == 400


# Terminals


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environ", "expected"),
    [
        (Screen(), {}, True),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_only_where_it_is_seen_and_wanted(stream: io.StringIO, environ: dict[str, str], expected: bool) -> None:
    assert terminal.colour(stream, environ) is expected


def test_width_of_what_is_no_terminal() -> None:
    assert terminal.width(io.StringIO(), {"COLUMNS": "80"}) is None
    assert terminal.width(Screen(), {"COLUMNS": "72"}) == 72
    assert terminal.width(Screen(), {"COLUMNS": "many"}) is None  # no descriptor behind it
    closed = Screen()
    closed.close()
    assert terminal.width(closed, {}) is None


def test_checks_with_pairs_are_grouped_by_what_they_say() -> None:
    assert render(report(PAIRS)).count("neither peermem nor DMA-BUF") == 1
    assert render(report(PAIRS), verbose=True).count("neither peermem nor DMA-BUF") == 1
    assert FAIL.findings[0].subject not in render(report(FAIL)).split("profile default")[1].split("all-reduce")[0].split()


def _lost(what: str, why: str, how: str | None = None, **more: Any) -> Finding:
    return Finding(Status.UNKNOWN, f"{what} could not be read: {why}", how=how, **more)


def test_unknowns_of_one_reason_are_one_block_by_any_way() -> None:
    why = "NVML Shared Library Not Found"
    checks = [check("gpu.health", _lost("NVML", why)), check("gpu.fabric", _lost("its fabric", why, "nvidia-smi -q"))]
    checks += [check("hardware.gpus", _lost("NVML", why, "nvidia-smi -L")), check("node.system", _lost("dmesg", "EPERM"))]
    checks += [check("gpu.mapping", _lost("the GPUs", why, evidence={"asked": 8}))]  # it says more: a block of its own
    text = render(report(*checks))
    assert f"UNKNOWN  3 checks could not tell: gpu.health, gpu.fabric, hardware.gpus: {why}\n" in text or text.count(why) <= 4
    assert text.count("UNKNOWN  ") == 3
    assert "find out  nvidia-smi -q\n                   nvidia-smi -L\n" in text


def test_what_was_not_read_is_told_with_its_reason_once() -> None:
    one = check(
        "node.system", _lost("sysctl a", "Permission denied"), replace(_lost("THP", "Permission denied"), subject="THP")
    )
    text = render(report(one))
    assert text.count("Permission denied") == 1 and "sysctl a could not be read" in text and "THP could not be read" in text


def test_a_command_is_never_broken() -> None:
    command = "sysctl -w net.ipv4.ip_local_port_range='32768 60999' net.core.somaxconn=4096"
    bad = Finding(Status.FAIL, "narrow", severity=Severity.CRITICAL, fix=Fix("widen the range", (command,)))
    lines = render(report(check("net.port_range", bad)), width=60).splitlines()
    assert lines[lines.index("first: widen the range:") + 1] == f"  {command}"
    assert f"first: widen the range: {command}" in render(report(check("net.port_range", bad)), width=200)


def test_one_of_several_is_told_once_and_a_note_says_whose() -> None:
    text = render(report(PAIRS), verbose=True)
    assert "2 of 4 (1 pass, 1 unknown): gpu1-mlx5_1, gpu2-mlx5_2" in text
    mixed = check("env.variables", replace(FAIL.findings[0], subject="A"), Finding(Status.PASS, "right", "B", notes=("of B",)))
    assert "note      B: of B" in render(report(mixed), verbose=True)


def test_an_unknown_that_sends_on_leads_to_the_way_out() -> None:
    one = check("allreduce.run", Finding(Status.UNKNOWN, "NCCL did not run", how="see torch.backend"))
    other = check("torch.backend", Finding(Status.UNKNOWN, "no GPU", how="ask for GPUs"))
    assert "first: ask for GPUs" in render(report(one, other)).splitlines()


def test_a_fail_behind_many_doubts_is_told() -> None:
    doubts = (Finding(Status.UNKNOWN, f"doubt {n}", f"rank {n}") for n in range(70))
    text = render(report(check("ras.ranks", *doubts, Finding(Status.FAIL, "it stands still", "rank 70"))), verbose=True)
    assert "rank 70: it stands still" in text and "and 11 more" in text


def test_a_fault_of_no_known_cause_is_told_by_its_check() -> None:
    """What a site's own checks find, and a torch.py that hides the job's: "other" and "unknown" tell nobody anything."""
    hides = Finding(Status.FAIL, "it hides the torch that is installed", "/j/torch.py", loss=STOPS)
    made = report(check("job.command", hides))
    assert brief(made) == "unhealthy: job.command"
    assert "Another cause" not in render(made)
