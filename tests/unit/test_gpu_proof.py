"""The book of `make gpu-proof`: what runs is said to have run, what does not is not, whatever a step does to itself."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable

import pytest

from tests.support.machines import native
from tools.gpu_proof import children, report
from tools.gpu_proof.__main__ import prove
from tools.gpu_proof.claims import STEPS, Claim, Step
from tools.gpu_proof.ledger import FAILED, INCONCLUSIVE, NOT_SEEN, PROVEN, REFUTED, SEEN, Ledger
from tools.gpu_proof.machine import Machine

ROOT = pathlib.Path(__file__).parents[2]
CLAIMS = (Claim("x.one", "the first", "x"), Claim("x.two", "the second", "x"), Claim("x.three", "needs two", "x", 2))
STEP = Step("x", 30.0, CLAIMS, "x_step")
ONE_GPU = Machine(1, "NVIDIA T4", "", 1, "", {})
TELL = "from tools.gpu_proof import tell; import os, sys, time, signal, subprocess\n"


def states(ledger: Ledger) -> dict[str, str]:
    return {name: entry.state for name, entry in ledger.entries.items()}


def run(program: str, seconds: float = 60.0, steps: tuple[Step, ...] = (STEP,)) -> tuple[Ledger, str]:
    """The book after one step, and how that ended."""
    ledger = Ledger(steps)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", TELL + program]
    return ledger, children.run(steps[0], command, ledger, time.monotonic() + seconds, environment=environment)


# The book


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ((SEEN,), SEEN),
        ((NOT_SEEN,), NOT_SEEN),
        ((SEEN, FAILED), FAILED),
        ((FAILED, SEEN), FAILED),
        ((FAILED, NOT_SEEN), FAILED),
        ((SEEN, NOT_SEEN), NOT_SEEN),
        ((NOT_SEEN, SEEN), NOT_SEEN),
        ((SEEN, SEEN), SEEN),
    ],
)
def test_the_worst_that_is_said_stays(said: tuple[str, ...], state: str) -> None:
    ledger = Ledger((STEP,))
    for one in said:
        ledger.say("x.one", one, f"because {one}")
    entry = ledger.entries["x.one"]
    assert (entry.state, entry.text) == (state, f"because {state}")


def test_what_is_no_claim_is_refused() -> None:
    with pytest.raises(ValueError, match="no such claim"):
        Ledger((STEP,)).say("x.four", SEEN)
    with pytest.raises(ValueError, match="state"):
        Ledger((STEP,)).say("x.one", "pass")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({}, INCONCLUSIVE),
        ({"x.one": SEEN, "x.two": SEEN, "x.three": SEEN}, PROVEN),
        ({"x.one": SEEN, "x.two": SEEN}, INCONCLUSIVE),  # nothing was said about one of them
        ({"x.one": SEEN, "x.two": SEEN, "x.three": "cannot"}, PROVEN),  # this machine has one GPU
        ({"x.one": SEEN, "x.two": NOT_SEEN, "x.three": "cannot"}, INCONCLUSIVE),
        ({"x.one": FAILED, "x.two": SEEN, "x.three": SEEN}, REFUTED),
        ({"x.one": "cannot", "x.two": "cannot", "x.three": "cannot"}, INCONCLUSIVE),  # nothing was proven
    ],
)
def test_the_exit_code(said: dict[str, str], code: int) -> None:
    ledger = Ledger((STEP,))
    for name, state in said.items():
        if state == "cannot":
            ledger.cannot(name, "needs two GPUs")
        else:
            ledger.say(name, state)
    assert ledger.code == code
    if code == PROVEN:
        ledger.ended = "ended by SIGTERM"
        assert ledger.code == INCONCLUSIVE


# One step


@pytest.mark.slow
def test_a_step_that_says_all() -> None:
    ledger, _ = run("tell.seen('x.one', 'so', {'n': 1}); tell.failed('x.two', 'why'); tell.not_seen('x.three', 'no')")
    assert states(ledger) == {"x.one": SEEN, "x.two": FAILED, "x.three": NOT_SEEN}
    assert ledger.entries["x.one"].data == {"n": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("", "ended with exit status 0 and said nothing"),
        ("sys.exit(3)", "exit status 3"),
        ("raise ValueError", "exit status 1"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
    ],
)
def test_a_step_that_ends_early_keeps_what_it_said(end: str, words: str) -> None:
    ledger, ended = run(f"tell.seen('x.one')\n{end}")
    assert states(ledger) == {"x.one": SEEN, "x.two": NOT_SEEN, "x.three": NOT_SEEN}
    assert words in ended and ledger.entries["x.two"].text == ended


def gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped has."""
    end = time.monotonic() + 10.0
    while time.monotonic() < end:
        try:
            if pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.slow
def test_a_grandchild_with_the_pipe_does_not_hold_the_step_up() -> None:
    ledger, ended = run("tell.seen('x.one')\nsubprocess.Popen(['sleep', '1000'], pass_fds=[int(os.environ['GPU_PROOF_FD'])])")
    assert "exit status 0" in ended and ledger.entries["x.one"].state == SEEN


