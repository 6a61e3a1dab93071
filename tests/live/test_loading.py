"""The loader's order, emulated, against the loader itself: real libraries in several places, and the one that gets mapped."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from netdoctor.facts.libraries import Libraries, probe
from netdoctor.facts.loader import Object, Search, Taken, takes
from netdoctor.host.base import Answer, RecordingHost, ReplayHost
from netdoctor.host.helpers import elf
from netdoctor.host.live import LiveHost
from netdoctor.host.trust import trusted
from netdoctor.model import Unavailable
from tests.support.machines import libnccl
from tests.support.machines.native import gcc

pytestmark = pytest.mark.live
SONAME = "libnccl.so.2"
VERSION_PY = """from typing import Optional

__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.9.1+cu129'
debug = False
cuda: Optional[str] = '12.9'
hip: Optional[str] = None
"""
SHOW = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())"


def build(path: Path, source: str, *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.with_suffix(".c")
    text.write_text(source)
    subprocess.run([gcc(), "-shared", "-fPIC", "-o", str(path), str(text), *flags], check=True, timeout=60)
    text.unlink()
    return path


def fake_nccl(folder: Path, code: int = 22705, text: str = "2.27.5+cuda12.9") -> Path:
    """A library with NCCL's soname that answers its version."""
    source = f"""
const char *banner = "NCCL version {text}";
int ncclGetVersion(int *version) {{ *version = {code}; return 0; }}
int ncclGetUniqueId(void *id) {{ (void)id; return 0; }}
"""
    return build(folder / SONAME, source, f"-Wl,-soname,{SONAME}")


def user(path: Path, library: Path, tag: str, search: str | None) -> Path:
    """A library that needs libnccl.so.2, with that search path as RPATH, RUNPATH or none."""
    kind = {"RPATH": ("-Wl,--disable-new-dtags",), "RUNPATH": ("-Wl,--enable-new-dtags",), "none": ()}[tag]
    rpath = (f"-Wl,-rpath,{search}",) if search is not None and tag != "none" else ()
    source = "extern int ncclGetVersion(int *); int use(int *v) { return ncclGetVersion(v); }"
    return build(path, source, "-Wl,--no-as-needed", str(library), *kind, *rpath)


