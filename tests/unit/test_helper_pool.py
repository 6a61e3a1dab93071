"""Helper programs in children: whatever a library does, it costs one answer, and nothing is left."""

from __future__ import annotations

import ast
import os
import pathlib
import select
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator

import psutil
import pytest

from netdoctor.host import programs
from netdoctor.host.children import MAX_ANSWER, HelperPool
from netdoctor.model import Unavailable

OURS = pathlib.Path(programs.__file__).parent / "helpers"
LIMITS = {"hang": 0.3, "stubborn": 0.3, "grandchild": 0.5}
HELPERS = {
    "echo": "def answer(p):\n    return p",
    "pid": "import os\ndef answer(p):\n    return [os.getpid(), os.getsid(0), os.getppid()]",
    "fds": "import os\ndef answer(p):\n    return sorted(os.listdir('/proc/self/fd'))",
    "env": "import os\ndef answer(p):\n    return dict(os.environ)",
    "path": "import sys\ndef answer(p):\n    return [sys.path, sys.flags.isolated, sys.flags.no_site]",
    "who": (
        "import os\ndef answer(p):\n    text = open('/proc/self/status').read()\n"
        "    return [os.getresuid(), os.getresgid(), os.getgroups(), text]"
    ),
    "prints": "def answer(p):\n    import os\n    os.write(1, b'x' * 300000); os.write(2, b'y')\n    return 'spoke'",
    "segv": "import os, signal\ndef answer(p):\n    "
    "os.write(2, b'first\\nlast \\x1b[31mwords\\n')\n    os.kill(os.getpid(), signal.SIGSEGV)",
    "exits": "import os\ndef answer(p):\n    os._exit(3)",
    "raises": "def answer(p):\n    raise RuntimeError('no such thing')",
    "unserialisable": "def answer(p):\n    return {1j: object()}",
    "half": "import os\ndef answer(p):\n    os.write(3, b'[1, 2'); os._exit(0)",
    "rubbish": "import os\ndef answer(p):\n    os.write(3, b'\\xff\\xfe not json'); os._exit(0)",
    "large": "def answer(p):\n    return 'x' * int(p['n'])",
    "unavailable": "def answer(p):\n    return {'unavailable': p['kind'], 'detail': 'said\\x07so'}",
    "null": "def answer(p):\n    return None",
    "hang": "import signal\ndef answer(p):\n    signal.pause()",
    "stubborn": "import signal\ndef answer(p):\n    signal.signal(15, signal.SIG_IGN)\n    while True: signal.pause()",
    "lingers": "import os, signal\ndef answer(p):\n    os.write(3, b'42'); os.close(3); "
    "signal.signal(15, signal.SIG_IGN); signal.pause()",
    "grandchild": (
        "import os, signal\ndef answer(p):\n    r, w = os.pipe()\n    child = os.fork()\n    if not child:\n"
        "        signal.pause()\n    return child"
    ),
    "waits": (
        "import os, signal\ndef answer(p):\n    w = os.open(p['in'], os.O_WRONLY)\n    os.write(w, b'.')\n"
        "    os.close(w)\n    signal.pause()"
    ),
    "meet": (  # writes one byte and waits until it may go on: counts how many run at once
        "import os\ndef answer(p):\n    w = os.open(p['in'], os.O_WRONLY)\n    os.write(w, b'.')\n"
        "    r = os.open(p['out'], os.O_RDONLY)\n    os.read(r, 1)\n    return 'met'"
    ),
}


@pytest.fixture(autouse=True)
def helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, source in HELPERS.items():
        monkeypatch.setitem(programs._SOURCES, name, source + "\n")


@pytest.fixture
def pool() -> Iterator[HelperPool]:
    others = set(psutil.Process().children())  # of earlier tests in this process: a looker stays as long as we do
    one = HelperPool(deadlines=LIMITS)
    yield one
    one.close()
    assert not one._children
    assert set(psutil.Process().children()) <= others, "something is left to reap"


