"""gpu.health: what NVML, the all-reduce and the kernel's log say of GPUs, on a replayed DGX H100."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.api import Baseline
from netdoctor.facts.kernel_log import Action, catalogue, parsed
from netdoctor.host.base import Answer
from netdoctor.model import Finding, Kind, Status, Unavailable
from tests.lab import fixtures
from tests.support.machines import composed

FIRST = "GPU 0000:1b:00.0"
NOT_SUPPORTED = {"unavailable": "unsupported", "detail": "NVML: Not Supported"}
FAILED = {"unavailable": "failed", "detail": "NVML: Unknown Error"}
LOST = {"unavailable": "absent", "detail": "NVML: GPU is lost", "code": 15}
OTHERS = {"unavailable": "denied", "detail": "NVML: Insufficient Permissions", "code": 4}
GSP = "NVRM: Xid (PCI:0000:1b:00): 119, pid=4711, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
DBE = "NVRM: Xid (PCI:0000:1b:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE)"


def said(
    nvml: Mapping[tuple[Any, ...], Any] | None = None,
    log: list[str] | Unavailable | None = None,
    load: Mapping[tuple[Any, ...], Any] | Unavailable | None = None,
    **changes: Any,
) -> dict[str, Finding]:
    """Findings by subject.  `nvml` and `load` by their place in the answer; None removes a GPU's `health` as a whole."""
    machine = composed.Composed("dgx-h100", {f"host.{name}": value for name, value in changes.items()})
    answers: dict[str, Answer] = machine.host.answers
    for question, change in (("ask:nvml", nvml), (composed.QUESTION, load)):
        if isinstance(change, Unavailable):
            answers[question] = change
            continue
        for path, value in (change or {}).items():
            put(answers[question], path, value)
    if log is not None:
        answers["ask:kmsg"] = (
            log
            if isinstance(log, Unavailable)
            else {
                "source": "/dev/kmsg",
                "complete": True,
                "events": [[10.0, line] for line in log],
            }
        )
    return {one.subject: one for one in reversed(machine.judged("gpu.health"))}  # the first of a subject


def put(holder: Any, path: tuple[Any, ...], value: Any) -> None:
    *steps, last = path
    for step in steps:
        holder = holder[step]
    holder[last] = value


def test_what_is_healthy_passes() -> None:
    found = said()
    assert {name: one.status for name, one in found.items()} == dict.fromkeys(
        ("GPUs", "like GPUs", "GPUs under load", "kernel log"), Status.PASS
    )


@pytest.mark.parametrize(
    ("field", "value", "cause", "severity"),
    [
        ("uncorrected", {"dram": 0, "sram": 1}, "gpu_memory", "critical"),
        ("remapped", [4, 1, 1, 0], "gpu_memory", "warning"),
        ("remapped", [4, 1, 0, 1], "gpu_memory", "critical"),
        ("retired", 60, "gpu_memory", "warning"),
        ("retired_pending", 1, "gpu_memory", "warning"),
        ("sram_threshold", True, "gpu_memory", "warning"),
        ("recovery", 1, "gpu_error", "critical"),
        ("recovery", 4, "gpu_error", "warning"),
        ("recovery", 99, "gpu_error", "critical"),
        ("inforom", False, "gpu_error", "warning"),
        ("compute_mode", 2, "gpu_error", "critical"),
        ("bar1", [256 << 20, 224 << 20], "gpu_error", "warning"),
        ("temperature", 89, "gpu_slow", "critical"),
        ("reasons", 0x48, "gpu_slow", "critical"),
        ("reasons", 0x8, "gpu_slow", "critical"),
        ("reasons", 0x20, "gpu_slow", "warning"),
    ],
)
def test_what_nvml_calls_wrong_fails_the_gpu_alone(field: str, value: Any, cause: str, severity: str) -> None:
    found = said({("devices", 0, "health", field): value})
    assert found[FIRST].status is Status.FAIL
    assert (found[FIRST].cause, str(found[FIRST].severity)) == (cause, severity)
    assert "GPUs" not in found
    assert [name for name, one in found.items() if one.status is Status.FAIL and one.subject.startswith("GPU 0000:4")] == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retired", 59),
        ("remapped", [500, 8, 0, 0]),
        ("bar1", [131072 << 20, 1 << 30]),
        ("temperature", 88),
        ("slowdown", 0),
        ("reasons", 0x4 | 0x1 | 0x2 | 0x10 | 0x100),
        ("uncorrected_ever", {"dram": 12, "sram": 1}),
        ("replays", 70000),
    ],
)
def test_what_is_as_on_healthy_gpus_passes(field: str, value: Any) -> None:
    assert said({("devices", 0, "health", field): value})["GPUs"].status is Status.PASS


