"""nccl.version: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.nccl_version import nccl_version
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.library_search import JobPython
from netdoctor.facts.pci import Pci
from netdoctor.facts.plugins import FoundBy
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, Caller, State
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Severity, Status, Unavailable
from tests.support import facts as f

LOST = Unavailable("not recorded")
Changes = dict[type, object]
SYSTEM = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5"
FOLDER = SYSTEM.rpartition("/")[0]
ELSEWHERE = "/opt/nccl/libnccl.so.2"
OLD = f.library(SYSTEM, (2, 21, 5), found_by=(FoundBy.CACHE,))


def judged(changes: Changes) -> dict[str, Finding]:
    return {x.subject: x for x in f.judge(nccl_version, f.machine({Intent: f.job(), **changes}))}


def loaded(changes: Changes) -> Finding:
    found = judged(changes)
    return found.get("loaded") or found["node"]


def mapped(*paths: str, version: str = "2.27.5", **changes: Any) -> Baseline:
    ranks = tuple(f.rank(i, mapped=paths) for i in range(8))
    return f.baseline(f.run(ranks=ranks, mapped=paths, nccl_version=version, **changes))


def no_run(**torch: Any) -> Changes:
    return {Baseline: LOST, Libraries: f.libraries(torch=f.torch(**torch), nccl=(f.library(), OLD))}


PASSES: dict[str, Changes] = {
    "the wheel's library, mapped by the run": {},
    "static build": {
        Libraries: f.libraries(torch=f.torch(nccl_linkage="static", nccl_path=None), nccl=()),
        Baseline: mapped(),
    },
    "the one library of the run lies where nobody looked, and torch says its version": {
        Libraries: f.libraries(nccl=()),
    },
    "another version lies about": {Libraries: f.libraries(nccl=(f.library(), OLD))},
    "the same version at two paths": {
        Libraries: f.libraries(nccl=(f.library(), f.library("/opt/nccl/libnccl.so.2"))),
        Baseline: mapped(f.LIBNCCL, "/opt/nccl/libnccl.so.2"),
    },
    "newer than compiled": {
        Libraries: f.libraries(torch=f.torch(nccl_compiled=(2, 21, 5))),
    },
    "NGC: the system's library, no wheel": {
        Libraries: f.libraries(nccl=(OLD,), torch=f.torch(nccl_path=SYSTEM, nccl_compiled=None)),
        Baseline: mapped(SYSTEM, version="2.21.5"),
    },
}


@pytest.mark.parametrize("changes", PASSES.values(), ids=PASSES)
def test_pass(changes: Changes) -> None:
    assert loaded(changes).status is Status.PASS, loaded(changes)


FAILS: dict[str, tuple[Changes, str]] = {
    "two versions in one process": (
        {Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: mapped(f.LIBNCCL, SYSTEM)},
        "different NCCL versions",
    ),
    "static build, and another one mapped": (
        {Libraries: f.libraries(nccl=(OLD,)), Baseline: mapped(SYSTEM, version="2.27.5")},
        "different NCCL versions",
    ),
    "older than compiled": (
        {Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: mapped(SYSTEM, version="2.21.5")},
        "built against NCCL 2.27.5",
    ),
    "older than compiled, by the rules": (no_run(nccl_path=SYSTEM, nccl_why="LD_PRELOAD"), "built against NCCL 2.27.5"),
    "the library is a text file": (
        {
            Baseline: LOST,
            Libraries: f.libraries(nccl=(f.library(version=Unavailable("malformed", "not an ELF file")),)),
        },
        "no library",
    ),
}


@pytest.mark.parametrize(("changes", "words"), FAILS.values(), ids=FAILS)
def test_fail(changes: Changes, words: str) -> None:
    found = loaded(changes)
    assert found.status is Status.FAIL, found
    assert words in found.message and found.fix is not None


@pytest.mark.parametrize(
    ("built", "severity"),
    [((2, 27, 6), Severity.WARNING), ((2, 28, 0), None), ((3, 27, 5), None)],
)
def test_functions_are_lacking_only_where_a_minor_version_is(built: tuple[int, int, int], severity: Severity | None) -> None:
    found = loaded({Libraries: f.libraries(torch=f.torch(nccl_compiled=built))})
    assert (found.status, found.severity) == (Status.FAIL, severity)


def test_ranks_that_differ_are_a_fail() -> None:
    ranks = (f.rank(0), f.rank(1, mapped=(SYSTEM,)))
    run = f.run(ranks=ranks, mapped=(f.LIBNCCL, SYSTEM))
    assert loaded({Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: f.baseline(run)}).status is Status.FAIL


SKIPS: dict[str, Changes] = {
    "no accelerator": {Pci: f.pci(0, 0), Gpus: f.gpus(0)},
    "no accelerator, no driver": {Pci: f.pci(0, 0), Gpus: f.gpus(0, visible=Unavailable("absent"))},
    "CPU build": {Libraries: f.libraries(torch=f.torch(cuda=None, nccl_linkage="none", nccl_path=None), nccl=())},
}


@pytest.mark.parametrize("changes", SKIPS.values(), ids=SKIPS)
def test_skip(changes: Changes) -> None:
    assert loaded(changes).status is Status.SKIP


STATIC: dict[str, Any] = {"nccl_linkage": "static", "nccl_path": None}
NOWHERE = Unavailable("not read", "libtorch_cuda.so was not looked at")
UNKNOWNS: dict[str, tuple[Changes, str]] = {
    "netdoctor's own torch": (
        {Libraries: f.libraries(python=JobPython("/opt/netdoctor/.venv/bin/python", "VIRTUAL_ENV", True))},
        "netdoctor's own",
    ),
    "no torch": ({Libraries: f.libraries(torch=Unavailable("absent"))}, "torch of /opt/venv/bin/python3 (VIRTUAL_ENV)"),
    "no Python, so no torch": (
        {Libraries: f.libraries(python=LOST, torch=NOWHERE)},
        f"job's torch could not be read: {NOWHERE}",
    ),
    "ROCm": ({Libraries: f.libraries(torch=f.torch(version="2.9.1+rocm6.4", cuda=None))}, "RCCL"),
    "a CUDA build without NCCL (USE_NCCL=0)": (no_run(nccl_linkage="none", nccl_path=None), "CUDA 12.9 names no NCCL"),
    "no CUDA in torch's version, but NCCL in its library": (no_run(cuda=None), "no run showed it"),
    "static, no run": (no_run(**STATIC), "only a run tells"),
    "static, and the run told no version": (
        {Libraries: f.libraries(torch=f.torch(**STATIC), nccl=()), Baseline: mapped(version="")},
        "only a run tells",
    ),
    "which file is lost": (no_run(nccl_path=NOWHERE), str(NOWHERE)),
    "linkage lost": (no_run(nccl_linkage=NOWHERE), str(NOWHERE)),
    "version lost": (
        {Baseline: LOST, Libraries: f.libraries(nccl=(f.library(version=LOST),))},
        f"version of {f.LIBNCCL} could not be read",
    ),
    "version of the mapped one lost, and torch says none": (
        {Libraries: f.libraries(nccl=(f.library(), f.library(ELSEWHERE, LOST))), Baseline: mapped(ELSEWHERE, version="")},
        f"version of {ELSEWHERE} could not be read",
    ),
    "two mapped, one version lost": (
        {
            Libraries: f.libraries(nccl=(f.library(),)),
            Baseline: mapped(f.LIBNCCL, "/opt/other/libnccl.so.2"),
        },
        "several libnccl",
    ),
    "what torch was built against is lost": ({Libraries: f.libraries(torch=f.torch(nccl_compiled=LOST))}, "built against"),
    "the loader finds none": (no_run(nccl_path=None), "find no libnccl"),
    "outside the job": ({Vantage: f.outside()}, "NCCL 2.27.5 from " + f.LIBNCCL + ", seen as root outside the job"),
    "no accelerator? PCI lost": ({Pci: LOST, Gpus: f.gpus(0), Libraries: f.libraries(torch=LOST)}, "could not be read"),
}


@pytest.mark.parametrize(("changes", "words"), UNKNOWNS.values(), ids=UNKNOWNS)
def test_unknown(changes: Changes, words: str) -> None:
    found = loaded(changes)
    assert found.status is Status.UNKNOWN and words in found.message, found


BOTH = f.libraries(nccl=(f.library(), f.library(ELSEWHERE)))
NOTES: dict[str, tuple[Changes, list[str]]] = {
    "one library, the expected one": ({}, []),
    "mapped by another name of the same file": (
        {Libraries: f.libraries(nccl=(f.library(real_path=f"{f.LIBNCCL}.27.5"),)), Baseline: mapped(f"{f.LIBNCCL}.27.5")},
        [],
    ),
    "another file than the loader's rules say": (
        {Libraries: BOTH, Baseline: mapped(ELSEWHERE)},
        [f"by the loader's rules it would be {f.LIBNCCL}"],
    ),
    "what the rules say is lost": (
        {Libraries: f.libraries(nccl=BOTH.nccl, torch=f.torch(nccl_path=LOST)), Baseline: mapped(ELSEWHERE)},
        [],
    ),
    "twice the same version": ({Libraries: BOTH, Baseline: mapped(f.LIBNCCL, ELSEWHERE)}, ["is mapped from 2 paths"]),
    "one node": ({Intent: f.job(nodes=1)}, []),
    "two nodes": ({Intent: f.job(nodes=2)}, ["other nodes were not seen"]),
}


@pytest.mark.parametrize(("changes", "notes"), NOTES.values(), ids=NOTES)
def test_notes_of_a_pass(changes: Changes, notes: list[str]) -> None:
    found = loaded(changes)
    assert found.status is Status.PASS and len(found.notes) == len(notes), found
    assert all(words in note for words, note in zip(notes, found.notes, strict=True)), found


@pytest.mark.parametrize("state", [State.NOT_STARTED, State.FAILED])
def test_a_run_that_loaded_nothing_shows_nothing(state: State) -> None:
    """GPUs that others used, say: its job may load another library all the same."""
    ended = f.run(state=state, verified=None, ranks=(), mapped=(), log=None, reason="GPU 3 is in use")
    found = loaded({Baseline: Baseline(ended, False)})
    assert found.status is Status.UNKNOWN and "no run showed it" in found.message, found


def test_a_run_on_libnccl_alone_links_none_into_torch() -> None:
    run = f.run(state=State.FAILED, verified=None, ranks=(), mapped=(), log=None)
    assert "linked into torch" in loaded({Baseline: f.baseline(run)}).message
    assert "linked into torch" not in loaded({Baseline: f.baseline(replace(run, via=Caller.NCCL))}).message


def test_without_a_run_the_loaders_rules_are_no_pass() -> None:
    found = loaded(no_run(nccl_why="DT_RPATH of libtorch_cuda.so"))
    assert found.status is Status.UNKNOWN and "DT_RPATH" in found.message


@pytest.mark.parametrize(
    ("version", "variables", "devices", "said"),
    [
        ((2, 28, 9), {}, 8, True),
        ((2, 28, 9), {"NCCL_GIN_TYPE": "2"}, 8, False),
        ((2, 28, 9), {}, 0, False),
        ((2, 29, 2), {}, 8, False),
    ],
)
def test_a_version_that_dies_beside_ib_devices_is_named(
    version: tuple[int, int, int], variables: dict[str, str], devices: int, said: bool
) -> None:
    text = ".".join(map(str, version))
    run = mapped("/opt/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", version=text)
    facts: Changes = {Baseline: run, Libraries: f.libraries(nccl=(f.library(version=version),)), Environ: f.environ(variables)}
    finding = loaded({**facts, Rdma: f.rdma(devices)})
    assert any("NCCL_GIN_TYPE=2" in note for note in finding.notes) is said, finding


@pytest.mark.parametrize(
    ("variables", "tries"),
    [
        ({"LD_LIBRARY_PATH": f"/opt/a:{FOLDER}/:/opt/b"}, (("LD_LIBRARY_PATH", "/opt/a:/opt/b"),)),
        ({"LD_LIBRARY_PATH": FOLDER, "LD_PRELOAD": f"/x.so {SYSTEM}"}, (("LD_PRELOAD", "/x.so"), ("LD_LIBRARY_PATH", None))),
        ({"LD_LIBRARY_PATH": "/opt/a"}, ()),
        ({}, ()),
    ],
)
def test_what_leads_to_an_older_library_is_left_out(variables: dict[str, str], tries: tuple[Any, ...]) -> None:
    old = {Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: mapped(SYSTEM, version="2.21.5")}
    fix = loaded({**old, Environ: f.environ(variables)}).fix
    assert fix is not None and fix.tries == tries


@pytest.mark.parametrize(
    ("libraries", "baseline", "words"),
    [
        ({}, LOST, "nvidia/nccl/lib/libnccl.so.2; no run showed it: not recorded"),
        (
            {},
            Baseline(f.run(state=State.FAILED, via=Caller.NCCL, ranks=(), mapped=(), reason="x"), False),
            "no run showed it: x",
        ),
        ({"nccl": (f.library(), OLD)}, LOST, "what it loads NCCL by decides which"),
        ({"nccl": (f.library(version=LOST),)}, LOST, "could not be read: not recorded"),
        ({"nccl": (OLD,)}, LOST, "no torch in /opt/venv"),  # the node's own may be anybody's
        ({"python": JobPython("/opt/netdoctor/.venv/bin/python", "VIRTUAL_ENV", True)}, LOST, "netdoctor's own"),
    ],
)
def test_a_job_without_torch_has_what_its_python_brings(libraries: dict[str, Any], baseline: Any, words: str) -> None:
    absent = Unavailable("absent", "no torch in /opt/venv")
    found = loaded({Libraries: f.libraries(**{"torch": absent, **libraries}), Baseline: baseline})
    assert found.status is Status.UNKNOWN and words in found.message, found