def mapped(program: Path, **environment: str) -> str | None:
    """The libnccl that the real loader maps for `program`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LD_")} | environment
    command = [sys.executable, "-c", SHOW, str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        assert "cannot open shared object" in done.stderr, done.stderr
        return None
    found = {line.split(maxsplit=5)[5] for line in done.stdout.splitlines() if SONAME in line}
    (one,) = found
    return one


def look(path: str) -> Object | Unavailable:
    row = elf.describe(path)
    if "error" in row:
        return Unavailable(row["kind"], row["error"])
    return Object(path, tuple(row["needed"]), row["soname"], row["rpath"], row["runpath"], row["default_dirs"], row["machine"])


@pytest.mark.parametrize(
    ("tag", "library_path", "preload"), list(itertools.product(("RPATH", "RUNPATH", "none"), (True, False), (True, False)))
)
def test_the_real_loader_takes_the_same_file(tag: str, library_path: bool, preload: bool, tmp_path: Path) -> None:
    bundled = fake_nccl(tmp_path / "nvidia" / "nccl" / "lib")
    elsewhere, first = fake_nccl(tmp_path / "system"), fake_nccl(tmp_path / "preload")
    program = user(tmp_path / "torch" / "lib" / "libtorch_cuda.so", bundled, tag, "$ORIGIN/../../nvidia/nccl/lib")
    environment: dict[str, str] = {}
    if library_path:
        environment["LD_LIBRARY_PATH"] = f"{tmp_path}/nosuch:{elsewhere.parent}"
    if preload:
        environment["LD_PRELOAD"] = str(first)
    requester = look(str(program))
    assert isinstance(requester, Object)
    assert ("RUNPATH" if requester.runpath is not None else "RPATH" if requester.rpath is not None else "none") == tag
    preloaded = look(str(first))
    assert isinstance(preloaded, Object)
    search = Search((preloaded,) if preload else (), environment.get("LD_LIBRARY_PATH"))
    taken = takes(SONAME, requester, (), search, look)
    real = mapped(program, **environment)
    assert real == (os.path.realpath(taken.path) if isinstance(taken, Taken) else None)


def test_another_architecture_is_passed_over_and_rubbish_is_not(tmp_path: Path) -> None:
    good = fake_nccl(tmp_path / "good")
    other = tmp_path / "other" / SONAME
    other.parent.mkdir()
    data = bytearray(good.read_bytes())
    data[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    other.write_bytes(data)
    program = user(tmp_path / "libtorch_cuda.so", good, "RUNPATH", str(good.parent))
    requester = look(str(program))
    assert isinstance(requester, Object)
    taken = takes(SONAME, requester, (), Search(library_path=str(other.parent)), look)
    assert isinstance(taken, Taken) and taken.path == str(good) == mapped(program, LD_LIBRARY_PATH=str(other.parent))
    other.write_text("not a library\n" * 100)
    taken = takes(SONAME, requester, (), Search(library_path=str(other.parent)), look)
    assert isinstance(taken, Taken) and taken.path == str(other)
    with pytest.raises(AssertionError, match="invalid ELF header"):
        mapped(program, LD_LIBRARY_PATH=str(other.parent))


class Placed(LiveHost):
    """This machine with another environment and configuration."""

    def __init__(self, variables: dict[str, str]) -> None:
        super().__init__(config={})
        self._variables = variables

    def ask(self, question: str) -> Answer:
        return dict(self._variables) if question == "env:" else super().ask(question)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A virtual environment with a torch as its wheel lays it out, and its libnccl."""
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    bundled = fake_nccl(site / "nvidia" / "nccl" / "lib")
    user(site / "torch" / "lib" / "libtorch_cuda.so", bundled, "RPATH", "$ORIGIN/../../nvidia/nccl/lib")
    (site / "torch" / "version.py").write_text(VERSION_PY)
    (site / "torch-2.9.1+cu129.dist-info").mkdir()
    (site / "torch-2.9.1+cu129.dist-info" / "METADATA").write_text(
        'Name: torch\nRequires-Dist: nvidia-nccl-cu12==2.27.5; platform_system == "Linux"\n'
    )
    (site / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir()
    venv = tmp_path / "venv"
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(sys.executable)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.12.3\n")
    return venv


def probed(variables: dict[str, str]) -> Libraries:
    host = Placed(variables)
    try:
        found = probe(host)
    finally:
        host.close()
    assert isinstance(found, Libraries)
    return found


def test_a_torch_wheel_and_its_libnccl(job: Path) -> None:
    found = probed({"VIRTUAL_ENV": str(job), "PATH": "/usr/bin:/bin"})
    assert not isinstance(found.python, Unavailable) and not isinstance(found.torch, Unavailable)
    assert (found.python.why, found.python.ours) == ("VIRTUAL_ENV", False)
    assert (found.torch.version, found.torch.cuda) == ("2.9.1+cu129", "12.9")
    assert found.torch.nccl_linkage == "dynamic"
    assert found.torch.nccl_compiled == (2, 27, 5)
    bundled = str(job / "lib/python3.12/site-packages/nvidia/nccl/lib" / SONAME)
    assert found.torch.nccl_path == bundled
    assert found.torch.nccl_why.startswith("DT_RPATH")
    assert isinstance(found.nccl, tuple)
    (mine,) = [one for one in found.nccl if one.real_path == bundled]
    assert mine.version == (2, 27, 5)
    # Under root a file below /tmp, where everybody may write, is not loaded: the wheel tells its version.
    refused = os.geteuid() == 0 and trusted(bundled) is not None
    assert mine.how == ("wheel metadata" if refused else "dlopen")


def test_ld_preload_wins_and_ld_library_path_does_not(job: Path, tmp_path: Path) -> None:
    other = fake_nccl(tmp_path / "other", 22105, "2.21.5+cuda12.4")
    base = {"VIRTUAL_ENV": str(job), "PATH": "/usr/bin:/bin"}
    by_path, by_preload = probed(base | {"LD_LIBRARY_PATH": str(other.parent)}), probed(base | {"LD_PRELOAD": str(other)})
    for found in (by_path, by_preload):
        assert isinstance(found.nccl, tuple) and not isinstance(found.torch, Unavailable)
        (seen,) = [one for one in found.nccl if one.real_path == str(other)]
        assert seen.version == (2, 21, 5)
    assert not isinstance(by_path.torch, Unavailable) and not isinstance(by_preload.torch, Unavailable)
    assert by_path.torch.nccl_path != str(other)
    assert (by_preload.torch.nccl_path, by_preload.torch.nccl_why) == (str(other), "LD_PRELOAD")


def test_netdoctors_own_torch_is_marked(job: Path) -> None:
    (job / ".netdoctor-torch").touch()
    found = probed({"VIRTUAL_ENV": str(job), "PATH": ""})
    assert not isinstance(found.python, Unavailable) and found.python.ours


def test_a_text_file_in_the_place_of_libnccl(job: Path) -> None:
    bundled = job / "lib/python3.12/site-packages/nvidia/nccl/lib" / SONAME
    bundled.write_text("version https://git-lfs.github.com/spec/v1\n" * 4)
    found = probed({"VIRTUAL_ENV": str(job), "PATH": ""})
    assert isinstance(found.nccl, tuple) and not isinstance(found.torch, Unavailable)
    (mine,) = [one for one in found.nccl if one.real_path == str(bundled)]
    assert isinstance(mine.version, Unavailable) and mine.version.kind == "malformed"
    assert found.torch.nccl_path == str(bundled)


def test_evidence_that_is_lost_is_unavailable_never_an_answer(job: Path) -> None:
    """Each answer taken away in turn: nothing raises, and nothing gets known that was not."""
    live = Placed({"VIRTUAL_ENV": str(job), "PATH": "/usr/bin:/bin"})
    recording = RecordingHost(live)
    whole = probe(recording)
    live.close()
    assert probe(ReplayHost(recording.answers)) == whole
    assert isinstance(whole, Libraries) and not isinstance(whole.torch, Unavailable)
    for question in recording.answers:
        less = probe(ReplayHost({q: a for q, a in recording.answers.items() if q != question}))
        assert isinstance(less, Libraries)
        if question.startswith("ask:elf?dirs="):
            assert isinstance(less.nccl, Unavailable) and isinstance(less.plugins, Unavailable)
        if question == "ask:elf?cache=libnccl":
            assert less.incomplete


@pytest.mark.nccl
def test_real_libraries_say_their_version_in_both_ways() -> None:
    for path in libnccl.both():
        text = elf.answer({"version": str(path)})
        assert isinstance(text, dict)
        version = ".".join(map(str, {v: k for k, v in libnccl.libraries().items()}[path]))
        assert text["text"].startswith(version)
        assert "ncclGetVersion" in elf.describe(str(path))["exports"]