def test_what_nvml_does_not_tell_is_named_and_not_claimed() -> None:
    found = said({("devices", 0, "health", name): NOT_SUPPORTED for name in ("uncorrected", "sram_threshold", "recovery")})
    assert found["GPUs"].status is Status.PASS
    assert "ECC" not in found["GPUs"].message
    assert found["GPUs"].notes == ("NVML does not tell here: ECC, recovery",)


def test_gpus_of_which_nvml_tells_nothing_are_skipped() -> None:
    told: Any = composed.read("dgx-h100").host.answers["ask:nvml"]
    health = told["devices"][0]["health"]
    found = said({("devices", n, "health"): dict.fromkeys(health, NOT_SUPPORTED) for n in range(8)})
    assert found["GPUs"].status is Status.SKIP


@pytest.mark.parametrize("why", [{"unavailable": "timed out", "detail": "x"}, None, "rubbish", {"dram": "many"}])
def test_what_could_not_be_read_is_unknown(why: Any) -> None:
    assert said({("devices", 2, "health", "uncorrected"): why})["GPUs"].status is Status.UNKNOWN


def capped(limits: list[int], default: Any = 700000) -> dict[tuple[Any, ...], Any]:
    values = {("devices", n, "health", "power_limit"): limit for n, limit in enumerate(limits)}
    return values | {("devices", n, "health", "power_default"): default for n in range(8)}


@pytest.mark.parametrize(
    ("limits", "default", "words"),
    [
        ([500000] * 8, 700000, "8 of 8 at 500 W, the boards' default is 700 W"),
        ([700000, *[500000] * 7], 700000, "7 of 8 at 500 W"),  # most have it: the one without it is none to blame
        ([500000] * 8, {"unavailable": "failed", "detail": "NVML: Unknown Error"}, "could not be read"),
    ],
)
def test_a_limit_that_all_share_is_named_and_no_fail(limits: list[int], default: Any, words: str) -> None:
    found = said(capped(limits, default))
    assert found["power limit"].status is Status.UNKNOWN
    assert words in found["power limit"].message
    assert not [one for one in found.values() if one.status is Status.FAIL]


@pytest.mark.parametrize(
    ("limits", "default"),
    [
        ([700000] * 8, 700000),
        ([750000] * 8, 700000),  # raised
        ([500000] * 8, NOT_SUPPORTED),
        ([500000] * 8, None),  # a snapshot that nobody asked
        ([400000, *[700000] * 7], 700000),  # named as the one that differs
    ],
)
def test_a_limit_that_nobody_lowered_for_all_is_not(limits: list[int], default: Any) -> None:
    assert "power limit" not in said(capped(limits, default))


@pytest.mark.parametrize(("key", "status"), [(None, Status.SKIP), (500.0, Status.PASS), (500.5, Status.FAIL)])
def test_the_site_says_which_limit_is_meant(key: float | None, status: Status) -> None:
    facts = fixtures.facts_of(
        composed.Composed(
            "dgx-h100", {"gpus.all.state.power.limit": 500000}, {"expected.gpu_power_limit_w": key} if key else None
        ).snapshot()
    )
    found = fixtures.findings(facts)
    assert {one.status for one in found["hardware.site"]} == {status}
    assert [one.subject for one in found["gpu.health"] if one.subject == "power limit"] == ([] if key else ["power limit"])