@pytest.mark.slow
def test_rubbish_and_claims_of_others_are_passed_over() -> None:
    other = Step("y", 1.0, (Claim("y.one", "another", "y"),))
    lines = (
        b'rubbish\n{"claim": "y.one", "state": "seen"}\n{"claim": "x.two", "state": "pass"}\n[1]\n\xff\n'
        b'{"claim": "x.one", "state": "seen", "data": 5}\n{"outcome": "passed"}\n'
    )
    ledger, _ = run(f"os.write(int(os.environ['GPU_PROOF_FD']), {lines!r})", steps=(STEP, other))
    assert states(ledger) == {"x.one": SEEN, "x.two": NOT_SEEN, "x.three": NOT_SEEN, "y.one": ""}


def test_a_command_that_is_not_there() -> None:
    ledger = Ledger((STEP,))
    assert "could not be started" in children.run(STEP, ["/nonexistent/python"], ledger, time.monotonic() + 5)
    assert set(states(ledger).values()) == {NOT_SEEN}


# Tests as claims

TESTS = """
import pytest
@pytest.fixture
def leaves():
    yield
    raise RuntimeError("left something")
def test_passes(record_property): record_property("figure", 7)
def test_fails(): assert 1 == 2, "one is not two"
def test_skips(): pytest.skip("no such thing here")
def test_leaves(leaves): pass
@pytest.mark.parametrize("n", [1, 2])
def test_cases(n, record_property):
    record_property("n", n)
    assert n != 2
@pytest.mark.parametrize("n", [1, 2])
def test_one_each(n): assert n != 2
"""


