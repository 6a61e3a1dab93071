"""Waivers, profiles, verdicts and exit codes."""

import datetime
import itertools
from dataclasses import replace

import pytest

from netdoctor.causes.results import result as completed_result
from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.facts.runs import Baseline
from netdoctor.model import CheckResult, Command, Finding, Kind, Severity, Status, Unavailable, Verdict
from netdoctor.policy import (
    FAIL_ON_ORDER,
    PROFILE_ORDER,
    Seen,
    Waiver,
    decide,
    exit_code,
    required,
    strictest,
    unmatched,
)

TODAY = datetime.date(2026, 6, 15)
GPU = Seen(gpu=True, library=True, rdma=True)
PLAIN = Seen(gpu=False, library=False, rdma=False)
PASS, FAIL, SKIP, UNKNOWN, ERROR = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN, Status.ERROR


def result(
    id: str, *statuses: Status, cause: str = "mtu", severity: Severity | None = None, subject: str = "node"
) -> CheckResult:
    findings = tuple(
        Finding(s, f"{id} is {s.value}", subject if n == 0 else f"{subject}{n}", severity=severity)
        for n, s in enumerate(statuses)
    )
    return completed_result(id, id, cause, findings)


def verdict(*checks: CheckResult, profile: str = "default", seen: Seen = PLAIN, **more: object) -> Verdict:
    return decide(checks, profile, today=TODAY, seen=seen, **more)[1]  # type: ignore[arg-type]


RUN, DEV = "allreduce.run", "rdma.dev_infiniband"


@pytest.mark.parametrize(
    ("profile", "seen", "statuses", "code"),
    [
        # default: allreduce.run where a GPU, and a torch or a libnccl were found
        ("default", GPU, {RUN: PASS, DEV: UNKNOWN}, 0),
        ("default", GPU, {RUN: UNKNOWN, DEV: PASS}, 4),
        ("default", GPU, {RUN: ERROR, DEV: PASS}, 4),
        ("default", GPU, {RUN: SKIP, DEV: PASS}, 0),
        ("default", GPU, {DEV: PASS}, 4),  # required and did not run
        ("default", PLAIN, {RUN: UNKNOWN, DEV: PASS}, 0),
        ("default", Seen(gpu=True, library=False), {RUN: UNKNOWN, DEV: PASS}, 0),
        ("default", replace(PLAIN, library=True), {RUN: UNKNOWN, DEV: PASS}, 0),
        ("gate", replace(PLAIN, library=True), {RUN: UNKNOWN, DEV: PASS}, 4),
        ("gate", replace(PLAIN, library=None), {RUN: UNKNOWN, DEV: PASS}, 4),
        (
            "default",
            Seen(gpu=None, library=True),
            {RUN: UNKNOWN, DEV: PASS},
            4,
        ),  # lost evidence lowers nothing
        ("default", Seen(), {RUN: UNKNOWN, DEV: PASS}, 4),
        # gate: also rdma.dev_infiniband where PCI shows RDMA hardware
        ("gate", GPU, {RUN: PASS, DEV: UNKNOWN}, 4),
        ("gate", GPU, {RUN: PASS, DEV: PASS}, 0),
        ("gate", replace(GPU, rdma=False), {RUN: PASS, DEV: UNKNOWN}, 0),
        ("gate", replace(GPU, rdma=None), {RUN: PASS, DEV: UNKNOWN}, 4),
        # audit and prolog require nothing
        ("audit", GPU, {RUN: UNKNOWN, DEV: PASS}, 0),
        ("audit", GPU, {RUN: UNKNOWN, DEV: ERROR}, 0),
        ("audit", GPU, {}, 4),
        ("prolog", GPU, {RUN: UNKNOWN, DEV: PASS}, 0),
        # strict: all that do not skip
        ("strict", PLAIN, {"x.y": UNKNOWN, RUN: PASS}, 4),
        ("strict", PLAIN, {"x.y": ERROR, RUN: PASS}, 4),
        ("strict", PLAIN, {"x.y": SKIP, RUN: PASS}, 0),
        # a fail comes before what is unknown, in every profile
        ("default", GPU, {RUN: UNKNOWN, DEV: FAIL}, 3),
        ("audit", GPU, {RUN: FAIL, DEV: UNKNOWN}, 3),
        ("strict", GPU, {RUN: FAIL, DEV: ERROR}, 3),
        ("default", PLAIN, {}, 4),
        ("default", PLAIN, {"x.y": UNKNOWN}, 4),  # nothing could be told at all
    ],
)
def test_exit_codes(profile: str, seen: Seen, statuses: dict[str, Status], code: int) -> None:
    got = verdict(*(result(id, status) for id, status in statuses.items()), profile=profile, seen=seen)
    assert got.exit_code == code
    assert got.status == {3: "unhealthy", 4: "inconclusive"}.get(code, got.status)


