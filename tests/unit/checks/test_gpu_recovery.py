"""gpu.health: the recovery that the driver wants (Xid 154), where NVML does not tell of it; what NVML cannot have told."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.model import Kind, Status, Unavailable
from tests.support.machines import composed
from tests.unit.checks.test_gpu_health import DBE, FIRST, GSP, NOT_SUPPORTED, said

CHANGED = "NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x{} ({}) to 0x{} ({})"
RESET, REBOOT, WELL = (
    CHANGED.format(0, "None", 1, "GPU Reset Required"),
    CHANGED.format(0, "None", 2, "Node Reboot Required"),
    CHANGED.format(1, "GPU Reset Required", 0, "None"),
)
SILENT = {("devices", n, "health", "recovery"): NOT_SUPPORTED for n in range(8)}
IN_LOG = f"{FIRST} in the kernel log"


@pytest.mark.parametrize(
    ("lines", "words", "mend"),
    [
        ([RESET], "it waits for a reset", "reset the GPU"),
        ([REBOOT], "it waits for a reboot of the node", "reboot it"),
        ([CHANGED.format(0, "None", 2, "OS Reboot")], "it waits for a reboot of the node", "reboot it"),  # of R610
        ([CHANGED.format(0, "None", 3, "Drain P2P")], "until its peers are drained", "ask again"),
        ([CHANGED.format(0, "None", 4, "Drain and Reset")], "to be drained and reset", "reset the GPU"),
        ([RESET, CHANGED.format(1, "GPU Reset Required", 2, "Node Reboot Required")], "a reboot of the node", "reboot it"),
        ([RESET, WELL, RESET], "it waits for a reset", "reset the GPU"),
        ([CHANGED.format(0, "None", "1f", "Sing")], "the driver wants it recovered", "reset the GPU"),
    ],
)
def test_the_log_tells_the_recovery_where_nvml_does_not(lines: list[str], words: str, mend: str) -> None:
    found = said(SILENT, lines)[IN_LOG]
    assert (found.status, found.cause, found.severity and str(found.severity)) == (Status.FAIL, "gpu_error", "warning")
    assert f"Xid 154 (the recovery action changed): {words}" in found.message or words in found.message
    assert found.fix is not None and mend in found.fix.summary


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (SILENT, [RESET, WELL]),
        (SILENT, [DBE, RESET, WELL]),  # the driver calls it recovered
        (SILENT, [CHANGED.format(0, "None", 0, "None")]),
        (SILENT, [RESET.split(",")[0]]),  # no line of it
        (SILENT, ["NVRM: Xid (PCI:0000:1b:00): 154, pid=7, something else"]),
        ({}, [RESET]),  # NVML says that nothing is left to be done
        ({}, [REBOOT]),
    ],
)
def test_a_recovery_that_is_over_is_history(changes: dict[tuple[Any, ...], Any], lines: list[str]) -> None:
    assert {one.status for one in said(changes, lines).values()} == {Status.PASS}


def test_what_came_after_it_was_well_counts() -> None:
    assert said(SILENT, [WELL, DBE])[IN_LOG].status is Status.FAIL
    assert said(SILENT, [GSP, WELL])[IN_LOG].status is Status.FAIL  # of which no recovery action tells


def test_the_log_tells_of_a_gpu_that_nvml_lost() -> None:
    machine = composed.Composed("dgx-h100", {"host.kmsg": [REBOOT]})
    machine.host.answers["ask:nvml"] = Unavailable(Kind.TIMED_OUT, "NVML")
    (found,) = (one for one in machine.judged("gpu.health") if one.status is Status.FAIL)
    assert found.subject == IN_LOG and found.fix is not None and "reboot it" in found.fix.summary


@pytest.mark.parametrize(
    ("fields", "mend"),
    [
        ({"remapped": [0, 8, 0, 1]}, "replaced: a reset does not mend this"),
        ({"remapped": [0, 8, 1, 1]}, "replaced: a reset does not mend this"),
        ({"remapped": [0, 1, 1, 0]}, "reset the GPU"),
        ({"sram_threshold": True}, "replaced: a reset does not mend this"),
        ({"compute_mode": 2}, "let programs compute on it"),
        ({"compute_mode": 2, "recovery": 1}, "reset the GPU"),
        ({"compute_mode": 2, "recovery": 2}, "reboot it"),
    ],
)
def test_a_reset_is_no_mend_of_what_it_does_not_end(fields: dict[str, Any], mend: str) -> None:
    found = said({("devices", 0, "health", name): value for name, value in fields.items()})[FIRST]
    assert found.status is Status.FAIL and found.fix is not None and mend in found.fix.summary


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uncorrected", {"dram": -1}),
        ("uncorrected", {}),
        ("retired", -3),
        ("recovery", -1),
        ("reasons", 1 << 70),
        ("bar1", [-5, 0]),
        ("bar1", [1 << 30, 1 << 31]),
        ("remapped", [0, 0, -1, 0]),
        ("temperature", -300),
    ],
)
def test_what_is_no_number_of_nvmls_neither_passes_nor_fails(field: str, value: Any) -> None:
    found = said({("devices", 0, "health", field): value})
    assert found["GPUs"].status is Status.UNKNOWN and FIRST not in found


@pytest.mark.parametrize(
    ("ever", "where"),
    [
        ({"dram": 12, "sram": 1, "l2": 0}, "(dram, sram)"),
        ({"dram": 0, "sram": 0}, ""),
        ({"unavailable": "unsupported", "detail": "x"}, ""),
    ],
)
def test_errors_of_former_times_are_a_note_with_their_place(ever: dict[str, object], where: str) -> None:
    found = said({("devices", 0, "health", "uncorrected_ever"): ever})["GPUs"]
    assert found.status is Status.PASS
    notes = [note for note in found.notes if "before the driver was loaded" in note]
    assert [note.endswith(where) for note in notes] == [True] * bool(where)