@pytest.mark.slow
def test_tests_become_claims(tmp_path: pathlib.Path) -> None:
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text(
        "import pytest\npytest.skip('no GPU at all', allow_module_level=True)\ndef test_x(): pass\n"
    )
    (tmp_path / "test_c.py").write_text("import nonexistent_module\ndef test_x(): pass\n")
    names = ("passes", "fails", "skips", "leaves", "cases", "one_each[1]", "one_each[2]", "never")
    claims = tuple(Claim(n, n, f"test_a.py::test_{n}") for n in names)
    claims += (Claim("b", "b", "test_b.py::test_x"), Claim("c", "c", "test_c.py::test_x"))
    step = Step("tests", 60.0, claims)
    ledger = Ledger((step,))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    files = [str(tmp_path / f"test_{n}.py") for n in "abc"]
    options = ["-q", "--rootdir", str(tmp_path), "-p", "tools.gpu_proof.pytest_plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-c", str(tmp_path / "pytest.ini"), "--continue-on-collection-errors", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    children.run(step, [*command, *files], ledger, time.monotonic() + 60, environment=environment)
    assert states(ledger) == {
        "passes": SEEN,
        "fails": FAILED,
        "skips": NOT_SEEN,
        "leaves": FAILED,
        "cases": FAILED,
        "one_each[1]": SEEN,
        "one_each[2]": FAILED,
        "never": NOT_SEEN,
        "b": NOT_SEEN,
        "c": FAILED,
    }
    text = {name: entry.text for name, entry in ledger.entries.items()}
    assert ledger.entries["passes"].data == {"figure": 7}
    assert text["skips"] == "no such thing here" and "no GPU at all" in text["b"]
    assert "one is not two" in text["fails"] and text["leaves"].startswith("teardown: ")
    assert "nonexistent_module" in text["c"]
    assert ledger.entries["cases"].data == {"1": {"n": 1}, "2": {"n": 2}}


# The whole


@pytest.fixture
def whole(tmp_path: pathlib.Path) -> Callable[..., Ledger]:
    """Proves steps whose modules are programs, on a machine of the given kind."""

    def make(programs: dict[str, str], machine: Machine = ONE_GPU, seconds: float = 60.0) -> Ledger:
        steps = []
        for name, program in programs.items():
            (tmp_path / f"{name}_step.py").write_text(TELL + program)
            steps.append(Step(name, 30.0, (Claim(f"{name}.a", "a", "s"), Claim(f"{name}.b", "b", "s", 2)), f"{name}_step"))
        ledger = Ledger(tuple(steps))
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        prove(ledger, machine, tmp_path / "proof", seconds, environment, tmp_path / "log")
        report.write(ledger.document(), tmp_path / "proof")
        return ledger

    return make


@pytest.mark.slow
def test_one_step_that_breaks_costs_no_other(whole: Callable[..., Ledger], tmp_path: pathlib.Path) -> None:
    ledger = whole({"p": "sys.exit(1)", "q": "tell.seen('q.a'); tell.wrote('fixtures/x')"})
    assert states(ledger) == {"p.a": NOT_SEEN, "p.b": NOT_SEEN, "q.a": SEEN, "q.b": NOT_SEEN}
    assert not ledger.entries["q.b"].hardware and "needs 2 GPUs" in ledger.entries["q.b"].text
    assert ledger.code == INCONCLUSIVE and ledger.files == ["fixtures/x"]
    document = json.loads((tmp_path / "proof.json").read_text())
    assert [c["state"] for c in document["claims"]] == list(states(ledger).values())


@pytest.mark.slow
def test_what_this_machine_cannot_show_does_not_stand_in_the_way(whole: Callable[..., Ledger]) -> None:
    assert whole({"p": "tell.seen('p.a')"}).code == PROVEN


def test_without_time_nothing_is_said_to_have_run(whole: Callable[..., Ledger]) -> None:
    ledger = whole({"p": "tell.seen('p.a')"}, seconds=1.0)
    assert ledger.entries["p.a"].text == "no time left of 1 s" and not ledger.took


def test_without_a_gpu_and_without_a_torch(whole: Callable[..., Ledger]) -> None:
    for machine, why in (
        (Machine(0, "", "no GPU: no libcuda", 0, "not asked"), "no GPU: no libcuda"),
        (Machine(1, "T4", "", 0, "no CUDA build"), "no CUDA build"),
    ):
        ledger = whole({"p": "tell.seen('p.a')"}, machine)
        assert (ledger.entries["p.a"].state, ledger.entries["p.a"].text) == (NOT_SEEN, why)
        assert ledger.code == INCONCLUSIVE and not ledger.took and "nothing was proven" in ledger.verdict


@pytest.mark.slow
def test_the_files_are_whole_at_every_moment(whole: Callable[..., Ledger], tmp_path: pathlib.Path) -> None:
    """A step reads the book while it runs: what was said before stands in it, and that it is not at its end."""
    program = f"""
import json
tell.seen('p.a')
while True:
    book = json.load(open({str(tmp_path / "proof.json")!r}))
    if book['claims'][0]['state'] == 'seen':
        break
tell.seen('p.b', book['verdict'])
"""
    (tmp_path / "proof.json").write_text('{"claims": [{"state": ""}]}')
    ledger = whole({"p": program}, Machine(2, "T4", "", 2, ""))
    assert ledger.entries["p.b"].text.startswith("unfinished, in step p: 1 seen")


INTERRUPTED = """
import sys
from tools.gpu_proof.__main__ import main
from tools.gpu_proof.claims import Claim, Step
claims = (Claim("h.a", "said", "s"), Claim("h.b", "not said", "s"))
after = Step("after", 9.0, (Claim("z.a", "never begun", "s"),), "hang_step", needs_torch=False)
steps = (Step("h", 60.0, claims, "hang_step", needs_torch=False), after)
sys.exit(main(["--out", sys.argv[1], "--python", "/bin/false"], steps))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_proof_leaves_its_book(tmp_path: pathlib.Path, number: signal.Signals) -> None:
    hang = f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntell.seen('h.a')\ntime.sleep(1000)\n"
    (tmp_path / "hang_step.py").write_text(TELL + hang)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}", "LD_LIBRARY_PATH": str(native.cuda())}
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "out")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            book = _until_said(process, tmp_path / "out")
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    told = json.loads(book.read_text())
    state = {c["id"]: c["state"] for c in told["claims"]}
    assert state == {"h.a": SEEN, "h.b": NOT_SEEN, "z.a": NOT_SEEN}
    assert {c["id"]: c["why"] for c in told["claims"]}["z.a"] == "not reached"
    assert gone(int((tmp_path / "pid").read_text()))
    if number == signal.SIGKILL:
        assert told["running"] == "h"
        return
    assert process.returncode == 128 + number, said
    assert told["ended_early"] == f"ended by {number.name} in step h"
    with tarfile.open(tmp_path / "out" / "gpu-proof.tar.gz") as archive:
        assert str(book.relative_to(tmp_path / "out")) in archive.getnames()


def _until_said(process: subprocess.Popen[str], out: pathlib.Path) -> pathlib.Path:
    """Wait until the step has said its first claim; the path of the book."""
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        for book in out.glob("docs/evidence/*.json"):
            if json.loads(book.read_text())["claims"][0]["state"] == SEEN:
                return book
        time.sleep(0.02)
    assert process.stderr is not None
    raise AssertionError("the step did not speak: " + (process.stderr.read() if process.poll() is not None else "hangs"))


@pytest.mark.slow
def test_here_without_a_gpu_it_ends_at_once_and_proves_nothing(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tools.gpu_proof", "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )
    if done.returncode != INCONCLUSIVE:
        pytest.fail(done.stderr)
    assert "nothing was proven" in done.stderr
    told = json.loads((tmp_path / "proof.json").read_text())
    assert {c["state"] for c in told["claims"]} == {NOT_SEEN}
    assert all(c["why"].startswith("no GPU: ") for c in told["claims"])
    assert len(told["claims"]) == sum(len(s.claims) for s in STEPS)