def test_skips_beside_an_unknown_are_not_called_healthy() -> None:
    """That one thing does not apply says nothing of what could not be told."""
    got = verdict(result("net.tcp_buffers", SKIP), result("net.socket_ifname", UNKNOWN), seen=Seen(False, False, False))
    assert (got.status, got.exit_code) == ("inconclusive", 4)
    got = verdict(result("net.tcp_buffers", SKIP), result("net.socket_ifname", SKIP), seen=Seen(False, False, False))
    assert (got.status, got.exit_code) == ("healthy", 0)


@pytest.mark.parametrize(
    ("checks", "text"),
    [
        ([result(RUN, FAIL)], "inconclusive: nothing passed; 1 waived"),
        ([result(RUN, FAIL), result("a.b", SKIP)], "inconclusive: nothing passed; 1 waived"),
        ([result(RUN, FAIL), result("a.b", UNKNOWN)], "inconclusive: nothing passed; 1 waived; could not tell: a.b"),
        ([result(RUN, FAIL), result("a.b", PASS)], "healthy: 1 passed, 0 skipped, 1 waived"),
    ],
)
def test_what_is_waived_is_no_evidence_of_health(checks: list[CheckResult], text: str) -> None:
    got = verdict(*checks, seen=PLAIN, waivers=[Waiver(RUN, "known", TODAY)])
    assert (got.text, got.exit_code) == (text, 0 if "healthy" in text else 4)
    beside = completed_result(RUN, RUN, "mtu", [Finding(FAIL, "x", "eth0"), Finding(PASS, "x", "eth1")])
    assert verdict(beside, seen=PLAIN, waivers=[Waiver(RUN, "known", TODAY)]).exit_code == 0


def test_a_part_of_a_check_that_could_not_tell_is_not_healthy() -> None:
    """No check passed: what one of them saw is right, and the rest of it could not be read."""
    got = verdict(result("net.tcp_buffers", SKIP), result("nccl.environment", PASS, UNKNOWN))
    assert (got.status, got.exit_code) == ("inconclusive", 4)
    got = verdict(result("net.tcp_buffers", PASS), result("nccl.environment", PASS, UNKNOWN))
    assert (got.status, got.exit_code) == ("healthy", 0)


def test_an_unknown_that_is_not_in_the_way_is_no_judgement() -> None:
    """`netdoctor env` of a variable that only UCX reads: a required check that could tell nothing at all."""
    id = "nccl.environment"
    doubt = Finding(UNKNOWN, "x", "UCX_A", blocking=False)
    got = verdict(completed_result(id, id, "mtu", [doubt]), command=Command.ENV)
    assert (got.text, got.exit_code) == (f"inconclusive: nothing passed; could not tell: {id}", 4)
    assert verdict(completed_result(id, id, "mtu", [doubt, Finding(PASS, "x", "NCCL_A")]), command=Command.ENV).exit_code == 0


@pytest.mark.parametrize(
    "plugin",
    [
        result(f"plugin.{name}", status, subject="a.py")
        for name, status in (("broken", ERROR), ("refused", UNKNOWN), ("missing", UNKNOWN))
    ],
)
@pytest.mark.parametrize("profile", PROFILE_ORDER)
def test_a_plugin_that_did_not_look_is_never_healthy(plugin: CheckResult, profile: str) -> None:
    """The site wanted its checks; only audit and prolog, which must not drain a node for that, still exit 0."""
    got = verdict(result(RUN, PASS), plugin, profile=profile)
    assert (got.status, got.exit_code) == ("inconclusive", 0 if profile in {"audit", "prolog"} else 4)
    assert f"{plugin.id}: a.py" in got.text
    assert verdict(result(RUN, FAIL), plugin, profile=profile).exit_code == 3
    assert verdict(result(RUN, PASS), plugin, profile="default", disabled=[plugin.id]).status == "healthy"