def test_a_snapshot_of_an_older_netdoctor_is_unknown() -> None:
    assert said({("devices", n, "health"): None for n in range(8)})["GPUs"].status is Status.UNKNOWN


def test_a_lost_gpu_is_unknown_and_another_jobs_does_not_count() -> None:
    assert said({("devices", 0): {**LOST, "index": 0}})["GPUs"].status is Status.UNKNOWN
    found = said({("devices", 0): {**OTHERS, "index": 0}})
    assert (found["GPUs"].status, found["GPUs"].message[:6]) == (Status.PASS, "7 GPUs")


@pytest.mark.parametrize(
    ("change", "subject", "cause"),
    [
        ({("devices", 0, "clock"): 1700}, f"{FIRST} under load", "gpu_slow"),
        ({("devices", 0, "reasons"): {"64": 2, "1": 1}}, f"{FIRST} under load", "gpu_slow"),
        ({("devices", 0, "replays"): 41}, f"{FIRST} under load", "link_degraded"),
    ],
)
def test_what_is_wrong_under_load(change: dict[tuple[Any, ...], Any], subject: str, cause: str) -> None:
    found = said(load=change)
    assert (found[subject].status, found[subject].cause) == (Status.FAIL, cause)
    assert "GPUs under load" not in found


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({("devices", 0, "clock"): 1790}, Status.PASS),
        ({("devices", 0, "reasons"): {"64": 1, "4": 20}}, Status.PASS),
        ({("devices", n, "samples"): 2 for n in range(8)}, Status.SKIP),
        ({("devices", 0, "samples"): NOT_SUPPORTED}, Status.UNKNOWN),
        ({("devices", 0, "reasons"): FAILED}, Status.UNKNOWN),  # heat, perhaps
        ({("devices", 7, "replays"): FAILED}, Status.UNKNOWN),
        ({("devices", 0, "replays"): NOT_SUPPORTED}, Status.PASS),
        ({("devices", 0, "uuid"): "GPU-of-somebody"}, Status.UNKNOWN),
        (Unavailable(Kind.TIMED_OUT), Status.UNKNOWN),
    ],
)
def test_what_is_right_or_unseen_under_load(change: Any, status: Status) -> None:
    assert said(load=change)["GPUs under load"].status is status


def every(field: str, value: Any) -> dict[tuple[Any, ...], Any]:
    return {("devices", n, field): value for n in range(8)}


@pytest.mark.parametrize(
    "more",
    [
        {},
        every("reasons", {"2": 20}),  # application clocks
        every("reasons", {"4": 1}),  # the power limit, for a moment
        {("devices", 7, "clock"): 1100},  # the median is the others'
    ],
)
def test_clocks_that_are_low_for_no_reason_are_named(more: dict[tuple[Any, ...], Any]) -> None:
    found = said(load={**every("clock", 1200), **more})
    assert found["clock lock"].status is Status.UNKNOWN
    assert "at 1200 MHz, their boards can do 1980 MHz" in found["clock lock"].message
    assert "GPUs under load" not in found
    assert not [one for one in found.values() if one.status is Status.FAIL]


@pytest.mark.parametrize(
    "more",
    [
        {},  # three quarters
        every("clock", 1200) | every("reasons", {"4": 15}),  # the power limit: a load like this one has it
        every("clock", 345) | every("reasons", {"1": 18}),  # idle in all moments but two
        every("clock", 1200) | every("clock_max", NOT_SUPPORTED),
        every("clock", 1200) | every("clock_max", None),  # a snapshot that nobody asked
    ],
)
def test_clocks_that_something_explains_are_not(more: dict[tuple[Any, ...], Any]) -> None:
    found = said(load=every("clock", 1485) | more)
    assert found["GPUs under load"].status is Status.PASS
    assert "clock lock" not in found