def gone(pid: int) -> bool:
    """Whether `pid` ends, waited for by its own descriptor."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 5)[0])
    finally:
        os.close(fd)


@pytest.mark.slow
def test_parameters_go_in_and_json_comes_out(pool: HelperPool) -> None:
    assert pool.answer("ask:echo?a=1&b=x%20y%26") == {"a": "1", "b": "x y&"}


@pytest.mark.slow
def test_a_child_is_alone(pool: HelperPool) -> None:
    pid, session, parent = pool.answer("ask:pid")  # type: ignore[misc, str-unpack]
    assert pid == session and parent == os.getpid()
    listed = pool.answer("ask:fds")
    assert isinstance(listed, list) and set(listed) - {"0", "1", "2", "3"} <= {"4"}  # 4 is the listing itself


@pytest.mark.slow
def test_a_child_is_isolated_and_has_our_modules(pool: HelperPool) -> None:
    path, isolated, no_site = pool.answer("ask:path")  # type: ignore[misc, str-unpack]
    assert isolated and no_site and path[-len(programs.site()) :] == programs.site()


@pytest.mark.slow
def test_variables_that_write_files_are_taken_away(pool: HelperPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    seen = pool.answer("ask:env")
    assert isinstance(seen, dict) and seen["CUDA_VISIBLE_DEVICES"] == "3,1" and "NCCL_DEBUG_FILE" not in seen


@pytest.mark.slow
def test_what_libraries_print_disturbs_nothing(pool: HelperPool) -> None:
    assert pool.answer("ask:prints") == "spoke"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("segv", "crashed", "SIGSEGV: last words"),
        ("exits", "crashed", "exit status 3"),
        ("raises", "crashed", "RuntimeError: no such thing"),
        ("unserialisable", "crashed", "exit status 1: TypeError"),
        ("half", "malformed", "without a whole answer"),
        ("rubbish", "malformed", "without a whole answer"),
        ("null", "malformed", "null"),
        ("hang", "timed out", "no answer within 0.3 s"),
        ("stubborn", "timed out", "no answer within 0.3 s"),
        ("unavailable?kind=denied", "denied", "saidso"),
        ("unavailable?kind=whatever", "failed", "saidso"),
        ("large?n=5000000", "malformed", "larger than 4 MiB"),
        ("nosuchhelper", "malformed", "no such question"),
        ("..%2Fhost", "malformed", "no such question"),
    ],
)
def test_what_goes_wrong_is_said(pool: HelperPool, name: str, kind: str, words: str) -> None:
    got = pool.answer(f"ask:{name}")
    assert isinstance(got, Unavailable) and got.kind == kind and words in got.detail, got


@pytest.mark.slow
def test_a_large_answer_comes_whole(pool: HelperPool) -> None:
    assert pool.answer(f"ask:large?n={MAX_ANSWER - 10}") == "x" * (MAX_ANSWER - 10)


@pytest.mark.slow
def test_an_answer_counts_even_if_its_child_lingers(pool: HelperPool) -> None:
    assert pool.answer("ask:lingers") == 42


@pytest.mark.slow
def test_what_a_helper_leaves_running_ends_with_it(pool: HelperPool) -> None:
    child = pool.answer("ask:grandchild")
    assert isinstance(child, int)
    pool.close()
    assert gone(child)


@pytest.mark.slow
def test_at_most_five_at_once(pool: HelperPool, tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "in")
    os.mkfifo(tmp_path / "out")
    arrivals = os.open(tmp_path / "in", os.O_RDWR)
    leave = os.open(tmp_path / "out", os.O_RDWR)
    questions = [f"ask:meet?in={tmp_path}/in&n={n}&out={tmp_path}/out" for n in range(7)]
    pool.start(questions)
    came = b""
    while len(came) < 5:
        assert select.select([arrivals], [], [], 20)[0]
        came += os.read(arrivals, 10)
    assert len(came) == 5 and len(pool._children) == 5
    os.write(leave, b"go go go")
    assert [pool.answer(q) for q in questions] == ["met"] * 7
    os.close(arrivals)
    os.close(leave)


@pytest.mark.slow
def test_a_question_runs_once(pool: HelperPool) -> None:
    pool.start(["ask:pid", "ask:pid"])
    assert pool.answer("ask:pid") == pool.answer("ask:pid")


@pytest.mark.slow
def test_patience_is_common() -> None:
    one = HelperPool(patience=0.2, deadlines={"hang": 60.0})
    try:
        got = one.answer("ask:hang")
        assert isinstance(got, Unavailable) and got.kind == "no budget"
        again = one.answer("ask:hang?again=1")
        assert isinstance(again, Unavailable) and again.kind == "no budget"
    finally:
        one.close()
    assert not one._children


@pytest.mark.slow
def test_what_was_asked_for_is_no_part_of_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import time\ndef answer(p):\n    time.sleep(0.6)\n    return 'done'\n"
    monkeypatch.setitem(programs._SOURCES, "dcgm_diag", slow)
    monkeypatch.setitem(programs._SOURCES, "slow", slow)
    one = HelperPool(patience=0.5)
    try:
        assert one.answer("ask:dcgm_diag?seconds=60") == "done"
        assert one._patience == 0.5
        assert getattr(one.answer("ask:slow"), "kind", None) == "no budget"
    finally:
        one.close()


@pytest.mark.slow
def test_close_ends_what_still_runs(tmp_path: pathlib.Path) -> None:
    one = HelperPool(deadlines={"hang": 60.0, "stubborn": 60.0})
    one.start(["ask:hang", "ask:stubborn"])
    pids = [child.pid for child in one._children.values()]
    one.close()
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


@pytest.mark.slow
def test_a_child_dies_with_us(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "in")
    arrivals = os.open(tmp_path / "in", os.O_RDWR)
    code = (
        "import sys\nfrom netdoctor.host import programs\nfrom netdoctor.host.children import HelperPool\n"
        f"programs._SOURCES['waits'] = {HELPERS['waits']!r} + '\\n'\n"
        f"one = HelperPool(deadlines={{'waits': 60.0}})\none.start(['ask:waits?in={tmp_path}/in'])\n"
        "print(next(iter(one._children.values())).pid, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert select.select([arrivals], [], [], 20)[0]  # it is past its start
        parent.send_signal(signal.SIGKILL)
    os.close(arrivals)
    assert gone(child)


def test_ignored_sigchld_costs_nothing(pool: HelperPool) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert pool.answer("ask:echo?x=1") == {"x": "1"}
        got = pool.answer("ask:exits")
        assert isinstance(got, Unavailable) and got.kind == "crashed"
    finally:
        pool.close()
        signal.signal(signal.SIGCHLD, before)


def _meant(source: str) -> str:
    """What a text does, without what it says of itself."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