def test_a_clock_that_is_right_makes_no_node_healthy() -> None:
    """Nearly every machine's is: a VM without a GPU, on which nothing else could be told, was called healthy for it."""
    plain = Seen(gpu=False, library=False, rdma=False)
    got = verdict(result("node.clock", PASS), result("x.y", UNKNOWN), result("a.b", SKIP), seen=plain)
    assert (got.text, got.exit_code) == ("inconclusive: nothing passed but node.clock; could not tell: x.y", 4)
    assert verdict(result("node.clock", PASS), result("a.b", SKIP), seen=plain).exit_code == 0
    assert verdict(result("node.clock", PASS), selected=["node.clock"], seen=plain).exit_code == 0


def test_what_passed_nothing_says_so() -> None:
    got = verdict(result("a.b", SKIP), result("x.y", UNKNOWN))
    assert got.text == "inconclusive: nothing passed; could not tell: x.y"


def test_a_verdict_names_four_that_could_not_tell() -> None:
    some = [result(f"x.{n}", UNKNOWN) for n in range(6)]
    assert verdict(result("a.b", PASS), *some[:4]).text.endswith("could not tell: x.0, x.1, x.2, x.3")
    assert verdict(result("a.b", PASS), *some).text.endswith("could not tell: x.0, x.1, x.2, x.3 and 2 more")
    assert "x.0, x.1, x.2, x.3 and 2 more could not tell" in verdict(result("a.b", PASS), *some, profile="strict").text


@pytest.mark.parametrize(("profile", "code"), [("default", 4), ("gate", 4), ("audit", 0), ("prolog", 0)])
def test_a_check_that_crashed_leaves_no_node_healthy(profile: str, code: int) -> None:
    got = verdict(result("a.b", PASS), result("site.own", ERROR), profile=profile)
    assert (got.status, got.exit_code) == ("inconclusive", code)


@pytest.mark.parametrize("status", [UNKNOWN, FAIL, PASS])
@pytest.mark.parametrize("profile", ["default", "audit"])
def test_what_was_asked_for_cannot_be_disabled_away(profile: str, status: Status) -> None:
    got = verdict(result("fleet.nodes", status), profile=profile, command=Command.FLEET, disabled=["fleet.nodes"])
    assert got.exit_code == 4


@pytest.mark.parametrize("profile", ["default", "audit", "prolog"])
@pytest.mark.parametrize(
    ("command", "id"),
    [(Command.LOG, "log.job"), (Command.ENV, "nccl.environment"), (Command.RAS, "ras.ranks"), (Command.FLEET, "fleet.nodes")],
)
def test_no_profile_of_nodes_excuses_a_log(command: Command, id: str, profile: str) -> None:
    got = verdict(result(id, UNKNOWN), profile=profile, command=command)
    assert (got.exit_code, got.text) == (4, f"inconclusive: {id} could not tell")


def test_audit_that_saw_nothing_is_not_called_healthy() -> None:
    got = verdict(result(RUN, UNKNOWN), result(DEV, ERROR), profile="audit", seen=GPU)
    assert (got.status, got.exit_code) == ("inconclusive", 0)
    assert exit_code(got.exit_code, "nagios", got) == 3
    assert exit_code(got.exit_code, "npd", got) == 2


@pytest.mark.parametrize(
    ("severity", "fail_on", "code"),
    [
        (Severity.CRITICAL, "critical", 3),
        (Severity.WARNING, "critical", 0),
        (Severity.WARNING, "warning", 3),
        (Severity.INFO, "warning", 0),
        (Severity.INFO, "info", 3),
        (None, "critical", 3),  # the cause's own: mtu is critical
    ],
)
def test_fail_on(severity: Severity | None, fail_on: str, code: int) -> None:
    out, got = decide([result("a.b", FAIL, severity=severity), result("c.d", PASS)], fail_on=fail_on, seen=PLAIN)
    assert got.exit_code == code
    assert out[0].findings[0].blocking is (code == 3)
    assert got.causes == ("mtu",)
    if code == 0:
        assert "a.b" in got.text, "a fail below the threshold is still named"


def test_findings_are_completed_from_check_and_cause() -> None:
    out, _ = decide([result("a.b", FAIL, PASS)], seen=PLAIN)
    bad, good = out[0].findings
    assert (bad.check, bad.cause, bad.severity) == ("a.b", "mtu", Severity.CRITICAL)
    assert (good.check, good.severity, good.blocking) == ("a.b", None, False)