def test_what_the_boards_could_is_not_read() -> None:
    found = said(load={("devices", 0, "clock_max"): FAILED})
    assert found["clock lock"].status is Status.UNKNOWN
    assert "GPUs under load" not in found


def test_the_log_explains_what_nvml_calls_recovered() -> None:
    assert said(log=[DBE])["kernel log"].notes == ("since boot: Xid 48 (uncorrectable (double bit) ECC error)",)
    assert said(log=[GSP])[f"{FIRST} in the kernel log"].status is Status.FAIL  # of which no recovery action tells
    older = said({("devices", n, "health", "recovery"): NOT_SUPPORTED for n in range(8)}, [DBE])
    assert older[f"{FIRST} in the kernel log"].status is Status.FAIL


@pytest.mark.parametrize("kind", [Kind.DENIED, Kind.ABSENT, Kind.FAILED])
def test_a_log_that_may_not_be_read_is_unknown(kind: Kind) -> None:
    assert said(log=Unavailable(kind))["kernel log"].status is Status.UNKNOWN


def test_a_gpu_that_is_gone_counts_on_the_node_alone() -> None:
    gone = GSP.replace("1b:00", "e0:00")
    assert said(log=[gone])["GPU 0000:e0:00.0 in the kernel log"].status is Status.FAIL
    assert said(log=[gone], container=True)["kernel log"].status is not Status.FAIL
    assert "GPU 0000:e0:00.0 in the kernel log" not in said(log=[gone], container=True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (GSP, (False, 119, "0000:1b:00.0", False)),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", (False, 14, "0000:03:00.0", False)),
        ("NVRM: Xid (PCI:0009:01:00.0): 79, pid=1, GPU has fallen off the bus.", (False, 79, "0009:01:00.0", False)),
        ("NVRM: Xid (PCI:0000:4e:00 GPU-I:05): 94, pid=7194, Contained", (False, 94, "0000:4e:00.0", False)),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32", (True, 12028, "0000:05:00.0", False)),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 28 LTSSM Fault Up",
            (True, 20034, "0000:c2:00.0", True),
        ),
        ("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Data {0x1, 0x2}", None),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
    ],
)
def test_lines_of_the_driver(line: str, expected: tuple[bool, int, str, bool] | None) -> None:
    event = parsed([1.0, line])
    assert (event and (event.switch, event.number, event.place, event.fatal)) == expected


@pytest.mark.parametrize("rubbish", [None, [], ["x", GSP], [1.0, 7], [1.0, GSP, 3], "NVRM: Xid"])
def test_rubbish_is_no_error(rubbish: Any) -> None:
    assert parsed(rubbish) is None


def test_a_gpu_that_nvml_no_longer_shows() -> None:
    """PCI has it still: on the bare node its errors are the node's; where a job has a share, they may be another's."""
    fell = GSP.replace("119", "79")
    for cgroup, status in (("/", Status.FAIL), ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", Status.PASS)):
        machine = composed.Composed("dgx-h100", {"host.kmsg": [fell]})
        answers: Any = machine.host.answers
        answers["ask:nvml"]["devices"].pop(0)
        answers["file:/proc/self/cgroup"] = f"0::{cgroup}\n"
        found = {one.subject: one.status for one in machine.judged("gpu.health")}
        assert found.get(f"{FIRST} in the kernel log", found.get("kernel log")) is status


def test_very_many_lines_are_not_the_whole_log() -> None:
    machine = composed.Composed("dgx-h100")
    machine.host.answers["ask:kmsg"] = {"source": "journal", "complete": True, "events": [], "system": [], "left_out": 7}
    assert {one.subject: one.status for one in machine.judged("gpu.health")}["kernel log"] is Status.UNKNOWN


def test_a_batch_system_gives_the_gpus_of_a_job_another_mode() -> None:
    assert FIRST not in said({("devices", n, "health", "compute_mode"): 3 for n in (0, 1)})


@pytest.mark.parametrize(("ranks", "status"), [(8, Status.UNKNOWN), (3, Status.UNKNOWN), (2, Status.PASS)])
def test_clocks_of_a_few_are_those_of_its_ranks(ranks: int, status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Baseline, "gpus_here", ranks)
    found = said(load={("devices", n, "samples"): 0 for n in range(2, 8)})["GPUs under load"]
    assert (found.status, found.message[:25]) == (status, "the clocks of 2 of 8 GPUs")


def test_a_run_too_short_for_some_clocks_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Baseline, "gpus_here", 8)
    few = {("devices", n, "samples"): 1 for n in range(2, 8)}
    assert said(load=few)["GPUs under load"].status is Status.PASS
    assert said(load={**few, ("devices", 7, "samples"): 0})["GPUs under load"].status is Status.UNKNOWN