@pytest.mark.parametrize("name", sorted(p.stem for p in OURS.glob("*.py") if p.stem != "__init__"))
def test_a_program_is_read_alike_in_every_locale(name: str) -> None:
    whole, source = programs.program(name, {"word": "größer"}, None), programs.helper_source(name)
    assert whole is not None and source is not None
    assert whole.isascii()
    mine = source.encode("ascii", "backslashreplace").decode()
    assert _meant(mine) == _meant(source)  # no raw string, no bytes have such a letter


@pytest.mark.slow
def test_children_start_in_a_locale_without_utf8() -> None:
    environ = {**os.environ, "LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "netdoctor", "preflight", "--no-allreduce", "-f", "json", "-q", "--only", "net.port_range"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count('"status"') > 1
    assert "cannot start" not in done.stdout


@pytest.mark.slow
def test_helpers_come_out_of_a_zip_file(tmp_path: pathlib.Path) -> None:
    package = pathlib.Path(programs.__file__).parents[1]
    archive = tmp_path / "netdoctor.pyz"
    with zipfile.ZipFile(archive, "w") as out:
        for file in package.rglob("*.py"):
            out.write(file, f"netdoctor/{file.relative_to(package)}")
    code = "from netdoctor.host.programs import helper_source; print('def answer' in (helper_source('nvml') or ''), helper_source('x'))"  # noqa: E501
    env = {**os.environ, "PYTHONPATH": str(archive)}
    got = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=True)
    assert got.stdout == "True None\n"


def test_another_user_is_only_for_root(pool: HelperPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    got = pool.answer("ask:who?user=nobody")
    assert isinstance(got, Unavailable) and got.kind == "refused"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("user", ["nobody", "65534", "65534:65534"])
def test_a_child_becomes_the_user_for_good(pool: HelperPool, user: str) -> None:
    before = os.getgroups()
    os.setgroups([0, 4242])
    try:
        uids, gids, groups, status = pool.answer(f"ask:who?user={user.replace(':', '%3A')}")  # type: ignore[misc, str-unpack]
    finally:
        os.setgroups(before)
    assert uids == [65534] * 3 and gids == [65534] * 3 and not {0, 4242} & set(groups)
    assert "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("user", ["no-such-user", "4294967290", "x:y", ""])
def test_no_such_user_is_refused(pool: HelperPool, user: str) -> None:
    got = pool.answer(f"ask:who?user={user.replace(':', '%3A')}")
    assert isinstance(got, Unavailable) and got.kind == "refused", got


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_loads_nothing_that_others_can_change(
    pool: HelperPool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"")
    got = pool.answer(f"ask:echo?path={library}")
    assert isinstance(got, Unavailable) and got.kind == "refused" and "writable by everybody" in got.detail
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/usr/lib:{tmp_path}:relative")
    seen = pool.answer("ask:env")
    assert isinstance(seen, dict) and seen["LD_LIBRARY_PATH"] == "/usr/lib"
    # What root did not look at is not absent.
    got = pool.answer("ask:unavailable?kind=absent")
    assert isinstance(got, Unavailable) and got.kind == "refused" and str(tmp_path) in got.detail