@pytest.mark.parametrize(
    ("waiver", "waived"),
    [
        (Waiver("a.b", "known", TODAY), True),
        (Waiver("a.b", "known", TODAY - datetime.timedelta(days=1)), False),
        (Waiver("a.c", "known", TODAY), False),
        (Waiver("a.b", "known", TODAY, "gpu0"), True),
        (Waiver("a.b", "known", TODAY, "gpu1"), False),
        (Waiver("a.b", "known", TODAY, "gpu*"), True),
        (Waiver("a.b", "known", TODAY, "gpu?"), False),
        (Waiver("a.b", "known", TODAY, "gpu[0]"), False),
    ],
)
def test_waivers(waiver: Waiver, waived: bool) -> None:
    checks = [result("a.b", FAIL, subject="gpu0"), result("c.d", PASS)]
    out, got = decide(checks, waivers=[waiver], today=TODAY, seen=PLAIN)
    finding = out[0].findings[0]
    assert finding.status is FAIL, "a waived fail stays a fail"
    assert bool(finding.waived) is waived
    assert got.exit_code == (0 if waived else 3)
    if waived:
        assert finding.waived == "known (until 2026-06-15)"
        assert "1 waived" in got.text
        assert got.causes == ()


def test_an_ended_waiver_is_told_and_the_longest_one_counts() -> None:
    old, new = Waiver("a.b", "old", datetime.date(2025, 1, 1)), Waiver("a.b", "new", datetime.date(2027, 1, 1))
    ended = decide([result("a.b", FAIL)], waivers=[old], today=TODAY)[0][0].findings[0]
    assert ended.notes == ("the waiver ended on 2025-01-01: old",)
    assert decide([result("a.b", FAIL)], waivers=[new, old], today=TODAY)[0][0].findings[0].waived == "new (until 2027-01-01)"


def test_a_waiver_covers_fails_only() -> None:
    waiver = Waiver(RUN, "we know", TODAY)
    out, got = decide([result(RUN, UNKNOWN), result("c.d", PASS)], waivers=[waiver], today=TODAY, seen=GPU)
    assert out[0].findings[0].waived is None
    assert got.exit_code == 4


def test_a_waived_fail_does_not_hide_what_is_unknown_beside_it() -> None:
    got = verdict(result(RUN, FAIL, UNKNOWN), waivers=[Waiver(RUN, "r", TODAY, "node")], seen=GPU)
    assert got.exit_code == 4


def test_a_disabled_check_is_neither_pass_nor_skip_nor_required() -> None:
    out, got = decide([result(RUN, FAIL), result("c.d", PASS)], disabled=[RUN], seen=GPU, today=TODAY)
    assert [f.status for f in out[0].findings] == [UNKNOWN]
    assert "disabled by the configuration" in out[0].findings[0].message
    assert got.exit_code == 0


def test_what_was_not_selected_is_not_required() -> None:
    """Nor is a node that was asked one thing called healthy: 0 says that nothing of it failed."""
    got = verdict(result("net.mtu", PASS), seen=GPU, selected=["net.mtu"])
    assert (got.exit_code, got.status) == (0, "inconclusive")
    assert got.text == "nothing failed of what was asked for: 1 passed, 0 skipped"
    assert exit_code(0, "npd", got) == 2
    assert verdict(result(RUN, UNKNOWN), result("a.b", PASS), seen=GPU, selected=[RUN]).exit_code == 4


@pytest.mark.parametrize(("profile", "only", "code"), [("gate", True, 4), ("strict", True, 0), ("default", True, 0)])
def test_a_gate_stands_for_all_checks(profile: str, only: bool, code: int) -> None:
    decide = setup.decider(Config(profile=profile), ("a.b",) if only else ())
    assert decide((result("a.b", PASS),), {"Baseline": Baseline(Unavailable(Kind.REFUSED))})[1].exit_code == code


@pytest.mark.parametrize(("profile", "code"), [("default", 4), ("gate", 4), ("strict", 4), ("audit", 0), ("prolog", 0)])
def test_a_run_that_was_lost_leaves_no_node_healthy(profile: str, code: int) -> None:
    """Without a GPU nobody needs it: that it was to be there is what is missed."""
    lost, rest = replace(PLAIN, run_lost=True), [result("a.b", PASS), result("hardware.accelerator", SKIP)]
    got = verdict(result(RUN, UNKNOWN), *rest, profile=profile, seen=lost)
    assert (got.exit_code, got.status) == (code, "inconclusive") and RUN in got.text
    assert verdict(result(RUN, PASS), *rest, profile=profile, seen=lost).status == "healthy"