def test_a_power_limit_that_is_not_read() -> None:
    machine = composed.Composed("dgx-h100")
    answers: Any = machine.host.answers
    answers["ask:nvml"]["devices"] = answers["ask:nvml"]["devices"][:1]  # no sibling whose limit would be compared
    answers["ask:nvml"]["devices"][0]["health"] |= {"power_limit": FAILED, "power_default": 700000}
    assert {one.subject: one.status for one in machine.judged("gpu.health")}["power limit"] is Status.UNKNOWN


def test_windows_driver_writes_elsewhere() -> None:
    machine = composed.Composed("dgx-h100")
    facts = dict(fixtures.facts_of(machine.snapshot()))
    facts["Pci"] = replace(facts["Pci"], devices=(), foreign_accelerators=("/dev/dxg",))
    found = {one.subject: one.status for one in fixtures.findings(facts)["gpu.health"]}
    assert found["kernel log"] is Status.UNKNOWN


def test_the_catalogue() -> None:
    rows = catalogue()
    assert len(rows) > 100
    assert rows["xid", "79"].action is Action.REBOOT
    assert (rows["xid", "31"].ends_job, rows["xid", "31"].action) == (True, Action.RESTART)
    assert all(meaning.text for meaning in rows.values())


def masked(mask: str, busy: int, **changes: Any) -> dict[str, Finding]:
    """GPU 1 is slow; `busy` processes of somebody else are on it."""
    wrong: dict[tuple[Any, ...], Any] = {("devices", 1, "health", "reasons"): 8, ("devices", 1, "processes"): busy}
    return said(wrong, environment={"CUDA_VISIBLE_DEVICES": mask, **changes})


def test_a_gpu_on_which_another_job_computes_is_not_this_ones() -> None:
    slow = "GPU 0000:43:00.0"
    assert slow not in masked("4,5,6,7", 1)
    assert masked("4,5,6,7", 0)[slow].status is Status.FAIL  # nobody's: it may be given to the next
    assert masked("0,1,2,3", 1)[slow].status is Status.FAIL
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert masked("4", 1, **rank)[slow].status is Status.FAIL  # of another rank of the job


@pytest.mark.parametrize(("kind", "asked"), [(Kind.TIMED_OUT, True), (Kind.FAILED, True), (Kind.ABSENT, False)])
def test_a_log_tells_why_nvml_does_not_answer(kind: Kind, asked: bool) -> None:
    machine = composed.Composed("dgx-h100", {"host.kmsg": [GSP]})
    machine.host.answers["ask:nvml"] = Unavailable(kind, "NVML")
    found = machine.judged("gpu.health")
    assert [one.message for one in found if one.status is Status.FAIL] == (
        [f"{FIRST} in the kernel log: the driver reported Xid 119 (GSP did not answer in time)"] if asked else []
    )
    assert [one.status for one in found if one.subject == "GPUs"] == [Status.UNKNOWN]


@pytest.mark.parametrize(("action", "mend"), [(1, "reset the GPU"), (2, "reboot it"), (7, "reboot it")])
def test_the_mend_is_what_the_driver_asks_for(action: int, mend: str) -> None:
    fix = said({("devices", 0, "health", "recovery"): action})[FIRST].fix
    assert fix is not None
    assert mend in fix.summary
