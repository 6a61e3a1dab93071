"""The house rules that a reader relies on: arrows go one way, probes and checks touch nothing."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

import pytest

from netdoctor.confvalues import KEYS

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "netdoctor"
TOUCHING = {"os", "subprocess", "socket", "ctypes", "shutil", "pathlib", "io", "glob", "multiprocessing", "threading"}


def imports(path: pathlib.Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(path: pathlib.Path) -> set[str]:
    return {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def files(folder: str) -> list[pathlib.Path]:
    found = sorted(p for p in (ROOT / folder).glob("*.py") if p.name != "__init__.py")
    assert found, folder
    return found


@pytest.mark.parametrize("path", files("checks") + files("netdoctor/probes"), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_probes_and_checks_touch_nothing(path: pathlib.Path) -> None:
    assert not {name.partition(".")[0] for name in imports(path)} & TOUCHING
    assert not calls(path) & {"open", "exec", "eval", "__import__", "compile"}


@pytest.mark.parametrize("path", files("checks"), ids=lambda p: p.name)
def test_checks_import_the_api_only(path: pathlib.Path) -> None:
    ours = {name for name in imports(path) if name.partition(".")[0] in ("netdoctor", "checks", "tests")}
    assert all(name == "netdoctor.api" or name.startswith("netdoctor.api.") for name in ours), ours


_ABOVE = {"engine", "live", "cli", "commands", "policy", "plugins", "checks"}
FORBIDDEN = {
    # layer: what it must not import
    "netdoctor/probes": _ABOVE | {"render", "allreduce", "api", "fleet"},
    "netdoctor/render": _ABOVE | {"allreduce", "api", "host", "probes"},
    "netdoctor/fleet": _ABOVE | {"allreduce", "api", "host", "probes"},
    "netdoctor/nccl": _ABOVE | {"render", "fleet"},
    "netdoctor/allreduce": _ABOVE | {"render", "fleet"},
}


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_arrows_go_one_way(layer: str) -> None:
    for path in files(layer):
        parts = {name.split(".")[1] for name in imports(path) if name.startswith("netdoctor.")}
        assert not parts & FORBIDDEN[layer], path.name


def test_helper_programs_stand_alone() -> None:
    for path in files("netdoctor/ask"):
        assert not [name for name in imports(path) if name.startswith("netdoctor")], path.name


@pytest.mark.parametrize("module", ["host", "model", "causes", "variables"])
def test_the_ground_imports_nothing_above(module: str) -> None:
    allowed = {"host": {"model", "asking", "rooted"}, "model": set(), "causes": {"model"}, "variables": set()}[module]
    used = {n.split(".")[1] for n in imports(PACKAGE / f"{module}.py") if n.startswith("netdoctor.")}
    assert used <= allowed


def test_version_imports_nothing_heavy() -> None:
    program = (
        "import sys; sys.argv = ['netdoctor', '--version']\n"
        "from netdoctor import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"torch", "rich", "pydantic", "pynvml", "yaml", "psutil", "pyudev", "importlib.metadata", "netdoctor.engine"}
    assert "typer" in loaded
    assert not loaded & heavy


_FOR_PEOPLE = {"reason", "detail", "why", "notes", "told", "message"}  # attributes that hold a sentence
_SEARCHES = {"startswith", "endswith", "partition", "rpartition", "find", "index"}


def _sentences_searched(source: str) -> list[str]:
    """Where code looks into a sentence: ``"x" in one.reason``, ``one.why == "x"``, ``one.detail.startswith("x")``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        looked: list[ast.expr] = []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            looked = [node.comparators[0]]
        elif isinstance(node, ast.Compare) and any(
            isinstance(x, ast.Constant) and isinstance(x.value, str) and x.value for x in (node.left, *node.comparators)
        ):
            looked = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SEARCHES:
            looked = [node.func.value]
        for one in looked:
            name = one.attr if isinstance(one, ast.Attribute) else ""
            found += [f"{one.lineno}: {name}"] if name in _FOR_PEOPLE else []
    return found


@pytest.mark.parametrize(
    "source",
    ["'lock' in run.reason", "b.detail.startswith('node ')", "'within' not in b.detail", "p.why != '--python'",
     "'x' == run.why", "one.reason.partition(': ')"],
)  # fmt: skip
def test_a_search_in_a_sentence_is_found(source: str) -> None:
    assert len(_sentences_searched(source)) == 1


def test_no_sentence_is_searched() -> None:
    """A string is never both words and data: what code asks is an Enum or a field of its own."""
    files = [p for folder in ("netdoctor", "checks") for p in (ROOT / folder).rglob("*.py") if "deploy" not in p.parts]
    found = {f"{p.relative_to(ROOT)}:{one}" for p in files for one in _sentences_searched(p.read_text())}
    assert not found


def test_no_file_is_too_long_to_hold_in_the_head() -> None:
    long = {str(p.relative_to(ROOT)): n for folder in ("netdoctor", "checks") for p in (ROOT / folder).rglob("*.py")
            if (n := len(p.read_text().splitlines())) > 400}  # fmt: skip
    assert not long


@pytest.mark.parametrize("folder", ["netdoctor", "checks"])
def test_digits_are_what_int_takes(folder: str) -> None:
    """`"²".isdigit()` is true and `int("²")` raises: isdecimal(), or isascii() beside it."""
    of_bytes = "messages.py"  # bytes have no isdecimal(), and their digits are ASCII's
    paths = [path for path in (ROOT / folder).rglob("*.py") if path.name != of_bytes]
    lines = [line for path in paths for line in path.read_text().splitlines()]
    assert not [line for line in lines if ".isdigit()" in line and "isascii" not in line]


def test_every_key_of_the_configuration_is_read() -> None:
    """A setting that changes nothing is a guard that is not there."""
    files = [p for folder in ("netdoctor", "checks") for p in (ROOT / folder).rglob("*.py")]
    unread = _unread(KEYS, [p.read_text() for p in files if p.name not in {"config.py", "confvalues.py"}])
    assert not unread


def test_a_key_that_nobody_reads_is_found() -> None:
    keys = ["expected.hcas", "expected.transport", "expected.no_such", "profile"]
    assert _unread(keys, ["x = expected.hcas, via.transport, config.profile"]) == {"expected.transport", "expected.no_such"}


def _unread(keys: Iterable[str], sources: Iterable[str]) -> set[str]:
    """Keys that no code reads as ``expected.hcas`` or ``config.get("vantage")``, whatever else has such a name."""
    read = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            name = node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else None
            of = node.value if isinstance(node, ast.Attribute) else None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
                name, of = getattr(node.args[0], "value", None), node.func.value
            read.add((of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else "", name))
    return {key for key in keys if (key.rpartition(".")[0] or "config", key.rpartition(".")[2]) not in read}