@pytest.mark.parametrize("profile", ["audit", "prolog"])
def test_hardware_that_nobody_could_see_is_not_healthy(profile: str) -> None:
    """It stops no node; npd and Nagios read the words."""
    got = verdict(result("hardware.accelerator", UNKNOWN), result("a.b", PASS), profile=profile)
    assert (got.exit_code, got.status, exit_code(0, "npd", got)) == (0, "inconclusive", 2)
    off = verdict(
        result("hardware.accelerator", UNKNOWN), result("a.b", PASS), profile=profile, disabled=["hardware.accelerator"]
    )
    assert off.status == "healthy"


def test_a_partial_run_is_never_healthy() -> None:
    got = verdict(result("a.b", PASS), partial="interrupted by SIGINT")
    assert (got.status, got.exit_code) == ("inconclusive", 4)
    assert "interrupted by SIGINT" in got.text
    assert verdict(result("a.b", FAIL), partial="interrupted").exit_code == 3


def test_the_verdict_names_what_could_not_be_told() -> None:
    got = verdict(result("a.b", PASS), result("c.d", UNKNOWN), result("e.f", SKIP), profile="audit")
    assert got.text == "healthy: 1 passed, 1 skipped; could not tell: c.d"


def test_healthy_without_gpus_is_where_all_could_be_told() -> None:
    """No all-reduce by NCCL stands for what could not; the exit code and the status are as of every other node."""
    none, net = result("hardware.accelerator", SKIP), result("net.reach", UNKNOWN)
    got = verdict(none, result("a.b", PASS), net)
    assert got.text == "nothing failed of what could be told without a GPU: 1 passed, 1 skipped; could not tell: net.reach"
    assert (got.status, got.exit_code) == ("healthy", 0)
    assert verdict(none, result("a.b", PASS)).text == "healthy: 1 passed, 1 skipped"
    there = replace(none, findings=(replace(none.findings[0], status=PASS),))
    assert verdict(there, result("a.b", PASS), net).text.startswith("healthy: 2 passed")


def test_the_verdict_of_an_unhealthy_node() -> None:
    got = verdict(result("a.b", FAIL, cause="gdr_disabled"), result("c.d", FAIL, cause="mtu"), result("e.f", PASS), seen=PLAIN)
    assert got.text == "unhealthy: 1 critical, 1 warning: c.d, a.b"
    assert got.causes == ("mtu", "gdr_disabled")


def test_strictest() -> None:
    assert strictest(PROFILE_ORDER, "gate", "audit", "strict", "default") == "strict"
    assert strictest(PROFILE_ORDER, "audit", "prolog") == "audit"
    assert strictest(PROFILE_ORDER, "prolog", "audit") == "prolog"
    assert strictest(FAIL_ON_ORDER, "critical", "info", "warning") == "info"


def test_a_stricter_profile_requires_at_least_as_much() -> None:
    for seen in (GPU, PLAIN, Seen()):
        needs = [required(p, seen) for p in PROFILE_ORDER]
        assert all(a <= b for a, b in itertools.pairwise(needs))


def test_unmatched_names() -> None:
    assert unmatched([Waiver("a.b", "r", TODAY), Waiver("x.y", "r", TODAY)], ["c.d", "x.y"], ["a.b"]) == ("x.y", "c.d")


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match="no such profile"):
        decide([], "gates")


@pytest.mark.parametrize(
    ("code", "nagios", "npd"), [(0, 0, 0), (3, 2, 1), (4, 3, 2), (1, 3, 2), (2, 3, 2), (130, 3, 2), (143, 3, 2)]
)
def test_exit_styles(code: int, nagios: int, npd: int) -> None:
    assert exit_code(code) == code
    assert exit_code(code, "nagios") == nagios
    assert exit_code(code, "npd") == npd


def test_nagios_knows_warnings() -> None:
    assert exit_code(3, "nagios", worst=Severity.WARNING) == 1
    assert exit_code(3, "nagios", worst=Severity.CRITICAL) == 2
