"""What libraries, launchers, daemons and the kernel say in plain words: each is known, and harmless where the job went on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.told import MEANS
from netdoctor.nccl.log.parser import parse_text
from netdoctor.nccl.log.told_patterns import PATTERNS

ROWS = [
    line.split(" | ", 3)
    for line in (Path(__file__).parent / "data" / "log_told.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
WORK = "".join(f"step {n}/100 loss 2.{n}\n" for n in range(1, 101))
DONE = "Training completed in 2:12:01\n"


def findings(text: str) -> tuple[Finding, ...]:
    return diagnose(replace(parse_text(text), written=False))


@pytest.mark.parametrize(("group", "cause", "words", "log"), [pytest.param(*row, id=row[0]) for row in ROWS])
def test_what_is_told_is_known(group: str, cause: str, words: str, log: str) -> None:
    text = log.replace("\\n", "\n") + "\n"
    assert any(group in e.data for e in parse_text(text).of("told", "told_node"))
    first = findings(text)[0]
    assert (first.status, first.cause) == (Status.FAIL, cause)
    assert words in first.message


@pytest.mark.parametrize("log", [pytest.param(row[3], id=row[0]) for row in ROWS])
def test_what_is_told_and_overcome_is_no_fault(log: str) -> None:
    text = log.replace("\\n", "\n") + "\n"
    assert Status.FAIL not in {f.status for f in findings(text + WORK + DONE)}


def test_each_group_has_a_meaning_and_an_example() -> None:
    groups = {name for p in PATTERNS if p.kind in {"told", "told_node"} for name in p.regex.groupindex} - {"host"}
    assert groups == MEANS.keys() == {row[0] for row in ROWS}


def test_what_a_node_says_behind_the_end_is_no_fault_of_the_job() -> None:
    assert Status.FAIL not in {f.status for f in findings(WORK + DONE + "[8.1] mlx5_core 0000:81:00.0 ens1: Link down\n")}


QUOTED = [
    pytest.param("# {}", id="a comment"),
    pytest.param("  --on-error HOW  what to do behind '{}'", id="an option"),
    pytest.param("Namespace(lr=0.1, ends=['{}'])", id="settings"),
    pytest.param('Sample 3: "When you see {} you look at the host."', id="a sample"),
    pytest.param("INFO 10-03 08:12:44 logger.py:41] Received request cmpl-2: prompt: '{}'", id="a request"),
]
SAID = "terminate called after throwing an instance of 'std::bad_alloc'"


@pytest.mark.parametrize("line", QUOTED)
@pytest.mark.parametrize(
    "said", [SAID, "Kernel panic - not syncing: Fatal exception", "Detected stragglers. Terminating training"]
)
def test_what_is_quoted_is_told_by_nobody(line: str, said: str) -> None:
    assert Status.FAIL not in {f.status for f in findings(WORK + line.format(said) + "\n" + DONE)}
    assert Status.FAIL in {f.status for f in findings(f"{WORK}worker: {said}\n")}


@pytest.mark.parametrize(
    ("up", "said"),
    [
        ("", "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"),
        ("", "60 seconds elapsed: Waiting for GCS to be ready."),
        ("INFO:     Application startup complete.\n", "Error fetching prefill server info from bootstrap: no answer in 5 s"),
    ],
)
def test_a_server_that_came_up_and_answered_went_on(up: str, said: str) -> None:
    served = '"POST /v1/completions HTTP/1.1" 200 OK\n' * 12
    later = "" if up else "INFO:     Application startup complete.\n"
    end = "INFO:     Shutting down\nINFO:     Application shutdown complete.\nINFO:     Finished server process [41]\n"
    assert findings(f"{up}{served if up else ''}{said}\n{later}{served}{end}")[0].status is Status.PASS
    assert findings(f"{up}{said}\n")[0].status is not Status.PASS


def test_a_container_that_the_kubelet_lost_long_ago() -> None:
    old = "train-0   0/1   ContainerStatusUnknown   0   3d\n"
    assert findings(f"{old}{WORK}{DONE}")[0].status is Status.PASS
    assert findings(f"job 8 starts\n{old}")[0].status is Status.FAIL


def test_what_a_model_wrote_of_kubectl_is_none_of_its_errors() -> None:
    said = "Error from server (Forbidden): jobs.batch is forbidden"
    assert findings(f"{WORK}prediction: {said}\n{DONE}")[0].status is Status.PASS
    assert findings(f"{said}\n")[0].status is Status.FAIL
